//! Which streams wait for which: one event for each side, and the device changed only where CUDA needs it.

use crate::base::{Result, watch};
use crate::device;
use crate::event::pool::Pooled;
use crate::runtime::{self, Runtime};
use crate::stream::{self, Stream};

/// The stream of the device at which all comes together, and those of the others. A circle that got work and ends before `close` was called
/// waits for all of them: what was enqueued may still use memory that the failed call gives back.
pub struct Circle {
    pub centre: Stream,
    others: Vec<Stream>,
    guard: device::Guard,
    /// The others wait for the centre: they have work.
    is_released: bool,
    /// The centre works for the others, which have not been told to wait for it.
    is_leading: bool,
    /// Something may have been enqueued that no stream waits for yet.
    has_work: bool,
}

impl Circle {
    pub fn new(centre: Stream, all: impl Iterator<Item = Stream>) -> Result<Circle> {
        let mut others = Vec::new();
        for stream in all {
            if stream != centre && !others.contains(&stream) {
                others.push(stream);
            }
        }
        let guard = device::Guard::new(device::CURRENT)?;
        Ok(Circle { centre, others, guard, is_released: false, is_leading: false, has_work: false })
    }

    pub fn others(&self) -> &[Stream] {
        &self.others
    }

    /// Makes the stream's device current, for a launch; the one that was current comes back with the circle's end.
    pub fn go(&mut self, stream: Stream) -> Result<&'static Runtime> {
        self.has_work = true;
        self.enter_current(stream)
    }

    /// All that the stream has got until now.
    pub fn mark(&mut self, stream: Stream) -> Result<Pooled> {
        let runtime = self.enter(stream)?;
        let event = Pooled::take(stream.device)?;
        event.record(runtime, stream)?;
        Ok(event)
    }

    pub fn wait(&mut self, stream: Stream, event: &Pooled) -> Result<()> {
        event.hold_up(self.enter(stream)?, stream)
    }

    /// A default stream is that of the current device; others say where they are.
    fn enter(&mut self, stream: Stream) -> Result<&'static Runtime> {
        if stream.is_default() {
            return self.enter_current(stream);
        }
        device::check_lost(stream.device)?;
        self.guard.go_unless_context(stream.device)?;
        runtime::runtime()
    }

    fn enter_current(&mut self, stream: Stream) -> Result<&'static Runtime> {
        device::check_lost(stream.device)?;
        self.guard.go(stream.device)?;
        runtime::runtime()
    }

    /// The centre goes on after all that the others have got until now. Those that are idle need no event; they are not asked if they were just
    /// given work here, nor while one is captured: a query would end that, and what is no part of it is to be refused.
    pub fn collect(&mut self) -> Result<()> {
        if self.others.is_empty() {
            return Ok(());
        }
        let marks = match self.is_released || self.is_captured()? {
            true => self.marks(false)?,
            false => runtime::runtime()?.outside_capture(|| self.marks(true))?,
        };
        marks.iter().try_for_each(|mark| self.wait(self.centre, mark))
    }

    /// The centre works for the others from here on: it goes on as by `collect`, and they, when the circle closes, after all that it got.
    pub fn lead(&mut self) -> Result<()> {
        self.is_leading = true;
        self.collect()
    }

    pub fn is_captured(&mut self) -> Result<bool> {
        for at in 0..=self.others.len() {
            let stream = *self.others.get(at).unwrap_or(&self.centre);
            // CUDA captures no legacy default stream.
            if stream.raw != stream::DEFAULT && self.enter(stream)?.stream_is_capturing(stream.raw).unwrap_or(true) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn marks(&mut self, asks: bool) -> Result<Vec<Pooled>> {
        let mut marks = Vec::new();
        for at in 0..self.others.len() {
            let other = self.others[at];
            let runtime = self.enter(other)?;
            // Who watches streams knows of order by events only.
            if !asks || watch::any(watch::SANITIZER) || !other.is_idle(runtime) {
                marks.push(self.mark(other)?);
            }
        }
        Ok(marks)
    }

    /// The others go on after all that the centre has got until now.
    pub fn release(&mut self) -> Result<()> {
        self.is_released = true;
        if self.others.is_empty() {
            return Ok(());
        }
        let mark = self.mark(self.centre)?;
        (0..self.others.len()).try_for_each(|at| self.wait(self.others[at], &mark))
    }

    /// `next` goes on after all that `before` has got until now.
    pub fn hand_on(&mut self, before: Stream, next: Stream) -> Result<()> {
        if before == next {
            return Ok(());
        }
        let mark = self.mark(before)?;
        self.wait(next, &mark)
    }

    /// All is enqueued.
    pub fn close(mut self) -> Result<()> {
        if self.is_leading {
            self.release()?;
        }
        self.has_work = false;
        Ok(())
    }
}

impl Drop for Circle {
    fn drop(&mut self) {
        if self.has_work {
            self.others.iter().chain([&self.centre]).for_each(|stream| stream.drain());
        }
    }
}
