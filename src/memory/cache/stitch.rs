//! Room out of what is free: neighbours in a row, memory that comes back to an address where it is still mapped, and memory that is
//! mapped a second time, behind other memory, so that many free pieces become one.
//!
//! Nothing here calls the driver; a plan says what is to be mapped. All of it costs time by the number of free blocks and mappings, not
//! by the number of blocks in use.

use super::StreamSlot;
use super::block::{self, BlockId, NIL, State};
use super::core::{Core, Request};
use super::order::Serial;
use super::physical::{Handle, HandleId, Mapping};
use super::policy::{LARGEST_HANDLE, Terms};
use super::segment::Refusal;
use super::slot::COMMON;
use crate::memory::poison;
use crate::runtime::Address;
use std::collections::VecDeque;
use std::ops::Range;

/// Whose free memory a stream may have: its own and what is nobody's; unless it keeps `apart` what is past too, and what it was made to wait
/// for, up to a count of each stream.
#[derive(Clone, Copy)]
pub struct Reach<'a> {
    pub slot: StreamSlot,
    pub ordered: &'a [Ordered],
    pub apart: bool,
}

impl Reach<'_> {
    pub fn of(slot: StreamSlot) -> Reach<'static> {
        Reach { slot, ordered: &[], apart: false }
    }
}

/// What of a stream comes before: its frees up to an epoch, as long as its epochs do not begin anew.
pub struct Ordered {
    pub slot: StreamSlot,
    pub serial: Serial,
    pub count: u32,
}

/// Free blocks of a stream that are looked at, the largest, unless that is not enough: there may be tens of thousands.
pub const LOOK_AT: usize = 512;
/// A request mapped in more handles than this is one of many, if they are small.
const MANY: usize = 16;

/// A part of a free block.
#[derive(Clone, Copy)]
pub struct Span {
    pub(super) block: BlockId,
    pub(super) from: Address,
    pub(super) to: Address,
}

/// By address, those that follow each other in a block as one.
pub(super) fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable_by_key(|span| span.from);
    spans.dedup_by(|next, span| {
        let follows = span.block == next.block && span.to == next.from;
        span.to = if follows { next.to } else { span.to };
        follows
    });
    spans
}

/// Free bytes of a handle.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub handle: HandleId,
    pub offset: usize,
    pub block: BlockId,
    pub address: Address,
    pub size: usize,
}

impl Source {
    fn end(&self) -> Address {
        self.address + self.size
    }

    pub fn span(&self) -> Span {
        Span { block: self.block, from: self.address, to: self.end() }
    }

    /// What of it lies in a part of the handle.
    pub fn within(&self, part: &Range<usize>) -> Option<Span> {
        let (from, to) = (self.offset.max(part.start), (self.offset + self.size).min(part.end));
        let at = |offset: usize| self.address + offset - self.offset;
        (from < to).then(|| Span { block: self.block, from: at(from), to: at(to) })
    }
}

/// What of a handle is free.
pub(super) struct Share {
    pub handle: HandleId,
    pub size: usize,
    /// In the list of sources.
    pub sources: Range<usize>,
    /// Free from the start on, and up to the end. Both are the size of a handle that is free as a whole.
    head: usize,
    tail: usize,
}

/// The ends of a run may lie inside handles that are partly in use: the tail of one before it instead of the memory in front, the head of
/// another behind it.
#[derive(Default)]
struct Ends<'a> {
    first: Option<&'a Share>,
    last: Option<&'a Share>,
}

impl<'a> Ends<'a> {
    /// The best pair, with up to `of_whole` bytes of whole handles between them. In plenty least is missing, then left over; where memory is
    /// scarce least has to be made, then least of whole handles is spent, which fit anywhere, and left over.
    fn choose(shares: &'a [Share], in_front: usize, rest: usize, terms: &Terms, of_whole: usize) -> Ends<'a> {
        let granularity = terms.granularity;
        let partly = || shares.iter().filter(|share| share.head < share.size);
        let mut heads: Vec<&Share> = partly().filter(|share| share.head > 0).collect();
        heads.sort_unstable_by_key(|share| share.head);
        let tails = partly().filter(|share| share.tail > in_front);
        let of_whole = of_whole / granularity * granularity;
        let with = |first: Option<&'a Share>| {
            let needed = Ends { first, last: None }.rest(in_front, rest);
            let spends = move |head: usize| needed.saturating_sub(head).next_multiple_of(granularity);
            let other = |share: &&&'a Share| first.is_none_or(|first| first.handle != share.handle);
            let from = |least: usize| heads.partition_point(|share| share.head < least);
            let enough = |least: usize| heads[from(least)..].iter().find(other).copied();
            // The latter of those that spend no more than the longest one that is too short alone.
            let longest = heads[..from(needed)].iter().rev().find(other).copied();
            let shortest = longest.and_then(|longest| enough(needed.saturating_sub(spends(longest.head))));
            let cost = move |last: Option<&'a Share>| {
                let head = last.map_or(0, |share| share.head);
                let spent = spends(head);
                let over = spent + head - needed;
                let cost = match terms.scarce {
                    true => (spent.saturating_sub(of_whole), spent + over),
                    false => (needed.saturating_sub(head), head.saturating_sub(needed)),
                };
                let helps = last.is_none() || over < head;
                helps.then_some((cost, Ends { first, last }))
            };
            [None, enough(needed), longest, shortest].into_iter().filter_map(cost)
        };
        let ends = [None].into_iter().chain(tails.map(Some)).flat_map(with);
        ends.min_by_key(|(cost, _)| *cost).expect("with none is one").1
    }

    /// What they leave of what is needed behind the memory in front.
    fn rest(&self, in_front: usize, rest: usize) -> usize {
        let rest = self.first.map_or(rest, |share| (rest + in_front).saturating_sub(share.tail));
        rest.saturating_sub(self.last.map_or(0, |share| share.head))
    }
}

fn spans_of(shares: &[Share], sources: &[Source]) -> Vec<(HandleId, Vec<Span>)> {
    let spans = |share: &Share| sources[share.sources.clone()].iter().map(Source::span).collect();
    shares.iter().map(|share| (share.handle, spans(share))).collect()
}

/// A handle to be mapped again; the bytes of the range are owned there from then on.
pub struct Part {
    pub handle: HandleId,
    pub size: usize,
    owned: Range<usize>,
    /// What is taken away elsewhere, in the driver's hands.
    sources: Vec<BlockId>,
}

/// What the driver has to do for a request. All blocks named are in the driver's hands until the plan is carried out or dropped.
pub struct Plan {
    /// Free memory before the new one, part of the request.
    front: BlockId,
    /// Addresses for all that is mapped.
    space: BlockId,
    pub start: Address,
    pub parts: Vec<Part>,
    /// Sizes of the handles to be made. They come behind the parts, but for a last one that is owned in part.
    pub make: Vec<usize>,
    ordered: bool,
    /// What is mapped has its home there from then on: what small blocks once had they will have again.
    stays: bool,
}

impl Plan {
    /// How many parts come before what is made.
    pub fn parts_before(&self) -> usize {
        let cut = self.parts.last().is_some_and(|part| part.owned.end < part.size);
        self.parts.len() - usize::from(cut && !self.make.is_empty())
    }

    fn size(&self) -> usize {
        self.parts.iter().map(|part| part.size).sum::<usize>() + self.make.iter().sum::<usize>()
    }
}

pub enum Found {
    /// Without the driver.
    Here(Address),
    Plan(Plan),
    /// There are no addresses for so many bytes.
    NoAddresses(usize),
    /// Memory is scarce, and so much of what is free lies in large handles.
    Coarse(usize),
    /// So much is better made anew: what is free lies in many small handles.
    Fine(usize),
    No(Refusal),
}

/// Handles from a size on, the largest first; up to one, the smallest of large blocks first; or the largest that are no more than so many bytes
/// together.
#[derive(Clone, Copy)]
pub enum Idle {
    Large(usize),
    Small(usize),
    Within(usize),
}

impl Core {
    fn reaches(&self, reach: &Reach, id: BlockId) -> bool {
        let block = block::at(id);
        if reach.apart {
            return [reach.slot, COMMON].contains(&block.owner());
        }
        block.owner() == reach.slot
            || self.is_past(id)
            || reach.ordered.iter().any(|before| {
                let slot = before.slot;
                slot == block.owner() && block.ticket() <= before.count && self.slots[slot as usize].serial() == before.serial
            })
    }

    fn is_free(&self, reach: &Reach, id: BlockId) -> bool {
        id != NIL && block::at(id).state() == State::Free && self.reaches(reach, id)
    }

    /// The free blocks of a kind that are within reach.
    fn free_within<'a>(&'a self, reach: &'a Reach, small: bool) -> impl Iterator<Item = BlockId> + 'a {
        let lists = (0..self.slots.len() as StreamSlot).map(move |slot| self.list(slot, small));
        lists.flat_map(|list| list.iter()).filter(|id| self.reaches(reach, *id))
    }

    /// Bytes that waiting for other streams would bring into reach.
    pub fn free_of(&self, reach: &Reach) -> usize {
        let waited = |id: &BlockId| block::at(*id).owner() != reach.slot && !self.is_past(*id);
        let both = [false, true].into_iter().flat_map(|small| self.free_within(reach, small));
        both.filter(waited).map(|id| block::at(id).size()).sum()
    }

    // ---- in a row

    /// Neighbouring free blocks, the shortest run with room for the request. Empty: there is none.
    pub fn find_run(&self, reach: &Reach, request: &Request) -> Vec<BlockId> {
        let mut best: Vec<BlockId> = Vec::new();
        let mut best_size = usize::MAX;
        // Neighbours of one slot are one block, so every run of several has one that is not common.
        let has_free = |slot: StreamSlot| !self.list(slot, request.small).is_empty();
        let mut others = (0..self.slots.len() as StreamSlot).filter(|slot| ![COMMON, reach.slot].contains(slot));
        if ![COMMON, reach.slot].into_iter().all(has_free) && !others.any(has_free) {
            return best;
        }
        let firsts = self.free_within(reach, request.small).filter(|id| block::at(*id).owner() != COMMON);
        for mut first in firsts {
            let mut before = block::left_of(first);
            if self.is_free(reach, before) && block::at(before).owner() == COMMON {
                first = before;
                before = block::left_of(first);
            }
            if self.is_free(reach, before) {
                continue;
            }
            let mut run: VecDeque<BlockId> = VecDeque::new();
            let mut size = 0;
            for id in block::chain(first).take_while(|id| self.is_free(reach, *id)) {
                run.push_back(id);
                size += block::at(id).size();
                while let Some(front) = run.front().filter(|front| size - block::at(**front).size() >= request.search) {
                    size -= block::at(*front).size();
                    run.pop_front();
                }
                if size >= request.search && size < best_size {
                    best_size = size;
                    best = run.iter().copied().collect();
                }
            }
        }
        best
    }

    /// The ticket of memory that a stream took from another: past, unless the stream was made to wait for it.
    pub(super) fn ticket_of_taken(&mut self, slot: StreamSlot, ordered: bool) -> u32 {
        if ordered { self.slots[slot as usize].home.note_free() } else { 0 }
    }

    /// Moves free blocks to the stream, of the run's ends no more than the request needs.
    pub fn take_over(&mut self, run: &[BlockId], reach: &Reach, request: &Request) {
        let slot = reach.slot;
        let ticket = self.ticket_of_taken(slot, !reach.ordered.is_empty());
        let whole: usize = run.iter().map(|id| block::at(*id).size()).sum();
        let mut surplus = if self.no_split { 0 } else { whole - request.search };
        // From the last block on: what is cut off right stays where it was, and joining ends only blocks that come later in the run.
        for (at, id) in run.iter().enumerate().rev() {
            let mut id = *id;
            let size = block::at(id).size();
            if block::at(id).owner() == slot {
                continue;
            }
            self.list_remove(id);
            if surplus > 0 && at == run.len() - 1 && surplus < size {
                let rest = self.split(id, size - surplus);
                self.list_insert(rest);
                surplus = 0;
            } else if surplus > 0 && at == 0 && surplus < size {
                let rest = id;
                id = self.split(id, surplus);
                self.list_insert(rest);
                surplus = 0;
            }
            let id = self.hand_over(id, slot);
            block::at(id).set_ticket(ticket);
            self.make_free(id);
        }
    }

    // ---- blocks with no memory of their own

    pub(super) fn detach(&mut self, id: BlockId) {
        let address = block::at(id).address();
        match block::at(id).state() {
            State::Free => self.list_remove(id),
            State::Unmapped => drop(self.unmapped.remove(&address)),
            State::Moved => drop(self.moved.remove(&address)),
            _ => {}
        }
    }

    fn attach(&mut self, id: BlockId) {
        let address = block::at(id).address();
        match block::at(id).state() {
            State::Free => self.list_insert(id),
            State::Unmapped => drop(self.unmapped.insert(address, id)),
            State::Moved => drop(self.moved.insert(address, id)),
            _ => {}
        }
    }

    /// Takes a range out of a block, which keeps what lies before it: a block of its own, in the driver's hands.
    pub fn cut_out(&mut self, mut id: BlockId, from: Address, to: Address) -> BlockId {
        debug_assert!(block::at(id).address() <= from && to <= block::at(id).end() && from < to);
        self.detach(id);
        if to < block::at(id).end() {
            let rest = self.split(id, to - block::at(id).address());
            self.attach(rest);
        }
        if from > block::at(id).address() {
            let right = self.split(id, from - block::at(id).address());
            self.attach(id);
            id = right;
        }
        block::at(id).set_state(State::Busy);
        id
    }

    /// A block in the driver's hands has no memory of its own, or none at all; joined with its like.
    pub fn make_hole(&mut self, mut id: BlockId, state: State) {
        if state == State::Unmapped {
            id = self.hand_over(id, COMMON);
            block::at(id).set_ticket(0);
        }
        block::at(id).set_state(state);
        let like = |id: BlockId, other: BlockId| {
            other != NIL && block::at(other).state() == state && block::at(other).owner() == block::at(id).owner()
        };
        let next = block::at(id).next();
        if like(id, next) {
            self.detach(next);
            self.join(id);
        }
        let prev = block::at(id).prev();
        if like(id, prev) {
            self.detach(prev);
            self.join(prev);
            id = prev;
        }
        self.attach(id);
    }

    /// The moved blocks that cover a range, cut out and joined. None, and nothing changed: something else lies there, or with `past`
    /// something that may still be in use.
    pub fn take_moved(&mut self, from: Address, to: Address, past: bool) -> Option<BlockId> {
        let first = *self.moved.range(..=from).next_back()?.1;
        let mut covering = Vec::new();
        for id in block::chain(first) {
            let block = block::at(id);
            if block.address() >= to {
                break;
            }
            if block.state() != State::Moved || block.end() <= from || (past && !self.is_past(id)) {
                return None;
            }
            covering.push(id);
        }
        let mut whole = NIL;
        for id in covering {
            let block = block::at(id);
            let (start, end) = (block.address().max(from), block.end().min(to));
            let id = self.cut_out(id, start, end);
            if whole == NIL { whole = id } else { self.join(whole) }
        }
        Some(whole)
    }

    // ---- what is free, handle by handle

    /// Free blocks within reach, by address: the largest `most` of each stream and kind.
    fn free_blocks(&self, reach: &Reach, most: usize, plain: bool) -> Vec<Span> {
        self.blocks_if(most, plain, |id| self.reaches(reach, id))
    }

    fn blocks_if(&self, most: usize, plain: bool, counts: impl Fn(BlockId) -> bool) -> Vec<Span> {
        let mut blocks: Vec<Span> = Vec::new();
        // What is watched where it lies stays there.
        if !plain && poison::is_on() {
            return blocks;
        }
        for list in (0..self.slots.len() as StreamSlot).flat_map(|slot| [false, true].map(|small| self.list(slot, small))) {
            let within = list.iter().take(most).filter(|id| counts(*id) && (plain || block::at(*id).mapped()));
            blocks.extend(within.map(|block| Span { block, from: block::at(block).address(), to: block::at(block).end() }));
        }
        blocks.sort_unstable_by_key(|block| block.from);
        blocks
    }

    /// The free bytes of blocks, by handle and place in it, as far as a mapping and what is free of it count.
    fn sources_of(&self, blocks: &[Span], counts: impl Fn(&Mapping, &Source) -> bool) -> Vec<Source> {
        let mut sources = Vec::with_capacity(self.physical.count());
        for Span { block, from, to } in blocks {
            for mapping in self.physical.overlapping(*from, *to) {
                let address = mapping.start.max(*from);
                let size = mapping.end().min(*to) - address;
                let source = Source { handle: mapping.handle, offset: address - mapping.start, block: *block, address, size };
                if counts(&mapping, &source) {
                    sources.push(source);
                }
            }
        }
        // By address most are in order by handle too: there is little to sort.
        sources.sort_by_key(|source| (source.handle, source.offset));
        sources
    }

    fn sources(&self, reach: &Reach, most: usize, plain: bool) -> Vec<Source> {
        self.sources_of(&self.free_blocks(reach, most, plain), |_, _| true)
    }

    pub(super) fn shares(&self, sources: &[Source]) -> Vec<Share> {
        let mut shares = Vec::with_capacity(sources.len());
        let mut from = 0;
        for of_handle in sources.chunk_by(|a, b| a.handle == b.handle) {
            let size = self.physical[of_handle[0].handle].size;
            let head = of_handle.iter().fold(0, |head, source| if source.offset == head { head + source.size } else { head });
            let fold = |start: usize, source: &Source| if source.offset + source.size == start { source.offset } else { start };
            let tail = size - of_handle.iter().rev().fold(size, fold);
            let to = from + of_handle.len();
            shares.push(Share { handle: of_handle[0].handle, size, sources: from..to, head, tail });
            from = to;
        }
        shares
    }

    /// The handles of such sizes that are free as a whole and past, the largest or the smallest first.
    pub fn idle_handles(&self, which: Idle) -> Vec<(HandleId, Vec<Span>)> {
        let sources = self.sources(&Reach::of(COMMON), usize::MAX, true);
        let mut shares = self.shares(&sources);
        shares.retain(|share| share.head == share.size);
        match which {
            Idle::Large(least) => {
                shares.retain(|share| share.size >= least);
                shares.sort_unstable_by_key(|share| (std::cmp::Reverse(share.size), share.handle));
            }
            Idle::Small(most) => {
                shares.retain(|share| share.size <= most && !self.physical[share.handle].small);
                shares.sort_unstable_by_key(|share| (share.size, share.handle));
            }
            Idle::Within(mut left) => {
                shares.sort_unstable_by_key(|share| (std::cmp::Reverse(share.size), share.handle));
                shares.retain(|share| {
                    let fits = share.size <= left;
                    left -= if fits { share.size } else { 0 };
                    fits
                });
            }
        }
        spans_of(&shares, &sources)
    }

    /// The handles that are free as a whole, whosever that is, but not in one piece where they were mapped first; and where their bytes lie.
    pub(super) fn away_handles(&self, most: usize) -> (Vec<Share>, Vec<Source>) {
        let is_away = |mapping: &Mapping, source: &Source| source.size < mapping.size || !mapping.first;
        let sources = self.sources_of(&self.blocks_if(most, false, |_| true), is_away);
        let mut shares = self.shares(&sources);
        shares.retain(|share| share.head == share.size);
        (shares, sources)
    }

    /// Takes ranges out of free blocks; each becomes a block in the driver's hands. The answer is in the order of the ranges.
    pub fn cut_out_all(&mut self, spans: &[Span]) -> Vec<BlockId> {
        let mut order: Vec<usize> = (0..spans.len()).collect();
        // From the right: a block keeps its name for what lies before the cut.
        order.sort_unstable_by_key(|at| std::cmp::Reverse(spans[*at].from));
        let mut cut = vec![NIL; spans.len()];
        for at in order {
            let Span { block, from, to } = spans[at];
            cut[at] = self.cut_out(block, from, to);
        }
        cut
    }

    // ---- plans

    /// Room for the request: where memory is still mapped, else by a plan.
    pub fn find_room(&mut self, reach: &Reach, request: &Request, terms: &Terms) -> Found {
        let mut sources = None;
        let making = request.search.next_multiple_of(terms.granularity);
        // Of what is mapped now a load that never comes round would find nothing again.
        if !(self.moved.is_empty() || terms.at_once && making <= terms.budget.min(terms.most)) {
            let blocks = self.free_blocks(reach, LOOK_AT, false);
            let run = self.known_run(reach, request, &blocks).or_else(|| {
                let free = self.sources_of(&blocks, |_, _| true);
                let found = self.find_mapped_run(&free, &self.shares(&free), request);
                sources = found.is_none().then_some(free);
                found.and_then(|(from, to)| self.mapped_run(&blocks, from, to))
            });
            if let Some(run) = run
                && let Some(address) = self.revive(reach, request, run)
            {
                return Found::Here(address);
            }
        }
        // Small blocks would hold a large handle back for long: for them small ones that large blocks had are mapped anew, else some made.
        if request.small && terms.excess > 0 && making <= terms.most {
            let free = sources.get_or_insert_with(|| self.sources(reach, LOOK_AT, false));
            let is_whole = |of_handle: &&[Source]| {
                let Handle { size, small, .. } = self.physical[of_handle[0].handle];
                !small && size <= making && of_handle.iter().map(|source| source.size).sum::<usize>() == size
            };
            let small: Vec<Source> = free.chunk_by(|a, b| a.handle == b.handle).filter(is_whole).flatten().copied().collect();
            if !small.is_empty() {
                match self.stitch(reach, request, &Terms { exceed: false, ..*terms }, 0, small) {
                    Found::Plan(plan) => return Found::Plan(Plan { stays: true, ..plan }),
                    found @ Found::NoAddresses(_) => return found,
                    _ => {}
                }
            }
            if !terms.exceed {
                return Found::No(Refusal::Budget);
            }
        }
        let budget = if request.small { terms.budget.max(making) } else { terms.budget }.min(terms.most);
        if let Some((space, front)) = self.open_end(reach, request, |have| (request.search - have).next_multiple_of(terms.granularity)) {
            let make = (request.search - self.size_of(front)).next_multiple_of(terms.granularity);
            if make <= budget {
                return Found::Plan(self.plan(reach, space, front, Vec::new(), make, terms));
            }
        } else if making <= budget {
            return Found::NoAddresses(making);
        }
        let sources = sources.unwrap_or_else(|| self.sources(reach, LOOK_AT, false));
        match self.stitch(reach, request, terms, budget, sources) {
            Found::No(_) => self.stitch(reach, request, terms, budget, self.sources(reach, usize::MAX, false)),
            found => found,
        }
    }

    fn size_of(&self, id: BlockId) -> usize {
        if id == NIL { 0 } else { block::at(id).size() }
    }

    /// Unmapped addresses with room, behind as much free memory as there is anywhere; else the fewest.
    fn open_end(&self, reach: &Reach, request: &Request, room: impl Fn(usize) -> usize) -> Option<(BlockId, BlockId)> {
        let mut best: Option<(BlockId, BlockId)> = None;
        for id in self.unmapped.values() {
            let hole = block::at(*id);
            if hole.small() != request.small {
                continue;
            }
            let before = block::left_of(*id);
            let front = if self.is_free(reach, before) && self.size_of(before) < request.search { before } else { NIL };
            let better = |(other, its_front): (BlockId, BlockId)| {
                (self.size_of(its_front), std::cmp::Reverse(block::at(other).size()))
                    < (self.size_of(front), std::cmp::Reverse(hole.size()))
            };
            if hole.size() >= room(self.size_of(front)) && best.is_none_or(better) {
                best = Some((*id, front));
            }
        }
        best
    }

    /// Free memory mapped anew, and what is still missing made.
    fn stitch(&mut self, reach: &Reach, request: &Request, terms: &Terms, budget: usize, mut sources: Vec<Source>) -> Found {
        // That of a pool for small blocks has less than three of the largest.
        let of_sources = || sources.iter().map(|source| self.physical[source.handle].size).max().unwrap_or(0);
        let largest = if request.small { of_sources() } else { LARGEST_HANDLE };
        let most_space = request.search.saturating_add(3 * largest.max(terms.granularity)).next_multiple_of(terms.granularity);
        let Some((space, front)) = self.open_end(reach, request, |_| most_space) else { return Found::NoAddresses(most_space) };
        sources.retain(|source| source.block != front);
        let shares = self.shares(&sources);
        let mut whole: Vec<&Share> = shares.iter().filter(|share| share.head == share.size).collect();
        whole.sort_unstable_by_key(|share| (share.size, share.handle));
        let mut rest = request.search - self.size_of(front);
        if terms.scarce && rest > budget && whole.last().is_some_and(|share| share.size >= terms.coarse) {
            return Found::Coarse(rest);
        }
        let in_front = self.size_of(front);
        let mut ends = Ends::default();
        // What is left of handles in use goes first: whole ones fit anywhere.
        if terms.scarce && rest > budget {
            let of_whole = whole.iter().map(|share| share.size).sum();
            ends = Ends::choose(&shares, in_front, rest, terms, of_whole);
            rest = ends.rest(in_front, rest);
        }
        let mut chosen: Vec<(&Share, Range<usize>)> = Vec::new();
        while rest > budget && !whole.is_empty() {
            // The largest first, so that there are few; the last one is the smallest that does.
            let enough = whole.partition_point(|share| share.size < rest);
            let share = whole.remove(enough.min(whole.len() - 1));
            rest = rest.saturating_sub(share.size);
            chosen.push((share, 0..share.size));
        }
        let bytes: usize = chosen.iter().map(|(share, _)| share.size).sum();
        // Each costs as much to map as a large one. Those that small blocks had would be made again for them.
        if terms.coarsen {
            let of_large = || chosen.iter().map(|(share, _)| share).filter(|share| !self.physical[share.handle].small);
            let count = of_large().count();
            if count > MANY && of_large().map(|share| share.size).sum::<usize>() <= count * 2 * terms.largest {
                return Found::Fine(request.search + terms.excess);
            }
        }
        if !terms.scarce && rest > budget {
            ends = Ends::choose(&shares, in_front, rest, terms, 0);
            rest = ends.rest(in_front, rest);
        }
        let before = ends.first.map_or(in_front, |share| share.tail);
        if let Some(share) = ends.first {
            chosen.insert(0, (share, share.size - share.tail..share.size));
        }
        let front = if ends.first.is_some() { NIL } else { front };
        let owned = request.search.saturating_sub(before + bytes);
        if let Some(share) = ends.last.filter(|_| owned > 0) {
            chosen.push((share, 0..owned.min(share.head)));
        }
        let make = rest.next_multiple_of(terms.granularity);
        if make > terms.most {
            return Found::No(Refusal::Limit);
        }
        if make > budget && !terms.exceed {
            return Found::No(Refusal::Budget);
        }
        let spans = |share: &Share, owned: &Range<usize>| -> Vec<Span> {
            sources[share.sources.clone()].iter().filter_map(|source| source.within(owned)).collect()
        };
        let part = |(share, owned): (&Share, Range<usize>)| {
            let spans = spans(share, &owned);
            (Part { handle: share.handle, size: share.size, owned, sources: Vec::new() }, spans)
        };
        let parts: Vec<(Part, Vec<Span>)> = chosen.into_iter().map(part).collect();
        Found::Plan(self.plan(reach, space, front, parts, make, terms))
    }

    fn plan(&mut self, reach: &Reach, space: BlockId, front: BlockId, parts: Vec<(Part, Vec<Span>)>, make: usize, terms: &Terms) -> Plan {
        let all: Vec<Span> = parts.iter().flat_map(|(_, spans)| spans.iter().copied()).collect();
        let mut cut = self.cut_out_all(&all).into_iter();
        let with_sources = |(part, spans): (Part, Vec<Span>)| Part { sources: cut.by_ref().take(spans.len()).collect(), ..part };
        let parts = parts.into_iter().map(with_sources).collect();
        let mut sizes = vec![terms.largest; make / terms.largest];
        sizes.extend(Some(make % terms.largest).filter(|last| *last > 0));
        let start = block::at(space).address();
        let mut plan = Plan { front, space, start, parts, make: sizes, ordered: !reach.ordered.is_empty(), stays: false };
        plan.space = self.cut_out(space, start, start + plan.size());
        if front != NIL {
            let (start, end) = (block::at(front).address(), block::at(front).end());
            plan.front = self.cut_out(front, start, end);
        }
        plan
    }

    /// The driver failed: everything is where it was.
    pub fn drop_plan(&mut self, plan: Plan) {
        for id in plan.parts.iter().flat_map(|part| &part.sources) {
            self.make_free(*id);
        }
        if plan.front != NIL {
            self.make_free(plan.front);
        }
        self.make_hole(plan.space, State::Unmapped);
    }

    /// The driver is done; `made` are the new handles. All of it is free memory of the stream.
    pub fn carry_out(&mut self, plan: Plan, reach: &Reach, request: &Request, made: Vec<HandleId>) {
        let slot = reach.slot;
        let parts_before = plan.parts_before();
        let small = block::at(plan.space).small();
        let mut ticket = self.ticket_of_taken(slot, plan.ordered);
        let mut at = plan.start;
        let mut owned_from = plan.start;
        let mut owned_to = plan.start + plan.size();
        let mut made = made.into_iter();
        for (index, part) in plan.parts.iter().enumerate() {
            if index == parts_before {
                for id in made.by_ref() {
                    self.physical.map(id, at);
                    at += self.physical[id].size;
                }
            }
            self.physical.map(part.handle, at);
            if part.owned == (0..part.size) {
                self.recount(part.handle, small);
                if plan.stays {
                    self.physical.set_first(part.handle, at);
                }
            }
            if part.owned.start > 0 {
                owned_from = at + part.owned.start;
            }
            if part.owned.end < part.size {
                owned_to = at + part.owned.end;
            }
            at += part.size;
            for id in &part.sources {
                if block::at(*id).owner() == slot {
                    ticket = ticket.max(block::at(*id).ticket());
                }
                self.tell_memory(*id, false);
                self.make_hole(*id, State::Moved);
            }
        }
        for id in made {
            self.physical.map(id, at);
            at += self.physical[id].size;
        }
        let mut space = self.hand_over(plan.space, COMMON);
        block::at(space).set_ticket(0);
        if owned_to < block::at(space).end() {
            let rest = self.split(space, owned_to - plan.start);
            self.make_hole(rest, State::Moved);
        }
        if owned_from > plan.start {
            let right = self.split(space, owned_from - plan.start);
            self.make_hole(space, State::Moved);
            space = right;
        }
        self.tell_memory(space, true);
        let from = if plan.front == NIL { owned_from } else { block::at(plan.front).address() };
        self.runs.note(slot, request, (from, owned_to));
        if plan.front != NIL {
            self.make_free_of(plan.front, slot, ticket);
        }
        self.make_free_of(space, slot, ticket);
    }

    fn make_free_of(&mut self, id: BlockId, slot: StreamSlot, ticket: u32) {
        let ticket = if block::at(id).owner() == slot { block::at(id).ticket().max(ticket) } else { ticket };
        let id = self.hand_over(id, slot);
        block::at(id).set_ticket(ticket);
        self.make_free(id);
    }

    // ---- the whole, checked

    /// What the tests of the whole cache check after every step.
    pub fn check(&mut self) {
        use crate::memory::stats::Family;
        self.collect();
        let mut sums = (0, 0, 0);
        let (mut unmapped, mut moved) = (0, 0);
        let mut owned: Vec<(HandleId, usize, usize)> = Vec::new();
        for area in self.areas.values() {
            self.check_borders(area.first);
            let mut at = area.base;
            let mut last = NIL;
            for id in block::chain(area.first) {
                let block = block::at(id);
                assert_eq!((block.address(), block::left_of(id)), (at, last), "blocks cover their area without gaps");
                assert!(block.size() > 0 && block.size().is_multiple_of(super::core::ROUND));
                assert!(block.small() == area.small && block.mapped() != area.plain);
                if last != NIL && block.state() == State::Free && block::at(last).state() == State::Free {
                    assert_ne!(block::at(last).owner(), block.owner(), "free neighbours of a stream are one block");
                }
                match block.state() {
                    State::Allocated => sums.0 += block.size(),
                    State::Pending => sums.1 += block.size(),
                    State::Free => sums.2 += block.size(),
                    State::Unmapped => {
                        unmapped += 1;
                        assert_eq!(self.unmapped.get(&block.address()), Some(&id));
                    }
                    State::Moved => {
                        moved += 1;
                        assert_eq!(self.moved.get(&block.address()), Some(&id));
                    }
                    other => panic!("a block is {other:?} while nothing runs"),
                }
                let mut mapped = block.address();
                for mapping in self.physical.overlapping(block.address(), block.end()) {
                    assert!(mapping.start <= mapped, "no gap in what a block covers");
                    let (from, to) = (mapping.start.max(block.address()), mapping.end().min(block.end()));
                    if block.state() != State::Moved {
                        owned.push((mapping.handle, from - mapping.start, to - mapping.start));
                    }
                    mapped = to;
                }
                assert_eq!(mapped, if block.state() == State::Unmapped { block.address() } else { block.end() }, "memory behind a block");
                at = block.end();
                last = id;
            }
            assert_eq!(at, area.base + area.size);
        }
        assert_eq!((unmapped, moved), (self.unmapped.len(), self.moved.len()));
        owned.sort_unstable();
        let mut owned = owned.into_iter().peekable();
        let (mut reserved, mut handles) = (0, 0);
        for id in self.physical.ids() {
            let handle = &self.physical[id];
            let mut at = 0;
            while let Some((_, from, to)) = owned.next_if(|(of, ..)| *of == id) {
                assert_eq!(from, at, "every byte of a handle is owned once");
                at = to;
            }
            assert_eq!(at, handle.size, "every byte of a handle is owned");
            for place in &handle.places {
                assert!(self.physical.overlapping(*place, place + 1).any(|mapping| mapping.start == *place && mapping.handle == id));
            }
            reserved += handle.size;
            handles += 1;
        }
        assert!(owned.next().is_none());
        let mapped: Vec<_> = self.physical.mappings().collect();
        assert_eq!(mapped.len(), self.physical.ids().map(|id| self.physical[id].places.len()).sum::<usize>());
        assert_eq!(mapped.iter().map(|mapping| mapping.size).sum::<usize>(), self.physical.mapped_bytes);
        let stats = self.stats.stats();
        let parts: Vec<_> = self.stats.parts().iter().map(|part| part.stats()).collect();
        let stat = |family| (stats.current(family) - parts.iter().map(|part| part.current(family)).sum::<i64>()) as usize;
        assert_eq!(sums.0, stat(Family::AllocatedBytes));
        assert_eq!(sums.0 + sums.1, stat(Family::ActiveBytes));
        assert_eq!(sums.0 + sums.1 + sums.2, stat(Family::ReservedBytes) - self.ordered_spare);
        assert_eq!((reserved + self.ordered_spare, handles), (stat(Family::ReservedBytes), stat(Family::Segment)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::numbers;

    const G: usize = 2 << 20;

    fn share(handle: HandleId, size: usize, head: usize, tail: usize) -> Share {
        Share { handle, size, sources: 0..0, head, tail }
    }

    /// What a pair costs where memory is scarce: what is made, then what is spent of whole handles and left over.
    fn cost(ends: &Ends, in_front: usize, rest: usize, of_whole: usize) -> (usize, usize) {
        let needed = Ends { first: ends.first, last: None }.rest(in_front, rest);
        let spent = ends.rest(in_front, rest).next_multiple_of(G);
        let over = spent + ends.last.map_or(0, |share| share.head) - needed;
        (spent.saturating_sub(of_whole), spent + over)
    }

    #[test]
    fn no_pair_of_ends_is_better_where_memory_is_scarce() {
        let mut below = numbers::random(7);
        let mut with_both = 0;
        for _ in 0..2000 {
            let mut free = |size: usize| if below(3) == 0 { 0 } else { (1 + below(size / 512 - 1)) * 512 };
            let shares: Vec<Share> = (0..12)
                .map(|at| G * [1, 1, 3][at % 3])
                .enumerate()
                .map(|(at, size)| {
                    let head = free(size);
                    share(at as HandleId, size, head, free(size).min(size - head))
                })
                .collect();
            let (in_front, rest) = (below(2) * below(G), 512 + below(16 * G) / 512 * 512);
            let of_whole = below(10) * G;
            let terms = Terms { granularity: G, scarce: true, ..Terms::default() };
            let found = Ends::choose(&shares, in_front, rest, &terms, of_whole);
            let firsts = || [None].into_iter().chain(shares.iter().filter(|share| share.tail > in_front).map(Some));
            let lasts = || [None].into_iter().chain(shares.iter().filter(|share| share.head > 0).map(Some));
            let pairs = firsts().flat_map(|first| lasts().map(move |last| Ends { first, last }));
            let apart = |ends: &Ends| ends.first.zip(ends.last).is_none_or(|(first, last)| first.handle != last.handle);
            let best = pairs.filter(apart).map(|ends| cost(&ends, in_front, rest, of_whole)).min();
            assert!(apart(&found));
            assert_eq!(Some(cost(&found, in_front, rest, of_whole)), best);
            with_both += usize::from(found.first.is_some() && found.last.is_some());
        }
        assert!(with_both > 200, "{with_both}");
    }
}
