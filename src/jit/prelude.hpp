// What an element-wise function finds, on every backend, beside complex numbers: the types of elements, conversion.

namespace tcuda {
using cx::complex;

struct Half {
    uint16_t bits;
    Half() = default;
    Half(float value) : bits(to_half(value)) {}
    operator float() const { return from_half(bits); }
};
struct BFloat16 {
    uint16_t bits;
    BFloat16() = default;
    BFloat16(float value) : bits(to_bfloat(value)) {}
    operator float() const { return from_bfloat(bits); }
};
// A bool in memory: whatever is not zero is true.
struct Bool {
    uint8_t byte;
    Bool() = default;
    Bool(bool value) : byte(value) {}
    operator bool() const { return byte != 0; }
};

// Between types of elements: of a complex number the real part stays, of whatever is not zero comes true.
template <typename To, typename From> struct Convert {
    static To of(From value) { return (To)value; }
};
template <typename To, typename T> struct Convert<To, complex<T>> {
    static To of(complex<T> value) { return Convert<To, T>::of(value.re); }
};
template <typename T> struct Convert<bool, complex<T>> {
    static bool of(complex<T> value) { return value.re != T() || value.im != T(); }
};
template <typename U, typename T> struct Convert<complex<U>, complex<T>> {
    static complex<U> of(complex<T> value) { return complex<U>((U)value.re, (U)value.im); }
};
template <typename U, typename From> struct Convert<complex<U>, From> {
    static complex<U> of(From value) { return complex<U>((U)value); }
};

// From memory to the type that is computed with, and back, by way of the common type of the inputs.
template <typename Common, typename Compute, typename Stored> Compute load(const Stored &value) {
    return Convert<Compute, Common>::of(Convert<Common, Stored>::of(value));
}
template <typename Common, typename Compute, typename Stored> void store(Stored &to, const Compute &value) {
    to = Convert<Stored, Common>::of(Convert<Common, Compute>::of(value));
}

// Elements that one access moves, at most 16 bytes: as one word of the machine, so that it is one.
template <int Size> struct Word;
template <> struct Word<1> { typedef uint8_t type; };
template <> struct Word<2> { typedef uint16_t type; };
template <> struct Word<4> { typedef uint32_t type; };
template <> struct Word<8> { typedef uint2 type; };
template <> struct Word<16> { typedef uint4 type; };
template <typename T, int N> union Pack {
    typename Word<sizeof(T) * N>::type word;
    T at[N];
    Pack() {}
    Pack(const Pack &from) : word(from.word) {}
    Pack &operator=(const Pack &from) {
        word = from.word;
        return *this;
    }
};

// An extra argument.
union Scalar {
    double real;
    int64_t integer;
    double pair[2];
};

// n / size = (high word of n * magic + n) >> shift, for n below 2^31.
struct Divider {
    uint32_t size, magic, shift, unused;
};
}
