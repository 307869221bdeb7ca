/* Stands in for cuFFT's header where CMake's example is built without it: what the example takes of it. */

#ifndef STAND_IN_CUFFT_H
#define STAND_IN_CUFFT_H

#include <cuComplex.h>

typedef int cufftHandle;
typedef cuComplex cufftComplex;
typedef enum { CUFFT_SUCCESS = 0 } cufftResult;

#define CUFFT_FORWARD -1
#define CUFFT_INVERSE 1

#ifdef __cplusplus
extern "C"
#endif
cufftResult cufftExecC2C(cufftHandle plan, cufftComplex *in, cufftComplex *out, int direction);

#endif
