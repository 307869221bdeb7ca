//! How much memory may be taken from the driver, and in handles of which size: the balance of waste against calls of the driver.
//!
//! While there is plenty, growth up to `slack` above the most that was in use costs no second thought. Beyond that, free memory is
//! mapped a second time instead. More slack gets a program that does not come to rest so, and one that is held up by it for a noticeable
//! part of its time. Where memory is scarce the slack shrinks, and handles become small, so that a live block keeps little else from being
//! used.

use crate::memory::options::Options;
use std::time::{Duration, Instant};

/// Handles are no larger, so that one live block keeps no more than this from the driver.
pub const LARGEST_HANDLE: usize = 512 << 20;
/// A handle is at most this share of what is held...
const SHARE: usize = 200;
/// ... or this one of the request, whichever is more...
const REQUEST_SHARE: usize = 16;
/// ... with several streams these: what one has free of a handle the others cannot join, so that more of them stay half in use...
const SHARE_OF_STREAMS: usize = 800;
const REQUEST_SHARE_OF_STREAMS: usize = 32;
/// ... where several streams have work this one of the request at least, however fine the others are: what another stream has free is
/// seldom past when it is wanted, so that much more is mapped anew, and each handle of it costs the same...
const REQUEST_SHARE_OF_BUSY: usize = 4;
/// ... and this one of what is left, times the share that this is of all: handles become finer while there is still room, so that those
/// that are coarse are few where it ends...
const SHARE_OF_LEFT: usize = 512;
/// ... or of so much, where all is less: of little memory there are never many handles, so that they may be fine from the first.
const MUCH: usize = 64 << 30;
/// Each step of fineness divides the size of handles by this. It rises by several at once, and falls by one.
const STEP: usize = 2;
const RISE: u32 = 3;
const FINEST: u32 = 9;
/// What is held beyond the slack goes back only from so much on, a part of the most that was in use: what was once needed in spite of the
/// slack is needed by the next round too, which would make it again, and all that follows would lie elsewhere.
const KEPT: usize = 25;
/// Small blocks would hold large handles back for long: for them memory is made beyond the slack, up to this part of the most that was in
/// use, or one handle. Then small handles are mapped anew for them, or others go back.
const KEPT_FOR_SMALL: usize = 80;
/// Times the size of what would be made.
const COARSE: usize = 3;
/// The slack where memory is scarce.
const SCARCE_SLACK: f64 = 0.005;
/// Most mappings beside two for each handle. A round of ever new sizes that comes again needs those of the last one, and each is looked at when
/// memory is searched; processes have bounds of their own, often 65,530 for all devices.
const MAPPINGS: usize = 32 << 10;
/// With no more than this beside the first of each handle it is not for them that the driver refuses one.
const FEWEST_MAPPINGS: usize = 1 << 10;
/// Handles' worth of slack that every program has.
const LEAST_SLACK: usize = 2;
/// Sizes do not come back: more than this share of the large blocks have one of their own.
const NEW: f64 = 0.4;
/// A load for which memory is mapped anew again and again gets more slack for each time: each counts for the next `each` blocks that are freed,
/// several up to `all`, and once that has lasted for `long`, the slack rises up to `most`.
struct Unrest {
    each: u64,
    all: u64,
    long: u64,
    most: f64,
}
/// Several streams: seldom is no matter...
const OF_NEW: Unrest = Unrest { each: 1 << 8, all: 1 << 11, long: 1 << 14, most: 2.0 };
/// ... and where sizes come back, it may take longer to find its way.
const OF_OLD: Unrest = Unrest { each: 1 << 9, all: 1 << 14, long: 1 << 16, most: 2.0 };
/// Once it is known not to rest: until each stream has what it needs at its own worst times.
const OF_RESTLESS: Unrest = Unrest { each: 1 << 17, all: 1 << 18, long: 1 << 14, most: 2.0 };
/// One stream: while its free memory is in few pieces, mappings that were made for one request soon serve the next ones. Where they are as
/// many as the blocks in use, or so many, most are too small for any, and to map them side by side costs more than the memory.
const OF_PIECES: Unrest = Unrest { each: 1 << 6, all: 1 << 10, long: 1 << 8, most: 0.1 };
pub const PIECES: usize = 256;
const FEWEST_PIECES: usize = 64;
/// With one for so many freed blocks it is known from the first: what is mapped here and there by then stays in the way for long.
const FREES_OF_PIECE: u64 = 8;
const STEP_OF_UNREST: f64 = 0.05;
/// That is memory that nobody is short of: this share of the bound is left.
const PLENTY: usize = 4;
/// To make free memory fit may hold a program up for this share of its time, looked at after each `WINDOW` over all since the last time that it
/// was more, and over twice `MEMORY` at most; if it is more, the slack rises by `STEP_OF_TIME`.
const SHARE_OF_TIME: f64 = 0.03;
const WINDOW: Duration = Duration::from_secs(1);
const MEMORY: Duration = Duration::from_secs(4);
const STEP_OF_TIME: f64 = 0.04;
const MOST_OF_TIME: f64 = 0.24;
/// Where streams that have work keep apart, so much may be held beyond the most in use before they take from each other all the same.
const MOST_APART: f64 = 0.3;
/// Handles become larger again only while more than this share of what is held is free: near its peak a program has none to spare.
const ROOM: usize = 8;
/// Scarce is what leaves less than this share of the bound.
const NEAR: usize = 8;
/// Little in use is this part of the most that was. Until then free memory comes to rest each time that by this share less is in use; where
/// memory is scarce by that one, since what is in its place lies in fewer pieces.
const LITTLE: usize = 16;
const EBB: usize = 4;
const EBB_OF_SCARCE: usize = 48;

#[derive(Default)]
pub struct Policy {
    /// The most bytes in use at a time, since everything was last given back.
    high: usize,
    /// How many blocks had been freed by then, or when little was in use.
    frees_before: u64,
    /// The most that was counted by then, which says nothing of what came after as long as it is the most.
    peak_before: Option<usize>,
    /// 0: as coarse as can be. Rises when more is held than the slack allows although all was tried. Falls as many small ones are made
    /// anew in large ones.
    fineness: u32,
    /// What was held when it last rose.
    risen_at: usize,
    /// The driver had no more than this.
    ceiling: Option<usize>,
    /// Most mappings beside the first of each handle, where the driver took no more.
    crowd: Option<usize>,
    /// What was held and what the driver had left, when it was asked.
    room: Option<usize>,
    /// It is asked anew when so much is held.
    ask_at: usize,
    /// Slack for the sake of time. It stays: to learn it anew after each rest would cost that time again.
    hurry: f64,
    /// Slack for a load that does not come to rest: of several streams, and of one as long as its sizes are new, which says nothing of several.
    unrest: f64,
    unrest_of_one: f64,
    /// There was no more to spare.
    is_short: bool,
    /// By the last terms.
    is_scarce: bool,
    /// By load: what counts for the one says nothing of the other.
    restless: [Restless; 3],
    /// When the window began; and since when it is measured for how long the device was held up.
    window: Option<Instant>,
    since: Option<Instant>,
    held_up: Duration,
    /// Whether a stream had work when memory was mapped for it in that time, without which nothing is held up, and in the window before.
    worked: bool,
    worked_before: bool,
    /// Streams had work when memory was mapped anew. It stays, as `hurry` does.
    apart: bool,
}

/// How much may be made when free memory does not do: what `Terms` has as budget, or all that is allowed.
#[derive(Clone, Copy, PartialEq)]
pub enum UpTo {
    Budget,
    Limit,
}

/// What one growth may do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    pub granularity: usize,
    /// Bytes that may be made before free memory is mapped anew.
    pub budget: usize,
    /// Bytes that may be made at all.
    pub most: usize,
    /// The largest handle to make.
    pub largest: usize,
    /// Whether memory is scarce: then free handles from the size `coarse` on are better made anew, in small ones.
    pub scarce: bool,
    /// Whether it is, or more is held than the slack allows: then what is left of handles in use is spent before whole ones.
    pub thrifty: bool,
    pub coarse: usize,
    /// Whether handles that are many and small for the request are better made anew, in larger ones.
    pub coarsen: bool,
    /// Bytes that are held too far beyond the slack, or would be with a handle for small blocks; for large ones as far as a request of this
    /// size goes into giving them back.
    pub excess: usize,
    /// Whether memory was asked for several streams.
    pub several: bool,
    /// That may not come to rest if memory is mapped anew.
    pub load: Option<Load>,
    /// Whether what the budget has is made without a look at what is mapped.
    pub at_once: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Several streams, for one whose sizes come back.
    Old,
    /// The same for one of ever new sizes.
    New,
    /// One stream of ever new sizes, with free memory in many pieces.
    Pieces,
}

/// Since when memory is mapped anew again and again, by how many blocks had been freed, and how long that counts.
#[derive(Default)]
struct Restless {
    began: u64,
    until: u64,
}

/// The state that terms are made for.
pub struct Holding {
    pub reserved: usize,
    /// In use with the request, and the most that was counted.
    pub active: usize,
    pub peak: usize,
    /// The large blocks in use, with the request: how many, and their mean size.
    pub large: usize,
    pub mean: usize,
    /// In how many pieces a single stream's memory for large blocks is free, up to `PIECES`; and how many blocks were ever freed.
    pub pieces: usize,
    pub frees: u64,
    /// The share of large blocks whose size was not seen lately.
    pub new_sizes: f64,
    /// For which memory was asked, since everything was last given back.
    pub streams: usize,
    pub limit: Option<usize>,
    pub total: usize,
    pub granularity: usize,
    /// Whether the request is for a small block.
    pub small: bool,
}

impl Holding {
    fn is_several(&self) -> bool {
        self.streams > 1
    }

    fn is_new(&self) -> bool {
        is_new(self.new_sizes)
    }

    fn load(&self) -> Option<Load> {
        match (self.is_several(), self.is_new()) {
            (true, true) => Some(Load::New),
            (true, false) => Some(Load::Old),
            (false, true) if self.pieces >= self.large.clamp(FEWEST_PIECES, PIECES) => Some(Load::Pieces),
            (false, _) => None,
        }
    }
}

/// Whether the share of new sizes says that sizes do not come back.
pub fn is_new(share: f64) -> bool {
    share > NEW
}

impl Policy {
    pub fn terms(&mut self, holding: &Holding, need: usize, options: &Options) -> Terms {
        let Holding { reserved, limit, total, granularity, .. } = *holding;
        self.in_use(holding.active, holding.peak);
        let offered = total.min(self.room.unwrap_or(usize::MAX)).min(self.ceiling.unwrap_or(usize::MAX));
        let bound = limit.unwrap_or(offered).min(offered);
        let near = |bound: usize| reserved.saturating_add(need) > bound - bound / NEAR;
        let scarce = options.tight || near(bound);
        if near(offered) {
            self.ask_at = 0;
        }
        let (allowed, has_more) = self.allowed(holding, bound, scarce, options.slack);
        self.adapt(reserved, allowed);
        self.is_scarce = scarce;
        let largest = self.largest(holding, need, bound, scarce, has_more);
        let beyond = |held: usize, kept: usize| if scarce { 0 } else { held.saturating_sub(allowed + kept) };
        let excess = match holding.small {
            true => beyond(reserved + granularity, (self.high / KEPT_FOR_SMALL).max(granularity)),
            false => beyond(reserved, self.high / KEPT).min(need),
        };
        let load = holding.load();
        Terms {
            granularity,
            budget: allowed.saturating_sub(reserved) / granularity * granularity,
            most: limit.map_or(usize::MAX, |limit| limit.saturating_sub(reserved)) / granularity * granularity,
            largest,
            scarce,
            thrifty: scarce || reserved > allowed,
            coarse: COARSE * largest,
            coarsen: !scarce && self.fineness > 0 && holding.active <= reserved - reserved / ROOM,
            excess,
            several: holding.is_several(),
            load,
            at_once: load == Some(Load::New) && self.is_restless() && !scarce,
        }
    }

    /// So much may be held before free memory is mapped anew, and whether some of it is for a load that does not come to rest.
    fn allowed(&mut self, holding: &Holding, bound: usize, scarce: bool, slack: f64) -> (usize, bool) {
        let slack = if scarce { slack.min(SCARCE_SLACK) } else { slack + self.hurry };
        let least = if scarce { 0 } else { LEAST_SLACK * holding.granularity };
        let allowed = self.high + ((self.high as f64 * slack) as usize).max(least);
        let spare = if scarce { 0 } else { (bound - bound / PLENTY).saturating_sub(allowed) };
        let of_one = holding.is_new() && !holding.is_several();
        if of_one && spare > 0 && self.is_shattered(holding) {
            self.unrest_of_one = OF_PIECES.most;
        }
        // What one stream has for the sake of time serves it here too.
        let of_one = if of_one { self.unrest_of_one - self.hurry } else { 0.0 };
        let unrest = (self.high as f64 * self.unrest.max(of_one)) as usize;
        self.is_short = unrest >= spare;
        let more = unrest.min(spare);
        (allowed + more, more > 0)
    }

    /// The largest handle to make.
    fn largest(&self, holding: &Holding, need: usize, bound: usize, scarce: bool, has_more: bool) -> usize {
        let Holding { reserved, granularity, .. } = *holding;
        let several = holding.is_several();
        let divisor = STEP.pow(if scarce { FINEST } else { self.fineness });
        let (share, request_share) = if several { (SHARE_OF_STREAMS, REQUEST_SHARE_OF_STREAMS) } else { (SHARE, REQUEST_SHARE) };
        let largest = (reserved / (share * divisor)).max(need / (request_share * divisor)).min(holding.mean);
        // Each block that stays among others that went keeps about one handle back. With slack for unrest there is room for that.
        let largest = match (scarce, has_more, self.is_busy() && several) {
            (true, ..) | (_, false, false) => largest,
            (_, true, _) => need,
            (_, _, true) => largest.max(need / REQUEST_SHARE_OF_BUSY),
        };
        let left = bound.saturating_sub(reserved);
        let largest = largest.min((left as f64 * (left as f64 / bound.max(MUCH) as f64)) as usize / SHARE_OF_LEFT);
        largest.next_multiple_of(granularity).clamp(granularity, LARGEST_HANDLE.max(granularity))
    }

    /// Whether the pieces are many of the blocks that were freed since the beginning. With fewer of those some were there before.
    fn is_shattered(&self, holding: &Holding) -> bool {
        let (pieces, freed) = (holding.pieces as u64, holding.frees.saturating_sub(self.frees_before));
        holding.pieces >= FEWEST_PIECES && (pieces..=FREES_OF_PIECE * pieces).contains(&freed)
    }

    /// Finer when the slack was exceeded, at most once as memory grows by 3 per cent; coarser when it has grown by half since.
    fn adapt(&mut self, reserved: usize, allowed: usize) {
        if reserved > allowed + allowed / 1000 && reserved > self.risen_at + self.risen_at / 32 && self.fineness < FINEST {
            self.fineness = (self.fineness + RISE).min(FINEST);
            self.risen_at = reserved;
        } else if self.fineness > 0 && reserved > self.risen_at + self.risen_at / 2 {
            self.fineness = self.fineness.saturating_sub(RISE);
            self.risen_at = reserved;
        }
    }

    /// Of what was held small handles went, and larger ones come.
    pub fn coarser(&mut self, reserved: usize) {
        self.fineness = self.fineness.saturating_sub(1);
        self.risen_at = self.risen_at.min(reserved);
    }

    /// Free memory is mapped anew for such a load, after so many blocks were freed. Where there is nothing to spare every load is like that, and
    /// where streams have work others' memory is not past: then it says nothing.
    pub fn does_not_rest(&mut self, load: Load, frees: u64) {
        if self.is_short || load != Load::Pieces && self.is_busy() {
            self.restless = Default::default();
            return;
        }
        let is_restless = self.is_restless();
        let load = if load == Load::Old && is_restless { Load::New } else { load };
        let (Unrest { each, all, long, most }, unrest) = match load {
            Load::Old => (OF_OLD, &mut self.unrest),
            Load::New if is_restless => (OF_RESTLESS, &mut self.unrest),
            Load::New => (OF_NEW, &mut self.unrest),
            Load::Pieces => (OF_PIECES, &mut self.unrest_of_one),
        };
        let Restless { began, until } = &mut self.restless[load as usize];
        if frees > *until {
            (*began, *until) = (frees, frees);
        }
        *until = (*until + each).min(frees + all);
        // What was freed twice is not counted in the end.
        if frees.saturating_sub(*began) >= long {
            *unrest = (*unrest + STEP_OF_UNREST).min(most);
        }
    }

    /// Whether each stream keeps what it has, past or not: what one takes from another that has work is missed there when it is not past.
    pub fn is_apart(&self) -> bool {
        self.apart
    }

    /// Whether a stream that keeps apart may still have so much more than the slack.
    pub fn has_room_apart(&self, reserved: usize, need: usize) -> bool {
        !self.is_short && reserved + need <= self.high + (self.high as f64 * MOST_APART) as usize
    }

    /// Whether there is slack for a load of several streams that does not come to rest.
    pub fn is_restless(&self) -> bool {
        self.unrest > 0.0
    }

    /// Whether memory leaves no more slack for a load that does not come to rest.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Free memory comes to rest when less than this is in use, so much being in use now. A load that does not rest has no rounds.
    pub fn floor(&self, in_use: usize) -> usize {
        let floor = match (self.is_restless(), self.is_scarce) {
            (true, _) => 0,
            (false, true) => in_use - in_use / EBB_OF_SCARCE,
            (false, false) => in_use - in_use / EBB,
        };
        floor.max(self.little())
    }

    /// A round is over when no more is in use.
    pub fn little(&self) -> usize {
        self.high / LITTLE
    }

    pub fn is_over(&self, in_use: usize) -> bool {
        in_use <= self.little()
    }

    /// A round is over, and it came to rest with so much in use: when it does again, in few steps down to nothing, since what is in use keeps its
    /// place. 0: nothing is.
    pub fn floor_of_little(&self, in_use: usize) -> usize {
        in_use / LITTLE
    }

    /// Little is in use: a round is over, after so many blocks were freed.
    pub fn rests(&mut self, frees: u64) {
        self.frees_before = frees;
        (self.unrest, self.unrest_of_one, self.restless) = Default::default();
        (self.worked, self.worked_before) = (false, false);
    }

    /// Free memory is about to be mapped anew, for a stream that has work or not, the only one or not.
    pub fn maps_anew(&mut self, busy: bool, several: bool) {
        self.worked |= busy;
        self.apart |= busy && several;
    }

    /// Whether it is known of this window that streams had work when free memory was mapped anew.
    pub fn works(&self) -> bool {
        self.worked
    }

    /// Whether it would say nothing new that the stream has work for which memory is mapped anew.
    pub fn knows_work(&self, several: bool) -> bool {
        self.worked && (self.apart || !several)
    }

    fn is_busy(&self) -> bool {
        self.worked || self.worked_before
    }

    /// To make free memory fit took from `began` to `now`. `busy`: streams have work still, so that the device was not held up.
    pub fn took(&mut self, began: Instant, now: Instant, busy: bool) {
        let (window, since) = (*self.window.get_or_insert(began), *self.since.get_or_insert(began));
        if self.worked && !busy {
            self.held_up += now - began;
        }
        if now - window < WINDOW {
            return;
        }
        self.worked_before = std::mem::take(&mut self.worked);
        self.window = Some(now);
        let passed = now - since;
        if self.held_up.as_secs_f64() > SHARE_OF_TIME * passed.as_secs_f64() {
            self.hurry = (self.hurry + STEP_OF_TIME).min(MOST_OF_TIME);
            (self.since, self.held_up) = (Some(now), Duration::ZERO);
        } else if passed > 2 * MEMORY {
            // What is long past counts no more.
            self.held_up = self.held_up.mul_f64(MEMORY.as_secs_f64() / passed.as_secs_f64());
            self.since = Some(now - MEMORY);
        }
    }

    /// Whether to ask the driver what it has left, which others take from too: when an eighth of that is used, and always where it is
    /// short, to see it become more.
    pub fn asks(&self, reserved: usize) -> bool {
        reserved >= self.ask_at
    }

    /// The driver has so much left beside what is held.
    pub fn left(&mut self, reserved: usize, free: usize) {
        self.room = Some(reserved.saturating_add(free));
        self.ask_at = reserved.saturating_add(free / NEAR);
    }

    /// The driver refused more.
    pub fn refused(&mut self, reserved: usize) {
        self.ceiling = Some(reserved);
    }

    /// More mappings of so many handles are too many. The first of each never ends.
    pub fn most_mappings(&self, handles: usize) -> usize {
        handles + self.crowd.unwrap_or(usize::MAX).min(handles + MAPPINGS)
    }

    /// The driver takes no more than so many mappings of so many handles: half of what can end will have to do, so that this is seldom. None: it is
    /// something else.
    pub fn crowd_of(mappings: usize, handles: usize) -> Option<usize> {
        Some(mappings.saturating_sub(handles)).filter(|beside| *beside > FEWEST_MAPPINGS).map(|beside| beside / 2)
    }

    /// The answer is what it was before.
    pub fn set_crowd(&mut self, crowd: Option<usize>) -> Option<usize> {
        std::mem::replace(&mut self.crowd, crowd)
    }

    /// The driver gave more, so that now `reserved` are held.
    pub fn given(&mut self, reserved: usize) {
        self.ceiling = self.ceiling.filter(|ceiling| reserved <= *ceiling);
    }

    /// Everything free went back: what was is no measure any more.
    pub fn restart(&mut self, active: usize, peak: usize, frees: u64) {
        *self = Policy { high: active, peak_before: Some(peak), frees_before: frees, ..Policy::default() };
    }

    /// So much is in use, and was at most as far as is counted. The answer is the most since everything was last given back.
    pub fn in_use(&mut self, active: usize, peak: usize) -> usize {
        self.peak_before = self.peak_before.filter(|before| *before == peak);
        let peak = if self.peak_before.is_some() { 0 } else { peak };
        self.high = self.high.max(active).max(peak);
        self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const GIB: usize = 1 << 30;

    fn holding(reserved: usize) -> Holding {
        let used = Holding {
            reserved,
            active: reserved,
            peak: reserved,
            large: 8,
            pieces: 0,
            frees: 0,
            mean: GIB,
            new_sizes: 0.0,
            streams: 1,
            limit: None,
            total: 0,
            granularity: 0,
            small: false,
        };
        Holding { total: 64 * GIB, granularity: 2 << 20, ..used }
    }

    #[test]
    fn handles_are_finer_where_less_is_left() {
        let mut policy = Policy::default();
        let options = Options::default();
        let mut largest = |reserved: usize| policy.terms(&holding(reserved), GIB, &options).largest >> 20;
        assert_eq!([0, 32, 48, 54, 56].map(|held| largest(held * GIB)), [64, 32, 8, 4, 2]);
        // And on smaller devices.
        let mut least = |total: usize| policy.terms(&Holding { total: total * GIB, ..holding(0) }, GIB, &options).largest >> 20;
        assert_eq!([128, 64, 32, 16, 10, 8].map(&mut least), [64, 64, 32, 8, 4, 2]);
    }

    #[test]
    fn handles_are_finer_with_several_streams() {
        let mut policy = Policy::default();
        let options = Options::default();
        let mut largest = |need: usize, streams: usize| {
            policy.terms(&Holding { streams, total: 1024 * GIB, ..holding(16 * GIB) }, need, &options).largest >> 20
        };
        assert_eq!([1, 2, 9].map(|streams| largest(4 << 20, streams)), [82, 22, 22]);
        assert_eq!([1, 2].map(|streams| largest(8 * GIB, streams)), [512, 256]);
    }

    #[test]
    fn free_memory_rests_at_steps_until_little_is_in_use() {
        let options = Options::default();
        let steps = |limit: Option<usize>, unrest: f64| {
            let mut policy = Policy { unrest, ..Policy::default() };
            let terms = policy.terms(&Holding { active: 8 * GIB, limit, total: 1024 * GIB, ..holding(8 * GIB) }, MIB, &options);
            assert_eq!(terms.scarce, limit.is_some());
            let first = policy.floor(8 * GIB);
            let next = |in_use: usize| if policy.is_over(in_use) { policy.floor_of_little(in_use) } else { policy.floor(in_use) };
            let floors = std::iter::successors(Some(first), |floor| Some(next(floor - 1)).filter(|next| *next > 0));
            (first, floors.count())
        };
        // A quarter less each time from 8 GiB to half a one, then a 16th down to nothing; a 48th where memory is scarce; and no round in a load
        // that has none.
        assert_eq!(steps(None, 0.0), (6 * GIB, 17));
        let (first, rests) = steps(Some(8 * GIB + 32 * MIB), 0.0);
        assert!(first == 8 * GIB - 8 * GIB / 48 && (138..148).contains(&rests), "{rests}");
        assert_eq!(steps(None, 0.05), (GIB / 2, 8));
        // With nothing known of the program there is nothing to wait for.
        assert!(Policy::default().is_over(0) && Policy::default().floor_of_little(0) == 0);
    }

    #[test]
    fn what_is_left_of_handles_goes_first_beyond_the_slack() {
        let options = Options::default();
        let thrifty = |reserved: usize| {
            let of_8 = Holding { active: 8 * GIB, peak: 8 * GIB, total: 1024 * GIB, ..holding(reserved) };
            Policy::default().terms(&of_8, MIB, &options).thrifty
        };
        assert_eq!([8 * GIB, 8 * GIB + 8 * GIB / 32, 8 * GIB + 8 * GIB / 25].map(thrifty), [false, false, true]);
    }

    #[test]
    fn handles_are_large_again_when_small_ones_were_made_anew() {
        let mut policy = Policy::default();
        let options = Options::default();
        let terms = |policy: &mut Policy, reserved: usize, active: usize| {
            policy.terms(&Holding { active, peak: 8 * GIB, total: 1024 * GIB, ..holding(reserved) }, 3 * GIB / 2, &options)
        };
        let coarse = terms(&mut policy, 8 * GIB, 8 * GIB);
        assert!(!coarse.scarce && !coarse.coarsen && coarse.excess == 0);
        let fine = terms(&mut policy, 9 * GIB, 8 * GIB);
        assert_eq!((fine.largest, fine.scarce), (coarse.largest / 8, false));
        assert!((400..420).contains(&(fine.excess >> 20)));
        // A little more than the slack stays.
        assert_eq!(terms(&mut policy, 8 * GIB + GIB / 2, 8 * GIB).excess, 0);
        // Not near the peak.
        assert!(!fine.coarsen && terms(&mut policy, 8 * GIB, 7 * GIB).coarsen);
        assert!(!terms(&mut policy, 8 * GIB, 7 * GIB + 1).coarsen);
        for step in 1..=3 {
            policy.coarser(8 * GIB);
            assert_eq!(terms(&mut policy, 8 * GIB, 8 * GIB).largest, fine.largest << step);
        }
        assert!(!terms(&mut policy, 8 * GIB, 7 * GIB).coarsen);
        // As much as made them small is enough once more.
        assert_eq!(terms(&mut policy, 9 * GIB, 8 * GIB).largest, fine.largest);
    }

    #[test]
    fn mappings_are_fewer_where_the_driver_takes_no_more() {
        let mut policy = Policy::default();
        assert_eq!([0, 1000].map(|handles| policy.most_mappings(handles)), [MAPPINGS, MAPPINGS + 2000]);
        // However many handles there are, some of what is beside their first ones may stay.
        assert_eq!(Policy::crowd_of(60_000, 50_000), Some(5000));
        assert_eq!(policy.set_crowd(Some(5000)), None);
        assert_eq!([0, 1000, 50_000].map(|handles| policy.most_mappings(handles)), [5000, 6000, 55_000]);
        // With hardly any it was something else.
        assert_eq!(
            [(300, 280), (60_000, 59_000), (5, 5), (0, 9)].map(|(mappings, handles)| Policy::crowd_of(mappings, handles)),
            [None; 4]
        );
        policy.restart(0, 0, 0);
        assert_eq!(policy.most_mappings(0), MAPPINGS);
    }

    #[test]
    fn small_blocks_exceed_the_slack_by_a_little() {
        let mut policy = Policy::default();
        let options = Options::default();
        let mut excess = |reserved: usize, total: usize| {
            let of_small = Holding { active: 8 * GIB, peak: 8 * GIB, small: true, total: total * GIB, ..holding(reserved) };
            policy.terms(&of_small, MIB, &options).excess
        };
        // 3.5 per cent and a little.
        let most = 8 * GIB + (8 * GIB) * 35 / 1000 + 8 * GIB / KEPT_FOR_SMALL;
        assert_eq!([8 * GIB, most - 3 * MIB].map(|reserved| excess(reserved, 1024)), [0, 0]);
        assert_eq!([most - MIB, most + GIB].map(|reserved| excess(reserved, 1024).div_ceil(MIB)), [1, 1026]);
        assert_eq!(excess(most + GIB, 9), 0);
    }

    #[test]
    fn of_one_stream_ever_new_sizes_and_many_pieces_may_not_come_to_rest() {
        let load = |streams: usize, new_sizes: f64, large: usize, pieces: usize| {
            let of_these = Holding { streams, new_sizes, large, pieces, frees: 1 << 20, ..holding(8 * GIB) };
            Policy::default().terms(&of_these, GIB, &Options::default()).load
        };
        // Hundreds, or as many as blocks in use, which are not among them.
        let pieces = [(8, 63), (8, 64), (100, 99), (100, 100), (5000, 255), (5000, 256)];
        let of_one = [None, Some(Load::Pieces), None, Some(Load::Pieces), None, Some(Load::Pieces)];
        assert_eq!(pieces.map(|(large, pieces)| load(1, 0.41, large, pieces)), of_one);
        assert_eq!(pieces.map(|(large, pieces)| load(1, 0.39, large, pieces)), [None; 6]);
        assert_eq!([0.39, 0.41].map(|new| load(2, new, 8, 0)), [Some(Load::Old), Some(Load::New)]);
    }

    #[test]
    fn what_is_shattered_from_the_first_gets_a_tenth_at_once() {
        let slack = |mut policy: Policy, streams: usize, new_sizes: f64, pieces: usize, frees: u64| {
            let of_these = Holding { streams, new_sizes, large: 5000, pieces, frees, total: 1024 * GIB, ..holding(8 * GIB) };
            policy.terms(&of_these, GIB, &Options::default());
            policy.unrest_of_one
        };
        let begins = [(63, 100), (64, 63), (64, 64), (64, 512), (64, 513), (256, 2048), (255, 2048)];
        let of_one = begins.map(|(pieces, frees)| slack(Policy::default(), 1, 1.0, pieces, frees));
        assert_eq!(of_one, [0.0, 0.0, 0.1, 0.1, 0.0, 0.1, 0.0]);
        assert_eq!([(2, 1.0), (1, 0.4)].map(|(streams, new)| slack(Policy::default(), streams, new, 64, 64)), [0.0; 2]);
        // What was freed before the last rest does not count, nor what is counted anew; with fewer frees than pieces some are older.
        type Begin = fn(&mut Policy);
        let begins: [Begin; 2] = [|policy| policy.rests(10_000), |policy| policy.restart(0, 0, 10_000)];
        for begin in begins {
            let since = |frees: u64| {
                let mut policy = Policy::default();
                begin(&mut policy);
                slack(policy, 1, 1.0, 64, frees)
            };
            assert_eq!([0, 10_000, 10_063, 10_064, 10_512, 10_513].map(since), [0.0, 0.0, 0.0, 0.1, 0.1, 0.0]);
        }
    }

    #[test]
    fn what_one_stream_needs_says_nothing_of_several() {
        let mut policy = Policy::default();
        let terms = |policy: &mut Policy, streams: usize| {
            let of_these = Holding { streams, new_sizes: 1.0, pieces: 64, frees: 300, total: 1024 * GIB, ..holding(8 * GIB) };
            policy.terms(&of_these, 64 * MIB, &Options::default())
        };
        terms(&mut policy, 1);
        assert!(policy.unrest_of_one > 0.0 && !policy.is_restless());
        let (of_two, usual) = (terms(&mut policy, 2), terms(&mut Policy::default(), 2));
        assert_eq!((of_two.budget, of_two.largest, of_two.at_once), (usual.budget, usual.largest, false));
        // Seldom enough that those whose sizes come back rest.
        (1..100).for_each(|times| policy.does_not_rest(Load::Old, times * 50_000));
        assert!(!policy.is_restless());
    }

    #[test]
    fn where_nothing_is_to_spare_no_load_says_anything() {
        for load in [Load::Old, Load::New, Load::Pieces] {
            let mut policy = Policy::default();
            policy.does_not_rest(load, 0);
            policy.terms(&Holding { new_sizes: 1.0, pieces: 64, frees: 300, ..holding(60 * GIB) }, GIB, &Options::default());
            assert!(policy.is_short());
            (0..1 << 20).step_by(8).for_each(|frees| policy.does_not_rest(load, frees));
            assert_eq!((policy.unrest, policy.unrest_of_one), (0.0, 0.0));
            // And what was before is forgotten.
            assert!(!policy.terms(&Holding { total: 1024 * GIB, ..holding(60 * GIB) }, GIB, &Options::default()).scarce);
            policy.does_not_rest(load, 1 << 20);
            assert_eq!((policy.unrest, policy.unrest_of_one), (0.0, 0.0));
        }
    }

    #[test]
    fn one_stream_that_does_not_come_to_rest_gets_a_tenth() {
        let Unrest { each, all, long, .. } = OF_PIECES;
        let map = |policy: &mut Policy, frees: &mut dyn Iterator<Item = u64>| frees.for_each(|at| policy.does_not_rest(Load::Pieces, at));
        let terms = |policy: &mut Policy, reserved: usize, total: usize| {
            let of_one = Holding { active: 8 * GIB, peak: 8 * GIB, total: total * GIB, ..holding(reserved) };
            policy.terms(&Holding { new_sizes: 1.0, pieces: PIECES, frees: 1 << 30, ..of_one }, GIB, &Options::default())
        };
        let budget = |policy: &mut Policy, total: usize| terms(policy, 8 * GIB, total).budget >> 20;
        let mut policy = Policy::default();
        let usual = budget(&mut policy, 1024);
        // Not a burst, and not with gaps.
        map(&mut policy, &mut (0..long - 1));
        map(&mut policy, &mut (long + all..long + all + 64 * each).step_by(each as usize + 1));
        assert_eq!(policy.unrest_of_one, 0.0);
        // Now it lasts. That fewer blocks are counted than before is no matter, nor is work: a stream's own memory is past for it.
        policy.maps_anew(true, false);
        let start = 1 << 20;
        map(&mut policy, &mut [start, start - 9, start + 9].into_iter());
        assert_eq!(policy.unrest_of_one, 0.0);
        let coarse = terms(&mut policy, 8 * GIB, 1024).largest;
        map(&mut policy, &mut (start + each / 2..=start + long).step_by(each as usize / 2));
        assert_eq!(budget(&mut policy, 1024), usual + 410);
        // Handles are as large as can be now, and free memory in its place is still looked for first.
        let of_restless = terms(&mut policy, 8 * GIB, 1024);
        assert!(of_restless.largest > coarse && !of_restless.at_once);
        map(&mut policy, &mut (start + long..start + 2 * long));
        assert_eq!(budget(&mut policy, 1024), usual + 818);
        // A quarter of the device is left, and nothing comes of it where memory is scarce.
        assert_eq!([11, 9].map(|total| budget(&mut policy, total)), [usual, 40]);
        policy.rests(0);
        assert_eq!(budget(&mut policy, 1024), usual);
        map(&mut policy, &mut (start + 2 * long..start + 2 * long + 1));
        assert_eq!(policy.unrest_of_one, 0.0);
    }

    #[test]
    fn who_does_not_come_to_rest_gets_more_slack() {
        let mut policy = Policy::default();
        let options = Options::default();
        let budget = |policy: &mut Policy, total: usize| {
            policy.terms(&Holding { new_sizes: 1.0, total: total * GIB, ..holding(8 * GIB) }, GIB, &options).budget >> 20
        };
        let at_first = budget(&mut policy, 1024);
        let at_once = |policy: &mut Policy, new_sizes: f64, streams: usize, total: usize| {
            let of_these = Holding { new_sizes, streams, total: total * GIB, ..holding(8 * GIB) };
            policy.terms(&of_these, MIB, &options).at_once
        };
        assert!(!at_once(&mut policy, 1.0, 2, 1024));
        // At first it says nothing yet, and seldom is no matter.
        let Unrest { each, long, .. } = OF_NEW;
        (0..4 * long).step_by(each as usize + 1).for_each(|frees| policy.does_not_rest(Load::New, frees));
        let from = 8 * long;
        (from..from + long).step_by(each as usize).for_each(|frees| policy.does_not_rest(Load::New, frees));
        assert!(!policy.is_restless());
        policy.does_not_rest(Load::New, from + long);
        assert!(policy.is_restless());
        assert_eq!(budget(&mut policy, 1024), at_first + 410);
        // Then, but not where memory is scarce, for sizes that come back or when one stream is left.
        let loads = [(1.0, 2, 9), (0.0, 2, 1024), (1.0, 1, 1024), (1.0, 2, 1024)];
        assert_eq!(loads.map(|(new, streams, total)| at_once(&mut policy, new, streams, total)), [false, false, false, true]);
        // From then on each counts for long.
        let Unrest { each, long, .. } = OF_RESTLESS;
        let from = from + OF_NEW.long + OF_NEW.all + 1;
        [from, from + each, from + 2 * each].into_iter().for_each(|frees| policy.does_not_rest(Load::New, frees));
        assert_eq!(budget(&mut policy, 1024), at_first + 1228);
        (from + 2 * each + long..).take(100).for_each(|frees| policy.does_not_rest(Load::Old, frees));
        assert_eq!(budget(&mut policy, 1024), at_first + (16 << 10));
        // A quarter of the device is left, and where it is scarce there is nothing to be had.
        assert_eq!([24, 16, 11, 10].map(|total| budget(&mut policy, total)), [10 << 10, 4 << 10, at_first, 40]);
        assert!(policy.is_short());
        policy.rests(0);
        assert_eq!(budget(&mut policy, 1024), at_first);
        assert!(!policy.is_short());
        // Where sizes come back it has to be often, and for longer.
        let Unrest { each, all, long, .. } = OF_OLD;
        let every = |gap: u64, from: u64| (from..from + long + all).step_by(gap as usize);
        every(each + 1, 0).for_each(|frees| policy.does_not_rest(Load::Old, frees));
        every(1, 4 * long).take(long as usize).for_each(|frees| policy.does_not_rest(Load::Old, frees));
        assert!(!policy.is_restless());
        // One of new sizes between them does not make up for gaps.
        policy.does_not_rest(Load::New, 6 * long);
        policy.does_not_rest(Load::Old, 6 * long + OF_OLD.long + 1);
        assert!(!policy.is_restless());
        every(each, 8 * long).for_each(|frees| policy.does_not_rest(Load::Old, frees));
        assert!(policy.is_restless());
        policy.restart(8 * GIB, 0, 0);
        assert!(!policy.is_restless());
    }

    #[test]
    fn streams_with_work_say_nothing_of_rest_until_they_rest() {
        let Unrest { each, long, .. } = OF_NEW;
        let lasts = |policy: &mut Policy, frees: std::ops::RangeInclusive<u64>| {
            frees.step_by(each as usize).for_each(|frees| policy.does_not_rest(Load::New, frees));
        };
        let mut policy = Policy::default();
        lasts(&mut policy, 0..=long - each);
        policy.maps_anew(true, true);
        policy.maps_anew(false, true);
        lasts(&mut policy, long..=3 * long);
        assert!(!policy.is_restless());
        policy.rests(0);
        lasts(&mut policy, 3 * long + each..=4 * long + each);
        assert!(policy.is_restless());
        // Nor for longer than they have it, and what was before is forgotten.
        let mut policy = Policy::default();
        let start = Instant::now();
        lasts(&mut policy, 0..=long - each);
        policy.maps_anew(true, true);
        policy.took(start, start + WINDOW, true);
        lasts(&mut policy, long..=2 * long);
        assert!(!policy.is_restless());
        policy.maps_anew(false, true);
        policy.took(start + WINDOW, start + 2 * WINDOW, false);
        lasts(&mut policy, 2 * long + each..=3 * long);
        assert!(!policy.is_restless());
        lasts(&mut policy, 3 * long + each..=3 * long + each);
        assert!(policy.is_restless());
    }

    #[test]
    fn streams_keep_apart_once_they_had_work_and_until_memory_is_short() {
        let mut policy = Policy::default();
        let options = Options::default();
        let room = |policy: &mut Policy, total: usize, need: usize| {
            policy.terms(&Holding { streams: 2, total: total * GIB, ..holding(4 * GIB) }, need, &options);
            policy.has_room_apart(4 * GIB, need)
        };
        policy.maps_anew(true, false);
        policy.maps_anew(false, true);
        assert!(!policy.is_apart());
        policy.maps_anew(true, true);
        policy.rests(0);
        assert!(policy.is_apart());
        assert_eq!([1 << 20, GIB, 2 * GIB].map(|need| room(&mut policy, 64, need)), [true, true, false]);
        assert!(!room(&mut policy, 5, 1 << 20));
        policy.restart(0, 0, 0);
        assert!(!policy.is_apart());
    }

    #[test]
    fn handles_are_coarse_where_streams_have_work() {
        let mut policy = Policy::default();
        let options = Options::default();
        let largest = |policy: &mut Policy, total: usize, reserved: usize| {
            policy.terms(&Holding { streams: 2, total: total * GIB, ..holding(reserved) }, 64 << 20, &options).largest >> 20
        };
        assert_eq!(largest(&mut policy, 64, 2 * GIB), 4);
        policy.maps_anew(true, true);
        assert_eq!(largest(&mut policy, 64, 2 * GIB), 16);
        let alone = policy.terms(&Holding { total: 64 * GIB, ..holding(GIB / 2) }, 64 << 20, &options).largest;
        assert_eq!(alone >> 20, 4);
        // With more in use, where less is left, and where there is hardly any.
        assert_eq!([64, 16, 8].map(|total| largest(&mut policy, total, 7 * GIB / 4)), [16, 8, 2]);
        policy.rests(0);
        assert_eq!(largest(&mut policy, 64, 2 * GIB), 4);
    }

    #[test]
    fn the_peak_from_before_a_restart_does_not_count() {
        let mut policy = Policy::default();
        let mut high = |active: usize, peak: usize| policy.in_use(active * MIB, peak * MIB) / MIB;
        assert_eq!(high(64, 1024), 1024);
        policy.restart(16 * MIB, GIB, 0);
        let mut high = |active: usize, peak: usize| policy.in_use(active * MIB, peak * MIB) / MIB;
        assert_eq!([16, 64, 32].map(|active| high(active, 1024)), [16, 64, 64]);
        // One that rose since is from after it, and so is one that was reset and came to be as high again.
        assert_eq!(high(64, 1025), 1025);
        policy.restart(0, GIB, 0);
        let mut high = |active: usize, peak: usize| policy.in_use(active * MIB, peak * MIB) / MIB;
        assert_eq!([(64, 96), (32, 1024)].map(|(active, peak)| high(active, peak)), [96, 1024]);
    }

    #[test]
    fn the_driver_is_asked_seldom_until_it_is_short() {
        let mut policy = Policy::default();
        let options = Options::default();
        assert!(policy.asks(0));
        policy.left(0, 32 * GIB);
        assert!(!policy.asks(4 * GIB - 1) && policy.asks(4 * GIB));
        policy.left(4 * GIB, 8 * GIB);
        assert!(!policy.terms(&holding(4 * GIB), GIB, &options).scarce);
        assert!(!policy.asks(5 * GIB - 1));
        assert!(policy.terms(&holding(11 * GIB), GIB, &options).scarce);
        assert!(policy.asks(0));
        policy.left(11 * GIB, 50 * GIB);
        assert!(!policy.terms(&holding(11 * GIB), GIB, &options).scarce && !policy.asks(11 * GIB));
    }

    #[test]
    fn who_is_held_up_for_long_gets_more_slack() {
        let start = Instant::now();
        let at = |parts: u64| start + WINDOW * parts as u32 / 250;
        let mut policy = Policy::default();
        let map = |policy: &mut Policy, from: u64, to: u64, (before, after): (bool, bool)| {
            policy.maps_anew(before, true);
            policy.took(at(from), at(to), after);
        };
        const HELD_UP: (bool, bool) = (true, false);
        // Half of the time, but for a moment only.
        (0..12).for_each(|step| map(&mut policy, step * 20, step * 20 + 10, HELD_UP));
        assert_eq!(policy.hurry, 0.0);
        map(&mut policy, 250, 251, (false, false));
        assert_eq!(policy.hurry, STEP_OF_TIME);
        // One per cent is no matter.
        (0..100).for_each(|step| map(&mut policy, 251 + step * 100, 252 + step * 100, HELD_UP));
        assert_eq!(policy.hurry, STEP_OF_TIME);
        // Nor are eight in one window among others, unless they stay.
        let eight = |policy: &mut Policy, from: u64| map(policy, from, from + 20, HELD_UP);
        eight(&mut policy, 10_260);
        map(&mut policy, 10_520, 10_521, HELD_UP);
        assert_eq!(policy.hurry, STEP_OF_TIME);
        (0..2).for_each(|step| eight(&mut policy, 10_600 + step * 260));
        assert_eq!(policy.hurry, 2.0 * STEP_OF_TIME);
        // Nor is half of the time of a host that is ahead of its device.
        (0..200).for_each(|step| map(&mut policy, 12_000 + step * 20, 12_010 + step * 20, (true, true)));
        assert_eq!(policy.hurry, 2.0 * STEP_OF_TIME);
        (0..2000).for_each(|step| map(&mut policy, 20_000 + step * 20, 20_010 + step * 20, (step % 10 == 0, false)));
        assert_eq!(policy.hurry, MOST_OF_TIME);
        // What was before any work is no matter, and a replay with none is no hurry.
        policy.restart(0, 0, 0);
        (0..12).for_each(|step| map(&mut policy, 65_000 + step * 20, 65_010 + step * 20, (false, false)));
        map(&mut policy, 65_250, 65_251, (true, true));
        assert_eq!(policy.hurry, 0.0);
        policy.restart(0, 0, 0);
        (0..2000).for_each(|step| map(&mut policy, 70_000 + step * 20, 70_010 + step * 20, (false, false)));
        assert_eq!(policy.hurry, 0.0);
    }
}
