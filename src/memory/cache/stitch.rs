//! Room out of what is free: memory that comes back to an address where it is still mapped, and memory that is mapped a second time,
//! behind other memory, so that many free pieces become one.
//!
//! Nothing here calls the driver; a plan says what is to be mapped.

use super::block::{self, BlockId, NIL, State};
use super::core::{Core, Request};
use super::ends::Ends;
use super::grow::Refusal;
use super::physical::{Handle, HandleId};
use super::policy::{LARGEST_HANDLE, Terms, UpTo};
use super::reach::Reach;
use super::shares::{Idle, LOOK_AT, Share, Span, Stretch};
use super::slot::COMMON;
use crate::runtime::Address;
use std::ops::Range;

/// A request mapped in more handles than this is one of many, if they are small.
const MANY: usize = 32;

/// A handle to be mapped again; the bytes of the range are owned there from then on.
pub struct Part {
    pub handle: HandleId,
    pub size: usize,
    owned: Range<usize>,
    /// What is taken away elsewhere, in the driver's hands.
    taken: Vec<BlockId>,
}

/// Where memory for a request could be mapped.
struct Open {
    /// Addresses with no memory.
    space: BlockId,
    /// Where in them it begins.
    start: Address,
    /// Free memory before that, which is part of it.
    front: BlockId,
    /// Bytes there.
    in_front: usize,
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
    /// So much of what is free in such handles is better made anew: in small ones where memory is scarce, else in larger ones.
    Remake(Idle, usize),
    No(Refusal),
}

impl Core {
    /// Room for the request: where memory is still mapped, else by a plan.
    pub fn find_room(&mut self, reach: &Reach, request: &Request, terms: &Terms, up_to: UpTo) -> Found {
        let mut stretches = None;
        let making = request.size.next_multiple_of(terms.granularity);
        // Of what is mapped now a load that never comes round would find nothing again.
        if !(self.moved.is_empty() || terms.at_once && making <= terms.budget.min(terms.most))
            && let Some(address) = self.take_mapped(reach, request, &mut stretches)
        {
            return Found::Here(address);
        }
        // Small blocks would hold a large handle back for long: for them small ones that large blocks had are mapped anew, else some made.
        if request.small && terms.excess > 0 && making <= terms.most {
            let free = stretches.get_or_insert_with(|| self.stretches(reach, LOOK_AT, false));
            let is_whole = |of_handle: &&[Stretch]| {
                let Handle { size, small, .. } = self.physical[of_handle[0].handle];
                !small && size <= making && of_handle.iter().map(|stretch| stretch.size).sum::<usize>() == size
            };
            let small: Vec<Stretch> = free.chunk_by(|a, b| a.handle == b.handle).filter(is_whole).flatten().copied().collect();
            if !small.is_empty()
                && let found @ (Found::Plan(_) | Found::NoAddresses(_)) = self.stitch(reach, request, terms, 0, UpTo::Budget, small)
            {
                return found;
            }
            if up_to == UpTo::Budget {
                return Found::No(Refusal::Budget);
            }
        }
        let budget = if request.small { terms.budget.max(making) } else { terms.budget }.min(terms.most);
        if let Some(open) = self.open_end(reach, request, |have| (request.size - have).next_multiple_of(terms.granularity)) {
            let make = (request.size - open.in_front).next_multiple_of(terms.granularity);
            if make <= budget {
                return Found::Plan(self.plan(open, Vec::new(), make, terms));
            }
        } else if making <= budget {
            return Found::NoAddresses(making + request.search - request.size);
        }
        if terms.only_makes {
            return Found::No(Refusal::Limit);
        }
        let stretches = stretches.unwrap_or_else(|| self.stretches(reach, LOOK_AT, false));
        match self.stitch(reach, request, terms, budget, up_to, stretches) {
            Found::No(_) => {
                let all = self.stretches(reach, usize::MAX, false);
                self.stitch(reach, request, terms, budget, up_to, all)
            }
            found => found,
        }
    }

    /// Unmapped addresses with room, behind as much free memory as there is anywhere; else the fewest.
    fn open_end(&self, reach: &Reach, request: &Request, room: impl Fn(usize) -> usize) -> Option<Open> {
        let mut best: Option<(Open, usize)> = None;
        for id in self.unmapped.values() {
            let hole = block::at(*id);
            if hole.small() != request.small || self.left.is_in(hole.address(), hole.size()) {
                continue;
            }
            let before = block::left_of(*id);
            let in_front = if self.is_free(reach, before) { block::at(before).room_at(request.alignment) } else { 0 };
            let open = match in_front {
                1.. if in_front < request.size => Open { space: *id, start: hole.address(), front: before, in_front },
                _ => Open { space: *id, start: hole.end() - hole.room_at(request.alignment), front: NIL, in_front: 0 },
            };
            let has_room = hole.end() - open.start >= room(open.in_front);
            let better = |(other, its_size): &(Open, usize)| {
                (other.in_front, std::cmp::Reverse(*its_size)) < (open.in_front, std::cmp::Reverse(hole.size()))
            };
            if has_room && best.as_ref().is_none_or(better) {
                best = Some((open, hole.size()));
            }
        }
        best.map(|(open, _)| open)
    }

    /// Free memory mapped anew, and what is still missing made.
    fn stitch(
        &mut self,
        reach: &Reach,
        request: &Request,
        terms: &Terms,
        budget: usize,
        up_to: UpTo,
        mut stretches: Vec<Stretch>,
    ) -> Found {
        // A pool's addresses for small blocks may have no room for three of the largest.
        let of_stretches = || stretches.iter().map(|stretch| self.physical[stretch.handle].size).max().unwrap_or(0);
        let largest = if request.small { of_stretches() } else { LARGEST_HANDLE };
        let most_space = request.size.saturating_add(3 * largest.max(terms.granularity)).next_multiple_of(terms.granularity);
        let Some(open) = self.open_end(reach, request, |_| most_space) else {
            return Found::NoAddresses(most_space + request.search - request.size);
        };
        let in_front = open.in_front;
        stretches.retain(|stretch| stretch.block != open.front);
        let shares = self.shares(&stretches);
        let mut whole: Vec<&Share> = shares.iter().filter(|share| share.head == share.size).collect();
        whole.sort_unstable_by_key(|share| (share.size, share.handle));
        let mut rest = request.size - in_front;
        if terms.scarce && rest > budget && whole.last().is_some_and(|share| share.size >= terms.coarse) {
            return Found::Remake(Idle::Large(terms.coarse), rest);
        }
        // What begins inside a handle is not aligned.
        let choose = |rest, of_whole| match request.is_aligned() {
            true => Ends::default(),
            false => Ends::choose(&shares, in_front, rest, terms, of_whole),
        };
        let mut ends = Ends::default();
        // What is left of handles in use goes first: whole ones fit anywhere.
        if terms.thrifty && rest > budget {
            let of_whole = whole.iter().map(|share| share.size).sum();
            ends = choose(rest, of_whole);
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
                return Found::Remake(Idle::Small(terms.coarse), request.size + terms.excess);
            }
        }
        if !terms.thrifty && rest > budget {
            ends = choose(rest, 0);
            rest = ends.rest(in_front, rest);
        }
        let before = ends.first.map_or(in_front, |share| share.tail);
        if let Some(share) = ends.first {
            chosen.insert(0, (share, share.size - share.tail..share.size));
        }
        let open = if ends.first.is_some() { Open { front: NIL, ..open } } else { open };
        let owned = request.size.saturating_sub(before + bytes);
        if let Some(share) = ends.last.filter(|_| owned > 0) {
            chosen.push((share, 0..owned.min(share.head)));
        }
        let make = rest.next_multiple_of(terms.granularity);
        if make > terms.most {
            return Found::No(Refusal::Limit);
        }
        if make > budget && up_to == UpTo::Budget {
            return Found::No(Refusal::Budget);
        }
        let spans = |share: &Share, owned: &Range<usize>| -> Vec<Span> {
            stretches[share.stretches.clone()].iter().filter_map(|stretch| stretch.within(owned)).collect()
        };
        let part = |(share, owned): (&Share, Range<usize>)| {
            let spans = spans(share, &owned);
            (Part { handle: share.handle, size: share.size, owned, taken: Vec::new() }, spans)
        };
        let parts: Vec<(Part, Vec<Span>)> = chosen.into_iter().map(part).collect();
        Found::Plan(self.plan(open, parts, make, terms))
    }

    fn plan(&mut self, open: Open, parts: Vec<(Part, Vec<Span>)>, make: usize, terms: &Terms) -> Plan {
        let Open { space, start, front, .. } = open;
        let all: Vec<Span> = parts.iter().flat_map(|(_, spans)| spans.iter().copied()).collect();
        let mut cut = self.cut_out_all(&all).into_iter();
        let with_taken = |(part, spans): (Part, Vec<Span>)| Part { taken: cut.by_ref().take(spans.len()).collect(), ..part };
        let parts = parts.into_iter().map(with_taken).collect();
        let mut sizes = vec![terms.largest; make / terms.largest];
        sizes.extend(Some(make % terms.largest).filter(|last| *last > 0));
        let mut plan = Plan { front, space, start, parts, make: sizes };
        plan.space = self.cut_out(space, start, start + plan.size());
        if front != NIL {
            let (start, end) = (block::at(front).address(), block::at(front).end());
            plan.front = self.cut_out(front, start, end);
        }
        plan
    }

    /// The driver failed: everything is where it was.
    pub fn drop_plan(&mut self, plan: Plan) {
        for id in plan.parts.iter().flat_map(|part| &part.taken) {
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
        let mut ticket = self.ticket_of_taken(reach);
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
            }
            if part.owned.start > 0 {
                owned_from = at + part.owned.start;
            }
            if part.owned.end < part.size {
                owned_to = at + part.owned.end;
            }
            at += part.size;
            for id in &part.taken {
                if block::at(*id).owner() == slot {
                    ticket = ticket.max(block::at(*id).ticket());
                }
                self.disown(*id);
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
        // An aligned one may be shorter than what surely holds its like.
        if !request.is_aligned() {
            self.runs.note(slot, request, (from, owned_to));
        }
        for id in [plan.front, space].into_iter().filter(|id| *id != NIL) {
            let own = if block::at(id).owner() == slot { block::at(id).ticket() } else { 0 };
            self.make_free_of(id, slot, ticket.max(own));
        }
    }
}
