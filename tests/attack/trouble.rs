//! What a program does to the caches beside using them: reads what they say, sets limits and options, empties them; and what happens to them.

use crate::checks::stats;
use crate::plan::{Feature, MIB};
use crate::program::{Program, did, ok};
use crate::trail::note;
use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};
use tcuda::base::Status;
use tcuda::capi::device::tcuda_mem_get_info;
use tcuda::capi::history::tcuda_memory_record_history;
use tcuda::capi::memory::*;
use tcuda::capi::pinned::{tcuda_host_empty_cache, tcuda_host_set_memory_limit};
use tcuda::capi::sim::*;
use tcuda::capi::snapshot::*;

pub const ALL: i32 = -3;

const OPTIONS: [&str; 15] = [
    "",
    "expandable_segments:False",
    "expandable_segments:False,large_segment_size_mb:11",
    "tight:True",
    "backend:cudaMallocAsync",
    "stream_wait:at_budget",
    "stream_wait:never",
    "slack:0.0",
    "slack:0.5",
    "throw_on_cudamalloc_oom:True",
    "per_process_memory_fraction:0.5",
    "per_process_memory_fraction:1.0",
    "pinned_use_cuda_host_register:True",
    "pinned_max_cached_size_mb:1",
    "pinned_limit_mb:8",
];

/// Any call, and those that the caches live by.
const CALLS: [&str; 30] = [
    "cuMemCreate",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cudaMalloc",
    "cudaFree",
    "cudaMallocAsync",
    "cudaFreeAsync",
    "cudaEventCreateWithFlags",
    "cudaEventRecord",
    "cudaEventQuery",
    "cudaStreamQuery",
    "cudaStreamWaitEvent",
    "cudaStreamSynchronize",
    "cudaMemGetInfo",
    "cudaMemsetAsync",
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
    "cudaGraphInstantiateWithFlags",
    "cudaGraphLaunch",
    "cudaHostAlloc",
    "cudaFreeHost",
    "cudaHostRegister",
    "cudaHostUnregister",
    "cudaMemcpyAsync",
    "cudaLaunchHostFunc",
    "cudaDeviceSynchronize",
];

impl Program {
    fn device(&mut self) -> i32 {
        self.random.below(self.world.plan.devices) as i32
    }

    fn device_or_all(&mut self) -> i32 {
        if self.random.chance(50) { ALL } else { self.device() }
    }

    /// Reads, which change nothing.
    pub fn look(&mut self) {
        let device = self.device();
        match self.random.below(6) {
            0 => _ = stats(device),
            1 => ok!(tcuda_reset_peak_memory_stats(device)),
            2 => {
                let mut text = vec![0 as c_char; 20_000];
                did!(self, tcuda_memory_summary(text.as_mut_ptr(), text.len(), null_mut(), device, false));
            }
            3 => {
                let mut snapshot = null_mut();
                if did!(self, tcuda_memory_snapshot(&mut snapshot, self.device_or_all())) {
                    ok!(tcuda_snapshot_destroy(snapshot));
                }
            }
            4 if self.has(Feature::History) => {
                let (most, clear) = (1 + self.random.below(200) as u64, self.random.chance(50));
                did!(self, tcuda_memory_record_history(self.random.below(3) as i32, most, clear, ALL));
            }
            _ => _ = did!(self, tcuda_mem_get_info(&mut 0, &mut 0, device)),
        }
    }

    pub fn empty(&mut self) {
        let device = self.device_or_all();
        note!("the cache is emptied, of {device}");
        did!(self, tcuda_empty_cache(device));
        if self.random.chance(20) {
            did!(self, tcuda_host_empty_cache());
        }
    }

    /// A limit, a share, what the device has left; or their ends.
    pub fn limit(&mut self) {
        let device = self.device();
        let bytes = match self.random.chance(40) {
            true => u64::MAX,
            false => self.random.below(256 * MIB) as u64,
        };
        let thousandths = if bytes == u64::MAX { 1000 } else { self.random.below(1000) };
        match self.random.below(4) {
            0 => {
                note!("the limit of {device} is {bytes}");
                did!(self, tcuda_set_memory_limit(bytes, device));
            }
            1 => {
                note!("{thousandths} thousandths of {device}");
                did!(self, tcuda_set_per_process_memory_fraction(thousandths as f64 / 1000.0, device));
            }
            2 => {
                let bytes = if bytes == u64::MAX { bytes } else { bytes / 32 };
                note!("the limit of pinned memory is {bytes}");
                did!(self, tcuda_host_set_memory_limit(bytes));
            }
            _ => {
                let bytes = bytes.min(4096 * MIB as u64).max(64 * MIB as u64);
                note!("device {device} has {bytes}");
                did!(self, tcuda_sim_set_memory(bytes, device));
            }
        }
    }

    pub fn configure(&mut self) {
        let options = self.random.pick(&OPTIONS).unwrap();
        note!("options '{options}'");
        let text = CString::new(options).unwrap();
        let status = unsafe { tcuda_set_alloc_conf(text.as_ptr()) };
        // An allocator of the program's own is current, or the device cannot do it.
        let _ = self.is_refused(status, &[Status::TCUDA_ERROR_INVALID_STATE, Status::TCUDA_ERROR_NOT_SUPPORTED])
            || self.judge("tcuda_set_alloc_conf", status);
    }

    /// CUDA's invalid value, out of memory, not supported, of one of the next calls. One at a time: where a call fails, and the one that would undo
    /// what was done before it too, nobody can help.
    pub fn plan_fault(&mut self) {
        const CODES: [i32; 4] = [1, 2, 2, 801];
        let code = self.random.pick(&CODES).unwrap();
        let any = self.random.chance(50);
        let call = CString::new(self.random.pick(&CALLS).unwrap()).unwrap();
        let nth = 1 + self.random.below(if any { 40 } else { 4 }) as u64;
        note!("call {nth} of {} fails with {code}", if any { "any" } else { call.to_str().unwrap() });
        ok!(tcuda_sim_clear_faults());
        ok!(tcuda_sim_fail_at(if any { null() } else { call.as_ptr() }, nth, code));
    }
}
