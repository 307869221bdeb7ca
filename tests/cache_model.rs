//! The device cache against a simple model: random operations on two devices and several streams; after each step blocks do not
//! overlap, the statistics are the model's, and the cache agrees with itself. At the end every byte is back.

use std::collections::HashMap;
use tcuda::base::config;
use tcuda::memory::{self, stats::Family};
use tcuda::runtime::sim;
use tcuda::stream::{self, Stream};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn size(&mut self) -> usize {
        match self.below(10) {
            0 => self.below(4) as usize + 1,
            1..=5 => self.below(64 << 10) as usize + 1,
            6 | 7 => (self.below(2 << 20) as usize) + 1,
            8 => self.below(40 << 20) as usize + 1,
            _ => (1usize << self.below(24)) + self.below(3) as usize,
        }
    }
}

#[derive(Clone, Copy)]
struct Live {
    size: usize,
    device: i32,
}

fn rounded(size: usize) -> usize {
    size.next_multiple_of(512)
}

fn check(live: &HashMap<usize, Live>, pending: &HashMap<i32, usize>) {
    let mut spans: Vec<(usize, usize)> = live.iter().map(|(start, block)| (*start, start + rounded(block.size))).collect();
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "live blocks overlap");
    for device in 0..2 {
        memory::check(device);
        let of_device = || live.values().filter(|block| block.device == device);
        let stats = memory::stats(device);
        assert_eq!(stats.current(Family::AllocatedBytes) as usize, of_device().map(|block| rounded(block.size)).sum::<usize>());
        assert_eq!(stats.current(Family::Allocation) as usize, of_device().count());
        let most = of_device().map(|block| block.size).sum::<usize>() + pending.get(&device).copied().unwrap_or(0);
        assert!(stats.current(Family::RequestedBytes) as usize <= most);
        assert!(stats.peak(Family::ReservedBytes) >= stats.current(Family::ReservedBytes));
    }
}

fn run(seed: u64, steps: usize) {
    let mut random = Random(seed);
    let mut streams: Vec<Stream> = (0..2).map(|device| Stream { device, raw: 0 }).collect();
    for device in [0, 0, 1] {
        streams.push(stream::create(device, 0).unwrap());
    }
    let mut live: HashMap<usize, Live> = HashMap::new();
    let mut pending: HashMap<i32, usize> = HashMap::new();
    for step in 0..steps {
        let stream = streams[random.below(streams.len() as u64) as usize];
        let any = live.keys().copied().min_by_key(|start| (start >> 9).wrapping_mul(seed as usize | 1) & 0xffff);
        match random.below(100) {
            0..=49 => {
                let size = random.size();
                let alignment = if random.below(8) == 0 { 1usize << random.below(23) } else { 1 };
                let start = memory::allocate(size, alignment, stream).unwrap();
                assert_eq!(start % alignment.max(512), 0);
                assert!(live.insert(start, Live { size, device: stream.device }).is_none());
                assert_eq!(memory::device_of(start + size - 1), Some(stream.device));
            }
            50..=89 => {
                if let Some(start) = any {
                    let block = live.remove(&start).unwrap();
                    let same_device: Vec<&Stream> = streams.iter().filter(|stream| stream.device == block.device).collect();
                    let other = *same_device[random.below(same_device.len() as u64) as usize];
                    match random.below(4) {
                        0 => {
                            memory::record_stream(start, other).unwrap();
                            *pending.entry(block.device).or_default() += block.size;
                            memory::free(start).unwrap();
                        }
                        1 => memory::free_on(start, other).unwrap(),
                        _ => memory::free(start).unwrap(),
                    }
                    assert!(memory::free(start).is_err(), "freed twice");
                }
            }
            90..=93 => {
                if let Some(start) = any {
                    assert!(live.contains_key(&(start + 512)) || memory::free(start + 512).is_err());
                    assert!(memory::free(start + 1).is_err());
                }
            }
            94 | 95 => memory::empty_cache(Some(stream.device)).unwrap(),
            96 => {
                if let Some(gone) = streams.iter().position(|stream| stream.raw > 2) {
                    let gone = streams.swap_remove(gone);
                    stream::destroy(gone.raw).unwrap();
                    streams.push(stream::create(gone.device, 0).unwrap());
                }
            }
            _ => {
                // Work of the stream, so that not everything is past at once where the simulated streams are shuffled.
                if let Some((start, _)) = live.iter().find(|(_, block)| block.device == stream.device) {
                    let entered = stream.enter().unwrap();
                    entered.runtime.memset_async(*start, 1, 1, entered.raw).unwrap();
                }
            }
        }
        if step % 16 == 0 {
            check(&live, &pending);
        }
    }
    for start in live.keys() {
        memory::free(*start).unwrap();
    }
    memory::empty_cache(None).unwrap();
    for device in 0..2 {
        memory::check(device);
        let stats = memory::stats(device);
        for family in [Family::AllocatedBytes, Family::ActiveBytes, Family::RequestedBytes, Family::ReservedBytes, Family::Segment] {
            assert_eq!(stats.current(family), 0, "{family:?} of device {device}, seed {seed}");
        }
    }
    let sim = sim::machine().unwrap();
    let held = sim.live(0..2);
    assert_eq!((held.handles, held.mappings, held.blocks, held.reservations), (0, 0, 0, 0), "seed {seed}");
    for stream in streams.into_iter().filter(|stream| stream.raw > 2) {
        stream::destroy(stream.raw).unwrap();
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    config::set("TCUDA_BACKEND", "sim".into());
    for seed in 1..=12 {
        run(seed, 1500);
    }
}
