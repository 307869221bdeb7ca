//! A page that shows a snapshot in any browser, with nothing to fetch: the template, and in it what it shows, in columns.

use super::Snapshot;
use super::form::{self, Form};
use super::json::Json;
use crate::memory::history::texts;
use std::collections::BTreeMap;
use std::io::{Result, Write};

const TEMPLATE: &str = include_str!("page.html");
const PLACE: &str = "/*DATA*/";

/// Numbers in the order of their first use, so that columns are short.
#[derive(Default)]
struct Names(BTreeMap<u64, i64>, Vec<u64>);

impl Names {
    fn of(&mut self, value: u64) -> i64 {
        *self.0.entry(value).or_insert_with(|| {
            self.1.push(value);
            self.1.len() as i64 - 1
        })
    }
}

pub fn write(snapshot: &Snapshot, out: &mut dyn Write) -> Result<()> {
    let (head, tail) = TEMPLATE.split_once(PLACE).unwrap_or((TEMPLATE, ""));
    out.write_all(head.as_bytes())?;
    write_data(snapshot, &mut Json::new(out))?;
    out.write_all(tail.as_bytes())
}

fn write_data(snapshot: &Snapshot, json: &mut Json) -> Result<()> {
    let (mut streams, mut notes) = (Names::default(), Names::default());
    notes.of(u64::from(texts::NONE));
    json.dictionary()?;
    json.key_text("version", env!("CARGO_PKG_VERSION"))?;
    json.key("devices")?;
    json.list()?;
    (0..snapshot.traces.len()).try_for_each(|device| write_device(snapshot, device, &mut streams, &mut notes, json))?;
    json.end_list()?;
    column(json, "streams", streams.1.iter().map(|stream| *stream as i64))?;
    json.key("notes")?;
    json.list()?;
    notes.1.iter().try_for_each(|note| json.text(texts::text(*note as u32)))?;
    json.end_list()?;
    json.end_dictionary()
}

fn column(json: &mut Json, name: &str, mut values: impl Iterator<Item = i64>) -> Result<()> {
    json.key(name)?;
    json.list()?;
    values.try_for_each(|value| json.number(value))?;
    json.end_list()
}

/// A device: what it holds, and its trace. Times are microseconds since the first entry.
fn write_device(snapshot: &Snapshot, device: usize, streams: &mut Names, notes: &mut Names, json: &mut Json) -> Result<()> {
    let segments = || snapshot.segments.iter().filter(|segment| segment.device as usize == device);
    let blocks = || segments().flat_map(|segment| snapshot.blocks_of(segment));
    let trace = &snapshot.traces[device];
    let entries = || trace.entries.iter();
    let first = trace.entries.first().map_or(0, |entry| entry.time);
    json.dictionary()?;
    json.key("began")?;
    json.number(first)?;
    json.key_number("lost", trace.lost)?;
    json.key("segments")?;
    json.dictionary()?;
    column(json, "address", segments().map(|segment| segment.address as i64))?;
    column(json, "size", segments().map(|segment| segment.size as i64))?;
    json.end_dictionary()?;
    json.key("blocks")?;
    json.dictionary()?;
    column(json, "address", blocks().map(|block| block.address as i64))?;
    column(json, "size", blocks().map(|block| block.size as i64))?;
    column(json, "requested", blocks().map(|block| block.requested as i64))?;
    column(json, "state", blocks().map(|block| block.state as i64))?;
    column(json, "stream", blocks().map(|block| streams.of(block.stream)))?;
    column(json, "note", blocks().map(|block| notes.of(u64::from(block.annotation))))?;
    json.end_dictionary()?;
    json.key("trace")?;
    json.dictionary()?;
    column(json, "time", entries().map(|entry| entry.time - first))?;
    column(json, "action", entries().map(|entry| entry.record.action as i64))?;
    column(json, "address", entries().map(|entry| entry.record.address as i64))?;
    column(json, "size", entries().map(|entry| entry.record.size as i64))?;
    column(json, "stream", entries().map(|entry| streams.of(entry.record.stream)))?;
    column(json, "note", entries().map(|entry| notes.of(u64::from(entry.record.annotation))))?;
    json.end_dictionary()?;
    json.key("stats")?;
    form::write_stats(json, &snapshot.stats[device])?;
    json.end_dictionary()
}
