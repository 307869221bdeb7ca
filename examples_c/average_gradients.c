/* Data-parallel training in one process: each device has the gradients of a model's 300 tensors; they are summed on the first device,
 * divided there, and sent back to all. Two calls, with no buffer in between, whatever the number of devices. */

#include "gradients.h"
#include "tcuda.h"

#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                                                        \
    do {                                                                                                 \
        if ((call) != TCUDA_SUCCESS) {                                                                   \
            fprintf(stderr, "%s\n", tcuda_last_error_message());                                         \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

enum { DEVICES = 8 };

static tcuda_managed_tensor_t *gradients[DEVICES * TENSORS], *sums[TENSORS], *averages[DEVICES * TENSORS];
static const tcuda_tensor_t *list[DEVICES * TENSORS];
static float host[LARGEST];

int main(void)
{
    const tcuda_dtype_t f32 = TCUDA_DTYPE_FLOAT32;
    int32_t devices[DEVICES], count, device;
    int64_t bytes = 0, i;
    int tensor, wrong = 0;

    TRY(tcuda_device_count(&count));
    if (count > DEVICES)
        count = DEVICES;
    for (device = 0; device < count; device++) {
        devices[device] = device;
        for (tensor = 0; tensor < TENSORS; tensor++) {
            int64_t size = size_of(tensor);
            tcuda_managed_tensor_t **gradient = &gradients[device * TENSORS + tensor];

            TRY(tcuda_tensor_empty(gradient, device, f32, 1, &size, TCUDA_STREAM_CURRENT));
            for (i = 0; i < size; i++)
                host[i] = gradient_of(device, tensor, i);
            TRY(tcuda_copy((*gradient)->tensor.data, host, (size_t)size * sizeof *host, false));
            list[device * TENSORS + tensor] = &(*gradient)->tensor;
            bytes += size * (int64_t)sizeof *host;
        }
    }

    TRY(tcuda_comm_reduce_add_coalesced(sums, list, TENSORS, (size_t)count, 0, 0));
    /* The division: the host stands for a kernel of the program's own. */
    for (tensor = 0; tensor < TENSORS; tensor++) {
        int64_t size = size_of(tensor);

        TRY(tcuda_copy(host, sums[tensor]->tensor.data, (size_t)size * sizeof *host, false));
        for (i = 0; i < size; i++)
            host[i] /= (float)count;
        TRY(tcuda_copy(sums[tensor]->tensor.data, host, (size_t)size * sizeof *host, false));
        list[tensor] = &sums[tensor]->tensor;
    }
    TRY(tcuda_comm_broadcast_coalesced(averages, list, TENSORS, devices, (size_t)count, 0));

    for (device = 0; device < count; device++) {
        for (tensor = 0; tensor < TENSORS; tensor++) {
            int64_t size = size_of(tensor);

            TRY(tcuda_copy(host, averages[device * TENSORS + tensor]->tensor.data, (size_t)size * sizeof *host, false));
            for (i = 0; i < size; i++) {
                float sum = 0;
                int other;
                for (other = 0; other < count; other++)
                    sum += gradient_of(other, tensor, i);
                wrong += host[i] != sum / (float)count;
            }
        }
    }
    /* Those of the first device are the sums themselves; every tensor is destroyed all the same. */
    for (i = 0; i < count * TENSORS; i++) {
        TRY(tcuda_tensor_destroy(averages[i]));
        TRY(tcuda_tensor_destroy(gradients[i]));
    }
    for (tensor = 0; tensor < TENSORS; tensor++)
        TRY(tcuda_tensor_destroy(sums[tensor]));
    printf("%d tensors (%.1f MB) averaged over %d devices: %d elements wrong\n", (int)TENSORS, (double)bytes / count / 1e6, (int)count, wrong);
    return wrong != 0;
}
