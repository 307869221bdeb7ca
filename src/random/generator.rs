//! A generator of torch: a seed, and an offset up to which numbers were drawn. Kernels make the numbers from both; all that the host does is
//! to hand out stretches of the offset, each once.

use super::captured::{self, InGraph};
use super::geometry::Geometry;
use crate::base::{Error, Result, Status, entropy};
use crate::stream::Stream;
use parking_lot::{Mutex, MutexGuard};
use std::sync::{Arc, Weak};

/// What a new generator of torch has.
pub const DEFAULT_SEED: u64 = 67_280_421_310_721;

/// Offsets count 32-bit numbers, and Philox makes four at once.
const STEP: u64 = 4;

pub use crate::runtime::kernels::random::{PhiloxState, tcuda_philox_state_t};

/// A seed and an offset: what torch calls the state of a generator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    pub seed: u64,
    pub offset: u64,
}

impl State {
    pub const BYTES: usize = 16;

    pub fn new(seed: u64, offset: u64) -> Result<State> {
        if !offset.is_multiple_of(STEP) {
            return Err(Error::invalid_argument(format!("offset must be a multiple of 4, {offset} is not.")));
        }
        Ok(State { seed, offset })
    }

    pub fn seeded(seed: u64) -> State {
        State { seed, offset: 0 }
    }

    /// torch's layout: both in little endian.
    pub fn to_bytes(self) -> [u8; State::BYTES] {
        let mut bytes = [0; State::BYTES];
        bytes[..8].copy_from_slice(&self.seed.to_le_bytes());
        bytes[8..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// Of that layout, or of the older one of a seed alone.
    pub fn from_bytes(bytes: &[u8]) -> Result<State> {
        State::check_size(bytes.len())?;
        let words = bytes.as_chunks().0;
        State::new(u64::from_le_bytes(words[0]), words.get(1).map_or(0, |offset| u64::from_le_bytes(*offset)))
    }

    pub fn check_size(bytes: usize) -> Result<()> {
        if [8, State::BYTES].contains(&bytes) {
            return Ok(());
        }
        let text = format!("RNG state is wrong size: {bytes} bytes. It has 16 (the seed and the offset), or 8 (the seed).");
        Err(Error::invalid_argument(text))
    }
}

/// What a program sets of a generator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// With the offset 0.
    Seed(u64),
    State(State),
    Offset(u64),
}

impl Change {
    fn of(self, state: State) -> Result<State> {
        match self {
            Change::Seed(seed) => Ok(State::seeded(seed)),
            Change::State(state) => Ok(state),
            Change::Offset(offset) => State::new(state.seed, offset),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Change::Seed(_) => "set the seed",
            Change::State(_) => "set the state",
            Change::Offset(_) => "set the offset",
        }
    }
}

/// A seed that nobody can foretell, of 53 bits, so that a double holds it.
pub fn fresh_seed() -> Result<u64> {
    Ok(entropy::bits()? >> 11)
}

pub struct Generator {
    device: i32,
    inner: Mutex<Inner>,
}

struct Inner {
    state: State,
    /// None: the device's, asked for when it is needed.
    geometry: Option<Geometry>,
    /// Of captures that have drawn from it, those that are under way.
    open: Vec<Weak<InGraph>>,
}

impl Inner {
    fn new(state: State, geometry: Option<Geometry>) -> Inner {
        Inner { state, geometry, open: Vec::new() }
    }

    fn forget_ended(&mut self) {
        self.open.retain(|known| known.upgrade().is_some_and(|known| known.is_open()));
    }

    fn is_captured(&mut self) -> bool {
        self.forget_ended();
        !self.open.is_empty()
    }
}

impl Generator {
    pub fn new(device: i32, state: State) -> Generator {
        Generator { device, inner: Mutex::new(Inner::new(state, None)) }
    }

    pub fn device(&self) -> i32 {
        self.device
    }

    /// Another one that goes on from here by itself.
    pub fn duplicate(&self) -> Generator {
        let inner = self.inner.lock();
        Generator { device: self.device, inner: Mutex::new(Inner::new(inner.state, inner.geometry)) }
    }

    pub fn state(&self) -> State {
        self.inner.lock().state
    }

    /// Sets something of it; not while a capture is under way that has drawn from it: a replay begins where the generator is then, and would
    /// not do this again. The seed that it has is taken then, as in torch, and changes nothing.
    pub fn change(&self, change: Change) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.state = self.after(&mut inner, change)?;
        Ok(())
    }

    /// Whether that may be.
    pub fn check(&self, change: Change) -> Result<()> {
        self.after(&mut self.inner.lock(), change).map(drop)
    }

    fn after(&self, inner: &mut Inner, change: Change) -> Result<State> {
        if !inner.is_captured() {
            return change.of(inner.state);
        }
        match change {
            Change::Seed(seed) if seed == inner.state.seed => Ok(inner.state),
            other => Err(self.captured(other.name())),
        }
    }

    /// How much each thread of a launch has drawn.
    pub fn offset(&self) -> Result<u64> {
        let mut inner = self.inner.lock();
        if inner.is_captured() { Err(self.captured("get the offset")) } else { Ok(inner.state.offset) }
    }

    #[cold]
    fn captured(&self, what: &str) -> Error {
        let text = format!("Cannot {what} of a generator during the capture of a graph that draws from it. Do it before or after.");
        Error::new(Status::TCUDA_ERROR_CAPTURE, text).on_device(self.device)
    }

    /// For who comes to draw as the capture of his stream ends: the numbers would begin nowhere.
    #[cold]
    pub fn capture_ended(&self) -> Error {
        let text = "The capture ended while random numbers were drawn in it.";
        Error::new(Status::TCUDA_ERROR_CAPTURE, text).on_device(self.device)
    }

    pub fn geometry(&self) -> Result<Geometry> {
        let known = self.inner.lock().geometry;
        known.map_or_else(|| Geometry::of_device(self.device), Ok)
    }

    /// None: the device's own.
    pub fn set_geometry(&self, geometry: Option<Geometry>) {
        self.inner.lock().geometry = geometry;
    }

    /// Begins to draw for work of a stream. Others wait until that is launched, so the work of one generator is in the order in which it
    /// took its numbers.
    pub fn draws<'a>(self: &'a Arc<Generator>, stream: Stream) -> Result<Draws<'a>> {
        let graph = if stream.is_capturing()? { Some(captured::of(stream, self)?) } else { None };
        let mut inner = self.inner.lock();
        let geometry = inner.geometry.map_or_else(|| Geometry::of_device(self.device), Ok)?;
        if let Some(graph) = &graph {
            if !graph.is_open() {
                return Err(self.capture_ended());
            }
            if !inner.open.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(graph))) {
                inner.forget_ended();
                inner.open.push(Arc::downgrade(graph));
            }
        }
        let offset = graph.as_ref().map_or(inner.state.offset, |graph| graph.drawn());
        Ok(Draws { geometry, offset, graph, inner })
    }

    /// For a replay that draws so much: the state that it begins with, in one caller's hands.
    pub fn advance(&self, increment: u64) -> Result<Advance<'_>> {
        let inner = self.inner.lock();
        let after = inner.state.offset.checked_add(increment).ok_or_else(|| too_far(inner.state.offset, increment))?;
        Ok(Advance { inner, after })
    }
}

/// A generator that is about to go on by a whole graph.
pub struct Advance<'a> {
    inner: MutexGuard<'a, Inner>,
    after: u64,
}

impl Advance<'_> {
    pub fn state(&self) -> State {
        self.inner.state
    }

    pub fn commit(mut self) {
        self.inner.state.offset = self.after;
    }
}

#[cold]
fn too_far(offset: u64, increment: u64) -> Error {
    Error::invalid_argument(format!("The generator's offset is {offset} and would grow by {increment}, beyond 64 bits. Seed it anew."))
}

/// A generator in one caller's hands.
pub struct Draws<'a> {
    inner: MutexGuard<'a, Inner>,
    geometry: Geometry,
    /// In a capture, counted from the graph's beginning.
    offset: u64,
    graph: Option<Arc<InGraph>>,
}

impl Draws<'_> {
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// A stretch of the offset for one launch: `increment` for each of its threads, rounded up to a multiple of 4.
    pub fn take(&mut self, increment: u64) -> Result<PhiloxState> {
        let after = increment.checked_next_multiple_of(STEP).and_then(|increment| self.offset.checked_add(increment));
        let after = after.ok_or_else(|| too_far(self.offset, increment))?;
        let offset = std::mem::replace(&mut self.offset, after);
        if let Some(graph) = &self.graph {
            return Ok(graph.state(offset));
        }
        Ok(PhiloxState { seed: self.inner.state.seed, offset, offset_intragraph: 0, captured: 0, reserved: 0 })
    }

    /// The numbers are used. Without it they are there for whoever draws next.
    pub fn commit(mut self) {
        match &self.graph {
            Some(graph) => graph.set_drawn(self.offset),
            None => self.inner.state.offset = self.offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `draws` gives them, without a device.
    fn draws(generator: &Generator) -> Draws<'_> {
        let inner = generator.inner.lock();
        Draws { geometry: Geometry::Portable, offset: inner.state.offset, graph: None, inner }
    }

    fn take(generator: &Generator, increment: u64) -> Result<(u64, u64)> {
        let mut draws = draws(generator);
        let taken = draws.take(increment)?;
        draws.commit();
        Ok((taken.seed, taken.offset))
    }

    #[test]
    fn what_is_taken_is_rounded_up_and_begins_where_the_last_ended() {
        let generator = Generator::new(0, State::seeded(7));
        let taken: Vec<_> = [1, 4, 5, 0, 8, 3].map(|increment| take(&generator, increment).unwrap().1).to_vec();
        assert_eq!(taken, [0, 4, 8, 16, 16, 24]);
        assert_eq!(generator.state(), State { seed: 7, offset: 28 });
    }

    #[test]
    fn what_is_not_committed_is_drawn_by_the_next() {
        let generator = Generator::new(0, State::seeded(7));
        {
            let mut draws = draws(&generator);
            assert_eq!((draws.take(4).unwrap().offset, draws.take(4).unwrap().offset), (0, 4));
        }
        assert_eq!(generator.state().offset, 0);
        let mut draws = draws(&generator);
        let values: Vec<u64> = (0..3).map(|_| draws.take(100).unwrap().offset).collect();
        assert_eq!(values, [0, 100, 200]);
        draws.commit();
        assert_eq!(generator.state().offset, 300);
    }

    #[test]
    fn an_offset_that_does_not_fit_is_an_error_and_changes_nothing() {
        let last = u64::MAX - 3;
        let generator = Generator::new(0, State::new(7, last).unwrap());
        for increment in [1, 4, u64::MAX - 3, u64::MAX - 2, u64::MAX] {
            let error = take(&generator, increment).unwrap_err();
            assert!(error.message.contains(&last.to_string()) && error.message.contains(&increment.to_string()), "{error}");
        }
        assert_eq!(take(&generator, 0), Ok((7, last)));
        generator.change(Change::Seed(8)).unwrap();
        assert_eq!(take(&generator, u64::MAX - 3), Ok((8, 0)));
        assert_eq!(generator.state().offset, last);
    }

    #[test]
    fn states_are_bytes_of_torch() {
        let state = State::new(0x1122_3344_5566_7788, 0x0a0b_0c0d_0e0f_1014).unwrap();
        let bytes = state.to_bytes();
        assert_eq!(bytes, [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x14, 0x10, 0x0f, 0x0e, 0x0d, 0x0c, 0x0b, 0x0a]);
        assert_eq!(State::from_bytes(&bytes), Ok(state));
        assert_eq!(State::from_bytes(&bytes[..8]), Ok(State::seeded(state.seed)));
        for size in (0..16).filter(|size| *size != 8) {
            let error = State::from_bytes(&bytes[..size]).unwrap_err();
            assert!(error.message.starts_with("RNG state is wrong size") && error.message.contains(&format!(" {size} ")), "{error}");
        }
        assert!(State::from_bytes(&[0; 17]).is_err() && State::from_bytes(&[0; 24]).is_err());
        let mut odd = bytes;
        odd[8] = 2;
        assert!(State::from_bytes(&odd).unwrap_err().message.starts_with("offset must be a multiple of 4"));
    }

    #[test]
    fn a_duplicate_goes_its_own_way() {
        let generator = Generator::new(0, State::new(7, 40).unwrap());
        generator.set_geometry(Some(Geometry::Portable));
        let other = generator.duplicate();
        assert_eq!((other.state(), other.geometry()), (generator.state(), Ok(Geometry::Portable)));
        take(&other, 4).unwrap();
        other.change(Change::Seed(9)).unwrap();
        assert_eq!(generator.state(), State { seed: 7, offset: 40 });
        assert!(generator.change(Change::Offset(41)).is_err() && generator.state().offset == 40);
        generator.change(Change::Offset(44)).unwrap();
        assert_eq!(generator.state(), State { seed: 7, offset: 44 });
    }

    #[test]
    fn fresh_seeds_fit_a_double() {
        let seeds: Vec<u64> = (0..64).map(|_| fresh_seed().unwrap()).collect();
        assert!(seeds.iter().all(|seed| *seed < 1 << 53 && *seed as f64 as u64 == *seed));
        assert!(seeds.iter().any(|seed| *seed >= 1 << 52) && seeds[0] != seeds[1]);
    }
}
