/* Collectives from several threads at once, on as many devices as there are: each thread has tensors of its own on the common default
 * streams, and checks what comes out. The sanitizers run this too. */

#include "check.h"

#include <pthread.h>
#include <stdlib.h>

enum { THREADS = 4, ROUNDS = 12, MOST = 8, ELEMENTS = 1000 };

static int32_t device_count;
static int32_t devices[MOST];

static tcuda_managed_tensor_t *filled(int32_t device, int32_t value)
{
    tcuda_dtype_t i32 = {0, 32, 1};
    int64_t shape[2] = {ELEMENTS / 10, 10};
    tcuda_managed_tensor_t *tensor = NULL;

    if (CHECK_OK(tcuda_tensor_empty(&tensor, device, i32, 2, shape, TCUDA_STREAM_CURRENT)))
        CHECK_OK(tcuda_tensor_fill(&tensor->tensor, &value, i32, TCUDA_STREAM_CURRENT));
    return tensor;
}

/* Whether all elements of a packed tensor are the value; the tensor is destroyed. */
static int holds(tcuda_managed_tensor_t *tensor, int32_t value)
{
    int64_t count = 1;
    int32_t numbers[MOST * ELEMENTS];
    int i, right = 1;

    for (i = 0; i < tensor->tensor.ndim; i++)
        count *= tensor->tensor.shape[i];
    right &= tcuda_copy(numbers, tensor->tensor.data, (size_t)count * sizeof *numbers, false) == TCUDA_SUCCESS;
    for (i = 0; i < count; i++)
        right &= numbers[i] == value;
    CHECK_OK(tcuda_tensor_destroy(tensor));
    return right;
}

static void *work(void *argument)
{
    int32_t seed = (int32_t)(intptr_t)argument * 1000;
    size_t count = (size_t)device_count;
    tcuda_managed_tensor_t *inputs[MOST], *outs[MOST * 2];
    const tcuda_tensor_t *list[MOST];
    int round, i;

    for (round = 0; round < ROUNDS; round++) {
        int32_t value = seed + round, sum = 0;

        for (i = 0; i < device_count; i++) {
            inputs[i] = filled(i, value + i);
            list[i] = &inputs[i]->tensor;
            sum += value + i;
        }
        if (CHECK_OK(tcuda_comm_broadcast(outs, list[0], devices, count)))
            for (i = 0; i < device_count; i++)
                CHECK(holds(outs[i], value));
        if (CHECK_OK(tcuda_comm_reduce_add(outs, list, count, 0)))
            CHECK(holds(outs[0], sum));
        if (CHECK_OK(tcuda_comm_reduce_add_coalesced(outs, list, 1, count, device_count - 1, 0)))
            CHECK(holds(outs[0], sum));
        if (CHECK_OK(tcuda_comm_scatter(outs, list[0], devices, count, NULL, 0, NULL)))
            for (i = 0; i < device_count; i++)
                CHECK(outs[i] == NULL || holds(outs[i], value));
        list[0] = list[device_count - 1];
        if (CHECK_OK(tcuda_comm_broadcast_coalesced(outs, list, 1, &devices[device_count - 1], 1, 0))) {
            tcuda_tensor_origin_t origin = TCUDA_TENSOR_NEW;
            CHECK_OK(tcuda_tensor_origin(outs[0], &origin));
            CHECK(origin == TCUDA_TENSOR_INPUT && outs[0]->tensor.data == list[0]->data);
            CHECK_OK(tcuda_tensor_destroy(outs[0]));
        }
        /* The same one several times, side by side in the second dimension; freed before anything is done. */
        for (i = 0; i < device_count; i++)
            list[i] = &inputs[0]->tensor;
        if (CHECK_OK(tcuda_comm_gather(outs, list, count, 1, device_count - 1))) {
            for (i = 0; i < device_count; i++)
                CHECK_OK(tcuda_tensor_destroy(inputs[i]));
            CHECK(outs[0]->tensor.shape[1] == 10 * device_count && holds(outs[0], value));
        }
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    int i;

    CHECK_OK(tcuda_device_count(&device_count));
    if (device_count > MOST)
        device_count = MOST;
    for (i = 0; i < device_count; i++)
        devices[i] = i;
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(intptr_t)(i + 1)) == 0);
    for (i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (i = 0; i < device_count; i++) {
        uint64_t left = 1;
        CHECK_OK(tcuda_memory_allocated(&left, i));
        CHECK_EQUAL(left, 0);
    }
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
