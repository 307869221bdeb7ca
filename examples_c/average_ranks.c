/* Data-parallel training with a process for each device: every rank has the gradients of a model's 300 tensors, and all of them are averaged
 * over the ranks, in one group of calls.
 *
 *     torchrun --no-python --nproc-per-node 4 ./average_ranks     or whatever sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
 *     ./average_ranks [4]                                         starts so many processes of itself (else one for each device)
 *
 * Under torchrun its own store has the port: TCUDA_COMMUNICATOR_PORT=29555 names another one. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "tcuda.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRY(call)                                                                                        \
    do {                                                                                                 \
        if ((call) != TCUDA_SUCCESS) {                                                                   \
            fprintf(stderr, "%s\n", tcuda_last_error_message());                                         \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

enum { TENSORS = 300, MOST = 8, LARGEST = 3 * 768 };

extern char **environ;

static tcuda_managed_tensor_t *gradients[TENSORS];
static float host[LARGEST];

/* A model's sizes: biases, norms and parts of its matrices. */
static int64_t size_of(int tensor)
{
    static const int64_t sizes[] = {64, 256, 768, LARGEST, 1};
    return sizes[tensor % 5];
}

/* What a backward pass of a rank would have left: numbers whose average every type of float holds. */
static float gradient_of(int rank, int tensor, int64_t element)
{
    return (float)((rank + 1) * (tensor + 1)) + (float)(element % 16);
}

static int run_rank(void)
{
    tcuda_communicator_options_t options = TCUDA_COMMUNICATOR_OPTIONS_INIT;
    tcuda_dtype_t f32 = {2, 32, 1};
    tcuda_communicator_t comm;
    int32_t rank, size, device;
    int64_t bytes = 0, i;
    int tensor, wrong = 0;

    options.timeout_ms = 60000;
    TRY(tcuda_communicator_init_from_env(&comm, &options));
    TRY(tcuda_communicator_rank(comm, &rank));
    TRY(tcuda_communicator_size(comm, &size));
    TRY(tcuda_communicator_device(comm, &device));
    TRY(tcuda_set_device(device));
    for (tensor = 0; tensor < TENSORS; tensor++) {
        int64_t count = size_of(tensor);

        TRY(tcuda_tensor_empty(&gradients[tensor], device, f32, 1, &count, TCUDA_STREAM_CURRENT));
        for (i = 0; i < count; i++)
            host[i] = gradient_of(rank, tensor, i);
        TRY(tcuda_copy(gradients[tensor]->tensor.data, host, (size_t)count * sizeof *host, false));
        bytes += count * (int64_t)sizeof *host;
    }

    TRY(tcuda_communicator_group_start());
    for (tensor = 0; tensor < TENSORS; tensor++)
        TRY(tcuda_communicator_all_reduce(comm, &gradients[tensor]->tensor, &gradients[tensor]->tensor, TCUDA_REDUCE_SUM, NULL));
    TRY(tcuda_communicator_group_end());
    /* A rank that ended is an error here, and not a wait without end. */
    TRY(tcuda_communicator_synchronize(comm, NULL, 0));

    for (tensor = 0; tensor < TENSORS; tensor++) {
        int64_t count = size_of(tensor);

        TRY(tcuda_copy(host, gradients[tensor]->tensor.data, (size_t)count * sizeof *host, false));
        for (i = 0; i < count; i++) {
            float sum = 0;
            int other;
            for (other = 0; other < size; other++)
                sum += gradient_of(other, tensor, i);
            wrong += host[i] / (float)size != sum / (float)size;
        }
        TRY(tcuda_tensor_destroy(gradients[tensor]));
    }
    TRY(tcuda_communicator_destroy(comm));
    printf("rank %d of %d: %d tensors (%.1f MB) averaged, %d elements wrong\n", (int)rank, (int)size, (int)TENSORS, (double)bytes / 1e6, wrong);
    return wrong != 0;
}

/* One that is free now. */
static int free_port(void)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0) {
        perror("no free port");
        exit(1);
    }
    close(listener);
    return ntohs(address.sin_port);
}

static void set(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* What torchrun does. */
static int launch(char *program, int count)
{
    char *arguments[2];
    pid_t children[MOST];
    int rank, failed = 0;

    arguments[0] = program;
    arguments[1] = NULL;
    set("WORLD_SIZE", count);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set("MASTER_PORT", free_port());
    for (rank = 0; rank < count; rank++) {
        set("RANK", rank);
        set("LOCAL_RANK", rank);
        if (posix_spawn(&children[rank], "/proc/self/exe", NULL, NULL, arguments, environ) != 0) {
            perror("a process cannot be started");
            return 1;
        }
    }
    for (rank = 0; rank < count; rank++) {
        int status = 1;
        waitpid(children[rank], &status, 0);
        failed += status != 0;
    }
    return failed != 0;
}

int main(int argc, char **argv)
{
    int32_t count = 0, version;

    if (getenv("RANK") != NULL)
        return run_rank();
    TRY(tcuda_device_count(&count));
    if (argc > 1)
        count = atoi(argv[1]);
    if (count < 1 || count > MOST) {
        fprintf(stderr, "usage: %s [PROCESSES], 1 to %d, each with a device of its own\n", argv[0], (int)MOST);
        return 2;
    }
    if (tcuda_communicator_version(&version) == TCUDA_ERROR_NOT_SUPPORTED) {
        printf("not averaged: %s\n", tcuda_last_error_message());
        return 0;
    }
    return launch(argv[0], count);
}
