/* include/tcuda/philox.cuh, run on the host: the numbers that a program's own kernel makes of a state are those that the device's tensors
 * get. What a GPU makes of the header is in tests/conformance/philox.rs. */

#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "check.h"
#include "philox_on_host.h"

#define SAME_PLACE(field) static_assert(offsetof(tcuda::philox_state, field) == offsetof(tcuda_philox_state_t, field), #field)
static_assert(sizeof(tcuda::philox_state) == sizeof(tcuda_philox_state_t), "one layout");
static_assert(std::is_trivially_copyable<tcuda::philox_state>::value, "an argument of a kernel");
static_assert(std::is_standard_layout<tcuda::philox_state>::value, "as in C");
SAME_PLACE(seed);
SAME_PLACE(offset);
SAME_PLACE(offset_intragraph);
SAME_PLACE(captured);
SAME_PLACE(reserved);

// A geometry of 2 multiprocessors with 1024 threads: element t + i * T is the i-th number of thread t.
enum { T = 2048, EACH = 48, OFFSET = 1000 };
static const unsigned long long SEED = 0xFEDCBA9876543210u;

static tcuda_generator_t generator;

/* What the device draws into a tensor. */
template <typename Value, typename Fill> static std::vector<Value> drawn(uint8_t code, Fill fill)
{
    const tcuda_dtype_t dtype = {code, 8 * sizeof(Value), 1};
    const int64_t count = T * EACH;
    std::vector<Value> values(count);
    tcuda_managed_tensor_t *tensor = NULL;
    if (CHECK_OK(tcuda_tensor_empty(&tensor, 0, dtype, 1, &count, NULL))) {
        CHECK_OK(tcuda_generator_set_offset(generator, OFFSET));
        CHECK_OK(fill(&tensor->tensor));
        CHECK_OK(tcuda_copy(values.data(), tensor->tensor.data, values.size() * sizeof(Value), false));
        CHECK_OK(tcuda_tensor_destroy(tensor));
    }
    return values;
}

/* How many numbers of all threads are further from the tensor's than allowed. */
template <typename Value, typename Next>
static int others(const std::vector<Value> &expected, const tcuda::philox_state &state, double allowed, Next next)
{
    int count = 0;
    for (unsigned t = 0; t < T; ++t) {
        tcuda::philox numbers(state, t);
        for (int i = 0; i < EACH; ++i) {
            const double a = next(numbers), b = expected[t + i * T];
            count += !(std::fabs(a - b) <= allowed * (1 + std::fabs(b)));
        }
    }
    return count;
}

static void numbers_are_the_tensors(const tcuda::philox_state &state)
{
    const std::vector<uint32_t> words = drawn<uint32_t>(1, [](tcuda_tensor_t *out) { return tcuda_random_integers_all(out, generator, NULL); });
    CHECK_EQUAL(others(words, state, 0, [](tcuda::philox &numbers) { return numbers.next(); }), 0);

    // A tensor of [0, 1) has 0 for what is 1 here.
    const std::vector<float> floats = drawn<float>(2, [](tcuda_tensor_t *out) { return tcuda_random_uniform(out, 0, 1, generator, NULL); });
    CHECK_EQUAL(others(floats, state, 0, [](tcuda::philox &numbers) { return std::fmod(numbers.uniform(), 1.0f); }), 0);
    const std::vector<double> doubles = drawn<double>(2, [](tcuda_tensor_t *out) { return tcuda_random_uniform(out, 0, 1, generator, NULL); });
    CHECK_EQUAL(others(doubles, state, 0, [](tcuda::philox &numbers) { return std::fmod(numbers.uniform_double(), 1.0); }), 0);

    // The host's functions are not the device's.
    const std::vector<float> normals = drawn<float>(2, [](tcuda_tensor_t *out) { return tcuda_random_normal(out, 0, 1, generator, NULL); });
    CHECK_EQUAL(others(normals, state, 1e-5, [](tcuda::philox &numbers) { return numbers.normal(); }), 0);
    const std::vector<double> wide = drawn<double>(2, [](tcuda_tensor_t *out) { return tcuda_random_normal(out, 0, 1, generator, NULL); });
    int wrong = 0;
    for (unsigned t = 0; t < T; ++t) {
        for (int block = 0; block < EACH / 2; ++block) {
            tcuda::philox_word four[1][4];
            double pair[2];
            const tcuda::philox_key key = tcuda::philox_unpack(state);
            tcuda::philox_blocks<1>(four, key.seed, t, key.offset / 4 + block);
            tcuda::philox_normal_double(pair[0], pair[1], four[0]);
            for (int i = 0; i < 2; ++i)
                wrong += !(std::fabs(pair[i] - wide[t + (2 * block + i) * T]) < 1e-12);
        }
    }
    CHECK_EQUAL(wrong, 0);
}

/* Lemire's way, as its paper has it: a product whose low half is below 2^32 mod bound is drawn again. */
static void numbers_below_a_bound(const tcuda::philox_state &state)
{
    const uint32_t bounds[] = {1, 2, 6, 1000003, 0x80000000u, 0xC0000000u, 0xFFFFFFFFu};
    for (const uint32_t bound : bounds) {
        const uint32_t threshold = static_cast<uint32_t>((static_cast<uint64_t>(1) << 32) % bound);
        int wrong = 0;
        for (unsigned t = 0; t < 64; ++t) {
            tcuda::philox numbers(state, t), plain(state, t);
            for (int i = 0; i < 100; ++i) {
                uint64_t product;
                do
                    product = static_cast<uint64_t>(plain.next()) * bound;
                while ((product & 0xFFFFFFFFu) < threshold);
                wrong += numbers.below(bound) != product >> 32;
            }
        }
        CHECK_EQUAL(wrong, 0);
    }
}

int main()
{
    tcuda_philox_state_t state;
    uint64_t offset = 0;

    if (!CHECK_OK(tcuda_generator_create(&generator, 0)) || !CHECK_OK(tcuda_generator_manual_seed(generator, SEED)) ||
        !CHECK_OK(tcuda_generator_set_geometry(generator, TCUDA_GEOMETRY_NAMED, 2, 1024)))
        return CHECK_DONE();
    CHECK_OK(tcuda_generator_set_offset(generator, OFFSET));
    CHECK_OK(tcuda_generator_philox_state(&state, generator, 2 * EACH, NULL));
    CHECK_OK(tcuda_generator_get_offset(generator, &offset));
    CHECK_EQUAL(offset, OFFSET + 2 * EACH);
    numbers_are_the_tensors(state);
    numbers_below_a_bound(state);

    // In a graph seed and offset stand in memory: here in the host's.
    const uint64_t seed = SEED, begin = OFFSET - 40;
    tcuda_philox_state_t captured;
    captured.seed = reinterpret_cast<uintptr_t>(&seed);
    captured.offset = reinterpret_cast<uintptr_t>(&begin);
    captured.offset_intragraph = 40;
    captured.captured = 1;
    captured.reserved = 0;
    numbers_are_the_tensors(captured);

    CHECK_OK(tcuda_generator_destroy(generator));
    return CHECK_DONE();
}
