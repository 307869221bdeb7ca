//! Waiting for others: first in a loop, soon with sleeps, never longer than a limit.

use crate::base::Result;
use std::time::{Duration, Instant};

/// What a wait came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    Done,
    TimedOut,
    Stopped,
}

/// Asks until it is done, at least once.
pub fn wait(deadline: Deadline, stop: impl Fn() -> bool, mut ask: impl FnMut() -> Result<bool>) -> Result<Waited> {
    const LONGEST: Duration = Duration::from_millis(1);
    let mut pause = Duration::from_micros(1);
    for round in 0u32.. {
        if ask()? {
            return Ok(Waited::Done);
        }
        if stop() {
            return Ok(Waited::Stopped);
        }
        if deadline.is_past() {
            return Ok(Waited::TimedOut);
        }
        if round < 64 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(pause);
            pause = (2 * pause).min(LONGEST);
        }
    }
    Ok(Waited::TimedOut)
}

/// A moment from which on nothing is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    start: Instant,
    limit: Duration,
}

impl Deadline {
    pub fn after(limit: Duration) -> Deadline {
        Deadline { start: Instant::now(), limit }
    }

    pub fn is_past(self) -> bool {
        self.start.elapsed() >= self.limit
    }

    pub fn left(self) -> Duration {
        self.limit.saturating_sub(self.start.elapsed())
    }

    /// In words.
    pub fn limit(self) -> String {
        format!("{} ms", self.limit.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Error;

    #[test]
    fn every_end_of_a_wait() {
        let past = Deadline::after(Duration::ZERO);
        let far = Deadline::after(Duration::from_secs(3600));
        assert_eq!(wait(past, || true, || Ok(true)), Ok(Waited::Done));
        assert_eq!(wait(past, || false, || Ok(false)), Ok(Waited::TimedOut));
        assert_eq!(wait(far, || true, || Ok(false)), Ok(Waited::Stopped));
        let mut asked = 0;
        let mut ask = || {
            asked += 1;
            Ok(asked == 100)
        };
        assert_eq!(wait(far, || false, &mut ask), Ok(Waited::Done));
        assert!(wait(far, || false, || Err(Error::internal("x"))).is_err());
    }
}
