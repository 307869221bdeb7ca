//! What programs ask for, event by event: the recorded runs, and others that are made by rule.

use super::trace;
use std::collections::HashMap;

const MIB: usize = 1 << 20;

/// A block is allocated, or freed.
pub struct Event {
    pub block: usize,
    /// 0: the block is freed.
    pub size: usize,
    pub stream: usize,
}

pub struct Trace {
    pub name: &'static str,
    pub events: Vec<Event>,
    /// The most bytes in use at a time.
    pub peak: usize,
}

impl Trace {
    pub fn of(name: &'static str, events: Vec<Event>) -> Trace {
        let (mut sizes, mut now, mut peak) = (HashMap::new(), 0, 0);
        for event in &events {
            if event.size > 0 {
                now += event.size;
                sizes.insert(event.block, event.size);
            } else {
                now -= sizes.remove(&event.block).unwrap();
            }
            peak = peak.max(now);
        }
        Trace { name, events, peak }
    }

    pub fn recorded(name: &'static str) -> Trace {
        let event = |event: trace::Event| Event { block: event.block, size: if event.free { 0 } else { event.size }, stream: event.stream };
        Trace::of(name, trace::recorded(name, usize::MAX).into_iter().map(event).collect())
    }

    /// Requests that come in bursts on one stream after another: layers whose memory goes at once, and caches that live for some bursts.
    pub fn serving() -> Trace {
        Trace::bursts(120)
    }

    pub fn bursts(bursts: usize) -> Trace {
        const LAYERS: usize = 16;
        let mut below = random(3);
        let mut events = Vec::new();
        for _ in 0..LAYERS {
            allocate(&mut events, 160 * MIB, 0);
        }
        let mut caches: Vec<(usize, usize)> = Vec::new();
        for burst in 0..bursts {
            let stream = below(STREAMS);
            for _ in 0..1 + below(4) {
                let tokens = 64 + below(8128);
                let until = burst + 1 + below(9);
                caches.extend((0..2 * LAYERS).map(|_| (until, allocate(&mut events, tokens * 2048, stream))));
                for _ in 0..LAYERS {
                    let a = allocate(&mut events, tokens * 8192, stream);
                    let b = allocate(&mut events, tokens * 12288, stream);
                    let c = allocate(&mut events, tokens * 32768, stream);
                    free(&mut events, b);
                    let d = allocate(&mut events, tokens * 8192, stream);
                    [a, c, d].into_iter().for_each(|block| free(&mut events, block));
                }
            }
            caches.retain(|(until, block)| {
                let stays = *until > burst;
                if !stays {
                    free(&mut events, *block);
                }
                stays
            });
        }
        Trace::of("serving", events)
    }

    /// A training step in four stages, each on a stream of its own, whose blocks live from a micro-batch's way forth to its way back.
    pub fn pipeline() -> Trace {
        let mut below = random(5);
        let mut events = Vec::new();
        for stage in 0..STREAMS {
            (0..12).for_each(|_| _ = allocate(&mut events, (8 << below(3)) * MIB, stage));
        }
        for _ in 0..60 {
            let (batches, tokens) = (4 + below(5), 200 + below(1848));
            let mut kept: Vec<Vec<usize>> = Vec::new();
            for stage in (0..batches).flat_map(|_| 0..STREAMS) {
                kept.push([2, 6, 8, 2, 2].map(|parts| allocate(&mut events, tokens * 4096 * parts, stage)).into());
                let work = allocate(&mut events, tokens * 4096 * 8, stage);
                free(&mut events, work);
            }
            for (batch, stage) in (0..batches).flat_map(|batch| (0..STREAMS).rev().map(move |stage| (batch, stage))) {
                for block in kept[batch * STREAMS + stage].drain(..).rev() {
                    let size = events[block].size;
                    let gradient = allocate(&mut events, size, stage);
                    free(&mut events, block);
                    free(&mut events, gradient);
                }
            }
        }
        Trace::of("pipeline", events)
    }

    /// Steps on parts of a graph, none of which is as large as another: hardly a size comes back. So many bytes stay for good.
    pub fn sampled(seed: u64, steps: usize, resident: usize) -> Trace {
        const LAYERS: usize = 6;
        let mut below = random(seed);
        let mut events = Vec::new();
        (0..resident / (10 * MIB)).for_each(|_| _ = allocate(&mut events, 10 * MIB, 0));
        for _ in 0..steps {
            let nodes = 20_000 + below(100_000);
            let mut kept: Vec<usize> = Vec::new();
            for _ in 0..LAYERS {
                let here = nodes * (200 + below(800)) / 1000;
                let edges = here * (5 + below(7));
                kept.push(allocate(&mut events, here * 512, 0));
                let messages = allocate(&mut events, edges * 256, 0);
                kept.push(allocate(&mut events, edges * 128 + below(4096), 0));
                free(&mut events, messages);
            }
            for block in kept.into_iter().rev() {
                let size = events[block].size * (600 + below(400)) / 1000;
                let gradient = allocate(&mut events, size, 0);
                free(&mut events, block);
                free(&mut events, gradient);
            }
        }
        Trace::of("sampled", events)
    }

    /// Batches of any size, copied on two streams by turns, where hardly a size comes back, while a third one computes with the last.
    pub fn batches() -> Trace {
        let mut below = random(13);
        let mut events = Vec::new();
        (0..40).for_each(|_| _ = allocate(&mut events, (1 + below(30)) * MIB, 0));
        let mut last: Vec<usize> = Vec::new();
        for step in 0..200 {
            let batch = 8 + below(120);
            let copied = [602_112, 150_528, 4096, 75_264].map(|item| allocate(&mut events, batch * item, 1 + step % 2));
            let used = std::mem::replace(&mut last, copied.into());
            let kept: Vec<usize> =
                used.iter().flat_map(|_| 0..3).map(|_| batch << (17 + below(3))).map(|size| allocate(&mut events, size, 0)).collect();
            used.into_iter().for_each(|block| free(&mut events, block));
            for block in kept.into_iter().rev() {
                let size = events[block].size;
                let gradient = allocate(&mut events, size, 0);
                free(&mut events, block);
                free(&mut events, gradient);
            }
        }
        Trace::of("batches", events)
    }

    /// Streams that by turns work on parts of a graph, each of another size, and keep what they had until their next turn.
    pub fn graphs(seed: u64, streams: usize) -> Trace {
        let mut below = random(seed);
        let mut events = Vec::new();
        (0..20).for_each(|_| _ = allocate(&mut events, (1 + below(20)) * MIB, 0));
        let mut kept: Vec<Vec<usize>> = vec![Vec::new(); streams];
        for turn in 0..400 {
            let stream = turn % streams;
            let nodes = 2000 + below(20_000);
            kept[stream].drain(..).for_each(|block| free(&mut events, block));
            for _ in 0..4 {
                let here = nodes * (200 + below(800)) / 1000;
                kept[stream].push(allocate(&mut events, here << 10, stream));
                let messages = allocate(&mut events, here * (5 + below(7)) * 512, stream);
                kept[stream].push(allocate(&mut events, here * 341, stream));
                free(&mut events, messages);
            }
        }
        kept.into_iter().flatten().for_each(|block| free(&mut events, block));
        Trace::of("graphs", events)
    }

    /// Layers of experts, each of which gets another part of the tokens each time; layers on the streams by turns.
    pub fn experts(seed: u64, streams: usize, steps: usize) -> Trace {
        const TOKENS: usize = 8192;
        let mut below = random(seed);
        let mut events = Vec::new();
        (0..64).for_each(|_| _ = allocate(&mut events, 16 * MIB, 0));
        for _ in 0..steps {
            let mut kept = Vec::new();
            for stream in (0..8).map(|layer| layer % streams) {
                kept.push(allocate(&mut events, TOKENS << 11, stream));
                let mut left = TOKENS;
                for expert in 0..8 {
                    let tokens = if expert == 7 { left } else { below(left / 2 + 1) };
                    left -= tokens;
                    let [input, hidden, output] = [12, 14, 12].map(|bits| allocate(&mut events, (tokens << bits) + 512, stream));
                    free(&mut events, input);
                    kept.extend([hidden, output]);
                }
            }
            for block in kept.into_iter().rev() {
                let size = events[block].size;
                let gradient = allocate(&mut events, size, 0);
                free(&mut events, block);
                free(&mut events, gradient);
            }
        }
        Trace::of("experts", events)
    }

    /// Blocks of any size on any of the streams, more of them at some times than at others.
    pub fn any(seed: u64, streams: usize) -> Trace {
        let mut below = random(seed);
        let mut events = Vec::new();
        let (mut live, mut most) = (Vec::new(), 0);
        for turn in 0..6000 {
            if turn % 200 == 0 {
                most = 20 + below(180);
            }
            while live.len() >= most {
                let ends = below(live.len());
                free(&mut events, live.swap_remove(ends));
            }
            let least = 4096 << below(13);
            let size = least + below(least);
            live.push(allocate(&mut events, size, below(streams)));
        }
        live.into_iter().for_each(|block| free(&mut events, block));
        Trace::of("any", events)
    }

    /// One run after another, of so many seeds.
    pub fn long(seeds: u64, made: impl Fn(u64) -> Trace) -> Trace {
        let of_seed =
            |seed: u64| made(seed).events.into_iter().map(move |event| Event { block: event.block + ((seed as usize) << 32), ..event });
        Trace::of("long", (0..seeds).flat_map(of_seed).collect())
    }

    /// So many weights, caches of any size that live for long, and beside them each step's own blocks.
    pub fn caches(seed: u64, weights: usize) -> Trace {
        let mut below = random(seed);
        let mut events = Vec::new();
        (0..weights).for_each(|_| _ = allocate(&mut events, (8 + below(57)) * MIB, 0));
        let mut caches: Vec<Vec<usize>> = Vec::new();
        for _ in 0..1000 {
            if below(100) < 40 {
                caches.push((0..1 + below(6)).map(|_| allocate(&mut events, MIB + below(39 * MIB), 0)).collect());
            }
            if below(100) < 38 && !caches.is_empty() {
                let ends = below(caches.len());
                caches.swap_remove(ends).into_iter().for_each(|block| free(&mut events, block));
            }
            let tokens = 1 + below(4096);
            let own = [(); 4].map(|()| allocate(&mut events, tokens * [8192, 16384, 28672][below(3)], 0));
            own.into_iter().for_each(|block| free(&mut events, block));
        }
        Trace::of("caches", events)
    }

    /// Large blocks, `all` bytes of them, and when they are gone as many small ones.
    pub fn turns(all: usize, large: usize) -> Trace {
        const SMALL: usize = 640 << 10;
        let mut events = Vec::new();
        for size in [large, SMALL] {
            let blocks: Vec<usize> = (0..all / size).map(|_| allocate(&mut events, size, 0)).collect();
            blocks.into_iter().for_each(|block| free(&mut events, block));
        }
        Trace::of("turns", events)
    }

    /// The same of a model that is so many times smaller.
    pub fn scaled(&self, by: usize) -> Trace {
        let scale = |event: &Event| Event { size: event.size.div_ceil(by), ..*event };
        Trace::of(self.name, self.events.iter().map(scale).collect())
    }

    /// The same with other sizes: each times a factor of its own, from 0.7 to 1.3.
    pub fn varied(&self, seed: u64) -> Trace {
        let mut below = random(seed);
        let mut factors: HashMap<usize, usize> = HashMap::new();
        let vary = |event: &Event| {
            let factor = *factors.entry(event.size).or_insert_with(|| 700 + below(601));
            Event { size: if event.size == 0 { 0 } else { (event.size * factor / 1000).max(1) }, ..*event }
        };
        Trace::of(self.name, self.events.iter().map(vary).collect())
    }
}

pub const STREAMS: usize = 4;

/// Numbers below a bound.
pub fn random(mut state: u64) -> impl FnMut(usize) -> usize {
    move |bound| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % bound
    }
}

/// A block is named by where it is allocated.
fn allocate(events: &mut Vec<Event>, size: usize, stream: usize) -> usize {
    events.push(Event { block: events.len(), size, stream });
    events.len() - 1
}

fn free(events: &mut Vec<Event>, block: usize) {
    events.push(Event { block, size: 0, stream: 0 });
}
