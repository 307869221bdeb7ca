//! How much a device's cache may hold: options say it as a share, calls as a share or in bytes. What a call said stays until an option is
//! named that says otherwise.

use super::cache::Cache;
use super::options::{self, Fractions, Options, PinnedLimit};
use super::{CACHES, cache_of, pinned};
use crate::base::{Error, Result, process};
use crate::{device, runtime};
use std::sync::atomic::Ordering::Relaxed;

/// The most bytes that may be held from the driver; None: as many as there are.
pub fn set_limit(limit: Option<usize>, device: i32) -> Result<()> {
    let cache = cache_of(device)?;
    cache.limit_is_a_calls.store(true, Relaxed);
    cache.stats.set_limit(limit);
    Ok(())
}

pub fn limit(device: i32) -> Result<Option<usize>> {
    Ok(cache_of(device)?.stats.limit())
}

/// The limit as a share of the device's memory; 1 takes it away.
pub fn set_fraction(fraction: f64, device: i32) -> Result<()> {
    if !(0.0..=1.0).contains(&fraction) {
        return Err(Error::invalid_argument(format!("Invalid fraction value: {fraction}. Allowed range: 0 to 1.")));
    }
    set_limit(share_of(fraction, device::total_memory(device)?), device)
}

/// The limit as a share; 1 without one.
pub fn fraction(device: i32) -> Result<f64> {
    let total = device::total_memory(device)?;
    Ok(as_share(cache_of(device)?.stats.limit(), total))
}

/// What the options change about a device's limit. None: nothing. A limit that they name and that holds already stays whose it is, so that the
/// text in effect changes nothing.
pub(super) fn of_options(options: &Options, cache: &Cache) -> Result<Option<Option<usize>>> {
    let Some(fraction) = options.per_process_memory_fraction.of(cache.device) else {
        return Ok(if cache.limit_is_a_calls.load(Relaxed) { None } else { Some(None) });
    };
    let total = device::total_memory(cache.device)?;
    Ok((fraction != as_share(cache.stats.limit(), total)).then(|| share_of(fraction, total)))
}

/// An error where options name a device that is not there. Before devices are known none is.
pub fn check_devices(options: &Options) -> Result<()> {
    let Fractions::Each(each) = &options.per_process_memory_fraction else { return Ok(()) };
    if !runtime::is_initialized() {
        return Ok(());
    }
    let count = runtime::runtime()?.device_count;
    match each.iter().find(|(device, _)| *device >= count as usize) {
        None => Ok(()),
        Some((device, _)) => Err(Error::invalid_argument(format!(
            "{}: per_process_memory_fraction names device {device}, which is not there (devices: {count}).",
            options::VARIABLE
        ))),
    }
}

/// After the end of all, options say the limit again.
pub(super) fn forget() {
    CACHES.get().into_iter().flatten().for_each(|cache| cache.limit_is_a_calls.store(false, Relaxed));
}

/// The options with the limits that hold now, however they were set.
pub fn in_effect() -> Options {
    let said = options::get();
    let share = |cache: &Cache| Some(as_share(cache.stats.limit(), device::total_memory(cache.device).ok()?));
    // Asking starts nothing.
    let caches = CACHES.get().filter(|_| process::is_running());
    let live: Option<Vec<f64>> = caches.and_then(|caches| caches.iter().map(share).collect());
    Options {
        per_process_memory_fraction: live.map_or(said.per_process_memory_fraction, |live| Fractions::of_devices(&live)),
        pinned_limit_mb: pinned::limit_now().map_or(said.pinned_limit_mb, PinnedLimit::of),
        ..said
    }
}

fn share_of(fraction: f64, total: u64) -> Option<usize> {
    (fraction < 1.0).then(|| (fraction * total as f64).round() as usize)
}

/// The shortest number that gives the limit again.
fn as_share(limit: Option<usize>, total: u64) -> f64 {
    let Some(limit) = limit.filter(|limit| (*limit as u64) < total) else { return 1.0 };
    let exact = limit as f64 / total as f64;
    /// More than a double has.
    const DIGITS: usize = 17;
    let mut shorter = (1..=DIGITS).filter_map(|digits| format!("{exact:.digits$}").parse().ok());
    shorter.find(|share| share_of(*share, total) == Some(limit)).unwrap_or(exact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_as_short_as_it_was_and_gives_the_limit_again() {
        const H100: u64 = 85_017_034_752;
        for share in [0.0, 0.1, 0.25, 1.0 / 3.0, 0.3, 0.875, 0.999_999] {
            let limit = share_of(share, H100);
            assert_eq!(share_of(as_share(limit, H100), H100), limit, "{share}");
        }
        assert_eq!([0.1, 0.3, 0.875].map(|share| as_share(share_of(share, H100), H100)), [0.1, 0.3, 0.875]);
        for limit in [0, 1, 123 << 20, (1 << 36) + 1, H100 as usize - 1] {
            assert_eq!(share_of(as_share(Some(limit), H100), H100), Some(limit));
        }
        assert_eq!([Some(H100 as usize), Some(usize::MAX), None].map(|limit| as_share(limit, H100)), [1.0; 3]);
    }
}
