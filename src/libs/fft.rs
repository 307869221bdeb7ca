//! Plans of cuFFT by what they transform, for each device: the one that was used longest ago goes first. Who takes a plan has it alone until
//! it is put back; its work area is a block of the stream that it is taken for, for that time only.

use super::{is_captured, with_memory};
use crate::base::{Error, Result, Status, insist, watch};
use crate::device;
use crate::event::{self, pool::Pooled};
use crate::memory::{self, captures};
use crate::runtime::libraries::{self, Plan, Transform};
use crate::runtime::{self, Address, Runtime};
use crate::stream::{self, Stream};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

/// torch's.
const MOST: i64 = 4096;

/// What has to be over before a plan is destroyed.
enum After {
    Event(Pooled),
    /// All that the device has: the stream could not be marked.
    Device,
}

struct Kept {
    plan: Plan,
    transform: Transform,
    work_size: usize,
    /// On each stream that it was executed on.
    after: Vec<After>,
    /// When it was put back.
    used: u64,
    /// A graph has captured work with it.
    stays: bool,
}

struct Lent {
    kept: Kept,
    work: Address,
    stream: Stream,
    /// The stream's, to know whether it is there still.
    serial: Option<u64>,
}

/// Of a device.
struct Cache {
    most: i64,
    /// The time of the newest.
    now: u64,
    idle: HashMap<Transform, Vec<Kept>>,
    /// Those of `idle` that may go, by when they were put back.
    order: BTreeMap<u64, Transform>,
    lent: HashMap<Plan, Lent>,
}

static CACHES: Mutex<BTreeMap<i32, Cache>> = Mutex::new(BTreeMap::new());

fn with_cache<T>(device: i32, work: impl FnOnce(&mut Cache) -> T) -> T {
    let new = || Cache { most: MOST, now: 0, idle: HashMap::new(), order: BTreeMap::new(), lent: HashMap::new() };
    work(CACHES.lock().entry(device).or_insert_with(new))
}

impl Cache {
    fn count(&self) -> usize {
        self.lent.len() + self.idle.values().map(Vec::len).sum::<usize>()
    }

    fn take(&mut self, transform: &Transform) -> Option<Kept> {
        let kept = self.idle.get_mut(transform)?.pop()?;
        if self.idle[transform].is_empty() {
            self.idle.remove(transform);
        }
        self.order.remove(&kept.used);
        Some(kept)
    }

    fn put(&mut self, mut kept: Kept) {
        self.now += 1;
        kept.used = self.now;
        if !kept.stays {
            self.order.insert(self.now, kept.transform);
        }
        self.idle.entry(kept.transform).or_default().push(kept);
    }

    /// Those that are too many if there may be so many: used longest ago.
    fn shrink(&mut self, most: i64) -> Vec<Kept> {
        let too_many = self.count().saturating_sub(usize::try_from(most).unwrap_or(0));
        let mut gone = Vec::new();
        while gone.len() < too_many
            && let Some((used, transform)) = self.order.pop_first()
        {
            let plans = self.idle.get_mut(&transform).into_iter().flat_map(|plans| {
                let at = plans.iter().position(|kept| kept.used == used);
                at.map(|at| plans.remove(at))
            });
            gone.extend(plans.collect::<Vec<_>>());
            if self.idle.get(&transform).is_some_and(Vec::is_empty) {
                self.idle.remove(&transform);
            }
        }
        gone
    }
}

fn check(transform: &Transform) -> Result<()> {
    const KINDS: [i32; 6] = [0x29, 0x2a, 0x2c, 0x69, 0x6a, 0x6c];
    let refuse = |text: String| Err(Error::invalid_argument(text));
    if !KINDS.contains(&transform.kind) {
        return refuse(format!("'transform.kind' is {:#x}; TCUDA_CUFFT_C2C and the like are its values.", transform.kind));
    }
    if !(1..=3).contains(&transform.rank) {
        return refuse(format!("'transform.rank' is {}; a transform has 1, 2 or 3 dimensions.", transform.rank));
    }
    if transform.batch < 1 || transform.n[..transform.rank].iter().any(|n| *n < 1) {
        return refuse(format!(
            "'transform' is of {:?} elements in batches of {}; none of these may be below 1.",
            &transform.n[..transform.rank],
            transform.batch
        ));
    }
    for (name, layout) in [("input", &transform.input), ("output", &transform.output)] {
        let packed = layout.embed == [0; 3];
        if layout.stride < 0 || layout.distance < 0 || (!packed && layout.embed[..transform.rank].iter().any(|extent| *extent < 1)) {
            return refuse(format!("'transform.{name}_...' is {layout:?}; extents are above 0 (all 0: packed), steps are not below 0."));
        }
    }
    Ok(())
}

/// A plan for work on the stream, of nobody else until `put`.
pub fn get(transform: &Transform, stream: Stream) -> Result<Plan> {
    check(transform)?;
    let runtime = runtime::runtime()?;
    let fft = libraries::fft(runtime)?;
    // What a graph got it may do again at any time, also one that the program captures by CUDA itself.
    let captured = is_captured(stream)?;
    let _guard = device::Guard::new(stream.device)?;
    let (kept, gone) = with_cache(stream.device, |cache| match cache.take(transform) {
        Some(kept) => (Some(kept), Vec::new()),
        None => (None, cache.shrink(cache.most.saturating_sub(1))),
    });
    destroy(stream.device, gone);
    let mut kept = match kept {
        Some(kept) => kept,
        None => {
            let make = || with_memory(stream.device, || runtime.outside_capture(|| fft.make(transform)));
            let (plan, work_size) = make().map_err(|error| error.on_device(stream.device))?;
            Kept { plan, transform: *transform, work_size, after: Vec::new(), used: 0, stays: false }
        }
    };
    let (plan, serial) = (kept.plan, stream::serial(stream));
    let mut work = 0;
    let mut furnish = || {
        fft.set_stream(plan, stream.raw)?;
        work = memory::allocate(kept.work_size, 1, stream)?;
        if work != 0 { fft.set_work_area(plan, work) } else { Ok(()) }
    };
    if let Err(error) = furnish() {
        // The first error is the one to tell.
        let _ = memory::free(work);
        keep(stream.device, kept);
        return Err(error);
    }
    kept.stays |= captured;
    with_cache(stream.device, |cache| cache.lent.insert(plan, Lent { kept, work, stream, serial }));
    Ok(plan)
}

/// All that it was executed for has been enqueued.
pub fn put(plan: Plan) -> Result<()> {
    let lent = CACHES.lock().values_mut().find_map(|cache| cache.lent.remove(&plan));
    let Some(Lent { mut kept, work, stream, serial }) = lent else {
        let text = format!("{plan} is no plan that is in use, or it was put back before. tcuda_cufft_plan_cache_get gives one.");
        return Err(Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text));
    };
    kept.after.retain(|after| !after.is_over());
    // What is gone can be neither asked nor marked.
    if stream::serial(stream) != serial {
        kept.after.push(After::Device);
    } else {
        let _steady = captures::steady();
        if is_captured(stream).unwrap_or(true) {
            kept.stays = true;
        } else {
            kept.after.push(mark(stream).map_or(After::Device, After::Event));
        }
    }
    keep(stream.device, kept);
    memory::free(work)
}

fn mark(stream: Stream) -> Result<Pooled> {
    let event = Pooled::take(stream.device)?;
    event::record(event.raw(), stream)?;
    Ok(event)
}

impl After {
    fn is_over(&self) -> bool {
        let After::Event(event) = self else { return false };
        let query = || watch::unseen(|| event::query(event.raw()));
        runtime::runtime().and_then(|runtime| runtime.outside_capture(query)).unwrap_or(false)
    }
}

fn keep(device: i32, kept: Kept) {
    let gone = with_cache(device, |cache| {
        cache.put(kept);
        cache.shrink(cache.most)
    });
    destroy(device, gone);
}

fn destroy(device: i32, plans: Vec<Kept>) {
    let Ok(runtime) = runtime::runtime() else { return };
    for kept in plans {
        let over = device::Guard::new(device).and_then(|_guard| runtime.outside_capture(|| kept.wait(runtime, device)));
        match over {
            // Another time, unless its device is lost, and it as well.
            Err(error) if !device::is_lost(device, &error) => with_cache(device, |cache| cache.put(kept)),
            Err(_) => {}
            Ok(()) => {
                let end = || libraries::fft(runtime)?.destroy(kept.plan);
                let _ = device::Guard::new(device).and_then(|_guard| runtime.outside_capture(|| insist(end)));
            }
        }
    }
}

impl Kept {
    fn wait(&self, runtime: &Runtime, device: i32) -> Result<()> {
        for after in &self.after {
            match after {
                After::Event(event) => runtime.event_synchronize(event.raw())?,
                After::Device => watch::unseen(|| captures::wait_for_device(device))?,
            }
        }
        Ok(())
    }
}

pub fn size(device: i32) -> Result<i64> {
    let device = device::index(device)?;
    Ok(with_cache(device, |cache| cache.count()) as i64)
}

pub fn max_size(device: i32) -> Result<i64> {
    let device = device::index(device)?;
    Ok(with_cache(device, |cache| cache.most))
}

pub fn set_max_size(most: i64, device: i32) -> Result<()> {
    let device = device::index(device)?;
    if most < 0 {
        return Err(Error::invalid_argument(format!("'max_size' is {most}. A cache holds no fewer than 0 plans.")));
    }
    let gone = with_cache(device, |cache| {
        cache.most = most;
        cache.shrink(most)
    });
    destroy(device, gone);
    Ok(())
}

/// Destroys those that nobody has and no graph uses.
pub fn clear(device: i32) -> Result<()> {
    let device = device::index(device)?;
    let gone = with_cache(device, |cache| cache.shrink(0));
    destroy(device, gone);
    Ok(())
}

pub fn library() -> Result<String> {
    Ok(libraries::fft(runtime::runtime()?)?.file.display().to_string())
}

pub(super) fn shutdown() {
    let caches = std::mem::take(&mut *CACHES.lock());
    for (device, cache) in caches {
        let lent = cache.lent.into_values().map(|lent| lent.kept);
        // All was waited for.
        let all = cache.idle.into_values().flatten().chain(lent).map(|kept| Kept { after: Vec::new(), ..kept });
        destroy(device, all.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::libraries::Layout;

    fn transform(n: i64) -> Transform {
        let packed = Layout { embed: [0; 3], stride: 1, distance: n };
        Transform { kind: 0x29, rank: 1, n: [n, 0, 0], batch: 1, input: packed, output: packed }
    }

    fn kept(plan: Plan, n: i64) -> Kept {
        Kept { plan, transform: transform(n), work_size: 0, after: Vec::new(), used: 0, stays: false }
    }

    #[test]
    fn the_one_that_was_used_longest_ago_goes_first_and_captured_ones_stay() {
        let mut cache = Cache { most: 3, now: 0, idle: HashMap::new(), order: BTreeMap::new(), lent: HashMap::new() };
        (1..=4).for_each(|plan| cache.put(Kept { stays: plan == 2, ..kept(plan, i64::from(plan) % 3) }));
        // 1 and 4 are of the same transform.
        assert_eq!(cache.count(), 4);
        assert_eq!(cache.take(&transform(1)).unwrap().plan, 4);
        cache.put(kept(4, 1));
        assert_eq!(cache.shrink(3).iter().map(|kept| kept.plan).collect::<Vec<_>>(), [1]);
        assert_eq!(cache.shrink(3).len(), 0);
        assert_eq!(cache.shrink(0).iter().map(|kept| kept.plan).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((cache.count(), cache.order.len()), (1, 0));
        assert!(cache.take(&transform(1)).is_none());
        assert_eq!(cache.take(&transform(2)).unwrap().plan, 2);
        assert!(cache.idle.is_empty());
    }

    #[test]
    fn what_is_no_transform_is_named() {
        assert!(check(&transform(8)).is_ok());
        let strided = Layout { embed: [8, 0, 0], stride: 2, distance: 16 };
        assert!(check(&Transform { input: strided, ..transform(8) }).is_ok());
        let wrong = [
            (Transform { kind: 1, ..transform(8) }, "kind"),
            (Transform { rank: 0, ..transform(8) }, "rank"),
            (Transform { rank: 4, ..transform(8) }, "rank"),
            (Transform { rank: 2, ..transform(8) }, "elements"),
            (Transform { batch: 0, ..transform(8) }, "batches of 0"),
            (Transform { output: Layout { stride: -1, ..strided }, ..transform(8) }, "output"),
            (Transform { input: Layout { embed: [-8, 0, 0], ..strided }, ..transform(8) }, "input"),
        ];
        for (transform, word) in wrong {
            let message = check(&transform).unwrap_err().message;
            assert!(message.contains(word), "{message}");
        }
    }
}
