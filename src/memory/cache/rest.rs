//! Where free memory rests, and how it comes back without the driver.
//!
//! What was mapped a second time for one request lies in pieces for the next one. Back where each handle was mapped first it lies in a row
//! again, and hangs on what is in use now, not on what was. So a program that does the same again finds the same, down to the mappings
//! that were made for it the last time; they are taken again, and each round needs the driver less than the one before.

use super::StreamSlot;
use super::block::{self, BlockId, State};
use super::core::{Core, Request};
use super::physical::{HandleId, Mapping};
use super::slot::COMMON;
use super::stitch::{Ordered, Reach, Share, Source, Span};
use crate::runtime::Address;
use std::collections::{HashMap, HashSet, VecDeque};

/// Whose free memory it is, and the count of its last use.
type Owner = (StreamSlot, u32);

/// Runs of addresses that requests of a stream and a size got, the oldest first. Where one is free again it is taken before any other, so
/// that what comes after finds the same as the last time too.
#[derive(Default)]
pub struct Runs(HashMap<(StreamSlot, bool, usize), VecDeque<(Address, Address)>>);

impl Runs {
    const SIZES: usize = 4096;
    const OF_A_SIZE: usize = 64;

    fn key(slot: StreamSlot, request: &Request) -> (StreamSlot, bool, usize) {
        (slot, request.small, request.search)
    }

    fn find(&self, slot: StreamSlot, request: &Request, is_free: impl Fn(Address, Address) -> bool) -> Option<(Address, Address)> {
        self.0.get(&Runs::key(slot, request))?.iter().copied().find(|(from, to)| is_free(*from, *to))
    }

    pub fn note(&mut self, slot: StreamSlot, request: &Request, run: (Address, Address)) {
        if self.0.len() == Runs::SIZES {
            self.0.clear();
        }
        let runs = self.0.entry(Runs::key(slot, request)).or_default();
        if !runs.contains(&run) {
            runs.truncate(Runs::OF_A_SIZE - 1);
            runs.push_back(run);
        }
    }
}

/// Stretches of free memory that go home at once: each needs two records where it was, and two where it comes to.
const SPANS: usize = 1 << 11;

/// The free bytes of a handle without a gap, wherever they lie.
fn free_ranges(of_handle: &[Source]) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for source in of_handle {
        match ranges.last_mut() {
            Some((_, to)) if *to == source.offset => *to += source.size,
            _ => ranges.push((source.offset, source.offset + source.size)),
        }
    }
    ranges
}

/// Addresses where free bytes of a handle are mapped.
struct Mapped {
    start: Address,
    size: usize,
    handle: HandleId,
    /// Some of them lie elsewhere now.
    away: bool,
}

impl Core {
    // ---- to where it was mapped first

    /// Handles that are free as a whole go back there, as far as they lie in the largest `most` blocks of each stream; the next time those
    /// for whose records there may be no room now.
    pub fn go_home(&mut self, most: usize, asks: StreamSlot) {
        if self.moved.is_empty() || self.paused || !self.has_records() {
            return;
        }
        let all = |slot: StreamSlot| Ordered { slot, serial: self.slots[slot as usize].serial(), count: u32::MAX };
        let everything: Vec<Ordered> = (0..self.slots.len() as StreamSlot).map(all).collect();
        let mut leaving: Vec<Span> = Vec::new();
        let mut going: Vec<(HandleId, Owner)> = Vec::new();
        for (handle, spans) in self.whole_handles(&Reach { slot: COMMON, ordered: &everything }, most) {
            let is_there = spans.len() == 1 && self.physical[handle].places.first() == Some(&spans[0].from);
            if let Some(owner) = self.owner_of_all(&spans, asks).filter(|_| !is_there) {
                if leaving.len() + spans.len() > SPANS {
                    break;
                }
                going.push((handle, owner));
                leaving.extend(spans);
            }
        }
        // Owned nowhere for a moment, so that all places are alike.
        for id in self.cut_out_all(&leaving) {
            self.tell_memory(id, false);
            self.make_hole(id, State::Moved);
        }
        for (handle, (owner, ticket)) in going {
            let (start, size) = (self.physical[handle].places[0], self.physical[handle].size);
            let id = self.take_moved(start, start + size, false).expect("no byte of the handle is owned anywhere");
            self.recount(handle, block::at(id).small());
            self.tell_memory(id, true);
            let id = self.hand_over(id, owner);
            block::at(id).set_ticket(ticket);
            self.make_free(id);
        }
    }

    /// Whose the bytes would be together: nobody's if they are past, else the one stream's that may still use some. None: there are two, or
    /// what is nobody's would become a stream's that does not ask for it.
    fn owner_of_all(&self, spans: &[Span], asks: StreamSlot) -> Option<Owner> {
        let (mut owner, mut ticket, mut common) = (COMMON, 0, false);
        for id in spans.iter().map(|span| span.block) {
            if self.is_past(id) {
                common = true;
                continue;
            }
            let block = block::at(id);
            if owner != COMMON && owner != block.owner() {
                return None;
            }
            owner = block.owner();
            ticket = block.ticket().max(ticket);
        }
        (!common || owner == COMMON || owner == asks).then_some((owner, ticket))
    }

    /// Of blocks that fit alike the one that was freed last is taken first: from now on that with the lowest address.
    pub fn forget_order(&mut self) {
        for slot in 0..self.slots.len() as StreamSlot {
            for small in [false, true] {
                let mut free: Vec<BlockId> = self.list(slot, small).iter().collect();
                free.sort_unstable_by_key(|id| std::cmp::Reverse(block::at(*id).address()));
                for id in free {
                    self.list_remove(id);
                    self.list_insert(id);
                }
            }
        }
    }

    // ---- to where it is still mapped

    /// A run of addresses behind which all memory is free, here or where it went.
    pub(super) fn mapped_run(&self, reach: &Reach, request: &Request, sources: &[Source]) -> Option<(Address, Address)> {
        let shares = self.shares(sources);
        let known = self.runs.find(reach.slot, request, |from, to| self.is_mapped_run(sources, &shares, from, to));
        known.or_else(|| self.find_mapped_run(sources, &shares, request))
    }

    /// What is free of such a run comes back there, with no call of the driver. The sources are used up: they name what lies elsewhere then.
    pub(super) fn revive(
        &mut self,
        reach: &Reach,
        request: &Request,
        sources: Vec<Source>,
        (from, to): (Address, Address),
    ) -> Option<Address> {
        let shares = self.shares(&sources);
        self.runs.note(reach.slot, request, (from, to));
        let (mut spans, mut away) = (Vec::new(), Vec::new());
        let mappings: Vec<Mapping> = self.physical.overlapping(from, to).collect();
        for mapping in mappings {
            let at = shares.binary_search_by_key(&mapping.handle, |share| share.handle).ok()?;
            let owned = from.max(mapping.start) - mapping.start..to.min(mapping.end()) - mapping.start;
            for source in &sources[shares[at].sources.clone()] {
                let Some(span) = source.within(&owned) else { continue };
                let here = mapping.start + source.offset == source.address;
                if here { spans.push(span) } else { away.push(span) }
            }
            if owned == (0..shares[at].size) {
                self.recount(mapping.handle, request.small);
            }
        }
        let stay = spans.len();
        spans.extend(away);
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
        let mut ticket = self.ticket_of_taken(slot, !reach.ordered.is_empty());
        for id in &cut[..spans.len()] {
            if block::at(*id).owner() == slot {
                ticket = ticket.max(block::at(*id).ticket());
            }
        }
        for id in cut.drain(stay..spans.len()) {
            self.tell_memory(id, false);
            self.make_hole(id, State::Moved);
        }
        cut[stay..].iter().for_each(|id| self.tell_memory(*id, true));
        let first = *cut.iter().min_by_key(|id| block::at(**id).address())?;
        while block::at(first).end() < to {
            self.join(first);
        }
        let first = self.hand_over(first, slot);
        block::at(first).set_ticket(ticket);
        self.make_free(first);
        self.allocate(slot, request, true)
    }

    /// Whether it is such a run still.
    fn is_mapped_run(&self, sources: &[Source], shares: &[Share], from: Address, to: Address) -> bool {
        let (mut at, mut handles) = (from, HashSet::new());
        for mapping in self.physical.overlapping(from, to) {
            let Ok(share) = shares.binary_search_by_key(&mapping.handle, |share| share.handle) else { return false };
            let (start, end) = (from.max(mapping.start), to.min(mapping.end()));
            let holds = |range: &(usize, usize)| mapping.start + range.0 <= start && end <= mapping.start + range.1;
            let free = free_ranges(&sources[shares[share].sources.clone()]).iter().any(holds);
            if start > at || !free || !handles.insert(mapping.handle) {
                return false;
            }
            at = end;
        }
        at == to
    }

    /// The shortest such run, with something that comes back. A handle is there once: twice would be the same bytes.
    fn find_mapped_run(&self, sources: &[Source], shares: &[Share], request: &Request) -> Option<(Address, Address)> {
        let mut parts: Vec<Mapped> = Vec::new();
        for share in shares {
            let of_handle = &sources[share.sources.clone()];
            // What touches neither end has no neighbours.
            let counts = |(from, to): &(usize, usize)| *from == 0 || *to == share.size || to - from >= request.search;
            let ranges: Vec<(usize, usize)> = free_ranges(of_handle).into_iter().filter(counts).collect();
            for place in &self.physical[share.handle].places {
                for &(from, to) in &ranges {
                    let away =
                        of_handle.iter().any(|source| (from..to).contains(&source.offset) && source.address != place + source.offset);
                    parts.push(Mapped { start: place + from, size: to - from, handle: share.handle, away });
                }
            }
        }
        parts.retain(|part| self.area_of(part.start).is_some_and(|area| area.small == request.small && !area.plain));
        parts.sort_unstable_by_key(|part| part.start);
        let mut best: Option<(Address, Address)> = None;
        let mut run: VecDeque<Mapped> = VecDeque::new();
        let mut handles: HashSet<HandleId> = HashSet::new();
        let (mut size, mut back, mut last) = (0, 0, 0);
        for part in parts {
            if part.start != last || self.areas.contains_key(&part.start) {
                run.clear();
                handles.clear();
                (size, back) = (0, 0);
            }
            last = part.start + part.size;
            while handles.contains(&part.handle) || run.front().is_some_and(|front| size + part.size - front.size >= request.search) {
                let Some(front) = run.pop_front() else { break };
                handles.remove(&front.handle);
                size -= front.size;
                back -= usize::from(front.away);
            }
            size += part.size;
            back += usize::from(part.away);
            handles.insert(part.handle);
            run.push_back(part);
            if size >= request.search && back > 0 && best.is_none_or(|(from, to)| size < to - from) {
                best = Some((last - size, last));
            }
        }
        best
    }
}
