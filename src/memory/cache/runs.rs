//! Room where memory is mapped still: runs of addresses behind which all is free, here or where it went. What is taken there comes back with no
//! call of the driver.

use super::StreamSlot;
use super::block::{self, BlockId};
use super::core::{Core, Request};
use super::home::CLOSE;
use super::physical::{HandleId, Physical};
use super::reach::Reach;
use super::shares::{Gathered, LOOK_AT, Span, Stretch, joined};
use crate::runtime::Address;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// Once so many free parts were looked at for a run, one that fits closely will do: there may be tens of thousands.
const MANY: usize = 64;

/// Runs of addresses that requests of a stream and a size got, the oldest first. Where one is free again it is taken before any other, so
/// that what comes after finds the same as the last time too.
#[derive(Default)]
pub struct Runs(BTreeMap<(StreamSlot, bool, usize), Vec<(Address, Address)>>);

impl Runs {
    const SIZES: usize = 4096;
    const OF_A_SIZE: usize = 64;

    fn key(slot: StreamSlot, request: &Request) -> (StreamSlot, bool, usize) {
        (slot, request.small, request.search)
    }

    fn of(&self, slot: StreamSlot, request: &Request) -> impl Iterator<Item = (Address, Address)> {
        self.0.get(&Runs::key(slot, request)).into_iter().flatten().copied()
    }

    pub fn note(&mut self, slot: StreamSlot, request: &Request, run: (Address, Address)) {
        let key = Runs::key(slot, request);
        if self.0.len() == Runs::SIZES && !self.0.contains_key(&key) {
            self.0.clear();
        }
        let runs = self.0.entry(key).or_default();
        if !runs.contains(&run) {
            // The first ones are those that come round; the last place is for what may become one.
            runs.truncate(Runs::OF_A_SIZE - 1);
            runs.push(run);
        }
    }
}

/// A run of addresses behind which all memory is free, here or where it went.
struct Run {
    from: Address,
    to: Address,
    here: Vec<Span>,
    away: Vec<Span>,
    /// Handles that lie in it as a whole.
    whole: Vec<HandleId>,
}

/// What is free of each handle, as far as it may be of use in a run.
struct FreeParts {
    /// Those of a handle that are free without a gap.
    parts: Vec<Range<usize>>,
    of_handle: Vec<Range<u32>>,
    /// Handles that are free as a whole.
    whole: Vec<bool>,
    /// Of all parts.
    bytes: usize,
    /// The most that a handle has at its end with no more free before it, at its beginning, and in its midst.
    tail: usize,
    head: usize,
    alone: usize,
}

impl FreeParts {
    /// What touches neither end of its handle has no neighbours: it counts from a size on. Handles are named below `names`.
    fn new(names: usize, size_of: impl Fn(HandleId) -> usize, stretches: &[Stretch], alone: usize) -> FreeParts {
        let (parts, of_handle) = (Vec::with_capacity(stretches.len()), vec![0..0; names]);
        let mut free = FreeParts { parts, of_handle, whole: vec![false; names], bytes: 0, tail: 0, head: 0, alone: 0 };
        let mut at = 0;
        while let Some(&Stretch { handle, .. }) = stretches.get(at) {
            let (first, size) = (free.parts.len() as u32, size_of(handle));
            while let Some(&Stretch { offset: from, .. }) = stretches.get(at).filter(|next| next.handle == handle) {
                let mut to = from;
                while let Some(next) = stretches.get(at).filter(|next| next.handle == handle && next.offset == to) {
                    to += next.size;
                    at += 1;
                }
                if from == 0 || to == size || to - from >= alone {
                    free.parts.push(from..to);
                    free.bytes += to - from;
                    match (from == 0, to == size) {
                        (true, true) => free.whole[handle as usize] = true,
                        (true, false) => free.head = free.head.max(to),
                        (false, true) => free.tail = free.tail.max(size - from),
                        (false, false) => free.alone = free.alone.max(to - from),
                    }
                }
            }
            free.of_handle[handle as usize] = first..free.parts.len() as u32;
        }
        free
    }

    #[inline]
    fn of(&self, handle: HandleId) -> &[Range<usize>] {
        let Range { start, end } = self.of_handle[handle as usize];
        &self.parts[start as usize..end as usize]
    }

    /// What a run of so many bytes has in whole handles side by side, if it has any in each case.
    fn in_whole(&self, bytes: usize) -> Option<usize> {
        bytes.checked_sub((self.tail + self.head).max(self.alone)).filter(|whole| *whole > 0)
    }

    /// The shortest run that is still mapped in one of the spaces, with no handle twice; where there are many, one that is hardly longer than enough.
    fn shortest_run(&self, physical: &Physical, spaces: impl Iterator<Item = Range<Address>>, enough: usize) -> Option<(Address, Address)> {
        let mut run = SideBySide::new(physical.names());
        let mut best: Option<(Address, Address)> = None;
        // Of other handles a run has the first and the last, at most.
        let (least, whole) = self.in_whole(enough).map_or((enough, false), |least| (least, true));
        let counts = |handle: HandleId| if whole { self.whole[handle as usize] } else { !self.of(handle).is_empty() };
        for space in spaces {
            for row in physical.rows(space.start, least, counts) {
                let around = if whole { (row.start - 1).max(space.start)..(row.end + 1).min(space.end) } else { row };
                run.clear();
                for mapping in physical.overlapping(around.start, around.end) {
                    for part in self.of(mapping.handle) {
                        run.push(mapping.start + part.start, part.len(), mapping.handle, enough);
                        let size = run.end - run.start;
                        if size >= enough && best.is_none_or(|(from, to)| size < to - from) {
                            best = Some((run.start, run.end));
                        }
                    }
                    if run.count() >= MANY && best.is_some_and(|(from, to)| to - from <= enough + enough / CLOSE as usize) {
                        return best;
                    }
                }
            }
        }
        best
    }
}

/// Whether all of a run is mapped, and free. A handle may be in it twice.
fn is_all_free(physical: &Physical, free: &Gathered, (from, to): (Address, Address)) -> bool {
    let mut at = from;
    for mapping in physical.overlapping(from, to) {
        let part = mapping.part(from, to);
        if mapping.start + part.start > at || free.within(mapping.handle, &part) < part.len() {
            return false;
        }
        at = mapping.start + part.end;
    }
    at == to
}

/// Free parts that are mapped side by side, of no handle twice, and hardly more than are asked for.
struct SideBySide {
    /// The sizes of those that came last; from the `first` on they are side by side.
    parts: Vec<usize>,
    first: usize,
    /// How many came before.
    before: usize,
    /// Of each handle the number of the last one; 0: none came.
    last: Vec<usize>,
    start: Address,
    end: Address,
}

impl SideBySide {
    fn new(names: usize) -> SideBySide {
        SideBySide { parts: Vec::new(), first: 0, before: 0, last: vec![0; names], start: 0, end: 0 }
    }

    fn clear(&mut self) {
        self.before = self.count();
        self.parts.clear();
        (self.first, self.start) = (0, self.end);
    }

    fn count(&self) -> usize {
        self.before + self.parts.len()
    }

    /// One more behind, from an address on. The first ones go as far as it takes their place.
    #[inline]
    fn push(&mut self, start: Address, size: usize, handle: HandleId, enough: usize) {
        if start != self.end {
            self.clear();
            self.start = start;
        }
        self.end = start + size;
        let last = self.last[handle as usize];
        while let Some(front) = self.parts.get(self.first)
            && (last > self.before + self.first || self.end - self.start - front >= enough)
        {
            self.first += 1;
            self.start += front;
        }
        self.parts.push(size);
        self.last[handle as usize] = self.count();
    }
}

impl Core {
    // ---- to where it is still mapped

    /// Room in a run that is mapped still: one that such a request got before, else the shortest. None: there is none of what is free, which
    /// `stretches` is then.
    pub fn take_mapped(&mut self, reach: &Reach, request: &Request, stretches: &mut Option<Vec<Stretch>>) -> Option<Address> {
        let mut free = std::mem::take(&mut self.gathered);
        self.gather(&mut free, reach, LOOK_AT, false);
        let is_all_free = |run: &(Address, Address)| is_all_free(&self.physical, &free, *run);
        let mut run = self.runs.of(reach.slot, request).filter(is_all_free).find_map(|run| self.mapped_run(&free, run));
        if run.is_none() {
            let all = free.in_order();
            run = self.shortest_run(request, &all).and_then(|run| self.mapped_run(&free, run));
            *stretches = run.is_none().then_some(all);
        }
        self.gathered = free;
        self.revive(reach, request, run?)
    }

    fn shortest_run(&self, request: &Request, stretches: &[Stretch]) -> Option<(Address, Address)> {
        let parts = FreeParts::new(self.physical.names(), |handle| self.physical[handle].size, stretches, request.search);
        // No run has a handle twice: with less free there is none, however much is mapped.
        if parts.bytes < request.search {
            return None;
        }
        let areas = self.areas.values().filter(|area| area.small == request.small && !area.plain);
        parts.shortest_run(&self.physical, areas.map(|area| area.base..area.base + area.size), request.search)
    }

    /// Where the bytes of a run lie, all of which is free. None: a handle is in it twice, which would be the same bytes.
    fn mapped_run(&self, free: &Gathered, (from, to): (Address, Address)) -> Option<Run> {
        const SOME: usize = 16;
        let mut handles: SmallVec<[HandleId; SOME]> = SmallVec::new();
        let mut run = Run { from, to, here: Vec::new(), away: Vec::with_capacity(SOME), whole: Vec::with_capacity(SOME) };
        for mapping in self.physical.overlapping(from, to) {
            let part = mapping.part(from, to);
            for stretch in free.of(mapping.handle) {
                let Some(span) = stretch.within(&part) else { continue };
                let spans = if stretch.address - stretch.offset == mapping.start { &mut run.here } else { &mut run.away };
                spans.push(span);
            }
            if part.len() == mapping.size {
                run.whole.push(mapping.handle);
            }
            handles.push(mapping.handle);
        }
        debug_assert_eq!(run.here.iter().chain(&run.away).map(|span| span.to - span.from).sum::<usize>(), to - from);
        handles.sort_unstable();
        handles.windows(2).all(|pair| pair[0] != pair[1]).then_some(run)
    }

    /// What is free of such a run comes back there, with no call of the driver.
    fn revive(&mut self, reach: &Reach, request: &Request, run: Run) -> Option<Address> {
        let Run { from, to, here, away, whole } = run;
        self.runs.note(reach.slot, request, (from, to));
        whole.into_iter().for_each(|handle| self.recount(handle, request.small));
        let mut spans = joined(here);
        let stay = spans.len();
        spans.extend(joined(away));
        let moved: Vec<(BlockId, Address)> = {
            let first = self.moved.range(..=from).next_back().map_or(from, |(start, _)| *start);
            let within = self.moved.range(first..to).map(|(start, id)| (*id, *start));
            within.filter(|(id, _)| block::at(*id).end() > from).collect()
        };
        let mut cut = self.cut_out_all(&spans);
        for (id, start) in moved {
            let end = block::at(id).end();
            cut.push(self.cut_out(id, start.max(from), end.min(to)));
        }
        let slot = reach.slot;
        let mut ticket = self.ticket_of_taken(reach);
        for id in &cut[..spans.len()] {
            if block::at(*id).owner() == slot {
                ticket = ticket.max(block::at(*id).ticket());
            }
        }
        cut.drain(stay..spans.len()).for_each(|id| self.disown(id));
        cut[stay..].iter().for_each(|id| self.tell_memory(*id, true));
        let first = *cut.iter().min_by_key(|id| block::at(**id).address())?;
        while block::at(first).end() < to {
            self.join(first);
        }
        self.make_free_of(first, slot, ticket);
        self.allocate(slot, request, true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::physical::{Backing, Handle, Mapping};
    use super::*;
    use crate::base::numbers;

    /// All runs that are enough.
    fn runs(parts: &[(Address, usize, HandleId)], enough: usize) -> Vec<(Address, Address)> {
        let mut run = SideBySide::new(8);
        let mut found = Vec::new();
        for &(start, size, handle) in parts {
            run.push(start, size, handle, enough);
            if run.end - run.start >= enough {
                found.push((run.start, run.end));
            }
        }
        found
    }

    #[test]
    fn a_run_is_no_longer_than_it_has_to_be() {
        // The first part goes when the others do.
        assert_eq!(runs(&[(0, 2, 0), (2, 3, 1), (5, 4, 2)], 6), [(2, 9)]);
        assert_eq!(runs(&[(0, 2, 0), (2, 3, 1), (5, 1, 2)], 6), [(0, 6)]);
        // One part alone, and exactly as much.
        assert_eq!(runs(&[(0, 2, 0), (2, 6, 1)], 6), [(2, 8)]);
    }

    #[test]
    fn a_run_has_no_gap_and_no_handle_twice() {
        assert_eq!(runs(&[(0, 4, 0), (5, 4, 1)], 6), []);
        // What comes before the handle's first place goes with it.
        assert_eq!(runs(&[(0, 1, 0), (1, 2, 1), (3, 2, 2), (5, 2, 1), (7, 2, 3)], 6), [(3, 9)]);
        // It counts only as far as the run goes back.
        assert_eq!(runs(&[(0, 4, 0), (9, 4, 1), (13, 4, 0)], 8), [(9, 17)]);
    }

    /// The same by looking at every part: of each end the shortest run up to there.
    fn plain_search(parts: &[(Address, usize, HandleId)], enough: usize) -> Option<(Address, Address)> {
        let mut best: Option<(Address, Address)> = None;
        for last in 0..parts.len() {
            let mut handles = Vec::new();
            for first in (0..=last).rev() {
                let (start, size, handle) = parts[first];
                if handles.contains(&handle) || first < last && start + size != parts[first + 1].0 {
                    break;
                }
                handles.push(handle);
                let end = parts[last].0 + parts[last].1;
                if end - start >= enough {
                    if best.is_none_or(|(from, to)| end - start < to - from) {
                        best = Some((start, end));
                    }
                    break;
                }
            }
        }
        best
    }

    #[test]
    fn the_shortest_run_against_a_plain_search() {
        const PAGE: usize = 2 << 20;
        const PAGES: usize = 60;
        let mut below = numbers::random(12345);
        let (mut found, mut across, mut whole) = (0, 0, 0);
        for round in 0..2000 {
            let mut physical = Physical::default();
            // Side by side, as reservations may be: no run goes from one into the other.
            let spaces = [PAGES * PAGE..2 * PAGES * PAGE, 2 * PAGES * PAGE..3 * PAGES * PAGE];
            spaces.iter().for_each(|space| physical.open_space(space.start, space.len(), PAGE));
            let handles: Vec<HandleId> = (0..12).map(|_| physical.insert(Backing::Away, (1 + below(3)) * PAGE, false)).collect();
            for at in 0..60 {
                let handle = handles[below(handles.len())];
                // The first two meet where the spaces do.
                let start = match at {
                    0 => spaces[0].end - physical[handle].size,
                    1 => spaces[1].start,
                    _ => (PAGES + below(2 * PAGES)) * PAGE,
                };
                let end = start + physical[handle].size;
                let within = spaces.iter().any(|space| space.start <= start && end <= space.end);
                if within && physical.overlapping(start, end).next().is_none() {
                    physical.map(handle, start);
                }
            }
            let mut stretches = Vec::new();
            for &handle in handles.iter().filter(|handle| !physical[**handle].places.is_empty()) {
                let Handle { size, ref places, .. } = physical[handle];
                let ends = [below(3), 0].map(|in_use| if in_use == 0 { 0 } else { below(size / 512) * 512 });
                let (from, to) =
                    if below(5) == 0 { (size, size) } else { (ends[0], size - below(2) * below((size - ends[0]) / 512) * 512) };
                let middle = from + below((to - from) / 512 + 1) * 512;
                for (offset, end) in [(from, middle), (middle, to)].into_iter().filter(|(from, to)| from < to) {
                    stretches.push(Stretch { handle, offset, block: 0, address: places[below(places.len())] + offset, size: end - offset });
                }
            }
            let enough = (1 + below(8 * PAGE / 512)) * 512;
            let free = FreeParts::new(physical.names(), |handle| physical[handle].size, &stretches, enough);
            let parts = |space: &Range<Address>| {
                let mappings = physical.overlapping(space.start, space.end);
                let of_mapping = |&mapping: &Mapping| {
                    let part = move |part: &Range<usize>| (mapping.start + part.start, part.len(), mapping.handle);
                    free.of(mapping.handle).iter().map(part)
                };
                mappings.flat_map(of_mapping).collect::<Vec<_>>()
            };
            let in_each = spaces.each_ref().map(|space| plain_search(&parts(space), enough));
            let best = in_each.into_iter().flatten().min_by_key(|(from, to)| to - from);
            assert_eq!(free.shortest_run(&physical, spaces.iter().cloned(), enough), best, "round {round}");
            found += usize::from(best.is_some());
            let mut gathered = Gathered::default();
            gathered.clear(physical.names());
            stretches.iter().for_each(|stretch| gathered.push(*stretch));
            assert!(best.is_none_or(|run| is_all_free(&physical, &gathered, run)), "round {round}");
            let is_free = |at: Address| {
                let mapping = physical.overlapping(at, at + 1).next();
                mapping.is_some_and(|mapping| stretches.iter().any(|part| part.handle == mapping.handle && part.has(at - mapping.start)))
            };
            let from = (PAGES + below(2 * PAGES)) * PAGE + below(PAGE / 512) * 512;
            if let Some(to) = (from..3 * PAGES * PAGE).step_by(512).take(8 * PAGE / 512).find(|at| !is_free(*at)) {
                assert!(to == from || is_all_free(&physical, &gathered, (from, to)), "round {round}");
                assert!(!is_all_free(&physical, &gathered, (from, to + 512)), "round {round}");
                whole += usize::from(to > from);
            }
            let both: Vec<_> = spaces.iter().flat_map(parts).collect();
            across += usize::from(plain_search(&both, enough) != best);
        }
        assert!(found > 500 && across > 10 && whole > 100, "{found} {across} {whole}");
    }

    #[test]
    fn parts_of_a_handle_count_at_its_ends_or_from_a_size_on() {
        let stretch = |handle, offset, address, size| Stretch { handle, offset, block: 0, address, size };
        // One in one place, one in two, and one of which neither end is free.
        let stretches = [stretch(0, 0, 100, 8), stretch(2, 0, 200, 3), stretch(2, 3, 303, 5), stretch(3, 2, 402, 4)];
        let parts = |alone: usize| {
            let free = FreeParts::new(4, |_| 8, &stretches, alone);
            [0, 1, 2, 3].map(|handle| free.of(handle).iter().map(|part| (part.start, part.end)).collect::<Vec<_>>())
        };
        assert_eq!(parts(5), [vec![(0, 8)], vec![], vec![(0, 8)], vec![]]);
        assert_eq!(parts(4)[3], [(2, 6)]);
    }
}
