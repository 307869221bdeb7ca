// Stands in for PyTorch's libc10 (and, with CUDA, libc10_cuda): its exceptions, by their names and shapes.

#include "c10.h"

#ifndef CUDA
namespace c10 {
Error::Error(SourceLocation place, std::string text) : message(std::move(text)), function(place.function) {}
Error::~Error() = default;
const char *Error::what() const noexcept { return message.c_str(); }
namespace detail {
void torchCheckFail(const char *function, const char *file, uint32_t line, const char *message)
{
    throw Error({function, file, line}, message);
}
}
}
#else
extern "C" void throws() { throw c10::OutOfMemoryError({"", "", 0}, ""); }
#endif
