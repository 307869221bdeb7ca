//! From one place to many, from device to device, copied or added to, and sums of many in one place, over a table of segments: the kernels of
//! kernels/comm.cu and their twins.

use super::element::{Element, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::{Access, Family, Kernel, launch};
use crate::base::{Result, watch};
use crate::runtime::api::Runtime;
use crate::runtime::table::RawStream;

/// Arguments of more than 2 KiB make a launch slower by a microsecond.
const WORDS: usize = 240;
const THREADS: u32 = 256;
/// As many as an H100 has room for at once; each goes on with the next tile.
const BLOCKS: u32 = 1056;
/// Bytes that one block does at a time. A segment that is cut at a multiple keeps its alignment.
pub const TILE: usize = 16 << 10;
/// The same of a launch with few bytes, as many as a block's threads load at once: over NVLink a second load costs as much time as the first.
const SHORT_TILE: usize = THREADS as usize * 16;
/// Tiles up to which they are short.
const FEW: usize = 256;
/// Blocks of a relay, each with a counter, and their threads: enough to fill a link.
const RELAY_BLOCKS: u32 = 128;
const RELAY_THREADS: u32 = 512;
const COUNTER: usize = 128;
/// Bytes of the counters on one device. They begin as zeros.
pub const COUNTERS: usize = RELAY_BLOCKS as usize * COUNTER;
/// Bytes that a block hands on at once, in long and in short relays: few make the next device wait less, many tell it less often.
const RELAY_TILE: usize = 64 << 10;
const SHORT_RELAY_TILE: usize = 32 << 10;
/// Bytes from which on a relay is long.
const LONG: usize = 64 << 20;
/// Addresses on the side of many in one launch.
pub const MOST: usize = 64;
const _: () = assert!(WORDS / (MOST + 3) >= 3 && size_of::<Relay>() <= 2048);

/// A stretch of bytes, at least one, at one address and at several others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    pub one: usize,
    /// 1 to `MOST`, in all segments of a launch the same number.
    pub many: Vec<usize>,
    pub size: usize,
}

impl Segment {
    pub fn tiles(&self) -> usize {
        self.size.div_ceil(TILE)
    }
}

/// The argument of every kernel of the family, as in kernels/comm.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Table {
    tiles: u32,
    segments: u32,
    many: u32,
    tile: u32,
    words: [u64; WORDS],
}

/// Of the relay, likewise.
#[repr(C)]
#[derive(Clone, Copy)]
struct Relay {
    table: Table,
    came: u64,
    tell: u64,
    taken: u64,
    give: u64,
    before: u32,
    ahead: u32,
}

static FAMILY: Family = Family { name: "comm", images: &[(75, include_bytes!("../../../kernels/ptx/comm.75.ptx.zst"))] };

static SPREAD: Kernel<Table> = Kernel::new(&FAMILY, "tcuda_comm_spread", spread_twin);
static RELAY: Kernel<Relay> = Kernel::new(&FAMILY, "tcuda_comm_relay", |relay| unsafe { relay_twin(relay, spread_twin) });
static RELAY_ADD: [(Kernel<Relay>, &Kernel<Table>); 4] = [
    (Kernel::new(&FAMILY, "tcuda_comm_relay_add_i32", |relay| unsafe { relay_twin(relay, ADD[3].twin) }), &ADD[3]),
    (Kernel::new(&FAMILY, "tcuda_comm_relay_add_i64", |relay| unsafe { relay_twin(relay, ADD[4].twin) }), &ADD[4]),
    (Kernel::new(&FAMILY, "tcuda_comm_relay_add_f32", |relay| unsafe { relay_twin(relay, ADD[7].twin) }), &ADD[7]),
    (Kernel::new(&FAMILY, "tcuda_comm_relay_add_f64", |relay| unsafe { relay_twin(relay, ADD[8].twin) }), &ADD[8]),
];
static ADD: [Kernel<Table>; 9] = [
    Kernel::new(&FAMILY, "tcuda_comm_add_bool", |table| unsafe { add_twin::<u8, u8>(table, |v| u8::from(v != 0), |a, b| a | b, |v| v) }),
    Kernel::new(&FAMILY, "tcuda_comm_add_i8", |table| unsafe { add_twin::<u8, u8>(table, |v| v, u8::wrapping_add, |v| v) }),
    Kernel::new(&FAMILY, "tcuda_comm_add_i16", |table| unsafe { add_twin::<u16, u16>(table, |v| v, u16::wrapping_add, |v| v) }),
    Kernel::new(&FAMILY, "tcuda_comm_add_i32", |table| unsafe { add_twin::<u32, u32>(table, |v| v, u32::wrapping_add, |v| v) }),
    Kernel::new(&FAMILY, "tcuda_comm_add_i64", |table| unsafe { add_twin::<u64, u64>(table, |v| v, u64::wrapping_add, |v| v) }),
    Kernel::new(&FAMILY, "tcuda_comm_add_f16", |table| unsafe { add_twin::<u16, f32>(table, f16_to_f32, |a, b| a + b, f32_to_f16) }),
    Kernel::new(&FAMILY, "tcuda_comm_add_bf16", |table| unsafe { add_twin::<u16, f32>(table, bf16_to_f32, |a, b| a + b, f32_to_bf16) }),
    Kernel::new(&FAMILY, "tcuda_comm_add_f32", |table| unsafe { add_twin::<f32, f32>(table, |v| v, |a, b| a + b, |v| v) }),
    Kernel::new(&FAMILY, "tcuda_comm_add_f64", |table| unsafe { add_twin::<f64, f64>(table, |v| v, |a, b| a + b, |v| v) }),
];

/// Which of `ADD` sums the type: integers of one width wrap alike, a complex number is two floats.
fn adder(element: Element) -> &'static Kernel<Table> {
    use Element::*;
    &ADD[match element {
        Bool => 0,
        U8 | I8 => 1,
        U16 | I16 => 2,
        U32 | I32 => 3,
        U64 | I64 => 4,
        F16 => 5,
        BF16 => 6,
        F32 | C64 => 7,
        F64 | C128 => 8,
    }]
}

/// Enqueues copies of each segment's one stretch to its many, on a stream of `device`, which is current and reaches all of them.
pub fn spread(runtime: &'static Runtime, device: i32, stream: RawStream, segments: &[Segment]) -> Result<()> {
    run(runtime, device, stream, &SPREAD, segments, false)
}

/// Enqueues the sums of each segment's many in its one: from the first to the last, halves in f32 and rounded once at the end. The one may
/// be the first of the many.
pub fn add(runtime: &'static Runtime, device: i32, stream: RawStream, element: Element, segments: &[Segment]) -> Result<()> {
    run(runtime, device, stream, adder(element), segments, true)
}

/// Counters, or 0: on this device of what came from the one before, on the next one of what it may take; on this device of what the next one has
/// taken, on the one before of what is given free, where windows are used again.
#[derive(Clone, Copy)]
pub struct Counters {
    pub came: usize,
    pub tell: usize,
    pub taken: usize,
    pub give: usize,
}

/// What a hop of a relay does.
#[derive(Clone, Copy)]
pub struct Move(&'static Kernel<Relay>);

impl Move {
    /// Each segment's one goes to its only other.
    pub const COPY: Move = Move(&RELAY);

    /// The sum of each segment's two goes to its one; all addresses are multiples of 16. None: partial sums of this type would be rounded, or
    /// are not worth a kernel.
    pub fn adding(element: Element) -> Option<Move> {
        let add = adder(element);
        RELAY_ADD.iter().find(|(_, of)| std::ptr::eq(*of, add)).map(|(kernel, _)| Move(kernel))
    }

    fn writes_one(self) -> bool {
        !std::ptr::eq(self.0, &RELAY)
    }
}

/// Where a relay is: what the call before with these counters answered, at first 0; bytes that a block hands on at once; tiles of a block
/// by which it may be ahead of the next device.
#[derive(Clone, Copy)]
pub struct Pace {
    pub before: u32,
    pub tile: usize,
    pub ahead: u32,
}

impl Pace {
    /// Of launches of so many bytes.
    pub fn of(bytes: usize) -> Pace {
        Pace { before: 0, tile: if bytes >= LONG { RELAY_TILE } else { SHORT_RELAY_TILE }, ahead: 0 }
    }

    /// Tiles of a block in a launch of one segment.
    pub fn tiles(&self, bytes: usize) -> u32 {
        let tiles = bytes.div_ceil(self.tile) as u32;
        tiles.div_ceil(tiles.clamp(1, RELAY_BLOCKS))
    }
}

/// Whether a kernel may wait for one of another device: not where each runs to its end before the next begins.
pub fn kernels_overlap(runtime: &Runtime) -> bool {
    runtime.name != "sim"
}

/// Enqueues a move of each segment, tile by tile: each when it came and there is room for it, then it is told. The launches of the device before
/// were made with the same sizes, and before these. Answers `before` of the next call.
pub fn relay(
    runtime: &'static Runtime,
    device: i32,
    stream: RawStream,
    step: Move,
    segments: &[Segment],
    Counters { came, tell, taken, give }: Counters,
    Pace { mut before, tile, ahead }: Pace,
) -> Result<u32> {
    let many = segments.first().map_or(1, |segment| segment.many.len());
    for group in segments.chunks(group(many)) {
        let table = table(group, tile);
        let blocks = table.tiles.min(RELAY_BLOCKS);
        let mut accesses = accesses(runtime, group, step.writes_one());
        if !accesses.is_empty() {
            let counters = [(came, false), (tell, true), (taken, false), (give, true)].into_iter().filter(|(address, _)| *address != 0);
            accesses.extend(counters.map(|(address, write)| Access { address, size: blocks as usize * COUNTER, write }));
        }
        let [came, tell, taken, give] = [came, tell, taken, give].map(|address| address as u64);
        let relay = Relay { table, came, tell, taken, give, before, ahead };
        unsafe { launch(runtime, device, stream, step.0, (blocks, RELAY_THREADS), relay, &accesses)? };
        before = before.wrapping_add(table.tiles.div_ceil(blocks));
    }
    Ok(before)
}

fn run(
    runtime: &'static Runtime,
    device: i32,
    stream: RawStream,
    kernel: &'static Kernel<Table>,
    segments: &[Segment],
    writes_one: bool,
) -> Result<()> {
    let Some(first) = segments.first() else { return Ok(()) };
    for group in segments.chunks(group(first.many.len())) {
        let table = table(group, tile(group));
        let accesses = accesses(runtime, group, writes_one);
        unsafe { launch(runtime, device, stream, kernel, (table.tiles.min(BLOCKS), THREADS), table, &accesses)? };
    }
    Ok(())
}

fn tile(segments: &[Segment]) -> usize {
    let short = segments.iter().map(|segment| segment.size.div_ceil(SHORT_TILE)).sum::<usize>();
    if short <= FEW { SHORT_TILE } else { TILE }
}

/// Segments of one launch.
fn group(many: usize) -> usize {
    WORDS / (many + 3)
}

/// Where somebody wants to know.
fn accesses(runtime: &Runtime, segments: &[Segment], writes_one: bool) -> Vec<Access> {
    let mut accesses = Vec::new();
    if runtime.name == "sim" || watch::any(watch::SANITIZER) {
        for segment in segments {
            accesses.push(Access { address: segment.one, size: segment.size, write: writes_one });
            accesses.extend(segment.many.iter().map(|address| Access { address: *address, size: segment.size, write: !writes_one }));
        }
    }
    accesses
}

fn table(segments: &[Segment], tile: usize) -> Table {
    let many = segments[0].many.len();
    let mut table = Table { tiles: 0, segments: segments.len() as u32, many: many as u32, tile: tile as u32, words: [0; WORDS] };
    for (segment, words) in segments.iter().zip(table.words.chunks_exact_mut(many + 3)) {
        words[0] = u64::from(table.tiles);
        words[1] = segment.size as u64;
        words[2] = segment.one as u64;
        for (word, address) in words[3..].iter_mut().zip(&segment.many) {
            *word = *address as u64;
        }
        table.tiles += segment.size.div_ceil(tile) as u32;
    }
    table
}

// ---- the twins

impl Table {
    fn segments(&self) -> impl Iterator<Item = (usize, usize, &[u64])> {
        let words = self.words.chunks_exact(self.many as usize + 3).take(self.segments as usize);
        words.map(|words| (words[1] as usize, words[2] as usize, &words[3..]))
    }
}

unsafe fn spread_twin(table: &Table) {
    for (size, one, many) in table.segments() {
        for to in many {
            unsafe { std::ptr::copy(one as *const u8, *to as usize as *mut u8, size) };
        }
    }
}

/// All that is to come has come, and there is room for it: who runs twins enqueues them so.
unsafe fn relay_twin(relay: &Relay, step: unsafe fn(&Table)) {
    let blocks = relay.table.tiles.min(RELAY_BLOCKS);
    let counter = |counters: u64, block: u32| unsafe { &mut *((counters as usize + block as usize * COUNTER) as *mut u32) };
    let done = |block: u32| relay.before.wrapping_add((relay.table.tiles - block).div_ceil(blocks));
    for (counters, ahead, what) in [(relay.came, 0, "came to"), (relay.taken, relay.ahead, "were taken from")] {
        for block in (0..blocks).filter(|_| counters != 0) {
            let (count, wanted) = (*counter(counters, block), done(block).wrapping_sub(ahead));
            assert!(count.wrapping_sub(wanted) as i32 >= 0, "{count} tiles of {wanted} {what} block {block}");
        }
    }
    unsafe { step(&relay.table) };
    for counters in [relay.tell, relay.give] {
        (0..blocks).filter(|_| counters != 0).for_each(|block| *counter(counters, block) = done(block));
    }
}

unsafe fn add_twin<T: Copy, W: Copy>(table: &Table, widen: fn(T) -> W, add: fn(W, W) -> W, narrow: fn(W) -> T) {
    for (size, one, many) in table.segments() {
        for at in (0..size).step_by(size_of::<T>()) {
            let read = |address: u64| unsafe { ((address as usize + at) as *const T).read_unaligned() };
            let sum = many[1..].iter().fold(widen(read(many[0])), |sum, next| add(sum, widen(read(*next))));
            unsafe { ((one + at) as *mut T).write_unaligned(narrow(sum)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::image::tests::check_kernel;
    use super::*;

    #[test]
    fn the_ptx_has_every_kernel() {
        for kernel in ADD.iter().chain([&SPREAD]) {
            check_kernel(&FAMILY, kernel.name, size_of::<Table>());
        }
        for kernel in RELAY_ADD.iter().map(|(kernel, _)| kernel).chain([&RELAY]) {
            check_kernel(&FAMILY, kernel.name, size_of::<Relay>());
        }
    }

    #[test]
    fn tables_count_tiles() {
        let segment = |one, size| Segment { one, many: vec![one + 1, one + 2], size };
        let large = FEW * SHORT_TILE;
        let table = |segments: &[Segment]| super::table(segments, tile(segments));
        let long = table(&[segment(100, 1), segment(200, TILE), segment(300, large + 1), segment(400, 7)]);
        let tiles = (large / TILE) as u64 + 1;
        assert_eq!((u64::from(long.tiles), long.segments, long.many, long.tile as usize), (3 + tiles, 4, 2, TILE));
        assert_eq!(long.words[..10], [0, 1, 100, 101, 102, 1, TILE as u64, 200, 201, 202]);
        assert_eq!((long.words[10], long.words[15]), (2, 2 + tiles));
        // Few bytes are spread over more blocks.
        let short = table(&[segment(100, large - SHORT_TILE), segment(200, 1)]);
        assert_eq!((short.tiles as usize, short.tile as usize), (FEW, SHORT_TILE));
        assert_eq!(table(&[segment(100, large), segment(200, 1)]).tile as usize, TILE);
    }

    #[test]
    fn halves_are_rounded_once() {
        let one = [f32_to_f16(2048.0)];
        let small = [f32_to_f16(1.0)];
        let mut sum = [0u16];
        let address = |at: &[u16]| at.as_ptr() as usize;
        let segment = Segment { one: sum.as_mut_ptr() as usize, many: vec![address(&one), address(&small), address(&small)], size: 2 };
        unsafe { (adder(Element::F16).twin)(&table(&[segment], TILE)) };
        // Each sum of two would be rounded back to 2048.
        assert_eq!(f16_to_f32(sum[0]), 2050.0);
    }
}
