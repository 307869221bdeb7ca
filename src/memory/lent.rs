//! Pools by the numbers that another library has for them: PyTorch's, where tcuda is its allocator. A number may be used several times over,
//! by graphs that share a pool; with its last use the pool ends, as its blocks are freed.

use super::captures::{self, Chooser};
use super::pools;
use crate::base::{Error, Result, Status, handles};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Of a device, by the library's number.
type Key = (i32, u64, u64);

struct Lent {
    pool: u64,
    uses: usize,
    /// Routes that lead there now, the last one last.
    routes: Vec<u64>,
}

static LENT: Mutex<BTreeMap<Key, Lent>> = Mutex::new(BTreeMap::new());

/// One more use; what is allocated on the streams that are chosen comes from it until `end`.
pub fn begin(device: i32, id: (u64, u64), chooses: Chooser) -> Result<()> {
    // Before the lock, which those take that are given back.
    pools::prepare()?;
    pools::sweep(device);
    let mut all = LENT.lock();
    let key = (device, id.0, id.1);
    let known = all.get(&key).map(|lent| lent.pool);
    let pool = match known {
        Some(pool) => pool,
        None => {
            let pool = handles::number() as u64;
            // Of the kind that it is there.
            pools::create_private(device, if id.0 == 0 { pools::Id::new(0, pool) } else { pools::Id::new(pool, 0) })?;
            pool
        }
    };
    match captures::steer(pool, chooses) {
        Ok(route) => {
            let lent = all.entry(key).or_insert_with(|| Lent { pool, uses: 0, routes: Vec::new() });
            lent.uses += 1;
            lent.routes.push(route);
            Ok(())
        }
        Err(error) => {
            if known.is_none() {
                pools::release(pool);
            }
            Err(error)
        }
    }
}

/// Of the last `begin`.
pub fn end(device: i32, id: (u64, u64)) -> Result<()> {
    let mut all = LENT.lock();
    let route = all.get_mut(&(device, id.0, id.1)).and_then(|lent| lent.routes.pop());
    let route = route.ok_or_else(|| unknown(device, id, "nothing is allocated from it"))?;
    drop(all);
    captures::unsteer(route);
    Ok(())
}

/// One use less.
pub fn release(device: i32, id: (u64, u64)) -> Result<()> {
    let mut all = LENT.lock();
    let key = (device, id.0, id.1);
    let lent = all.get_mut(&key).filter(|lent| lent.uses > lent.routes.len());
    let lent = lent.ok_or_else(|| unknown(device, id, "it is not in use, or allocations still come from it"))?;
    lent.uses -= 1;
    if lent.uses == 0 {
        let pool = lent.pool;
        all.remove(&key);
        drop(all);
        pools::release(pool);
        pools::sweep(device);
    }
    Ok(())
}

/// The pools are gone with all memory.
pub fn forget() {
    LENT.lock().clear();
}

fn unknown(device: i32, id: (u64, u64), why: &str) -> Error {
    let text = format!("The pool ({}, {}) on device {device} cannot be ended: {why}.", id.0, id.1);
    Error::new(Status::TCUDA_ERROR_INVALID_STATE, text).on_device(device)
}
