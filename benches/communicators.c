/* Communicators between processes, one for each device: what they take at the start in time and memory, what a call costs, bytes in a second,
 * and how long it takes until the others hear of a rank that was killed.
 *
 *     communicators              as many processes as there are devices, up to 8
 *     communicators --quick 3    few rounds and small tensors, to see that it runs; three processes
 *
 * Memory is what the device lost (cudaMemGetInfo), over the context and the tensors. The bandwidth is that of the bus, as nccl-tests have it:
 * of an all_reduce of B bytes between N ranks in t seconds 2 (N - 1) / N B / t. */

#include "../examples_c/launch.h"

#include "tcuda.h"

#include <signal.h>
#include <time.h>

#define TRY(call) \
    if ((call) != TCUDA_SUCCESS) { \
        fprintf(stderr, "%s\n", tcuda_last_error_message()); \
        exit(1); \
    }

static int quick;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double used_mib(void)
{
    size_t free_bytes, total;
    TRY(tcuda_mem_get_info(&free_bytes, &total, -1));
    return (double)(total - free_bytes) / 1048576.0;
}

static tcuda_managed_tensor_t *tensor_of(size_t bytes)
{
    tcuda_dtype_t f32 = {2, 32, 1};
    tcuda_managed_tensor_t *tensor;
    int64_t count = (int64_t)bytes / 4;
    float one = 1;

    TRY(tcuda_tensor_empty(&tensor, -1, f32, 1, &count, TCUDA_STREAM_CURRENT));
    TRY(tcuda_tensor_fill(&tensor->tensor, &one, f32, TCUDA_STREAM_CURRENT));
    TRY(tcuda_synchronize(-1));
    return tensor;
}

static void reduce(tcuda_communicator_t comm, const tcuda_managed_tensor_t *tensor)
{
    TRY(tcuda_communicator_all_reduce(comm, &tensor->tensor, &tensor->tensor, TCUDA_REDUCE_MAX, NULL));
}

/* Seconds of a call: on the host, and until it is done, of many in a row. */
static void measure(tcuda_communicator_t comm, size_t bytes, int rounds, double *host, double *done)
{
    tcuda_managed_tensor_t *tensor = tensor_of(bytes);
    double start;
    int i;

    for (i = 0; i < 5; i++)
        reduce(comm, tensor);
    TRY(tcuda_communicator_synchronize(comm, NULL, 0));
    start = now();
    for (i = 0; i < rounds; i++)
        reduce(comm, tensor);
    *host = (now() - start) / rounds;
    TRY(tcuda_communicator_synchronize(comm, NULL, 0));
    *done = (now() - start) / rounds;
    TRY(tcuda_tensor_destroy(tensor));
}

static int run_rank(int blocking)
{
    tcuda_communicator_options_t options = TCUDA_COMMUNICATOR_OPTIONS_INIT;
    const char *mode = blocking ? "nccl_blocking" : "with a time limit";
    tcuda_managed_tensor_t *tensor;
    tcuda_communicator_t comm;
    double before, made, used, start, first, host, done;
    int32_t rank, size, device = atoi(getenv("LOCAL_RANK"));
    size_t bytes, largest = quick ? (size_t)1 << 16 : (size_t)1 << 30;

    options.timeout_ms = 120000;
    options.nccl_blocking = blocking;
    TRY(tcuda_set_device(device));
    /* The context and tcuda's own first segments. */
    tensor = tensor_of(4096);
    before = used_mib();
    start = now();
    TRY(tcuda_communicator_init_from_env(&comm, &options));
    made = now() - start;
    used = used_mib() - before;
    TRY(tcuda_communicator_rank(comm, &rank));
    TRY(tcuda_communicator_size(comm, &size));
    start = now();
    reduce(comm, tensor);
    TRY(tcuda_communicator_synchronize(comm, NULL, 0));
    first = now() - start;
    if (rank == 0)
        printf("%s: made in %.0f ms and %.0f MiB, the first all_reduce in %.1f ms, then %.0f MiB\n", mode, 1e3 * made, used, 1e3 * first,
               used_mib() - before);
    for (bytes = 4; bytes <= largest; bytes *= bytes < 1024 ? 256 : 8) {
        int rounds = quick ? 5 : bytes < ((size_t)1 << 20) ? 1000 : bytes < ((size_t)1 << 27) ? 100 : 10;
        measure(comm, bytes, rounds, &host, &done);
        if (rank == 0)
            printf("%s: all_reduce of %10zu bytes: %8.1f us on the host, %9.1f us until done, %6.1f GB/s of the bus\n", mode, bytes, 1e6 * host,
                   1e6 * done, 2.0 * (size - 1) / size * (double)bytes / done / 1e9);
    }
    TRY(tcuda_tensor_destroy(tensor));
    start = now();
    TRY(tcuda_communicator_destroy(comm));
    if (rank == 0)
        printf("%s: destroyed in %.0f ms\n", mode, 1e3 * (now() - start));
    return 0;
}

/* The last rank is killed; the others have to hear of it within their time. */
static int run_death(void)
{
    tcuda_communicator_options_t options = TCUDA_COMMUNICATOR_OPTIONS_INIT;
    tcuda_managed_tensor_t *tensor;
    tcuda_communicator_t comm;
    tcuda_status_t status;
    int32_t rank, size;
    double start;

    options.timeout_ms = 120000;
    TRY(tcuda_set_device(atoi(getenv("LOCAL_RANK"))));
    TRY(tcuda_communicator_init_from_env(&comm, &options));
    TRY(tcuda_communicator_rank(comm, &rank));
    TRY(tcuda_communicator_size(comm, &size));
    tensor = tensor_of(4096);
    reduce(comm, tensor);
    TRY(tcuda_communicator_synchronize(comm, NULL, 0));
    if (rank == size - 1)
        raise(SIGKILL);
    start = now();
    status = tcuda_communicator_all_reduce(comm, &tensor->tensor, &tensor->tensor, TCUDA_REDUCE_SUM, NULL);
    if (status == TCUDA_SUCCESS)
        status = tcuda_communicator_synchronize(comm, NULL, 10000);
    printf("rank %d: after rank %d was killed: %s in %.1f s\n", (int)rank, (int)size - 1, tcuda_status_name(status), now() - start);
    fflush(stdout);
    /* The device goes on. */
    TRY(tcuda_synchronize(-1));
    TRY(tcuda_communicator_destroy(comm));
    return status != TCUDA_ERROR_REMOTE && status != TCUDA_ERROR_TIMEOUT && status != TCUDA_ERROR_NCCL;
}

/* Starts the ranks of a part. */
static int start(const char *part, int count, int killed)
{
    char program[] = "communicators", quickly[] = "--quick", text[16];
    char *arguments[4];

    snprintf(text, sizeof text, "%s", part);
    arguments[0] = program;
    arguments[1] = text;
    arguments[2] = quick ? quickly : NULL;
    arguments[3] = NULL;
    return launch(arguments, count, killed);
}

int main(int argc, char **argv)
{
    int32_t count = 0, version = 0;
    int i, failed = 0;

    for (i = 1; i < argc; i++)
        if (strcmp(argv[i], "--quick") == 0)
            quick = 1;
        else if (atoi(argv[i]) > 0)
            count = atoi(argv[i]);
    if (getenv("RANK") != NULL && argc > 1) {
        setvbuf(stdout, NULL, _IOLBF, 0);
        return strcmp(argv[1], "death") == 0 ? run_death() : run_rank(strcmp(argv[1], "blocking") == 0);
    }
    if (count == 0)
        TRY(tcuda_device_count(&count));
    if (count > MOST_RANKS)
        count = MOST_RANKS;
    TRY(tcuda_communicator_version(&version));
    printf("%d processes, NCCL %d (0: simulated)\n", (int)count, (int)version);
    fflush(stdout);
    failed += start("limited", count, -1);
    failed += start("blocking", count, -1);
    if (count > 1)
        failed += start("death", count, count - 1);
    printf("communicators: %d processes failed\n", failed);
    return failed != 0;
}
