// A program on tcuda's streams and memory: kernels of its own, cuFFT, cuBLAS, Thrust and CUB, captured in one graph. CMakeLists.txt beside
// this file builds it. Ends with 0 if every number was right, with 77 where there is no GPU.
//
// One step draws a random signal, transforms it and back (cuFFT), multiplies it with itself as a matrix (cuBLAS), and finds the largest errors
// of both (a kernel and CUB). Two steps are made one by one, then as replays of a graph, which have to draw the same numbers.

#include <tcuda/cccl.hpp>
#include <tcuda/philox.cuh>

#include <cub/device/device_reduce.cuh>
#include <cublas_v2.h>
#include <cufft.h>
#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/sort.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

constexpr int N = 256;       // the matrix is N by N
constexpr int COUNT = N * N; // numbers of the signal, as real ones; half as many complex ones
constexpr int LENGTH = COUNT / 2;

__global__ void draw(float *signal, tcuda::philox_state state) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    tcuda::philox numbers(state, i); // each thread has a sequence of its own
    if (i < COUNT)
        signal[i] = numbers.uniform();
}

// What the transform there and back, and the product, are wrong by.
__global__ void compare(float *errors, const float *signal, const cufftComplex *back, const float *product) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= COUNT)
        return;
    const cufftComplex value = back[i / 2];
    const float transformed = fabsf((i % 2 ? value.y : value.x) / LENGTH - signal[i]);
    float sum = 0;
    for (int k = 0; k < N; ++k)
        sum += signal[i % N + k * N] * signal[k + i / N * N]; // by columns, as cuBLAS has it
    errors[i] = fmaxf(transformed, fabsf(product[i] - sum) / N);
}

struct largest {
    __host__ __device__ float operator()(float a, float b) const { return a < b ? b : a; }
};

static void must(int answer, const char *what) {
    if (answer != 0)
        throw std::runtime_error(std::string(what) + " answered " + std::to_string(answer));
}

class program {
public:
    // All on one stream, enqueued and not waited for. Memory in between comes and goes with the step; in a capture it is the graph's.
    void step() {
        const tcuda::stream_guard current(stream_);
        const auto native = stream_->native();
        const int blocks = (COUNT + 255) / 256;
        draw<<<blocks, 256, 0, native>>>(signal_.data(), generator_.philox_state(1, stream_));

        tcuda::buffer<cufftComplex> frequencies(LENGTH, stream_);
        tcuda_cufft_transform_t transform = TCUDA_CUFFT_TRANSFORM_INIT;
        transform.kind = TCUDA_CUFFT_C2C;
        transform.rank = 1;
        transform.n[0] = LENGTH;
        transform.batch = 1;
        std::int32_t plan;
        tcuda::check(tcuda_cufft_plan_cache_get(&plan, &transform, stream_->get())); // on this stream, its work area from the cache
        const auto complex = reinterpret_cast<cufftComplex *>(signal_.data());
        const int forward = cufftExecC2C(plan, complex, frequencies.data(), CUFFT_FORWARD);
        const int inverse = cufftExecC2C(plan, frequencies.data(), frequencies.data(), CUFFT_INVERSE);
        tcuda::check(tcuda_cufft_plan_cache_put(plan));
        must(forward, "cuFFT");
        must(inverse, "cuFFT");

        tcuda::buffer<float> product(COUNT, stream_), errors(COUNT, stream_);
        tcuda_blas_handle_t blas;
        tcuda::check(tcuda_current_blas_handle(&blas)); // of this thread, for the current stream
        const float one = 1, zero = 0;
        const float *const matrix = signal_.data();
        must(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, matrix, N, matrix, N, &zero, product.data(), N), "cuBLAS");

        compare<<<blocks, 256, 0, native>>>(errors.data(), signal_.data(), frequencies.data(), product.data());
        must(cudaGetLastError(), "a launch");
        tcuda::with_temporary_storage(stream_, [&](void *storage, std::size_t &bytes) {
            return cub::DeviceReduce::Reduce(storage, bytes, errors.data(), worst_.data(), COUNT, largest{}, 0.0f, native);
        });
    }

    void capture() {
        graph_.capture(stream_, [this] { step(); }, tcuda_pool_id_t{}, TCUDA_CAPTURE_THREAD_LOCAL);
    }

    void replay() { graph_.replay(stream_); }

    void seed(std::uint64_t seed) { generator_.manual_seed(seed); }

    // The signal and the largest error of the last step.
    std::pair<std::vector<float>, float> result() {
        std::pair<std::vector<float>, float> found(std::vector<float>(COUNT), 0);
        tcuda::check(tcuda_copy_async(found.first.data(), signal_.data(), signal_.size_bytes(), stream_->get()));
        tcuda::check(tcuda_copy_async(&found.second, worst_.data(), sizeof(float), stream_->get()));
        stream_->synchronize();
        return found;
    }

    // The signal sorted by Thrust, in a container that has its memory from the cache.
    std::vector<float> sorted() {
        const thrust::device_ptr<float> begin(signal_.data());
        thrust::device_vector<float, tcuda::allocator<float>> keys(begin, begin + COUNT, tcuda::allocator<float>(stream_));
        thrust::sort(tcuda::par(stream_), keys.begin(), keys.end());
        std::vector<float> host(COUNT);
        thrust::copy(keys.begin(), keys.end(), host.begin());
        return host;
    }

private:
    tcuda::stream stream_;
    tcuda::generator generator_;
    tcuda::buffer<float> signal_{COUNT, stream_}, worst_{1, stream_};
    tcuda::graph graph_;
};

static int failures = 0;

static void row(const char *what, const char *found, bool right) {
    std::printf("%-44s %-24s %s\n", what, found, right ? "right" : "WRONG");
    failures += !right;
}

static int run() {
    program work;
    std::vector<std::vector<float>> drawn;
    char text[64];
    float worst = 0;
    // The first step also makes the plan and the handle, which a capture has no leave to.
    for (const bool replayed : {false, true}) {
        if (replayed)
            work.capture();
        work.seed(42);
        for (int step = 0; step < 2; ++step) {
            replayed ? work.replay() : work.step();
            const auto found = work.result();
            drawn.push_back(found.first);
            worst = std::max(worst, found.second);
        }
    }
    double mean = 0;
    for (const float value : drawn[0])
        mean += value / COUNT;
    std::snprintf(text, sizeof text, "mean %.4f", mean);
    row("a kernel with numbers of tcuda/philox.cuh", text, std::fabs(mean - 0.5) < 0.01);
    std::snprintf(text, sizeof text, "off by %.1e", worst);
    row("cuFFT there and back, cuBLAS, CUB", text, worst > 0 && worst < 1e-5);
    row("two replays beside two steps", "the same bits", drawn[2] == drawn[0] && drawn[3] == drawn[1] && drawn[0] != drawn[1]);

    auto expected = drawn[3];
    std::sort(expected.begin(), expected.end());
    row("thrust::sort of a device_vector", "", work.sorted() == expected);

    // cuda::mr: allocated on one stream, freed on another one that used it last.
    std::uint64_t before = 0, after = 1;
    tcuda::check(tcuda_memory_allocated(&before, TCUDA_DEVICE_CURRENT));
    {
        tcuda::memory_resource resource;
        tcuda::stream first, second;
#if CCCL_VERSION >= 3001000
        void *const block = resource.allocate(cuda::stream_ref{first.get()}, 1 << 20, 4096);
        second->wait_stream(first);
        resource.deallocate(cuda::stream_ref{second.get()}, block, 1 << 20, 4096);
#else
        void *const block = resource.allocate_async(1 << 20, 4096, first.get());
        second->wait_stream(first);
        resource.deallocate_async(block, 1 << 20, 4096, second.get());
#endif
        std::snprintf(text, sizeof text, "aligned to %d", 4096);
        tcuda::check(tcuda_memory_allocated(&after, TCUDA_DEVICE_CURRENT));
        row("a block of a cuda::mr resource", text, reinterpret_cast<std::uintptr_t>(block) % 4096 == 0 && before == after);
    }
    return failures != 0;
}

int main() {
    try {
        const tcuda_status_t status = tcuda_init(nullptr);
        const bool none = status == TCUDA_ERROR_NO_DEVICE || status == TCUDA_ERROR_INSUFFICIENT_DRIVER;
        if (none || std::strcmp(tcuda_backend_name(), "sim") == 0) {
            std::printf("%s\n", none ? tcuda_last_error_message() : "The simulated device runs no kernels of CUDA.");
            return 77;
        }
        tcuda::check(status);
        const auto device = tcuda::device_properties();
        std::printf("%s, CCCL %d.%d\n", device.name, CCCL_MAJOR_VERSION, CCCL_MINOR_VERSION);
        return run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
