// The same first program in C++.

#include <cstring>
#include <iostream>
#include <tcuda.hpp>
#if !__has_include(<tcuda/philox.cuh>)
#error the header for kernels is not beside tcuda.hpp
#endif

int main()
{
    int32_t count = 0;
    tcuda_stream_t stream = nullptr;
    void *block = nullptr;

    if (tcuda_device_count(&count) != TCUDA_SUCCESS || count < 1 || tcuda_stream_create(&stream, 0, 0) != TCUDA_SUCCESS ||
        tcuda_malloc_cached(&block, 1 << 20, stream) != TCUDA_SUCCESS || tcuda_memset_async(block, 0, 1 << 20, stream) != TCUDA_SUCCESS ||
        tcuda_free_cached(block) != TCUDA_SUCCESS || tcuda_stream_synchronize(stream) != TCUDA_SUCCESS ||
        tcuda_stream_destroy(stream) != TCUDA_SUCCESS) {
        std::cerr << tcuda_last_error_message() << '\n';
        return 1;
    }
    std::cout << "consumer: " << tcuda_backend_name() << ", " << count << " devices\n";
    return std::strcmp(tcuda_backend_name(), "sim") != 0;
}
