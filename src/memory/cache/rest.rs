//! Where free memory rests, and how it comes back without the driver.
//!
//! What was mapped a second time for one request lies in pieces for the next one. Back where each handle was mapped first it lies in a row
//! again, and hangs on what is in use now, not on what was. So a program that does the same again finds the same, down to the mappings
//! that were made for it the last time; they are taken again, and each round needs the driver less than the one before.

use super::block::{self, BlockId};
use super::core::{Core, Request};
use super::physical::{HandleId, Mapping};
use super::reach::Reach;
use super::shares::{LOOK_AT, Share, Span, Stretch, joined};
use super::slot::{COMMON, StreamKey};
use super::{Cache, StreamSlot};
use crate::memory::provider;
use crate::runtime::Address;
use crate::stream::Stream;
use std::collections::{BTreeMap, VecDeque};

/// Whose free memory it is, and the count of its last use.
type Owner = (StreamSlot, u32);

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
        if self.0.len() == Runs::SIZES {
            self.0.clear();
        }
        let runs = self.0.entry(Runs::key(slot, request)).or_default();
        if !runs.contains(&run) {
            // The first ones are those that come round; the last place is for what may become one.
            runs.truncate(Runs::OF_A_SIZE - 1);
            runs.push(run);
        }
    }
}

/// So many parts of free blocks go home at once: each needs two records where it was, and two where it comes to.
const SPANS: usize = 1 << 11;

/// The free bytes of a handle without a gap, wherever they lie.
fn free_ranges(of_handle: &[Stretch]) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for stretch in of_handle {
        match ranges.last_mut() {
            Some((_, to)) if *to == stretch.offset => *to += stretch.size,
            _ => ranges.push((stretch.offset, stretch.offset + stretch.size)),
        }
    }
    ranges
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

/// A handle on its way to where it was mapped first.
struct Going {
    handle: HandleId,
    from: Address,
    to: Address,
    owner: Owner,
    /// Nothing lies before it.
    leads: bool,
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
        let (shares, stretches) = self.away_handles(most);
        let mut leaving: Vec<Span> = Vec::with_capacity(stretches.len());
        let mut going: Vec<Going> = Vec::with_capacity(shares.len());
        for share in shares {
            let of_handle = &stretches[share.stretches];
            let Some(owner) = self.owner_of_all(of_handle, asks) else { continue };
            if leaving.len() + of_handle.len() > SPANS {
                break;
            }
            let from = self.physical[share.handle].places[0];
            going.push(Going { handle: share.handle, from, to: from + share.size, owner, leads: self.areas.contains_key(&from) });
            leaving.extend(of_handle.iter().map(Stretch::span));
        }
        // Owned nowhere for a moment, so that all places are alike.
        self.cut_out_all(&joined(leaving)).into_iter().for_each(|id| self.disown(id));
        for row in going.chunk_by(|one, next| one.to == next.from && one.owner == next.owner && !next.leads) {
            let id = self.take_moved(row[0].from, row[row.len() - 1].to, false).expect("no byte of the handles is owned anywhere");
            row.iter().for_each(|going| self.recount(going.handle, block::at(id).small()));
            self.tell_memory(id, true);
            let (owner, ticket) = row[0].owner;
            self.make_free_of(id, owner, ticket);
        }
    }

    /// Whose the bytes would be together: nobody's if they are past, else the one stream's that may still use some. None: there are two, or
    /// what is nobody's would become a stream's that does not ask for it. While streams keep apart what is one's alone stays his.
    fn owner_of_all(&self, stretches: &[Stretch], asks: StreamSlot) -> Option<Owner> {
        let blocks = || stretches.iter().map(|stretch| block::at(stretch.block));
        let mut owners = blocks().map(|block| block.owner());
        if let (true, Some(first)) = (self.policy.is_apart(), owners.next())
            && owners.all(|owner| owner == first)
        {
            return Some((first, blocks().map(|block| block.ticket()).max().unwrap_or(0)));
        }
        let (mut owner, mut ticket, mut common) = (COMMON, 0, false);
        for id in stretches.iter().map(|stretch| stretch.block) {
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

    /// Room in a run that is mapped still: one that such a request got before, else the shortest. `stretches` are filled in if all were
    /// looked at.
    pub fn take_mapped(&mut self, reach: &Reach, request: &Request, stretches: &mut Option<Vec<Stretch>>) -> Option<Address> {
        let blocks = self.free_blocks(reach, LOOK_AT, false);
        let run = self.known_run(reach, request, &blocks).or_else(|| {
            let free = self.stretches_of(&blocks, |_, _| true);
            let found = self.find_mapped_run(&free, &self.shares(&free), request);
            *stretches = found.is_none().then_some(free);
            found.and_then(|(from, to)| self.mapped_run(&blocks, from, to))
        });
        self.revive(reach, request, run?)
    }

    /// One that such a request got before.
    fn known_run(&self, reach: &Reach, request: &Request, blocks: &[Span]) -> Option<Run> {
        self.runs.of(reach.slot, request).find_map(|(from, to)| self.mapped_run(blocks, from, to))
    }

    /// The run, if it is one as far as free blocks go. A handle is there once: twice would be the same bytes.
    fn mapped_run(&self, blocks: &[Span], from: Address, to: Address) -> Option<Run> {
        let (mut at, mut handles) = (from, Vec::new());
        let mut run = Run { from, to, here: Vec::new(), away: Vec::new(), whole: Vec::new() };
        for mapping in self.physical.overlapping(from, to) {
            let (start, end) = (from.max(mapping.start), to.min(mapping.end()));
            if start > at || !self.find_parts(blocks, &mapping, start, end, &mut run) {
                return None;
            }
            if end - start == mapping.size {
                run.whole.push(mapping.handle);
            }
            handles.push(mapping.handle);
            at = end;
        }
        handles.sort_unstable();
        (at == to && handles.windows(2).all(|pair| pair[0] != pair[1])).then_some(run)
    }

    /// Where the memory behind a part of a mapping is free. False: not all of it is.
    fn find_parts(&self, blocks: &[Span], mapping: &Mapping, start: Address, end: Address, run: &mut Run) -> bool {
        let mut left = end - start;
        for place in &self.physical[mapping.handle].places {
            let (from, to) = (place + (start - mapping.start), place + (end - mapping.start));
            let first = blocks.partition_point(|block| block.to <= from);
            for block in blocks[first..].iter().take_while(|block| block.from < to) {
                let span = Span { block: block.block, from: from.max(block.from), to: to.min(block.to) };
                left -= span.to - span.from;
                let spans = if *place == mapping.start { &mut run.here } else { &mut run.away };
                spans.push(span);
            }
            if left == 0 {
                return true;
            }
        }
        false
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

    /// The shortest run that is still mapped, with something that comes back, and no handle twice.
    fn find_mapped_run(&self, stretches: &[Stretch], shares: &[Share], request: &Request) -> Option<(Address, Address)> {
        let mut parts: Vec<Mapped> = Vec::with_capacity(2 * shares.len());
        for share in shares {
            let of_handle = &stretches[share.stretches.clone()];
            // What touches neither end has no neighbours.
            let counts = |(from, to): &(usize, usize)| *from == 0 || *to == share.size || to - from >= request.search;
            let ranges: Vec<(usize, usize)> = free_ranges(of_handle).into_iter().filter(counts).collect();
            for place in &self.physical[share.handle].places {
                for &(from, to) in &ranges {
                    let away =
                        of_handle.iter().any(|stretch| (from..to).contains(&stretch.offset) && stretch.address != place + stretch.offset);
                    parts.push(Mapped { start: place + from, size: to - from, handle: share.handle, away });
                }
            }
        }
        parts.sort_unstable_by_key(|part| part.start);
        let (mut area, mut counts) = (0..0, false);
        parts.retain(|part| {
            if !area.contains(&part.start) {
                let found = self.area_of(part.start);
                counts = found.is_some_and(|area| area.small == request.small && !area.plain);
                area = found.map_or(0..0, |area| area.base..area.base + area.size);
            }
            counts
        });
        let mut best: Option<(Address, Address)> = None;
        let mut run: VecDeque<Mapped> = VecDeque::with_capacity(parts.len());
        let mut in_run = vec![false; self.physical.names()];
        let (mut size, mut back, mut last) = (0, 0, 0);
        for part in parts {
            if part.start != last || self.areas.contains_key(&part.start) {
                run.drain(..).for_each(|part| in_run[part.handle as usize] = false);
                (size, back) = (0, 0);
            }
            last = part.start + part.size;
            while in_run[part.handle as usize] || run.front().is_some_and(|front| size + part.size - front.size >= request.search) {
                let Some(front) = run.pop_front() else { break };
                in_run[front.handle as usize] = false;
                size -= front.size;
                back -= usize::from(front.away);
            }
            size += part.size;
            back += usize::from(part.away);
            in_run[part.handle as usize] = true;
            run.push_back(part);
            if size >= request.search && back > 0 && best.is_none_or(|(from, to)| size < to - from) {
                best = Some((last - size, last));
            }
        }
        best
    }
}

impl Cache {
    /// After a request that found no room: once little is in use, what is free comes to rest, before it is handed out again.
    pub fn rest(&self, stream: Stream) {
        // A provider's function may come here, under the locks of those that wait for it.
        if provider::refuse_inside().is_err() {
            return;
        }
        let Some(floor) = self.stats.take_low() else { return };
        // Who finds free memory waits for nobody's driver: then it stays where it is until the next time.
        let Some(_growing) = self.growing.try_lock() else { return self.stats.watch_again(floor) };
        let slot = self.core.quiet().find_slot(StreamKey::of(stream));
        // Where nothing was mapped twice as well: what is past for all lies in a row.
        self.settle(slot.unwrap_or(StreamSlot::MAX));
        let mut core = self.core.lock();
        core.go_home(usize::MAX, slot.unwrap_or(StreamSlot::MAX));
        core.forget_order();
        core.align_habits();
        let frees = core.stats.frees();
        core.policy.rests(frees);
    }

    /// Handles that were mapped elsewhere go back where nothing keeps them; with `shares` what is past of streams that
    /// keep apart is made everybody's first.
    pub(super) fn go_home(&self, slot: StreamSlot, shares: bool) {
        // What is in the driver's hands is nobody's to move.
        let _growing = self.growing.lock();
        let mut core = self.core.lock();
        if shares && core.policy.is_apart() {
            core.share_all_past();
        }
        core.go_home(LOOK_AT, slot);
    }
}
