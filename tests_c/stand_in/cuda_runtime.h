/* Stands in for CUDA's header in the tests of tcuda.h: the handle types as CUDA declares them. */

#ifndef STAND_IN_CUDA_RUNTIME_H
#define STAND_IN_CUDA_RUNTIME_H

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

#endif
