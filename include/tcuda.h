/* tcuda: what torch.cuda gives Python, as a C library.
 *
 * Made from the Rust sources by `TCUDA_BLESS=1 cargo test --test header`; not to be edited. For C99 and later, C++11 and later. It goes
 * together with cuda_runtime.h, in either order, and needs none of it. The pages of docs are installed in share/doc/tcuda.
 *
 * For every function, unless its own text says otherwise:
 * - It returns a tcuda_status_t, 0 for success. tcuda_last_error_message says what went wrong.
 * - Outputs are written on success only, and NULL for one is an error. What a call makes comes first, and so do
 *   other outputs, but behind the handle that a call is of, as in tcuda_event_query (tcuda_event_elapsed_time has CUDA's order), and behind
 *   tensors that are given to be filled.
 * - Texts, lists and structs that are given, a tensor's shape and strides among them, are read before the call returns and need not stay.
 *   The memory that work uses has to, and user_data for as long as its function may be called.
 * - It may be called from any thread at any time. The current device, the current streams and the last error are the thread's own.
 * - A stream may be NULL; see the section Streams. A device may be -1, the current one; see the section Devices.
 * - Structs that carry struct_size grow in later versions: set it with the struct's _INIT macro. In an output it becomes the number of
 *   bytes that were filled. Set everything else that is not needed to zero.
 * - Ending a handle (destroy, free) succeeds with NULL.
 */

#ifndef TCUDA_H
#define TCUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of this header; tcuda_version() is that of the library. */
#define TCUDA_VERSION_MAJOR (0)
#define TCUDA_VERSION_MINOR (1)
#define TCUDA_VERSION_PATCH (0)
#define TCUDA_VERSION_NUMBER (TCUDA_VERSION_MAJOR * 10000 + TCUDA_VERSION_MINOR * 100 + TCUDA_VERSION_PATCH)
#define TCUDA_VERSION_STRING "0.1.0"

/* CUDA's own names, so that these are the same types as cudaStream_t and cudaEvent_t. */
typedef struct CUstream_st *tcuda_stream_t;
typedef struct CUevent_st *tcuda_event_t;
/* And cuBLAS's, for cublasHandle_t. */
typedef struct cublasContext *tcuda_blas_handle_t;

/* Devices: the calling thread's current one; the CPU, where a place is taken; all of them, where a call can mean all; that of the tensor
 * given, in tcuda_tensor_to. */
#define TCUDA_DEVICE_CURRENT (-1)
#define TCUDA_DEVICE_CPU (-2)
#define TCUDA_DEVICE_ALL (-3)
#define TCUDA_DEVICE_SAME (-4)

/* Streams: the calling thread's current one of the current device; the default one of device d, an index from 0:
 * tcuda_default_stream takes TCUDA_DEVICE_CURRENT too; the calling thread's own default one of device d. */
#ifdef __cplusplus
#define TCUDA_STREAM_NAMED(number) (reinterpret_cast<tcuda_stream_t>(static_cast<uintptr_t>(number)))
#else
#define TCUDA_STREAM_NAMED(number) ((tcuda_stream_t)(uintptr_t)(number))
#endif
#define TCUDA_STREAM_CURRENT TCUDA_STREAM_NAMED(0x80)
#define TCUDA_STREAM_DEFAULT(d) TCUDA_STREAM_NAMED(0x100 + (d))
#define TCUDA_STREAM_PER_THREAD(d) TCUDA_STREAM_NAMED(0x500 + (d))

/* Flags of tcuda_event_create: CUDA's bits. torch's default is TCUDA_EVENT_DISABLE_TIMING. */
#define TCUDA_EVENT_DEFAULT (0u)
#define TCUDA_EVENT_BLOCKING (1u)
#define TCUDA_EVENT_DISABLE_TIMING (2u)
#define TCUDA_EVENT_INTERPROCESS (4u)

/* Flags of tcuda_host_register: CUDA's bits. The memory is a device's registers; devices only read it. */
#define TCUDA_HOST_REGISTER_IO_MEMORY (4u)
#define TCUDA_HOST_REGISTER_READ_ONLY (8u)

/* Stages of tcuda_pressure_t: what comes next. */
#define TCUDA_PRESSURE_WAIT (1)
#define TCUDA_PRESSURE_GIVE_BACK (2)
#define TCUDA_PRESSURE_FAIL (3)

/* What tcuda_memory_record_history records. */
#define TCUDA_HISTORY_OFF (0)
#define TCUDA_HISTORY_STATE (1)
#define TCUDA_HISTORY_ALL (2)

/* States of tcuda_snapshot_block_t. */
#define TCUDA_BLOCK_INACTIVE (0)
#define TCUDA_BLOCK_ALLOCATED (1)
#define TCUDA_BLOCK_PENDING_FREE (2)

/* Where a tensor's memory is: DLPack's DLDeviceType. */
#define TCUDA_PLACE_CPU (1)
#define TCUDA_PLACE_CUDA (2)
#define TCUDA_PLACE_PINNED (3)
#define TCUDA_PLACE_MANAGED (13)

/* Types of elements, as a tcuda_dtype_t: one of DLPack's code and bits, and by torch's names those that tcuda computes with. A static object
 * of C takes {code, bits, 1}. */
#ifdef __cplusplus
#define TCUDA_DTYPE(code, bits) (tcuda_dtype_t{code, bits, 1})
#else
#define TCUDA_DTYPE(code, bits) ((tcuda_dtype_t){code, bits, 1})
#endif
#define TCUDA_DTYPE_BOOL TCUDA_DTYPE(6, 8)
#define TCUDA_DTYPE_UINT8 TCUDA_DTYPE(1, 8)
#define TCUDA_DTYPE_INT8 TCUDA_DTYPE(0, 8)
#define TCUDA_DTYPE_INT16 TCUDA_DTYPE(0, 16)
#define TCUDA_DTYPE_UINT16 TCUDA_DTYPE(1, 16)
#define TCUDA_DTYPE_INT32 TCUDA_DTYPE(0, 32)
#define TCUDA_DTYPE_UINT32 TCUDA_DTYPE(1, 32)
#define TCUDA_DTYPE_INT64 TCUDA_DTYPE(0, 64)
#define TCUDA_DTYPE_UINT64 TCUDA_DTYPE(1, 64)
#define TCUDA_DTYPE_FLOAT16 TCUDA_DTYPE(2, 16)
#define TCUDA_DTYPE_BFLOAT16 TCUDA_DTYPE(4, 16)
#define TCUDA_DTYPE_FLOAT32 TCUDA_DTYPE(2, 32)
#define TCUDA_DTYPE_FLOAT64 TCUDA_DTYPE(2, 64)
#define TCUDA_DTYPE_COMPLEX64 TCUDA_DTYPE(5, 64)
#define TCUDA_DTYPE_COMPLEX128 TCUDA_DTYPE(5, 128)

/* Formats of tcuda_snapshot_data. */
#define TCUDA_SNAPSHOT_PICKLE (1)
#define TCUDA_SNAPSHOT_JSON (2)
#define TCUDA_SNAPSHOT_HTML (3)

/* Modes of tcuda_mem_pool_pause: what is in blocks in use is lost, or kept in pinned memory of the host. */
#define TCUDA_PAUSE_DROP (0)
#define TCUDA_PAUSE_KEEP (1)

/* Flags of tcuda_graph_create, and modes of tcuda_graph_capture_begin, CUDA's. */
#define TCUDA_GRAPH_KEEP (1u)
#define TCUDA_GRAPH_DEBUG (2u)
#define TCUDA_CAPTURE_GLOBAL (0)
#define TCUDA_CAPTURE_THREAD_LOCAL (1)
#define TCUDA_CAPTURE_RELAXED (2)

/* What collectives of communicators reduce with: ncclRedOp_t. */
#define TCUDA_REDUCE_SUM (0)
#define TCUDA_REDUCE_PRODUCT (1)
#define TCUDA_REDUCE_MAX (2)
#define TCUDA_REDUCE_MIN (3)
#define TCUDA_REDUCE_AVERAGE (4)

/* What a generator draws like: torch on its own device, torch on a device with these numbers, or the same on every device. */
#define TCUDA_GEOMETRY_DEVICE (0)
#define TCUDA_GEOMETRY_NAMED (1)
#define TCUDA_GEOMETRY_PORTABLE (2)

/* Kinds of tcuda_jit_scalar_t. */
#define TCUDA_SCALAR_BOOL (0)
#define TCUDA_SCALAR_INTEGER (1)
#define TCUDA_SCALAR_REAL (2)
#define TCUDA_SCALAR_COMPLEX (3)

/* Kinds of tcuda_argument_t. */
#define TCUDA_ARGUMENT_POINTER (0)
#define TCUDA_ARGUMENT_I32 (1)
#define TCUDA_ARGUMENT_I64 (2)
#define TCUDA_ARGUMENT_F32 (3)
#define TCUDA_ARGUMENT_F64 (4)
#define TCUDA_ARGUMENT_BYTES (5)

/* Kinds of tcuda_cufft_transform_t, those of cufftType: complex, real to complex, complex to real, and the same in double precision. */
#define TCUDA_CUFFT_C2C (0x29)
#define TCUDA_CUFFT_R2C (0x2a)
#define TCUDA_CUFFT_C2R (0x2c)
#define TCUDA_CUFFT_Z2Z (0x69)
#define TCUDA_CUFFT_D2Z (0x6a)
#define TCUDA_CUFFT_Z2D (0x6c)

/* What the payload of a tcuda_nvtx_event_t is. */
#define TCUDA_NVTX_PAYLOAD_NONE (0)
#define TCUDA_NVTX_PAYLOAD_UNSIGNED (1)
#define TCUDA_NVTX_PAYLOAD_SIGNED (2)
#define TCUDA_NVTX_PAYLOAD_DOUBLE (3)

/* Levels of tcuda_log_fn_t. */
#define TCUDA_LOG_ERROR (1)
#define TCUDA_LOG_WARNING (2)
#define TCUDA_LOG_INFO (3)

/* Kinds of tcuda_trace_register: torch's ten callbacks, and all of them. */
#define TCUDA_TRACE_ALL (0)
#define TCUDA_TRACE_EVENT_CREATION (1)
#define TCUDA_TRACE_EVENT_DELETION (2)
#define TCUDA_TRACE_EVENT_RECORD (3)
#define TCUDA_TRACE_EVENT_WAIT (4)
#define TCUDA_TRACE_MEMORY_ALLOCATION (5)
#define TCUDA_TRACE_MEMORY_DEALLOCATION (6)
#define TCUDA_TRACE_STREAM_CREATION (7)
#define TCUDA_TRACE_DEVICE_SYNCHRONIZATION (8)
#define TCUDA_TRACE_STREAM_SYNCHRONIZATION (9)
#define TCUDA_TRACE_EVENT_SYNCHRONIZATION (10)

/* Modes of tcuda_set_sync_debug_mode, torch's, and of a thread that has none of its own. */
#define TCUDA_SYNC_DEFAULT (0)
#define TCUDA_SYNC_WARN (1)
#define TCUDA_SYNC_ERROR (2)
#define TCUDA_SYNC_FOLLOW (-1)

/* Modes of tcuda_sanitizer_annotate_access, the host in place of a stream, kinds of reports, and formats of tcuda_sanitizer_report_get. */
#define TCUDA_ACCESS_READ (1)
#define TCUDA_ACCESS_WRITE (2)
#define TCUDA_ACCESS_READ_WRITE (3)
#define TCUDA_SANITIZER_HOST TCUDA_STREAM_NAMED(0x81)
#define TCUDA_REPORT_RACE (1)
#define TCUDA_REPORT_USE_AFTER_FREE (2)
#define TCUDA_REPORT_FREE_IN_USE (3)
#define TCUDA_REPORT_EVENT_NEVER_RECORDED (4)
#define TCUDA_REPORT_STALE_GRAPH (5)
#define TCUDA_REPORT_TEXT (1)
#define TCUDA_REPORT_JSON (2)

/* Initial values of the structs that carry their size; the other fields become zero. */
#define TCUDA_ERROR_INFO_INIT {sizeof(tcuda_error_info_t), 0, 0, 0, 0, 0, NULL, NULL}
#define TCUDA_INIT_OPTIONS_INIT {sizeof(tcuda_init_options_t), NULL, NULL, NULL}
#define TCUDA_DEVICE_PROPERTIES_INIT {sizeof(tcuda_device_properties_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, 0, {0}, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
#define TCUDA_MEMORY_STATS_INIT {sizeof(tcuda_memory_stats_t), {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {0, 0, 0, 0}, {0, 0, 0, 0}, 0, 0, 0, 0, 0, 0, 0}
#define TCUDA_HOST_MEMORY_STATS_INIT {sizeof(tcuda_host_memory_stats_t), {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, 0, 0, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}}
#define TCUDA_PRESSURE_INIT {sizeof(tcuda_pressure_t), 0, 0, NULL, 0, 0, 0, 0, 0, 0}
#define TCUDA_OOM_INIT {sizeof(tcuda_oom_t), 0, 0, 0, 0, 0, 0, 0, 0, NULL}
#define TCUDA_MEM_POOL_OPTIONS_INIT {sizeof(tcuda_mem_pool_options_t), NULL, 0, 0}
#define TCUDA_SNAPSHOT_INFO_INIT {sizeof(tcuda_snapshot_info_t), 0, 0, 0, 0, 0}
#define TCUDA_SNAPSHOT_SEGMENT_INIT {sizeof(tcuda_snapshot_segment_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0}
#define TCUDA_SNAPSHOT_BLOCK_INIT {sizeof(tcuda_snapshot_block_t), 0, 0, 0, 0, 0, 0, NULL}
#define TCUDA_SNAPSHOT_ENTRY_INIT {sizeof(tcuda_snapshot_entry_t), 0, NULL, 0, 0, 0, 0, 0, NULL, {0}}
#define TCUDA_KERNEL_OPTIONS_INIT {sizeof(tcuda_kernel_options_t), NULL, NULL, 0, NULL, 0}
#define TCUDA_KERNEL_ATTRIBUTES_INIT {sizeof(tcuda_kernel_attributes_t), 0, 0, 0, 0, 0, 0, 0, 0}
#define TCUDA_COMMUNICATOR_OPTIONS_INIT {sizeof(tcuda_communicator_options_t), 0, 0, 0, 0}
#define TCUDA_IPC_STATS_INIT {sizeof(tcuda_ipc_stats_t), 0, 0, 0, 0, 0, 0, 0, 0}
#define TCUDA_TELEMETRY_INIT {sizeof(tcuda_telemetry_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
#define TCUDA_NVTX_EVENT_INIT {sizeof(tcuda_nvtx_event_t), NULL, 0, 0, 0, 0, 0, 0}
#define TCUDA_CUFFT_TRANSFORM_INIT {sizeof(tcuda_cufft_transform_t), 0, 0, {0}, 0, {0}, 0, 0, {0}, 0, 0}
#define TCUDA_TRACE_INIT {sizeof(tcuda_trace_t), 0, 0, NULL, NULL, NULL, 0}
#define TCUDA_SYNC_INIT {sizeof(tcuda_sync_t), NULL, NULL, NULL, 0, 0, 0}
#define TCUDA_SYNC_STATS_INIT {sizeof(tcuda_sync_stats_t), 0, 0, 0, 0}
#define TCUDA_SANITIZER_REPORT_INIT {sizeof(tcuda_sanitizer_report_t), 0, 0, NULL, NULL}
#define TCUDA_SIM_OPTIONS_INIT {sizeof(tcuda_sim_options_t), 0, 0, NULL, 0, 0}
#define TCUDA_SIM_LIVE_INIT {sizeof(tcuda_sim_live_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/**
 * What a call answers. 0 is success; numbers are never reused.
 */
enum tcuda_status_t
#if defined(__cplusplus) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The call did what it says.
     */
    TCUDA_SUCCESS = 0,
    /**
     * An argument is NULL, out of range, or contradicts another.
     */
    TCUDA_ERROR_INVALID_ARGUMENT = 1,
    /**
     * A stream, event or other handle is not (or no longer) one.
     */
    TCUDA_ERROR_INVALID_HANDLE = 2,
    /**
     * There is no device of that index.
     */
    TCUDA_ERROR_INVALID_DEVICE = 3,
    /**
     * A pointer that tcuda did not hand out, or that was freed before.
     */
    TCUDA_ERROR_INVALID_POINTER = 4,
    /**
     * No driver, no CUDA runtime, or no device; the message says what was looked for and where.
     */
    TCUDA_ERROR_NO_DEVICE = 5,
    /**
     * The driver is older than every CUDA runtime that was found.
     */
    TCUDA_ERROR_INSUFFICIENT_DRIVER = 6,
    /**
     * The device (or the limit set for it) has no room for the request.
     */
    TCUDA_ERROR_OUT_OF_MEMORY = 7,
    /**
     * The host has no memory for the request.
     */
    TCUDA_ERROR_OUT_OF_HOST_MEMORY = 8,
    /**
     * This device, driver or backend cannot do it.
     */
    TCUDA_ERROR_NOT_SUPPORTED = 9,
    /**
     * The work asked about is not complete yet.
     */
    TCUDA_ERROR_NOT_READY = 10,
    /**
     * Not allowed while a stream is being captured.
     */
    TCUDA_ERROR_CAPTURE = 11,
    /**
     * The device failed in a way that only a new process can mend.
     */
    TCUDA_ERROR_DEVICE_LOST = 12,
    /**
     * Called in a child of `fork`, after the parent had used the device.
     */
    TCUDA_ERROR_FORKED = 13,
    /**
     * Called after `tcuda_shutdown`.
     */
    TCUDA_ERROR_SHUT_DOWN = 14,
    /**
     * The buffer given for a text or list is too small.
     */
    TCUDA_ERROR_BUFFER_TOO_SMALL = 15,
    /**
     * A struct is of a version that this library does not know.
     */
    TCUDA_ERROR_VERSION_MISMATCH = 16,
    /**
     * The call is right, but not now (already initialised, already owned, still in use).
     */
    TCUDA_ERROR_INVALID_STATE = 17,
    /**
     * The compiler refused a source; the message has its log.
     */
    TCUDA_ERROR_COMPILATION = 18,
    /**
     * The other ranks of a communicator did not come within its time; it was aborted.
     */
    TCUDA_ERROR_TIMEOUT = 19,
    /**
     * Another rank of a communicator ended, failed, or asked for something else; it was aborted.
     */
    TCUDA_ERROR_REMOTE = 20,
    /**
     * Any other error of the CUDA runtime or driver; `tcuda_last_error_native` has its code.
     */
    TCUDA_ERROR_CUDA = 30,
    /**
     * Any other error of the operating system.
     */
    TCUDA_ERROR_SYSTEM = 31,
    /**
     * Any other error of NCCL; `tcuda_last_error_native` has its code.
     */
    TCUDA_ERROR_NCCL = 32,
    /**
     * A defect of tcuda. Nothing is lost, but please report it.
     */
    TCUDA_ERROR_INTERNAL = 999,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum tcuda_status_t tcuda_status_t;
#else
typedef int32_t tcuda_status_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What a tensor that a function hands out is to the tensor that it was made from.
 */
enum tcuda_tensor_origin_t
#if defined(__cplusplus) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * It has memory of its own.
     */
    TCUDA_TENSOR_NEW = 0,
    /**
     * It is the input: the same memory, which the input's owner has to keep. It is destroyed like any other.
     */
    TCUDA_TENSOR_INPUT = 1,
    /**
     * It is a part of the input, under the same rule.
     */
    TCUDA_TENSOR_VIEW = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum tcuda_tensor_origin_t tcuda_tensor_origin_t;
#else
typedef int32_t tcuda_tensor_origin_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Only ever a pointer to it.
 */
typedef struct tcuda_communicator tcuda_communicator;

/**
 * Only ever a pointer to it.
 */
typedef struct tcuda_generator tcuda_generator;

/**
 * Only ever a pointer to it.
 */
typedef struct tcuda_graph tcuda_graph;

/**
 * Only ever a pointer to it.
 */
typedef struct tcuda_graphed_callable tcuda_graphed_callable;

/**
 * Only ever a pointer to it.
 */
typedef struct tcuda_green_context tcuda_green_context;

/**
 * Only ever a pointer to it.
 */
typedef struct tcuda_jit tcuda_jit;

/**
 * Only ever a pointer to it.
 */
typedef struct tcuda_kernel tcuda_kernel;

/**
 * Only ever a pointer to it.
 */
typedef struct tcuda_kernel_module tcuda_kernel_module;

/**
 * Only ever a pointer to it.
 */
typedef struct tcuda_mem_pool tcuda_mem_pool;

/**
 * Only ever a pointer to it.
 */
typedef struct tcuda_nvtx_domain tcuda_nvtx_domain;

/**
 * Only ever a pointer to it.
 */
typedef struct tcuda_pluggable_allocator tcuda_pluggable_allocator;

/**
 * Only ever a pointer to it.
 */
typedef struct tcuda_snapshot tcuda_snapshot;

/**
 * The last failure of a thread. Set `struct_size` before the call (TCUDA_ERROR_INFO_INIT).
 */
typedef struct tcuda_error_info_t {
    size_t struct_size;
    /**
     * A tcuda_status_t; TCUDA_SUCCESS when nothing has failed yet.
     */
    int32_t status;
    /**
     * As tcuda_last_error_native.
     */
    int32_t native;
    /**
     * The device it happened on, or -1.
     */
    int32_t device;
    int32_t reserved;
    /**
     * The bytes asked for or needed, where that means something.
     */
    uint64_t bytes;
    /**
     * The C function that failed. Never NULL.
     */
    const char *function;
    /**
     * The text for people. Never NULL.
     */
    const char *message;
} tcuda_error_info_t;

/**
 * Gets a message of tcuda: level 1 error, 2 warning, 3 information. Called on whatever thread has something to say, at times on several
 * at once, with no lock held; tcuda may be called inside. The text holds for the length of the call. A C++ exception or longjmp must
 * not leave it.
 */
typedef void (*tcuda_log_fn_t)(int32_t level, const char *message, void *user_data);

/**
 * How to start. Set it to TCUDA_INIT_OPTIONS_INIT; NULL, 0 and empty texts mean that the environment decides.
 */
typedef struct tcuda_init_options_t {
    size_t struct_size;
    /**
     * `cuda`, `sim` or `auto` (cuda where there is a device, else sim); over TCUDA_BACKEND.
     */
    const char *backend;
    /**
     * The CUDA runtime library to load before any other; over TCUDA_CUDART_PATH.
     */
    const char *cudart_path;
    /**
     * Options of the caches; over TCUDA_ALLOC_CONF. See tcuda_set_alloc_conf.
     */
    const char *alloc_conf;
} tcuda_init_options_t;

/**
 * What a device is (torch.cuda.get_device_properties). Sizes in bytes, clocks in kHz. Set `struct_size` before the call
 * (TCUDA_DEVICE_PROPERTIES_INIT).
 */
typedef struct tcuda_device_properties_t {
    size_t struct_size;
    uint64_t total_memory;
    uint64_t shared_memory_per_block;
    /**
     * What a kernel can have if it asks for more than the default.
     */
    uint64_t shared_memory_per_block_optin;
    uint64_t shared_memory_per_multiprocessor;
    uint64_t l2_cache_size;
    /**
     * Compute capability.
     */
    int32_t major;
    int32_t minor;
    int32_t multi_processor_count;
    int32_t max_threads_per_multi_processor;
    int32_t max_threads_per_block;
    int32_t warp_size;
    int32_t regs_per_multiprocessor;
    /**
     * Kilohertz, the highest; telemetry has the present one, in megahertz.
     */
    int32_t clock_rate;
    /**
     * Kilohertz.
     */
    int32_t memory_clock_rate;
    /**
     * Bits.
     */
    int32_t memory_bus_width;
    int32_t pci_bus_id;
    int32_t pci_device_id;
    int32_t pci_domain_id;
    /**
     * Copies that can run beside kernels.
     */
    int32_t async_engine_count;
    /**
     * The following are 0 or 1.
     */
    int32_t is_multi_gpu_board;
    int32_t is_integrated;
    int32_t concurrent_managed_access;
    int32_t is_simulated;
    uint8_t uuid[16];
    /**
     * Ends with a zero byte.
     */
    char name[256];
    uint64_t total_constant_memory;
    /**
     * Threads in x, y, z.
     */
    int32_t max_block_dimensions[3];
    /**
     * Blocks in x, y, z.
     */
    int32_t max_grid_dimensions[3];
    int32_t max_blocks_per_multi_processor;
    int32_t regs_per_block;
    /**
     * Elements.
     */
    int32_t max_texture_1d_linear;
    /**
     * cudaComputeMode: 0 default, 2 prohibited, 3 exclusive to a process.
     */
    int32_t compute_mode;
    /**
     * How many times faster single precision is.
     */
    int32_t single_to_double_precision_perf_ratio;
    /**
     * The following are 0 or 1.
     */
    int32_t kernel_exec_timeout_enabled;
    int32_t device_overlap;
    int32_t cooperative_launch;
    int32_t cooperative_multi_device_launch;
    int32_t can_map_host_memory;
    int32_t unified_addressing;
    int32_t managed_memory;
    int32_t pageable_memory_access;
    int32_t memory_pools_supported;
} tcuda_device_properties_t;

/**
 * Work for the host in the order of a stream; called once, or by each replay where the stream is captured, on a thread of the runtime,
 * with no lock of tcuda held. It must not call CUDA or anything of tcuda that does, must not wait for another stream, and no C++ exception
 * or longjmp may leave it.
 */
typedef void (*tcuda_host_fn_t)(void *user_data);

/**
 * A green context. Not a pointer to anything.
 */
typedef struct tcuda_green_context *tcuda_green_context_t;

/**
 * One figure over time.
 */
typedef struct tcuda_stat_t {
    int64_t current;
    int64_t peak;
    /**
     * The sum of all that was added.
     */
    int64_t allocated;
    /**
     * The sum of all that was taken away.
     */
    int64_t freed;
} tcuda_stat_t;

/**
 * A figure for all blocks, for the small (up to 1 MiB) and for the large ones.
 */
typedef struct tcuda_pool_stat_t {
    struct tcuda_stat_t all;
    struct tcuda_stat_t small_pool;
    struct tcuda_stat_t large_pool;
} tcuda_pool_stat_t;

/**
 * torch.cuda.memory_stats. Sizes are bytes.
 */
typedef struct tcuda_memory_stats_t {
    size_t struct_size;
    /**
     * Blocks between allocation and free.
     */
    struct tcuda_pool_stat_t allocation;
    /**
     * Pieces of physical memory from the driver.
     */
    struct tcuda_pool_stat_t segment;
    /**
     * Blocks between allocation and the end of all their uses.
     */
    struct tcuda_pool_stat_t active;
    /**
     * Free blocks that keep a plain segment from going back.
     */
    struct tcuda_pool_stat_t inactive_split;
    struct tcuda_pool_stat_t allocated_bytes;
    /**
     * Held from the driver.
     */
    struct tcuda_pool_stat_t reserved_bytes;
    struct tcuda_pool_stat_t active_bytes;
    struct tcuda_pool_stat_t inactive_split_bytes;
    /**
     * As asked for, before rounding, of active blocks.
     */
    struct tcuda_pool_stat_t requested_bytes;
    /**
     * torch's; always 0: blocks of any size are split.
     */
    struct tcuda_stat_t oversize_allocations;
    /**
     * torch's; always 0.
     */
    struct tcuda_stat_t oversize_segments;
    /**
     * Times that all free memory went back to the driver to make room.
     */
    int64_t num_alloc_retries;
    /**
     * Times that an allocation failed for want of memory.
     */
    int64_t num_ooms;
    /**
     * Times that streams were waited for to make room.
     */
    int64_t num_sync_all_streams;
    /**
     * Segments that the driver made.
     */
    int64_t num_device_alloc;
    /**
     * Segments that it took back.
     */
    int64_t num_device_free;
    /**
     * torch's; -1: no limit.
     */
    int64_t max_split_size;
    /**
     * Times that an allocation was refused at once for the limit (throw_on_cudamalloc_oom:True); num_ooms does not count them.
     */
    int64_t num_oom_rejections;
} tcuda_memory_stats_t;

/**
 * Times of calls of the driver, in microseconds.
 */
typedef struct tcuda_host_time_t {
    int64_t total;
    int64_t max;
    int64_t min;
    int64_t count;
    int64_t avg;
} tcuda_host_time_t;

/**
 * torch.cuda.host_memory_stats. Sizes are bytes.
 */
typedef struct tcuda_host_memory_stats_t {
    size_t struct_size;
    /**
     * Segments held from the driver.
     */
    struct tcuda_stat_t allocations;
    /**
     * Held from the driver.
     */
    struct tcuda_stat_t allocated_bytes;
    /**
     * Blocks between allocation and the end of all their uses.
     */
    struct tcuda_stat_t active_requests;
    struct tcuda_stat_t active_bytes;
    int64_t num_host_alloc;
    int64_t num_host_free;
    struct tcuda_host_time_t host_alloc_time;
    struct tcuda_host_time_t host_free_time;
} tcuda_host_memory_stats_t;

/**
 * What a pressure callback is told. Sizes are bytes.
 */
typedef struct tcuda_pressure_t {
    /**
     * What this library fills; later versions fill more.
     */
    size_t struct_size;
    /**
     * What comes next if nobody frees enough: TCUDA_PRESSURE_WAIT, TCUDA_PRESSURE_GIVE_BACK or TCUDA_PRESSURE_FAIL.
     */
    int32_t stage;
    int32_t device;
    /**
     * The stream that the memory is for: what was freed on it helps at once, what was freed on others when it is past.
     */
    tcuda_stream_t stream;
    /**
     * What is asked for.
     */
    uint64_t wanted;
    /**
     * Free on the device as the driver says; 0 if it does not say.
     */
    uint64_t free;
    /**
     * All memory of the device.
     */
    uint64_t total;
    /**
     * In blocks that are in use.
     */
    uint64_t allocated;
    /**
     * Held by the cache.
     */
    uint64_t reserved;
    /**
     * The most that the cache may hold; UINT64_MAX without a limit.
     */
    uint64_t limit;
} tcuda_pressure_t;

/**
 * Asked for memory, best as much as is wanted at once; true: something was freed.
 */
typedef bool (*tcuda_pressure_fn_t)(const struct tcuda_pressure_t *pressure, void *user_data);

/**
 * What an observer is told of an allocation that fails. Sizes are bytes.
 */
typedef struct tcuda_oom_t {
    /**
     * What this library fills; later versions fill more.
     */
    size_t struct_size;
    int32_t device;
    int32_t unused;
    /**
     * What is asked for (torch: the size of a segment for it).
     */
    uint64_t wanted;
    /**
     * Free on the device as the driver says; 0 if it does not say.
     */
    uint64_t free;
    /**
     * All memory of the device.
     */
    uint64_t total;
    /**
     * In blocks that are in use.
     */
    uint64_t allocated;
    /**
     * Held by the cache.
     */
    uint64_t reserved;
    /**
     * The most that the cache may hold; UINT64_MAX without a limit.
     */
    uint64_t limit;
    /**
     * The text of the error; holds for the length of the call.
     */
    const char *message;
} tcuda_oom_t;

/**
 * Told of an allocation that fails, before the failing call returns.
 */
typedef void (*tcuda_oom_observer_fn_t)(const struct tcuda_oom_t *oom, void *user_data);

/**
 * A memory pool. Not a pointer to anything.
 */
typedef struct tcuda_mem_pool *tcuda_mem_pool_t;

/**
 * A pluggable allocator. Not a pointer to anything.
 */
typedef struct tcuda_pluggable_allocator *tcuda_pluggable_allocator_t;

/**
 * How a pool is made. All zero: from the driver, for nobody else, splitting its segments.
 */
typedef struct tcuda_mem_pool_options_t {
    size_t struct_size;
    /**
     * Where its segments come from; NULL: the driver (torch: allocator).
     */
    tcuda_pluggable_allocator_t allocator;
    /**
     * 1: its free memory serves requests of the device and of its other pools that would fail otherwise (torch: use_on_oom), but where blocks are
     * to be whole segments (no_split) or to come from a pluggable allocator.
     */
    int32_t use_on_oom;
    /**
     * 1: each block is a segment of its own, a multiple of 2 MiB, as network cards and NCCL want to register it (torch: no_split). Such a
     * pool cannot be paused.
     */
    int32_t no_split;
} tcuda_mem_pool_options_t;

/**
 * Gives at least `size` bytes of a device, at a multiple of 512, for work on a stream and later on others; NULL: there is none.
 */
typedef void *(*tcuda_segment_alloc_fn_t)(size_t size, int32_t device, tcuda_stream_t stream, void *user_data);

/**
 * Takes back what the other function gave, with the same size. All work on it is done. `stream` is that of the allocation, or NULL if it was
 * destroyed since, and in tcuda_shutdown.
 */
typedef void (*tcuda_segment_free_fn_t)(void *ptr, size_t size, int32_t device, tcuda_stream_t stream, void *user_data);

/**
 * A snapshot: an opaque handle.
 */
typedef struct tcuda_snapshot *tcuda_snapshot_t;

/**
 * What is in a snapshot.
 */
typedef struct tcuda_snapshot_info_t {
    size_t struct_size;
    /**
     * All segments, and all blocks; those of a segment are in a row.
     */
    uint64_t segments;
    uint64_t blocks;
    /**
     * Devices that there are; each has its own entries.
     */
    uint64_t devices;
    /**
     * Entries of all devices.
     */
    uint64_t entries;
    /**
     * Older entries that were not kept.
     */
    uint64_t lost_entries;
} tcuda_snapshot_info_t;

/**
 * Memory in one stretch that the cache holds from the driver. Of virtual memory it is what lies side by side, of any stream; bytes that
 * are mapped at several addresses are at the one where they are used.
 */
typedef struct tcuda_snapshot_segment_t {
    size_t struct_size;
    int32_t device;
    /**
     * 1: for blocks up to 1 MiB.
     */
    int32_t is_small;
    /**
     * 1: virtual memory; 0: one cudaMalloc.
     */
    int32_t is_expandable;
    int32_t unused;
    uint64_t address;
    /**
     * Bytes: of the segment; of blocks in use; of those and the ones that wait for streams; of them as asked for.
     */
    uint64_t total_size;
    uint64_t allocated_size;
    uint64_t active_size;
    uint64_t requested_size;
    /**
     * That which it was made for, as the driver has it; 0 for virtual memory, whose blocks have each their own.
     */
    uint64_t stream;
    /**
     * Which pool it belongs to; 0 and 0: the cache itself.
     */
    uint64_t pool_id[2];
    /**
     * The index of its first block, and how many it has.
     */
    uint64_t first_block;
    uint64_t block_count;
} tcuda_snapshot_segment_t;

/**
 * A stretch of a segment. The blocks of a segment cover it, by address.
 */
typedef struct tcuda_snapshot_block_t {
    size_t struct_size;
    uint64_t address;
    uint64_t size;
    /**
     * As asked for; 0: inactive.
     */
    uint64_t requested_size;
    /**
     * The stream that it follows, as the driver has it.
     */
    uint64_t stream;
    /**
     * TCUDA_BLOCK_INACTIVE, TCUDA_BLOCK_ALLOCATED or TCUDA_BLOCK_PENDING_FREE (freed, but other streams may use it).
     */
    int32_t state;
    int32_t unused;
    /**
     * What its thread said when it allocated it, if that was recorded; else empty. Never freed.
     */
    const char *annotation;
} tcuda_snapshot_block_t;

/**
 * What happened.
 */
typedef struct tcuda_snapshot_entry_t {
    size_t struct_size;
    /**
     * Microseconds since 1970.
     */
    int64_t time_us;
    /**
     * torch's word: alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map, segment_unmap, snapshot, oom or
     * user_defined. Never freed.
     */
    const char *action;
    /**
     * Of oom: what the device had free, in bytes.
     */
    uint64_t address;
    /**
     * Bytes; of blocks as asked for.
     */
    uint64_t size;
    uint64_t stream;
    int32_t device;
    int32_t unused;
    /**
     * What the thread had said. Never freed.
     */
    const char *annotation;
    /**
     * The pool that the memory is of; 0 and 0: the cache itself.
     */
    uint64_t pool_id[2];
} tcuda_snapshot_entry_t;

/**
 * DLPack's version: structs of another major version have another layout.
 */
typedef struct tcuda_dlpack_version_t {
    uint32_t major;
    uint32_t minor;
} tcuda_dlpack_version_t;

/**
 * Where a tensor's memory is: DLPack's DLDevice.
 */
typedef struct tcuda_place_t {
    /**
     * TCUDA_PLACE_CPU (1), _CUDA (2), _PINNED (3: host memory) or _MANAGED (13). A simulated device is TCUDA_PLACE_CUDA as well.
     */
    int32_t device_type;
    /**
     * The device's index; 0 for the CPU.
     */
    int32_t device_id;
} tcuda_place_t;

/**
 * DLPack's DLDataType: code, bits of one lane, lanes. TCUDA_DTYPE_FLOAT32 and the like are the usual ones.
 */
typedef struct tcuda_dtype_t {
    /**
     * 0 signed integer, 1 unsigned integer, 2 float, 4 bfloat, 5 complex, 6 bool; 7 and up: the narrow floats of DLPack 1.1.
     */
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} tcuda_dtype_t;

/**
 * A view of memory as an array: DLPack's DLTensor. It owns nothing.
 */
typedef struct tcuda_tensor_t {
    /**
     * Start of the memory, before `byte_offset`. May be NULL when there are no elements.
     */
    void *data;
    struct tcuda_place_t device;
    /**
     * Number of dimensions; 0 is a single element.
     */
    int32_t ndim;
    struct tcuda_dtype_t dtype;
    /**
     * Elements per dimension, `ndim` of them.
     */
    int64_t *shape;
    /**
     * Elements (not bytes) from one index to the next per dimension; NULL: packed, the last dimension fastest.
     */
    int64_t *strides;
    /**
     * Bytes from `data` to the first element.
     */
    uint64_t byte_offset;
} tcuda_tensor_t;

/**
 * A tensor with its owner: DLPack's DLManagedTensorVersioned.
 */
typedef struct tcuda_managed_tensor_t {
    struct tcuda_dlpack_version_t version;
    /**
     * The owner's; not to be touched.
     */
    void *manager_ctx;
    /**
     * Gives the tensor back; called once, by whoever has it last. May be NULL.
     */
    void (*deleter)(struct tcuda_managed_tensor_t *tensor);
    /**
     * Bit 0: read only. Bit 1: it is a copy, made for the taker.
     */
    uint64_t flags;
    struct tcuda_tensor_t tensor;
} tcuda_managed_tensor_t;

/**
 * A generator: an opaque handle.
 */
typedef struct tcuda_generator *tcuda_generator_t;

/**
 * What a kernel needs to draw, as one argument by value. include/tcuda/philox.cuh has the numbers' side.
 */
typedef struct tcuda_philox_state_t {
    /**
     * The seed; where `captured` is 1, the address on the device of a uint64_t that holds it.
     */
    uint64_t seed;
    /**
     * The offset, a multiple of 4; where `captured` is 1, the address on the device of a uint64_t that holds where it begins.
     */
    uint64_t offset;
    /**
     * What is to be added to the offset.
     */
    uint64_t offset_intragraph;
    /**
     * 1: in a graph, where each replay has numbers of its own.
     */
    int32_t captured;
    /**
     * 0.
     */
    int32_t reserved;
} tcuda_philox_state_t;

/**
 * A graph. Not a pointer to anything.
 */
typedef struct tcuda_graph *tcuda_graph_t;

/**
 * A graph pool's name, torch's pair: (n, 0) was made for a graph, (0, n) is of tcuda_graph_pool_handle. All zero: a pool of the graph's own.
 */
typedef struct tcuda_pool_id_t {
    uint64_t first;
    uint64_t second;
} tcuda_pool_id_t;

/**
 * Graphed callables. Not a pointer to anything.
 */
typedef struct tcuda_graphed_callable *tcuda_graphed_callable_t;

/**
 * Gives work to the stream, and waits for nothing. 0: done; anything else is a failure, best the tcuda_status_t of the call that failed.
 */
typedef int32_t (*tcuda_callable_fn_t)(const struct tcuda_tensor_t *inputs,
                                       size_t input_count,
                                       const struct tcuda_tensor_t *outputs,
                                       size_t output_count,
                                       tcuda_stream_t stream,
                                       void *user_data);

/**
 * A function, and the tensors that it works on: their memory is the graph's from the capture on, and has to stay for as long.
 */
typedef struct tcuda_callable_t {
    tcuda_callable_fn_t function;
    /**
     * Goes to each call of it.
     */
    void *user_data;
    /**
     * On the stream's device, or in pinned memory. A call may give others of the same shape and type.
     */
    const struct tcuda_tensor_t *inputs;
    size_t input_count;
    /**
     * Where the results are after each call.
     */
    const struct tcuda_tensor_t *outputs;
    size_t output_count;
} tcuda_callable_t;

/**
 * A compiled function. Not a pointer to anything.
 */
typedef struct tcuda_jit *tcuda_jit_t;

/**
 * An extra argument of a compiled function: a number that is the same for all elements.
 */
typedef struct tcuda_jit_scalar_t {
    /**
     * By which a call sets it: letters, digits and _, no digit first.
     */
    const char *name;
    /**
     * TCUDA_SCALAR_BOOL, _INTEGER, _REAL or _COMPLEX.
     */
    int32_t kind;
    /**
     * Of a bool (0 or 1) and an integer.
     */
    int64_t integer;
    /**
     * Of a real and of a complex number.
     */
    double real;
    /**
     * Of a complex number.
     */
    double imag;
} tcuda_jit_scalar_t;

/**
 * A compiled source. Not a pointer to anything.
 */
typedef struct tcuda_kernel_module *tcuda_kernel_module_t;

/**
 * How a source is compiled. All zero: as C++17, with the name "kernel.cu", and kernels that are extern "C".
 */
typedef struct tcuda_kernel_options_t {
    size_t struct_size;
    /**
     * As messages call the source; NULL: "kernel.cu".
     */
    const char *name;
    /**
     * Options of NVRTC ("-DN=4", "-I/usr/local/cuda/include", "--use_fast_math"); the architecture is the device's.
     */
    const char *const *options;
    size_t option_count;
    /**
     * Expressions that name kernels which are not extern "C" ("scale<float>", "space::kernel"); by them tcuda_kernel_get finds them.
     */
    const char *const *names;
    size_t name_count;
} tcuda_kernel_options_t;

/**
 * A kernel of a compiled source, which ends with it. Not a pointer to anything.
 */
typedef struct tcuda_kernel *tcuda_kernel_t;

/**
 * A value that a kernel takes.
 */
typedef union tcuda_argument_value_t {
    /**
     * Of TCUDA_ARGUMENT_POINTER: an address, which the kernel gets. Of TCUDA_ARGUMENT_BYTES: where the bytes are, which it gets.
     */
    const void *pointer;
    int32_t i32;
    int64_t i64;
    float f32;
    double f64;
} tcuda_argument_value_t;

/**
 * An argument of a launch.
 */
typedef struct tcuda_argument_t {
    /**
     * TCUDA_ARGUMENT_POINTER, _I32, _I64, _F32, _F64 or _BYTES.
     */
    int32_t kind;
    /**
     * Of TCUDA_ARGUMENT_BYTES: how many, such as the size of a struct; else 0.
     */
    size_t size;
    union tcuda_argument_value_t value;
} tcuda_argument_t;

/**
 * What the compiler made of a kernel.
 */
typedef struct tcuda_kernel_attributes_t {
    size_t struct_size;
    /**
     * Threads that a block can have at most.
     */
    int32_t max_threads;
    /**
     * Registers of a thread.
     */
    int32_t registers;
    /**
     * Bytes of shared memory of a block, without dynamic ones.
     */
    int32_t shared;
    /**
     * Bytes of constant memory of the user's.
     */
    int32_t constant;
    /**
     * Bytes of local memory of a thread: what did not fit its registers.
     */
    int32_t local;
    /**
     * Bytes of dynamic shared memory that a launch can have so far. Above 48 KiB the driver is asked when that is first needed, for all that the
     * device has.
     */
    int32_t max_dynamic_shared;
    /**
     * 90 is 9.0.
     */
    int32_t ptx_version;
    /**
     * 90 is 9.0.
     */
    int32_t binary_version;
} tcuda_kernel_attributes_t;

/**
 * What makes ranks find each other (ncclUniqueId). It may be copied and sent as bytes.
 */
typedef struct tcuda_communicator_id_t {
    uint8_t bytes[128];
} tcuda_communicator_id_t;

/**
 * A rank of a communicator. Not a pointer to anything.
 */
typedef struct tcuda_communicator *tcuda_communicator_t;

/**
 * Set it to TCUDA_COMMUNICATOR_OPTIONS_INIT; NULL stands for that.
 */
typedef struct tcuda_communicator_options_t {
    size_t struct_size;
    /**
     * Milliseconds that a call waits for other ranks; 0: 600,000, torch's ten minutes.
     */
    uint32_t timeout_ms;
    /**
     * 1: the communicator is given out while it still looks for its other ranks, so that one thread can make several.
     * tcuda_communicator_query tells when it has them; its first call waits for them.
     */
    int32_t non_blocking;
    /**
     * 1: calls wait within NCCL, as is NCCL's default: they cost less, and no timeout holds in them, but for tcuda_communicator_synchronize and
     * tcuda_communicator_destroy. Not together with non_blocking.
     */
    int32_t nccl_blocking;
    /**
     * 0.
     */
    int32_t reserved;
} tcuda_communicator_options_t;

/**
 * Exported memory, for other processes. It is a secret too: who has it may import.
 */
typedef struct tcuda_ipc_handle_t {
    uint8_t bytes[64];
} tcuda_ipc_handle_t;

/**
 * What is shared now. Set `struct_size` before the call (TCUDA_IPC_STATS_INIT).
 */
typedef struct tcuda_ipc_stats_t {
    size_t struct_size;
    /**
     * Exports that others may import or have imported, and their bytes.
     */
    uint64_t exported;
    uint64_t exported_bytes;
    /**
     * Of these: freed or withdrawn, and kept for others.
     */
    uint64_t kept;
    uint64_t kept_bytes;
    /**
     * Imports by others that are not closed, and the processes that have some.
     */
    uint64_t taken;
    uint64_t consumers;
    /**
     * What this process has imported, and its bytes.
     */
    uint64_t imported;
    uint64_t imported_bytes;
} tcuda_ipc_stats_t;

/**
 * cudaIpcEventHandle_t: an interprocess event, for other processes.
 */
typedef struct tcuda_ipc_event_handle_t {
    uint8_t bytes[64];
} tcuda_ipc_event_handle_t;

/**
 * A process that computes on a device.
 */
typedef struct tcuda_gpu_process_t {
    /**
     * Device memory in bytes; UINT64_MAX where the driver does not say, as in some containers.
     */
    uint64_t bytes;
    /**
     * As the host counts processes, which in a container may be another number than the process' own.
     */
    uint32_t pid;
    /**
     * 0.
     */
    uint32_t reserved;
} tcuda_gpu_process_t;

/**
 * How a device is doing. -1 is what it does not tell, or not to this process. Set `struct_size` before the call (TCUDA_TELEMETRY_INIT).
 */
typedef struct tcuda_telemetry_t {
    size_t struct_size;
    /**
     * Nanoseconds since the device was asked.
     */
    int64_t age_ns;
    /**
     * Bytes, those of the driver and of all processes counted.
     */
    int64_t device_memory_used;
    int64_t device_memory_total;
    /**
     * As in tcuda_utilization and so on.
     */
    int32_t utilization;
    int32_t memory_usage;
    int32_t temperature;
    int32_t power_draw;
    /**
     * Milliwatt: where the device is held back.
     */
    int32_t power_limit;
    /**
     * Megahertz, as in tcuda_clock_rate; tcuda_device_properties_t has kilohertz.
     */
    int32_t clock_rate;
    /**
     * Megahertz.
     */
    int32_t memory_clock_rate;
    /**
     * The driver's number of the device, as nvidia-smi shows it.
     */
    int32_t driver_index;
} tcuda_telemetry_t;

/**
 * A domain. Not a pointer to anything.
 */
typedef struct tcuda_nvtx_domain *tcuda_nvtx_domain_t;

/**
 * What a mark or range looks like (nvtxEventAttributes_t). Set it to TCUDA_NVTX_EVENT_INIT, then what is needed.
 */
typedef struct tcuda_nvtx_event_t {
    size_t struct_size;
    /**
     * Not NULL.
     */
    const char *message;
    /**
     * With TCUDA_NVTX_PAYLOAD_UNSIGNED or _SIGNED.
     */
    int64_t integer;
    /**
     * With TCUDA_NVTX_PAYLOAD_DOUBLE.
     */
    double real;
    /**
     * TCUDA_NVTX_PAYLOAD_NONE (0), or what the tool shows with it.
     */
    int32_t payload;
    /**
     * ARGB, 0xFF00FF00 is green; 0: the tool's choice.
     */
    uint32_t color;
    /**
     * A number of the program's own, by which tools filter; 0: none.
     */
    uint32_t category;
    uint32_t reserved;
} tcuda_nvtx_event_t;

/**
 * A transform, with the arguments of cufftMakePlanMany64. Plans are kept by it. Set it to TCUDA_CUFFT_TRANSFORM_INIT, then what is needed.
 */
typedef struct tcuda_cufft_transform_t {
    size_t struct_size;
    /**
     * cufftType: TCUDA_CUFFT_C2C and the like.
     */
    int32_t kind;
    /**
     * Dimensions: 1, 2 or 3.
     */
    int32_t rank;
    /**
     * Elements of each dimension, the slowest first.
     */
    int64_t n[3];
    /**
     * How many transforms at once.
     */
    int64_t batch;
    /**
     * Elements of each dimension that the input lies in; all 0: it is packed, and the next two do not matter.
     */
    int64_t input_embed[3];
    /**
     * Elements from one to the next in the fastest dimension.
     */
    int64_t input_stride;
    /**
     * Elements from one transform's first to the next one's.
     */
    int64_t input_distance;
    int64_t output_embed[3];
    int64_t output_stride;
    int64_t output_distance;
} tcuda_cufft_transform_t;

/**
 * What happened. Fields that do not belong to its kind are 0.
 */
typedef struct tcuda_trace_t {
    /**
     * What this library fills; later versions fill more.
     */
    size_t struct_size;
    /**
     * TCUDA_TRACE_*.
     */
    int32_t kind;
    /**
     * Where it happened; -1: not known.
     */
    int32_t device;
    /**
     * Of records, waits, allocations, and of streams that were made or waited for. NULL of frees.
     */
    tcuda_stream_t stream;
    /**
     * Of events.
     */
    tcuda_event_t event;
    /**
     * Of blocks.
     */
    void *ptr;
    /**
     * Bytes that were asked for, of an allocation.
     */
    size_t size;
} tcuda_trace_t;

/**
 * Told of what happened. The struct holds for the length of the call.
 */
typedef void (*tcuda_trace_fn_t)(const struct tcuda_trace_t *happened, void *user_data);

/**
 * A wait. The texts hold for the length of the call.
 */
typedef struct tcuda_sync_t {
    /**
     * What this library fills; later versions fill more.
     */
    size_t struct_size;
    /**
     * The function of tcuda that the program called.
     */
    const char *function;
    /**
     * What of CUDA it called.
     */
    const char *call;
    /**
     * The thread's annotation; empty: none.
     */
    const char *annotation;
    /**
     * How long it took; 0 if it was refused.
     */
    uint64_t nanoseconds;
    /**
     * 1: it was refused.
     */
    int32_t refused;
    int32_t unused;
} tcuda_sync_t;

/**
 * Told of a wait, on the thread that waited, before its call of tcuda returns and with no lock held. It may call tcuda; what waits in it is
 * not told. A C++ exception or longjmp must not leave it.
 */
typedef void (*tcuda_sync_fn_t)(const struct tcuda_sync_t *sync, void *user_data);

/**
 * What was seen while the mode was not the default one.
 */
typedef struct tcuda_sync_stats_t {
    size_t struct_size;
    /**
     * Calls of CUDA that made the host wait: one of tcuda may make several.
     */
    uint64_t num_waits;
    /**
     * Calls of CUDA that were refused, likewise.
     */
    uint64_t num_refused;
    /**
     * All of the waits together.
     */
    uint64_t nanoseconds;
    uint64_t longest_nanoseconds;
} tcuda_sync_stats_t;

/**
 * A report. The texts hold for the length of the call.
 */
typedef struct tcuda_sanitizer_report_t {
    /**
     * What this library fills; later versions fill more.
     */
    size_t struct_size;
    /**
     * TCUDA_REPORT_*.
     */
    int32_t kind;
    int32_t unused;
    const char *text;
    const char *json;
} tcuda_sanitizer_report_t;

/**
 * Told of a report, on the thread whose call it is of, before that returns and with no lock held. It may call tcuda; reports of what it
 * does itself are counted and not told. A C++ exception or longjmp must not leave it.
 */
typedef void (*tcuda_sanitizer_fn_t)(const struct tcuda_sanitizer_report_t *report, void *user_data);

/**
 * What the simulated machine looks like. Set it to TCUDA_SIM_OPTIONS_INIT; NULL and 0 mean that the environment decides.
 */
typedef struct tcuda_sim_options_t {
    size_t struct_size;
    /**
     * Bytes of each device, from 2 MiB on; over TCUDA_SIM_MEMORY. Host memory is taken only where it is touched.
     */
    uint64_t memory;
    /**
     * Shuffles the order in which streams go on, so that a missing synchronisation shows; over TCUDA_SIM_SEED.
     */
    uint64_t seed;
    /**
     * Which devices reach each other: `all`, `none`, or pairs as `0-1,2-3`; over TCUDA_SIM_PEERS.
     */
    const char *peers;
    /**
     * 1 to 64; over TCUDA_SIM_DEVICES.
     */
    int32_t devices;
    /**
     * 1: work is done when the call returns; over CUDA_LAUNCH_BLOCKING.
     */
    int32_t launch_blocking;
} tcuda_sim_options_t;

/**
 * What lives on the simulated machine: CUDA's objects, not tcuda's. Set it to TCUDA_SIM_LIVE_INIT before the call.
 */
typedef struct tcuda_sim_live_t {
    size_t struct_size;
    /**
     * Of cudaMalloc.
     */
    uint64_t blocks;
    uint64_t block_bytes;
    /**
     * Physical memory of cuMemCreate that is not given back: its handle is not released, or it is mapped.
     */
    uint64_t handles;
    uint64_t handle_bytes;
    uint64_t mappings;
    /**
     * Without the default streams.
     */
    uint64_t streams;
    uint64_t events;
    /**
     * The following are those of the whole machine: address ranges, pinned memory by cudaHostAlloc and cudaHostRegister, and graphs, as
     * captured and ready for launches.
     */
    uint64_t reservations;
    uint64_t pinned_blocks;
    uint64_t registered_blocks;
    uint64_t graphs;
    uint64_t graph_execs;
    /**
     * Of the devices asked for.
     */
    uint64_t green_contexts;
} tcuda_sim_live_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/* ==== Version =================================================================================================================
 * The macros TCUDA_VERSION_* are of the header a program was compiled with; these functions are of the library that is loaded.
 */

/**
 * The version of the loaded library: major * 10000 + minor * 100 + patch, as TCUDA_VERSION_NUMBER. Never fails.
 */
uint32_t tcuda_version(void);

/**
 * `0.1.0 (cuda, runtime 13.0, driver 13.1)`: the version, the backend in use and its versions; `(not initialized)` before anything
 * was used. The text is never freed. Never fails.
 */
const char *tcuda_version_string(void);

/**
 * The version of the CUDA runtime in use, as cudaRuntimeGetVersion: 13000 for 13.0. The simulated device says which one it follows.
 */
tcuda_status_t tcuda_runtime_version(int32_t *version);

/**
 * The newest CUDA version that the driver supports, as cudaDriverGetVersion.
 */
tcuda_status_t tcuda_driver_version(int32_t *version);

/**
 * What tcuda's own kernels are compiled for (torch.cuda.get_arch_list): `compute_75 compute_80`. All of it is PTX, which each device of that
 * compute capability or a later one takes. Needs no device (torch lists nothing where there is none).
 *
 * @param text   gets the names with spaces between them and a terminating zero; NULL with capacity 0 asks for the size only.
 * @param needed gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
 */
tcuda_status_t tcuda_get_arch_list(char *text,
                                   size_t capacity,
                                   size_t *needed);

/**
 * The same as flags of nvcc (torch.cuda.get_gencode_flags), for kernels of a program that shall run where tcuda's do. torch writes
 * `compute=` where nvcc wants `arch=`.
 *
 * @param text   gets the flags with a terminating zero; NULL with capacity 0 asks for the size only.
 * @param needed gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
 */
tcuda_status_t tcuda_get_gencode_flags(char *text, size_t capacity, size_t *needed);

/* ==== Errors ==================================================================================================================
 * Every call answers a tcuda_status_t. A call that fails also leaves a record of the failure with the calling thread: a text for
 * people (what was asked, what was found, what to do), CUDA's own code, the function, the device. Success does not clear the record,
 * so it can be read late. The texts belong to tcuda and hold until the thread's next failing call.
 */

/**
 * The constant's name, `TCUDA_ERROR_OUT_OF_MEMORY`; `TCUDA_ERROR_UNKNOWN` for a number that is no status. Never freed, never fails.
 */
const char *tcuda_status_name(int32_t status);

/**
 * A few words in English, `out of device memory`. What happened this time is in tcuda_last_error_message. Never freed, never fails.
 */
const char *tcuda_status_message(int32_t status);

/**
 * The text of the calling thread's last failure; empty when nothing has failed, never NULL. Holds until the thread's next failing
 * call.
 */
const char *tcuda_last_error_message(void);

/**
 * The code of what failed last for the calling thread: of the CUDA runtime or driver, or of NCCL, NVML, cuBLAS, cuFFT or NVRTC where the
 * message names one of these; errno with TCUDA_ERROR_SYSTEM; 0 where there is none.
 */
int32_t tcuda_last_error_native(void);

/**
 * All that is known of the calling thread's last failure.
 *
 * @return TCUDA_ERROR_INVALID_ARGUMENT: `info` is NULL or its struct_size is not set.
 */
tcuda_status_t tcuda_last_error(tcuda_error_info_t *info);

/**
 * Sends tcuda's messages to `function` instead of stderr; NULL brings stderr back. A message that another thread is giving out at
 * that moment may still go to the function before. Without a function, TCUDA_LOG says what goes to stderr.
 * A child of fork that is refused writes nothing.
 */
tcuda_status_t tcuda_set_log_callback(tcuda_log_fn_t function, void *user_data);

/* ==== Start and end ===========================================================================================================
 * Nothing has to be called first: the first call that needs a device looks for one. tcuda_init does it at a time of the program's choice
 * and with its options. In a child of fork, once the parent has used a device, calls fail with TCUDA_ERROR_FORKED. After tcuda_shutdown they
 * fail with TCUDA_ERROR_SHUT_DOWN until tcuda_init, also those that otherwise need no device; destroying and freeing succeed and do
 * nothing. docs/THREADS.md lists what works all the same, as texts of errors, versions, snapshots and marks for tools.
 */

/**
 * Finds the backend and its devices (torch.cuda.init). No context is made and no memory taken on any device. The first call's options
 * hold, also if other calls found the backend before; its alloc_conf is put in effect as by tcuda_set_alloc_conf, so that a limit that was
 * set stays unless it is named. Called again it does nothing: its options are only checked, with a line in the log about an alloc_conf
 * that is not in effect (tcuda_set_alloc_conf changes options at any time). After tcuda_shutdown it starts again, with the options that it
 * is given over those from before.
 *
 * @param options NULL: the environment decides.
 * @return TCUDA_ERROR_NO_DEVICE, TCUDA_ERROR_INSUFFICIENT_DRIVER: the message says what was looked for and where; a later call tries
 *         again. TCUDA_ERROR_INVALID_STATE: another backend than the one asked for is in use already, or tcuda_shutdown is under way.
 *         TCUDA_ERROR_FORKED.
 */
tcuda_status_t tcuda_init(const tcuda_init_options_t *options);

/**
 * Whether this process has a backend in use (torch.cuda.is_initialized): false before the first need, in a forked child and after
 * tcuda_shutdown. Initialises nothing, never fails.
 */
bool tcuda_is_initialized(void);

/**
 * Whether there is a device to work with (torch.cuda.is_available): tcuda_device_count is not 0. By default only real devices count;
 * a simulated one is available when the program or its user asked for it (TCUDA_BACKEND=sim or auto). tcuda_backend_name tells which.
 * Never fails.
 */
bool tcuda_is_available(void);

/**
 * Waits for all devices, gives back all memory, and destroys what tcuda made, for the program too: streams, green contexts, events, memory
 * pools, graphs, graphed callables, generators, compiled functions, modules of kernels, communicators, imported memory. Snapshots, pluggable
 * allocators, domains of NVTX, tensors of the CPU and registered functions live on. No other thread may be inside a call of tcuda. Called again it does
 * nothing. TCUDA_ERROR_INVALID_STATE: it is called from inside of a call, by a function that hears the log, is asked for memory, is
 * captured, or is told by the trace, the debug mode or the sanitizer. Programs need not call it before they exit; leak checkers like it.
 */
tcuda_status_t tcuda_shutdown(void);

/**
 * One stable word: `cuda`, `sim` (the simulated device), or `none` when there is no usable backend. Looks for one if that was not done
 * yet. Never freed, never fails.
 */
const char *tcuda_backend_name(void);

/**
 * A sentence: which library the backend is and why it was taken, or what was looked for and where; in a forked child and after tcuda_shutdown,
 * that this is why there are no devices. Never freed, never fails.
 */
const char *tcuda_backend_reason(void);

/**
 * What is in effect: every variable that tcuda reads, a line each, `NAME=value  # default, environment or program; meaning`; and in lines that begin
 * with `#`, the version, the backend once there is one, and the options of the caches (tcuda_get_alloc_conf).
 *
 * @param text     gets the lines with a terminating zero; NULL with capacity 0 asks for the size only.
 * @param needed   gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
 * @return TCUDA_ERROR_BUFFER_TOO_SMALL: nothing but `needed` was written.
 */
tcuda_status_t tcuda_config_dump(char *text,
                                 size_t capacity,
                                 size_t *needed);

/* ==== Devices =================================================================================================================
 * A device is an index from 0. -1 (TCUDA_DEVICE_CURRENT) is the calling thread's current device, which is CUDA's own: cudaSetDevice and
 * tcuda_set_device are the same. An index that is out of range is TCUDA_ERROR_INVALID_DEVICE. Every call leaves the current device as it
 * found it, but for those that are there to change it.
 */

/**
 * How many devices there are (torch.cuda.device_count). 0, and success, where there is no backend, in a forked child and after
 * tcuda_shutdown; tcuda_backend_reason says why.
 *
 * @return TCUDA_ERROR_INVALID_ARGUMENT: `count` is NULL.
 */
tcuda_status_t tcuda_device_count(int32_t *count);

/**
 * The calling thread's current device (torch.cuda.current_device, cudaGetDevice).
 */
tcuda_status_t tcuda_current_device(int32_t *device);

/**
 * Makes a device current for the calling thread (torch.cuda.set_device, cudaSetDevice). A negative index does nothing, and succeeds
 * also where there is no device. Since CUDA 12 this makes the device's context, but not on the way back from tcuda_exchange_device or
 * tcuda_exchange_stream to a device that had none.
 *
 * @return TCUDA_ERROR_INVALID_DEVICE: the index is not below tcuda_device_count.
 */
tcuda_status_t tcuda_set_device(int32_t device);

/**
 * Makes a device current and says which one was: the two halves of torch's `with torch.cuda.device(d)`. A negative index changes
 * nothing, so what tcuda_device_of says of host memory can be given as it is.
 *
 * @param previous gets the device to give to tcuda_set_device in the end.
 */
tcuda_status_t tcuda_exchange_device(int32_t *previous, int32_t device);

/**
 * The device that an address belongs to (torch.cuda.device_of): TCUDA_DEVICE_CPU for host memory, pinned or not, and for NULL. Any
 * memory of CUDA is known, also what tcuda did not allocate.
 */
tcuda_status_t tcuda_device_of(int32_t *device, const void *ptr);

/**
 * The name of a device (torch.cuda.get_device_name).
 *
 * @param text     gets the name with a terminating zero; NULL with capacity 0 asks for the size only.
 * @param needed   gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
 * @return TCUDA_ERROR_BUFFER_TOO_SMALL, TCUDA_ERROR_INVALID_DEVICE (torch long promised that a negative index did nothing here; it is
 *         an error there too).
 */
tcuda_status_t tcuda_get_device_name(char *text, size_t capacity, size_t *needed, int32_t device);

/**
 * The compute capability of a device (torch.cuda.get_device_capability): 9 and 0 for an H100.
 */
tcuda_status_t tcuda_get_device_capability(int32_t *major, int32_t *minor, int32_t device);

/**
 * What a device is (torch.cuda.get_device_properties). Asked of the driver once. What CUDA 13 took out of cudaDeviceProp (clocks, the compute
 * mode and others) is there with every CUDA; what the one in use does not know is 0.
 *
 * @return TCUDA_ERROR_INVALID_ARGUMENT: `properties` is NULL or its struct_size is not set. TCUDA_ERROR_INVALID_DEVICE.
 */
tcuda_status_t tcuda_get_device_properties(tcuda_device_properties_t *properties,
                                           int32_t device);

/**
 * Any attribute of a device by CUDA's number (cudaDeviceGetAttribute, cudaDeviceAttr), for what tcuda_device_properties_t lacks.
 *
 * @return TCUDA_ERROR_INVALID_ARGUMENT: the CUDA in use knows no such attribute.
 */
tcuda_status_t tcuda_get_device_attribute(int32_t *value, int32_t attribute, int32_t device);

/**
 * Whether a device could read and write the memory of another directly (torch.cuda.can_device_access_peer). False for a device and
 * itself. It enables nothing: copies and the caches do so when they need it.
 */
tcuda_status_t tcuda_can_device_access_peer(bool *can_access, int32_t device, int32_t peer);

/**
 * Waits for all work of a device, on all its streams (torch.cuda.synchronize, cudaDeviceSynchronize). Errors of work given to it before
 * show here.
 */
tcuda_status_t tcuda_synchronize(int32_t device);

/**
 * Free and total bytes of a device as the driver sees them, other processes counted (torch.cuda.mem_get_info, cudaMemGetInfo). Memory
 * that tcuda's cache keeps is not free.
 */
tcuda_status_t tcuda_mem_get_info(size_t *free_bytes, size_t *total_bytes, int32_t device);

/* ==== Streams =================================================================================================================
 * A tcuda_stream_t is a cudaStream_t: streams of any library can be given. Special values: NULL (and cudaStreamLegacy) is the default
 * stream of the current device, or of the device of the pointer or tensor beside it (but for communicators and the list of
 * tcuda_comm_scatter, where NULL is the current stream); TCUDA_STREAM_DEFAULT(d) is that of device d, and what tcuda gives out for it;
 * TCUDA_STREAM_CURRENT is the thread's current stream (torch's None); cudaStreamPerThread (0x2) is the calling thread's default stream of
 * that device, and TCUDA_STREAM_PER_THREAD(d) that of device d, and what tcuda gives out for it. A stream of another library is looked up
 * once; before its owner destroys it, tcuda_stream_unregister settles what waits for it. A stream may be used by several threads; one that
 * is being destroyed by nobody else. Handles that tcuda knows to be dead are TCUDA_ERROR_INVALID_HANDLE; CUDA itself may crash on garbage.
 */

/**
 * Makes a stream of one's own (torch has only the pool; cudaStreamCreateWithPriority). It has no implicit order with the legacy default
 * stream (cudaStreamNonBlocking).
 *
 * @param stream   gets the stream; tcuda_stream_destroy ends it.
 * @param device   -1: the current one.
 * @param priority 0 is normal, a smaller number is served first; cut to what the device has.
 */
tcuda_status_t tcuda_stream_create(tcuda_stream_t *stream, int32_t device, int32_t priority);

/**
 * Takes a stream from the pool (torch.cuda.Stream): 32 per priority and device, handed out in turn, so the 33rd is the first one again.
 * They are shared with everyone who draws the same one, and are not destroyed.
 *
 * @param device   -1: the current one.
 * @param priority 0 is normal, a smaller number is served first; cut to tcuda_stream_priority_range.
 */
tcuda_status_t tcuda_stream_from_pool(tcuda_stream_t *stream, int32_t device, int32_t priority);

/**
 * Makes a stream of another library known (torch.cuda.ExternalStream). Needed only where CUDA cannot tell a stream's device (drivers that
 * lack both cudaStreamGetDevice and cuStreamGetCtx, and before CUDA 13 streams of another library's green contexts), and for the error in
 * good time. It stays its owner's.
 *
 * @param device   -1: ask CUDA.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: it belongs to another device. TCUDA_ERROR_INVALID_HANDLE: it is no stream, or a special value.
 */
tcuda_status_t tcuda_stream_register(tcuda_stream_t stream, int32_t device);

/**
 * Forgets a stream of another library, whose owner is about to destroy it: memory that waits for it is settled. Every stream that was
 * given to a call of tcuda is known, registered or not. NULL does nothing. Left out, another stream that CUDA makes at the same address
 * passes for this one, and memory may be used again before this one's work is done.
 *
 * @return TCUDA_ERROR_INVALID_HANDLE: tcuda has not met it, or made it by tcuda_stream_create. TCUDA_ERROR_INVALID_STATE: it is the pool's or a
 *         green context's.
 */
tcuda_status_t tcuda_stream_unregister(tcuda_stream_t stream);

/**
 * Ends a stream of tcuda_stream_create. Work that it was given still runs, and memory that waits for it is settled. Where it was a
 * thread's current stream, the default stream is now. The handle may come back from a later tcuda_stream_create. NULL succeeds.
 *
 * @return TCUDA_ERROR_INVALID_HANDLE: it was destroyed before, or is not tcuda's. TCUDA_ERROR_INVALID_STATE: it is the pool's, or a green
 *         context's.
 */
tcuda_status_t tcuda_stream_destroy(tcuda_stream_t stream);

/**
 * What CUDA is to be given for a stream: NULL for the default stream of a device, which CUDA takes as that of its current device.
 */
tcuda_status_t tcuda_stream_native(tcuda_stream_t stream, tcuda_stream_t *native);

/**
 * The device of a stream.
 */
tcuda_status_t tcuda_stream_device(tcuda_stream_t stream, int32_t *device);

/**
 * The priority of a stream, as the driver has it (torch.cuda.Stream.priority).
 */
tcuda_status_t tcuda_stream_priority(tcuda_stream_t stream, int32_t *priority);

/**
 * The priorities that the pool tells apart (torch.cuda.Stream.priority_range): least is 0, greatest at best -3.
 * tcuda_stream_create takes the whole range of the device, which may go further.
 */
tcuda_status_t tcuda_stream_priority_range(int32_t *least, int32_t *greatest, int32_t device);

/**
 * The calling thread's current stream of a device (torch.cuda.current_stream). A new thread starts with the default streams. CUDA knows no
 * current stream: it means what tcuda does with TCUDA_STREAM_CURRENT, and what programs agree on.
 */
tcuda_status_t tcuda_current_stream(tcuda_stream_t *stream, int32_t device);

/**
 * The default stream of a device (torch.cuda.default_stream): TCUDA_STREAM_DEFAULT(device).
 */
tcuda_status_t tcuda_default_stream(tcuda_stream_t *stream, int32_t device);

/**
 * Makes a stream current on its device for the calling thread, and that device current (torch.cuda.set_stream).
 * TCUDA_STREAM_CURRENT changes nothing.
 */
tcuda_status_t tcuda_set_stream(tcuda_stream_t stream);

/**
 * Makes a stream and its device current and says what was: the first half of torch's `with torch.cuda.stream(s)`. The second half is
 * tcuda_set_stream(replaced), then tcuda_set_stream(previous), which brings the device back too. A stream that was destroyed meanwhile is
 * refused there, and TCUDA_STREAM_DEFAULT of its device is to be set instead.
 *
 * @param previous gets the current stream of the device that was current.
 * @param replaced gets what was current on the stream's own device. May be NULL where that device is current anyway.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: `replaced` is NULL, and the stream is of another device than the current one. Nothing has changed.
 */
tcuda_status_t tcuda_exchange_stream(tcuda_stream_t *previous, tcuda_stream_t *replaced, tcuda_stream_t stream);

/**
 * Whether all work given to a stream so far is done (torch.cuda.Stream.query, cudaStreamQuery).
 */
tcuda_status_t tcuda_stream_query(tcuda_stream_t stream, bool *complete);

/**
 * Waits until all work given to a stream so far is done (torch.cuda.Stream.synchronize, cudaStreamSynchronize).
 */
tcuda_status_t tcuda_stream_synchronize(tcuda_stream_t stream);

/**
 * Records an event on a stream (torch.cuda.Stream.record_event).
 *
 * @param event    in and out: an event, or NULL in it, which becomes a new event without timing; tcuda_event_destroy ends it.
 */
tcuda_status_t tcuda_stream_record_event(tcuda_stream_t stream, tcuda_event_t *event);

/**
 * Makes a stream's later work wait for an event's last record (torch.cuda.Stream.wait_event, cudaStreamWaitEvent). An event that was
 * never recorded holds nothing up. The stream and the event may be of different devices.
 */
tcuda_status_t tcuda_stream_wait_event(tcuda_stream_t stream, tcuda_event_t event);

/**
 * Makes a stream's later work wait for all that another stream was given until now (torch.cuda.Stream.wait_stream).
 */
tcuda_status_t tcuda_stream_wait_stream(tcuda_stream_t stream, tcuda_stream_t other);

/**
 * Has a function called on the host when the work before it is done; the work after it waits (cudaLaunchHostFunc). On a stream that is
 * captured each replay calls it, so that what `user_data` points to has to live as long as the graph and its replays.
 *
 * @return TCUDA_ERROR_INVALID_ARGUMENT: `function` is NULL. After an error it is not called.
 */
tcuda_status_t tcuda_stream_add_host_function(tcuda_stream_t stream, tcuda_host_fn_t function, void *user_data);

/* ==== Events ==================================================================================================================
 * A tcuda_event_t is a cudaEvent_t: events of any library can be given. The flags are CUDA's bits, so 0 is an event with timing; torch's
 * default is TCUDA_EVENT_DISABLE_TIMING. An event belongs to the device that was current when it was made (torch makes it on the device
 * of the first record). Several threads may use an event; of two records at the same time the later one counts.
 */

/**
 * Makes an event of the current device (torch.cuda.Event, cudaEventCreateWithFlags).
 *
 * @param event    gets the event; tcuda_event_destroy ends it.
 * @param flags    TCUDA_EVENT_*. TCUDA_EVENT_INTERPROCESS needs TCUDA_EVENT_DISABLE_TIMING beside it.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: a bit that is not known, or interprocess with timing.
 */
tcuda_status_t tcuda_event_create(tcuda_event_t *event, uint32_t flags);

/**
 * Ends an event. Waits that were enqueued on it stay as they are. NULL succeeds.
 *
 * @return TCUDA_ERROR_INVALID_HANDLE: it was destroyed before, as far as CUDA can tell.
 */
tcuda_status_t tcuda_event_destroy(tcuda_event_t event);

/**
 * Marks the point that a stream's work has come to (torch.cuda.Event.record, cudaEventRecord). A later record replaces it.
 *
 * @return TCUDA_ERROR_INVALID_ARGUMENT: the event belongs to another device than the stream.
 */
tcuda_status_t tcuda_event_record(tcuda_event_t event, tcuda_stream_t stream);

/**
 * Makes a stream's later work wait for the last record (torch.cuda.Event.wait, cudaStreamWaitEvent). An event that was never recorded
 * holds nothing up.
 */
tcuda_status_t tcuda_event_wait(tcuda_event_t event, tcuda_stream_t stream);

/**
 * tcuda_event_record; on a stream that is captured each replay records the event, when it comes there (torch.cuda.Event with external=True,
 * cudaEventRecordExternal): so others than the graph may wait for a part of a replay, and time it. The event has to stay for as long as
 * the graph.
 *
 * @return as tcuda_event_record.
 */
tcuda_status_t tcuda_event_record_external(tcuda_event_t event, tcuda_stream_t stream);

/**
 * tcuda_event_wait; on a stream that is captured each replay waits there, for what the event's last record is when the replay is enqueued
 * (cudaEventWaitExternal): so a part of a graph waits for what is not of its capture. The event has to stay for as long as the graph.
 */
tcuda_status_t tcuda_event_wait_external(tcuda_event_t event, tcuda_stream_t stream);

/**
 * Whether the work before the last record is done (torch.cuda.Event.query, cudaEventQuery); true for an event that was never recorded.
 */
tcuda_status_t tcuda_event_query(tcuda_event_t event, bool *complete);

/**
 * Waits for the work before the last record (torch.cuda.Event.synchronize, cudaEventSynchronize); not at all for an event that was never
 * recorded.
 */
tcuda_status_t tcuda_event_synchronize(tcuda_event_t event);

/**
 * Milliseconds from one record to another (torch.cuda.Event.elapsed_time, cudaEventElapsedTime), on any streams of one device; negative if
 * `end` came first. CUDA counts in about half a microsecond.
 *
 * @return TCUDA_ERROR_INVALID_STATE: an event has no timing, or was never recorded. TCUDA_ERROR_NOT_READY: a record is not reached yet.
 *         TCUDA_ERROR_INVALID_ARGUMENT: the records are of two devices.
 */
tcuda_status_t tcuda_event_elapsed_time(float *milliseconds, tcuda_event_t start, tcuda_event_t end);

/* ==== Green contexts ==========================================================================================================
 * A green context is some of a device's multiprocessors (torch.cuda.green_contexts.GreenContext; CUDA's cuGreenCtxCreate): kernels that are
 * launched on streams of it run on those, and leave the others to other streams. Its streams are used as any; memory, events and graphs know no
 * difference. Nothing is kept from others: streams of the device run on all its multiprocessors, and each context is cut from the whole device,
 * as torch's, so that two have the same ones. Under MPS, or with kernels that launch kernels, CUDA may take a few more.
 * For work in one, make a stream of it current, with tcuda_exchange_stream. No green context becomes a thread's current context of CUDA, as
 * torch's set_context makes it, which later torch advises against: in it CUDA's default stream (NULL) is another stream than the device's, in that
 * thread only, while memory that was freed on the one is given out on the other; and the next cudaSetDevice puts it away.
 */

/**
 * Sets some of a device's multiprocessors apart (GreenContext.create).
 *
 * @param green_context gets it; tcuda_green_context_destroy ends it.
 * @param num_sms       how many at least, from 1 on. The driver rounds up: on an H100 to a multiple of 8, or to all.
 * @param device        -1: the current one.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: the device has not so many, or not once they are rounded up. TCUDA_ERROR_NOT_SUPPORTED: the driver is
 *         older than CUDA 12.5.
 */
tcuda_status_t tcuda_green_context_create(tcuda_green_context_t *green_context,
                                          int32_t num_sms,
                                          int32_t device);

/**
 * Ends a green context and its streams: waits for their work, and settles memory that waits for them. Where one was a thread's current
 * stream, the default stream is now. Graphs that were captured on them must not be replayed any more. NULL succeeds.
 *
 * @return TCUDA_ERROR_CAPTURE: another thread captures on one of them. After any error but TCUDA_ERROR_INVALID_HANDLE the context is still
 *         there, and some of its streams may be gone.
 */
tcuda_status_t tcuda_green_context_destroy(tcuda_green_context_t green_context);

/**
 * How many multiprocessors a green context really has.
 */
tcuda_status_t tcuda_green_context_num_sms(tcuda_green_context_t green_context, int32_t *num_sms);

/**
 * The next of a green context's streams (GreenContext.Stream): 32, handed out in turn, so the 33rd is the first one again. They have normal
 * priority and no implicit order with the legacy default stream, and they end with the context; tcuda_stream_destroy refuses them.
 */
tcuda_status_t tcuda_green_context_stream(tcuda_stream_t *stream, tcuda_green_context_t green_context);

/* ==== Device memory ===========================================================================================================
 * A cache of device memory for each device (torch's caching allocator). A block follows the order of the stream that it was allocated
 * on: freed, it can be allocated again for that stream at once, and for others as soon as the work that was enqueued before the free
 * is done. Work on other streams is made known with tcuda_record_stream, or the block is freed on the stream that used it last.
 * Blocks start at multiples of 512 bytes. tcuda_free_cached needs neither the device nor the stream nor the thread of the allocation.
 * The statistics have torch's names. Sizes are rounded up to 512 bytes; up to 1 MiB is small. A segment is a piece of physical memory
 * from the driver; free parts of one count as inactive_split only with plain segments (TCUDA_ALLOC_CONF=expandable_segments:False).
 */

/**
 * Allocates device memory from the cache (torch.cuda.caching_allocator_alloc, cudaMallocAsync's order).
 *
 * @param ptr    gets the address, a multiple of 512; tcuda_free_cached gives the block back. NULL for size 0.
 * @param size   bytes.
 * @param stream the stream that the memory will be used on first; its device is where the memory is.
 * @return TCUDA_ERROR_OUT_OF_MEMORY when the device, the limit or the fraction has no room, after everything free was reused or given
 *         back (on a capturing stream: without waiting for anything). Other errors are the driver's.
 */
tcuda_status_t tcuda_malloc_cached(void **ptr, size_t size, tcuda_stream_t stream);

/**
 * tcuda_malloc_cached with an alignment.
 *
 * @param alignment a power of two in bytes, at most 1 GiB; below 512 it is 512. With virtual memory it costs addresses, which other blocks
 *                  find room in. A plain segment for it is larger by that much, where other blocks find room too.
 */
tcuda_status_t tcuda_malloc_cached_aligned(void **ptr, size_t size, size_t alignment, tcuda_stream_t stream);

/**
 * Allocates `count` blocks on a stream, all or none.
 *
 * @param ptrs  gets `count` addresses; each is given back by itself, or by tcuda_free_cached_batch.
 * @param sizes `count` sizes in bytes.
 */
tcuda_status_t tcuda_malloc_cached_batch(void **ptrs, const size_t *sizes, size_t count, tcuda_stream_t stream);

/**
 * Gives a block back (torch.cuda.caching_allocator_delete). From any thread, also while a host function runs (but for backend:cudaMallocAsync,
 * which calls the driver). After tcuda_shutdown it does nothing.
 *
 * @param ptr start of a block; NULL does nothing.
 * @return TCUDA_ERROR_INVALID_POINTER for anything that is not the start of a block in use; nothing changes then.
 */
tcuda_status_t tcuda_free_cached(void *ptr);

/**
 * Gives a block back that was used on `stream` last: it can be allocated again for that stream at once, elsewhere when safe. The program
 * has ordered its uses on other streams before (cudaFreeAsync's order), and `stream` behind what the block's own stream had been given when
 * it was allocated, also if the block was not used: its memory may have been in use there.
 *
 * @param stream a stream of the block's device; NULL: that device's default stream.
 */
tcuda_status_t tcuda_free_cached_on(void *ptr, tcuda_stream_t stream);

/**
 * Gives `count` blocks back; NULLs are left out. Pointers that are no blocks do not keep the others from being freed.
 *
 * @return the error of the first pointer that is no block.
 */
tcuda_status_t tcuda_free_cached_batch(void *const *ptrs, size_t count);

/**
 * Notes that a stream uses a block of another stream (Tensor.record_stream). When the block is freed, it is allocated again only after
 * the work that this stream had been given until then. Costs nothing before the free.
 *
 * @param ptr    start of a block; NULL does nothing. Memory of somebody else is an error (torch ignores it).
 * @param stream a stream of the block's device (torch takes any); NULL: that device's default stream.
 */
tcuda_status_t tcuda_record_stream(void *ptr, tcuda_stream_t stream);

/**
 * Gives all free memory of the cache back to the driver (torch.cuda.empty_cache); what memory pools have free is theirs. Waits for the
 * streams that freed or used free blocks, for the whole device where one of them is gone; what a capturing stream freed stays. Does nothing
 * before the first allocation. Memory of pools and graphs that were destroyed goes with it.
 *
 * @param device -1: the current one; TCUDA_DEVICE_ALL: all.
 * @return the first failure, when all else went back. What failed stays for the next time.
 */
tcuda_status_t tcuda_empty_cache(int32_t device);

/**
 * All statistics of a device (torch.cuda.memory_stats). All zero before the first allocation. Figures are exact when no thread allocates or
 * frees at the moment; peaks while one thread does, and nearly so while several do (docs/MEMORY.md says how near). Holds up no thread, but where
 * a block that waited for another stream is found free, or such a stream is to be marked for the first time.
 *
 * @param stats  struct_size has to be set; gets the figures.
 * @param device -1: the current one.
 */
tcuda_status_t tcuda_memory_stats(tcuda_memory_stats_t *stats,
                                  int32_t device);

/**
 * One figure by torch's key, such as `allocated_bytes.all.peak` or `num_ooms`. tcuda_memory_stat_key lists the keys; `allocated.*`, as
 * torch 1.8 had it in its documentation, is `allocation.*`. Not in the list, since they come and go with their pools:
 * `reserved_bytes_by_private_pools.0_12.all.current` is of the pool (0, 12), a memory pool (tcuda_mem_pool_id) or one of graphs.
 *
 * @param value  gets the figure; bytes or a count.
 * @param device -1: the current one.
 * @return TCUDA_ERROR_INVALID_ARGUMENT for an unknown key, or a pool that the device does not have.
 */
tcuda_status_t tcuda_memory_stat_get(int64_t *value, int32_t device, const char *key);

/**
 * The keys of tcuda_memory_stat_get, sorted: index 0, 1, ... until NULL. Never freed, never fails.
 */
const char *tcuda_memory_stat_key(int32_t index);

/**
 * torch.cuda.memory_summary: a table for people, with rows for memory pools and those of graphs.
 *
 * @param text        gets the table with a terminating zero; NULL with capacity 0 asks for the size only.
 * @param needed      gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
 * @param device      -1: the current one.
 * @param abbreviated without the rows of the small and the large pool.
 */
tcuda_status_t tcuda_memory_summary(char *text, size_t capacity, size_t *needed, int32_t device, bool abbreviated);

/**
 * Bytes in blocks that are in use (torch.cuda.memory_allocated).
 */
tcuda_status_t tcuda_memory_allocated(uint64_t *bytes, int32_t device);

/**
 * The most bytes in blocks that were in use since the start or the last reset (torch.cuda.max_memory_allocated).
 */
tcuda_status_t tcuda_max_memory_allocated(uint64_t *bytes, int32_t device);

/**
 * Bytes held from the driver (torch.cuda.memory_reserved).
 */
tcuda_status_t tcuda_memory_reserved(uint64_t *bytes, int32_t device);

/**
 * The most bytes held from the driver (torch.cuda.max_memory_reserved).
 */
tcuda_status_t tcuda_max_memory_reserved(uint64_t *bytes, int32_t device);

/**
 * Deprecated, as torch.cuda.memory_cached: tcuda_memory_reserved.
 */
tcuda_status_t tcuda_memory_cached(uint64_t *bytes, int32_t device);

/**
 * Deprecated, as torch.cuda.max_memory_cached: tcuda_max_memory_reserved.
 */
tcuda_status_t tcuda_max_memory_cached(uint64_t *bytes, int32_t device);

/**
 * Every peak becomes the current figure (torch.cuda.reset_peak_memory_stats). From here on peaks are exact until a second thread allocates.
 */
tcuda_status_t tcuda_reset_peak_memory_stats(int32_t device);

/**
 * Every sum over time and every counter becomes 0 (torch.cuda.reset_accumulated_memory_stats).
 */
tcuda_status_t tcuda_reset_accumulated_memory_stats(int32_t device);

/**
 * Deprecated, as torch.cuda.reset_max_memory_allocated: resets all peaks, not only that of allocated memory.
 */
tcuda_status_t tcuda_reset_max_memory_allocated(int32_t device);

/**
 * Deprecated, as torch.cuda.reset_max_memory_cached: resets all peaks.
 */
tcuda_status_t tcuda_reset_max_memory_cached(int32_t device);

/**
 * Limits what the cache holds to a share of the device's memory (torch.cuda.set_per_process_memory_fraction). More is out of memory,
 * after free memory was reused. What CUDA and other libraries take does not count.
 *
 * @param fraction 0 to 1; 1 takes the limit away.
 * @param device   -1: the current one.
 */
tcuda_status_t tcuda_set_per_process_memory_fraction(double fraction, int32_t device);

/**
 * The limit as a share of the device's memory; 1 without one (torch.cuda.get_per_process_memory_fraction).
 */
tcuda_status_t tcuda_get_per_process_memory_fraction(double *fraction, int32_t device);

/**
 * Limits what the cache holds to a number of bytes; the later of this and tcuda_set_per_process_memory_fraction counts. Memory of the
 * cache beyond a new limit stays, and serves what fits there, until it goes back; no more is taken meanwhile.
 *
 * @param bytes  UINT64_MAX: no limit.
 * @param device -1: the current one.
 */
tcuda_status_t tcuda_set_memory_limit(uint64_t bytes, int32_t device);

/**
 * The limit in bytes, however it was set; UINT64_MAX without one.
 *
 * @param device -1: the current one.
 */
tcuda_status_t tcuda_get_memory_limit(uint64_t *bytes, int32_t device);

/**
 * Sets the options of the device caches (torch.cuda.memory._set_allocator_settings), over TCUDA_ALLOC_CONF and the options of
 * tcuda_init. Keys that the text does not name get their defaults, but for limits that a call set (tcuda_set_memory_limit,
 * tcuda_set_per_process_memory_fraction, tcuda_host_set_memory_limit): they stay unless the text names another one, by
 * per_process_memory_fraction, which is for all devices or has a list of them, or by pinned_limit_mb. Limits hold at once, the rest from the
 * next growth on. Keys of torch that would change nothing in tcuda are taken, with a line in the log; docs/MEMORY.md lists all keys. Not to be
 * called while other threads set options.
 *
 * @param alloc_conf `key:value,key:value`; empty: the defaults; NULL: what TCUDA_ALLOC_CONF says.
 * @return TCUDA_ERROR_INVALID_ARGUMENT for an unknown key or a wrong value; the message has its place, and nothing has changed. A device that is
 *         not there is one, unless devices are not known yet: the log tells of it then.
 */
tcuda_status_t tcuda_set_alloc_conf(const char *alloc_conf);

/**
 * The options in effect, every key with its value, as a text that tcuda_set_alloc_conf takes; set again it changes nothing. The limits are
 * those that hold now, however they were set, exact to the byte: where devices differ per_process_memory_fraction has a list of them.
 *
 * @param text   gets the text with a terminating zero; NULL with capacity 0 asks for the size only.
 * @param needed gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
 */
tcuda_status_t tcuda_get_alloc_conf(char *text, size_t capacity, size_t *needed);

/**
 * Waits for a device and looks whether freed memory was written to. With TCUDA_MEMORY_POISON=1 only: freed blocks are filled with 0xDB,
 * in the order of their stream, and checked when their memory is handed out again, goes back to the driver, or here; what is found goes
 * to the log with the block's address, the offsets and the stream of the free. New blocks are filled with 0xFF.
 *
 * @param count  gets the number of blocks that were found written to after their free, here and before, on all devices.
 * @param device -1: the current one; TCUDA_DEVICE_ALL: all.
 * @return TCUDA_ERROR_INVALID_STATE: freed memory is not watched. TCUDA_ERROR_CAPTURE: something is captured on the device, which goes on.
 */
tcuda_status_t tcuda_memory_check_poison(uint64_t *count, int32_t device);

/* ==== Pinned host memory ======================================================================================================
 * A cache of pinned host memory (torch's caching host allocator, `pin_memory`): memory of the host that every device reaches by itself, so
 * that copies run beside the host. Sizes are rounded up to whole pages of 4 KiB, below that to 512 bytes; segments of the driver are cut
 * and joined again. It belongs to no device and no stream, and any thread may free any block.
 * The host writes this memory as soon as it has it. So a block that streams use is given out again only when each of them is past what it
 * had got until the free, and that holds for the stream that used it last too (device memory can go back to its own stream at once).
 * tcuda's copies and tensors note their use by themselves; everything else is made known with tcuda_host_record_stream. What a graph
 * uses lasts until it is reset; a use by a stream that another library captures until that capture ends: it has to stay allocated.
 * Options of TCUDA_ALLOC_CONF begin with `pinned_`; docs/PINNED.md has them.
 */

/**
 * Allocates pinned host memory from the cache (torch.empty(..., pin_memory=True), cudaHostAlloc). What it holds is not defined.
 *
 * @param ptr  gets the address: a multiple of 4096, below a page of 512; tcuda_host_free_cached gives the block back. NULL for
 *             size 0.
 * @param size bytes.
 * @return TCUDA_ERROR_OUT_OF_HOST_MEMORY when the limit or the machine has no room, after the streams that use freed blocks were waited
 *         for and all free memory was given back. Other errors are the driver's.
 */
tcuda_status_t tcuda_host_malloc_cached(void **ptr, size_t size);

/**
 * Gives a block of tcuda_host_malloc_cached back. From any thread, also while a host function runs: nothing is asked of the driver.
 * After tcuda_shutdown it does nothing.
 *
 * @param ptr start of a block; NULL does nothing.
 * @return TCUDA_ERROR_INVALID_POINTER for anything that is not the start of a block in use; nothing changes then.
 */
tcuda_status_t tcuda_host_free_cached(void *ptr);

/**
 * Notes that a stream uses a block (torch's CachingHostAllocator_recordEvent). When the block is freed, it is given out again only after
 * the work that the stream had been given until then. Costs no call of the driver, neither now nor at the free, unless graphs are being captured:
 * then the driver says whether the stream is, and where it fails to, that is the answer, with the use noted but nothing kept for a graph.
 *
 * @param ptr    an address in a block; NULL does nothing. Memory of somebody else is TCUDA_ERROR_INVALID_POINTER.
 * @param stream of any device; NULL: the default stream of the current device.
 */
tcuda_status_t tcuda_host_record_stream(void *ptr,
                                        tcuda_stream_t stream);

/**
 * Gives all free pinned memory back to the driver (torch's CachingHostAllocator_emptyCache). Waits for the streams that use freed blocks;
 * what a capturing stream uses stays. The driver waits for all devices when it takes pinned memory back.
 */
tcuda_status_t tcuda_host_empty_cache(void);

/**
 * All statistics of pinned memory (torch.cuda.host_memory_stats). All zero before the first allocation. Figures are exact while no thread
 * allocates or frees; the peaks of what is active are exact while one thread does. What streams used is active until it was found out that they are
 * done, which the next allocations do, not this call.
 *
 * @param stats struct_size has to be set; gets the figures.
 */
tcuda_status_t tcuda_host_memory_stats(tcuda_host_memory_stats_t *stats);

/**
 * One figure by torch's key, such as `active_bytes.current` or `host_alloc_time.avg`. tcuda_host_memory_stat_key lists the keys; `segment.*`,
 * `reserved_bytes.*` and `allocation.*`, as torch 2.7 had them, are `allocations.*`, `allocated_bytes.*` and `active_requests.*`.
 *
 * @param value gets the figure; bytes, a count or microseconds.
 * @return TCUDA_ERROR_INVALID_ARGUMENT for an unknown key.
 */
tcuda_status_t tcuda_host_memory_stat_get(int64_t *value,
                                          const char *key);

/**
 * The keys of tcuda_host_memory_stat_get, sorted: index 0, 1, ... until NULL. Never freed, never fails.
 */
const char *tcuda_host_memory_stat_key(int32_t index);

/**
 * Every peak becomes the current figure (torch.cuda.reset_peak_host_memory_stats).
 */
tcuda_status_t tcuda_reset_peak_host_memory_stats(void);

/**
 * Every sum over time, counter and time becomes 0 (torch.cuda.reset_accumulated_host_memory_stats).
 */
tcuda_status_t tcuda_reset_accumulated_host_memory_stats(void);

/**
 * Limits what the cache of pinned memory holds; also `pinned_limit_mb` of TCUDA_ALLOC_CONF, the later counts. Less than is held: nothing
 * is taken from the driver until enough went back.
 *
 * @param bytes UINT64_MAX: no limit.
 */
tcuda_status_t tcuda_host_set_memory_limit(uint64_t bytes);

/**
 * The limit in bytes, however it was set; UINT64_MAX without one.
 */
tcuda_status_t tcuda_host_get_memory_limit(uint64_t *bytes);

/**
 * Pins memory of the program where it lies, for every device (cudaHostRegister). It has to stay until tcuda_host_unregister.
 *
 * @param ptr   where it begins; need not be the start of a page.
 * @param size  bytes, at least 1.
 * @param flags 0, or TCUDA_HOST_REGISTER_*. CUDA's bits for portable and mapped are taken, and hold in any case.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: also where some of it is registered already, or is tcuda's own or a device's; the message says
 *         what it meets. TCUDA_ERROR_INVALID_POINTER: there is no memory. Else the driver's.
 */
tcuda_status_t tcuda_host_register(void *ptr, size_t size, uint32_t flags);

/**
 * Ends what tcuda_host_register began (cudaHostUnregister). The driver waits for all devices. tcuda_shutdown does it for what is left, and
 * afterwards this does nothing.
 *
 * @param ptr as it was registered; NULL does nothing.
 * @return TCUDA_ERROR_INVALID_POINTER for anything else.
 */
tcuda_status_t tcuda_host_unregister(void *ptr);

/**
 * Whether an address is in pinned host memory, whoever pinned it (Tensor.is_pinned): false for device memory, plain host memory and NULL.
 */
tcuda_status_t tcuda_is_pinned(bool *is_pinned, const void *ptr);

/* ==== Memory pressure =========================================================================================================
 * When the cache of a device can satisfy a request neither from what is free nor from the driver, it climbs a ladder: it waits for other
 * streams, then gives all free memory back to the driver, then fails. Before each of these steps the pressure callbacks are asked, one
 * after the other in the order in which they came. One that freed something says so, and the request is tried again; only if that was not
 * enough is the next one asked. Each is asked once for a step, and once more before memory goes back where one freed something before the
 * failure: so free what is wanted at once. Nobody is asked while the allocating stream is being captured, nor for more than all memory of
 * the device (unless it comes from a pluggable allocator), nor beyond the limit with `throw_on_cudamalloc_oom:True`: these fail at once. The
 * observers are told of each failure.
 * Both run on the thread that allocates, with no lock held, at times on several threads at once, and may call tcuda: free, allocate, empty
 * the cache, unregister. What they allocate comes without asking or telling anybody. Work may still use what they free, as with any free.
 * If they destroy the stream or the memory pool that the request is for, it fails with TCUDA_ERROR_INVALID_HANDLE. A C++ exception or
 * longjmp must not leave them. They stay registered over tcuda_shutdown.
 */

/**
 * Registers a function that frees memory of the program's own when memory runs short: a cache that can be filled again, buffers that were
 * kept (torch: FreeMemoryCallback). The section's text says when and how it is called, and when it is not.
 *
 * @param id        gets a number for tcuda_unregister_pressure_callback.
 * @param function  not NULL; the same function may be registered several times.
 * @param user_data goes to each call.
 */
tcuda_status_t tcuda_register_pressure_callback(uint64_t *id, tcuda_pressure_fn_t function, void *user_data);

/**
 * Ends a registration. On return the function is not called any more: calls of it that run on other threads are waited for, so what
 * they need must not be held here. Called inside a pressure callback, an observer or a
 * trace function it does not wait.
 *
 * @return TCUDA_ERROR_INVALID_HANDLE: no pressure callback has this number.
 */
tcuda_status_t tcuda_unregister_pressure_callback(uint64_t id);

/**
 * Registers a function that is told when an allocation fails for want of memory (torch: attachOutOfMemoryObserver). The section's text says
 * how it is called. Requests of 2^60 bytes and more are refused without it, and not counted.
 *
 * @param id        gets a number for tcuda_unregister_oom_observer.
 * @param function  not NULL; the same function may be registered several times.
 * @param user_data goes to each call.
 */
tcuda_status_t tcuda_register_oom_observer(uint64_t *id, tcuda_oom_observer_fn_t function, void *user_data);

/**
 * Ends a registration, as tcuda_unregister_pressure_callback does.
 *
 * @return TCUDA_ERROR_INVALID_HANDLE: no observer has this number.
 */
tcuda_status_t tcuda_unregister_oom_observer(uint64_t id);

/* ==== Memory pools ============================================================================================================
 * A pool keeps memory of a device apart from the rest (torch.cuda.MemPool): with segments of its own, from the driver or from a pluggable
 * allocator, and statistics of its own, which count in the device's as well. A thread opens it, and what it allocates on the pool's
 * device until it closes it comes from there (torch.cuda.use_mem_pool), whatever device is current; or it names the pool. A pool may be
 * opened again at any time, also when all its blocks were freed. Blocks are freed as any other, from anywhere.
 * A pool can be paused, which gives its memory back to the driver and keeps its addresses, and resumed with the same contents: what is
 * put to sleep between two uses need not be loaded anew, and no pointer changes.
 */

/**
 * Makes a pool (torch.cuda.MemPool). It holds nothing yet.
 *
 * @param pool    gets the pool; tcuda_mem_pool_destroy ends it.
 * @param device  -1 for the current one. The pool is used on this device only.
 * @param options NULL for all zero.
 */
tcuda_status_t tcuda_mem_pool_create(tcuda_mem_pool_t *pool, int32_t device, const tcuda_mem_pool_options_t *options);

/**
 * Ends a pool. Its free memory goes back, but for what a stream still uses; blocks in use stay valid and are freed as any other. Either goes
 * back at the next tcuda_empty_cache, or when memory runs short.
 *
 * @return TCUDA_ERROR_INVALID_STATE: it is open in a thread, or paused with blocks in use.
 */
tcuda_status_t tcuda_mem_pool_destroy(tcuda_mem_pool_t pool);

/**
 * From now on what this thread allocates on the pool's device comes from the pool (torch.cuda.use_mem_pool), until tcuda_mem_pool_end. With
 * several open ones the newest is meant. Memory of other devices, and other threads, are not concerned.
 */
tcuda_status_t tcuda_mem_pool_begin(tcuda_mem_pool_t pool);

/**
 * Ends the newest tcuda_mem_pool_begin of this pool in this thread.
 *
 * @return TCUDA_ERROR_INVALID_STATE: the thread has not opened it.
 */
tcuda_status_t tcuda_mem_pool_end(tcuda_mem_pool_t pool);

/**
 * tcuda_malloc_cached from a pool by name, whatever pools are open: for code that changes threads. On a stream that is captured the
 * memory is of the graph's private pool, as all that is allocated there.
 *
 * @param ptr    gets the memory, which tcuda_free_cached gives back; NULL for size 0.
 * @param size   bytes.
 * @param stream on the pool's device.
 * @return TCUDA_ERROR_OUT_OF_MEMORY after the pool's free memory, and then the device's, went back to the driver and the request was tried
 *         again; TCUDA_ERROR_INVALID_STATE: the pool is paused.
 */
tcuda_status_t tcuda_mem_pool_malloc(void **ptr, size_t size, tcuda_stream_t stream, tcuda_mem_pool_t pool);

/**
 * Waits for what was freed but is in use, then gives all free memory of a pool back to where it came from (torch: empty_cache with the
 * pool's id). tcuda_empty_cache leaves pools as they are.
 *
 * @return TCUDA_ERROR_INVALID_STATE: the pool is paused.
 */
tcuda_status_t tcuda_mem_pool_trim(tcuda_mem_pool_t pool);

/**
 * Waits for the device, then gives all memory of a pool back to the driver and keeps its addresses (vLLM's sleep mode). Until
 * tcuda_mem_pool_resume nothing may touch its blocks, and nothing is allocated from it; blocks may be freed. Work on them that another thread
 * begins during the call may be neither waited for nor refused. A pool that is paused stays so, whatever the mode. What is kept is blocks of the
 * cache of pinned memory, counted and limited as such; the device's memory does not grow while it is copied.
 *
 * @param pool  one whose segments come from the driver as virtual memory and are split.
 * @param given gets the bytes that went back.
 * @param mode  TCUDA_PAUSE_KEEP or TCUDA_PAUSE_DROP: what becomes of the contents of blocks in use.
 * @return TCUDA_ERROR_INVALID_HANDLE: it was destroyed, be it meanwhile; TCUDA_ERROR_NOT_SUPPORTED: not such a pool, or the device has no
 *         virtual memory; TCUDA_ERROR_INVALID_STATE: blocks of it are exported to other processes, or lent (use_on_oom) and in use;
 *         TCUDA_ERROR_OUT_OF_HOST_MEMORY and others: no pinned memory; TCUDA_ERROR_CAPTURE: something is captured on the device, which goes
 *         on. Then the pool goes on as it was, though what it had free may have gone back.
 */
tcuda_status_t tcuda_mem_pool_pause(tcuda_mem_pool_t pool,
                                    size_t *given,
                                    int32_t mode);

/**
 * Brings the memory of a paused pool back to its addresses, with what was kept; what others have free gives way to it. What was freed meanwhile
 * comes back only where it shares a piece of the driver's memory with what is in use. One that is not paused is left as it is.
 *
 * @return TCUDA_ERROR_OUT_OF_MEMORY: the device or the limit has not enough room, and the message says how much it takes; the pool stays paused
 *         and keeps what it kept.
 */
tcuda_status_t tcuda_mem_pool_resume(tcuda_mem_pool_t pool);

/**
 * The statistics of a pool alone.
 *
 * @param stats set struct_size before the call. num_ooms and the like count what the pool's own requests met.
 */
tcuda_status_t tcuda_mem_pool_stats(tcuda_mem_pool_t pool, tcuda_memory_stats_t *stats);

/**
 * How often the pool is open now, in all threads, and 1 for its handle (torch.cuda.MemPool.use_count): at 1 it can be destroyed, unless it is
 * paused with blocks in use.
 */
tcuda_status_t tcuda_mem_pool_use_count(tcuda_mem_pool_t pool,
                                        uint64_t *count);

/**
 * The number by which torch's tools know a pool: the pair (0, id) of torch.cuda.MemPool.id, in snapshots, keys of statistics and messages.
 */
tcuda_status_t tcuda_mem_pool_id(tcuda_mem_pool_t pool, uint64_t *id);

/* ==== Pluggable allocators ====================================================================================================
 * An allocator of the program's own gives the caches their segments (torch.cuda.memory.CUDAPluggableAllocator): it is asked for whole segments
 * of 2 MiB and more, rarely; what torch leaves to such an allocator (blocks, order between streams, statistics, snapshots, limits, what happens
 * when memory runs out) stays with tcuda. Its functions run on the thread that allocates, or that gives memory back, with the device current,
 * one at a time for each device; they must not ask tcuda for memory, or for what waits for it, and get TCUDA_ERROR_INVALID_STATE. What they
 * return is checked: NULL means that there is no memory; memory of another place, crooked, too small, or in the first MiB of addresses of a
 * block of tcuda's goes back to them, and the request fails.
 */

/**
 * Makes a pluggable allocator of two functions.
 *
 * @param allocator gets it; tcuda_pluggable_allocator_destroy ends it. It is used by tcuda_change_current_allocator or in the options of a pool.
 * @param alloc     not NULL.
 * @param free      not NULL.
 * @param user_data goes to each call.
 */
tcuda_status_t tcuda_pluggable_allocator_create(tcuda_pluggable_allocator_t *allocator,
                                                tcuda_segment_alloc_fn_t alloc,
                                                tcuda_segment_free_fn_t free,
                                                void *user_data);

/**
 * Loads a pluggable allocator from a shared library, by the names of its functions, which have torch's signatures:
 * `void *alloc(ssize_t size, int device, cudaStream_t stream)` and
 * `void free(void *ptr, ssize_t size, int device, cudaStream_t stream)`. Libraries that were made for torch work as they are. It stays
 * loaded for the life of the process.
 *
 * @param allocator  gets it; tcuda_pluggable_allocator_destroy ends it.
 * @param path       of the library, or a name that the loader finds.
 * @param alloc_name of the first of its functions.
 * @param free_name  of the second.
 * @return TCUDA_ERROR_SYSTEM: the loader cannot load it, with the loader's words; TCUDA_ERROR_INVALID_ARGUMENT: it has no such function.
 */
tcuda_status_t tcuda_pluggable_allocator_load(tcuda_pluggable_allocator_t *allocator,
                                              const char *path,
                                              const char *alloc_name,
                                              const char *free_name);

/**
 * Ends a pluggable allocator. Between tcuda_shutdown and tcuda_init it does nothing: the allocator lives on, as the current one if it was, and
 * needs its `user_data`.
 *
 * @return TCUDA_ERROR_INVALID_STATE: it is the current one or a pool's, or some of its segments are held.
 */
tcuda_status_t tcuda_pluggable_allocator_destroy(tcuda_pluggable_allocator_t allocator);

/**
 * Says where the caches of all devices take their next segments from (torch.cuda.memory.change_current_allocator). Unlike torch's it may
 * be called at any time: blocks in use stay what they are, and what is held already goes back to where it came from. Pools keep their
 * own.
 *
 * @param allocator NULL: the driver.
 */
tcuda_status_t tcuda_change_current_allocator(tcuda_pluggable_allocator_t allocator);

/**
 * What the devices' caches take memory from (torch.cuda.get_allocator_backend): `native`, `cudaMallocAsync`, or `pluggable` for an
 * allocator of tcuda_change_current_allocator; empty in a child of fork that is refused. Never freed, never fails.
 */
const char *tcuda_get_allocator_backend(void);

/* ==== PyTorch's allocator =====================================================================================================
 * What torch.cuda.memory.CUDAPluggableAllocator and its set_* functions take, so that PyTorch's device memory comes from tcuda:
 * examples_c/python/tcuda_torch.py installs all of them. Everything else of tcuda works beside them on the same memory: statistics, summary,
 * snapshots, history, limits. Only PyTorch is to call these functions. Memory that cannot be had becomes torch.OutOfMemoryError, with tcuda's
 * message.
 */

/**
 * CUDAPluggableAllocator's alloc_fn.
 *
 * @param size   bytes.
 * @param device of the stream.
 * @param stream NULL: the device's default stream.
 * @return the address. Where there is no memory it throws torch.OutOfMemoryError, other errors as RuntimeError; NULL where PyTorch is not
 *         loaded, with the message in the log.
 */
void *tcuda_torch_alloc(ptrdiff_t size, int32_t device, tcuda_stream_t stream);

/**
 * CUDAPluggableAllocator's free_fn. After tcuda_shutdown and in a child of fork it does nothing.
 */
void tcuda_torch_free(void *ptr, ptrdiff_t size, int32_t device, tcuda_stream_t stream);

/**
 * set_record_stream_fn: torch.Tensor.record_stream. Memory that is not tcuda's is left alone, as torch does.
 */
void tcuda_torch_record_stream(void *ptr, tcuda_stream_t stream);

/**
 * set_memory_fraction_fn: torch.cuda.set_per_process_memory_fraction.
 */
void tcuda_torch_set_memory_fraction(double fraction, int32_t device);

/**
 * set_reset_fn: torch.cuda.empty_cache.
 */
void tcuda_torch_empty_cache(void);

/**
 * set_begin_allocate_to_pool: a graph's capture begins, or torch.cuda.use_mem_pool. What the streams that `filter` names allocate comes
 * from that pool until tcuda_torch_end_allocate_to_pool.
 *
 * @param pool_first  the first half of torch's MempoolId_t.
 * @param pool_second the second one.
 * @param filter      `std::function<bool(cudaStream_t)>` of libstdc++, by reference. It is copied, and asked from any thread that allocates,
 *                    with a lock held. It must not throw, nor its copy and its destructor: no exception can pass through tcuda, and the
 *                    process ends. It must not call tcuda.
 */
void tcuda_torch_begin_allocate_to_pool(int32_t device,
                                        uint64_t pool_first,
                                        uint64_t pool_second,
                                        const void *filter);

/**
 * set_end_allocate_to_pool_fn.
 */
void tcuda_torch_end_allocate_to_pool(int32_t device, uint64_t pool_first, uint64_t pool_second);

/**
 * set_release_pool: a graph that used the pool is gone. With the last of them the pool's memory goes back, as its blocks are freed. After
 * tcuda_shutdown and in a child of fork it does nothing.
 */
void tcuda_torch_release_pool(int32_t device, uint64_t pool_first, uint64_t pool_second);

/* ==== History of device memory ================================================================================================
 * What happens in the caches of device memory can be recorded: each allocation and free, when memory came from the driver and went back,
 * and each failure, with its time, stream and the calling thread's annotation (torch.cuda.memory._record_memory_history). The newest
 * entries are kept, as many as asked for. tcuda_memory_snapshot reads them. An entry costs some nanoseconds while they are recorded, and
 * nothing else.
 */

/**
 * Says what is recorded from now on (torch.cuda.memory._record_memory_history). What was allocated before is in a snapshot, with no
 * entry of its own. A device's pools are recorded with it. It stops all threads that use the device for a moment, and waits while one of
 * them maps memory, so a host function of a stream may not call it. tcuda_shutdown ends it.
 *
 * @param enabled     TCUDA_HISTORY_OFF: nothing, and what was recorded is forgotten. TCUDA_HISTORY_STATE: what each block in use was
 *                    annotated with. TCUDA_HISTORY_ALL: also what happens, and when.
 * @param max_entries how many entries are kept for a device, the newest; UINT64_MAX: all (torch's default, which takes ever more memory of
 *                    the host; where it has none, entries are lost, and counted). An entry takes 48 bytes. 0 is an error with
 *                    TCUDA_HISTORY_ALL.
 * @param clear       forgets what was recorded before.
 * @param device      -1: the current one; TCUDA_DEVICE_ALL: all.
 */
tcuda_status_t tcuda_memory_record_history(int32_t enabled, uint64_t max_entries, bool clear, int32_t device);

/**
 * What the calling thread does from now on is for this: a text that its blocks and entries carry, until it says otherwise
 * (torch.cuda.memory._set_memory_metadata). Where the history is recorded the change is an entry of its own, `user_defined`, and in
 * torch's `external_annotations` the end of one and the start of another. Needs no device.
 *
 * @param annotation UTF-8, any length; NULL or empty: nothing in particular. Different texts are kept for as long as the process, a million
 *                   at most: leave out counters.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: no UTF-8. TCUDA_ERROR_INVALID_STATE: there are too many. The annotation is the one before then.
 */
tcuda_status_t tcuda_memory_annotate(const char *annotation);

/**
 * The calling thread's annotation (torch.cuda.memory._get_memory_metadata), to be set again after one of a part of the program's own; empty:
 * none. Never freed, never fails.
 */
const char *tcuda_memory_annotation(void);

/* ==== Snapshots of device memory ==============================================================================================
 * A snapshot holds what the caches hold, block by block, and what happened there as far as the history was recorded
 * (torch.cuda.memory._snapshot). It is taken of each device at one moment, while threads allocate, and does not change afterwards. A
 * program reads it by index, or writes it: as pickle for `python -m torch.cuda._memory_viz` and pytorch.org/memory_viz, as JSON, or as a
 * page that any browser opens with no network. docs/SNAPSHOTS.md says more.
 * An observer of failures (tcuda_register_oom_observer) and a pressure callback may take and write snapshots; the entry of the failure is
 * in it then. A host function of a stream may not.
 */

/**
 * Takes a snapshot (torch.cuda.memory._snapshot). All threads that use the device stop for a moment; nothing waits for the device.
 *
 * @param snapshot gets the handle; tcuda_snapshot_destroy ends it.
 * @param device   -1: the current one; TCUDA_DEVICE_ALL: all.
 * @return TCUDA_ERROR_OUT_OF_HOST_MEMORY: the host has no memory for a copy of the history.
 */
tcuda_status_t tcuda_memory_snapshot(tcuda_snapshot_t *snapshot, int32_t device);

/**
 * Ends a snapshot. It works after tcuda_shutdown too.
 */
tcuda_status_t tcuda_snapshot_destroy(tcuda_snapshot_t snapshot);

/**
 * How much is in a snapshot.
 *
 * @param info struct_size has to be set.
 */
tcuda_status_t tcuda_snapshot_info(tcuda_snapshot_t snapshot, tcuda_snapshot_info_t *info);

/**
 * A segment, by device and address.
 *
 * @param segment struct_size has to be set.
 * @param index   0 to the number of segments less 1.
 */
tcuda_status_t tcuda_snapshot_segment(tcuda_snapshot_t snapshot, tcuda_snapshot_segment_t *segment, uint64_t index);

/**
 * A block, by segment and address.
 *
 * @param block struct_size has to be set.
 * @param index 0 to the number of blocks less 1.
 */
tcuda_status_t tcuda_snapshot_block(tcuda_snapshot_t snapshot, tcuda_snapshot_block_t *block, uint64_t index);

/**
 * An entry of a device's history, the oldest first.
 *
 * @param entry  struct_size has to be set.
 * @param device a device, as it was when the snapshot was taken; -1: the current one.
 * @param index  0 up; TCUDA_ERROR_INVALID_ARGUMENT where there is none of it.
 */
tcuda_status_t tcuda_snapshot_entry(tcuda_snapshot_t snapshot, tcuda_snapshot_entry_t *entry, int32_t device, uint64_t index);

/**
 * A snapshot as bytes, made at the first call.
 *
 * @param data   gets the bytes, which stay until the snapshot is destroyed. JSON and HTML are UTF-8 with no zero byte behind them.
 * @param size   gets how many there are.
 * @param format TCUDA_SNAPSHOT_PICKLE (protocol 2), TCUDA_SNAPSHOT_JSON or TCUDA_SNAPSHOT_HTML.
 * @return TCUDA_ERROR_OUT_OF_HOST_MEMORY: the host has no memory for them; a file (tcuda_snapshot_write) needs none.
 */
tcuda_status_t tcuda_snapshot_data(tcuda_snapshot_t snapshot, const void **data, size_t *size, int32_t format);

/**
 * Writes a snapshot to a file, which is replaced when the new one is complete. What the process has open (/dev/stdout, /dev/fd/N) is written on.
 *
 * @param path UTF-8. Ends in .json: JSON; in .html: a page; else pickle, protocol 2.
 * @return TCUDA_ERROR_SYSTEM: the file cannot be written; tcuda_last_error_native has errno.
 */
tcuda_status_t tcuda_snapshot_write(tcuda_snapshot_t snapshot,
                                    const char *path);

/**
 * Takes a snapshot of all devices and writes it to a file (torch.cuda.memory._dump_snapshot): tcuda_memory_snapshot and
 * tcuda_snapshot_write.
 */
tcuda_status_t tcuda_memory_dump_snapshot(const char *path);

/* ==== Copies ==================================================================================================================
 * Between any two places: pageable host memory, pinned host memory, devices; where an address lies is found out. A size of 0 is success
 * whatever the pointers are. A pointer that is NULL, or a range that wraps around, is TCUDA_ERROR_INVALID_ARGUMENT; one that
 * lies, or a range that ends, where neither host nor device has memory is TCUDA_ERROR_INVALID_POINTER, as far as that can be told; so is a
 * range that reaches past the end of its block of tcuda's cache. Ranges of device memory that overlap are TCUDA_ERROR_INVALID_ARGUMENT, but for
 * a range onto itself, of which nothing is done. A block of a memory pool that is paused is TCUDA_ERROR_INVALID_STATE. Blocks that are freed
 * while a copy is under way are reused only when it is done.
 */

/**
 * Copies on the current stream of the device concerned (torch's Tensor.copy_(src, non_blocking) for plain bytes).
 *
 * Between two devices it runs on the current stream of the source's device (cudaMemcpyPeerAsync, with or without access), after what the
 * current stream of the destination's device has got before, which in turn waits for the copy. Copies on devices never make the host
 * wait. Between device and host it returns when the copy is complete, unless `non_blocking`. Into pageable memory it is complete on
 * return in any case; out of pageable memory it may have been staged only. Host to host is done at once; the ranges may overlap.
 *
 * @param dst             where to.
 * @param src             where from.
 * @param size            bytes.
 * @param non_blocking    whether to return before pinned memory was written or read; it has to stay until the stream has come past it.
 * @return TCUDA_ERROR_CAPTURE: for pageable memory while the stream is being captured, which goes on without the copy.
 */
tcuda_status_t tcuda_copy(void *dst, const void *src, size_t size, bool non_blocking);

/**
 * Enqueues a copy on a stream (cudaMemcpyAsync with cudaMemcpyDefault). It does not wait, but for pageable host memory: into that it returns
 * when all that the stream has is done, the copy too; out of it when CUDA has copied or staged the bytes. Pinned memory has to stay until the
 * stream has come past the copy, and so has pageable memory where the device uses that by itself (pageable_memory_access) and CUDA need not
 * wait. A block of another device than the stream's is not kept from being reused when it is freed meanwhile: tcuda_copy does that.
 *
 * @param dst       where to.
 * @param src       where from.
 * @param size      bytes.
 * @param stream    of any device; NULL is the default stream of the source's device, else of the destination's, else of the current one.
 * @return TCUDA_ERROR_CAPTURE: for pageable memory while the stream is being captured, which goes on without the copy.
 */
tcuda_status_t tcuda_copy_async(void *dst,
                                const void *src,
                                size_t size,
                                tcuda_stream_t stream);

/**
 * Enqueues the setting of bytes of device or pinned memory (cudaMemsetAsync).
 *
 * @param dst       where.
 * @param value     its low byte is written.
 * @param size      bytes.
 * @param stream    of the memory's device (for pinned and managed memory of any device); NULL is the default stream there.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: also where dst is pageable host memory, or the stream is of another device.
 */
tcuda_status_t tcuda_memset_async(void *dst, int32_t value, size_t size, tcuda_stream_t stream);

/* ==== Tensors =================================================================================================================
 * A tcuda_tensor_t has the layout of DLPack's DLTensor, a tcuda_managed_tensor_t that of DLManagedTensorVersioned (version 1): the tensors of other
 * libraries pass with a cast. A tensor that comes in is only looked at: any strides that are not negative where there is a second element (NULL:
 * packed), up to 64 dimensions, one lane, elements of 8, 16, 32, 64 or 128 bits, byte_offset honoured; on the CPU (1), a CUDA device (2), in pinned
 * (3) or managed memory (13). Simulated devices are of type 2 too. What is wrong with it is TCUDA_ERROR_INVALID_ARGUMENT, what tcuda cannot do with
 * it TCUDA_ERROR_NOT_SUPPORTED. A tensor that a function makes comes out managed; tcuda_tensor_destroy, or its deleter, ends it from any thread.
 * Work runs on the tensors' device, whatever device is current, and a NULL stream is that device's default stream; on CPU tensors it is done at
 * once, with no device needed (except after tcuda_shutdown and in a forked child, as everything). Data that is not where its tensor says is
 * TCUDA_ERROR_INVALID_ARGUMENT, and TCUDA_ERROR_INVALID_POINTER where no memory is; a tensor that is handed back as it is is not looked at. Blocks
 * of tcuda's cache that are freed while work is under way are reused only when it is done.
 */

/**
 * Makes an uninitialised tensor (torch.empty): packed, the last dimension fastest, its data aligned to 256 bytes.
 *
 * @param out       gets the tensor; tcuda_tensor_destroy ends it.
 * @param device    an index, -1 for the current device, TCUDA_DEVICE_CPU for pageable host memory.
 * @param dtype     the type of the elements: a type code of DLPack 1.1 but opaque handles, bool of 8 bits.
 * @param ndim      0 (a tensor of one element) to 64.
 * @param shape     ndim sizes; with a 0 among them there is no memory, and data is NULL.
 * @param stream    on which the memory is used first, as in tcuda_malloc_cached.
 * @return TCUDA_ERROR_OUT_OF_MEMORY, TCUDA_ERROR_OUT_OF_HOST_MEMORY; TCUDA_ERROR_INVALID_ARGUMENT: also for a stream of another device.
 */
tcuda_status_t tcuda_tensor_empty(tcuda_managed_tensor_t **out,
                                  int32_t device,
                                  tcuda_dtype_t dtype,
                                  int32_t ndim,
                                  const int64_t *shape,
                                  tcuda_stream_t stream);

/**
 * Makes an uninitialised tensor with the place, type and shape of another (torch.empty_like). Where the other's elements lie without gaps
 * the strides are its own too, else packed in the order of its strides.
 *
 * @param out       gets the tensor; tcuda_tensor_destroy ends it.
 * @param tensor    the model.
 * @param stream    on which the memory is used first.
 */
tcuda_status_t tcuda_tensor_empty_like(tcuda_managed_tensor_t **out, const tcuda_tensor_t *tensor, tcuda_stream_t stream);

/**
 * Sets every element to one value (torch's Tensor.fill_).
 *
 * @param tensor    any strides, but no two indices may mean one element; only stride 0 is noticed.
 * @param value     one element of the type dtype, in host memory; read before the call returns.
 * @param dtype     need not be the tensor's type: the value is converted as by torch.
 * @param stream    of the tensor's device.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: also where the tensor's type cannot hold the value ("value 300 cannot be converted to type uint8
 * without overflow").
 */
tcuda_status_t tcuda_tensor_fill(const tcuda_tensor_t *tensor, const void *value, tcuda_dtype_t dtype, tcuda_stream_t stream);

/**
 * Copies one tensor into another: any two places, any strides, any types (torch's Tensor.copy_).
 *
 * The shape of the source is broadcast to the destination's: counted from the last, sizes are the same or 1. Types are converted as by
 * torch: a fraction is cut off; to bool, whatever is not zero is true; of a complex number the real part stays (to bool: either part);
 * the half types are reached by way of float. What C++ leaves undefined is the same here on every device and in the simulation: a float
 * outside of the range of an integer of 32 or 64 bits gives the nearest one (NaN: no value to count on); narrower integers get the low
 * bits of a 32-bit one, uint8 those of a 64-bit one.
 *
 * On one device the host never waits. With the CPU on one side the call returns when the copy is complete, except with non_blocking; into
 * pageable memory it is complete on return in any case. Between two devices it runs on the source's stream, after what the destination's
 * stream has got before, which in turn waits for it.
 *
 * @param dst             any strides, but no two indices may mean one element; only stride 0 is noticed.
 * @param src             may not overlap dst, unless it is the same.
 * @param non_blocking    whether to return before pinned memory was written or read.
 * @param stream          of the device. NULL is the default stream, TCUDA_STREAM_CURRENT the current one; with two devices this means both
 *                        of them, while a stream of one of the two leaves its current stream to the other.
 * @return TCUDA_ERROR_NOT_SUPPORTED: a type that is not known to arithmetic (without conversion it is copied), or more than 25 dimensions
 * that cannot be joined.
 */
tcuda_status_t tcuda_tensor_copy(const tcuda_tensor_t *dst,
                                 const tcuda_tensor_t *src,
                                 bool non_blocking,
                                 tcuda_stream_t stream);

/**
 * A tensor on another device, of another type, or both, with the order of the input's dimensions (torch's Tensor.to).
 *
 * @param out             gets the tensor; tcuda_tensor_destroy ends it, whatever its origin is.
 * @param origin          may be NULL; gets TCUDA_TENSOR_NEW, or TCUDA_TENSOR_INPUT where device and type are right already and copy is
 *                        false: then out owns nothing, and the input's memory has to outlive it.
 * @param tensor          the input.
 * @param device          an index, -1 for the current device, TCUDA_DEVICE_CPU, or TCUDA_DEVICE_SAME for that of the tensor.
 * @param dtype           all zero for that of the tensor.
 * @param non_blocking    as in tcuda_tensor_copy; what goes to the CPU goes into pageable memory and is complete on return.
 * @param copy            whether to make a new tensor in any case.
 * @param stream          as in tcuda_tensor_copy; the new tensor's memory is used first on its device's stream.
 * @return TCUDA_ERROR_OUT_OF_MEMORY, TCUDA_ERROR_OUT_OF_HOST_MEMORY, and all that tcuda_tensor_copy returns.
 */
tcuda_status_t tcuda_tensor_to(tcuda_managed_tensor_t **out,
                               tcuda_tensor_origin_t *origin,
                               const tcuda_tensor_t *tensor,
                               int32_t device,
                               tcuda_dtype_t dtype,
                               bool non_blocking,
                               bool copy,
                               tcuda_stream_t stream);

/**
 * A copy of a CPU tensor in pinned host memory (torch's Tensor.pin_memory), a block of tcuda_host_malloc_cached, from and to which a device
 * copies while the host goes on. It may be destroyed before tcuda's copies of it are done; other work that uses it is made known with
 * tcuda_host_record_stream, or has to be done before.
 *
 * @param out       gets the tensor; tcuda_tensor_destroy ends it, whatever its origin is.
 * @param origin    may be NULL; as in tcuda_tensor_to: TCUDA_TENSOR_INPUT where the tensor is pinned already.
 * @param tensor    the input.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: also for a tensor that is on a device. TCUDA_ERROR_OUT_OF_HOST_MEMORY.
 */
tcuda_status_t tcuda_tensor_pin(tcuda_managed_tensor_t **out, tcuda_tensor_origin_t *origin, const tcuda_tensor_t *tensor);

/**
 * What a tensor that a function handed out is to the tensor that it was made from.
 *
 * @param tensor    one of tcuda's.
 * @param origin    gets the answer.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: also for a tensor of another producer.
 */
tcuda_status_t tcuda_tensor_origin(const tcuda_managed_tensor_t *tensor, tcuda_tensor_origin_t *origin);

/**
 * Ends a tensor by calling its deleter: tcuda's, or that of any other producer of DLPack tensors. NULL succeeds. After tcuda_shutdown the
 * memory is gone already, and only what describes it is freed.
 *
 * It is called once for a tensor. A second call is not found out, as the tensor may be another library's: it is read, and its deleter
 * called, where by now other memory is, and the program may crash. tcuda::tensor of tcuda.hpp calls it once.
 *
 * @param tensor    the tensor.
 */
tcuda_status_t tcuda_tensor_destroy(tcuda_managed_tensor_t *tensor);

/* ==== Generators of random numbers ============================================================================================
 * A generator is torch.Generator of a CUDA device: a seed and an offset, of which kernels make numbers by Philox 4x32-10. Each device has
 * a default one, and NULL means it: that of the tensor's or stream's device, or of the current device where there is neither. Nobody can
 * foretell its seed, unless it was given one before its first use.
 * tcuda_manual_seed, tcuda_seed, tcuda_set_rng_state and their forms for all devices look for no device. Before the first call that does,
 * they succeed and wait for it; then they are done in the order in which they were called (torch does seeds last), and the current device
 * is the one that was current on the thread of that first call. Without a device they go on waiting. A child of fork has its own copy.
 * Several threads may draw from one generator: each call gets numbers of its own, in the order in which the calls come. A host function
 * of a stream may not use generators. docs/RANDOM.md says more.
 */

/**
 * Makes a generator with torch's first seed, 67280421310721, and the offset 0 (torch.Generator).
 *
 * @param generator gets the handle; tcuda_generator_destroy ends it.
 * @param device    -1: the current one. It draws for work of this device only.
 */
tcuda_status_t tcuda_generator_create(tcuda_generator_t *generator, int32_t device);

/**
 * Ends a generator. What was launched with its numbers is not concerned.
 *
 * @return TCUDA_ERROR_INVALID_STATE: it is the default one of a device.
 */
tcuda_status_t tcuda_generator_destroy(tcuda_generator_t generator);

/**
 * Makes a generator that goes on from where another one is, by itself: same device, seed, offset and geometry (torch: clone_state).
 *
 * @param clone gets the handle; tcuda_generator_destroy ends it.
 */
tcuda_status_t tcuda_generator_clone(tcuda_generator_t *clone, tcuda_generator_t generator);

/**
 * The default generator of a device (torch.cuda.default_generators). It is not destroyed; its handle is always the same.
 */
tcuda_status_t tcuda_default_generator(tcuda_generator_t *generator, int32_t device);

/**
 * The device that a generator is of.
 */
tcuda_status_t tcuda_generator_device(tcuda_generator_t generator, int32_t *device);

/**
 * Sets the seed, and the offset to 0. A negative seed of Python is the same 64 bits.
 *
 * @return TCUDA_ERROR_CAPTURE, here and for the state and the offset: a graph that draws from it is being captured, and this is not the seed
 *         that it has, which changes nothing then.
 */
tcuda_status_t tcuda_generator_manual_seed(tcuda_generator_t generator,
                                           uint64_t seed);

/**
 * Sets a seed that nobody can foretell, and the offset to 0.
 *
 * @param seed gets it: 53 bits, so that a double holds it.
 */
tcuda_status_t tcuda_generator_seed(tcuda_generator_t generator, uint64_t *seed);

/**
 * The seed that a generator has now.
 */
tcuda_status_t tcuda_generator_initial_seed(tcuda_generator_t generator, uint64_t *seed);

/**
 * The state of a generator as torch writes it: 16 bytes, the seed and the offset as 64-bit integers in little endian. The geometry is no
 * part of it.
 *
 * @param state gets the 16 bytes.
 * @param size  bytes that are there.
 * @return TCUDA_ERROR_BUFFER_TOO_SMALL: fewer than 16.
 */
tcuda_status_t tcuda_generator_get_state(tcuda_generator_t generator, uint8_t *state, size_t size);

/**
 * Sets the state of a generator.
 *
 * @param state of tcuda_generator_get_state or of torch.
 * @param size  16; or 8 for the older form, which is the seed alone and means the offset 0.
 */
tcuda_status_t tcuda_generator_set_state(tcuda_generator_t generator, const uint8_t *state, size_t size);

/**
 * The offset: how many 32-bit numbers each thread of a launch has drawn since the seed was set.
 */
tcuda_status_t tcuda_generator_get_offset(tcuda_generator_t generator, uint64_t *offset);

/**
 * Sets the offset and keeps the seed.
 *
 * @param offset a multiple of 4.
 */
tcuda_status_t tcuda_generator_set_offset(tcuda_generator_t generator, uint64_t offset);

/**
 * The geometry that a generator draws by.
 *
 * @param geometry        gets TCUDA_GEOMETRY_DEVICE, TCUDA_GEOMETRY_NAMED or TCUDA_GEOMETRY_PORTABLE.
 * @param multiprocessors gets what tcuda_generator_set_geometry takes to have the same numbers on another device; 0 where all have them.
 * @param threads         likewise: of each multiprocessor.
 */
tcuda_status_t tcuda_generator_get_geometry(tcuda_generator_t generator, int32_t *geometry, int32_t *multiprocessors, int32_t *threads);

/**
 * Chooses which numbers a generator makes of a seed and an offset (torch has only its own device's). torch's kernels start as many threads
 * as the device runs at once, so that large tensors get other numbers on another kind of device.
 *
 * @param geometry        TCUDA_GEOMETRY_DEVICE: torch's numbers on the generator's device, the default. TCUDA_GEOMETRY_NAMED: torch's
 *                        numbers on a device that has so many multiprocessors with so many threads. TCUDA_GEOMETRY_PORTABLE: the same
 *                        numbers everywhere, which are not torch's.
 * @param multiprocessors of the device that is named, 1 to 4096; with another geometry it does not matter.
 * @param threads         of each of its multiprocessors, 256 to 8192; likewise.
 */
tcuda_status_t tcuda_generator_set_geometry(tcuda_generator_t generator, int32_t geometry, int32_t multiprocessors, int32_t threads);

/**
 * The numbers of a well-known GPU for TCUDA_GEOMETRY_NAMED.
 *
 * @param name A100, A10G, B200, H100 PCIe, H100 SXM, H200, L40S, T4 or V100, in any case.
 */
tcuda_status_t tcuda_generator_geometry_of(int32_t *multiprocessors, int32_t *threads, const char *name);

/**
 * Takes numbers for one launch of a program's own kernel, which makes them with tcuda/philox.cuh. Call it right before the launch: the
 * numbers are taken even if the launch fails.
 *
 * @param state     gets what is passed to the kernel, by value.
 * @param generator NULL: the default one of the stream's device.
 * @param increment how many 32-bit numbers each thread of the launch draws at most; rounded up to a multiple of 4.
 * @param stream    where the kernel is launched, of the generator's device.
 * @return TCUDA_ERROR_CAPTURE: the stream is being captured by another library. TCUDA_ERROR_INVALID_ARGUMENT: the offset would not fit 64 bits.
 */
tcuda_status_t tcuda_generator_philox_state(tcuda_philox_state_t *state,
                                            tcuda_generator_t generator,
                                            uint64_t increment,
                                            tcuda_stream_t stream);

/**
 * The state of a device's default generator (torch.cuda.get_rng_state), as of tcuda_generator_get_state.
 *
 * @param state  gets 16 bytes.
 * @param size   bytes that are there.
 * @param device -1: the current one.
 */
tcuda_status_t tcuda_get_rng_state(uint8_t *state, size_t size, int32_t device);

/**
 * Sets the state of a device's default generator (torch.cuda.set_rng_state). Before the first use it waits, and the state is copied; an
 * index that no device turns out to have is reported in the log then.
 *
 * @param size   16, or 8 for the older form: see tcuda_generator_set_state.
 * @param device -1: the current one; TCUDA_DEVICE_ALL: all.
 */
tcuda_status_t tcuda_set_rng_state(const uint8_t *state, size_t size, int32_t device);

/**
 * The states of all default generators (torch.cuda.get_rng_state_all).
 *
 * @param states gets 16 bytes for each device, one behind the other.
 * @param size   bytes that are there.
 * @return TCUDA_ERROR_BUFFER_TOO_SMALL: fewer than 16 for each of tcuda_device_count.
 */
tcuda_status_t tcuda_get_rng_state_all(uint8_t *states, size_t size);

/**
 * Sets the states of the default generators of devices 0, 1 and so on, of all or none (torch.cuda.set_rng_state_all).
 *
 * @param states of tcuda_get_rng_state_all.
 * @param size   16 for each device; those that none is left for keep theirs.
 */
tcuda_status_t tcuda_set_rng_state_all(const uint8_t *states, size_t size);

/**
 * Sets the seed of the current device's default generator, and its offset to 0 (torch.cuda.manual_seed). Before the first use it waits.
 */
tcuda_status_t tcuda_manual_seed(uint64_t seed);

/**
 * The same for the default generators of all devices (torch.cuda.manual_seed_all).
 */
tcuda_status_t tcuda_manual_seed_all(uint64_t seed);

/**
 * Sets a seed that nobody can foretell (torch.cuda.seed). Before the first use it waits.
 *
 * @param seed gets it.
 */
tcuda_status_t tcuda_seed(uint64_t *seed);

/**
 * Sets one such seed for the default generators of all devices (torch.cuda.seed_all).
 *
 * @param seed gets it.
 */
tcuda_status_t tcuda_seed_all(uint64_t *seed);

/**
 * The seed that the current device's default generator has now (torch.cuda.initial_seed).
 */
tcuda_status_t tcuda_initial_seed(uint64_t *seed);

/* ==== Random numbers in tensors ===============================================================================================
 * Each function fills a tensor on a CUDA device with numbers of the generator (NULL: the default one of the tensor's device), bit for bit
 * those that torch 2.11 makes there for the same seed, offset, shape, strides and type, and leaves the generator at the same offset; only
 * the permutation has an order of its own. torch's numbers depend on the device that it runs on; tcuda_generator_set_geometry makes a
 * generator draw as on another device, or in the portable order, which no device changes. The simulated device makes the same bits.
 * The tensor: any strides; elements of the types that the function names, no two of them at one place. One without elements is left as it
 * is and nothing is drawn. The work is done on `stream` (NULL: the default stream of the tensor's device), in order with what is there,
 * and does not block. Nothing is drawn from the generator if the call fails.
 * All of them can fail with TCUDA_ERROR_NOT_SUPPORTED (the type of the elements, a tensor on the CPU), TCUDA_ERROR_INVALID_ARGUMENT (a
 * parameter, the tensor, a generator of another device), TCUDA_ERROR_INVALID_HANDLE (no generator), TCUDA_ERROR_CAPTURE (the stream is
 * being captured by another library; a graph of tcuda draws anew in each replay).
 */

/**
 * Numbers of [from, to), each as likely as the other (torch: uniform_; rand is that of 0 and 1).
 *
 * @param out  of floats of 16 to 64 bits, bfloat16, or complex numbers (both parts are drawn).
 * @param from at most `to`; both and their difference have to be finite in the tensor's type.
 */
tcuda_status_t tcuda_random_uniform(const tcuda_tensor_t *out,
                                    double from,
                                    double to,
                                    tcuda_generator_t generator,
                                    tcuda_stream_t stream);

/**
 * Numbers of the normal distribution (torch: normal_; randn is that of 0 and 1).
 *
 * @param out of floats of 16 to 64 bits, bfloat16, or complex numbers (each part gets the mean, and half of the variance).
 * @param std the standard deviation, at least 0.
 */
tcuda_status_t tcuda_random_normal(const tcuda_tensor_t *out,
                                   double mean,
                                   double std,
                                   tcuda_generator_t generator,
                                   tcuda_stream_t stream);

/**
 * Integers from `low` to `high` - 1 (torch: random_ with two bounds, randint). As in torch they are remainders of random words, of 64 bits
 * from 2^28 numbers on: with r numbers the least ones are more likely by at most r / 2^32, or r / 2^64.
 *
 * @param out  of any real type or bool. For a float, a bound that its type does not have moves inside.
 * @param low  less than `high`; both `low` and `high` - 1 have to be in the type's range.
 */
tcuda_status_t tcuda_random_integers(const tcuda_tensor_t *out,
                                     int64_t low,
                                     int64_t high,
                                     tcuda_generator_t generator,
                                     tcuda_stream_t stream);

/**
 * Integers from `low` to the largest of the type, or, of a float, to 2^p where p are the bits of its significand (torch: random_ with one
 * bound, and None for the other).
 *
 * @param low INT64_MIN: all numbers of 64 bits, for int64, float32, float64 and bfloat16.
 */
tcuda_status_t tcuda_random_integers_from(const tcuda_tensor_t *out,
                                          int64_t low,
                                          tcuda_generator_t generator,
                                          tcuda_stream_t stream);

/**
 * Integers from 0 to the largest of the type, or, of a float, to 2^p where p are the bits of its significand (torch: random_ without
 * bounds).
 */
tcuda_status_t tcuda_random_integers_all(const tcuda_tensor_t *out, tcuda_generator_t generator, tcuda_stream_t stream);

/**
 * 1 with the probability `p`, else 0 (torch: bernoulli_ with a number).
 *
 * @param out of any real type or bool.
 * @param p   0 to 1.
 */
tcuda_status_t tcuda_random_bernoulli(const tcuda_tensor_t *out, double p, tcuda_generator_t generator, tcuda_stream_t stream);

/**
 * 1 or 0, each element with a probability of its own (torch: bernoulli, and bernoulli_ with a tensor). The offset grows by 12, whatever
 * the size is (also 0, as in torch).
 *
 * @param out of any real type or bool.
 * @param p   the probabilities: a tensor of floats on the same device that can be broadcast to the shape of `out`. torch asserts on the
 *            device that they are from 0 to 1; here less is as 0, more as 1, and what is no number as 0. It may
 *            share memory with `out` only where both have the same elements at the same places.
 */
tcuda_status_t tcuda_random_bernoulli_tensor(const tcuda_tensor_t *out,
                                             const tcuda_tensor_t *p,
                                             tcuda_generator_t generator,
                                             tcuda_stream_t stream);

/**
 * Numbers of the exponential distribution, with the mean 1 / lambda; never 0 (torch: exponential_).
 *
 * @param out    of floats of 16 to 64 bits, or bfloat16.
 * @param lambda the rate, above 0.
 */
tcuda_status_t tcuda_random_exponential(const tcuda_tensor_t *out,
                                        double lambda,
                                        tcuda_generator_t generator,
                                        tcuda_stream_t stream);

/**
 * Numbers whose logarithm is normal, with that mean and deviation (torch: log_normal_).
 *
 * @param out of floats of 16 to 64 bits, or bfloat16.
 * @param std above 0.
 */
tcuda_status_t tcuda_random_log_normal(const tcuda_tensor_t *out,
                                       double mean,
                                       double std,
                                       tcuda_generator_t generator,
                                       tcuda_stream_t stream);

/**
 * Numbers of the Cauchy distribution (torch: cauchy_).
 *
 * @param out   of floats of 16 to 64 bits, or bfloat16.
 * @param sigma half the width at half the height, above 0.
 */
tcuda_status_t tcuda_random_cauchy(const tcuda_tensor_t *out,
                                   double median,
                                   double sigma,
                                   tcuda_generator_t generator,
                                   tcuda_stream_t stream);

/**
 * How many trials it takes until one of probability `p` succeeds: 1 or more (torch: geometric_). As in torch, of floats it is 0 once in
 * 30 million times, and what the type cannot hold is whatever CUDA's conversion makes of it.
 *
 * @param out of any real type.
 * @param p   above 0, below 1.
 */
tcuda_status_t tcuda_random_geometric(const tcuda_tensor_t *out, double p, tcuda_generator_t generator, tcuda_stream_t stream);

/**
 * The numbers 0 to n - 1 in random order, where n is the size of the tensor (torch: randperm, with an order of its own: nothing is sorted,
 * and no memory is needed beside the result). Up to 1,024 numbers every order is as likely as every other. The offset grows by 4.
 *
 * @param out of one dimension, and any real type that holds all the numbers.
 */
tcuda_status_t tcuda_random_permutation(const tcuda_tensor_t *out, tcuda_generator_t generator, tcuda_stream_t stream);

/* ==== Graphs ==================================================================================================================
 * What streams are given is captured once, and replayed many times at the cost of one call (torch.cuda.CUDAGraph). From
 * tcuda_graph_capture_begin to tcuda_graph_capture_end nothing of it is done. Streams that wait for an event of the captured stream take
 * part, and have to be waited for by it before the end. A replay does the same to the same addresses, so what the graph reads has to be
 * there, and what it writes is there until the next replay.
 * Memory that is allocated on these streams meanwhile comes from the graph's private pool, which stays as it is for as long as a graph uses it;
 * graphs may share one, and are then replayed one after the other, in the order in which they were captured where one reads what another one
 * left. Pinned memory that they use, or that the capturing thread allocates, is not used again before the graph is reset, also if it is freed.
 * A capture may hold copies and fills between device and pinned memory, kernels, host functions, events. What waits, or asks how far the device
 * is, ends it, and so does the legacy default stream beside a blocking stream that is captured: then every call on its streams answers
 * TCUDA_ERROR_CAPTURE, and tcuda_graph_capture_end names what did it, if that was a call of tcuda. However a capture ends, also by the end of
 * its thread or the destruction of its graph or one of its streams, its streams and memory are usable afterwards.
 */

/**
 * Makes a graph with nothing in it (torch.cuda.CUDAGraph).
 *
 * @param graph gets the graph; tcuda_graph_destroy ends it.
 * @param flags 0, or TCUDA_GRAPH_KEEP: what was captured is kept, and made ready for replays when that is asked for, or TCUDA_GRAPH_DEBUG:
 *              it is made ready at once, and kept for tcuda_graph_debug_dump.
 */
tcuda_status_t tcuda_graph_create(tcuda_graph_t *graph, uint32_t flags);

/**
 * The stream to capture on if there is no other: one for each device (torch's default capture stream, which torch has on one device only).
 *
 * @param stream gets a stream of tcuda_stream_create, which stays tcuda's.
 * @param device -1: the current one.
 */
tcuda_status_t tcuda_graph_capture_stream(tcuda_stream_t *stream, int32_t device);

/**
 * Begins to capture a stream (CUDAGraph.capture_begin, cudaStreamBeginCapture). Until the end threads keep no memory to themselves.
 *
 * @param stream no default stream. It need not be the current one.
 * @param pool   all zero for a pool of the graph's own, or that of tcuda_graph_pool or tcuda_graph_pool_handle, to share it.
 * @param mode   whose calls CUDA forbids meanwhile where they may disturb a capture (cudaStreamCaptureMode): TCUDA_CAPTURE_GLOBAL: every
 *               thread's; TCUDA_CAPTURE_THREAD_LOCAL: this thread's; TCUDA_CAPTURE_RELAXED: nobody's, and any thread may end it.
 * @return TCUDA_ERROR_INVALID_STATE: the graph holds something, or the thread is ending, and could not end the capture;
 *         TCUDA_ERROR_INVALID_ARGUMENT: a default stream, a pool that is none or of another device; TCUDA_ERROR_CAPTURE: the stream is being
 *         captured.
 */
tcuda_status_t tcuda_graph_capture_begin(tcuda_graph_t graph,
                                         tcuda_stream_t stream,
                                         tcuda_pool_id_t pool,
                                         int32_t mode);

/**
 * Ends the capture (CUDAGraph.capture_end), and makes it ready for replays unless the graph keeps it.
 *
 * @return TCUDA_ERROR_CAPTURE: something spoilt it, which the message names, or a stream was not joined; the capture is over and the graph
 *         holds nothing. Or the capture is another thread's, and goes on. Other errors are those of making it ready: the capture is kept, and
 *         tcuda_graph_instantiate tries again.
 */
tcuda_status_t tcuda_graph_capture_end(tcuda_graph_t graph);

/**
 * Makes a capture that was kept ready for replays (CUDAGraph.instantiate), anew if it was: it does what it captured, whatever it was updated to.
 *
 * @return TCUDA_ERROR_INVALID_STATE: nothing was captured, or it was not kept.
 */
tcuda_status_t tcuda_graph_instantiate(tcuda_graph_t graph);

/**
 * From the next replay on a graph does what another one captured and kept, if that differs in arguments only (cudaGraphExecUpdate). It then
 * uses the other one's pool as well; that of an update before goes when the replays are over that it was for.
 *
 * @return TCUDA_ERROR_INVALID_ARGUMENT: it differs in more, and nothing has changed. TCUDA_ERROR_INVALID_STATE: the graph is not ready for
 *         replays, or the other one kept no capture.
 */
tcuda_status_t tcuda_graph_update(tcuda_graph_t graph, tcuda_graph_t from);

/**
 * Enqueues all that was captured (CUDAGraph.replay, cudaGraphLaunch), made ready first if it was not.
 *
 * @param stream any of the graph's device; NULL: its default stream.
 * @return TCUDA_ERROR_CAPTURE: the stream is being captured, and CUDA takes no graph into another one so; or, rarely, nothing but the device
 *         tells that an earlier replay is over, and something is captured there. The capture goes on.
 */
tcuda_status_t tcuda_graph_replay(tcuda_graph_t graph,
                                  tcuda_stream_t stream);

/**
 * Ends what is captured or being captured (CUDAGraph.reset): the graph is as new. Replays that were begun go on, and what they use stays until
 * they are over; then the pool goes back, if no other graph uses it, but for blocks in use.
 *
 * @return TCUDA_ERROR_CAPTURE: it is being captured by another thread, in a mode that is not relaxed; nothing has changed.
 */
tcuda_status_t tcuda_graph_reset(tcuda_graph_t graph);

/**
 * Ends a graph, as tcuda_graph_reset does. Graphs may be destroyed in any order.
 */
tcuda_status_t tcuda_graph_destroy(tcuda_graph_t graph);

/**
 * The pool of a graph, to share it (CUDAGraph.pool).
 *
 * @return TCUDA_ERROR_INVALID_STATE: nothing was captured yet.
 */
tcuda_status_t tcuda_graph_pool(tcuda_graph_t graph, tcuda_pool_id_t *pool);

/**
 * A pool for graphs to share that has no graph yet (torch.cuda.graph_pool_handle). There is nothing to give back.
 */
tcuda_status_t tcuda_graph_pool_handle(tcuda_pool_id_t *pool);

/**
 * The statistics of a graph pool alone, which count in the device's too. reserved_bytes is what its graphs cost.
 *
 * @param stats set struct_size before the call.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: there is no such pool, or no graph uses it any more.
 */
tcuda_status_t tcuda_graph_pool_stats(tcuda_memory_stats_t *stats, tcuda_pool_id_t pool);

/**
 * CUDA's own handles (CUDAGraph.raw_cuda_graph, raw_cuda_graph_exec). They stay tcuda's, and are gone with a reset. A program that launches
 * one itself has no random numbers in it: only tcuda_graph_replay says where they begin.
 *
 * @param captured gets the cudaGraph_t; NULL if it was not kept.
 * @param exec     gets the cudaGraphExec_t; NULL if it is not ready for replays.
 */
tcuda_status_t tcuda_graph_native(tcuda_graph_t graph, void **captured, void **exec);

/**
 * Writes what was captured and kept to a file, for Graphviz (CUDAGraph.debug_dump, cudaGraphDebugDotPrint).
 *
 * @param path UTF-8.
 * @return TCUDA_ERROR_INVALID_STATE: nothing was captured, or it was not kept. TCUDA_ERROR_SYSTEM: the file cannot be written; the native code
 *         is errno.
 */
tcuda_status_t tcuda_graph_debug_dump(tcuda_graph_t graph,
                                      const char *path);

/**
 * Whether a stream is being captured, by tcuda or by another library. False before there is a device. Spoils no capture.
 */
tcuda_status_t tcuda_stream_is_capturing(tcuda_stream_t stream, bool *capturing);

/**
 * The same for the current stream of the current device (torch.cuda.is_current_stream_capturing). False also on failure.
 */
bool tcuda_is_current_stream_capturing(void);

/* ==== Graphed callables =======================================================================================================
 * Functions of the program that give work to a stream, captured once and then called by a replay (torch.cuda.make_graphed_callables): a model's
 * forward passes in order, its backward passes behind them, an optimizer's step. All share one pool of memory.
 */

/**
 * Captures functions for calls by replay. Each runs `warmups` times on a stream of tcuda's own, all in their order, and then once more for the
 * capture, in which it only notes what it does (torch's make_graphed_callables). What is allocated in the capture comes from the pool that all of
 * them share. No function may wait for the device or do what cannot be captured otherwise: the error names the function and, where it was one of
 * tcuda's, the call.
 *
 * @param graphed      gets them; tcuda_graphed_callable_destroy ends them.
 * @param callables    in the order in which they will be called: forward passes, then the backward passes in reverse, for example.
 * @param warmups      runs before the capture; negative: 3, as torch. They write the outputs.
 * @param pool         all zero: a pool of their own; or that of other graphs, which are never replayed at the same time.
 * @param stream       the work on it comes before, and its later work after; its device is theirs.
 * @return what a function returned, if that was a tcuda_status_t; else TCUDA_ERROR_INVALID_STATE. Nothing is left of a failure.
 */
tcuda_status_t tcuda_graphed_callable_create(tcuda_graphed_callable_t *graphed,
                                             const tcuda_callable_t *callables,
                                             size_t count,
                                             int32_t warmups,
                                             tcuda_pool_id_t pool,
                                             tcuda_stream_t stream);

/**
 * Calls a function by replay. Inputs that lie elsewhere than at the capture are copied to where they lay then; those at the same address cost
 * nothing. The results are in the outputs of the capture until its next call. Calls from any streams come one after the other.
 *
 * @param index    which of them. They are called in the order of the capture; 0 begins anew at any time.
 * @param inputs   as many as at the capture, of the same shapes and types, anywhere: one may be what another one was at the capture, but for a
 *                 circle of them, as two that are exchanged, which is an error. NULL with `input_count` 0: those of the capture.
 * @param stream   of their device.
 * @return TCUDA_ERROR_INVALID_STATE: it is another one's turn, or a pressure callback calls from inside of a call. TCUDA_ERROR_CAPTURE: the
 *         stream is being captured.
 */
tcuda_status_t tcuda_graphed_callable_call(tcuda_graphed_callable_t graphed,
                                           size_t index,
                                           const tcuda_tensor_t *inputs,
                                           size_t input_count,
                                           tcuda_stream_t stream);

/**
 * Ends graphed callables. Calls that are under way go on. NULL succeeds.
 */
tcuda_status_t tcuda_graphed_callable_destroy(tcuda_graphed_callable_t graphed);

/* ==== Compiled functions ======================================================================================================
 * A function of one element, written in C++, that runs over whole tensors (torch.cuda.jiterator): a template that is compiled when it meets
 * tensors of new types, by NVRTC on a real device and by the system's C++ compiler on the simulated one. What was compiled is kept in
 * memory and in files (TCUDA_JIT_CACHE_PATH); docs/JIT.md has what a source may use. The work is enqueued on a stream of the tensors'
 * device; only the first call for new types waits, for the compiler.
 */

/**
 * Makes a function of one output (torch.cuda.jiterator._create_jit_fn). The source is read, and compiled at the first call.
 *
 * @param jit            gets the function; tcuda_jit_destroy ends it.
 * @param source         C++: template functions, the last of which is called, as
 *                       `template <typename T> T axpy(T x, T y, T a) { return a * x + y; }`. Those before it are helpers.
 * @param scalars        the extra arguments, which are its last parameters, in order, with their default values. May be NULL.
 * @param scalar_count   at most 16.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: also for a source that is no such function; the message shows the place.
 */
tcuda_status_t tcuda_jit_create(tcuda_jit_t *jit, const char *source, const tcuda_jit_scalar_t *scalars, size_t scalar_count);

/**
 * The same with 1 to 8 outputs (torch.cuda.jiterator._create_multi_output_jit_fn): references, behind the extra arguments, of a function
 * that returns void: `template <typename T> void both(T x, T y, T &sum, T &difference) { sum = x + y; difference = x - y; }`.
 *
 * @param jit            gets the function; tcuda_jit_destroy ends it.
 * @param source         as in tcuda_jit_create.
 * @param outputs        their number.
 * @param scalars        as in tcuda_jit_create.
 * @param scalar_count   at most 16.
 */
tcuda_status_t tcuda_jit_create_multi_output(tcuda_jit_t *jit,
                                             const char *source,
                                             int32_t outputs,
                                             const tcuda_jit_scalar_t *scalars,
                                             size_t scalar_count);

/**
 * Ends a function. Work that it enqueued goes on, and what was compiled is kept.
 */
tcuda_status_t tcuda_jit_destroy(tcuda_jit_t jit);

/**
 * Calls a function and makes its outputs: new tensors of the shape that the inputs are broadcast to and of their common type, in their
 * order of dimensions.
 *
 * The common type is torch's (torch.result_type): tensors with dimensions decide, one without counts only where it is of a higher category
 * (bool, integer, real, complex). Inputs are converted to it as they are loaded. The function's T is that type, for float16 and bfloat16 it is
 * float, as in torch.
 *
 * @param jit            the function.
 * @param outputs        gets the tensors, as many as the function has; tcuda_tensor_destroy ends each.
 * @param inputs         1 to 8 tensors of one device, with any strides; at most 25 dimensions may be left when those are joined that lie alike
 *                       in all tensors (TCUDA_ERROR_NOT_SUPPORTED).
 * @param input_count    as many as the function takes.
 * @param scalars        the extra arguments that are not to have their default values, each once. May be NULL.
 * @param scalar_count   their number.
 * @param stream         of the tensors' device.
 * @return TCUDA_ERROR_COMPILATION: the message has the compiler's log. TCUDA_ERROR_NOT_SUPPORTED: also where there is no compiler; the
 * message says what was looked for and where. TCUDA_ERROR_INVALID_ARGUMENT: also for shapes that cannot be broadcast, tensors on different devices
 * or on the CPU, and unknown extra arguments. TCUDA_ERROR_OUT_OF_MEMORY.
 */
tcuda_status_t tcuda_jit_call(tcuda_jit_t jit,
                              tcuda_managed_tensor_t **outputs,
                              const tcuda_tensor_t *const *inputs,
                              size_t input_count,
                              const tcuda_jit_scalar_t *scalars,
                              size_t scalar_count,
                              tcuda_stream_t stream);

/**
 * Calls a function with outputs that are there already, of the shape that the inputs are broadcast to.
 *
 * Their types may be others than the common one, where torch casts (torch.can_cast): a number may lose size and precision, but no complex
 * number becomes real, no real one an integer, and nothing else a bool. An output may be an input with the same strides (in place); it may
 * not overlap one otherwise, nor another output.
 *
 * @param jit            the function.
 * @param outputs        the tensors, as many as the function has, with any strides; no two indices may mean one element.
 * @param output_count   their number.
 * @param inputs         as in tcuda_jit_call, and so is all that follows.
 */
tcuda_status_t tcuda_jit_call_out(tcuda_jit_t jit,
                                  const tcuda_tensor_t *const *outputs,
                                  size_t output_count,
                                  const tcuda_tensor_t *const *inputs,
                                  size_t input_count,
                                  const tcuda_jit_scalar_t *scalars,
                                  size_t scalar_count,
                                  tcuda_stream_t stream);

/* ==== Kernels from source =====================================================================================================
 * A whole source of CUDA, compiled at run time by NVRTC (torch.cuda._compile_kernel) or before, with any number of kernels, which are
 * launched with typed arguments. A module is for one device. Memory that a launch uses is the caller's to keep: a block of tcuda's cache
 * that another stream than its own uses is made known with tcuda_record_stream. The simulated device runs no whole kernels: there
 * tcuda_kernel_compile and tcuda_kernel_load answer TCUDA_ERROR_NOT_SUPPORTED.
 */

/**
 * Compiles a source of CUDA for a device (torch.cuda._compile_kernel).
 *
 * @param module   gets the module; tcuda_kernel_module_destroy ends it.
 * @param source   CUDA C++. NVRTC has no headers of its own; those of an installed toolkit are reached by an option "-I".
 * @param device   -1 for the current one.
 * @param options  NULL for all zero.
 * @return TCUDA_ERROR_COMPILATION: the message has the compiler's log and the line. TCUDA_ERROR_NOT_SUPPORTED: there is no NVRTC (the
 * message says what was looked for and where), or the device is simulated.
 */
tcuda_status_t tcuda_kernel_compile(tcuda_kernel_module_t *module,
                                    const char *source,
                                    int32_t device,
                                    const tcuda_kernel_options_t *options);

/**
 * Loads kernels that were compiled before (cuModuleLoadData): what nvcc, Triton or NVRTC made.
 *
 * @param module   gets the module; tcuda_kernel_module_destroy ends it.
 * @param image    PTX, a cubin or a fat binary; copied.
 * @param size     its bytes; of PTX with or without a zero byte at the end.
 * @param device   -1 for the current one.
 * @return TCUDA_ERROR_CUDA: the driver cannot load it, for this device or at all. TCUDA_ERROR_NOT_SUPPORTED: the device is simulated.
 */
tcuda_status_t tcuda_kernel_load(tcuda_kernel_module_t *module, const void *image, size_t size, int32_t device);

/**
 * Ends a module and its kernels. Their launches must be done.
 */
tcuda_status_t tcuda_kernel_module_destroy(tcuda_kernel_module_t module);

/**
 * A kernel of a module (cuModuleGetFunction). It is not destroyed: it ends with its module.
 *
 * @param kernel   gets the kernel: the same for a name each time.
 * @param module   the module.
 * @param name     of an extern "C" kernel, or one of options->names as it was given.
 */
tcuda_status_t tcuda_kernel_get(tcuda_kernel_t *kernel, tcuda_kernel_module_t module, const char *name);

/**
 * Enqueues a kernel (cuLaunchKernel), on its module's device, whatever device is current.
 *
 * @param kernel           the kernel.
 * @param grid             three numbers of blocks; those not needed are 1.
 * @param block            three numbers of threads.
 * @param shared           bytes of dynamic shared memory; above 48 KiB too, as far as the device has it.
 * @param arguments        the kernel's, in order; read before the call returns. Their number and sizes are checked where the driver knows them
 *                         (CUDA 12.4).
 * @param argument_count   their number.
 * @param stream           of the module's device.
 */
tcuda_status_t tcuda_kernel_launch(tcuda_kernel_t kernel,
                                   const uint32_t *grid,
                                   const uint32_t *block,
                                   size_t shared,
                                   const tcuda_argument_t *arguments,
                                   size_t argument_count,
                                   tcuda_stream_t stream);

/**
 * How many blocks of a kernel a multiprocessor runs at once (cuOccupancyMaxActiveBlocksPerMultiprocessor). Dynamic shared memory that a
 * launch could not have is TCUDA_ERROR_INVALID_ARGUMENT, here and in tcuda_kernel_best_block.
 *
 * @param kernel   the kernel.
 * @param blocks   gets the number.
 * @param block    threads of a block.
 * @param shared   bytes of dynamic shared memory of a block.
 */
tcuda_status_t tcuda_kernel_occupancy(tcuda_kernel_t kernel, int32_t *blocks, int32_t block, size_t shared);

/**
 * The size of a block with which the device is fullest (cuOccupancyMaxPotentialBlockSize).
 *
 * @param kernel   the kernel.
 * @param grid     gets the number of such blocks that fill the device.
 * @param block    gets the threads of a block.
 * @param shared   bytes of dynamic shared memory of a block.
 * @param limit    the most threads that a block may have; 0: no limit.
 */
tcuda_status_t tcuda_kernel_best_block(tcuda_kernel_t kernel, int32_t *grid, int32_t *block, size_t shared, int32_t limit);

/**
 * What the compiler made of a kernel (cuFuncGetAttribute).
 *
 * @param kernel      the kernel.
 * @param attributes  its struct_size is set before.
 */
tcuda_status_t tcuda_kernel_attributes(tcuda_kernel_t kernel, tcuda_kernel_attributes_t *attributes);

/* ==== Collectives of one process ==============================================================================================
 * torch.cuda.comm: tensors from one device to many and back. What is enqueued goes on after all that the current streams of all devices
 * that take part have got before, and what they get afterwards goes on after it, so that results may be used at once; which device is
 * current does not matter. The host waits only for results on the CPU (and where pageable memory of the CPU is read). Any strides are taken, and
 * any type that tcuda moves; sums are of the types that it computes with. Tensors that come out are ended with
 * tcuda_tensor_destroy whatever they are; tcuda_tensor_origin tells whether they have memory of their own (of their device's cache,
 * for its current stream), or are the input or a part of it, whose memory then has to outlive them. A call that fails gives
 * out nothing, and tensors that it was to write to may hold anything. The same inputs give the same bits, always. docs/COMM.md.
 */

/**
 * Copies a tensor to devices (torch.cuda.comm.broadcast).
 *
 * @param outs       gets `count` tensors, in the order of the devices: packed, the last dimension fastest; for the tensor's own device the
 *                   input itself (TCUDA_TENSOR_INPUT).
 * @param tensor     the source, on a device or on the CPU.
 * @param devices    indices; -1 is none. One that is there twice gets two tensors.
 * @param count      devices; 0 does nothing.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: also for a negative index. TCUDA_ERROR_INVALID_DEVICE, TCUDA_ERROR_OUT_OF_MEMORY.
 */
tcuda_status_t tcuda_comm_broadcast(tcuda_managed_tensor_t **outs,
                                    const tcuda_tensor_t *tensor,
                                    const int32_t *devices,
                                    size_t count);

/**
 * Copies a tensor into others (torch.cuda.comm.broadcast with out=).
 *
 * @param tensor    the source, on a device or on the CPU.
 * @param outs      `count` tensors on devices, of the source's shape; types are converted as by tcuda_tensor_copy.
 * @param count     tensors; 0 does nothing.
 */
tcuda_status_t tcuda_comm_broadcast_out(const tcuda_tensor_t *tensor, const tcuda_tensor_t *const *outs, size_t count);

/**
 * Copies many tensors from the first device to all (torch.cuda.comm.broadcast_coalesced), with no buffer in between: every result has
 * memory of its own, where torch's are views of a few large blocks.
 *
 * @param outs            gets device_count times `count` tensors, outs[device * count + tensor]. For the first device the inputs
 *                        themselves, for the others packed copies.
 * @param tensors         `count` tensors, all on devices[0].
 * @param count           tensors.
 * @param devices         indices, at least one.
 * @param device_count    devices.
 * @param buffer_size     torch's bytes of a buffer; without effect.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: also where devices is empty, which torch leaves undefined.
 */
tcuda_status_t tcuda_comm_broadcast_coalesced(tcuda_managed_tensor_t **outs,
                                              const tcuda_tensor_t *const *tensors,
                                              size_t count,
                                              const int32_t *devices,
                                              size_t device_count,
                                              size_t buffer_size);

/**
 * Sums tensors of several devices on one of them (torch.cuda.comm.reduce_add).
 *
 * The order is that of torch without NCCL: the input on the destination (the last one, if there are several), then the others as they come. f16 and
 * bf16 are summed in f32 and rounded once, where torch rounds after each addition (with more than 64 inputs, at every 63rd).
 * Integers wrap, of bools a sum is their or, complex numbers stay complex.
 *
 * @param out            gets the sum; of a single input that itself (TCUDA_TENSOR_INPUT).
 * @param inputs         `count` tensors on devices, of one shape and one type; one of them on the destination.
 * @param count          tensors, at least one.
 * @param destination    an index, or -1 for the current device.
 * @return TCUDA_ERROR_NOT_SUPPORTED: a type that tcuda does not compute with (float8), as in torch.
 */
tcuda_status_t tcuda_comm_reduce_add(tcuda_managed_tensor_t **out,
                                     const tcuda_tensor_t *const *inputs,
                                     size_t count,
                                     int32_t destination);

/**
 * The sums of many tensors over several devices (torch.cuda.comm.reduce_add_coalesced), with no buffer in between.
 *
 * @param outs            gets `count` sums, each as tcuda_comm_reduce_add makes it, with memory of its own.
 * @param inputs          device_count times `count` tensors, inputs[device * count + tensor].
 * @param count           tensors of a device.
 * @param device_count    devices.
 * @param destination     an index, or -1 for the current device.
 * @param buffer_size     torch's bytes of a buffer; without effect.
 */
tcuda_status_t tcuda_comm_reduce_add_coalesced(tcuda_managed_tensor_t **outs,
                                               const tcuda_tensor_t *const *inputs,
                                               size_t count,
                                               size_t device_count,
                                               int32_t destination,
                                               size_t buffer_size);

/**
 * Cuts a tensor in pieces, one for each device (torch.cuda.comm.scatter).
 *
 * @param outs           gets `count` tensors; a piece on the tensor's own device is a view of it (TCUDA_TENSOR_VIEW). Without chunk_sizes
 *                       there may be fewer pieces than devices, as in torch: the rest of `outs` becomes NULL.
 * @param tensor         the source, on a device or on the CPU.
 * @param devices        indices; -1 is none (torch takes it for the CPU where a CPU tensor is scattered).
 * @param count          devices, at least one.
 * @param chunk_sizes    `count` sizes that add up to that of the dimension; NULL: equal ones, rounded up.
 * @param dim            the dimension that is cut; negative: counted from the last.
 * @param streams        NULL, or `count` streams of the devices. A piece is made for and copied in the order of its stream, and the caller orders
 *                       other uses, as with torch; NULL in the list: the current stream of that device.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: also where a piece is to be copied and its stream is of another device.
 */
tcuda_status_t tcuda_comm_scatter(tcuda_managed_tensor_t **outs,
                                  const tcuda_tensor_t *tensor,
                                  const int32_t *devices,
                                  size_t count,
                                  const int64_t *chunk_sizes,
                                  int32_t dim,
                                  const tcuda_stream_t *streams);

/**
 * Cuts a tensor into others (torch.cuda.comm.scatter with out=). Everything is copied, also on the tensor's own device.
 *
 * @param tensor     the source, on a device or on the CPU.
 * @param outs       `count` tensors on devices; of the source's shape, but for `dim`, in which their sizes add up to the source's. They may
 *                   overlap neither the source nor each other. Types are converted as by tcuda_tensor_copy.
 * @param count      tensors, at least one.
 * @param dim        the dimension that is cut; negative: counted from the last.
 * @param streams    as in tcuda_comm_scatter.
 */
tcuda_status_t tcuda_comm_scatter_out(const tcuda_tensor_t *tensor,
                                      const tcuda_tensor_t *const *outs,
                                      size_t count,
                                      int32_t dim,
                                      const tcuda_stream_t *streams);

/**
 * Puts tensors of several devices side by side in one (torch.cuda.comm.gather).
 *
 * @param out            gets the tensor, of the first one's type; packed, or in channels-last order if all inputs are.
 * @param tensors        `count` tensors on devices, of one shape but for `dim`.
 * @param count          tensors, at least one.
 * @param dim            the dimension in which they are put side by side; negative: counted from the last.
 * @param destination    an index, -1 for the current device (in torch, once: the CPU), TCUDA_DEVICE_CPU: complete on return.
 */
tcuda_status_t tcuda_comm_gather(tcuda_managed_tensor_t **out,
                                 const tcuda_tensor_t *const *tensors,
                                 size_t count,
                                 int32_t dim,
                                 int32_t destination);

/**
 * Puts tensors of several devices side by side in one that is there (torch.cuda.comm.gather with out=).
 *
 * @param out        where to: a device or the CPU, then complete on return. It may not overlap the inputs. Types are converted as by
 *                   tcuda_tensor_copy.
 * @param tensors    `count` tensors on devices.
 * @param count      tensors, at least one.
 * @param dim        the dimension in which they are put side by side; negative: counted from the last.
 */
tcuda_status_t tcuda_comm_gather_out(const tcuda_tensor_t *out,
                                     const tcuda_tensor_t *const *tensors,
                                     size_t count,
                                     int32_t dim);

/* ==== Communicators ===========================================================================================================
 * Collectives between ranks: threads of a process, processes of a machine or of several, each with a device of its own (torch.cuda.nccl,
 * and what torch.distributed does with NCCL). NCCL carries the data; it is looked up at the first of these calls. On simulated devices
 * sockets do, between threads and processes of one machine.
 * All ranks make the same calls in the same order. A call is enqueued on a stream of the rank's device (NULL: its current stream) and returns
 * before it is done; calls of one communicator go on in the order in which they are made, also on different streams. Tensors lie packed on the
 * rank's device; input and output may be the same memory where they are of one size. Elements are moved whatever they are, and reduced if they
 * lie on a multiple of their size and are floats (but float8), integers of 8, 32 and 64 bits, bools (a sum is their or, a product their and) or
 * complex (sum and average). A tensor without elements is no call at all.
 * No call waits longer for other ranks than the communicator's timeout; wait for results with
 * tcuda_communicator_synchronize, which also sees a rank that ended. What goes wrong then (TCUDA_ERROR_TIMEOUT, TCUDA_ERROR_REMOTE,
 * TCUDA_ERROR_NCCL and errors of the device) aborts the communicator: its streams go on, outputs of calls under way hold anything, every later
 * call gives the same error, and only tcuda_communicator_destroy takes it. A call that is refused (TCUDA_ERROR_INVALID_ARGUMENT and the like)
 * changes nothing. docs/COMM.md.
 */

/**
 * The version of NCCL (torch.cuda.nccl.version): 22809 is 2.28.9; 0 on simulated devices.
 *
 * @return TCUDA_ERROR_NOT_SUPPORTED: there is no NCCL, or an older one than 2.14; the message says where it was looked for.
 */
tcuda_status_t tcuda_communicator_version(int32_t *version);

/**
 * An id for a new communicator (torch.cuda.nccl.unique_id). One rank makes it and the others are told it; each id makes one communicator.
 * NCCL's holds an address of the process that made it, which has to live until all ranks have found each other.
 */
tcuda_status_t tcuda_communicator_unique_id(tcuda_communicator_id_t *id);

/**
 * Makes one rank of a communicator (torch.cuda.nccl.init_rank); the others do the same with the same id. Waits for all of them.
 *
 * @param comm      gets the rank; tcuda_communicator_destroy ends it.
 * @param size      how many ranks there are.
 * @param id        of tcuda_communicator_unique_id.
 * @param rank      from 0 on; each is there once.
 * @param device    -1: the current one. Two ranks on one device do not work: NCCL refuses them, and so do simulated devices
 *                  (TCUDA_ERROR_INVALID_ARGUMENT).
 * @param options   may be NULL.
 * @return TCUDA_ERROR_TIMEOUT: the others did not come; nothing is left. TCUDA_ERROR_REMOTE: another rank of this process gave up or ended.
 * TCUDA_ERROR_INVALID_STATE: within a group.
 */
tcuda_status_t tcuda_communicator_init_rank(tcuda_communicator_t *comm,
                                            int32_t size,
                                            const tcuda_communicator_id_t *id,
                                            int32_t rank,
                                            int32_t device,
                                            const tcuda_communicator_options_t *options);

/**
 * Makes all ranks of a communicator in this process (ncclCommInitAll). Where one thread makes the calls of several ranks, they stand in a group.
 *
 * @param comms     gets `count` ranks, in the order of the devices; tcuda_communicator_destroy ends each.
 * @param devices   indices, each once; -1 is none.
 * @param count     devices; 0 does nothing.
 * @param options   may be NULL.
 */
tcuda_status_t tcuda_communicator_init_all(tcuda_communicator_t *comms,
                                           const int32_t *devices,
                                           size_t count,
                                           const tcuda_communicator_options_t *options);

/**
 * Makes this process' rank of a job whose launcher has set RANK, WORLD_SIZE, LOCAL_RANK (the device), MASTER_ADDR and MASTER_PORT, as torchrun
 * does. Rank 0 listens on that port until all have come, by plain TCP that anyone may connect to, on all of its addresses where MASTER_ADDR is a
 * name (but localhost), as torch's store does; TCUDA_COMMUNICATOR_PORT names another port where that one is taken. Names are looked up by the
 * system, for as long as that takes.
 *
 * @param comm      gets the rank; tcuda_communicator_destroy ends it.
 * @param options   may be NULL. The timeout is that of finding rank 0, and again that of tcuda_communicator_init_rank.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: a variable is missing or wrong. TCUDA_ERROR_TIMEOUT: the message names the ranks that did not come.
 *         TCUDA_ERROR_SYSTEM: rank 0 cannot listen.
 */
tcuda_status_t tcuda_communicator_init_from_env(tcuda_communicator_t *comm,
                                                const tcuda_communicator_options_t *options);

/**
 * Makes communicators of parts of the ranks (ncclCommSplit). All ranks make this call, and wait for each other.
 *
 * @param part      gets this rank in its part, with this one's timeout; tcuda_communicator_destroy ends it. NULL for a negative color.
 * @param color     ranks with the same come together; negative: with nobody. INT32_MAX is none.
 * @param key       gives their order; ranks with equal keys stay in theirs.
 * @param options   may be NULL; only `non_blocking` counts. It goes with a color only; calls of the part are TCUDA_ERROR_NOT_READY until
 *                  tcuda_communicator_query says that it is ready.
 * @return TCUDA_ERROR_NOT_SUPPORTED: NCCL before 2.18. TCUDA_ERROR_TIMEOUT and the like: ranks did not come, or failed, and `comm` itself was aborted.
 */
tcuda_status_t tcuda_communicator_split(tcuda_communicator_t *part,
                                        tcuda_communicator_t comm,
                                        int32_t color,
                                        int32_t key,
                                        const tcuda_communicator_options_t *options);

/**
 * Ends a rank when its calls are done, for which it waits. One that was aborted, or has not found the others, ends at once.
 * tcuda_communicator_abort by another thread cuts the wait short; it is the only call that takes the handle meanwhile.
 *
 * @return TCUDA_ERROR_TIMEOUT, TCUDA_ERROR_REMOTE and the like: calls were cut off. The handle has ended all the same.
 */
tcuda_status_t tcuda_communicator_destroy(tcuda_communicator_t comm);

/**
 * Ends whatever a rank is at (ncclCommAbort): its streams go on, and threads that wait in calls of it come back with
 * TCUDA_ERROR_INVALID_STATE, also from a group, whose other communicators end with it. The other ranks hear of it: those of this process
 * in the call that they wait in, or in their next one, as TCUDA_ERROR_REMOTE; others sooner or later, and a call that they are at may end with
 * success and anything in its output. So end all ranks when one has failed. The handle stays until tcuda_communicator_destroy.
 */
tcuda_status_t tcuda_communicator_abort(tcuda_communicator_t comm);

/**
 * How a rank is (ncclCommGetAsyncError): success while nothing went wrong. Waits for nothing.
 *
 * @param ready   gets false while it looks for the other ranks, or another thread waits in a call of it but tcuda_communicator_synchronize.
 * @return what went wrong.
 */
tcuda_status_t tcuda_communicator_query(tcuda_communicator_t comm, bool *ready);

/**
 * Waits for a stream's work, as tcuda_stream_synchronize does, and looks meanwhile whether the rank's calls can come to an end: when another rank
 * failed, the device is lost, or the time is over, the communicator is aborted, also under a thread that waits in a call of it.
 *
 * @param stream       NULL: the current stream of the rank's device.
 * @param timeout_ms   0: the communicator's.
 * @return TCUDA_ERROR_TIMEOUT, TCUDA_ERROR_REMOTE, TCUDA_ERROR_NCCL: it was aborted, and outputs hold anything.
 */
tcuda_status_t tcuda_communicator_synchronize(tcuda_communicator_t comm,
                                              tcuda_stream_t stream,
                                              uint32_t timeout_ms);

/**
 * Which rank this is. TCUDA_ERROR_NOT_READY: a part of a split that is not over.
 */
tcuda_status_t tcuda_communicator_rank(tcuda_communicator_t comm, int32_t *rank);

/**
 * How many ranks there are. TCUDA_ERROR_NOT_READY: a part of a split that is not over.
 */
tcuda_status_t tcuda_communicator_size(tcuda_communicator_t comm, int32_t *size);

/**
 * The device of this rank.
 */
tcuda_status_t tcuda_communicator_device(tcuda_communicator_t comm, int32_t *device);

/**
 * Begins a group of this thread: until its end, calls of communicators are checked and kept, and nothing is enqueued. Groups may lie within each
 * other; the outermost counts. Needed where one thread makes the calls of several ranks, and for sends and receives that depend on each other.
 */
tcuda_status_t tcuda_communicator_group_start(void);

/**
 * Ends a group: its calls are enqueued, together. They may not build on each other, and tensors and streams have to be there until now.
 *
 * @return TCUDA_ERROR_INVALID_STATE: no group was begun. TCUDA_ERROR_INVALID_ARGUMENT: nothing was enqueued, and nothing has changed. What else
 *         goes wrong, also that one of its communicators has ended before, ends all communicators of the group.
 */
tcuda_status_t tcuda_communicator_group_end(void);

/**
 * Reduces the inputs of all ranks, and gives the result to all (ncclAllReduce). On simulated devices from rank 0 to the last, halves in
 * float32 and rounded once; NCCL's order is its own.
 *
 * @param output   of the input's size.
 * @param op       TCUDA_REDUCE_SUM, _PRODUCT, _MAX, _MIN or _AVERAGE.
 */
tcuda_status_t tcuda_communicator_all_reduce(tcuda_communicator_t comm,
                                             const tcuda_tensor_t *output,
                                             const tcuda_tensor_t *input,
                                             int32_t op,
                                             tcuda_stream_t stream);

/**
 * Puts the inputs of all ranks side by side, in the order of the ranks, and gives that to all (ncclAllGather).
 *
 * @param output   of as many times the input's size as there are ranks. The input may be this rank's part of it.
 */
tcuda_status_t tcuda_communicator_all_gather(tcuda_communicator_t comm,
                                             const tcuda_tensor_t *output,
                                             const tcuda_tensor_t *input,
                                             tcuda_stream_t stream);

/**
 * Reduces the inputs of all ranks, and gives each rank its part of the result (ncclReduceScatter).
 *
 * @param input   of as many times the output's size as there are ranks. The output may be this rank's part of it.
 */
tcuda_status_t tcuda_communicator_reduce_scatter(tcuda_communicator_t comm,
                                                 const tcuda_tensor_t *output,
                                                 const tcuda_tensor_t *input,
                                                 int32_t op,
                                                 tcuda_stream_t stream);

/**
 * Gives the root's input to all ranks (ncclBroadcast).
 *
 * @param input   the root's; not looked at on other ranks, where it may be NULL.
 */
tcuda_status_t tcuda_communicator_broadcast(tcuda_communicator_t comm,
                                            const tcuda_tensor_t *output,
                                            const tcuda_tensor_t *input,
                                            int32_t root,
                                            tcuda_stream_t stream);

/**
 * Reduces the inputs of all ranks, and gives the result to the root (ncclReduce).
 *
 * @param output   the root's; not looked at on other ranks, where it may be NULL.
 */
tcuda_status_t tcuda_communicator_reduce(tcuda_communicator_t comm,
                                         const tcuda_tensor_t *output,
                                         const tcuda_tensor_t *input,
                                         int32_t op,
                                         int32_t root,
                                         tcuda_stream_t stream);

/**
 * Gives each rank its part of each rank's input (ncclAlltoAll): part r of the output is what rank r had for this one.
 *
 * @param output   of the input's size, which the ranks share evenly. The two have to be apart.
 */
tcuda_status_t tcuda_communicator_all_to_all(tcuda_communicator_t comm,
                                             const tcuda_tensor_t *output,
                                             const tcuda_tensor_t *input,
                                             tcuda_stream_t stream);

/**
 * Sends a tensor to a rank, which receives one of as many bytes (ncclSend). A rank that sends to itself receives in the same group.
 */
tcuda_status_t tcuda_communicator_send(tcuda_communicator_t comm, const tcuda_tensor_t *tensor, int32_t peer, tcuda_stream_t stream);

/**
 * Receives a tensor from a rank (ncclRecv).
 */
tcuda_status_t tcuda_communicator_recv(tcuda_communicator_t comm, const tcuda_tensor_t *tensor, int32_t peer, tcuda_stream_t stream);

/* ==== Sharing between processes ===============================================================================================
 * Device memory of one process, used by others of the same user on the same machine: exported to 64 bytes that travel as the program likes
 * (a pipe, a socket, a file), and imported from them. Nothing is copied. A block that others use is not reused before they have closed it,
 * also when it was freed meanwhile; a process that ends in any way (kill -9) has closed all that it imported. docs/IPC.md has more.
 */

/**
 * Makes a block of device memory, or a part of one, known to other processes (torch: sending a tensor by torch.multiprocessing). The work that
 * the stream has got so far comes before what they do with it, without anybody waiting here.
 *
 * What can be reached by others are whole pages or, of plain segments, whole segments (and all that a pluggable allocator cut a segment from):
 * export nothing that shares them with secrets. A block of a memory pool with `no_split` is alone in its segment.
 *
 * @param handle   gets the bytes for tcuda_ipc_import.
 * @param ptr      device memory of tcuda, from anywhere inside a block.
 * @param size     bytes from there on; at most to the end of the block.
 * @param keep_for imports for which the memory is kept though it was freed before: 1 for memory that is sent to one process and freed at
 *                 once; 0: what is freed cannot be imported any more. An import that fails is none.
 * @param stream   a stream of the memory's device.
 * @return TCUDA_ERROR_INVALID_POINTER: no block of tcuda, or one that was imported itself. TCUDA_ERROR_NOT_SUPPORTED: memory of
 *         cudaMallocAsync, or a driver without IPC. TCUDA_ERROR_CAPTURE: the stream is being captured.
 */
tcuda_status_t tcuda_ipc_export(tcuda_ipc_handle_t *handle,
                                const void *ptr,
                                size_t size,
                                uint32_t keep_for,
                                tcuda_stream_t stream);

/**
 * Maps memory that another process exported. The stream's later work waits for what the producer's stream had got before the export.
 *
 * Each import wants a tcuda_ipc_close. One that is imported again has the same address; one that this very process exported has the address
 * that it has anyway. The call waits for the producer's answer, for as long as it lives.
 *
 * @param ptr      gets the address in this process. It cannot be freed or exported.
 * @param size     gets the bytes that were exported; may be NULL.
 * @param device   gets the index here of the device that the memory is on; may be NULL.
 * @param handle   what tcuda_ipc_export wrote.
 * @param stream   a stream of any device.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: these are not the bytes of a handle. TCUDA_ERROR_INVALID_HANDLE: the producer has ended, or the memory
 *         was freed or withdrawn. TCUDA_ERROR_INVALID_DEVICE: the memory's device is not visible here. TCUDA_ERROR_NOT_SUPPORTED: the producer
 *         is of another user.
 */
tcuda_status_t tcuda_ipc_import(void **ptr,
                                size_t *size,
                                int32_t *device,
                                const tcuda_ipc_handle_t *handle,
                                tcuda_stream_t stream);

/**
 * Ends the use of imported memory, after waiting for the work that the stream has got so far. With the last close of an address it is mapped
 * no more, and the producer may use the memory for something else. NULL succeeds.
 *
 * @param ptr      an address of tcuda_ipc_import.
 * @param stream   the stream that used it last; other streams' uses have to be done or ordered before it.
 * @return TCUDA_ERROR_INVALID_POINTER: it was not imported, or closed before.
 */
tcuda_status_t tcuda_ipc_close(void *ptr,
                               tcuda_stream_t stream);

/**
 * Learns at once which consumers closed what they imported, or ended, and makes what was kept for them free memory (torch.cuda.ipc_collect).
 * That happens by itself too, a moment later, and whenever memory runs short.
 */
tcuda_status_t tcuda_ipc_collect(void);

/**
 * Lets nobody import an export any more, `keep_for` or not. Who has imported it keeps it until he closes it.
 *
 * @return TCUDA_ERROR_INVALID_HANDLE: this process exports nothing by the handle (any more).
 */
tcuda_status_t tcuda_ipc_withdraw(const tcuda_ipc_handle_t *handle);

/**
 * Whether the process that exported imported memory lives. Once it has ended (or called tcuda_shutdown) what is in the memory is nobody's: close
 * it.
 *
 * @param ptr      an address of tcuda_ipc_import.
 */
tcuda_status_t tcuda_ipc_producer_is_alive(bool *alive,
                                           const void *ptr);

/**
 * What this process shares now.
 */
tcuda_status_t tcuda_ipc_stats(tcuda_ipc_stats_t *stats);

/**
 * A name of an event for other processes (torch.cuda.Event.ipc_handle, cudaIpcGetEventHandle).
 *
 * @param handle   gets bytes for tcuda_event_from_ipc_handle, or for cudaIpcOpenEventHandle of any library.
 * @param event    made with TCUDA_EVENT_INTERPROCESS. It has to live for as long as others use it.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: the event was made without TCUDA_EVENT_INTERPROCESS.
 */
tcuda_status_t tcuda_event_ipc_handle(tcuda_ipc_event_handle_t *handle, tcuda_event_t event);

/**
 * An event here that is another process's too (torch.cuda.Event.from_ipc_handle, cudaIpcOpenEventHandle). The producer has to record it before it
 * is waited for here: what was never recorded holds nothing up.
 *
 * @param event    gets the event; tcuda_event_destroy ends it here.
 * @param device   the device that the event was made on; -1 is the current one.
 * @param handle   what tcuda_event_ipc_handle wrote in another process. CUDA opens none in its own.
 */
tcuda_status_t tcuda_event_from_ipc_handle(tcuda_event_t *event,
                                           int32_t device,
                                           const tcuda_ipc_event_handle_t *handle);

/* ==== Telemetry ===============================================================================================================
 * How a device is doing, as the driver sees it for all processes together, by NVML, which is looked up at the first of these calls. They
 * make no context and change no current device, and a device that is lost to this process goes on telling what it told before. A device is
 * found by its UUID, so an index means the same here as everywhere else, whatever CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER say.
 * Without NVML, and for what a device does not tell: TCUDA_ERROR_NOT_SUPPORTED. What this process may not ask: TCUDA_ERROR_SYSTEM. Other
 * failures of NVML: TCUDA_ERROR_CUDA, and tcuda_last_error_native has NVML's code. docs/TELEMETRY.md has more.
 */

/**
 * Percent of the last sample period (1/6 to 1 s) in which a kernel ran (torch.cuda.utilization, nvmlDeviceGetUtilizationRates). Instances
 * of MIG do not tell.
 */
tcuda_status_t tcuda_utilization(int32_t *percent, int32_t device);

/**
 * Percent of the last sample period in which device memory was read or written (torch.cuda.memory_usage). It does not say how full the
 * memory is: that is tcuda_device_memory_used.
 */
tcuda_status_t tcuda_memory_usage(int32_t *percent, int32_t device);

/**
 * The die's temperature in degrees Celsius (torch.cuda.temperature, nvmlDeviceGetTemperature).
 */
tcuda_status_t tcuda_temperature(int32_t *celsius, int32_t device);

/**
 * What the board takes, in milliwatt (torch.cuda.power_draw, nvmlDeviceGetPowerUsage): the mean of a second since Ampere, of the moment
 * before. Many GeForce and Jetson boards do not tell.
 */
tcuda_status_t tcuda_power_draw(int32_t *milliwatt, int32_t device);

/**
 * The clock of the multiprocessors in megahertz (torch.cuda.clock_rate, nvmlDeviceGetClockInfo). torch's documentation says hertz; what
 * it gives is megahertz too.
 */
tcuda_status_t tcuda_clock_rate(int32_t *megahertz, int32_t device);

/**
 * Bytes of device memory in use, by all processes and the driver itself (torch.cuda.device_memory_used, nvmlDeviceGetMemoryInfo). Other
 * than tcuda_mem_get_info it needs no context. Memory that tcuda's cache keeps is in use.
 */
tcuda_status_t tcuda_device_memory_used(uint64_t *bytes, int32_t device);

/**
 * The processes that compute on a device as a text for people, as torch writes it (torch.cuda.list_gpu_processes): a line with the
 * driver's number of the device, then one for each process, with MiB that are called MB; no line break at the end. Those that only draw
 * are not listed.
 *
 * @param text     gets the text with a terminating zero; NULL with capacity 0 asks for the size only.
 * @param needed   gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
 * @return TCUDA_ERROR_BUFFER_TOO_SMALL: the list may grow between two calls.
 */
tcuda_status_t tcuda_list_gpu_processes(char *text, size_t capacity, size_t *needed, int32_t device);

/**
 * The same for programs.
 *
 * @param processes gets them; NULL with capacity 0 asks for the number only.
 * @param capacity  how many there is room for.
 * @param count     gets how many there are.
 * @return TCUDA_ERROR_BUFFER_TOO_SMALL: there are more, and none was written; tcuda_last_error has bytes for all of them.
 */
tcuda_status_t tcuda_gpu_processes(tcuda_gpu_process_t *processes, size_t capacity, size_t *count, int32_t device);

/**
 * All of it at once. For those who ask often: a reading that is young enough is given again, which takes no lock, no call of the driver
 * and some 50 ns; of threads that want a new one at the same time one asks, and the others wait for it.
 *
 * @param telemetry   gets the reading; what the device does not tell is -1 there and no error.
 * @param max_age_ms  a reading younger than this will do. 0: a new one.
 */
tcuda_status_t tcuda_telemetry_read(tcuda_telemetry_t *telemetry, int32_t device, uint32_t max_age_ms);

/* ==== Marks and ranges for tools ==============================================================================================
 * Marks and ranges that show what a program does in a profiler, as Nsight Systems (torch.cuda.nvtx, NVTX). A tool that takes them says so by
 * NVTX_INJECTION64_PATH, which it sets; it is loaded at the first of these calls. Without a tool they do nothing: push and pop take less than 5
 * ns together. But for ranges of a stream and the profiler's start and stop, which need a device and are refused after tcuda_shutdown, they
 * need no device and work at any time; in a child of fork that is refused domains are too. Ranges of NVTX's own in the same program go to the
 * same tool. Texts are UTF-8, and go to the tool as they are.
 * With TCUDA_NVTX=1 a tool sees each call of tcuda that works with a device as a range of the domain `tcuda`, allocations with their bytes.
 */

/**
 * Whether a tool takes marks and ranges. Never fails.
 */
bool tcuda_nvtx_is_attached(void);

/**
 * Marks a moment of the calling thread (torch.cuda.nvtx.mark, nvtxMarkA).
 */
tcuda_status_t tcuda_nvtx_mark(const char *message);

/**
 * Begins a range of the calling thread, inside those that are open (torch.cuda.nvtx.range_push, nvtxRangePushA). The thread's
 * tcuda_nvtx_range_pop ends it.
 *
 * @return how deep it lies, from 0; -2 where nobody counts, as without a tool (torch says so too); -1: there is a tool, and `message` is NULL.
 */
int32_t tcuda_nvtx_range_push(const char *message);

/**
 * Ends the calling thread's newest open range (torch.cuda.nvtx.range_pop, nvtxRangePop).
 *
 * @return how deep it lay, from 0; -2 where nobody counts; another negative number of the tool where none is open.
 */
int32_t tcuda_nvtx_range_pop(void);

/**
 * Begins a range that any thread can end, and that may overlap others (torch.cuda.nvtx.range_start, nvtxRangeStartA).
 *
 * @param id gets what tcuda_nvtx_range_end wants; 0 without a tool.
 */
tcuda_status_t tcuda_nvtx_range_start(uint64_t *id, const char *message);

/**
 * Ends a range of tcuda_nvtx_range_start (torch.cuda.nvtx.range_end, nvtxRangeEnd). What it does with a number that is none is the tool's.
 */
tcuda_status_t tcuda_nvtx_range_end(uint64_t id);

/**
 * Begins a range when a stream comes there: when the work that it was given before is done (torch.cuda.nvtx._device_range_start). With a tool a host
 * function tells it, which holds up the stream for a moment; without one the stream is given nothing. A graph that captures it has a new range
 * with each replay.
 *
 * @param id gets what tcuda_nvtx_stream_range_end wants.
 */
tcuda_status_t tcuda_nvtx_stream_range_start(uint64_t *id,
                                             const char *message,
                                             tcuda_stream_t stream);

/**
 * Ends a range when a stream comes there (torch.cuda.nvtx._device_range_end). It need not be the stream that the range began on, but has to
 * come later in the program's order; a stream that is there before the range began makes it a range of no length, or if a graph
 * begins it, does nothing. A range whose end is captured is ended by a replay, and is open for as long as none comes.
 *
 * @return TCUDA_ERROR_INVALID_HANDLE: it is no such range, or it was ended.
 */
tcuda_status_t tcuda_nvtx_stream_range_end(uint64_t id, tcuda_stream_t stream);

/**
 * Makes a domain: tools show its marks and ranges apart, and its ranges are pushed and popped apart (nvtxDomainCreateA).
 *
 * @param domain gets it; tcuda_nvtx_domain_destroy ends it.
 */
tcuda_status_t tcuda_nvtx_domain_create(tcuda_nvtx_domain_t *domain, const char *name);

/**
 * Ends a domain, whose ranges should be over (nvtxDomainDestroy).
 */
tcuda_status_t tcuda_nvtx_domain_destroy(tcuda_nvtx_domain_t domain);

/**
 * tcuda_nvtx_mark with all that a mark can have (nvtxDomainMarkEx).
 *
 * @param domain NULL: the default one, that of the functions without a domain.
 */
tcuda_status_t tcuda_nvtx_domain_mark(tcuda_nvtx_domain_t domain, const tcuda_nvtx_event_t *event);

/**
 * tcuda_nvtx_range_push with all that a range can have (nvtxDomainRangePushEx).
 *
 * @return as tcuda_nvtx_range_push; -1: there is a tool, and the domain or the event is wrong.
 */
int32_t tcuda_nvtx_domain_range_push(tcuda_nvtx_domain_t domain, const tcuda_nvtx_event_t *event);

/**
 * Ends the calling thread's newest open range of a domain (nvtxDomainRangePop).
 *
 * @return as tcuda_nvtx_range_pop; -1: there is a tool, and the domain is wrong.
 */
int32_t tcuda_nvtx_domain_range_pop(tcuda_nvtx_domain_t domain);

/**
 * tcuda_nvtx_range_start with all that a range can have (nvtxDomainRangeStartEx).
 */
tcuda_status_t tcuda_nvtx_domain_range_start(tcuda_nvtx_domain_t domain, uint64_t *id, const tcuda_nvtx_event_t *event);

/**
 * Ends a range of tcuda_nvtx_domain_range_start of the same domain (nvtxDomainRangeEnd).
 */
tcuda_status_t tcuda_nvtx_domain_range_end(tcuda_nvtx_domain_t domain, uint64_t id);

/**
 * Gives a category of a domain a name (nvtxDomainNameCategoryA).
 */
tcuda_status_t tcuda_nvtx_domain_name_category(tcuda_nvtx_domain_t domain, uint32_t category, const char *name);

/**
 * Has a profiler that waits for it collect from here on (torch.cuda.profiler.start, cudaProfilerStart), as Nsight Systems does with
 * `--capture-range=cudaProfilerApi`. Nothing happens without one. Needs a device, whose context it makes.
 */
tcuda_status_t tcuda_profiler_start(void);

/**
 * Has the profiler collect no more (torch.cuda.profiler.stop, cudaProfilerStop).
 */
tcuda_status_t tcuda_profiler_stop(void);

/* ==== Libraries of CUDA =======================================================================================================
 * Handles of cuBLAS, and plans of cuFFT, on tcuda's streams and memory. The libraries are looked up at the first of these calls, as the CUDA
 * runtime is (docs/LIBRARIES.md); one that the program has loaded is taken first. What they compute a program asks of them itself. Without the
 * library, and on the simulated device, which runs no machine code of GPUs: TCUDA_ERROR_NOT_SUPPORTED. An answer of the library that is no
 * success: TCUDA_ERROR_CUDA, or TCUDA_ERROR_OUT_OF_MEMORY, and tcuda_last_error_native has it.
 */

/**
 * A handle of cuBLAS for the calling thread and its current stream of the current device (torch.cuda.current_blas_handle).
 *
 * Each thread has one for each stream. It works on that stream, with a workspace from the cache of CUBLAS_WORKSPACE_CONFIG's size, else 32 MiB
 * since compute capability 9.0 and 8.125 MiB before, until the thread ends or the stream is destroyed; do not give it another stream. After a
 * change of stream ask again: a look into a table. The handles of a stream that tcuda captures, or that joins a capture by a wait of tcuda, and
 * what is asked for on any stream that is captured, stay with their workspaces until tcuda_shutdown, since graphs may use them.
 */
tcuda_status_t tcuda_current_blas_handle(tcuda_blas_handle_t *handle);

/**
 * The same for a stream that is named; its device is the handle's, which has to be current when the handle is used.
 */
tcuda_status_t tcuda_blas_handle(tcuda_blas_handle_t *handle, tcuda_stream_t stream);

/**
 * Takes the calling thread's handles back, and frees their workspaces in the order of their streams (torch._C._cuda_clearCublasWorkspaces). The
 * thread asks anew before it uses cuBLAS again.
 */
tcuda_status_t tcuda_blas_clear(void);

/**
 * The file that cuBLAS was loaded from, for programs that look its functions up.
 *
 * @param text   gets the path with a terminating zero; NULL with capacity 0 asks for the size only.
 * @param needed gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
 */
tcuda_status_t tcuda_blas_library(char *text, size_t capacity, size_t *needed);

/**
 * A plan of cuFFT for a transform on a stream, kept from an earlier one or made (torch.backends.cuda.cufft_plan_cache). Its stream is set, and its
 * work area is a block of the cache. It is the caller's alone, for cufftExecC2C and the like with the stream's device current, until
 * tcuda_cufft_plan_cache_put.
 *
 * @param plan gets the cufftHandle.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: no transform, or one that cuFFT does not have.
 */
tcuda_status_t tcuda_cufft_plan_cache_get(int32_t *plan,
                                          const tcuda_cufft_transform_t *transform,
                                          tcuda_stream_t stream);

/**
 * Puts a plan back, once all that it is executed for was enqueued on its stream, which may be gone. Others get it from then on. Where
 * there are more than the cache holds, the one that was used longest ago is destroyed, and what it was executed for is waited for; else
 * nothing is. A plan that was taken or put back while its stream was captured stays until tcuda_shutdown.
 *
 * @return TCUDA_ERROR_INVALID_HANDLE: it is no plan of tcuda_cufft_plan_cache_get, or was put back.
 */
tcuda_status_t tcuda_cufft_plan_cache_put(int32_t plan);

/**
 * How many plans a device has, those in use counted (cufft_plan_cache.size).
 */
tcuda_status_t tcuda_cufft_plan_cache_size(int64_t *size, int32_t device);

/**
 * How many plans a device may have (cufft_plan_cache.max_size): 4096 unless it was set.
 */
tcuda_status_t tcuda_cufft_plan_cache_max_size(int64_t *max_size, int32_t device);

/**
 * Says how many plans a device may have; those that are too many are destroyed at once. 0: none is kept. More may be in use at one time.
 *
 * @return TCUDA_ERROR_INVALID_ARGUMENT: below 0.
 */
tcuda_status_t tcuda_cufft_plan_cache_set_max_size(int64_t max_size, int32_t device);

/**
 * Destroys a device's plans (cufft_plan_cache.clear), but for those in use and those that graphs use. Waits for what they were executed for.
 */
tcuda_status_t tcuda_cufft_plan_cache_clear(int32_t device);

/**
 * The file that cuFFT was loaded from, for programs that look its functions up.
 *
 * @param text   gets the path with a terminating zero; NULL with capacity 0 asks for the size only.
 * @param needed gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
 */
tcuda_status_t tcuda_cufft_library(char *text, size_t capacity, size_t *needed);

/* ==== Trace ===================================================================================================================
 * A program may be told of what happens: the ten callbacks of torch's GPU trace. A function is called on the thread that made the call of
 * tcuda, when its work is done and before it returns, in the order in which things happened; several threads may call it at once. A call
 * that began before anybody was registered need not be told. What failed is not; a batch that fails half way gives back what it had, and
 * tells it. No lock is held, so it may call tcuda; what it does there itself is told to nobody, so that it cannot call itself without end.
 * A C++ exception or longjmp must not leave it.
 * Of two threads one may be told of an allocation before the other is told of the free that made room for it.
 * tcuda's own waits, copies and collectives are told as the events, waits and blocks that they are made of. While nobody is registered it
 * costs one read of a word that nobody writes; while somebody is told of blocks, threads keep none to themselves, and each allocation
 * takes some hundred nanoseconds. Registrations stay over tcuda_shutdown, and what that gives back is not told.
 */

/**
 * Registers a function that is told of one kind of events, or of all (torch._C._gpu_trace.register_callback_for_*). The section's text says
 * how it is called. Needs no device.
 *
 * @param id        gets a number for tcuda_trace_unregister.
 * @param kind      TCUDA_TRACE_*.
 * @param function  not NULL; the same function may be registered several times.
 * @param user_data goes to each call.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: there is no such kind.
 */
tcuda_status_t tcuda_trace_register(uint64_t *id, int32_t kind, tcuda_trace_fn_t function, void *user_data);

/**
 * Ends a registration. On return the function is not called any more: calls of it that run on other threads are waited for, so what
 * they need must not be held here. Called inside a trace function, a pressure callback or an
 * observer it does not wait.
 *
 * @return TCUDA_ERROR_INVALID_HANDLE: no trace function has this number.
 */
tcuda_status_t tcuda_trace_unregister(uint64_t id);

/* ==== Synchronization debug mode ==============================================================================================
 * Finds the calls that make the host wait for a device. In the mode warn each is told, with the call of tcuda, the call of CUDA in it, how
 * long it took and what the thread said that it is doing (tcuda_memory_annotate): to the function of tcuda_sync_debug_set_callback, else
 * to the log. In the mode error it fails instead, before anything was done, with TCUDA_ERROR_INVALID_STATE. torch covers copies and streams;
 * here it is every call that waits: for a stream, an event or a device, also where an allocation would have to; copies that wait; and
 * what makes the driver wait when it gives memory or takes it back (cudaMalloc, cudaFree, pinned memory, modules). That last sort is told
 * and counted in the mode error too, but not refused, since memory would be lost. A call that finds all done waits no less. tcuda_shutdown is
 * never refused.
 * TCUDA_SYNC_DEBUG sets the mode at the start: default, warn or error. While it is off it costs one read of a word.
 */

/**
 * Sets the mode of the process (torch.cuda.set_sync_debug_mode), which goes before that of TCUDA_SYNC_DEBUG.
 *
 * @param mode TCUDA_SYNC_DEFAULT, TCUDA_SYNC_WARN or TCUDA_SYNC_ERROR: 0, 1, 2 as torch's.
 */
tcuda_status_t tcuda_set_sync_debug_mode(int32_t mode);

/**
 * The mode of the process (torch.cuda.get_sync_debug_mode).
 */
tcuda_status_t tcuda_get_sync_debug_mode(int32_t *mode);

/**
 * Sets the mode of the calling thread, which goes before that of the process and ends with the thread.
 *
 * @param mode as tcuda_set_sync_debug_mode's; TCUDA_SYNC_FOLLOW (-1): that of the process, as at first.
 */
tcuda_status_t tcuda_set_thread_sync_debug_mode(int32_t mode);

/**
 * The mode of the calling thread; TCUDA_SYNC_FOLLOW: it has none of its own.
 */
tcuda_status_t tcuda_get_thread_sync_debug_mode(int32_t *mode);

/**
 * Has a function told of each wait and refusal, instead of the log; NULL brings the log back. A wait that another thread tells of at that
 * moment may still go to the function before.
 */
tcuda_status_t tcuda_sync_debug_set_callback(tcuda_sync_fn_t function, void *user_data);

/**
 * What was seen so far, on all threads whose mode was not the default one.
 *
 * @param stats struct_size has to be set; gets the figures.
 */
tcuda_status_t tcuda_sync_debug_stats(tcuda_sync_stats_t *stats);

/**
 * Sets the figures of tcuda_sync_debug_stats to zero.
 */
tcuda_status_t tcuda_sync_debug_reset_stats(void);

/* ==== Stream sanitizer ========================================================================================================
 * Finds missing order (torch's CUDA Stream Sanitizer): two accesses of which one writes, where no event, wait or synchronization says which
 * comes first; memory that is used after its free; a block that is freed while a stream may use it that was not recorded; waits for an event
 * that was never recorded; and replays of a graph over memory that was freed since. It finds them whichever way the race goes, since it
 * compares what is known and not what happens.
 * It sees what goes through tcuda: copies, fills, tensors, random numbers, compiled functions, collectives, graphs, allocations and frees,
 * events and waits. A program says what its own kernels and its host code do by tcuda_sanitizer_annotate_access. Both sides of each report
 * are named, with the call, the stream, the annotation of the thread and a number that grows with each access. TCUDA_SANITIZER=1 turns it
 * on at the start. docs/SANITIZER.md says what it knows and what not. While it is off each call reads one word for it.
 */

/**
 * Turns the sanitizer on, for the whole process; earlier reports are forgotten. What is under way is not known: turn it on where all is
 * quiet, best at the start. On already: nothing changes. Stops all threads that use a device's memory for a moment.
 */
tcuda_status_t tcuda_sanitizer_enable(void);

/**
 * Turns it off. Reports stay until it is turned on again.
 */
tcuda_status_t tcuda_sanitizer_disable(void);

/**
 * Whether it is on: by the environment, or by whoever turned it on last.
 */
tcuda_status_t tcuda_sanitizer_is_enabled(bool *enabled);

/**
 * Says that memory is read or written: by a kernel of the program's on a stream, right before or after its launch, or by the host. Memory of
 * anybody, but for pageable memory of the host, whose order is the program's own. Does nothing while the sanitizer is off.
 *
 * @param ptr    the first byte.
 * @param size   bytes; 0 does nothing.
 * @param mode   TCUDA_ACCESS_READ, TCUDA_ACCESS_WRITE or both.
 * @param stream NULL: the default stream of the memory's device; TCUDA_SANITIZER_HOST: the host.
 * @param name   of the kernel or what else does it, for reports; kept as long as the process, as those of tcuda_memory_annotate. May be NULL.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: NULL with a size, or a mode that is none. TCUDA_ERROR_INVALID_STATE: too many names.
 */
tcuda_status_t tcuda_sanitizer_annotate_access(const void *ptr,
                                               size_t size,
                                               int32_t mode,
                                               tcuda_stream_t stream,
                                               const char *name);

/**
 * How many reports there were since it was turned on. The first thousand are kept.
 */
tcuda_status_t tcuda_sanitizer_report_count(uint64_t *count);

/**
 * A report that was kept.
 *
 * @param text     gets it with a terminating zero; NULL with capacity 0 asks for the size only.
 * @param needed   gets the bytes needed, the terminating zero counted, also when the buffer is too small. May be NULL beside a buffer.
 * @param index    from 0, in the order in which they came.
 * @param format   TCUDA_REPORT_TEXT or TCUDA_REPORT_JSON: an object with kind, text, and the sides current, previous and allocation (or null),
 *                 each with does, call, device, stream, annotation, sequence, address and size.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: there is no such report, or it was not kept. TCUDA_ERROR_BUFFER_TOO_SMALL: nothing but `needed` was
 *         written.
 */
tcuda_status_t tcuda_sanitizer_report_get(char *text,
                                          size_t capacity,
                                          size_t *needed,
                                          uint64_t index,
                                          int32_t format);

/**
 * Has a function told of each report, instead of the log (where they are errors); NULL brings the log back. A report that another thread
 * tells of at that moment may still go to the function before.
 */
tcuda_status_t tcuda_sanitizer_set_callback(tcuda_sanitizer_fn_t function, void *user_data);

/* ==== The simulated device ====================================================================================================
 * With TCUDA_BACKEND=sim, or auto on a machine without a GPU, tcuda runs on a simulated machine of H100s (torch has none). It keeps
 * CUDA's rules and catches what a real device leaves undefined, so a program can be tested on it, with faults on demand. Kernels in CUDA
 * binaries do not run. These functions start the backend if need be; with another one they fail with TCUDA_ERROR_NOT_SUPPORTED. All but
 * tcuda_sim_configure and tcuda_sim_delay work after tcuda_shutdown too.
 */

/**
 * Says what the simulated machine is to look like; before the first call that needs a device. It does not choose the backend.
 *
 * @return TCUDA_ERROR_INVALID_ARGUMENT: a value is out of range; nothing changed. TCUDA_ERROR_INVALID_STATE: a backend is in use already.
 */
tcuda_status_t tcuda_sim_configure(const tcuda_sim_options_t *options);

/**
 * Makes a call of CUDA fail and do nothing else. Several such faults may wait at once. Calls for the last error are never struck.
 *
 * @param call The CUDA function as tcuda calls it (cudaMalloc, cuMemMap, cudaEventRecord); NULL: whichever.
 * @param nth  1: the next call; 0: every call until tcuda_sim_clear_faults.
 * @param code What it answers, of CUDA's codes (2: out of memory); above 0. One that CUDA cannot recover from (719, 700, 214; not 999) also
 *             loses the calling thread's current device, as tcuda_sim_lose_device does.
 * @return TCUDA_ERROR_INVALID_ARGUMENT: no function is called so, or the code is none.
 */
tcuda_status_t tcuda_sim_fail_at(const char *call, uint64_t nth, int32_t code);

/**
 * Forgets every fault that still waits for its call. Devices that are lost stay lost.
 */
tcuda_status_t tcuda_sim_clear_faults(void);

/**
 * How often tcuda (and a program that shares its table) has called a CUDA function.
 *
 * @param call NULL: all together, without those that ask for the last error.
 */
tcuda_status_t tcuda_sim_call_count(uint64_t *count, const char *call);

/**
 * Sets all counts to 0.
 */
tcuda_status_t tcuda_sim_reset_call_counts(void);

/**
 * A device goes bad for good: its work stops where it is, and every later call on it answers the code, until the process ends.
 *
 * @param device -1: the current one; TCUDA_DEVICE_ALL: all.
 * @param code   Of CUDA's codes: 719 is a launch failure, 700 an illegal address, 214 an ECC error.
 */
tcuda_status_t tcuda_sim_lose_device(int32_t device, int32_t code);

/**
 * Changes how much memory can be had on a device, as if another process took or gave it. What is in use stays; below that nothing more can
 * be had. The total stays as it is; more than that is the total.
 *
 * @param device -1: the current one; TCUDA_DEVICE_ALL: each.
 */
tcuda_status_t tcuda_sim_set_memory(uint64_t bytes, int32_t device);

/**
 * What lives: so that a program can prove that nothing leaked.
 *
 * @param device -1: the current one; TCUDA_DEVICE_ALL: all together.
 */
tcuda_status_t tcuda_sim_live(tcuda_sim_live_t *live, int32_t device);

/**
 * Keeps a stream busy (torch.cuda._sleep, in time instead of cycles), so that a test can see what happens meanwhile.
 *
 * @param nanoseconds At most an hour.
 */
tcuda_status_t tcuda_sim_delay(tcuda_stream_t stream, uint64_t nanoseconds);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TCUDA_H */
