//! A snapshot as torch structures it: dictionaries, lists, numbers and texts, whatever they are written as.

use super::{Action, Block, Entry, Segment, Snapshot, Use};
use crate::memory::history::texts;
use crate::memory::options;
use crate::memory::pools::Id;
use crate::memory::stats::Stats;
use std::io::Result;

/// Something that values are written to, one after the other. In a dictionary each is behind its key.
pub trait Form {
    fn dictionary(&mut self) -> Result<()>;
    fn end_dictionary(&mut self) -> Result<()>;
    fn list(&mut self) -> Result<()>;
    fn end_list(&mut self) -> Result<()>;
    fn key(&mut self, key: &str) -> Result<()>;
    fn text(&mut self, text: &str) -> Result<()>;
    fn number(&mut self, number: i64) -> Result<()>;
    fn flag(&mut self, flag: bool) -> Result<()>;
    fn pair(&mut self, first: i64, second: i64) -> Result<()>;

    fn key_text(&mut self, key: &str, text: &str) -> Result<()> {
        self.key(key)?;
        self.text(text)
    }

    fn key_number(&mut self, key: &str, number: u64) -> Result<()> {
        self.key(key)?;
        // Addresses and sizes have no more than 63 bits.
        self.number(number.min(i64::MAX as u64) as i64)
    }

    fn key_flag(&mut self, key: &str, flag: bool) -> Result<()> {
        self.key(key)?;
        self.flag(flag)
    }
}

pub fn write(snapshot: &Snapshot, form: &mut impl Form) -> Result<()> {
    form.dictionary()?;
    form.key("segments")?;
    form.list()?;
    snapshot.segments.iter().try_for_each(|segment| write_segment(form, segment, snapshot.blocks_of(segment)))?;
    form.end_list()?;
    form.key("device_traces")?;
    form.list()?;
    for trace in &snapshot.traces {
        form.list()?;
        trace.entries.iter().try_for_each(|entry| write_entry(form, entry))?;
        form.end_list()?;
    }
    form.end_list()?;
    form.key("allocator_settings")?;
    write_settings(form, snapshot)?;
    form.key("external_annotations")?;
    write_annotations(form, snapshot)?;
    form.key("tcuda")?;
    write_own(form, snapshot)?;
    form.end_dictionary()
}

fn state(state: Use) -> &'static str {
    match state {
        Use::Allocated => "active_allocated",
        Use::PendingFree => "active_pending_free",
        Use::Inactive => "inactive",
    }
}

/// What stands for a stack: the annotation, so that torch's tools sum up by it.
fn write_frames(form: &mut impl Form, annotation: u32) -> Result<()> {
    form.key("frames")?;
    form.list()?;
    if annotation != texts::NONE {
        form.dictionary()?;
        form.key_text("filename", "annotation")?;
        form.key_number("line", 0)?;
        form.key_text("name", texts::text(annotation))?;
        form.end_dictionary()?;
    }
    form.end_list()
}

fn write_pool(form: &mut impl Form, pool: Id) -> Result<()> {
    let (first, second) = pool.pair();
    form.pair(first as i64, second as i64)
}

fn write_segment(form: &mut impl Form, segment: &Segment, blocks: &[Block]) -> Result<()> {
    form.dictionary()?;
    form.key_number("device", segment.device as u64)?;
    form.key_number("address", segment.address as u64)?;
    form.key_number("total_size", segment.size as u64)?;
    form.key_number("allocated_size", segment.allocated as u64)?;
    form.key_number("active_size", segment.active as u64)?;
    form.key_number("requested_size", segment.requested as u64)?;
    form.key_number("stream", segment.stream)?;
    form.key_text("segment_type", if segment.small { "small" } else { "large" })?;
    form.key("segment_pool_id")?;
    write_pool(form, segment.pool)?;
    form.key_flag("is_expandable", segment.expandable)?;
    write_frames(form, texts::NONE)?;
    form.key("blocks")?;
    form.list()?;
    for block in blocks {
        form.dictionary()?;
        form.key_number("address", block.address as u64)?;
        form.key_number("size", block.size as u64)?;
        form.key_number("requested_size", block.requested as u64)?;
        form.key_text("state", state(block.state))?;
        form.key_number("stream", block.stream)?;
        form.key_text("user_metadata", texts::text(block.annotation))?;
        write_frames(form, block.annotation)?;
        form.end_dictionary()?;
    }
    form.end_list()?;
    form.end_dictionary()
}

fn write_entry(form: &mut impl Form, entry: &Entry) -> Result<()> {
    let record = &entry.record;
    form.dictionary()?;
    form.key_text("action", record.action.name())?;
    form.key_number(if record.action == Action::Oom { "device_free" } else { "addr" }, entry.address())?;
    form.key_number("size", record.size)?;
    form.key_number("stream", record.stream)?;
    form.key_number("time_us", entry.time as u64)?;
    form.key_text("compile_context", "N/A")?;
    form.key_text("user_metadata", texts::text(record.annotation))?;
    form.key("pool_id")?;
    write_pool(form, record.pool)?;
    write_frames(form, record.annotation)?;
    form.end_dictionary()
}

/// torch's keys; those that mean nothing here have the value that means nothing there.
fn write_settings(form: &mut impl Form, snapshot: &Snapshot) -> Result<()> {
    form.dictionary()?;
    form.key_text("PYTORCH_CUDA_ALLOC_CONF", "")?;
    form.key_text(options::VARIABLE, &options::show(&snapshot.options))?;
    form.key("max_split_size")?;
    form.number(-1)?;
    form.key_number("garbage_collection_threshold", 0)?;
    form.key_flag("expandable_segments", snapshot.options.expandable_segments)?;
    form.key_number("pinned_num_register_threads", snapshot.options.pinned_num_register_threads as _)?;
    form.key_flag("release_lock_on_cudamalloc", true)?;
    form.key_flag("pinned_use_cuda_host_register", snapshot.options.pinned_use_cuda_host_register)?;
    form.key_flag("graph_capture_record_stream_reuse", false)?;
    form.key("roundup_power2_divisions")?;
    form.dictionary()?;
    form.end_dictionary()?;
    form.end_dictionary()
}

/// Each change of an annotation ends the one before.
fn write_annotations(form: &mut impl Form, snapshot: &Snapshot) -> Result<()> {
    form.list()?;
    for (device, trace) in snapshot.traces.iter().enumerate() {
        for entry in trace.entries.iter().filter(|entry| entry.record.action == Action::UserDefined) {
            let both = [(entry.record.address as u32, "END"), (entry.record.annotation, "START")];
            for (annotation, stage) in both.into_iter().filter(|(annotation, _)| *annotation != texts::NONE) {
                form.dictionary()?;
                form.key_text("name", texts::text(annotation))?;
                form.key_text("stage", stage)?;
                form.key_number("device", device as u64)?;
                form.key_number("time_us", entry.time as u64)?;
                form.end_dictionary()?;
            }
        }
    }
    form.end_list()
}

/// What torch's structure has no place for.
fn write_own(form: &mut impl Form, snapshot: &Snapshot) -> Result<()> {
    form.dictionary()?;
    form.key_text("version", env!("CARGO_PKG_VERSION"))?;
    form.key("lost_entries")?;
    form.list()?;
    snapshot.traces.iter().try_for_each(|trace| form.number(trace.lost as i64))?;
    form.end_list()?;
    form.key("memory_stats")?;
    form.list()?;
    snapshot.stats.iter().try_for_each(|stats| write_stats(form, stats))?;
    form.end_list()?;
    form.end_dictionary()
}

pub fn write_stats(form: &mut impl Form, stats: &Stats) -> Result<()> {
    form.dictionary()?;
    for (key, value) in stats.flat() {
        form.key(&key)?;
        form.number(value)?;
    }
    form.end_dictionary()
}
