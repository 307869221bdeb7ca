//! Options of the caches: `TCUDA_ALLOC_CONF`, `key:value,key:value`, parsed strictly. One table of keys makes the struct, the
//! parser, the text in effect and the list of the documentation.

use crate::base::{Error, Result, config, log};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

pub const VARIABLE: &str = "TCUDA_ALLOC_CONF";

/// A key as the parser and the documentation see it.
pub struct Key {
    pub name: &'static str,
    /// What a value can be.
    pub values: &'static str,
    pub meaning: &'static str,
    /// False: this is no value of the key.
    set: fn(&mut Options, &str) -> bool,
    show: fn(&Options) -> String,
}

impl Key {
    pub fn default(&self) -> String {
        (self.show)(&Options::default())
    }
}

macro_rules! keys {
    ($($name:ident: $kind:ty = $default:expr, $parse:expr, $values:literal, $meaning:literal;)*) => {
        #[derive(Clone, PartialEq, Debug)]
        pub struct Options {
            $(#[doc = $meaning] pub $name: $kind,)*
        }

        impl Default for Options {
            fn default() -> Options {
                Options { $($name: $default),* }
            }
        }

        pub const KEYS: &[Key] = &[$(Key {
            name: stringify!($name),
            values: $values,
            meaning: $meaning,
            set: |options, text| {
                let parse: fn(&str) -> Option<$kind> = $parse;
                parse(text).map(|value| options.$name = value).is_some()
            },
            show: |options| options.$name.show(),
        },)*];
    };
}

keys! {
    backend: Backend = Backend::Native, |text| word(text, &[Backend::Native, Backend::CudaMallocAsync]),
        "native or cudaMallocAsync", "the own cache, or one call of cudaMallocAsync and cudaFreeAsync for each block";
    expandable_segments: bool = true, flag,
        "True or False", "virtual memory; False: plain segments, one cudaMalloc each";
    large_segment_size_mb: usize = 20, |text| number(text, 11, 4096),
        "a whole number from 11 to 4096", "size of a plain segment for blocks from 1 to 10 MiB";
    per_process_memory_fraction: Fractions = Fractions::NotNamed, Fractions::parse,
        "a number from 0 to 1, or [device:number,device:number]", "the limit, as a share of the device's memory; not named, a limit that a call set stays";
    pinned_limit_mb: PinnedLimit = PinnedLimit::NotNamed, PinnedLimit::parse,
        "none, or a number", "the limit of pinned host memory; not named, a limit that a call set stays";
    pinned_max_cached_size_mb: Option<usize> = None, optional,
        "none, or a whole number", "larger pinned segments are not kept: they go back at the next allocation that needs more than its thread keeps";
    pinned_num_register_threads: usize = 1, |text| number(text, 1, 128).filter(|threads| threads.is_power_of_two()),
        "a power of two from 1 to 128", "threads that touch pages before they are registered";
    pinned_numa_node: Node = Node::Device, node,
        "device, any or a node's number", "where pinned memory lies on a machine with several NUMA nodes: at the current device, anywhere, or on that node";
    pinned_reserve_segment_size_mb: usize = 0, |text| number(text, 0, usize::MAX >> 20),
        "a whole number", "pinned memory that is taken in one piece at the first need";
    pinned_use_cuda_host_register: bool = false, flag,
        "True or False", "pinned memory is pages of the kernel that are registered, instead of cudaHostAlloc's";
    slack: f64 = 0.035, |text| share(text),
        "a number from 0 to 1", "how much more than was ever in use may be held before free memory is mapped a second time instead";
    stream_wait: StreamWait = StreamWait::AtLimit, |text| word(text, &[StreamWait::Never, StreamWait::AtLimit, StreamWait::AtBudget]),
        "never, at_limit or at_budget", "when a stream is made to wait for free memory of others: before it would fail, or before more than the slack would be held";
    throw_on_cudamalloc_oom: bool = false, flag,
        "True or False", "an allocation that needs more than the limit fails at once, without waiting and without giving memory back";
    tight: bool = false, flag,
        "True or False", "memory counts as scarce whatever there is: a slack of half a per cent at most, and small handles";
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    Native,
    CudaMallocAsync,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamWait {
    Never,
    AtLimit,
    AtBudget,
}

/// Where pinned memory lies, where there is a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Node {
    /// At the device that is current when it is allocated.
    Device,
    Any,
    Given(u32),
}

/// The limits of the devices.
#[derive(Clone, PartialEq, Debug)]
pub enum Fractions {
    /// The text leaves them as they are.
    NotNamed,
    All(f64),
    /// By device; those that are not there it leaves as they are.
    Each(Arc<[(usize, f64)]>),
}

impl Fractions {
    fn parse(text: &str) -> Option<Fractions> {
        let Some(list) = bracketed(text) else { return share(text).map(Fractions::All) };
        let mut each: Vec<(usize, f64)> = Vec::new();
        for (device, fraction) in list {
            let device = number(device, 0, i32::MAX as usize).filter(|device| each.iter().all(|(known, _)| known != device))?;
            each.push((device, share(fraction)?));
        }
        Some(Fractions::Each(each.into()))
    }

    /// Of each device in turn.
    pub fn of_devices(fractions: &[f64]) -> Fractions {
        match fractions {
            [first, others @ ..] if others.iter().all(|other| other == first) => Fractions::All(*first),
            _ => Fractions::Each(fractions.iter().copied().enumerate().collect()),
        }
    }

    pub fn of(&self, device: i32) -> Option<f64> {
        match self {
            Fractions::NotNamed => None,
            Fractions::All(fraction) => Some(*fraction),
            Fractions::Each(each) => each.iter().find(|(known, _)| *known == device as usize).map(|(_, fraction)| *fraction),
        }
    }
}

/// The limit of pinned host memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PinnedLimit {
    /// The text leaves it as it is.
    NotNamed,
    None,
    /// With decimals where a call set it: they are exact.
    Megabytes(f64),
}

impl PinnedLimit {
    fn parse(text: &str) -> Option<PinnedLimit> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number = || text.parse().ok().filter(|_| digits).map(PinnedLimit::Megabytes);
        if text == "none" { Some(PinnedLimit::None) } else { number() }
    }

    pub fn of(bytes: Option<usize>) -> PinnedLimit {
        bytes.map_or(PinnedLimit::None, |bytes| PinnedLimit::Megabytes(bytes as f64 / f64::from(1 << 20)))
    }

    pub fn bytes(self) -> Option<usize> {
        match self {
            PinnedLimit::Megabytes(megabytes) => Some((megabytes * f64::from(1 << 20)).round() as usize),
            PinnedLimit::NotNamed | PinnedLimit::None => None,
        }
    }
}

/// A value as the text in effect has it.
trait Value {
    fn show(&self) -> String;
}

impl Value for Backend {
    fn show(&self) -> String {
        match self {
            Backend::Native => "native".into(),
            Backend::CudaMallocAsync => "cudaMallocAsync".into(),
        }
    }
}

impl Value for StreamWait {
    fn show(&self) -> String {
        let word = match self {
            StreamWait::Never => "never",
            StreamWait::AtLimit => "at_limit",
            StreamWait::AtBudget => "at_budget",
        };
        word.into()
    }
}

impl Value for Node {
    fn show(&self) -> String {
        match self {
            Node::Device => "device".into(),
            Node::Any => "any".into(),
            Node::Given(node) => node.to_string(),
        }
    }
}

impl Value for PinnedLimit {
    fn show(&self) -> String {
        match self {
            PinnedLimit::Megabytes(megabytes) => megabytes.to_string(),
            PinnedLimit::NotNamed | PinnedLimit::None => "none".into(),
        }
    }
}

impl Value for Fractions {
    fn show(&self) -> String {
        match self {
            Fractions::NotNamed => 1.0.show(),
            Fractions::All(fraction) => fraction.show(),
            Fractions::Each(each) => {
                let each = each.iter().map(|(device, fraction)| format!("{device}:{}", fraction.show()));
                format!("[{}]", each.collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl Value for Option<usize> {
    fn show(&self) -> String {
        self.map_or("none".into(), |number| number.to_string())
    }
}

impl Value for bool {
    fn show(&self) -> String {
        if *self { "True".into() } else { "False".into() }
    }
}

impl Value for usize {
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for f64 {
    fn show(&self) -> String {
        format!("{self:?}")
    }
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "True" | "true" | "1" => Some(true),
        "False" | "false" | "0" => Some(false),
        _ => None,
    }
}

fn number(text: &str, least: usize, most: usize) -> Option<usize> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && (least..=most).contains(number))
}

fn optional(text: &str) -> Option<Option<usize>> {
    if text == "none" { Some(None) } else { number(text, 0, usize::MAX).map(Some) }
}

fn node(text: &str) -> Option<Node> {
    const MOST: usize = 1023;
    word(text, &[Node::Device, Node::Any]).or_else(|| number(text, 0, MOST).map(|node| Node::Given(node as u32)))
}

fn share(text: &str) -> Option<f64> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share))
}

/// torch's lists: `[name:value,name:value]`. What is no pair has no value.
fn bracketed(text: &str) -> Option<impl Iterator<Item = (&str, &str)>> {
    let list = text.strip_prefix('[')?.strip_suffix(']')?;
    Some(list.split(',').map(|entry| entry.split_once(':').map_or((entry, ""), |(name, value)| (name.trim(), value.trim()))))
}

/// One of a few words, as they are shown.
fn word<T: Value + Copy>(text: &str, words: &[T]) -> Option<T> {
    words.iter().find(|word| word.show() == text).copied()
}

/// A key of torch's that would change nothing here. Its value is checked, so that a text of torch can be used as it is; that it has no
/// effect is said in the log.
pub struct WithoutEffect {
    pub name: &'static str,
    pub why: &'static str,
    accepts: fn(&str) -> bool,
}

const ANY_PART_SPLITS: &str = "a block of any size may be split: what is left joins its neighbours again";

const fn without_effect(name: &'static str, accepts: fn(&str) -> bool, why: &'static str) -> WithoutEffect {
    WithoutEffect { name, why, accepts }
}

pub const WITHOUT_EFFECT: &[WithoutEffect] = &[
    without_effect("max_split_size_mb", is_number, ANY_PART_SPLITS),
    without_effect("max_non_split_rounding_mb", is_number, ANY_PART_SPLITS),
    without_effect("roundup_power2_divisions", is_divisions, "sizes need not be alike: parts of free memory fit any size"),
    without_effect(
        "garbage_collection_threshold",
        |text| share(text).is_some_and(|share| share > 0.0 && share < 1.0),
        "free memory goes back when the limit or the device has no more",
    ),
    without_effect("expandable_segments_reserve", is_reserve, "addresses are reserved as they are needed"),
    without_effect("expandable_segments_reserve_by_class", is_reserve_by_class, "addresses are reserved as they are needed"),
    without_effect("release_lock_on_cudamalloc", is_flag, "no thread that finds free memory waits for the driver in any case"),
    without_effect("graph_capture_record_stream_reuse", is_flag, "blocks that other streams of a capture used wait for its end"),
    without_effect(
        "pinned_use_background_threads",
        is_flag,
        "what streams are past is found out when memory is wanted, and held up by nothing",
    ),
    without_effect("pinned_max_round_threshold_mb", is_number, "sizes are rounded to pages, not to powers of two"),
    without_effect("pinned_free_catch_all", is_flag, "pinned memory that the driver does not take back is kept"),
];

fn is_flag(text: &str) -> bool {
    flag(text).is_some()
}

fn is_number(text: &str) -> bool {
    number(text, 0, usize::MAX).is_some()
}

/// A share, or gibibytes as `80G`.
fn is_reserve(text: &str) -> bool {
    text.strip_suffix('G').unwrap_or(text).parse().is_ok_and(|reserve: f64| reserve > 0.0 && reserve.is_finite())
}

/// torch's list `[name:0.5,name:80G]` of classes of streams.
fn is_reserve_by_class(text: &str) -> bool {
    bracketed(text).is_some_and(|mut list| list.all(|(name, reserve)| !name.is_empty() && is_reserve(reserve)))
}

/// A power of two, or torch's list `[256:1,512:2,>:4]` of mebibytes and powers of two.
fn is_divisions(text: &str) -> bool {
    let power = |text: &str, least| number(text, least, usize::MAX).is_some_and(|number| number == 0 || number.is_power_of_two());
    let Some(mut list) = bracketed(text) else { return power(text, 1) };
    list.all(|(size, parts)| (size == ">" || power(size, 1)) && power(parts, 0))
}

static IN_EFFECT: RwLock<Option<Options>> = RwLock::new(None);

/// What of them is asked whenever a thread has nothing at hand, without a lock.
static FRONTS: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

pub(super) fn is_locked() -> bool {
    IN_EFFECT.is_locked()
}

/// Whether threads may keep memory to themselves, as far as options go: not plain segments, whose inactive splits are counted exactly, nor
/// what the driver's own pool gives.
pub fn allow_fronts() -> bool {
    if FRONTS.load(Relaxed) == UNKNOWN {
        get();
    }
    FRONTS.load(Relaxed) == YES
}

/// The options in effect. The text is read once; tcuda_init and tcuda_set_alloc_conf refuse a wrong one, a wrong one in the environment
/// is reported and ignored as a whole. The first call of all, and after a reset, writes to the log: no lock may be held then.
pub fn get() -> Options {
    let known = IN_EFFECT.read().clone();
    known.unwrap_or_else(|| settle(false))
}

/// Reads them anew. No lock may be held.
pub fn reload() -> Options {
    settle(true)
}

fn settle(anew: bool) -> Options {
    let (read, notices) = match config::get(VARIABLE).map_or(Ok(Default::default()), |text| read(&text)) {
        Ok(read) => read,
        Err(error) => (Options::default(), vec![format!("{error} The defaults are in effect.")]),
    };
    let (options, is_new) = {
        let mut in_effect = IN_EFFECT.write();
        let is_new = anew || in_effect.is_none();
        if is_new {
            let allow = read.expandable_segments && read.backend == Backend::Native;
            FRONTS.store(if allow { YES } else { NO }, Relaxed);
            *in_effect = Some(read.clone());
        }
        (in_effect.clone().unwrap_or(read), is_new)
    };
    // They hold by now: who hears it may call tcuda.
    if is_new {
        notices.iter().for_each(|notice| log::warn(notice));
    }
    options
}

/// Forgets what was read, so that the next use reads again.
pub fn reset() {
    let mut in_effect = IN_EFFECT.write();
    FRONTS.store(UNKNOWN, Relaxed);
    *in_effect = None;
}

/// The options as a text that gives them again: every key, in the order of the table.
pub fn show(options: &Options) -> String {
    KEYS.iter().map(|key| format!("{}:{}", key.name, (key.show)(options))).collect::<Vec<_>>().join(",")
}

pub fn parse(text: &str) -> Result<Options> {
    read(text).map(|(options, _)| options)
}

/// The options, and what is to be said about keys without effect.
fn read(text: &str) -> Result<(Options, Vec<String>)> {
    let mut options = Options::default();
    let mut notices = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    if text.trim().is_empty() {
        return Ok((options, notices));
    }
    for part in parts(text) {
        let wrong = |at: &str, what: String| {
            let before = text.len().min(at.as_ptr() as usize - text.as_ptr() as usize);
            let place = text[..before].chars().count() + 1;
            Err(Error::invalid_argument(format!("{VARIABLE} '{text}', at character {place}: {what}")))
        };
        let Some((key, value)) = part.split_once(':').map(|(key, value)| (key.trim(), value.trim())) else {
            let part = if part.trim().is_empty() { part } else { part.trim() };
            return wrong(part, format!("'{part}' is no key:value pair."));
        };
        if seen.contains(&key) {
            return wrong(key, format!("the key '{key}' is there twice."));
        }
        seen.push(key);
        if let Some(known) = KEYS.iter().find(|known| known.name == key) {
            if !(known.set)(&mut options, value) {
                return wrong(value, format!("{key} is '{value}'; it can be {}.", known.values));
            }
        } else if let Some(known) = WITHOUT_EFFECT.iter().find(|known| known.name == key) {
            if !(known.accepts)(value) {
                return wrong(value, format!("{key} is '{value}', which is no value of it (and it has no effect here: {}).", known.why));
            }
            notices.push(format!("{VARIABLE}: {key} has no effect: {}.", known.why));
        } else {
            return wrong(key, unknown(key));
        }
    }
    Ok((options, notices))
}

/// The text between commas; a list in brackets is not taken apart.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth <= 0
    })
}

fn unknown(key: &str) -> String {
    let names = || KEYS.iter().map(|known| known.name).chain(WITHOUT_EFFECT.iter().map(|known| known.name));
    let near = names().map(|name| (distance(&key.to_lowercase(), name), name)).min().filter(|(steps, name)| *steps <= name.len() / 3);
    match near {
        Some((_, name)) => format!("the key '{key}' is unknown. Did you mean {name}?"),
        None => {
            format!("the key '{key}' is unknown; known are {}.", KEYS.iter().map(|known| known.name).collect::<Vec<_>>().join(", "))
        }
    }
}

/// How many letters have to be put in, left out or changed to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.chars().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_texts() {
        for text in ["", "  "] {
            assert_eq!(parse(text).unwrap(), Options::default());
        }
        let both = parse("expandable_segments:False, per_process_memory_fraction : 0.5").unwrap();
        assert_eq!(both, Options { expandable_segments: false, per_process_memory_fraction: Fractions::All(0.5), ..Options::default() });
        assert_eq!(parse("large_segment_size_mb:64").unwrap().large_segment_size_mb, 64);
    }

    #[test]
    fn every_key_is_shown_as_it_is_read() {
        let options = parse("expandable_segments:0,per_process_memory_fraction:0.25,throw_on_cudamalloc_oom:1").unwrap();
        // What is shown names every key.
        let options = Options { pinned_limit_mb: PinnedLimit::None, ..options };
        assert_eq!(parse(&show(&options)).unwrap(), options);
        for key in KEYS {
            assert!(show(&Options::default()).contains(&format!("{}:{}", key.name, key.default())));
        }
    }

    #[test]
    fn fractions_are_for_all_devices_or_for_each() {
        let of = |text: &str| parse(&format!("per_process_memory_fraction:{text}")).map(|options| options.per_process_memory_fraction);
        let each = of("[0:0.5, 3 : 1]").unwrap();
        assert_eq!([0, 1, 3].map(|device| each.of(device)), [Some(0.5), None, Some(1.0)]);
        assert_eq!((each.show(), of(&each.show()).unwrap()), ("[0:0.5,3:1.0]".into(), each));
        assert_eq!((of("0.5").unwrap().of(7), Fractions::NotNamed.of(0)), (Some(0.5), None));
        assert_eq!([&[0.25][..], &[0.5, 0.5], &[0.5, 1.0]].map(|all| Fractions::of_devices(all).show()), ["0.25", "0.5", "[0:0.5,1:1.0]"]);
        for wrong in ["[]", "[0.5]", "[0:]", "[0:0.5", "[-1:0.5]", "[0:1.5]", "[0:0.5,]", "[0:0.5,0:0.5]", "[a:0.5]"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_limit_of_pinned_memory_is_shown_to_the_byte() {
        for bytes in [None, Some(0), Some(1), Some(3 << 20), Some((5 << 30) + 4096), Some((1 << 45) - 1)] {
            let options = Options { pinned_limit_mb: PinnedLimit::of(bytes), ..Options::default() };
            assert_eq!(parse(&show(&options)).unwrap().pinned_limit_mb.bytes(), bytes);
        }
        assert_eq!(PinnedLimit::of(Some(3 << 20)).show(), "3");
        for wrong in ["", "-3", "+3", "1e3", "inf", ".", "1.2.3", "None"] {
            assert!(parse(&format!("pinned_limit_mb:{wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_of_torch_without_effect_are_checked_and_told() {
        let text = "max_split_size_mb:512,roundup_power2_divisions:[256:1, 512:2,1024:4,>:8],garbage_collection_threshold:0.8";
        let (options, notices) = read(text).unwrap();
        assert_eq!(options, Options::default());
        assert_eq!(notices.len(), 3);
        assert!(notices[0].contains("max_split_size_mb has no effect"), "{notices:?}");
        let by_class = "expandable_segments_reserve:80G,expandable_segments_reserve_by_class:[main:0.5, side : 2G],slack:0.5";
        let (options, notices) = read(by_class).unwrap();
        assert_eq!((options, notices.len()), (Options { slack: 0.5, ..Options::default() }, 2));
        for wrong in [
            "expandable_segments_reserve_by_class:0.5",
            "expandable_segments_reserve_by_class:[]",
            "expandable_segments_reserve_by_class:[main]",
            "expandable_segments_reserve_by_class:[:1]",
            "expandable_segments_reserve_by_class:[main:-1]",
            "max_split_size_mb:64abc",
            "max_split_size_mb:-1",
            "max_split_size_mb:+1",
            "roundup_power2_divisions:3",
            "roundup_power2_divisions:[256:3]",
            "roundup_power2_divisions:[256:2",
            "roundup_power2_divisions:[]",
            "garbage_collection_threshold:1",
            "garbage_collection_threshold:0",
            "expandable_segments_reserve:nan",
            "pinned_num_register_threads:256",
            "pinned_use_background_threads:yes",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wrong_texts_are_refused_with_the_place() {
        for (text, place) in [
            ("expandable_segments", "character 1: 'expandable_segments' is no key:value pair"),
            ("expandable_segments:maybe", "character 21: expandable_segments is 'maybe'; it can be True or False"),
            ("expandable_segments:true,x:1", "character 26: the key 'x' is unknown; known are backend, "),
            ("expandable_segments:true,", "character 26: '' is no"),
            ("expandable_segments:true,,", "character 26: '' is no"),
            ("expandable_segments:true, expandable_segments:true", "character 27: the key 'expandable_segments' is there twice"),
            ("per_process_memory_fraction:1.5", "character 29"),
            ("per_process_memory_fraction:nan", "character 29"),
            ("per_process_memory_fraction:", "character 29: per_process_memory_fraction is ''"),
            ("expandable_segments,true", "character 1"),
            ("expandable_segment:true", "Did you mean expandable_segments?"),
            ("Expandable_Segmets:true", "Did you mean expandable_segments?"),
            ("max_split_size:100", "Did you mean max_split_size_mb?"),
            ("größe:1,", "character 1: the key 'größe' is unknown; known"),
            ("backend:native,größe:1", "character 16"),
            ("backend:rmm", "character 9: backend is 'rmm'; it can be native or cudaMallocAsync"),
            ("large_segment_size_mb:10", "character 23"),
            (":", "character 1"),
            ("]:[", "unknown"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message.contains(place), "{error}");
        }
    }

    #[test]
    fn steps_between_words() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
