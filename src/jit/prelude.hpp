// What an element-wise function finds, on every backend: the types of elements, complex numbers, conversion.

namespace tcuda::cx {
template <typename T> struct alignas(2 * sizeof(T)) complex {
    typedef T value_type;
    T re, im;

    constexpr complex(T real = T(), T imag = T()) : re(real), im(imag) {}
    template <typename U> constexpr complex(const complex<U> &z) : re((T)z.re), im((T)z.im) {}
    constexpr T real() const { return re; }
    constexpr T imag() const { return im; }
    void real(T value) { re = value; }
    void imag(T value) { im = value; }
    complex &operator=(T value) { re = value; im = T(); return *this; }
    complex &operator+=(const complex &z) { return *this = *this + z; }
    complex &operator-=(const complex &z) { return *this = *this - z; }
    complex &operator*=(const complex &z) { return *this = *this * z; }
    complex &operator/=(const complex &z) { return *this = *this / z; }

    friend complex operator+(const complex &a) { return a; }
    friend complex operator-(const complex &a) { return complex(-a.re, -a.im); }
    // As friends they take real numbers on either side.
    friend complex operator+(const complex &a, const complex &b) { return complex(a.re + b.re, a.im + b.im); }
    friend complex operator-(const complex &a, const complex &b) { return complex(a.re - b.re, a.im - b.im); }
    friend complex operator*(const complex &a, const complex &b) { return complex(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re); }
    // Scaled by the larger part, so that its square need not be representable.
    friend complex operator/(const complex &a, const complex &b) {
        const bool wide = ::fabs(b.re) >= ::fabs(b.im);
        const T large = wide ? b.re : b.im, small = wide ? b.im : b.re;
        if (large == T())
            return complex(a.re / ::fabs(large), a.im / ::fabs(large));
        const T ratio = small / large, scale = T(1) / (large + small * ratio);
        return wide ? complex((a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale)
                    : complex((a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale);
    }
    friend bool operator==(const complex &a, const complex &b) { return a.re == b.re && a.im == b.im; }
    friend bool operator!=(const complex &a, const complex &b) { return !(a == b); }
};

template <typename T> T real(const complex<T> &z) { return z.re; }
template <typename T> T imag(const complex<T> &z) { return z.im; }
template <typename T> T abs(const complex<T> &z) { return ::hypot(z.re, z.im); }
template <typename T> T arg(const complex<T> &z) { return ::atan2(z.im, z.re); }
template <typename T> T norm(const complex<T> &z) { return z.re * z.re + z.im * z.im; }
template <typename T> complex<T> conj(const complex<T> &z) { return complex<T>(z.re, -z.im); }
template <typename T> complex<T> polar(T radius, T angle = T()) { return complex<T>(radius * ::cos(angle), radius * ::sin(angle)); }
template <typename T> complex<T> exp(const complex<T> &z) {
    // A real number stays one, also where its exponential is infinite.
    return z.im == T() ? complex<T>(::exp(z.re), z.im) : polar(::exp(z.re), z.im);
}
template <typename T> complex<T> log(const complex<T> &z) { return complex<T>(::log(abs(z)), arg(z)); }
template <typename T> complex<T> log2(const complex<T> &z) { return log(z) * T(1.4426950408889634); }
template <typename T> complex<T> log10(const complex<T> &z) { return log(z) * T(0.4342944819032518); }
template <typename T> complex<T> log1p(const complex<T> &z) { return log(z + T(1)); }
template <typename T> complex<T> sqrt(const complex<T> &z) {
    if (z.re == T() && z.im == T())
        return complex<T>(T(), z.im);
    const T half = ::sqrt((abs(z) + ::fabs(z.re)) * T(0.5)), other = ::fabs(z.im) / (half * T(2));
    return z.re >= T() ? complex<T>(half, ::copysign(other, z.im)) : complex<T>(other, ::copysign(half, z.im));
}
template <typename T> complex<T> rsqrt(const complex<T> &z) { return complex<T>(T(1)) / sqrt(z); }
template <typename T> complex<T> pow(const complex<T> &z, const complex<T> &power) {
    return z == complex<T>() ? complex<T>(power == complex<T>() ? T(1) : T()) : exp(power * log(z));
}
template <typename T> complex<T> pow(const complex<T> &z, T power) { return pow(z, complex<T>(power)); }
template <typename T> complex<T> pow(T base, const complex<T> &power) { return pow(complex<T>(base), power); }
template <typename T> complex<T> sinh(const complex<T> &z) { return complex<T>(::sinh(z.re) * ::cos(z.im), ::cosh(z.re) * ::sin(z.im)); }
template <typename T> complex<T> cosh(const complex<T> &z) { return complex<T>(::cosh(z.re) * ::cos(z.im), ::sinh(z.re) * ::sin(z.im)); }
template <typename T> complex<T> tanh(const complex<T> &z) {
    if (::fabs(z.re) > T(20))
        return complex<T>(::copysign(T(1), z.re), T());
    const T tangent = ::tan(z.im), hyperbolic = ::tanh(z.re);
    return complex<T>(hyperbolic, tangent) / complex<T>(T(1), hyperbolic * tangent);
}
// i * z is (-im, re).
template <typename T> complex<T> sin(const complex<T> &z) { const complex<T> s = sinh(complex<T>(-z.im, z.re)); return complex<T>(s.im, -s.re); }
template <typename T> complex<T> cos(const complex<T> &z) { return cosh(complex<T>(-z.im, z.re)); }
template <typename T> complex<T> tan(const complex<T> &z) { const complex<T> t = tanh(complex<T>(-z.im, z.re)); return complex<T>(t.im, -t.re); }
template <typename T> complex<T> asinh(const complex<T> &z) { return log(z + sqrt(z * z + T(1))); }
template <typename T> complex<T> acosh(const complex<T> &z) { return log(z + sqrt(z + T(1)) * sqrt(z - T(1))); }
template <typename T> complex<T> atanh(const complex<T> &z) { return (log(T(1) + z) - log(T(1) - z)) * T(0.5); }
template <typename T> complex<T> asin(const complex<T> &z) { const complex<T> s = asinh(complex<T>(-z.im, z.re)); return complex<T>(s.im, -s.re); }
template <typename T> complex<T> acos(const complex<T> &z) { return complex<T>(T(1.5707963267948966)) - asin(z); }
template <typename T> complex<T> atan(const complex<T> &z) { const complex<T> t = atanh(complex<T>(-z.im, z.re)); return complex<T>(t.im, -t.re); }
template <typename T> bool isnan(const complex<T> &z) { return z.re != z.re || z.im != z.im; }
}

namespace std {
using tcuda::cx::complex;
using tcuda::cx::real;
using tcuda::cx::imag;
using tcuda::cx::abs;
using tcuda::cx::arg;
using tcuda::cx::norm;
using tcuda::cx::conj;
using tcuda::cx::polar;
using tcuda::cx::exp;
using tcuda::cx::log;
using tcuda::cx::log10;
using tcuda::cx::sqrt;
using tcuda::cx::pow;
using tcuda::cx::sinh;
using tcuda::cx::cosh;
using tcuda::cx::tanh;
using tcuda::cx::sin;
using tcuda::cx::cos;
using tcuda::cx::tan;
using tcuda::cx::asinh;
using tcuda::cx::acosh;
using tcuda::cx::atanh;
using tcuda::cx::asin;
using tcuda::cx::acos;
using tcuda::cx::atan;
}

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
