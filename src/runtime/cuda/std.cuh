
// Questions about types and the limits of numbers, which for the system's compiler come from <type_traits> and <limits>.
namespace std {
template <typename T, T Value> struct integral_constant {
    static constexpr T value = Value;
    typedef T value_type;
    typedef integral_constant type;
    constexpr operator T() const { return value; }
    constexpr T operator()() const { return value; }
};
template <bool Value> using bool_constant = integral_constant<bool, Value>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <bool Condition, typename T = void> struct enable_if {};
template <typename T> struct enable_if<true, T> { typedef T type; };
template <bool Condition, typename T = void> using enable_if_t = typename enable_if<Condition, T>::type;
template <bool Condition, typename T, typename F> struct conditional { typedef T type; };
template <typename T, typename F> struct conditional<false, T, F> { typedef F type; };
template <bool Condition, typename T, typename F> using conditional_t = typename conditional<Condition, T, F>::type;

template <typename T> struct remove_const { typedef T type; };
template <typename T> struct remove_const<const T> { typedef T type; };
template <typename T> struct remove_volatile { typedef T type; };
template <typename T> struct remove_volatile<volatile T> { typedef T type; };
template <typename T> struct remove_cv { typedef typename remove_const<typename remove_volatile<T>::type>::type type; };
template <typename T> struct remove_reference { typedef T type; };
template <typename T> struct remove_reference<T &> { typedef T type; };
template <typename T> struct remove_reference<T &&> { typedef T type; };
template <typename T> using remove_const_t = typename remove_const<T>::type;
template <typename T> using remove_cv_t = typename remove_cv<T>::type;
template <typename T> using remove_reference_t = typename remove_reference<T>::type;

template <typename A, typename B> struct is_same : false_type {};
template <typename T> struct is_same<T, T> : true_type {};
template <typename T, typename... List> struct tcuda_is_one_of : false_type {};
template <typename T, typename First, typename... Rest>
struct tcuda_is_one_of<T, First, Rest...> : bool_constant<is_same<T, First>::value || tcuda_is_one_of<T, Rest...>::value> {};
template <typename T> struct is_void : is_same<remove_cv_t<T>, void> {};
template <typename T> struct is_floating_point : tcuda_is_one_of<remove_cv_t<T>, float, double> {};
template <typename T> struct is_integral
    : tcuda_is_one_of<remove_cv_t<T>, bool, char, signed char, unsigned char, wchar_t, char16_t, char32_t, short, unsigned short, int, unsigned, long,
                      unsigned long, long long, unsigned long long> {};
template <typename T> struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <typename T, bool = is_arithmetic<T>::value> struct is_signed : bool_constant<T(-1) < T(0)> {};
template <typename T> struct is_signed<T, false> : false_type {};
template <typename T, bool = is_arithmetic<T>::value> struct is_unsigned : bool_constant<T(0) < T(-1)> {};
template <typename T> struct is_unsigned<T, false> : false_type {};
template <typename A, typename B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <typename T> inline constexpr bool is_void_v = is_void<T>::value;
template <typename T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <typename T> inline constexpr bool is_integral_v = is_integral<T>::value;
template <typename T> inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <typename T> inline constexpr bool is_signed_v = is_signed<T>::value;
template <typename T> inline constexpr bool is_unsigned_v = is_unsigned<T>::value;

template <typename T, bool = is_integral<T>::value> struct numeric_limits {
    static constexpr bool is_specialized = false;
};
template <typename T> struct numeric_limits<T, true> {
    static constexpr bool is_specialized = true, is_signed = std::is_signed<T>::value, is_integer = true, is_exact = true;
    static constexpr bool has_infinity = false, has_quiet_NaN = false, is_iec559 = false;
    static constexpr int radix = 2, digits = is_same<T, bool>::value ? 1 : 8 * (int)sizeof(T) - is_signed, digits10 = digits * 30103 / 100000;
    static constexpr T max() { return is_same<T, bool>::value ? T(1) : is_signed ? T(~(1ull << (8 * sizeof(T) - 1))) : T(~0ull); }
    static constexpr T min() { return is_signed ? T(-max() - 1) : T(0); }
    static constexpr T lowest() { return min(); }
    static constexpr T epsilon() { return T(); }
    static constexpr T infinity() { return T(); }
    static constexpr T quiet_NaN() { return T(); }
    static constexpr T denorm_min() { return T(); }
};
#define TCUDA_LIMITS(T, DIGITS, DIGITS10, MAX_DIGITS10, LEAST, MOST, EPSILON, TINIEST, INFINITE, NOT_A_NUMBER) \
    template <> struct numeric_limits<T, false> { \
        static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false; \
        static constexpr bool has_infinity = true, has_quiet_NaN = true, is_iec559 = true; \
        static constexpr int radix = 2, digits = DIGITS, digits10 = DIGITS10, max_digits10 = MAX_DIGITS10; \
        static constexpr T min() { return LEAST; } \
        static constexpr T max() { return MOST; } \
        static constexpr T lowest() { return -max(); } \
        static constexpr T epsilon() { return EPSILON; } \
        static constexpr T round_error() { return T(0.5); } \
        static constexpr T denorm_min() { return TINIEST; } \
        static T infinity() { return INFINITE; } \
        static T quiet_NaN() { return NOT_A_NUMBER; } \
    };
TCUDA_LIMITS(float, 24, 6, 9, 0x1p-126f, 0x1.fffffep127f, 0x1p-23f, 0x1p-149f, __int_as_float(0x7f800000), __int_as_float(0x7fc00000))
TCUDA_LIMITS(double, 53, 15, 17, 0x1p-1022, 0x1.fffffffffffffp1023, 0x1p-52, 0x1p-1074, __longlong_as_double(0x7ff0000000000000),
             __longlong_as_double(0x7ff8000000000000))
#undef TCUDA_LIMITS
template <typename T> struct numeric_limits<const T, false> : numeric_limits<T> {};
}
