//! A page that shows a snapshot in any browser, with nothing to fetch: the template, and in it what it shows, in columns.

use super::{Entry, Snapshot, json};
use crate::memory::history::texts;
use std::collections::BTreeMap;
use std::io::{Result, Write};

const TEMPLATE: &str = include_str!("page.html");
const PLACE: &str = "/*DATA*/";

/// Numbers in the order of their first use, so that columns are short.
#[derive(Default)]
struct Names(BTreeMap<u64, usize>, Vec<u64>);

impl Names {
    fn of(&mut self, value: u64) -> usize {
        *self.0.entry(value).or_insert_with(|| {
            self.1.push(value);
            self.1.len() - 1
        })
    }
}

pub fn write(snapshot: &Snapshot, out: &mut dyn Write) -> Result<()> {
    let (head, tail) = TEMPLATE.split_once(PLACE).unwrap_or((TEMPLATE, ""));
    out.write_all(head.as_bytes())?;
    let (mut streams, mut notes) = (Names::default(), Names::default());
    notes.of(u64::from(texts::NONE));
    write!(out, "{{\"version\":\"{}\",\"devices\":[", env!("CARGO_PKG_VERSION"))?;
    for device in 0..snapshot.traces.len() {
        if device > 0 {
            out.write_all(b",")?;
        }
        write_device(snapshot, device, (&mut streams, &mut notes), out)?;
    }
    out.write_all(b"],\"streams\":")?;
    column(out, streams.1.iter())?;
    out.write_all(b",\"notes\":[")?;
    for (at, note) in notes.1.iter().enumerate() {
        if at > 0 {
            out.write_all(b",")?;
        }
        json::quote(out, texts::text(*note as u32))?;
    }
    out.write_all(b"]}")?;
    out.write_all(tail.as_bytes())
}

fn column<T: std::fmt::Display>(out: &mut dyn Write, values: impl Iterator<Item = T>) -> Result<()> {
    out.write_all(b"[")?;
    for (at, value) in values.enumerate() {
        if at > 0 {
            out.write_all(b",")?;
        }
        write!(out, "{value}")?;
    }
    out.write_all(b"]")
}

/// A device: what it holds, and its trace. Times are microseconds since the first entry.
fn write_device(snapshot: &Snapshot, device: usize, (streams, notes): (&mut Names, &mut Names), out: &mut dyn Write) -> Result<()> {
    let segments = || snapshot.segments.iter().filter(|segment| segment.device as usize == device);
    let blocks = || segments().flat_map(|segment| snapshot.blocks_of(segment));
    let trace = &snapshot.traces[device];
    let first = trace.entries.first().map_or(0, |entry| entry.time);
    write!(out, "\n{{\"began\":{first},\"lost\":{},\"segments\":{{\"address\":", trace.lost)?;
    column(out, segments().map(|segment| segment.address))?;
    out.write_all(b",\"size\":")?;
    column(out, segments().map(|segment| segment.size))?;
    out.write_all(b"},\n\"blocks\":{\"address\":")?;
    column(out, blocks().map(|block| block.address))?;
    out.write_all(b",\"size\":")?;
    column(out, blocks().map(|block| block.size))?;
    out.write_all(b",\"requested\":")?;
    column(out, blocks().map(|block| block.requested))?;
    out.write_all(b",\"state\":")?;
    column(out, blocks().map(|block| block.state as i32))?;
    out.write_all(b",\"stream\":")?;
    column(out, blocks().map(|block| streams.of(block.stream)))?;
    out.write_all(b",\"note\":")?;
    column(out, blocks().map(|block| notes.of(u64::from(block.annotation))))?;
    out.write_all(b"},\n\"trace\":{\"time\":")?;
    let entries = || trace.entries.iter();
    column(out, entries().map(|entry| entry.time - first))?;
    let record = |entry: &Entry| entry.record;
    out.write_all(b",\n\"action\":")?;
    column(out, entries().map(|entry| record(entry).action as u8))?;
    out.write_all(b",\n\"address\":")?;
    column(out, entries().map(|entry| record(entry).address))?;
    out.write_all(b",\n\"size\":")?;
    column(out, entries().map(|entry| record(entry).size))?;
    out.write_all(b",\n\"stream\":")?;
    column(out, entries().map(|entry| streams.of(record(entry).stream)))?;
    out.write_all(b",\n\"note\":")?;
    column(out, entries().map(|entry| notes.of(u64::from(record(entry).annotation))))?;
    out.write_all(b"},\n\"stats\":{")?;
    for (at, (key, value)) in snapshot.stats[device].flat().into_iter().enumerate() {
        write!(out, "{}\"{key}\":{value}", if at > 0 { "," } else { "" })?;
    }
    out.write_all(b"}}")
}
