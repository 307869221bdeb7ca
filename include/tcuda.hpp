/* tcuda for C++17: owners and guards over tcuda.h, header only. A failing call throws tcuda::error; destructors never throw. */

#ifndef TCUDA_HPP
#define TCUDA_HPP

#if !defined(_MSVC_LANG) && __cplusplus < 201703L
#error "tcuda.hpp needs C++17; tcuda.h works from C++11 on"
#endif

#include "tcuda.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace tcuda {

/* What a call of tcuda answered when it was not success. The text is that of the thread's last failure, if it was with this status. */
class error : public std::runtime_error {
public:
    explicit error(tcuda_status_t status) : error(status, last()) {}

    tcuda_status_t status() const noexcept { return status_; }
    /* TCUDA_ERROR_OUT_OF_MEMORY and so on. */
    const char *name() const noexcept { return tcuda_status_name(status_); }
    /* CUDA's own code, or 0. */
    std::int32_t native() const noexcept { return native_; }

private:
    error(tcuda_status_t status, const tcuda_error_info_t &last)
        : std::runtime_error(last.status == status ? last.message : tcuda_status_message(status)), status_(status),
          native_(last.status == status ? last.native : 0) {}
    static tcuda_error_info_t last() noexcept {
        tcuda_error_info_t info = TCUDA_ERROR_INFO_INIT;
        info.message = "";
        (void)tcuda_last_error(&info);
        return info;
    }

    tcuda_status_t status_;
    std::int32_t native_;
};

/* There is no room on the device: torch.cuda.OutOfMemoryError. */
class out_of_memory : public error {
public:
    using error::error;
};

/* Throws unless the status is success. */
inline void check(tcuda_status_t status) {
    if (status == TCUDA_SUCCESS)
        return;
    if (status == TCUDA_ERROR_OUT_OF_MEMORY)
        throw out_of_memory(status);
    throw error(status);
}
/* A status that a struct holds. */
inline void check(std::int32_t status) { check(static_cast<tcuda_status_t>(status)); }

inline std::int32_t device_count() {
    std::int32_t count = 0;
    check(tcuda_device_count(&count));
    return count;
}

inline std::int32_t current_device() {
    std::int32_t device = 0;
    check(tcuda_current_device(&device));
    return device;
}

inline tcuda_device_properties_t device_properties(std::int32_t device = TCUDA_DEVICE_CURRENT) {
    tcuda_device_properties_t properties = TCUDA_DEVICE_PROPERTIES_INIT;
    check(tcuda_get_device_properties(&properties, device));
    return properties;
}

inline void synchronize(std::int32_t device = TCUDA_DEVICE_CURRENT) { check(tcuda_synchronize(device)); }

/* A device for the length of a scope: `with torch.cuda.device(d)`. A negative index changes nothing. */
class device_guard {
public:
    explicit device_guard(std::int32_t device) {
        if (device >= 0)
            check(tcuda_exchange_device(&previous_, device));
    }
    ~device_guard() { (void)tcuda_set_device(previous_); }
    device_guard(const device_guard &) = delete;
    device_guard &operator=(const device_guard &) = delete;

private:
    std::int32_t previous_ = -1;
};

class event;
class stream;

/* A stream of somebody else's: it has to live as long as this is used. Made of any cudaStream_t, and compared as one. */
class stream_ref {
public:
    stream_ref(tcuda_stream_t stream) noexcept : stream_(stream) {}
    inline stream_ref(const stream &stream) noexcept;
    stream_ref(const stream &&) = delete; /* it would be destroyed before it is used */
    /* NULL is the default stream of whatever device is current; say which is meant. */
    stream_ref(std::nullptr_t) = delete;

    static stream_ref default_of(std::int32_t device = TCUDA_DEVICE_CURRENT) {
        tcuda_stream_t stream = nullptr;
        check(tcuda_default_stream(&stream, device));
        return stream;
    }
    /* The calling thread's current stream of a device. */
    static stream_ref current(std::int32_t device = TCUDA_DEVICE_CURRENT) {
        tcuda_stream_t stream = nullptr;
        check(tcuda_current_stream(&stream, device));
        return stream;
    }
    /* The next stream of the pool: torch.cuda.Stream. */
    static stream_ref from_pool(std::int32_t device = TCUDA_DEVICE_CURRENT, std::int32_t priority = 0) {
        tcuda_stream_t stream = nullptr;
        check(tcuda_stream_from_pool(&stream, device, priority));
        return stream;
    }

    tcuda_stream_t get() const noexcept { return stream_; }
    operator tcuda_stream_t() const noexcept { return stream_; }

    /* What CUDA is to be given. */
    tcuda_stream_t native() const {
        tcuda_stream_t native = nullptr;
        check(tcuda_stream_native(stream_, &native));
        return native;
    }
    std::int32_t device() const {
        std::int32_t device = 0;
        check(tcuda_stream_device(stream_, &device));
        return device;
    }
    std::int32_t priority() const {
        std::int32_t priority = 0;
        check(tcuda_stream_priority(stream_, &priority));
        return priority;
    }
    bool query() const {
        bool complete = false;
        check(tcuda_stream_query(stream_, &complete));
        return complete;
    }
    void synchronize() const { check(tcuda_stream_synchronize(stream_)); }
    void wait_stream(stream_ref other) const { check(tcuda_stream_wait_stream(stream_, other)); }
    inline void wait_event(const event &event) const;
    inline event record_event() const;

    /* Calls a function on the host when the work before it is done. An exception that leaves it ends the program. It goes with its call, so
     * it cannot be captured: what each replay calls is given to tcuda_stream_add_host_function, with data that lives as long as the graph. */
    template <class Function>
    void add_host_function(Function &&function) const {
        bool capturing = false;
        check(tcuda_stream_is_capturing(stream_, &capturing));
        if (capturing)
            throw std::logic_error("tcuda: add_host_function cannot be captured, since its function goes with the first call. Give "
                                   "tcuda_stream_add_host_function what lives as long as the graph");
        using Call = std::decay_t<Function>;
        auto call = std::make_unique<Call>(std::forward<Function>(function));
        check(tcuda_stream_add_host_function(stream_, &run<Call>, call.get()));
        (void)call.release();
    }

private:
    template <class Call>
    static void run(void *data) noexcept {
        std::unique_ptr<Call> call(static_cast<Call *>(data));
        (*call)();
    }

    tcuda_stream_t stream_;
};

/* A stream of one's own: stream->synchronize() and the other methods of stream_ref. */
class stream {
public:
    explicit stream(std::int32_t device = TCUDA_DEVICE_CURRENT, std::int32_t priority = 0) {
        tcuda_stream_t made = nullptr;
        check(tcuda_stream_create(&made, device, priority));
        ref_ = made;
    }
    ~stream() {
        if (ref_.get() != none())
            (void)tcuda_stream_destroy(ref_);
    }
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;
    stream(stream &&other) noexcept { std::swap(ref_, other.ref_); }
    stream &operator=(stream &&other) noexcept {
        std::swap(ref_, other.ref_);
        return *this;
    }

    tcuda_stream_t get() const noexcept { return ref_; }
    operator tcuda_stream_t() const & noexcept { return ref_; }
    operator tcuda_stream_t() const && = delete; /* it would be destroyed before it is used */
    const stream_ref *operator->() const noexcept { return &ref_; }

private:
    /* What a stream is that was moved from: no stream, not even the default one. Every call refuses it. */
    static tcuda_stream_t none() noexcept { return reinterpret_cast<tcuda_stream_t>(std::uintptr_t{3}); }

    stream_ref ref_ = none();
};

inline stream_ref::stream_ref(const stream &stream) noexcept : stream_(stream.get()) {}

/* An event. Without timing by default, as torch.cuda.Event; TCUDA_EVENT_DEFAULT has timing. */
class event {
public:
    explicit event(std::uint32_t flags = TCUDA_EVENT_DISABLE_TIMING) { check(tcuda_event_create(&event_, flags)); }
    ~event() { (void)tcuda_event_destroy(event_); }
    event(const event &) = delete;
    event &operator=(const event &) = delete;
    event(event &&other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    event &operator=(event &&other) noexcept {
        std::swap(event_, other.event_);
        return *this;
    }
    /* Takes an event over and ends it in the end. */
    static event adopt(tcuda_event_t raw) noexcept { return event(adopted{}, raw); }

    tcuda_event_t get() const noexcept { return event_; }

    void record(stream_ref stream) { check(tcuda_event_record(event_, stream)); }
    void wait(stream_ref stream) const { check(tcuda_event_wait(event_, stream)); }
    /* On a stream that is captured, by each replay: torch.cuda.Event(external=True). */
    void record_external(stream_ref stream) { check(tcuda_event_record_external(event_, stream)); }
    void wait_external(stream_ref stream) const { check(tcuda_event_wait_external(event_, stream)); }
    bool query() const {
        bool complete = false;
        check(tcuda_event_query(event_, &complete));
        return complete;
    }
    void synchronize() const { check(tcuda_event_synchronize(event_)); }
    /* Milliseconds from this record to another's. */
    float elapsed_time(const event &end) const {
        float milliseconds = 0;
        check(tcuda_event_elapsed_time(&milliseconds, event_, end.event_));
        return milliseconds;
    }

private:
    struct adopted {};
    event(adopted, tcuda_event_t raw) noexcept : event_(raw) {}

    tcuda_event_t event_ = nullptr;
};

inline void stream_ref::wait_event(const event &event) const { check(tcuda_stream_wait_event(stream_, event.get())); }

inline event stream_ref::record_event() const {
    tcuda_event_t made = nullptr;
    check(tcuda_stream_record_event(stream_, &made));
    return event::adopt(made);
}

/* A current stream, and its device, for the length of a scope: `with torch.cuda.stream(s)`. In the place of a stream that is destroyed meanwhile
 * comes the default stream of its device. */
class stream_guard {
public:
    explicit stream_guard(stream_ref stream) : device_(current_device()), other_(stream.device()) {
        check(tcuda_exchange_stream(&previous_, &replaced_, stream));
    }
    ~stream_guard() {
        bring_back(replaced_, other_);
        bring_back(previous_, device_);
    }
    stream_guard(const stream_guard &) = delete;
    stream_guard &operator=(const stream_guard &) = delete;

private:
    static void bring_back(tcuda_stream_t stream, std::int32_t device) noexcept {
        if (tcuda_set_stream(stream) != TCUDA_SUCCESS)
            (void)tcuda_set_stream(TCUDA_STREAM_DEFAULT(device));
    }

    std::int32_t device_;
    std::int32_t other_;
    tcuda_stream_t previous_ = nullptr;
    tcuda_stream_t replaced_ = nullptr;
};

/* `size()` elements of memory that End gives back when they go. No element is made or destroyed. */
template <class T, tcuda_status_t (*End)(void *)>
class elements {
    static_assert(std::is_trivially_copyable_v<T>, "what a device reaches is moved as bytes");

public:
    using value_type = T;

    elements() noexcept = default;
    ~elements() { (void)End(data_); }
    elements(const elements &) = delete;
    elements &operator=(const elements &) = delete;
    elements(elements &&other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    elements &operator=(elements &&other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }

    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    bool empty() const noexcept { return size_ == 0; }
    /* Gives the memory away; End ends it. */
    T *release() noexcept {
        size_ = 0;
        return std::exchange(data_, nullptr);
    }

protected:
    /* By `take`, of where the address goes and how many bytes there are to be. */
    template <class Take>
    elements(std::size_t size, const Take &take) {
        if (size > SIZE_MAX / sizeof(T))
            throw std::length_error("tcuda: more elements than memory can hold");
        void *data = nullptr;
        check(take(&data, size * sizeof(T)));
        data_ = static_cast<T *>(data);
        size_ = size;
    }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/* `size()` elements of device memory from the cache, for work on a stream: caching_allocator_alloc. Freed on that stream when it goes;
 * record_stream tells of other streams that use it. The host cannot reach it. */
template <class T = std::byte>
class buffer : public elements<T, tcuda_free_cached> {
public:
    buffer() noexcept = default;
    explicit buffer(std::size_t size, stream_ref stream = TCUDA_STREAM_CURRENT)
        : buffer::elements(size, [&](void **data, std::size_t bytes) { return take(data, bytes, stream); }) {}

    /* The memory is not given to others before what this stream has got until the buffer goes is done. */
    void record_stream(stream_ref stream) const { check(tcuda_record_stream(this->data(), stream)); }

private:
    /* Every block starts at a multiple of 512, and is had faster without an alignment. */
    static tcuda_status_t take(void **data, std::size_t bytes, tcuda_stream_t stream) noexcept {
        if constexpr (alignof(T) <= 512)
            return tcuda_malloc_cached(data, bytes, stream);
        else
            return tcuda_malloc_cached_aligned(data, bytes, alignof(T), stream);
    }
};

/* `size()` elements of pinned host memory from the cache, which the host reaches too: pin_memory. Their first values are not defined. What
 * tcuda's copies do with it it knows; record_stream tells of other uses, and the memory is not given out again before they are done. */
template <class T = std::byte>
class pinned_buffer : public elements<T, tcuda_host_free_cached> {
    static_assert(alignof(T) <= 512 || alignof(T) == 4096, "pinned blocks start at a multiple of 512; those of a page or more at one of 4096");

public:
    pinned_buffer() noexcept = default;
    explicit pinned_buffer(std::size_t size) : pinned_buffer::elements(size, tcuda_host_malloc_cached) {}

    T &operator[](std::size_t index) const noexcept { return this->data()[index]; }
    T *begin() const noexcept { return this->data(); }
    T *end() const noexcept { return this->data() + this->size(); }
    void record_stream(stream_ref stream) const { check(tcuda_host_record_stream(this->data(), stream)); }
};

/* The owner of a handle that a function of tcuda made: tcuda_communicator_t made = nullptr; check(tcuda_communicator_init_rank(&made, ...));
 * tcuda::communicator communicator(made). NULL is none. Whoever takes the handle over gets it by release(). */
template <class Handle, tcuda_status_t (*End)(Handle)>
class owner {
public:
    owner() noexcept = default;
    explicit owner(Handle made) noexcept : handle_(made) {}
    ~owner() { (void)End(handle_); }
    owner(const owner &) = delete;
    owner &operator=(const owner &) = delete;
    owner(owner &&other) noexcept : handle_(other.release()) {}
    owner &operator=(owner &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }

    Handle get() const noexcept { return handle_; }
    Handle release() noexcept { return std::exchange(handle_, nullptr); }

private:
    Handle handle_ = nullptr;
};

using communicator = owner<tcuda_communicator_t, tcuda_communicator_destroy>;
using graphed_callable = owner<tcuda_graphed_callable_t, tcuda_graphed_callable_destroy>;
using jit = owner<tcuda_jit_t, tcuda_jit_destroy>;
using kernel_module = owner<tcuda_kernel_module_t, tcuda_kernel_module_destroy>;
using nvtx_domain = owner<tcuda_nvtx_domain_t, tcuda_nvtx_domain_destroy>;
using snapshot = owner<tcuda_snapshot_t, tcuda_snapshot_destroy>;

/* A tensor that a function of tcuda made, or any other producer of DLPack tensors, ended once. */
class tensor : public owner<tcuda_managed_tensor_t *, tcuda_tensor_destroy> {
public:
    using owner::owner;
    const tcuda_managed_tensor_t *operator->() const noexcept { return get(); }
};

/* A graph: torch.cuda.CUDAGraph. */
class graph : public owner<tcuda_graph_t, tcuda_graph_destroy> {
public:
    explicit graph(std::uint32_t flags = 0) : owner(make(flags)) {}

    /* Captures what a function gives to a stream, which is current meanwhile: `with torch.cuda.graph(g, stream=s)`. An exception ends the
     * capture, with nothing left of it. */
    template <class Function>
    void capture(stream_ref stream, Function &&function, tcuda_pool_id_t pool = {}, std::int32_t mode = TCUDA_CAPTURE_GLOBAL) {
        const stream_guard current(stream);
        check(tcuda_graph_capture_begin(get(), stream, pool, mode));
        try {
            std::forward<Function>(function)();
        } catch (...) {
            (void)tcuda_graph_reset(get());
            throw;
        }
        check(tcuda_graph_capture_end(get()));
    }
    void instantiate() { check(tcuda_graph_instantiate(get())); }
    void replay(stream_ref stream) { check(tcuda_graph_replay(get(), stream)); }
    void reset() { check(tcuda_graph_reset(get())); }
    /* To share it with graphs that are never replayed at the same time. */
    tcuda_pool_id_t pool() const {
        tcuda_pool_id_t pool{};
        check(tcuda_graph_pool(get(), &pool));
        return pool;
    }

private:
    static tcuda_graph_t make(std::uint32_t flags) {
        tcuda_graph_t made = nullptr;
        check(tcuda_graph_create(&made, flags));
        return made;
    }
};

/* A memory pool: torch.cuda.MemPool. It has to be closed before it goes, and not be paused with blocks in use: it is left then. */
class mem_pool : public owner<tcuda_mem_pool_t, tcuda_mem_pool_destroy> {
public:
    explicit mem_pool(std::int32_t device = TCUDA_DEVICE_CURRENT, const tcuda_mem_pool_options_t *options = nullptr)
        : owner(make(device, options)) {}

    void trim() { check(tcuda_mem_pool_trim(get())); }
    /* TCUDA_PAUSE_KEEP or TCUDA_PAUSE_DROP; the bytes that went back. */
    std::size_t pause(std::int32_t mode = TCUDA_PAUSE_KEEP) {
        std::size_t given = 0;
        check(tcuda_mem_pool_pause(get(), &given, mode));
        return given;
    }
    void resume() { check(tcuda_mem_pool_resume(get())); }
    std::uint64_t use_count() const {
        std::uint64_t count = 0;
        check(tcuda_mem_pool_use_count(get(), &count));
        return count;
    }
    tcuda_memory_stats_t stats() const {
        tcuda_memory_stats_t stats = TCUDA_MEMORY_STATS_INIT;
        check(tcuda_mem_pool_stats(get(), &stats));
        return stats;
    }

private:
    static tcuda_mem_pool_t make(std::int32_t device, const tcuda_mem_pool_options_t *options) {
        tcuda_mem_pool_t made = nullptr;
        check(tcuda_mem_pool_create(&made, device, options));
        return made;
    }
};

/* What the calling thread allocates on the pool's device comes from the pool, for the length of a scope: torch.cuda.use_mem_pool. */
class mem_pool_guard {
public:
    explicit mem_pool_guard(const mem_pool &pool) : pool_(pool.get()) { check(tcuda_mem_pool_begin(pool_)); }
    ~mem_pool_guard() { (void)tcuda_mem_pool_end(pool_); }
    mem_pool_guard(const mem_pool_guard &) = delete;
    mem_pool_guard &operator=(const mem_pool_guard &) = delete;

private:
    tcuda_mem_pool_t pool_;
};

/* Some of a device's multiprocessors, at least so many, and streams whose kernels run on those: GreenContext. Its streams go with it. */
class green_context : public owner<tcuda_green_context_t, tcuda_green_context_destroy> {
public:
    explicit green_context(std::int32_t num_sms, std::int32_t device = TCUDA_DEVICE_CURRENT) : owner(make(num_sms, device)) {}

    /* How many it really has. */
    std::int32_t num_sms() const {
        std::int32_t num_sms = 0;
        check(tcuda_green_context_num_sms(get(), &num_sms));
        return num_sms;
    }
    /* The next of its 32. */
    stream_ref stream() const {
        tcuda_stream_t stream = nullptr;
        check(tcuda_green_context_stream(&stream, get()));
        return stream;
    }

private:
    static tcuda_green_context_t make(std::int32_t num_sms, std::int32_t device) {
        tcuda_green_context_t made = nullptr;
        check(tcuda_green_context_create(&made, num_sms, device));
        return made;
    }
};

/* A generator of random numbers: torch.Generator. Without one, NULL is the default generator of the device in question. */
class generator {
public:
    using state_type = std::array<std::uint8_t, 16>;

    explicit generator(std::int32_t device = TCUDA_DEVICE_CURRENT) {
        tcuda_generator_t made = nullptr;
        check(tcuda_generator_create(&made, device));
        generator_ = made;
    }
    ~generator() {
        if (generator_ != none())
            (void)tcuda_generator_destroy(generator_);
    }
    generator(const generator &) = delete;
    generator &operator=(const generator &) = delete;
    generator(generator &&other) noexcept { std::swap(generator_, other.generator_); }
    generator &operator=(generator &&other) noexcept {
        std::swap(generator_, other.generator_);
        return *this;
    }
    /* Another one that goes on from here by itself. */
    generator clone() const {
        tcuda_generator_t made = nullptr;
        check(tcuda_generator_clone(&made, generator_));
        return generator(adopted{}, made);
    }

    tcuda_generator_t get() const noexcept { return generator_; }
    operator tcuda_generator_t() const noexcept { return generator_; }

    std::int32_t device() const {
        std::int32_t device = 0;
        check(tcuda_generator_device(generator_, &device));
        return device;
    }
    void manual_seed(std::uint64_t seed) { check(tcuda_generator_manual_seed(generator_, seed)); }
    /* Sets a seed that nobody can foretell. */
    std::uint64_t seed() {
        std::uint64_t seed = 0;
        check(tcuda_generator_seed(generator_, &seed));
        return seed;
    }
    std::uint64_t initial_seed() const {
        std::uint64_t seed = 0;
        check(tcuda_generator_initial_seed(generator_, &seed));
        return seed;
    }
    state_type state() const {
        state_type state{};
        check(tcuda_generator_get_state(generator_, state.data(), state.size()));
        return state;
    }
    void set_state(const state_type &state) { check(tcuda_generator_set_state(generator_, state.data(), state.size())); }
    std::uint64_t offset() const {
        std::uint64_t offset = 0;
        check(tcuda_generator_get_offset(generator_, &offset));
        return offset;
    }
    void set_offset(std::uint64_t offset) { check(tcuda_generator_set_offset(generator_, offset)); }
    /* Draws as on a device that has so many multiprocessors with so many threads. */
    void draw_as(std::int32_t multiprocessors, std::int32_t threads) {
        check(tcuda_generator_set_geometry(generator_, TCUDA_GEOMETRY_NAMED, multiprocessors, threads));
    }
    /* One of the names of tcuda_generator_geometry_of: "A100". */
    void draw_as(const char *name) {
        std::int32_t multiprocessors = 0, threads = 0;
        check(tcuda_generator_geometry_of(&multiprocessors, &threads, name));
        draw_as(multiprocessors, threads);
    }
    /* Draws the same on every device. */
    void draw_portably() { check(tcuda_generator_set_geometry(generator_, TCUDA_GEOMETRY_PORTABLE, 0, 0)); }
    /* For one launch of a kernel whose threads draw so many 32-bit numbers at most. */
    tcuda_philox_state_t philox_state(std::uint64_t increment, stream_ref stream) {
        tcuda_philox_state_t state{};
        check(tcuda_generator_philox_state(&state, generator_, increment, stream));
        return state;
    }

private:
    struct adopted {};
    generator(adopted, tcuda_generator_t raw) noexcept : generator_(raw) {}
    /* What was moved from: no generator, not even a default one. Every call refuses it. */
    static tcuda_generator_t none() noexcept { return reinterpret_cast<tcuda_generator_t>(UINTPTR_MAX); }

    tcuda_generator_t generator_ = none();
};

/* A range of the calling thread for the length of a scope: torch.cuda.nvtx.range. It has to end on the thread that it began on. */
class nvtx_range {
public:
    explicit nvtx_range(const char *message) noexcept { (void)tcuda_nvtx_range_push(message != nullptr ? message : ""); }
    explicit nvtx_range(const std::string &message) noexcept : nvtx_range(message.c_str()) {}
    ~nvtx_range() { (void)tcuda_nvtx_range_pop(); }
    nvtx_range(const nvtx_range &) = delete;
    nvtx_range &operator=(const nvtx_range &) = delete;
};

/* Has a profiler collect for the length of a scope: torch.cuda.profiler.profile. */
class profiler_guard {
public:
    profiler_guard() { check(tcuda_profiler_start()); }
    ~profiler_guard() { (void)tcuda_profiler_stop(); }
    profiler_guard(const profiler_guard &) = delete;
    profiler_guard &operator=(const profiler_guard &) = delete;
};

/* What the calling thread allocates in a scope is for this, and afterwards for what it was before. */
class annotation_guard {
public:
    explicit annotation_guard(const char *annotation) : before_(tcuda_memory_annotation()) { check(tcuda_memory_annotate(annotation)); }
    explicit annotation_guard(const std::string &annotation) : annotation_guard(annotation.c_str()) {}
    ~annotation_guard() { (void)tcuda_memory_annotate(before_); }
    annotation_guard(const annotation_guard &) = delete;
    annotation_guard &operator=(const annotation_guard &) = delete;

private:
    const char *before_;
};

/* The stream sanitizer for the length of a scope; what it found in it throws no error, `count` tells. One that is on already stays on
 * afterwards. It is on for the whole process: of scopes on several threads the first one that began should be the last one to end. */
class sanitizer_guard {
public:
    sanitizer_guard() {
        bool enabled = false;
        check(tcuda_sanitizer_is_enabled(&enabled));
        if (enabled)
            check(tcuda_sanitizer_report_count(&before_));
        else
            check(tcuda_sanitizer_enable());
        ends_ = !enabled;
    }
    ~sanitizer_guard() {
        if (ends_)
            (void)tcuda_sanitizer_disable();
    }
    sanitizer_guard(const sanitizer_guard &) = delete;
    sanitizer_guard &operator=(const sanitizer_guard &) = delete;

    /* Reports since this scope began. */
    std::uint64_t count() const {
        std::uint64_t count = 0;
        check(tcuda_sanitizer_report_count(&count));
        /* Less where somebody turned it off and on. */
        return count < before_ ? count : count - before_;
    }

private:
    std::uint64_t before_ = 0;
    bool ends_ = false;
};

/* TCUDA_ACCESS as a function, with a name of one's own. */
template <class T>
void annotate_access(T *pointer, std::size_t count, std::int32_t mode, tcuda_stream_t stream, const char *name = nullptr) {
    constexpr std::size_t size = sizeof(std::conditional_t<std::is_void_v<T>, char, T>);
    check(tcuda_sanitizer_annotate_access(pointer, count * size, mode, stream, name));
}

/* A synchronization debug mode of the calling thread for the length of a scope: TCUDA_SYNC_*. */
class sync_debug_guard {
public:
    explicit sync_debug_guard(std::int32_t mode) {
        check(tcuda_get_thread_sync_debug_mode(&previous_));
        check(tcuda_set_thread_sync_debug_mode(mode));
    }
    ~sync_debug_guard() { (void)tcuda_set_thread_sync_debug_mode(previous_); }
    sync_debug_guard(const sync_debug_guard &) = delete;
    sync_debug_guard &operator=(const sync_debug_guard &) = delete;

private:
    std::int32_t previous_ = TCUDA_SYNC_FOLLOW;
};

} // namespace tcuda

/* What a kernel of the program's does to memory on a stream, or the host (TCUDA_SANITIZER_HOST), for the stream sanitizer: said beside its
 * launch, and named after the place in the source. Bytes are those of `count` elements of what `pointer` points to; `void` counts bytes. With
 * TCUDA_NO_SANITIZER defined there is nothing of it. */
#ifdef TCUDA_NO_SANITIZER
#define TCUDA_ACCESS(stream, pointer, count, mode) ((void)0)
#else
#define TCUDA_TEXT_(text) #text
#define TCUDA_LINE_(line) TCUDA_TEXT_(line)
#define TCUDA_ACCESS(stream, pointer, count, mode) \
    ::tcuda::annotate_access((pointer), (count), (mode), (stream), __FILE__ ":" TCUDA_LINE_(__LINE__))
#endif
#define TCUDA_READS(stream, pointer, count) TCUDA_ACCESS(stream, pointer, count, TCUDA_ACCESS_READ)
#define TCUDA_WRITES(stream, pointer, count) TCUDA_ACCESS(stream, pointer, count, TCUDA_ACCESS_WRITE)

#endif
