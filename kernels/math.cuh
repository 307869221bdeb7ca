// The functions of CUDA's math library that the random families use, for the arguments that they have: no special values, no ranges to
// reduce, so no branches. Bit for bit what nvcc's `logf`, `log`, `sincospi` and `tan` give there, as torch's numbers need it.
#pragma once

// Operands of the multiply-adds come straight from here; as immediates of 64 bits each would cost two moves.
__constant__ double LOG[] = {1.0263276909458365e-06, 4.036488625710656e-06, 1.8784407018835667e-05, 8.877807196497797e-05,
    0.00043402779293201976, 0.0022321428567665586, 0.012500000000004514, 0.08333333333333331};
__constant__ double LN2[] = {0.6931471805599453, 2.3190468138462996e-17};
__constant__ double SIN[] = {1.5903078570611027e-10, -2.5050911383645487e-08, 2.755731498463003e-06, -0.0001984126983447703,
    0.008333333333329349, -0.16666666666666663, 0.0};
__constant__ double COS[] = {-1.1367817304626284e-11, 2.08758833785978e-09, -2.7557315542999557e-07, 2.4801587293618683e-05,
    -0.0013888888888880667, 0.04166666666666664, -0.5, 1.0};
__constant__ double TAN[] = {9.80062872032863e-06, -2.4279526494179897e-05, 4.864417313093716e-05, -2.5640012693782273e-05,
    6.722398433088007e-05, 8.355928731821164e-05, 0.00024375039850848564, 0.0005888648775485667, 0.001456045484467204,
    0.003592100888585718, 0.008863237921861371, 0.02186948839933789, 0.053968253972902704, 0.13333333333325342, 0.3333333333333338};
__constant__ double HALF_PI[] = {1.5707963267948966, 6.123233995736757e-17, 8.478427660368898e-32};

template <int N> __device__ __forceinline__ double polynomial(const double (&coefficients)[N], double x) {
    double p = coefficients[0];
    #pragma unroll
    for (int i = 1; i < N; ++i) p = __fma_rn(p, x, coefficients[i]);
    return p;
}

// logf of a normal positive number: x = 2^e * (1 + f), and a polynomial in f.
__device__ __forceinline__ float log_normal_number(float x) {
    const int bits = __float_as_int(x);
    const int exponent = (bits - 0x3f2aaaab) & 0xff800000;
    const float f = __fadd_rn(__int_as_float(bits - exponent), -1.0f);
    float p = -0.13018856942653656f;
    p = __fmaf_rn(p, f, 0.14084610342979431f);
    p = __fmaf_rn(p, f, -0.12148627638816833f);
    p = __fmaf_rn(p, f, 0.13980610668659210f);
    p = __fmaf_rn(p, f, -0.16684235632419586f);
    p = __fmaf_rn(p, f, 0.20012299716472626f);
    p = __fmaf_rn(p, f, -0.24999669194221497f);
    p = __fmaf_rn(p, f, 0.33333182334899902f);
    p = __fmaf_rn(p, f, -0.5f);
    p = __fmaf_rn(__fmul_rn(f, p), f, f);
    // The exponent is still in its place: 2^23 times what it counts.
    return __fmaf_rn(__int2float_rn(exponent), 0x1p-23f * 0.693147182f, p);
}

// The square root of a zero or of a normal number, rounded to the nearest.
__device__ __forceinline__ float sqrt_number(float x) {
    float y;
    // A zero would make this infinite, and zero times that no number.
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaxf(x, 0x1p-126f)));
    const float s = __fmul_rn(x, y);
    return __fmaf_rn(__fmaf_rn(-s, s, x), __fmul_rn(y, 0.5f), s);
}

// __logf of a normal positive number.
__device__ __forceinline__ float fast_log(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return __fmul_rn(y, 0.693147182f);
}

__device__ __forceinline__ double reciprocal(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    const double e = __fma_rn(-x, y, 1.0);
    return __fma_rn(__fma_rn(e, e, e), y, y);
}

// log of a normal positive number: x = 2^e * m with m between the roots of 1/2 and 2; the odd function of (m - 1) / (m + 1).
__device__ __forceinline__ double log_normal_number(double x) {
    const int high = __double2hiint(x);
    const bool above = (high & 0xfffff) >= 0x6a09f;
    const double m = __hiloint2double(((high & 0xfffff) | 0x3ff00000) - (above ? 0x100000 : 0), __double2loint(x));
    const int exponent = (high >> 20) - 1023 + above;
    const double e = __dsub_rn(__hiloint2double(0x43300000, exponent ^ 0x80000000), __hiloint2double(0x43300000, 0x80000000));
    const double r = reciprocal(__dadd_rn(m, 1.0)), f = __dadd_rn(m, -1.0);
    const double half = __dmul_rn(f, r), s = __fma_rn(f, r, half), square = __dmul_rn(s, s);
    const double p = polynomial(LOG, square);
    const double rest = __dsub_rn(f, s);
    const double tail = __dmul_rn(r, __fma_rn(-s, f, __dadd_rn(rest, rest)));
    const double low = __fma_rn(__dmul_rn(square, p), s, tail);
    const double sum = __fma_rn(e, LN2[0], s);
    const double lost = __dsub_rn(__fma_rn(-e, LN2[0], sum), s);
    return __dadd_rn(sum, __fma_rn(e, LN2[1], __dsub_rn(low, lost)));
}

__device__ __forceinline__ double sqrt_number(double x) { return __dsqrt_rn(x); }

__device__ __forceinline__ double with_sign(double x, int sign) { return __hiloint2double(__double2hiint(x) ^ sign, __double2loint(x)); }

// sin and cos of pi * x, for x in [0, 2].
__device__ __forceinline__ void sine_cosine_pi(double x, double &sine, double &cosine) {
    // Adding and subtracting 1.5 * 2^52 rounds to an integer, whose bits then stand at the bottom.
    const double shifted = __dadd_rn(__dadd_rn(x, x), 0x1.8p52);
    const int quadrant = __double2loint(shifted);
    const double t = __fma_rn(-__dsub_rn(shifted, 0x1.8p52), 0.5, x);
    const double a = __fma_rn(t, 3.141592653589793, __dmul_rn(t, 1.2246467991473532e-16));
    const double square = __dmul_rn(a, a);
    const double c = polynomial(COS, square), s = __fma_rn(polynomial(SIN, square), a, a);
    const bool swap = quadrant & 1;
    sine = with_sign(swap ? c : s, (quadrant & 2) << 30);
    cosine = with_sign(swap ? s : c, ((quadrant + 1) & 2) << 30);
}

// tan of x within [-pi/2, pi/2].
__device__ __forceinline__ double tangent(double x) {
    const double shifted = __dadd_rn(__dmul_rn(x, 0.6366197723675814), 0x1.8p52);
    const double n = __dsub_rn(shifted, 0x1.8p52);
    const double a = __fma_rn(-n, HALF_PI[2], __fma_rn(-n, HALF_PI[1], __fma_rn(-n, HALF_PI[0], x)));
    const double square = __dmul_rn(a, a);
    const double p = __dmul_rn(square, polynomial(TAN, square)), t = __fma_rn(p, a, a);
    // Past a quarter of pi: -1 / t, with what was lost when t was rounded.
    const double lost = __fma_rn(p, a, -__dsub_rn(t, a)), r = -reciprocal(t);
    const double inverse = __fma_rn(__fma_rn(r, lost, __fma_rn(t, r, 1.0)), r, r);
    return __double2loint(shifted) & 1 ? inverse : t;
}
