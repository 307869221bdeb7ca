// The same first program in C++.

#include <cstring>
#include <iostream>
#include <tcuda.h>

int main()
{
    void *block = nullptr;
    int32_t count = 0;

    if (tcuda_device_count(&count) != TCUDA_SUCCESS || count < 1 || tcuda_malloc_cached(&block, 4096, nullptr) != TCUDA_SUCCESS ||
        tcuda_free_cached(block) != TCUDA_SUCCESS) {
        std::cerr << tcuda_last_error_message() << '\n';
        return 1;
    }
    std::cout << "consumer: " << tcuda_backend_name() << ", " << count << " devices\n";
    return std::strcmp(tcuda_backend_name(), "sim") != 0;
}
