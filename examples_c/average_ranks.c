/* Data-parallel training with a process for each device: every rank has the gradients of a model's 300 tensors, and all of them are averaged
 * over the ranks, in one group of calls.
 *
 *     torchrun --no-python --nproc-per-node 4 ./average_ranks     or whatever sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
 *     ./average_ranks [4]                                         starts so many processes of itself (else one for each device)
 *
 * Under torchrun its own store has the port: TCUDA_COMMUNICATOR_PORT=29555 names another one. */

#include "launch.h"

#include "gradients.h"
#include "tcuda.h"

#define TRY(call)                                                                                        \
    do {                                                                                                 \
        if ((call) != TCUDA_SUCCESS) {                                                                   \
            fprintf(stderr, "%s\n", tcuda_last_error_message());                                         \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

static tcuda_managed_tensor_t *gradients[TENSORS];
static float host[LARGEST];

static int run_rank(void)
{
    tcuda_communicator_options_t options = TCUDA_COMMUNICATOR_OPTIONS_INIT;
    const tcuda_dtype_t f32 = TCUDA_DTYPE_FLOAT32;
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

int main(int argc, char **argv)
{
    char *arguments[2];
    int32_t count = 0, version;

    if (getenv("RANK") != NULL)
        return run_rank();
    TRY(tcuda_device_count(&count));
    if (argc > 1)
        count = atoi(argv[1]);
    if (count < 1 || count > MOST_RANKS) {
        fprintf(stderr, "usage: %s [PROCESSES], 1 to %d, each with a device of its own\n", argv[0], (int)MOST_RANKS);
        return 2;
    }
    if (tcuda_communicator_version(&version) == TCUDA_ERROR_NOT_SUPPORTED) {
        printf("not averaged: %s\n", tcuda_last_error_message());
        return 0;
    }
    arguments[0] = argv[0];
    arguments[1] = NULL;
    return launch(arguments, count, -1) != 0;
}
