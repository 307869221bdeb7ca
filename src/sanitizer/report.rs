//! Reports: what was found, both sides of it, as a text and as JSON; and where they go.

use crate::base::watch::{self, Place};
use crate::base::{annotation, log};
use crate::stream::{self, Stream};
use parking_lot::{Mutex, RwLock};
use std::fmt::Write;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Kind {
    /// Two accesses of which one writes, and neither is known to come first.
    Race = 1,
    /// Memory that was freed before.
    UseAfterFree = 2,
    /// Freed while a stream may still use it that was not recorded.
    FreeInUse = 3,
    /// Waits for an event that was never recorded, which waits for nothing.
    EventNeverRecorded = 4,
    /// A graph's replay uses memory that was freed after its capture, and may be another block's by now.
    StaleGraph = 5,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Race => "race",
            Kind::UseAfterFree => "use-after-free",
            Kind::FreeInUse => "free-in-use",
            Kind::EventNeverRecorded => "event-never-recorded",
            Kind::StaleGraph => "stale-graph",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Does {
    Read,
    Write,
    Allocate,
    Free,
    Wait,
}

impl Does {
    fn text(self) -> &'static str {
        match self {
            Does::Read => "read",
            Does::Write => "write",
            Does::Allocate => "allocation",
            Does::Free => "free",
            Does::Wait => "wait",
        }
    }
}

/// One thing that was done: what a report names of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Side {
    pub does: Does,
    /// The C function, or the name that the program gave.
    pub call: &'static str,
    /// None: the host.
    pub on: Option<Place>,
    pub annotation: u32,
    pub sequence: u64,
    /// What it touched, or an event.
    pub address: usize,
    pub size: usize,
}

#[derive(Clone, Debug)]
pub struct Report {
    pub kind: Kind,
    pub current: Side,
    pub previous: Option<Side>,
    /// Of the block that is concerned.
    pub allocated: Option<Side>,
}

fn place(on: Option<Place>) -> String {
    match on {
        None => "the host".into(),
        Some(Place { device, raw: stream::DEFAULT }) => format!("the default stream of device {device}"),
        Some(Place { device, raw: stream::PER_THREAD }) => format!("a thread's default stream of device {device}"),
        Some(Place { device, raw }) => format!("stream {raw:#x} of device {device}"),
    }
}

fn side(side: &Side) -> String {
    let Side { does, call, on, sequence, address, size, .. } = *side;
    let what = match does {
        Does::Wait => format!("of the event {address:#x}"),
        _ => format!("of {size} bytes at {address:#x}"),
    };
    let note = match annotation::text(side.annotation) {
        "" => String::new(),
        text => format!(", in '{text}'"),
    };
    format!("{} {what} by {call} on {} (number {sequence}{note})", does.text(), place(on))
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn side_json(side: &Side) -> String {
    let on = match side.on {
        None => "\"device\":-1,\"stream\":\"host\"".into(),
        Some(Place { device, raw }) => format!("\"device\":{device},\"stream\":\"{:#x}\"", stream::handle_of(Stream { device, raw })),
    };
    format!(
        "{{\"does\":{},\"call\":{},{on},\"annotation\":{},\"sequence\":{},\"address\":\"{:#x}\",\"size\":{}}}",
        quoted(side.does.text()),
        quoted(side.call),
        quoted(annotation::text(side.annotation)),
        side.sequence,
        side.address,
        side.size
    )
}

impl Report {
    pub fn text(&self) -> String {
        let Report { kind, current, previous, allocated } = self;
        let what = match kind {
            Kind::Race => "Race: neither of two accesses is known to come first. An event or a wait is missing between",
            Kind::UseAfterFree => "Use after free:",
            Kind::FreeInUse => {
                "Freed while it may be in use: the block's stream is not known to be past another one's access, which \
                 tcuda_record_stream would tell, or a wait. At the"
            }
            Kind::EventNeverRecorded => "An event that was never recorded holds nothing up:",
            Kind::StaleGraph => "A graph's replay uses memory that was freed since its capture, and may be another block's:",
        };
        let mut text = format!("{what} {}", side(current));
        if let Some(previous) = previous {
            let between = if *kind == Kind::Race { " and the" } else { "; before it the" };
            text += &format!("{between} {}", side(previous));
        }
        if let Some(allocated) = allocated {
            let of_another_block =
                matches!(kind, Kind::Race | Kind::FreeInUse) && previous.is_some_and(|it| it.sequence < allocated.sequence);
            let block = match of_another_block {
                true => "The block was given this memory later, behind that access, and other streams have to wait for the block's own",
                false => "The block",
            };
            text += &format!(". {block}: {}", side(allocated));
        }
        text + "."
    }

    pub fn json(&self) -> String {
        let optional = |side: &Option<Side>| side.as_ref().map_or("null".into(), side_json);
        format!(
            "{{\"kind\":{},\"current\":{},\"previous\":{},\"allocation\":{},\"text\":{}}}",
            quoted(self.kind.name()),
            side_json(&self.current),
            optional(&self.previous),
            optional(&self.allocated),
            quoted(&self.text())
        )
    }
}

/// More are counted and not kept.
pub const MOST: usize = 1000;

struct Found {
    count: u64,
    kept: Vec<Arc<Report>>,
}

static FOUND: Mutex<Found> = Mutex::new(Found { count: 0, kept: Vec::new() });

pub type Function = Arc<dyn Fn(&Report) + Send + Sync>;

static FUNCTION: RwLock<Option<Function>> = RwLock::new(None);

pub(super) fn is_locked() -> bool {
    FOUND.is_locked() || FUNCTION.is_locked()
}

/// None: the log is told.
pub fn set_function(function: Option<Function>) {
    *FUNCTION.write() = function;
}

/// It is kept at once, and the program is told when its call of tcuda returns.
pub fn add(report: Report) {
    let report = Arc::new(report);
    {
        let mut found = FOUND.lock();
        found.count += 1;
        if found.kept.len() < MOST {
            found.kept.push(report.clone());
        }
    }
    watch::later(move || {
        let function = FUNCTION.read().clone();
        match function {
            Some(function) => function(&report),
            None => log::write(log::Level::Error, &report.text()),
        }
    });
}

pub fn count() -> u64 {
    FOUND.lock().count
}

/// The first ones by number.
pub fn get(index: u64) -> Option<Arc<Report>> {
    FOUND.lock().kept.get(usize::try_from(index).ok()?).cloned()
}

pub fn clear() {
    let kept = {
        let mut found = FOUND.lock();
        found.count = 0;
        std::mem::take(&mut found.kept)
    };
    drop(kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_side(does: Does, on: Option<Place>) -> Side {
        Side { does, call: "tcuda_copy_async", on, annotation: annotation::NONE, sequence: 7, address: 0x1000, size: 64 }
    }

    #[test]
    fn texts_name_both_sides() {
        let note = annotation::number_of("layer \"3\"\n").unwrap();
        let current = Side { annotation: note, ..a_side(Does::Write, Some(Place { device: 1, raw: 0x5550 })) };
        let report = Report { kind: Kind::Race, current, previous: Some(a_side(Does::Read, None)), allocated: None };
        let text = report.text();
        for part in
            ["Race", "write of 64 bytes at 0x1000 by tcuda_copy_async on stream 0x5550 of device 1 (number 7, in 'layer", "on the host"]
        {
            assert!(text.contains(part), "{text}");
        }
        let json = report.json();
        for part in ["\"kind\":\"race\"", "\"annotation\":\"layer \\\"3\\\"\\u000a\"", "\"stream\":\"host\"", "\"allocation\":null"] {
            assert!(json.contains(part), "{json}");
        }
        let defaults = [0, 2].map(|raw| place(Some(Place { device: 3, raw })));
        assert_eq!(defaults, ["the default stream of device 3", "a thread's default stream of device 3"]);
    }
}
