//! Captures on streams of the thread's own, with memory of the graph's, and replays on any stream.

use crate::memory::name;
use crate::model::{Block, Held, Kind, Order, Share, Stream};
use crate::plan::Feature;
use crate::program::{Program, did, ok};
use crate::trail::note;
use std::cell::Cell;
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::Arc;
use tcuda::base::Status;
use tcuda::capi::graph::*;
use tcuda::capi::memory::*;
use tcuda::capi::stream::*;

pub struct Graph {
    pub handle: usize,
    share: Rc<Share>,
}

impl Graph {
    pub fn raw(&self) -> tcuda_graph_t {
        self.handle as tcuda_graph_t
    }
}

/// A capture under way.
struct Capture {
    main: Arc<Stream>,
    /// Another stream, which takes part once it has waited.
    side: Arc<Stream>,
    forked: bool,
    share: Rc<Share>,
    /// Blocks of it that are in use.
    blocks: Vec<Block>,
}

const MOST_GRAPHS: usize = 6;

impl Program {
    pub fn use_graphs(&mut self) {
        let choice = self.random.below(10);
        if self.graphs.is_empty() || choice < 4 {
            if self.graphs.len() < MOST_GRAPHS {
                self.capture();
            }
            return;
        }
        let at = self.random.below(self.graphs.len());
        match choice {
            4..=7 => self.replay(at),
            _ => _ = self.end_graph(at, choice == 8),
        }
    }

    // ---- captures

    fn capture(&mut self) {
        let device = self.random.below(self.world.plan.devices) as i32;
        let Some([main, side]) = self.streams_to_capture(device) else { return };
        let shares: Vec<Rc<Share>> = self.shares.iter().filter(|share| share.device == device).cloned().collect();
        let shared = self.random.pick(&shares).filter(|_| self.random.chance(60));
        let share = shared
            .clone()
            .unwrap_or_else(|| Rc::new(Share { id: Cell::new((0, 0)), device, order: Order::of(&main), graphs: Cell::new(0) }));
        let mut graph = null_mut();
        ok!(tcuda_graph_create(&mut graph, self.random.pick(&[0, TCUDA_GRAPH_KEEP]).unwrap()));
        let (first, second) = share.id.get();
        // Captures of several threads want a mode that forbids the others nothing.
        let mode = if self.world.plan.threads > 1 { 1 + self.random.below(2) } else { self.random.below(3) } as i32;
        note!("capture on {} of pool {:?}, mode {mode}", name(&main), (first, second));
        if !did!(self, tcuda_graph_capture_begin(graph, main.hold().raw(), tcuda_pool_id_t { first, second }, mode)) {
            return self.destroy(graph);
        }
        self.is_capturing = true;
        let mut capture = Capture { main, side, forked: false, share, blocks: Vec::new() };
        for _ in 0..1 + self.random.below(14) {
            self.step_of_capture(&mut capture);
        }
        if capture.forked {
            self.wait_for(&capture.main.hold(), &capture.side);
        }
        let is_whole = match self.random.below(20) {
            0 => {
                did!(self, tcuda_graph_reset(graph));
                false
            }
            _ => did!(self, tcuda_graph_capture_end(graph)),
        };
        self.is_capturing = false;
        note!("the capture has ended, whole: {is_whole}");
        self.keep(graph, capture, shared.is_none(), is_whole);
    }

    fn streams_to_capture(&mut self, device: i32) -> Option<[Arc<Stream>; 2]> {
        let own = |program: &Program| program.captured.iter().filter(|stream| stream.device == device).cloned().collect::<Vec<_>>();
        while own(self).len() < 2 {
            let mut stream = null_mut();
            if !did!(self, tcuda_stream_create(&mut stream, device, 0)) {
                return None;
            }
            self.captured.push(Stream::new(stream, device, Kind::Captured, Some(self.world.default(device).clone())));
        }
        own(self).try_into().ok()
    }

    fn step_of_capture(&mut self, capture: &mut Capture) {
        let stream = if capture.forked && self.random.chance(50) { capture.side.clone() } else { capture.main.clone() };
        match self.random.below(20) {
            0..=7 => self.allocate_captured(&stream, capture),
            8..=12 if !capture.blocks.is_empty() => {
                let at = self.random.below(capture.blocks.len());
                let block = capture.blocks.swap_remove(at);
                // Its host function looks at each replay.
                if let Some(value) = block.value.filter(|_| self.random.chance(60)) {
                    self.check_later(&block, value, &block.home.hold(), format!("0x{:x} in a graph", block.address));
                }
                self.free(&block);
            }
            13 => capture.forked |= self.wait_for(&capture.side.hold(), &capture.main),
            14 if capture.forked => _ = self.wait_for(&capture.main.hold(), &capture.side),
            15 if self.random.chance(20) => {
                note!("the capture is spoilt");
                let status = unsafe { tcuda_stream_synchronize(stream.hold().raw()) };
                assert_ne!(status, Status::TCUDA_SUCCESS, "a captured stream was waited for");
                self.judge("tcuda_stream_synchronize", status);
            }
            // Beside it everything goes on.
            16 => self.empty(),
            17 => self.free_one(),
            18 => self.allocate(),
            19 if self.has(Feature::Pinned) && self.random.chance(50) => self.use_pinned(),
            19 => self.use_elsewhere(),
            _ => {}
        }
    }

    fn allocate_captured(&mut self, stream: &Arc<Stream>, capture: &mut Capture) {
        let (size, held, mut block) = (self.size(), stream.hold(), null_mut());
        let allocated = did!(self, tcuda_malloc_cached(&mut block, size, held.raw()));
        note!("0x{:x}: {size} bytes, captured on {}", block as usize, name(stream));
        if !allocated || block.is_null() {
            return;
        }
        self.world.born(block as usize, size, stream.device);
        let mut block = Block::new(block as usize, size, stream);
        match self.has(Feature::Pinned) && self.random.chance(40) {
            true => self.feed_captured(&mut block, &held),
            false => self.stamp(&mut block, &held),
        }
        capture.blocks.push(block);
    }

    /// Blocks that are left stay the program's. Their values are there after the first replay; none are if nothing was captured.
    fn keep(&mut self, graph: tcuda_graph_t, capture: Capture, is_new: bool, is_whole: bool) {
        let Capture { share, blocks, .. } = capture;
        for mut block in blocks {
            let value = block.value.take();
            block.order = share.order.clone();
            block.captured = is_whole.then_some((graph as usize, value));
            block.share = Some(share.clone());
            self.blocks.push(block);
        }
        if !is_whole {
            return self.destroy(graph);
        }
        if is_new {
            let mut id = tcuda_pool_id_t { first: 0, second: 0 };
            ok!(tcuda_graph_pool(graph, &mut id));
            share.id.set((id.first, id.second));
            self.shares.push(share.clone());
        }
        share.graphs.set(share.graphs.get() + 1);
        self.graphs.push(Graph { handle: graph as usize, share });
        if self.random.chance(70) {
            self.replay(self.graphs.len() - 1);
        }
    }

    // ---- replays

    fn replay(&mut self, at: usize) {
        let (graph, share) = (self.graphs[at].raw(), self.graphs[at].share.clone());
        let stream = match self.random.chance(40) {
            true => self.captured.iter().find(|stream| stream.device == share.device).unwrap().clone(),
            false => self.pick_stream(Some(share.device)),
        };
        let held = stream.hold();
        if !self.touch_all(&share, &held) {
            return;
        }
        note!("0x{:x} is replayed on {}", graph as usize, name(held.stream));
        let replayed = did!(self, tcuda_graph_replay(graph, held.raw()));
        for block in self.blocks.iter_mut().filter(|block| is_of(block, &share)) {
            block.value = match block.captured {
                Some((of, value)) if of == graph as usize && replayed => value,
                _ => None,
            };
        }
        for at in 0..self.blocks.len() {
            if is_of(&self.blocks[at], &share) && self.random.chance(50) {
                let block = self.blocks.swap_remove(at);
                self.check(&block);
                self.blocks.push(block);
            }
        }
    }

    /// A stream may touch the memory of all captures with one pool.
    fn touch_all(&self, share: &Rc<Share>, held: &Held) -> bool {
        self.wait_for(held, &share.order.last()) && {
            share.order.set(held.stream);
            self.blocks.iter().filter(|block| is_of(block, share)).all(|block| self.touch(block, held))
        }
    }

    // ---- ends

    /// Blocks of it stay, with what is in them. False: a fault struck, and it goes on.
    pub fn end_graph(&mut self, at: usize, by_reset: bool) -> bool {
        let graph = &self.graphs[at];
        note!("0x{:x} ends", graph.handle);
        if by_reset && !did!(self, tcuda_graph_reset(graph.raw())) {
            // What it holds is not known.
            return false;
        }
        let graph = self.graphs.swap_remove(at);
        self.destroy(graph.raw());
        for block in self.blocks.iter_mut().filter(|block| block.captured.is_some_and(|(of, _)| of == graph.handle)) {
            block.captured = None;
        }
        graph.share.graphs.set(graph.share.graphs.get() - 1);
        self.shares.retain(|share| share.graphs.get() > 0);
        true
    }

    /// What a fault strikes goes the second time.
    fn destroy(&self, graph: tcuda_graph_t) {
        let destroyed = (0..10).any(|_| did!(self, tcuda_graph_destroy(graph)));
        assert!(destroyed || self.has(Feature::Faults), "0x{:x} does not end", graph as usize);
    }
}

fn is_of(block: &Block, share: &Rc<Share>) -> bool {
    block.share.as_ref().is_some_and(|of| Rc::ptr_eq(of, share))
}
