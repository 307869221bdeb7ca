//! Keeps a stream busy for as long as a test wants, however long that takes.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex};
use tcuda::stream::Stream;

/// The stream's later work waits until it is dropped.
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn on(stream: Stream) -> Gate {
        unsafe extern "C" fn wait(gate: *mut c_void) {
            let gate = *unsafe { Box::from_raw(gate.cast::<Arc<(Mutex<bool>, Condvar)>>()) };
            let _open = gate.1.wait_while(gate.0.lock().unwrap(), |open| !*open).unwrap();
        }
        let gate = Gate(Arc::default());
        let entered = stream.enter().unwrap();
        let data = Box::into_raw(Box::new(gate.0.clone())).cast();
        unsafe { entered.runtime.launch_host_function(entered.raw, wait, data) }.unwrap();
        gate
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}
