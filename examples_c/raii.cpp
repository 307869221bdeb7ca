// The same library from C++17: owners that clean up by themselves, guards for a scope, errors as exceptions.

#include "tcuda.hpp"

#include <algorithm>
#include <iostream>
#include <vector>

// Ends its stream, its buffer and its event also when something throws in the middle.
static std::vector<float> there_and_back(const std::vector<float> &values) {
    tcuda::stream stream;
    tcuda::stream_guard current(stream); // `with torch.cuda.stream(s)`: calls that are given none take this one
    tcuda::buffer<float> device(values.size());
    std::vector<float> back(values.size());

    tcuda::check(tcuda_copy_async(device.data(), values.data(), device.size_bytes(), stream->get()));
    tcuda::check(tcuda_copy_async(back.data(), device.data(), device.size_bytes(), stream->get()));
    stream->record_event().synchronize();
    return back;
}

int main() {
    const auto properties = tcuda::device_properties();
    std::cout << properties.name << ", compute capability " << properties.major << '.' << properties.minor << '\n';

    std::vector<float> values(1000);
    std::generate(values.begin(), values.end(), [next = 0.5f]() mutable { return next += 1; });
    if (there_and_back(values) != values)
        return 1;
    std::cout << values.size() << " floats went there and came back\n";

    try {
        tcuda::buffer<double> everything(properties.total_memory / sizeof(double) * 2);
        return 1;
    } catch (const tcuda::out_of_memory &error) {
        std::cout << error.name() << ": " << error.what() << '\n';
    }

    std::uint64_t in_use = 1;
    tcuda::check(tcuda_memory_allocated(&in_use, TCUDA_DEVICE_CURRENT));
    std::cout << in_use << " bytes are left in use\n";
    return in_use == 0 ? 0 : 1;
}
