// Complex numbers, on every backend: C++'s names, operators and functions.

// Of real numbers, where no source finds it by its arguments.
namespace tcuda::parts {
template <typename T> struct Constant {
    static constexpr bool is_double = sizeof(T) == 8;
    static constexpr T ln2 = T(0.69314718055994530942), pi = T(3.14159265358979323846), half_pi = T(1.57079632679489661923);
    static constexpr T most = std::numeric_limits<T>::max(), least = std::numeric_limits<T>::min(), epsilon = std::numeric_limits<T>::epsilon();
    // Its exponential is still finite. Of what is larger than the other, the hyperbolic tangent is 1.
    static constexpr T largest_exponent = is_double ? T(709) : T(88), flat = is_double ? T(20) : T(10);
    // Between these, squares neither overflow nor underflow.
    static constexpr T small = is_double ? T(0x1p-509) : T(0x1p-61), large = is_double ? T(0x1p508) : T(0x1p60);
};
template <typename T> bool is_finite(T x) { return ::fabs(x) <= Constant<T>::most; }
template <typename T> bool is_infinite(T x) { return ::fabs(x) > Constant<T>::most; }

// Roundings that no compiler joins with what comes next.
inline float product(float x, float y) { return __fmul_rn(x, y); }
inline double product(double x, double y) { return __dmul_rn(x, y); }
inline float sum(float x, float y) { return __fadd_rn(x, y); }
inline double sum(double x, double y) { return __dadd_rn(x, y); }
// Adds to a number and gives what its rounding lost.
template <typename T> T add(T &to, T x) {
    const T before = to;
    to = sum(before, x);
    const T part = sum(to, -before);
    return sum(sum(before, -sum(to, -part)), sum(x, -part));
}
// start + x * x + y * y, also where little is left of it.
template <typename T> T sum_of_squares(T start, T x, T y) {
    const T xx = product(x, x), yy = product(y, y);
    T rest = add(start, xx), lost = add(rest, ::fma(x, x, -xx));
    lost += add(rest, ::fma(y, y, -yy));
    // Exact, where it cancels.
    return sum(start, yy) + rest + lost;
}
// The logarithm of the absolute value.
template <typename T> T log_abs(T x, T y) {
    typedef Constant<T> C;
    const T wide = ::fmax(::fabs(x), ::fabs(y));
    if (wide >= T(0.5) && wide <= T(1.5) && ::fabs(x) <= wide && ::fabs(y) <= wide)
        return T(0.5) * ::log1p(sum_of_squares(T(-1), x, y));
    const T scale = wide > C::most / 2 ? T(0.5) : wide < C::least / C::epsilon ? T(1) / (C::epsilon * C::epsilon) : T(1);
    return ::log(::hypot(x * scale, y * scale)) - ::log(scale);
}
// exp(x) times a number of at most 1, which may be finite where exp(x) is not.
template <typename T> T exp_times(T x, T factor) {
    if (x <= Constant<T>::largest_exponent)
        return ::exp(x) * factor;
    const T half = ::exp(x * T(0.5));
    return half * factor * half;
}

// Of a number in the first quadrant the real parts of its arc sine and its arc cosine, and the imaginary part of the first: the way
// of Hull, Fairgrieve and Tang (1997).
template <typename T> struct Arc {
    T sine, cosine, height;
};
template <typename T> Arc<T> arc(T x, T y) {
    typedef Constant<T> C;
    if (!is_finite(x) || !is_finite(y)) {
        const T none = x - x + (y - y), height = is_infinite(x) || is_infinite(y) ? ::fmax(x, y) : none;
        if (x != x || y != y)
            return x == T() ? Arc<T>{x, C::half_pi, none} : Arc<T>{none, none, height};
        if (is_infinite(x) && is_infinite(y))
            return {C::half_pi / 2, C::half_pi / 2, height};
        return is_infinite(x) ? Arc<T>{C::half_pi, T(), height} : Arc<T>{T(), C::half_pi, height};
    }
    const T over = x + T(1), under = x - T(1);
    if (x < C::small || x > C::large || y < C::small || y > C::large) {
        if (y <= C::epsilon * ::fabs(under)) {
            if (x < T(1))
                return {::asin(x), ::acos(x), y / ::sqrt(over * -under)};
            const T root = x > C::large ? x : ::sqrt(over * under);
            return {C::half_pi, y == T() ? y : y / root, x > C::large ? C::ln2 + ::log(x) : ::log1p(under + root)};
        }
        if (y < C::small)
            return {C::half_pi - ::sqrt(y), ::sqrt(y), ::sqrt(y)};
        if (x > T(1))
            return {::atan(x / y), ::atan(y / x), C::ln2 + log_abs(x, y)};
        return {x / ::hypot(T(1), y), C::half_pi, ::asinh(y)};
    }
    const T r = ::hypot(over, y), s = ::hypot(under, y), a = (r + s) / 2, b = x / a;
    Arc<T> found;
    if (b <= T(0.6417)) {
        found.sine = ::asin(b);
        found.cosine = ::acos(b);
    } else {
        const T leg = x <= T(1) ? ::sqrt(T(0.5) * (a + x) * (y * y / (r + over) + (s - under)))
                                : y * ::sqrt(T(0.5) * ((a + x) / (r + over) + (a + x) / (s + under)));
        found.sine = ::atan(x / leg);
        found.cosine = ::atan(leg / x);
    }
    if (a <= T(1.5)) {
        const T above = T(0.5) * (y * y / (r + over) + (x < T(1) ? y * y / (s - under) : s + under));
        found.height = ::log1p(above + ::sqrt(above * (a + T(1))));
    } else {
        found.height = ::log(a + ::sqrt(a * a - T(1)));
    }
    return found;
}
}

namespace tcuda::cx {
using namespace parts;
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
template <typename T> bool isnan(const complex<T> &z) { return z.re != z.re || z.im != z.im; }

// What is infinite or no number gives what Annex G of C's standard says.
template <typename T> complex<T> log(const complex<T> &z) { return complex<T>(log_abs(z.re, z.im), arg(z)); }
template <typename T> complex<T> log2(const complex<T> &z) { return log(z) * T(1.44269504088896340736); }
template <typename T> complex<T> log10(const complex<T> &z) { return log(z) * T(0.43429448190325182765); }
template <typename T> complex<T> log1p(const complex<T> &z) {
    const T beside = z.re + T(1);
    if (::fabs(z.re) < T(0.5) && ::fabs(z.im) < T(1.5))
        return complex<T>(T(0.5) * ::log1p(sum_of_squares(T(2) * z.re, z.re, z.im)), ::atan2(z.im, beside));
    return complex<T>(log_abs(beside, z.im), ::atan2(z.im, beside));
}
template <typename T> complex<T> sqrt(const complex<T> &z) {
    typedef Constant<T> C;
    if (z.re == T() && z.im == T())
        return complex<T>(T(), z.im);
    if (is_infinite(z.im))
        return complex<T>(::fabs(z.im), z.im);
    if (is_infinite(z.re))
        return z.re > T() ? complex<T>(z.re, z.im == z.im ? ::copysign(T(), z.im) : z.im)
                          : complex<T>(z.im == z.im ? T() : z.im, ::copysign(z.re, z.im));
    // By even powers of 2, so that their roots are exact.
    const T wide = ::fmax(::fabs(z.re), ::fabs(z.im)), huge = C::most / 4, tiny = C::least / C::epsilon;
    const T scale = wide > huge ? T(0.0625) : wide < tiny ? T(1) / (T(4) * C::epsilon * C::epsilon) : T(1);
    const T root = wide > huge ? T(4) : wide < tiny ? T(2) * C::epsilon : T(1);
    const T x = ::fabs(z.re) * scale, y = ::fabs(z.im) * scale;
    const T one = ::sqrt((::hypot(x, y) + x) * T(0.5)), other = y / (T(2) * one) * root;
    return z.re >= T() ? complex<T>(one * root, ::copysign(other, z.im)) : complex<T>(other, ::copysign(one * root, z.im));
}
template <typename T> complex<T> rsqrt(const complex<T> &z) { return complex<T>(T(1)) / sqrt(z); }
template <typename T> complex<T> exp(const complex<T> &z) {
    // A real number stays one, also where its exponential is infinite.
    if (z.im == T())
        return complex<T>(::exp(z.re), z.im);
    if (is_infinite(z.re) && !is_finite(z.im))
        return z.re > T() ? complex<T>(z.re, z.im - z.im) : complex<T>(T(), T());
    return complex<T>(exp_times(z.re, ::cos(z.im)), exp_times(z.re, ::sin(z.im)));
}
template <typename T> complex<T> pow(const complex<T> &z, const complex<T> &power) {
    return z == complex<T>() ? complex<T>(power == complex<T>() ? T(1) : T()) : exp(power * log(z));
}
template <typename T, typename U> complex<std::conditional_t<(sizeof(T) > sizeof(U)), T, U>> pow(const complex<T> &z, const complex<U> &power) {
    typedef complex<std::conditional_t<(sizeof(T) > sizeof(U)), T, U>> Wider;
    return pow(Wider(z), Wider(power));
}
template <typename T, typename U> std::enable_if_t<std::is_arithmetic<U>::value, complex<T>> pow(const complex<T> &z, U power) {
    return pow(z, complex<T>((T)power));
}
template <typename T, typename U> std::enable_if_t<std::is_arithmetic<U>::value, complex<T>> pow(U base, const complex<T> &power) {
    return pow(complex<T>((T)base), power);
}
template <typename T> complex<T> sinh(const complex<T> &z) {
    const T x = ::fabs(z.re);
    if (z.im == T())
        return complex<T>(::sinh(z.re), z.im);
    if (!is_finite(z.im))
        return complex<T>(x == T() || is_infinite(x) ? z.re : z.im - z.im, z.im - z.im);
    if (x < Constant<T>::largest_exponent)
        return complex<T>(::sinh(z.re) * ::cos(z.im), ::cosh(z.re) * ::sin(z.im));
    return complex<T>(exp_times(x, ::copysign(T(0.5), z.re) * ::cos(z.im)), exp_times(x, T(0.5) * ::sin(z.im)));
}
template <typename T> complex<T> cosh(const complex<T> &z) {
    const T x = ::fabs(z.re);
    if (z.im == T())
        return complex<T>(::cosh(z.re), ::copysign(T(), z.re) * z.im);
    if (!is_finite(z.im))
        return complex<T>(is_infinite(x) ? x : z.im - z.im, x == T() ? T() : z.im - z.im);
    if (x < Constant<T>::largest_exponent)
        return complex<T>(::cosh(z.re) * ::cos(z.im), ::sinh(z.re) * ::sin(z.im));
    return complex<T>(exp_times(x, T(0.5) * ::cos(z.im)), exp_times(x, ::copysign(T(0.5), z.re) * ::sin(z.im)));
}
// By Kahan.
template <typename T> complex<T> tanh(const complex<T> &z) {
    const T x = ::fabs(z.re);
    if (z.im == T())
        return complex<T>(::tanh(z.re), z.im);
    if (x > Constant<T>::flat)
        return complex<T>(::copysign(T(1), z.re),
                          is_finite(z.im) ? T(4) * ::sin(z.im) * ::cos(z.im) * ::exp(T(-2) * x) : ::copysign(T(), is_infinite(x) ? z.im : T(1)));
    if (!is_finite(z.im))
        return complex<T>(x == T() ? z.re : z.im - z.im, z.im - z.im);
    const T tangent = ::tan(z.im), sine = ::sinh(z.re), beside = T(1) + tangent * tangent, under = T(1) + beside * sine * sine;
    return complex<T>(beside * ::sqrt(T(1) + sine * sine) * sine / under, tangent / under);
}
// i * z is (-im, re).
template <typename T> complex<T> sin(const complex<T> &z) { const complex<T> s = sinh(complex<T>(-z.im, z.re)); return complex<T>(s.im, -s.re); }
template <typename T> complex<T> cos(const complex<T> &z) { return cosh(complex<T>(-z.im, z.re)); }
template <typename T> complex<T> tan(const complex<T> &z) { const complex<T> t = tanh(complex<T>(-z.im, z.re)); return complex<T>(t.im, -t.re); }

template <typename T> complex<T> asin(const complex<T> &z) {
    const Arc<T> found = arc(::fabs(z.re), ::fabs(z.im));
    return complex<T>(::copysign(found.sine, z.re), ::copysign(found.height, z.im));
}
template <typename T> complex<T> acos(const complex<T> &z) {
    const Arc<T> found = arc(::fabs(z.re), ::fabs(z.im));
    return complex<T>(::copysign(T(1), z.re) < T() ? Constant<T>::pi - found.cosine : found.cosine, -::copysign(found.height, z.im));
}
template <typename T> complex<T> asinh(const complex<T> &z) { const complex<T> s = asin(complex<T>(-z.im, z.re)); return complex<T>(s.im, -s.re); }
template <typename T> complex<T> acosh(const complex<T> &z) {
    const complex<T> c = acos(z);
    return complex<T>(::fabs(c.im), ::copysign(c.re, z.im));
}
template <typename T> complex<T> atanh(const complex<T> &z) {
    typedef Constant<T> C;
    const T x = ::fabs(z.re), y = ::fabs(z.im), wide = T(1) / C::epsilon;
    T across, along;
    if (x != x || y != y) {
        across = is_infinite(x) || is_infinite(y) ? T() : x == T() ? x : x - x + (y - y);
        along = is_infinite(y) ? C::half_pi : x - x + (y - y);
    } else if (x > wide || y > wide) {
        // x / (x * x + y * y)
        const T large = ::fmax(x, y), small = ::fmin(x, y), ratio = is_infinite(large) ? T() : small / large;
        across = (is_infinite(large) ? T() : x / large) / large / (T(1) + ratio * ratio);
        along = C::half_pi;
    } else {
        const T beside = T(1) - x;
        across = x == T(1) && y < C::small ? T(0.5) * (C::ln2 - ::log(y)) : T(0.25) * ::log1p(T(4) * x / (beside * beside + y * y));
        along = T(0.5) * ::atan2(T(2) * y, beside * (T(1) + x) - y * y);
    }
    return complex<T>(::copysign(across, z.re), ::copysign(along, z.im));
}
template <typename T> complex<T> atan(const complex<T> &z) { const complex<T> t = atanh(complex<T>(-z.im, z.re)); return complex<T>(t.im, -t.re); }
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
using tcuda::cx::log2;
using tcuda::cx::log10;
using tcuda::cx::log1p;
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
