//! The time of an event, cheap to take: the processor's counter where it runs evenly, else the system's clock. What a tick is worth is
//! found between two points.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Where nothing else is known: since the first question.
fn nanoseconds() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};
    use std::sync::OnceLock;

    /// Whether it runs at one speed, in every state of the processor.
    #[inline(always)]
    pub fn is_even() -> bool {
        static EVEN: OnceLock<bool> = OnceLock::new();
        const POWER: u32 = 0x8000_0007;
        const INVARIANT: u32 = 1 << 8;
        #[allow(unused_unsafe)] // safe in newer compilers
        *EVEN.get_or_init(|| unsafe { __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & INVARIANT != 0 })
    }

    #[inline(always)]
    pub fn read() -> u64 {
        #[allow(unused_unsafe)]
        unsafe {
            _rdtsc()
        }
    }

    #[inline(always)]
    pub fn read_after() -> u64 {
        #[allow(unused_unsafe)]
        unsafe {
            _mm_lfence();
            _rdtsc()
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub fn is_even() -> bool {
        false
    }

    pub fn read() -> u64 {
        0
    }

    pub use read as read_after;
}

#[inline(always)]
pub fn ticks() -> u64 {
    if counter::is_even() { counter::read() } else { nanoseconds() }
}

/// Not earlier than what this thread has seen of others: a processor reads its counter ahead of what comes before.
#[inline(always)]
pub fn ticks_after() -> u64 {
    if counter::is_even() { counter::read_after() } else { nanoseconds() }
}

/// A moment on all clocks.
#[derive(Clone, Copy)]
pub struct Point {
    ticks: u64,
    instant: Instant,
    epoch: f64,
}

impl Point {
    pub fn now() -> Point {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e6);
        Point { ticks: ticks(), instant: Instant::now(), epoch }
    }
}

/// From ticks to microseconds since 1970.
pub struct Scale {
    first: Point,
    tick: f64,
}

impl Scale {
    /// Between a point and now.
    pub fn since(first: Point) -> Scale {
        let now = Point::now();
        let ticks = now.ticks.saturating_sub(first.ticks).max(1);
        Scale { first, tick: (now.instant - first.instant).as_secs_f64() * 1e6 / ticks as f64 }
    }

    pub fn microseconds(&self, ticks: u64) -> i64 {
        (self.first.epoch + (ticks as i64).wrapping_sub(self.first.ticks as i64) as f64 * self.tick) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ticks_are_the_time_of_day() {
        let first = Point::now();
        std::thread::sleep(Duration::from_millis(20));
        let (ticks, now) = (ticks_after(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64);
        let found = Scale::since(first).microseconds(ticks);
        assert!((found - now).abs() < 5_000, "{found} is not {now}");
        assert!(found as f64 >= first.epoch + 19_000.0);
    }

    #[test]
    fn ticks_of_a_thread_rise() {
        let mut last = 0;
        for _ in 0..10_000 {
            let now = ticks();
            assert!(now >= last);
            last = now;
        }
    }
}
