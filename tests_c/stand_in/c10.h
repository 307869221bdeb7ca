#ifndef STAND_IN_C10_H
#define STAND_IN_C10_H

#include <cstdint>
#include <exception>
#include <string>

namespace c10 {
struct SourceLocation {
    const char *function;
    const char *file;
    uint32_t line;
};
class Error : public std::exception {
    std::string message;

public:
    std::string function;
    Error(SourceLocation place, std::string text);
    ~Error() override;
    const char *what() const noexcept override;
};
class OutOfMemoryError : public Error {
    using Error::Error;
};
namespace detail {
[[noreturn]] void torchCheckFail(const char *function, const char *file, uint32_t line, const char *message);
}
}

#endif
