//! Ranges that begin and end when a stream comes there: host functions tell the tool.

use super::tool;
use crate::base::{Error, Result, Status};
use crate::device;
use crate::stream::Stream;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

struct Range {
    message: CString,
    /// What the tool calls the ranges that have begun: more than one where a graph replays beside itself.
    begun: Vec<u64>,
    /// A graph may come by again.
    stays: bool,
    ended: bool,
    /// Its end has come by already, on another stream.
    over: bool,
}

static RANGES: Mutex<BTreeMap<u64, Range>> = Mutex::new(BTreeMap::new());

/// A number for `end`. Without a tool the stream is given nothing.
pub fn start(message: &CStr, stream: Stream) -> Result<u64> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let tool = tool();
    let stays = match tool {
        Some(_) => stream.is_capturing()?,
        None => false,
    };
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    RANGES.lock().insert(number, Range { message: message.into(), begun: Vec::new(), stays, ended: false, over: false });
    if tool.is_some() {
        enqueue(begin, number, stream).inspect_err(|_| drop(RANGES.lock().remove(&number)))?;
    }
    Ok(number)
}

pub fn end(number: u64, stream: Stream) -> Result<()> {
    let tool = tool();
    let captured = match tool {
        Some(_) => stream.is_capturing()?,
        None => false,
    };
    let stayed = match RANGES.lock().get_mut(&number) {
        Some(range) if !range.ended => range.end(captured),
        _ => return Err(unknown(number)),
    };
    if tool.is_none() {
        RANGES.lock().remove(&number);
        return Ok(());
    }
    enqueue(finish, number, stream).inspect_err(|_| {
        if let Some(range) = RANGES.lock().get_mut(&number) {
            range.go_on(stayed);
        }
    })
}

impl Range {
    /// Whether it stayed before.
    fn end(&mut self, captured: bool) -> bool {
        let stayed = self.stays;
        (self.ended, self.stays) = (true, stayed || captured);
        stayed
    }

    /// Its end did not come to be.
    fn go_on(&mut self, stayed: bool) {
        (self.ended, self.stays) = (false, stayed);
    }
}

#[cold]
fn unknown(number: u64) -> Error {
    let text = format!("{number} is no range of a stream, or it was ended before. tcuda_nvtx_stream_range_start begins one.");
    Error::new(Status::TCUDA_ERROR_INVALID_HANDLE, text)
}

fn enqueue(function: extern "C" fn(*mut c_void), number: u64, stream: Stream) -> Result<()> {
    let entered = stream.enter()?;
    // The number is looked up when the function runs: nothing is lost if it never does.
    unsafe { entered.runtime.launch_host_function(entered.raw, function, number as usize as *mut c_void) }
        .map_err(device::blame(stream.device))
}

extern "C" fn begin(number: *mut c_void) {
    let number = number as usize as u64;
    let message = RANGES.lock().get(&number).map(|range| range.message.clone());
    if let (Some(message), Some(tool)) = (message, tool()) {
        let id = tool.start(&message);
        let over = {
            let mut ranges = RANGES.lock();
            match ranges.get_mut(&number) {
                Some(range) if !range.over => {
                    range.begun.push(id);
                    false
                }
                _ => {
                    ranges.remove(&number);
                    true
                }
            }
        };
        if over {
            tool.end(id);
        }
    }
}

extern "C" fn finish(number: *mut c_void) {
    let number = number as usize as u64;
    let id = {
        let mut ranges = RANGES.lock();
        let Some(range) = ranges.get_mut(&number) else { return };
        let id = range.begun.pop();
        match (range.stays, id) {
            (true, _) => {}
            (false, Some(_)) => drop(ranges.remove(&number)),
            (false, None) => range.over = true,
        }
        id
    };
    if let (Some(id), Some(tool)) = (id, tool()) {
        tool.end(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_was_not_captured_keeps_nothing_for_replays() {
        let mut range = Range { message: c"a".into(), begun: Vec::new(), stays: false, ended: false, over: false };
        let stayed = range.end(true);
        assert!(!stayed && range.ended && range.stays);
        range.go_on(stayed);
        assert!(!range.ended && !range.stays);
        // What a capture began stays whichever way it ends.
        range.stays = true;
        let stayed = range.end(false);
        range.go_on(stayed);
        assert!(range.stays && !range.ended);
    }
}
