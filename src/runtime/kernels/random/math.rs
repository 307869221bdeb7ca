//! The functions of kernels/math.cuh, step by step with the same roundings, so that they have the same bits.

use super::fast;

/// self * by + plus, rounded once. By a library of Rust's own: the standard one would need libm, which is no part of what tcuda links to.
pub trait Fused: Copy {
    fn fused(self, by: Self, plus: Self) -> Self;
}

impl Fused for f32 {
    fn fused(self, by: f32, plus: f32) -> f32 {
        libm::fmaf(self, by, plus)
    }
}

impl Fused for f64 {
    fn fused(self, by: f64, plus: f64) -> f64 {
        libm::fma(self, by, plus)
    }
}

// The fast intrinsics of CUDA.

/// __logf
pub fn fast_log(x: f32) -> f32 {
    fast::lg2(x) * std::f32::consts::LN_2
}

/// __expf
pub fn fast_exp(x: f32) -> f32 {
    match x * std::f32::consts::LOG2_E {
        y @ 126.0..128.0 => fast::ex2(y - 64.0) * fast::ex2(64.0),
        y @ 128.0.. => y * f32::INFINITY,
        y @ -126.0..126.0 => fast::ex2(y),
        // Small results by way of their root.
        y @ -250.0..-126.0 => fast::ex2(y * 0.5) * fast::ex2(y * 0.5),
        y if y.is_nan() => y,
        _ => 0.0,
    }
}

/// __sincosf
pub fn fast_sine_cosine(x: f32) -> (f32, f32) {
    (fast::sin(x), fast::cos(x))
}

/// __tanf, of an x within [-pi/2, pi/2].
pub fn fast_tangent(x: f32) -> f32 {
    let tangent = fast::sin(x.abs()) * fast::rcp(fast::cos(x.abs()));
    if x < 0.0 { -tangent } else { tangent }
}

/// Horner's rule.
fn polynomial<T: Fused>(coefficients: &[T], x: T) -> T {
    let (first, rest) = (coefficients[0], &coefficients[1..]);
    rest.iter().fold(first, |p, coefficient| p.fused(x, *coefficient))
}

/// Of a normal positive number.
pub fn log(x: f32) -> f32 {
    const P: [f32; 9] =
        [-0.130_188_57, 0.140_846_1, -0.121_486_28, 0.139_806_1, -0.166_842_36, 0.200_123, -0.249_996_69, 0.333_331_82, -0.5];
    let bits = x.to_bits();
    let exponent = bits.wrapping_sub(0x3f2a_aaab) & 0xff80_0000;
    let f = f32::from_bits(bits.wrapping_sub(exponent)) - 1.0;
    let p = polynomial(&P, f);
    let p = (f * p).fused(f, f);
    (exponent as i32 as f32).fused(std::f32::consts::LN_2 / 8_388_608.0, p)
}

fn reciprocal(x: f64) -> f64 {
    // The device starts from a table and ends within a unit in the last place of this.
    1.0 / x
}

/// Of a normal positive number.
pub fn log_f64(x: f64) -> f64 {
    const P: [f64; 8] = [
        1.0263276909458365e-06,
        4.036488625710656e-06,
        1.8784407018835667e-05,
        8.877807196497797e-05,
        0.00043402779293201976,
        0.0022321428567665586,
        0.012500000000004514,
        0.08333333333333331,
    ];
    const LN2: [f64; 2] = [std::f64::consts::LN_2, 2.3190468138462996e-17];
    let bits = x.to_bits();
    let high = (bits >> 32) as u32;
    let above = high & 0xf_ffff >= 0x6_a09f;
    let m = f64::from_bits(bits & 0xf_ffff_ffff_ffff | (1023 - u64::from(above)) << 52);
    let e = f64::from((high >> 20) as i32 - 1023 + i32::from(above));
    let (r, f) = (reciprocal(m + 1.0), m - 1.0);
    let half = f * r;
    let s = f.fused(r, half);
    let square = s * s;
    let p = polynomial(&P, square);
    let rest = f - s;
    let tail = r * (-s).fused(f, rest + rest);
    let low = (square * p).fused(s, tail);
    let sum = e.fused(LN2[0], s);
    let lost = (-e).fused(LN2[0], sum) - s;
    sum + e.fused(LN2[1], low - lost)
}

/// Adding it rounds to an integer, which then stands in the lowest bits.
const ROUND: f64 = 1.5 * (1u64 << 52) as f64;

/// sin and cos of pi * x, for x in [0, 2].
pub fn sine_cosine_pi(x: f64) -> (f64, f64) {
    const SIN: [f64; 7] = [
        1.5903078570611027e-10,
        -2.5050911383645487e-08,
        2.755731498463003e-06,
        -0.0001984126983447703,
        0.008333333333329349,
        -0.16666666666666663,
        0.0,
    ];
    const COS: [f64; 8] = [
        -1.1367817304626284e-11,
        2.08758833785978e-09,
        -2.7557315542999557e-07,
        2.4801587293618683e-05,
        -0.0013888888888880667,
        0.04166666666666664,
        -0.5,
        1.0,
    ];
    let shifted = (x + x) + ROUND;
    let quadrant = shifted.to_bits();
    let t = (-(shifted - ROUND)).fused(0.5, x);
    let a = t.fused(std::f64::consts::PI, t * 1.2246467991473532e-16);
    let square = a * a;
    let (c, s) = (polynomial(&COS, square), polynomial(&SIN, square).fused(a, a));
    let signed = |x: f64, negative: u64| if negative & 2 != 0 { -x } else { x };
    let (sine, cosine) = if quadrant & 1 != 0 { (c, s) } else { (s, c) };
    (signed(sine, quadrant), signed(cosine, quadrant + 1))
}

/// tan of x within [-pi/2, pi/2].
pub fn tangent_f64(x: f64) -> f64 {
    const P: [f64; 15] = [
        9.80062872032863e-06,
        -2.4279526494179897e-05,
        4.864417313093716e-05,
        -2.5640012693782273e-05,
        6.722398433088007e-05,
        8.355928731821164e-05,
        0.00024375039850848564,
        0.0005888648775485667,
        0.001456045484467204,
        0.003592100888585718,
        0.008863237921861371,
        0.02186948839933789,
        0.053968253972902704,
        0.13333333333325342,
        0.3333333333333338,
    ];
    const HALF_PI: [f64; 3] = [std::f64::consts::FRAC_PI_2, 6.123233995736757e-17, 8.478427660368898e-32];
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    let a = HALF_PI.iter().fold(x, |a, part| (-n).fused(*part, a));
    let square = a * a;
    let p = square * polynomial(&P, square);
    let t = p.fused(a, a);
    if shifted.to_bits() & 1 == 0 {
        return t;
    }
    let lost = p.fused(a, -(t - a));
    let r = -reciprocal(t);
    r.fused(lost, t.fused(r, 1.0)).fused(r, r)
}

pub fn exp_f64(x: f64) -> f64 {
    const P: [f64; 12] = [
        2.502232253650299e-08,
        2.763090348817311e-07,
        2.755751454588244e-06,
        2.4801491039099165e-05,
        0.00019841269589115497,
        0.001388888894591638,
        0.008333333333455043,
        0.041666666666519754,
        0.16666666666666477,
        0.5000000000000012,
        1.0,
        1.0,
    ];
    const LOG2_E: f64 = std::f64::consts::LOG2_E;
    // From here on in magnitude a power of two does not fit the exponent's field, and from there on nothing is left of the result.
    const LARGE: u32 = 0x4086_232b;
    const TOO_LARGE: u32 = 0x4087_4800;
    if x.is_nan() {
        return x;
    }
    let shifted = x.fused(LOG2_E, ROUND);
    let power = i64::from(shifted.to_bits() as i32);
    let n = shifted - ROUND;
    let rest = n.fused(-2.3190468138462996e-17, n.fused(-std::f64::consts::LN_2, x));
    let p = polynomial(&P, rest);
    let scaled = |x: f64, power: i64| f64::from_bits(x.to_bits().wrapping_add((power << 52) as u64));
    match (x.abs().to_bits() >> 32) as u32 {
        0..LARGE => scaled(p, power),
        LARGE..TOO_LARGE => scaled(p, power / 2) * scaled(1.0, power - power / 2),
        _ if x < 0.0 => 0.0,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far apart, in units in the last place of the second.
    fn ulps(one: f64, two: f64) -> f64 {
        (one - two).abs() / (f64::from_bits(two.abs().to_bits() + 1) - two.abs())
    }

    #[test]
    fn doubles_are_right_to_two_units() {
        let mut worst = [0f64; 4];
        for i in 1..20_000u32 {
            let u = f64::from(i) / 20_000.0;
            let small = u * 2f64.powi(-(i as i32 % 50));
            worst[0] = worst[0].max(ulps(log_f64(small), small.ln()));
            let v = 2.0 * u;
            let (sine, cosine) = sine_cosine_pi(v);
            let (true_sine, true_cosine) = (std::f64::consts::PI * v).sin_cos();
            worst[1] = worst[1].max((sine - true_sine).abs() * 1e15).max((cosine - true_cosine).abs() * 1e15);
            let x = std::f64::consts::PI * (u - 0.5);
            worst[2] = worst[2].max(ulps(tangent_f64(x), x.tan()));
            let f = u as f32;
            worst[3] = worst[3].max((f64::from(log(f)) - f64::from(f).ln()).abs() / f64::from(f).ln().abs().max(1e-30) * 8_388_608.0);
        }
        for x in [-745.2, -745.0, -720.5, -708.3, -1e-9, 0.0, 1.0, 88.8, 708.3, 709.7, 709.8, 1e300] {
            let (found, expected) = (exp_f64(x), x.exp());
            assert!(found == expected || ulps(found, expected) <= 1.0, "{x}: {found} {expected}");
        }
        assert!(worst.iter().all(|worst| *worst < 2.5), "{worst:?}");
        assert_eq!((log_f64(1.0), log(1.0), log_f64(0.5)), (0.0, 0.0, -std::f64::consts::LN_2));
        assert_eq!((sine_cosine_pi(0.5), sine_cosine_pi(2.0)), ((1.0, 0.0), (0.0, 1.0)));
    }
}
