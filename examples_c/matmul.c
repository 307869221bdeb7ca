/* A product of matrices by cuBLAS, on a stream and memory of tcuda, compiled against nothing but tcuda.h: tcuda looks cuBLAS up, and this program
 * takes the one function that it wants from there.
 *
 *     cc -Iinclude examples_c/matmul.c -o build/matmul -Lbuild/lib -ltcuda -Wl,-rpath,$PWD/build/lib
 */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tcuda.h"

#define TRY(call) if ((call) != TCUDA_SUCCESS) return fprintf(stderr, "%s\n", tcuda_last_error_message()), 1

enum { N = 256 };

typedef int (*sgemm_t)(tcuda_blas_handle_t, int, int, int, int, int, const float *, const float *, int, const float *, int, const float *, float *, int);

/* cublasSgemm, of the library that tcuda has loaded. */
static sgemm_t find_sgemm(void)
{
    char path[4096];
    void *library, *address;
    sgemm_t sgemm = NULL;

    if (tcuda_blas_library(path, sizeof path, NULL) != TCUDA_SUCCESS)
        return NULL;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    address = library != NULL ? dlsym(library, "cublasSgemm_v2") : NULL;
    memcpy(&sgemm, &address, sizeof sgemm);
    return sgemm;
}

int main(void)
{
    const size_t bytes = (size_t)N * N * sizeof(float);
    const float one = 1, zero = 0;
    float *host = (float *)malloc(bytes);
    tcuda_blas_handle_t handle;
    tcuda_stream_t stream;
    void *a, *c;
    sgemm_t sgemm;
    int i, wrong = 0;

    TRY(tcuda_init(NULL));
    sgemm = find_sgemm();
    if (sgemm == NULL || host == NULL) {
        /* As on the simulated device. */
        printf("no product: %s\n", tcuda_last_error_message());
        free(host);
        return 0;
    }
    TRY(tcuda_stream_create(&stream, 0, 0));
    TRY(tcuda_malloc_cached(&a, bytes, stream));
    TRY(tcuda_malloc_cached(&c, bytes, stream));
    for (i = 0; i < N * N; i++) /* twice the identity, by columns */
        host[i] = i % (N + 1) == 0 ? 2.0f : 0.0f;
    TRY(tcuda_copy_async(a, host, bytes, stream));

    TRY(tcuda_blas_handle(&handle, stream)); /* works on this stream, with a workspace from the cache */
    if (sgemm(handle, 0, 0, N, N, N, &one, (const float *)a, N, (const float *)a, N, &zero, (float *)c, N) != 0)
        return fprintf(stderr, "cublasSgemm failed\n"), 1;

    TRY(tcuda_copy_async(host, c, bytes, stream));
    TRY(tcuda_free_cached(a)); /* in the stream's order */
    TRY(tcuda_free_cached(c));
    TRY(tcuda_stream_synchronize(stream));
    for (i = 0; i < N * N; i++)
        wrong += host[i] != (i % (N + 1) == 0 ? 4.0f : 0.0f);
    printf("%d by %d: %d wrong\n", (int)N, (int)N, wrong);
    free(host);
    TRY(tcuda_stream_destroy(stream));
    return wrong != 0;
}
