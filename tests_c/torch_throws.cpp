// PyTorch's exceptions from tcuda's functions, with stand-ins for PyTorch's libraries: the type, the text, and that nothing is left behind.

#include "check.h"
#include "stand_in/c10.h"

extern "C" void throws();

int main()
{
    size_t much = size_t(1) << 50;
    for (int round = 0; round < 1000; round++) {
        bool caught = false;
        try {
            tcuda_torch_alloc(static_cast<ptrdiff_t>(much), 0, nullptr);
        } catch (const c10::OutOfMemoryError &error) {
            caught = std::string(error.what()).find("CUDA out of memory") == 0 && error.function == "tcuda_torch_alloc";
        }
        CHECK(caught);
        caught = false;
        try {
            tcuda_torch_set_memory_fraction(2.0, 0);
        } catch (const c10::OutOfMemoryError &) {
        } catch (const c10::Error &error) {
            caught = std::string(error.what()).find("fraction") != std::string::npos && error.function == "tcuda_torch_set_memory_fraction";
        }
        CHECK(caught);
    }
    void *ptr = tcuda_torch_alloc(1 << 20, 0, nullptr);
    CHECK(ptr != nullptr);
    tcuda_torch_free(ptr, 1 << 20, 0, nullptr);
    try {
        throws();
    } catch (const c10::OutOfMemoryError &) {
        return CHECK_DONE();
    }
    return 1;
}
