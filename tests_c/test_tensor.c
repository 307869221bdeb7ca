/* Tensors from C: made, filled, copied, converted, moved and pinned; the structs have DLPack's layout; shutdown comes before the last
 * deleter. */

#include <stddef.h>

#include "check.h"

static tcuda_dtype_t type_of(int code, int bits)
{
    tcuda_dtype_t dtype;
    dtype.code = (uint8_t)code;
    dtype.bits = (uint8_t)bits;
    dtype.lanes = 1;
    return dtype;
}

static void layout(void)
{
    /* DLPack's specification, on 64-bit machines. `make check-dlpack` compares with the real header. */
    CHECK_EQUAL(sizeof(tcuda_dtype_t), 4);
    CHECK_EQUAL(sizeof(tcuda_tensor_t), 48);
    CHECK_EQUAL(offsetof(tcuda_tensor_t, data), 0);
    CHECK_EQUAL(offsetof(tcuda_tensor_t, device), 8);
    CHECK_EQUAL(offsetof(tcuda_tensor_t, ndim), 16);
    CHECK_EQUAL(offsetof(tcuda_tensor_t, dtype), 20);
    CHECK_EQUAL(offsetof(tcuda_tensor_t, shape), 24);
    CHECK_EQUAL(offsetof(tcuda_tensor_t, strides), 32);
    CHECK_EQUAL(offsetof(tcuda_tensor_t, byte_offset), 40);
    CHECK_EQUAL(sizeof(tcuda_managed_tensor_t), 80);
    CHECK_EQUAL(offsetof(tcuda_managed_tensor_t, version), 0);
    CHECK_EQUAL(offsetof(tcuda_managed_tensor_t, manager_ctx), 8);
    CHECK_EQUAL(offsetof(tcuda_managed_tensor_t, deleter), 16);
    CHECK_EQUAL(offsetof(tcuda_managed_tensor_t, flags), 24);
    CHECK_EQUAL(offsetof(tcuda_managed_tensor_t, tensor), 32);
}

/* A table of float on device 0, turned and made double on the way to the host. */
static void round_trip(void)
{
    const int64_t shape[2] = {3, 4};
    int64_t turned_shape[2] = {4, 3}, turned_strides[2] = {1, 4};
    const tcuda_dtype_t same = {0, 0, 0};
    tcuda_managed_tensor_t *table = NULL, *home = NULL, *again = NULL;
    tcuda_tensor_origin_t origin = TCUDA_TENSOR_VIEW;
    tcuda_tensor_t turned, host;
    float values[12];
    const double *found;
    int i, j;

    for (i = 0; i < 12; i++)
        values[i] = (float)i + 0.25f;
    if (!CHECK_OK(tcuda_tensor_empty(&table, 0, type_of(2, 32), 2, shape, NULL)))
        return;
    CHECK_EQUAL(table->version.major, 1);
    CHECK_EQUAL(table->tensor.device.device_type, 2);
    CHECK_EQUAL(table->tensor.strides[0], 4);
    CHECK_EQUAL(table->tensor.strides[1], 1);
    host = table->tensor;
    host.data = values;
    host.device.device_type = 1;
    host.strides = NULL;
    CHECK_OK(tcuda_tensor_copy(&table->tensor, &host, false, NULL));

    turned = table->tensor;
    turned.shape = turned_shape;
    turned.strides = turned_strides;
    if (CHECK_OK(tcuda_tensor_to(&home, &origin, &turned, TCUDA_DEVICE_CPU, type_of(2, 64), false, false, TCUDA_STREAM_CURRENT))) {
        CHECK_EQUAL(origin, TCUDA_TENSOR_NEW);
        CHECK_EQUAL(home->tensor.strides[0], 1);
        found = (const double *)home->tensor.data;
        for (i = 0; i < 3; i++)
            for (j = 0; j < 4; j++)
                CHECK(found[i * home->tensor.strides[1] + j * home->tensor.strides[0]] == (double)values[i * 4 + j]);
        CHECK_OK(tcuda_tensor_to(&again, &origin, &home->tensor, TCUDA_DEVICE_SAME, same, false, false, NULL));
        CHECK_EQUAL(origin, TCUDA_TENSOR_INPUT);
        CHECK(again->tensor.data == home->tensor.data);
        CHECK_OK(tcuda_tensor_destroy(again));
        CHECK_OK(tcuda_tensor_destroy(home));
    }
    CHECK_STATUS(tcuda_tensor_copy(&table->tensor, NULL, false, NULL), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK_OK(tcuda_tensor_destroy(table));
}

static void fill_and_pin(void)
{
    const int64_t shape = 1000;
    const uint8_t five = 5;
    const int64_t large = 300;
    tcuda_managed_tensor_t *bytes = NULL, *pinned = NULL, *like = NULL;
    const uint8_t *found;
    int i, wrong = 0;

    if (!CHECK_OK(tcuda_tensor_empty(&bytes, TCUDA_DEVICE_CPU, type_of(1, 8), 1, &shape, NULL)))
        return;
    CHECK_OK(tcuda_tensor_fill(&bytes->tensor, &five, type_of(1, 8), NULL));
    CHECK_STATUS(tcuda_tensor_fill(&bytes->tensor, &large, type_of(0, 64), NULL), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(tcuda_last_error_message(), "300") != NULL);
    if (CHECK_OK(tcuda_tensor_pin(&pinned, NULL, &bytes->tensor))) {
        CHECK_EQUAL(pinned->tensor.device.device_type, 3);
        found = (const uint8_t *)pinned->tensor.data;
        for (i = 0; i < 1000; i++)
            wrong += found[i] != 5;
        CHECK_EQUAL(wrong, 0);
        CHECK_OK(tcuda_tensor_empty_like(&like, &pinned->tensor, NULL));
        CHECK_EQUAL(like->tensor.device.device_type, 3);
        CHECK_OK(tcuda_tensor_destroy(like));
        pinned->deleter(pinned);
    }
    CHECK_OK(tcuda_tensor_destroy(bytes));
    CHECK_OK(tcuda_tensor_destroy(NULL));
}

/* A garbage collector may run late: after the shutdown, or after the next start. */
static void late_deleters(void)
{
    const int64_t shape = 1 << 20;
    tcuda_managed_tensor_t *first = NULL, *second = NULL, *third = NULL;

    CHECK_OK(tcuda_tensor_empty(&first, 0, type_of(2, 32), 1, &shape, NULL));
    CHECK_OK(tcuda_tensor_empty(&second, 0, type_of(2, 32), 1, &shape, NULL));
    CHECK_OK(tcuda_shutdown());
    CHECK_OK(tcuda_tensor_destroy(first));
    CHECK_OK(tcuda_init(NULL));
    CHECK_OK(tcuda_tensor_empty(&third, 0, type_of(2, 32), 1, &shape, NULL));
    /* Its memory went with the shutdown; what lies at its address now is not its. */
    CHECK_OK(tcuda_tensor_destroy(second));
    CHECK_OK(tcuda_tensor_fill(&third->tensor, &shape, type_of(0, 64), NULL));
    CHECK_OK(tcuda_synchronize(0));
    CHECK_OK(tcuda_tensor_destroy(third));
}

int main(void)
{
    layout();
    round_trip();
    fill_and_pin();
    late_deleters();
    return CHECK_DONE();
}
