//! Access from one device to another's memory, enabled at the first need, once per ordered pair.

use super::{Guard, resolve};
use crate::base::Result;
use crate::runtime::{self, code};
use parking_lot::{Mutex, RwLock};
use std::sync::OnceLock;

/// Told when `device` gets access to the memory of `peer`, so that memory which is mapped page by page can be mapped for `device`.
/// An error leaves the pair as it was: the next need tries again.
pub type Hook = fn(device: i32, peer: i32) -> Result<()>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The hardware can, the hooks are running: new memory counts the device in already.
    Enabling,
    Enabled,
    Impossible,
}

/// Whether the calling thread may wait for hooks.
static MAY_WAIT: OnceLock<fn() -> Result<()>> = OnceLock::new();
static HOOKS: RwLock<Vec<Hook>> = RwLock::new(Vec::new());
/// One at a time enables; readers of PAIRS go on meanwhile.
static ENABLING: Mutex<()> = Mutex::new(());
static PAIRS: RwLock<Vec<(i32, i32, State)>> = RwLock::new(Vec::new());

/// cudaDeviceCanAccessPeer. A device and itself: false, as CUDA says.
pub fn can_access(device: i32, peer: i32) -> Result<bool> {
    let (device, peer) = (resolve(device)?, resolve(peer).map_err(|error| error.context("Invalid peer device"))?);
    if device == peer { Ok(false) } else { runtime::runtime()?.can_access_peer(device, peer) }
}

/// From now on a thread is asked whether it may wait for hooks: one that holds up what a hook waits for may not.
pub fn ask_before(may_wait: fn() -> Result<()>) {
    let _ = MAY_WAIT.set(may_wait);
}

/// Registers a hook, once per function.
pub fn on_enabled(hook: Hook) {
    let mut hooks = HOOKS.write();
    if !hooks.iter().any(|known| std::ptr::fn_addr_eq(*known, hook)) {
        hooks.push(hook);
    }
}

fn state(device: i32, peer: i32) -> Option<State> {
    PAIRS.read().iter().find(|pair| (pair.0, pair.1) == (device, peer)).map(|pair| pair.2)
}

fn set_state(device: i32, peer: i32, state: Option<State>) {
    let mut pairs = PAIRS.write();
    pairs.retain(|pair| (pair.0, pair.1) != (device, peer));
    pairs.extend(state.map(|state| (device, peer, state)));
}

/// Lets `device` read and write the memory of `peer`. True: it can (also for the same device); false: the hardware cannot, so a
/// copy has to go another way.
pub fn ensure(device: i32, peer: i32) -> Result<bool> {
    if device == peer {
        return Ok(true);
    }
    match state(device, peer) {
        Some(State::Enabled) => Ok(true),
        Some(State::Impossible) => Ok(false),
        _ => enable(device, peer),
    }
}

#[cold]
fn enable(device: i32, peer: i32) -> Result<bool> {
    MAY_WAIT.get().map_or(Ok(()), |may_wait| may_wait())?;
    let _one_at_a_time = ENABLING.lock();
    match state(device, peer) {
        Some(State::Enabled) => return Ok(true),
        Some(State::Impossible) => return Ok(false),
        _ => {}
    }
    if !can_access(device, peer)? {
        set_state(device, peer, Some(State::Impossible));
        return Ok(false);
    }
    let guard = Guard::new(device)?;
    let runtime = runtime::runtime()?;
    match runtime.outside_capture(|| runtime.enable_peer_access(peer)) {
        // A device has room for eight peers only.
        Err(error) if error.native == code::TOO_MANY_PEERS => {
            set_state(device, peer, Some(State::Impossible));
            return Ok(false);
        }
        other => other?,
    }
    drop(guard);
    // Before the hooks: memory that is made while they run maps itself, memory made before is mapped by them.
    set_state(device, peer, Some(State::Enabling));
    let hooks = HOOKS.read().clone();
    for hook in hooks {
        if let Err(error) = hook(device, peer) {
            set_state(device, peer, None);
            return Err(error);
        }
    }
    set_state(device, peer, Some(State::Enabled));
    Ok(true)
}

/// The devices that have access to the memory of `device`, itself not among them.
pub fn with_access_to(device: i32) -> Vec<i32> {
    PAIRS.read().iter().filter(|pair| pair.1 == device && pair.2 != State::Impossible).map(|pair| pair.0).collect()
}
