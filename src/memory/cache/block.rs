//! Blocks: stretches of an area, each knowing its neighbours by address.

use super::StreamSlot;

/// Index of a block in its device's store.
pub type BlockId = u32;
/// No block.
pub const NIL: BlockId = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not in use: an entry of the store that waits to be taken again.
    Unused,
    /// Memory of its stream that can be handed out.
    Free,
    /// Handed out.
    Allocated,
    /// Given back, but other streams that used it may not be done.
    Pending,
    /// Address space with no memory behind it.
    Unmapped,
    /// Mapped, but the memory behind it is owned by another place.
    Moved,
    /// The driver is mapping or unmapping it, with the lock released.
    Busy,
}

#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub address: usize,
    pub size: usize,
    /// Bytes as asked for, of blocks that are handed out or pending.
    pub requested: usize,
    /// Count of the stream's frees when this was freed: others may have it when that many are past.
    pub ticket: u64,
    /// Neighbours by address in the same area.
    pub prev: BlockId,
    pub next: BlockId,
    /// Neighbours in the list of free blocks.
    pub link_prev: BlockId,
    pub link_next: BlockId,
    pub area: u32,
    /// As its area.
    pub small: bool,
    pub plain: bool,
    /// The stream whose order the block follows.
    pub slot: StreamSlot,
    pub state: State,
    /// Other streams used it (`Core::uses` says which).
    pub used_elsewhere: bool,
}

impl Block {
    pub fn end(&self) -> usize {
        self.address + self.size
    }
}

/// All blocks of a device. Ids stay valid; entries are used again.
#[derive(Default)]
pub struct Blocks {
    store: Vec<Block>,
    unused: Vec<BlockId>,
}

impl std::ops::Index<BlockId> for Blocks {
    type Output = Block;
    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        &self.store[id as usize]
    }
}

impl std::ops::IndexMut<BlockId> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.store[id as usize]
    }
}

impl Blocks {
    pub fn get(&self, id: BlockId) -> Option<&Block> {
        self.store.get(id as usize)
    }

    pub fn insert(&mut self, block: Block) -> BlockId {
        match self.unused.pop() {
            Some(id) => {
                self[id] = block;
                id
            }
            None => {
                self.store.push(block);
                (self.store.len() - 1) as BlockId
            }
        }
    }

    pub fn remove(&mut self, id: BlockId) {
        self[id].state = State::Unused;
        self.unused.push(id);
    }

    /// Cuts a block: it keeps the first `size` bytes, a new one right of it (same state, in no list) has the rest.
    pub fn split(&mut self, id: BlockId, size: usize) -> BlockId {
        let left = self[id];
        debug_assert!(size > 0 && size < left.size);
        let right = self.insert(Block {
            address: left.address + size,
            size: left.size - size,
            prev: id,
            next: left.next,
            link_prev: NIL,
            link_next: NIL,
            ..left
        });
        if left.next != NIL {
            self[left.next].prev = right;
        }
        let block = &mut self[id];
        block.size = size;
        block.next = right;
        right
    }

    /// Joins a block with its right neighbour, which ends; neither is in a list.
    pub fn join(&mut self, id: BlockId) {
        let right = self[id].next;
        let gone = self[right];
        let block = &mut self[id];
        debug_assert!(block.end() == gone.address && block.area == gone.area);
        block.size += gone.size;
        block.next = gone.next;
        block.ticket = block.ticket.max(gone.ticket);
        if gone.next != NIL {
            self[gone.next].prev = id;
        }
        self.remove(right);
    }

    /// The blocks from `first` on, by address.
    pub fn chain(&self, first: BlockId) -> impl Iterator<Item = BlockId> {
        std::iter::successors((first != NIL).then_some(first), |id| {
            let next = self[*id].next;
            (next != NIL).then_some(next)
        })
    }
}
