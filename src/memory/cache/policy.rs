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
const SHARE: usize = 100;
/// ... or this one of what is held beyond so much, since of a large program there are handles enough that each keeps little back...
const SHARE_OF_MORE: usize = 25;
const MORE: usize = 2 << 30;
/// ... or this one of the request, whichever is most, since that is wanted as a whole...
const REQUEST_SHARE: usize = 12;
/// ... and no more than so many mean blocks...
const MEAN_BLOCKS: usize = 8;
/// ... with several streams these: what one has free of a handle, or freed since it was asked, the others cannot join, so that more of them stay
/// half in use...
const SHARE_OF_STREAMS: usize = 1000;
const MEAN_BLOCKS_OF_STREAMS: usize = 1;
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
/// Streams that are as one are asked ahead once by this part more is held than the slack allows: asking costs time in all that follows. Where blocks
/// have no more than so many of the smallest handles in the mean, they leave pieces that nothing fits: then once half of the slack is used.
const BEYOND: usize = 110;
const FINE: usize = 4;
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
/// several up to `all`, and once that has lasted for `long` something is done about it.
struct Unrest {
    each: u64,
    all: u64,
    long: u64,
}
/// Several threads, for one whose sizes come back: seldom is no matter, and it may take long to find its way.
const OF_OLD: Unrest = Unrest { each: 1 << 9, all: 1 << 14, long: 1 << 16 };
/// Once it is known not to rest, and of ever new sizes from the first, since threads wait for each other: until each stream has what it needs at
/// its own worst times.
const OF_RESTLESS: Unrest = Unrest { each: 1 << 17, all: 1 << 18, long: 1 << 14 };
/// One stream, and several that are as one: while free memory is in few pieces, mappings that were made for one request soon serve the next ones.
/// Where they are three quarters of the blocks in use, or so many, most are too small for any, and to map them side by side costs more than the
/// memory.
/// With several streams what each freed since it was asked is in pieces of its own: then it has to be so many.
const OF_PIECES: Unrest = Unrest { each: 1 << 9, all: 1 << 12, long: 1 << 9 };
pub const PIECES: usize = 256;
const FEWEST_PIECES: usize = 64;
/// Or for as long as a round was, up to this: random sets have less in use at times too.
const LONGEST: u64 = 1 << 11;
/// With one for so many freed blocks it is known from the first: what is mapped here and there by then stays in the way for long.
const FREES_OF_PIECE: u64 = 8;
/// Several that are as one: they get no slack, but are asked ahead how far they are.
const OF_AS_ONE: Unrest = Unrest { each: 1 << 7, all: 1 << 11, long: 1 << 13 };
/// The slack rises so, up to what threads get at most, and what streams that are as one do.
const STEP_OF_UNREST: f64 = 0.05;
const MOST_OF_THREADS: f64 = 2.0;
const MOST_OF_PIECES: f64 = 0.1;
/// By what there is of small blocks, of which most programs have few.
const STEP_OF_SMALL: f64 = 0.25;
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
    /// The same for small blocks of several threads, as a part of the most that was in use of those.
    unrest_of_small: f64,
    high_of_small: usize,
    /// There was no more to spare.
    is_short: bool,
    /// By the last terms.
    is_scarce: bool,
    /// By load: what counts for the one says nothing of the other.
    restless: [Restless; 5],
    /// When memory came to rest last, by how many blocks had been freed, and how many were at most from one time to the next.
    rested: u64,
    longest: u64,
    /// When the window began; and since when it is measured for how long the device was held up.
    window: Option<Instant>,
    since: Option<Instant>,
    held_up: Duration,
    /// Whether a stream had work when memory was mapped for it in that time, without which nothing is held up, and in the window before.
    worked: bool,
    worked_before: bool,
    /// Streams had work when memory was mapped anew. It stays, as `hurry` does.
    apart: bool,
    /// More was held than the slack allows by a noticeable part, or streams that are as one did not come to rest. It stays.
    asks_ahead: bool,
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
    /// Whether all that is missing is made, behind what is free: nothing is mapped a second time.
    pub only_makes: bool,
}

impl Terms {
    /// For memory that stays where it is, free or not: as few handles as there can be, of which none goes back alone.
    pub fn of_fixed(self) -> Terms {
        let budget = self.most;
        Terms { budget, largest: LARGEST_HANDLE, coarse: usize::MAX, coarsen: false, excess: 0, load: None, only_makes: true, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Several threads and streams, for one whose sizes come back.
    Old,
    /// The same for one of ever new sizes.
    New,
    /// One stream of ever new sizes, or several that are as one, with free memory in many pieces.
    Pieces,
    /// Several that are as one, with free memory in few.
    AsOne,
    /// Small blocks of several threads: what one of them takes from the others, who are stopped for it, they take from the next ones.
    Small,
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
    /// In use with the request, and the most that was since everything was last given back.
    pub active: usize,
    pub most: usize,
    /// The bytes of small blocks in use, with the request.
    pub active_small: usize,
    /// The large blocks in use, with the request: how many, and their mean size.
    pub large: usize,
    pub mean: usize,
    /// In how many pieces memory for large blocks is free, up to `PIECES`, where the streams are as one; and how many blocks were ever freed.
    pub pieces: usize,
    pub frees: u64,
    /// The share of large blocks whose size was not seen lately.
    pub new_sizes: f64,
    /// For which memory was asked, since everything was last given back.
    pub streams: usize,
    /// Whether several threads allocate.
    pub shared: bool,
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

    fn fewest_pieces(&self) -> usize {
        if self.is_several() { PIECES } else { FEWEST_PIECES }
    }

    fn many_pieces(&self) -> usize {
        (self.large - self.large / 4).clamp(self.fewest_pieces(), PIECES)
    }
}

/// Whether the share of new sizes says that sizes do not come back.
pub fn is_new(share: f64) -> bool {
    share > NEW
}

impl Policy {
    pub fn terms(&mut self, holding: &Holding, need: usize, options: &Options) -> Terms {
        let Holding { reserved, limit, total, granularity, .. } = *holding;
        self.in_use(holding.active.max(holding.most));
        self.high_of_small = self.high_of_small.max(holding.active_small);
        let offered = total.min(self.room.unwrap_or(usize::MAX)).min(self.ceiling.unwrap_or(usize::MAX));
        let bound = limit.unwrap_or(offered).min(offered);
        let near = |bound: usize| reserved.saturating_add(need) > bound - bound / NEAR;
        let scarce = options.tight || near(bound);
        if near(offered) {
            self.ask_at = 0;
        }
        let (allowed, has_more) = self.allowed(holding, bound, scarce, options.slack);
        self.adapt(reserved, allowed);
        let as_one = holding.is_several() && !self.is_split(holding) && !scarce && !holding.small;
        let enough = if holding.mean <= FINE * granularity { (self.high + allowed) / 2 } else { allowed + allowed / BEYOND };
        self.asks_ahead |= as_one && reserved > enough;
        self.is_scarce = scarce;
        let largest = if scarce { granularity } else { self.largest(holding, need, bound, has_more) };
        let beyond = |held: usize, kept: usize| if scarce { 0 } else { held.saturating_sub(allowed + kept) };
        let excess = match holding.small {
            true => beyond(reserved + granularity, (self.high / KEPT_FOR_SMALL).max(granularity)),
            false => beyond(reserved, self.high / KEPT).min(need),
        };
        let load = self.load(holding);
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
            only_makes: false,
        }
    }

    /// Whether all streams are as one but for what each freed since it was asked: one thread allocates, whom it costs little that they take from
    /// each other, and none was found to have work when memory was mapped anew.
    pub fn are_as_one(&self, shared: bool) -> bool {
        !shared && !self.apart
    }

    /// Whether what one stream has is seldom another one's.
    fn is_split(&self, holding: &Holding) -> bool {
        holding.is_several() && !self.are_as_one(holding.shared)
    }

    fn load(&self, holding: &Holding) -> Option<Load> {
        match (self.is_split(holding), holding.is_new()) {
            // Of one thread's streams that had work time says whether it is too dear.
            (true, _) if !holding.shared => None,
            (true, true) => Some(Load::New),
            (true, false) => Some(Load::Old),
            (false, true) if holding.pieces >= holding.many_pieces() => Some(Load::Pieces),
            (false, true) if holding.is_several() => Some(Load::AsOne),
            (false, _) => None,
        }
    }

    /// So much may be held before free memory is mapped anew, and whether some of it is for a load that does not come to rest.
    fn allowed(&mut self, holding: &Holding, bound: usize, scarce: bool, slack: f64) -> (usize, bool) {
        let slack = if scarce { slack.min(SCARCE_SLACK) } else { slack + self.hurry };
        let least = if scarce { 0 } else { LEAST_SLACK * holding.granularity };
        let allowed = self.high + ((self.high as f64 * slack) as usize).max(least);
        let spare = if scarce { 0 } else { (bound - bound / PLENTY).saturating_sub(allowed) };
        let of_one = holding.is_new() && !self.is_split(holding);
        if of_one && spare > 0 && self.is_shattered(holding) {
            self.unrest_of_one = MOST_OF_PIECES;
        }
        // What one stream has for the sake of time serves it here too.
        let of_one = if of_one { self.unrest_of_one - self.hurry } else { 0.0 };
        let unrest = (self.high as f64 * self.unrest.max(of_one)) as usize;
        let of_small = (self.high_of_small as f64 * self.unrest_of_small) as usize;
        self.is_short = unrest + of_small >= spare;
        let more = unrest.min(spare);
        (allowed + more + of_small.min(spare - more), more > 0)
    }

    /// The largest handle to make while there is plenty.
    fn largest(&self, holding: &Holding, need: usize, bound: usize, has_more: bool) -> usize {
        let Holding { reserved, granularity, .. } = *holding;
        let several = holding.is_several();
        let divisor = STEP.pow(self.fineness);
        let (share, blocks) = match several {
            true => (reserved / SHARE_OF_STREAMS, MEAN_BLOCKS_OF_STREAMS),
            false => ((reserved / SHARE).max(reserved.saturating_sub(MORE) / SHARE_OF_MORE), MEAN_BLOCKS),
        };
        let usual = (share.max(need / REQUEST_SHARE) / divisor).min(blocks * holding.mean);
        // Up or down, whichever is nearer.
        let usual = (usual + granularity / 2) / granularity * granularity;
        // Each block that stays among others that went keeps about one handle back. With slack for unrest there is room for that.
        let largest = match (has_more, self.is_busy() && several) {
            (true, _) => need,
            (_, true) => usual.max(need / REQUEST_SHARE_OF_BUSY),
            (false, false) => usual,
        };
        let left = bound.saturating_sub(reserved);
        let largest = largest.min((left as f64 * (left as f64 / bound.max(MUCH) as f64)) as usize / SHARE_OF_LEFT);
        largest.next_multiple_of(granularity).clamp(granularity, LARGEST_HANDLE.max(granularity))
    }

    /// Whether the pieces are many of the blocks that were freed since the beginning. With fewer of those some were there before.
    fn is_shattered(&self, holding: &Holding) -> bool {
        let (pieces, freed) = (holding.pieces as u64, holding.frees.saturating_sub(self.frees_before));
        holding.pieces >= holding.fewest_pieces() && (pieces..=FREES_OF_PIECE * pieces).contains(&freed)
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
        if self.is_short {
            self.restless = Default::default();
            return;
        }
        if !matches!(load, Load::Pieces | Load::Small) && self.is_busy() {
            [Load::Old, Load::New, Load::AsOne].into_iter().for_each(|load| self.restless[load as usize] = Default::default());
            return;
        }
        let is_restless = self.is_restless();
        let load = if load == Load::Old && is_restless { Load::New } else { load };
        let Unrest { each, all, long } = match load {
            Load::Old => OF_OLD,
            Load::New | Load::Small => OF_RESTLESS,
            Load::Pieces => OF_PIECES,
            Load::AsOne => OF_AS_ONE,
        };
        // What goes on for no longer than a round did is a part of the next one.
        let long = if load == Load::Pieces { long.max(self.longest) } else { long };
        let Restless { began, until } = &mut self.restless[load as usize];
        if frees > *until {
            (*began, *until) = (frees, frees);
        }
        *until = (*until + each).min(frees + all);
        // What was freed twice is not counted in the end.
        if frees.saturating_sub(*began) < long {
            return;
        }
        match load {
            Load::Old | Load::New => self.unrest = (self.unrest + STEP_OF_UNREST).min(MOST_OF_THREADS),
            Load::Pieces => self.unrest_of_one = (self.unrest_of_one + STEP_OF_UNREST).min(MOST_OF_PIECES),
            Load::AsOne => self.asks_ahead = true,
            Load::Small => self.unrest_of_small = (self.unrest_of_small + STEP_OF_SMALL).min(MOST_OF_THREADS),
        }
    }

    /// Whether streams that are as one are asked how far they are before a request tears what is free, and not only when none is.
    pub fn asks_ahead(&self) -> bool {
        self.asks_ahead
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

    /// Whether memory was scarce when room was looked for last.
    pub fn is_scarce(&self) -> bool {
        self.is_scarce
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

    /// Less is in use, after so many blocks were freed: what is free lies in fewer pieces.
    pub fn ebbs(&mut self, frees: u64) {
        self.longest = self.longest.max(frees.saturating_sub(self.rested)).min(LONGEST);
        self.rested = frees;
        self.restless[Load::Pieces as usize] = Restless::default();
    }

    /// Little is in use: a round is over, after so many blocks were freed.
    pub fn rests(&mut self, frees: u64) {
        self.frees_before = frees;
        (self.unrest, self.unrest_of_one, self.unrest_of_small, self.restless) = Default::default();
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
    pub fn restart(&mut self, active: usize, frees: u64) {
        *self = Policy { high: active, frees_before: frees, rested: frees, ..Policy::default() };
    }

    /// So much was in use since everything was last given back.
    pub fn in_use(&mut self, most: usize) {
        self.high = self.high.max(most);
    }
}

#[cfg(test)]
mod tests;
