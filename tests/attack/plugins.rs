//! Allocators of the program's own, which take from the runtime, and sometimes have nothing.

use crate::plan::Feature;
use crate::program::{Program, did};
use crate::trail::note;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tcuda::base::Status;
use tcuda::capi::plugin::*;
use tcuda::capi::structs::tcuda_stream_t;
use tcuda::runtime;

pub struct Plugin {
    pub handle: usize,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// What it gave: addresses and sizes.
    held: Mutex<HashMap<usize, usize>>,
    asked: AtomicUsize,
    /// Each so manieth time it has nothing; 0: never.
    refuses: usize,
}

unsafe extern "C" fn give(size: usize, _device: i32, _stream: tcuda_stream_t, data: *mut c_void) -> *mut c_void {
    let state = unsafe { &*data.cast::<State>() };
    let asked = state.asked.fetch_add(1, SeqCst) + 1;
    if state.refuses > 0 && asked.is_multiple_of(state.refuses) {
        return null_mut();
    }
    let Ok(address) = runtime::runtime().unwrap().malloc(size) else { return null_mut() };
    state.held.lock().unwrap().insert(address, size);
    address as *mut c_void
}

unsafe extern "C" fn take(segment: *mut c_void, size: usize, _device: i32, _stream: tcuda_stream_t, data: *mut c_void) {
    let state = unsafe { &*data.cast::<State>() };
    let given = state.held.lock().unwrap().remove(&(segment as usize));
    assert_eq!(given, Some(size), "an allocator gets 0x{:x} of {size} bytes back", segment as usize);
    // One that a fault strikes is tried again.
    let free = || runtime::runtime().unwrap().free(segment as usize).is_ok();
    assert!((0..50).any(|_| free()), "0x{:x} does not go back", segment as usize);
}

impl Plugin {
    pub fn holds(&self) -> usize {
        self.state.held.lock().unwrap().len()
    }

    pub fn raw(&self) -> tcuda_pluggable_allocator_t {
        self.handle as tcuda_pluggable_allocator_t
    }
}

impl Program {
    pub fn use_plugins(&mut self) {
        const MOST: usize = 3;
        let plugins = self.world.plugins.lock().unwrap().clone();
        match (self.random.below(5), self.random.pick(&plugins)) {
            (0..=1, _) if plugins.len() < MOST => self.make_plugin(),
            (2, _) => {
                note!("the driver is the allocator");
                did!(self, tcuda_change_current_allocator(null_mut()));
            }
            (3, Some(plugin)) => {
                note!("the allocator is 0x{:x}", plugin.handle);
                let status = tcuda_change_current_allocator(plugin.raw());
                // It has ended meanwhile, or the caches take from cudaMallocAsync.
                let right = [Status::TCUDA_ERROR_INVALID_HANDLE, Status::TCUDA_ERROR_INVALID_STATE, Status::TCUDA_ERROR_NOT_SUPPORTED];
                let _ = self.is_refused(status, &right) || self.judge("tcuda_change_current_allocator", status);
            }
            (4, Some(plugin)) => self.end_plugin(&plugin),
            _ => {}
        }
    }

    fn make_plugin(&mut self) {
        let state = Arc::new(State { refuses: self.random.pick(&[0, 0, 5]).unwrap(), ..State::default() });
        let mut handle = null_mut();
        // Its functions may be called for as long as the process lives.
        let data = Arc::into_raw(state.clone()).cast_mut().cast();
        if did!(self, tcuda_pluggable_allocator_create(&mut handle, Some(give), Some(take), data)) {
            note!("allocator 0x{:x}", handle as usize);
            self.world.plugins.lock().unwrap().push(Arc::new(Plugin { handle: handle as usize, state }));
        }
    }

    /// Refused while it is current, a pool's, or holds something.
    fn end_plugin(&mut self, plugin: &Arc<Plugin>) {
        // No pool is made with it meanwhile, nor is it ended twice.
        let mut plugins = self.world.plugins.lock().unwrap();
        if !plugins.iter().any(|other| Arc::ptr_eq(other, plugin)) {
            return;
        }
        let is_a_pools = self.has(Feature::Pools)
            && self.world.pools.lock().unwrap().iter().any(|pool| pool.plugin.as_ref().is_some_and(|of| Arc::ptr_eq(of, plugin)));
        let status = tcuda_pluggable_allocator_destroy(plugin.raw());
        note!("allocator 0x{:x} ends: {status:?}", plugin.handle);
        if self.is_refused(status, &[Status::TCUDA_ERROR_INVALID_STATE]) || !self.judge("tcuda_pluggable_allocator_destroy", status) {
            return;
        }
        assert!(!is_a_pools && plugin.holds() == 0, "an allocator ended that is in use");
        plugins.retain(|other| !Arc::ptr_eq(other, plugin));
    }
}
