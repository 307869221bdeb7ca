//! Random numbers in tensors
//!
//! Each function fills a tensor on a CUDA device with numbers of the generator (NULL: the default one of the tensor's device), bit for bit
//! those that torch 2.11 makes there for the same seed, offset, shape, strides and type, and leaves the generator at the same offset; only
//! the permutation has an order of its own. torch's numbers depend on the device that it runs on; tcuda_generator_set_geometry makes a
//! generator draw as on another device, or in the portable order, which no device changes. The simulated device makes the same bits.
//!
//! The tensor: any strides; elements of the types that the function names, no two of them at one place. One without elements is left as it
//! is and nothing is drawn. The work is done on `stream` (NULL: the default stream of the tensor's device), in order with what is there,
//! and does not block. Nothing is drawn from the generator if the call fails.
//!
//! All of them can fail with TCUDA_ERROR_NOT_SUPPORTED (the type of the elements, a tensor on the CPU), TCUDA_ERROR_INVALID_ARGUMENT (a
//! parameter, the tensor, a generator of another device), TCUDA_ERROR_INVALID_HANDLE (no generator), TCUDA_ERROR_CAPTURE (the stream is
//! being captured by another library; a graph of tcuda draws anew in each replay).

use super::guard::guard;
use super::random::{handle_of, tcuda_generator_t};
use super::structs::tcuda_stream_t;
use super::tensor::view;
use crate::base::dlpack::tcuda_tensor_t;
use crate::base::status::tcuda_status_t;
use crate::random;

/// Numbers of [from, to), each as likely as the other (torch: uniform_; rand is that of 0 and 1).
///
/// @param out  of floats of 16 to 64 bits, bfloat16, or complex numbers (both parts are drawn).
/// @param from at most `to`; both and their difference have to be finite in the tensor's type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_random_uniform(
    out: *const tcuda_tensor_t,
    from: f64,
    to: f64,
    generator: tcuda_generator_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_random_uniform", || {
        random::uniform(&unsafe { view(out, "out") }?, from, to, handle_of(generator).as_ref(), stream as usize)
    })
}

/// Numbers of the normal distribution (torch: normal_; randn is that of 0 and 1).
///
/// @param out of floats of 16 to 64 bits, bfloat16, or complex numbers (each part gets the mean, and half of the variance).
/// @param std the standard deviation, at least 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_random_normal(
    out: *const tcuda_tensor_t,
    mean: f64,
    std: f64,
    generator: tcuda_generator_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_random_normal", || {
        random::normal(&unsafe { view(out, "out") }?, mean, std, handle_of(generator).as_ref(), stream as usize)
    })
}

/// Integers from `low` to `high` - 1 (torch: random_ with two bounds, randint). As in torch they are remainders of random words, of 64 bits
/// from 2^28 numbers on: with r numbers the least ones are more likely by at most r / 2^32, or r / 2^64.
///
/// @param out  of any real type or bool. For a float, a bound that its type does not have moves inside.
/// @param low  less than `high`; both `low` and `high` - 1 have to be in the type's range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_random_integers(
    out: *const tcuda_tensor_t,
    low: i64,
    high: i64,
    generator: tcuda_generator_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_random_integers", || {
        random::integers(&unsafe { view(out, "out") }?, low, Some(high), handle_of(generator).as_ref(), stream as usize)
    })
}

/// Integers from `low` to the largest of the type, or, of a float, to 2^p where p are the bits of its significand (torch: random_ with one
/// bound, and None for the other).
///
/// @param low INT64_MIN: all numbers of 64 bits, for int64, float32, float64 and bfloat16.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_random_integers_from(
    out: *const tcuda_tensor_t,
    low: i64,
    generator: tcuda_generator_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_random_integers_from", || {
        random::integers(&unsafe { view(out, "out") }?, low, None, handle_of(generator).as_ref(), stream as usize)
    })
}

/// Integers from 0 to the largest of the type, or, of a float, to 2^p where p are the bits of its significand (torch: random_ without
/// bounds).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_random_integers_all(
    out: *const tcuda_tensor_t,
    generator: tcuda_generator_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_random_integers_all", || {
        random::integers_all(&unsafe { view(out, "out") }?, handle_of(generator).as_ref(), stream as usize)
    })
}

/// 1 with the probability `p`, else 0 (torch: bernoulli_ with a number).
///
/// @param out of any real type or bool.
/// @param p   0 to 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_random_bernoulli(
    out: *const tcuda_tensor_t,
    p: f64,
    generator: tcuda_generator_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_random_bernoulli", || random::bernoulli(&unsafe { view(out, "out") }?, p, handle_of(generator).as_ref(), stream as usize))
}

/// 1 or 0, each element with a probability of its own (torch: bernoulli, and bernoulli_ with a tensor). The offset grows by 12, whatever
/// the size is (also 0, as in torch).
///
/// @param out of any real type or bool.
/// @param p   the probabilities: a tensor of floats on the same device that can be broadcast to the shape of `out`. torch asserts on the
///            device that they are from 0 to 1; here less is as 0, more as 1, and what is no number as 0. It may
///            share memory with `out` only where both have the same elements at the same places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_random_bernoulli_tensor(
    out: *const tcuda_tensor_t,
    p: *const tcuda_tensor_t,
    generator: tcuda_generator_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_random_bernoulli_tensor", || {
        let (out, p) = unsafe { (view(out, "out")?, view(p, "p")?) };
        random::bernoulli_tensor(&out, &p, handle_of(generator).as_ref(), stream as usize)
    })
}

/// Numbers of the exponential distribution, with the mean 1 / lambda; never 0 (torch: exponential_).
///
/// @param out    of floats of 16 to 64 bits, or bfloat16.
/// @param lambda the rate, above 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_random_exponential(
    out: *const tcuda_tensor_t,
    lambda: f64,
    generator: tcuda_generator_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_random_exponential", || {
        random::exponential(&unsafe { view(out, "out") }?, lambda, handle_of(generator).as_ref(), stream as usize)
    })
}

/// Numbers whose logarithm is normal, with that mean and deviation (torch: log_normal_).
///
/// @param out of floats of 16 to 64 bits, or bfloat16.
/// @param std above 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_random_log_normal(
    out: *const tcuda_tensor_t,
    mean: f64,
    std: f64,
    generator: tcuda_generator_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_random_log_normal", || {
        random::log_normal(&unsafe { view(out, "out") }?, mean, std, handle_of(generator).as_ref(), stream as usize)
    })
}

/// Numbers of the Cauchy distribution (torch: cauchy_).
///
/// @param out   of floats of 16 to 64 bits, or bfloat16.
/// @param sigma half the width at half the height, above 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_random_cauchy(
    out: *const tcuda_tensor_t,
    median: f64,
    sigma: f64,
    generator: tcuda_generator_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_random_cauchy", || {
        random::cauchy(&unsafe { view(out, "out") }?, median, sigma, handle_of(generator).as_ref(), stream as usize)
    })
}

/// How many trials it takes until one of probability `p` succeeds: 1 or more (torch: geometric_). As in torch, of floats it is 0 once in
/// 30 million times, and what the type cannot hold is whatever CUDA's conversion makes of it.
///
/// @param out of any real type.
/// @param p   above 0, below 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_random_geometric(
    out: *const tcuda_tensor_t,
    p: f64,
    generator: tcuda_generator_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_random_geometric", || random::geometric(&unsafe { view(out, "out") }?, p, handle_of(generator).as_ref(), stream as usize))
}

/// The numbers 0 to n - 1 in random order, where n is the size of the tensor (torch: randperm, with an order of its own: nothing is sorted,
/// and no memory is needed beside the result). Up to 1,024 numbers every order is as likely as every other. The offset grows by 4.
///
/// @param out of one dimension, and any real type that holds all the numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_random_permutation(
    out: *const tcuda_tensor_t,
    generator: tcuda_generator_t,
    stream: tcuda_stream_t,
) -> tcuda_status_t {
    guard("tcuda_random_permutation", || random::permutation(&unsafe { view(out, "out") }?, handle_of(generator).as_ref(), stream as usize))
}
