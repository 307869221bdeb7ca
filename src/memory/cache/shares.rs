//! What is free, handle by handle. All of it costs time by the number of free blocks and mappings, not by the number of blocks in use.

use super::block::{self, BlockId};
use super::core::Core;
use super::physical::{HandleId, Mapping};
use super::reach::Reach;
use super::slot::COMMON;
use crate::memory::poison;
use crate::runtime::Address;
use std::ops::Range;

/// Free blocks of a stream that are looked at, the largest, unless that is not enough: there may be tens of thousands.
pub const LOOK_AT: usize = 512;

/// A part of a free block.
#[derive(Clone, Copy)]
pub struct Span {
    pub block: BlockId,
    pub from: Address,
    pub to: Address,
}

/// By address, those that follow each other in a block as one.
pub fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable_by_key(|span| span.from);
    spans.dedup_by(|next, span| {
        let follows = span.block == next.block && span.to == next.from;
        span.to = if follows { next.to } else { span.to };
        follows
    });
    spans
}

/// Free bytes of a handle in one place.
#[derive(Clone, Copy)]
pub struct Stretch {
    pub handle: HandleId,
    pub offset: usize,
    pub block: BlockId,
    pub address: Address,
    pub size: usize,
}

impl Stretch {
    /// What of a mapping a free block has that goes from one address to another.
    fn of(mapping: &Mapping, block: BlockId, from: Address, to: Address) -> Stretch {
        let part = mapping.part(from, to);
        Stretch { handle: mapping.handle, offset: part.start, block, address: mapping.start + part.start, size: part.len() }
    }

    fn end(&self) -> Address {
        self.address + self.size
    }

    pub fn span(&self) -> Span {
        Span { block: self.block, from: self.address, to: self.end() }
    }

    #[cfg(test)]
    pub fn has(&self, offset: usize) -> bool {
        (self.offset..self.offset + self.size).contains(&offset)
    }

    /// What of it lies in a part of the handle.
    pub fn within(&self, part: &Range<usize>) -> Option<Span> {
        let (from, to) = (self.offset.max(part.start), (self.offset + self.size).min(part.end));
        let at = |offset: usize| self.address + offset - self.offset;
        (from < to).then(|| Span { block: self.block, from: at(from), to: at(to) })
    }
}

/// What is free as it is found, that of each handle linked, so that a few handles are looked at without all of it being put in order. Each look
/// begins anew; what stays is the host's memory for it.
#[derive(Default)]
pub struct Gathered {
    /// Each with one more than the place of what was found before of its handle; 0: nothing was.
    stretches: Vec<(Stretch, u32)>,
    /// Of each handle the same for all that was found.
    last: Vec<u32>,
}

impl Gathered {
    /// Handles are named below `names`.
    pub(super) fn clear(&mut self, names: usize) {
        self.stretches.drain(..).for_each(|(stretch, _)| self.last[stretch.handle as usize] = 0);
        self.last.resize(names, 0);
    }

    pub(super) fn push(&mut self, stretch: Stretch) {
        let last = &mut self.last[stretch.handle as usize];
        let before = std::mem::replace(last, self.stretches.len() as u32 + 1);
        self.stretches.push((stretch, before));
    }

    /// What is free of a handle, in no order.
    pub fn of(&self, handle: HandleId) -> impl Iterator<Item = &Stretch> {
        let mut next = self.last[handle as usize];
        std::iter::from_fn(move || {
            let (stretch, before) = &self.stretches[next.checked_sub(1)? as usize];
            next = *before;
            Some(stretch)
        })
    }

    /// How much of a part of a handle is free.
    pub fn within(&self, handle: HandleId, part: &Range<usize>) -> usize {
        self.of(handle).filter_map(|stretch| stretch.within(part)).map(|span| span.to - span.from).sum()
    }

    /// Handles of which something is free, each once.
    fn handles(&self) -> impl Iterator<Item = HandleId> {
        self.stretches.iter().filter(|(_, before)| *before == 0).map(|(stretch, _)| stretch.handle)
    }

    /// By handle and place in it, as what is free of a handle begins nowhere twice.
    pub fn in_order(&self) -> Vec<Stretch> {
        let mut ordered: Vec<Stretch> = Vec::with_capacity(self.stretches.len());
        for handle in 0..self.last.len() {
            let from = ordered.len();
            ordered.extend(self.of(handle as HandleId));
            if ordered.len() > from + 1 {
                ordered[from..].sort_unstable_by_key(|stretch| stretch.offset);
            }
        }
        ordered
    }
}

/// What of a handle is free.
pub struct Share {
    pub handle: HandleId,
    pub size: usize,
    /// In the list of all.
    pub stretches: Range<usize>,
    /// Free from the start on, and up to the end. Both are the size of a handle that is free as a whole.
    pub head: usize,
    pub tail: usize,
}

/// Handles from a size on, the largest first; up to one, the smallest of large blocks first; or the largest that are no more than so many bytes
/// together.
#[derive(Clone, Copy)]
pub enum Idle {
    Large(usize),
    Small(usize),
    Within(usize),
}

fn spans_of(shares: &[Share], stretches: &[Stretch]) -> Vec<(HandleId, Vec<Span>)> {
    let spans = |share: &Share| stretches[share.stretches.clone()].iter().map(Stretch::span).collect();
    shares.iter().map(|share| (share.handle, spans(share))).collect()
}

impl Core {
    /// The free blocks of which memory may be taken, the largest `most` of each stream and kind.
    fn each_free(&self, most: usize, plain: bool, mut act: impl FnMut(BlockId)) {
        // What is watched where it lies stays there.
        if !plain && poison::is_on() {
            return;
        }
        for list in self.awake.iter().flat_map(|slot| [false, true].map(|small| self.list(*slot, small))) {
            list.each(most, |id| {
                if plain || block::at(id).mapped() {
                    act(id);
                }
            });
        }
    }

    /// What is free and within reach of the largest `most` blocks of each stream and kind.
    pub fn gather(&self, into: &mut Gathered, reach: &Reach, most: usize, plain: bool) {
        into.clear(self.physical.names());
        self.each_free(most, plain, |id| {
            if self.reaches(reach, id) {
                let (from, to) = (block::at(id).address(), block::at(id).end());
                self.physical.overlapping(from, to).for_each(|mapping| into.push(Stretch::of(mapping, id, from, to)));
            }
        });
    }

    /// The same by handle and place in it.
    pub fn stretches(&mut self, reach: &Reach, most: usize, plain: bool) -> Vec<Stretch> {
        let mut free = std::mem::take(&mut self.gathered);
        self.gather(&mut free, reach, most, plain);
        let ordered = free.in_order();
        self.gathered = free;
        ordered
    }

    pub fn shares(&self, stretches: &[Stretch]) -> Vec<Share> {
        let mut shares = Vec::with_capacity(stretches.len());
        let mut from = 0;
        for of_handle in stretches.chunk_by(|a, b| a.handle == b.handle) {
            let size = self.physical[of_handle[0].handle].size;
            let head = of_handle.iter().fold(0, |head, stretch| if stretch.offset == head { head + stretch.size } else { head });
            let fold = |start: usize, stretch: &Stretch| if stretch.offset + stretch.size == start { stretch.offset } else { start };
            let tail = size - of_handle.iter().rev().fold(size, fold);
            let to = from + of_handle.len();
            shares.push(Share { handle: of_handle[0].handle, size, stretches: from..to, head, tail });
            from = to;
        }
        shares
    }

    /// The handles of such sizes that are free as a whole and past, the largest or the smallest first.
    pub fn idle_handles(&mut self, which: Idle) -> Vec<(HandleId, Vec<Span>)> {
        let stretches = self.stretches(&Reach::of(COMMON), usize::MAX, true);
        let mut shares = self.shares(&stretches);
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
        spans_of(&shares, &stretches)
    }

    /// What is free of the handles that are free as a whole, whosever that is, but not in one piece where they were mapped first; by handle and
    /// place in it.
    pub fn away_handles(&mut self, most: usize) -> Vec<Stretch> {
        let mut free = std::mem::take(&mut self.gathered);
        free.clear(self.physical.names());
        self.each_free(most, false, |id| {
            let (from, to) = (block::at(id).address(), block::at(id).end());
            self.physical.cut_or_second(from, to).for_each(|mapping| free.push(Stretch::of(mapping, id, from, to)));
        });
        let is_whole = |handle: &HandleId| free.of(*handle).map(|stretch| stretch.size).sum::<usize>() == self.physical[*handle].size;
        let mut away: Vec<Stretch> = free.handles().filter(is_whole).flat_map(|handle| free.of(handle)).copied().collect();
        away.sort_unstable_by_key(|stretch| (stretch.handle, stretch.offset));
        self.gathered = free;
        away
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::numbers;

    #[test]
    fn what_was_gathered_against_a_plain_list() {
        const HANDLES: usize = 20;
        let mut below = numbers::random(12345);
        let mut free = Gathered::default();
        for round in 0..500 {
            let names = 1 + below(HANDLES);
            let mut plain: Vec<Stretch> = Vec::new();
            free.clear(names);
            for at in 0..below(40) {
                // No place of a handle twice.
                let (handle, offset) = (below(names) as HandleId, at * 10);
                let stretch = Stretch { handle, offset, block: at as BlockId, address: below(1000), size: 1 + below(10) };
                plain.push(stretch);
                free.push(stretch);
            }
            let mut handles: Vec<HandleId> = free.handles().collect();
            handles.sort_unstable();
            let of = |handle| plain.iter().filter(move |stretch| stretch.handle == handle);
            assert!(handles.into_iter().eq((0..names as HandleId).filter(|handle| of(*handle).next().is_some())), "round {round}");
            let part = below(200)..200 + below(200);
            for handle in 0..names as HandleId {
                let bytes = |stretch: &Stretch| part.clone().filter(|at| stretch.has(*at)).count();
                assert_eq!(free.within(handle, &part), of(handle).map(bytes).sum(), "round {round}");
                assert_eq!(free.of(handle).count(), of(handle).count());
            }
            plain.sort_unstable_by_key(|stretch| (stretch.handle, stretch.offset));
            let places = |stretches: &[Stretch]| stretches.iter().map(|stretch| (stretch.handle, stretch.block)).collect::<Vec<_>>();
            assert_eq!(places(&free.in_order()), places(&plain), "round {round}");
        }
    }
}
