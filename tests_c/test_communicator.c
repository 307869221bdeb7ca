/* Communicators from one thread a rank, on as many devices as there are: ranks that find each other, collectives, sends in a circle, a part,
 * and a rank that is aborted while another one waits. The sanitizers run this too. */

#include "check.h"

#include <pthread.h>
#include <stdlib.h>

enum { ROUNDS = 6, MOST = 4, ELEMENTS = 1000 };

static int32_t device_count;
static tcuda_communicator_id_t id;

static tcuda_managed_tensor_t *filled(int32_t device, int64_t count, int32_t value)
{
    tcuda_dtype_t i32 = {0, 32, 1};
    tcuda_managed_tensor_t *tensor = NULL;

    if (CHECK_OK(tcuda_tensor_empty(&tensor, device, i32, 1, &count, TCUDA_STREAM_CURRENT)))
        CHECK_OK(tcuda_tensor_fill(&tensor->tensor, &value, i32, TCUDA_STREAM_CURRENT));
    return tensor;
}

/* Whether `count` elements from `first` on are the value. */
static int holds(const tcuda_managed_tensor_t *tensor, int first, int count, int32_t value)
{
    int32_t numbers[MOST * ELEMENTS];
    int i, right = 1;

    right &= tcuda_copy(numbers, (int32_t *)tensor->tensor.data + first, (size_t)count * sizeof *numbers, false) == TCUDA_SUCCESS;
    for (i = 0; i < count; i++)
        right &= numbers[i] == value;
    return right;
}

static void *work(void *argument)
{
    int32_t rank = (int32_t)(intptr_t)argument, size = device_count, before = (rank + size - 1) % size, i, round;
    tcuda_communicator_options_t options = TCUDA_COMMUNICATOR_OPTIONS_INIT;
    tcuda_communicator_t comm = NULL, part = NULL;
    tcuda_managed_tensor_t *one, *sum, *all;
    bool ready = false;

    options.timeout_ms = 120000;
    CHECK_OK(tcuda_set_device(rank));
    if (!CHECK_OK(tcuda_communicator_init_rank(&comm, size, &id, rank, -1, &options)))
        return NULL;
    for (round = 0; round < ROUNDS; round++) {
        one = filled(rank, ELEMENTS, rank + round);
        sum = filled(rank, ELEMENTS, 0);
        all = filled(rank, (int64_t)ELEMENTS * size, 0);
        CHECK_OK(tcuda_communicator_all_reduce(comm, &sum->tensor, &one->tensor, TCUDA_REDUCE_SUM, NULL));
        CHECK_OK(tcuda_communicator_all_gather(comm, &all->tensor, &one->tensor, NULL));
        CHECK_OK(tcuda_communicator_synchronize(comm, NULL, 0));
        CHECK(holds(sum, 0, ELEMENTS, size * (size - 1) / 2 + size * round));
        for (i = 0; i < size; i++)
            CHECK(holds(all, i * ELEMENTS, ELEMENTS, i + round));
        CHECK_OK(tcuda_communicator_group_start());
        CHECK_OK(tcuda_communicator_send(comm, &one->tensor, (rank + 1) % size, NULL));
        CHECK_OK(tcuda_communicator_recv(comm, &sum->tensor, before, NULL));
        CHECK_OK(tcuda_communicator_group_end());
        CHECK_OK(tcuda_communicator_synchronize(comm, NULL, 0));
        CHECK(holds(sum, 0, ELEMENTS, before + round));
        CHECK_OK(tcuda_tensor_destroy(one));
        CHECK_OK(tcuda_tensor_destroy(sum));
        CHECK_OK(tcuda_tensor_destroy(all));
    }
    /* The last rank is the first one of its part. */
    if (CHECK_OK(tcuda_communicator_split(&part, comm, 0, -rank, &options))) {
        CHECK_OK(tcuda_communicator_rank(part, &i));
        CHECK_EQUAL(i, size - 1 - rank);
        CHECK_OK(tcuda_communicator_destroy(part));
    }
    if (size > 1) {
        one = filled(rank, ELEMENTS, 1);
        if (rank == 0) {
            CHECK_OK(tcuda_communicator_abort(comm));
            CHECK_STATUS(tcuda_communicator_all_reduce(comm, &one->tensor, &one->tensor, TCUDA_REDUCE_SUM, NULL), TCUDA_ERROR_INVALID_STATE);
        } else {
            /* Told of, or not within the time; never for ever. */
            tcuda_status_t status = tcuda_communicator_all_reduce(comm, &one->tensor, &one->tensor, TCUDA_REDUCE_SUM, NULL);
            if (status == TCUDA_SUCCESS)
                status = tcuda_communicator_synchronize(comm, NULL, 5000);
            if (!CHECK(status == TCUDA_ERROR_REMOTE || status == TCUDA_ERROR_TIMEOUT || status == TCUDA_ERROR_NCCL))
                printf("rank %d heard %s: %s\n", (int)rank, tcuda_status_name(status), tcuda_last_error_message());
            CHECK_STATUS(tcuda_communicator_query(comm, &ready), status);
        }
        CHECK_OK(tcuda_stream_synchronize(TCUDA_STREAM_CURRENT));
        CHECK_OK(tcuda_tensor_destroy(one));
    } else {
        CHECK_OK(tcuda_communicator_query(comm, &ready));
        CHECK(ready);
    }
    CHECK_OK(tcuda_communicator_destroy(comm));
    return NULL;
}

int main(void)
{
    pthread_t threads[MOST];
    int32_t version = -1;
    int i;

    CHECK_OK(tcuda_device_count(&device_count));
    if (device_count > MOST)
        device_count = MOST;
    if (tcuda_communicator_version(&version) == TCUDA_ERROR_NOT_SUPPORTED) {
        printf("no NCCL: %s\n", tcuda_last_error_message());
        CHECK(strstr(tcuda_last_error_message(), "NCCL") != NULL);
        return CHECK_DONE();
    }
    CHECK(version >= 0);
    CHECK_OK(tcuda_communicator_unique_id(&id));
    for (i = 0; i < device_count; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i) == 0);
    for (i = 0; i < device_count; i++)
        pthread_join(threads[i], NULL);
    for (i = 0; i < device_count; i++) {
        uint64_t left = 1;
        CHECK_OK(tcuda_memory_allocated(&left, i));
        CHECK_EQUAL(left, 0);
    }
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
