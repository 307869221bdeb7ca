/* tcuda's tensor structs beside those of the real dlpack.h; `make check-dlpack` fetches that and compiles this, as C11 and C++17. */

#include <stddef.h>

#include "dlpack/dlpack.h"
#include "tcuda.h"

#ifdef __cplusplus
#define SAME(condition) static_assert(condition, #condition)
#else
#define SAME(condition) _Static_assert(condition, #condition)
#endif
#define SAME_SIZE(ours, theirs) SAME(sizeof(ours) == sizeof(theirs))
#define SAME_FIELD(ours, our_field, theirs, their_field)                                                                                   \
    SAME(offsetof(ours, our_field) == offsetof(theirs, their_field));                                                                      \
    SAME(sizeof(((ours *)0)->our_field) == sizeof(((theirs *)0)->their_field))

SAME(DLPACK_MAJOR_VERSION == 1);
SAME_SIZE(tcuda_dtype_t, DLDataType);
SAME_FIELD(tcuda_dtype_t, code, DLDataType, code);
SAME_FIELD(tcuda_dtype_t, bits, DLDataType, bits);
SAME_FIELD(tcuda_dtype_t, lanes, DLDataType, lanes);
SAME_SIZE(tcuda_place_t, DLDevice);
SAME_FIELD(tcuda_place_t, device_type, DLDevice, device_type);
SAME_FIELD(tcuda_place_t, device_id, DLDevice, device_id);
SAME_SIZE(tcuda_tensor_t, DLTensor);
SAME_FIELD(tcuda_tensor_t, data, DLTensor, data);
SAME_FIELD(tcuda_tensor_t, device, DLTensor, device);
SAME_FIELD(tcuda_tensor_t, ndim, DLTensor, ndim);
SAME_FIELD(tcuda_tensor_t, dtype, DLTensor, dtype);
SAME_FIELD(tcuda_tensor_t, shape, DLTensor, shape);
SAME_FIELD(tcuda_tensor_t, strides, DLTensor, strides);
SAME_FIELD(tcuda_tensor_t, byte_offset, DLTensor, byte_offset);
SAME_SIZE(tcuda_managed_tensor_t, DLManagedTensorVersioned);
SAME_FIELD(tcuda_managed_tensor_t, version, DLManagedTensorVersioned, version);
SAME_FIELD(tcuda_managed_tensor_t, manager_ctx, DLManagedTensorVersioned, manager_ctx);
SAME_FIELD(tcuda_managed_tensor_t, deleter, DLManagedTensorVersioned, deleter);
SAME_FIELD(tcuda_managed_tensor_t, flags, DLManagedTensorVersioned, flags);
SAME_FIELD(tcuda_managed_tensor_t, tensor, DLManagedTensorVersioned, dl_tensor);

/* The numbers that src/base/dlpack.rs and src/runtime/kernels/element.rs write out. */
SAME(kDLCPU == 1 && kDLCUDA == 2 && kDLCUDAHost == 3 && kDLCUDAManaged == 13);
SAME(kDLInt == 0 && kDLUInt == 1 && kDLFloat == 2 && kDLBfloat == 4 && kDLComplex == 5 && kDLBool == 6);
SAME(DLPACK_FLAG_BITMASK_READ_ONLY == 1 && DLPACK_FLAG_BITMASK_IS_COPIED == 2);

int main(void)
{
    return 0;
}
