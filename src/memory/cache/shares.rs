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

/// By handle, of which there are so many names, and place in it, as what is free of a handle begins nowhere twice.
fn in_order(stretches: Vec<Stretch>, names: usize) -> Vec<Stretch> {
    // Where the next one of each handle goes: behind all of those before.
    let mut next: Vec<u32> = vec![0; names + 1];
    stretches.iter().for_each(|stretch| next[stretch.handle as usize + 1] += 1);
    let mut before = 0;
    for next in &mut next {
        before += *next;
        *next = before;
    }
    let mut ordered = stretches.clone();
    for stretch in stretches {
        let next = &mut next[stretch.handle as usize];
        ordered[*next as usize] = stretch;
        *next += 1;
    }
    let several = |of_handle: &&mut [Stretch]| of_handle.len() > 1;
    for of_handle in ordered.chunk_by_mut(|one, next| one.handle == next.handle).filter(several) {
        of_handle.sort_unstable_by_key(|stretch| stretch.offset);
    }
    ordered
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
    /// The free blocks that count, of the largest `most` of each stream and kind.
    fn free_blocks(&self, most: usize, plain: bool, counts: impl Fn(BlockId) -> bool) -> Vec<BlockId> {
        let mut blocks = Vec::with_capacity(LOOK_AT);
        // What is watched where it lies stays there.
        if !plain && poison::is_on() {
            return blocks;
        }
        for list in self.awake.iter().flat_map(|slot| [false, true].map(|small| self.list(*slot, small))) {
            list.each(most, |id| {
                if counts(id) && (plain || block::at(id).mapped()) {
                    blocks.push(id);
                }
            });
        }
        blocks
    }

    /// The free bytes of blocks, as far as a mapping and what is free of it count.
    fn stretches_of(&self, blocks: &[BlockId], counts: impl Fn(&Mapping, &Stretch) -> bool) -> Vec<Stretch> {
        let mut stretches = Vec::with_capacity(blocks.len() + self.physical.count());
        for id in blocks {
            let block = block::at(*id);
            let (from, to) = (block.address(), block.end());
            for mapping in self.physical.overlapping(from, to) {
                let address = mapping.start.max(from);
                let size = mapping.end().min(to) - address;
                let stretch = Stretch { handle: mapping.handle, offset: address - mapping.start, block: *id, address, size };
                if counts(&mapping, &stretch) {
                    stretches.push(stretch);
                }
            }
        }
        stretches
    }

    /// What is free and within reach of the largest `most` blocks of each stream and kind, by handle and place in it.
    pub fn stretches(&self, reach: &Reach, most: usize, plain: bool) -> Vec<Stretch> {
        let all = self.stretches_of(&self.free_blocks(most, plain, |id| self.reaches(reach, id)), |_, _| true);
        in_order(all, self.physical.names())
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
    pub fn idle_handles(&self, which: Idle) -> Vec<(HandleId, Vec<Span>)> {
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
    pub fn away_handles(&self, most: usize) -> Vec<Stretch> {
        let is_away = |mapping: &Mapping, stretch: &Stretch| stretch.size < mapping.size || !mapping.first;
        let mut stretches = self.stretches_of(&self.free_blocks(most, false, |_| true), is_away);
        let mut free: Vec<usize> = vec![0; self.physical.names()];
        stretches.iter().for_each(|stretch| free[stretch.handle as usize] += stretch.size);
        stretches.retain(|stretch| free[stretch.handle as usize] == self.physical[stretch.handle].size);
        stretches.sort_unstable_by_key(|stretch| (stretch.handle, stretch.offset));
        stretches
    }
}
