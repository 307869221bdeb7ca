//! History of device memory
//!
//! What happens in the caches of device memory can be recorded: each allocation and free, when memory came from the driver and went back,
//! and each failure, with its time, stream and the calling thread's annotation (torch.cuda.memory._record_memory_history). The newest
//! entries are kept, as many as asked for. tcuda_memory_snapshot reads them. An entry costs some nanoseconds while they are recorded, and
//! nothing else.

use super::guard::{guard, guard_value, text};
use crate::base::status::tcuda_status_t;
use crate::base::{Error, Result};
use crate::memory::history::{Mode, texts};
use crate::{device, memory};
use std::ffi::c_char;

fn mode_of(enabled: i32) -> Result<Mode> {
    let known = [Mode::Off, Mode::State, Mode::All].into_iter().find(|mode| *mode as i32 == enabled);
    known.ok_or_else(|| {
        Error::invalid_argument(format!(
            "'enabled' is {enabled}; it can be TCUDA_HISTORY_OFF (0), TCUDA_HISTORY_STATE (1) or TCUDA_HISTORY_ALL (2)."
        ))
    })
}

/// Says what is recorded from now on (torch.cuda.memory._record_memory_history). What was allocated before is in a snapshot, with no
/// entry of its own. A device's pools are recorded with it. It stops all threads that use the device for a moment, and waits while one of
/// them maps memory, so a host function of a stream may not call it. tcuda_shutdown ends it.
///
/// @param enabled     TCUDA_HISTORY_OFF: nothing, and what was recorded is forgotten. TCUDA_HISTORY_STATE: what each block in use was
///                    annotated with. TCUDA_HISTORY_ALL: also what happens, and when.
/// @param max_entries how many entries are kept for a device, the newest; UINT64_MAX: all (torch's default, which takes ever more memory of
///                    the host; where it has none, entries are lost, and counted). An entry takes 48 bytes. 0 is an error with
///                    TCUDA_HISTORY_ALL.
/// @param clear       forgets what was recorded before.
/// @param device      -1: the current one; TCUDA_DEVICE_ALL: all.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_memory_record_history(enabled: i32, max_entries: u64, clear: bool, device: i32) -> tcuda_status_t {
    guard("tcuda_memory_record_history", || {
        let mode = mode_of(enabled)?;
        if mode == Mode::All && max_entries == 0 {
            return Err(Error::invalid_argument(
                "'max_entries' is 0, so nothing would be kept. TCUDA_HISTORY_STATE records annotations with no entries.",
            ));
        }
        let device = if device == device::ALL { None } else { Some(device::resolve(device)?) };
        memory::record_history(mode, usize::try_from(max_entries).unwrap_or(usize::MAX), clear, device)
    })
}

/// What the calling thread does from now on is for this: a text that its blocks and entries carry, until it says otherwise
/// (torch.cuda.memory._set_memory_metadata). Where the history is recorded the change is an entry of its own, `user_defined`, and in
/// torch's `external_annotations` the end of one and the start of another. Needs no device.
///
/// @param annotation UTF-8, any length; NULL or empty: nothing in particular. Different texts are kept for as long as the process, a million
///                   at most: leave out counters.
/// @return TCUDA_ERROR_INVALID_ARGUMENT: no UTF-8. TCUDA_ERROR_INVALID_STATE: there are too many. The annotation is the one before then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_memory_annotate(annotation: *const c_char) -> tcuda_status_t {
    guard("tcuda_memory_annotate", || {
        let annotation = if annotation.is_null() { "" } else { unsafe { text(annotation, "annotation") }? };
        memory::annotate(annotation)
    })
}

/// The calling thread's annotation (torch.cuda.memory._get_memory_metadata), to be set again after one of a part of the program's own; empty:
/// none. Never freed, never fails.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_memory_annotation() -> *const c_char {
    guard_value("tcuda_memory_annotation", c"".as_ptr(), || Ok(texts::c_text(texts::current())))
}
