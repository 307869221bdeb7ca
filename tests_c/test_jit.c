/* Functions compiled at run time, from C: made, called with new and with given outputs, with an extra argument and in place; a broken
 * source; a whole kernel where there is a real device. Where there is no compiler, tcuda says what to install. */

#include "check.h"

static const char *const AXPY = "template <typename T>\nT axpy(T x, T y, T a) {\n    return a * x + y;\n}\n";

static tcuda_managed_tensor_t *of(const float *values, int64_t count)
{
    const tcuda_dtype_t float32 = {2, 32, 1};
    tcuda_managed_tensor_t *tensor = NULL;
    if (CHECK_OK(tcuda_tensor_empty(&tensor, 0, float32, 1, &count, NULL)))
        CHECK_OK(tcuda_copy(tensor->tensor.data, values, (size_t)count * sizeof *values, false));
    return tensor;
}

static int holds(const tcuda_managed_tensor_t *tensor, float a, float b, float c)
{
    float found[3] = {0, 0, 0};
    return CHECK_OK(tcuda_copy(found, tensor->tensor.data, sizeof found, false)) && CHECK(found[0] == a) && CHECK(found[1] == b) &&
           CHECK(found[2] == c);
}

static void broken_sources(const tcuda_tensor_t *input)
{
    tcuda_managed_tensor_t *out = NULL;
    tcuda_jit_t jit = NULL;
    CHECK_STATUS(tcuda_jit_create(&jit, "float f(float x) { return x; }", NULL, 0), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(tcuda_last_error_message(), "line 1, column 1"));
    CHECK(jit == NULL);
    if (CHECK_OK(tcuda_jit_create(&jit, "template <typename T>\nT f(T x) { return nothing(x); }", NULL, 0))) {
        CHECK_STATUS(tcuda_jit_call(jit, &out, &input, 1, NULL, 0, NULL), TCUDA_ERROR_COMPILATION);
        CHECK(strstr(tcuda_last_error_message(), "line 2") && strstr(tcuda_last_error_message(), "nothing"));
        CHECK(out == NULL);
        CHECK_OK(tcuda_jit_destroy(jit));
    }
}

static void whole_kernel(tcuda_managed_tensor_t *tensor)
{
    const uint32_t grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
    const char *source = "extern \"C\" __global__ void add(float *x, int n, float y) { if (threadIdx.x < n) x[threadIdx.x] += y; }";
    tcuda_kernel_module_t module = NULL;
    tcuda_kernel_t kernel = NULL;
    tcuda_argument_t arguments[3];

    if (strcmp(tcuda_backend_name(), "sim") == 0) {
        CHECK_STATUS(tcuda_kernel_compile(&module, source, -1, NULL), TCUDA_ERROR_NOT_SUPPORTED);
        return;
    }
    memset(arguments, 0, sizeof arguments);
    arguments[0].kind = TCUDA_ARGUMENT_POINTER;
    arguments[0].value.pointer = tensor->tensor.data;
    arguments[1].kind = TCUDA_ARGUMENT_I32;
    arguments[1].value.i32 = 3;
    arguments[2].kind = TCUDA_ARGUMENT_F32;
    arguments[2].value.f32 = 100.0f;
    if (CHECK_OK(tcuda_kernel_compile(&module, source, -1, NULL)) && CHECK_OK(tcuda_kernel_get(&kernel, module, "add"))) {
        CHECK_OK(tcuda_kernel_launch(kernel, grid, block, 0, arguments, 3, NULL));
        holds(tensor, 112, 125, 138);
    }
    CHECK_OK(tcuda_kernel_module_destroy(module));
}

int main(void)
{
    const float xs[3] = {1, 2, 3}, ys[3] = {10, 21, 32};
    tcuda_jit_scalar_t a = {"a", TCUDA_SCALAR_REAL, 0, 2.0, 0.0};
    tcuda_managed_tensor_t *x = of(xs, 3), *y = of(ys, 3), *out = NULL;
    const tcuda_tensor_t *inputs[2], *output;
    tcuda_jit_t jit = NULL;
    int status;

    if (!x || !y || !CHECK_OK(tcuda_jit_create(&jit, AXPY, &a, 1)))
        return CHECK_DONE();
    inputs[0] = &x->tensor;
    inputs[1] = output = &y->tensor;
    status = tcuda_jit_call(jit, &out, inputs, 2, NULL, 0, NULL);
    if (status == TCUDA_ERROR_NOT_SUPPORTED) {
        printf("there is no compiler: %s\n", tcuda_last_error_message());
        CHECK(strstr(tcuda_last_error_message(), "nstall"));
    } else if (CHECK_STATUS(status, TCUDA_SUCCESS)) {
        holds(out, 12, 25, 38);
        CHECK_OK(tcuda_tensor_destroy(out));
        a.real = -1.0;
        CHECK_OK(tcuda_jit_call(jit, &out, inputs, 2, &a, 1, TCUDA_STREAM_CURRENT));
        holds(out, 9, 19, 29);
        CHECK_OK(tcuda_tensor_destroy(out));
        CHECK_OK(tcuda_jit_call_out(jit, &output, 1, inputs, 2, NULL, 0, NULL));
        holds(y, 12, 25, 38);
        broken_sources(inputs[0]);
        whole_kernel(y);
    }
    CHECK_OK(tcuda_jit_destroy(jit));
    CHECK_STATUS(tcuda_jit_destroy(jit), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_OK(tcuda_tensor_destroy(x));
    CHECK_OK(tcuda_tensor_destroy(y));
    return CHECK_DONE();
}
