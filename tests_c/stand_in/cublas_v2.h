/* Stands in for cuBLAS's header where CMake's example is built without it: what the example takes of it. */

#ifndef STAND_IN_CUBLAS_V2_H
#define STAND_IN_CUBLAS_V2_H

typedef struct cublasContext *cublasHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS = 0 } cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0 } cublasOperation_t;

#define cublasSgemm cublasSgemm_v2

#ifdef __cplusplus
extern "C"
#endif
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const float *alpha,
                              const float *a, int lda, const float *b, int ldb, const float *beta, float *c, int ldc);

#endif
