/* What stands for a model's gradients in the examples that average them. */

#ifndef GRADIENTS_H
#define GRADIENTS_H

#include <stdint.h>

enum { TENSORS = 300, LARGEST = 3 * 768 };

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

#endif
