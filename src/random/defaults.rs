//! The default generator of each device, and what it was given before there was a backend: seeding starts none, so that a program may seed
//! and then fork, or seed on a machine without a device. It is kept in the order of the calls; torch applies seeds last.

use super::generator::{Change, Generator, State, fresh_seed};
use crate::base::{Error, Result, Status, log};
use crate::{device, runtime};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A seed or state for the default generator of a device, of the current one (-1), or of all (-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    pub device: i32,
    pub change: Change,
}

struct Defaults {
    by_device: BTreeMap<i32, Arc<Generator>>,
    /// The oldest first; none that a later one makes pointless.
    early: Vec<Wish>,
}

static DEFAULTS: Mutex<Defaults> = Mutex::new(Defaults { by_device: BTreeMap::new(), early: Vec::new() });

/// The default generator of a device of that index. Nobody can foretell its seed, unless it was given one before.
pub fn of(device: i32) -> Result<Arc<Generator>> {
    caught_up(|defaults| {
        if let Some(known) = defaults.by_device.get(&device) {
            return Ok(known.clone());
        }
        let made = Arc::new(Generator::new(device, State::seeded(fresh_seed()?)));
        defaults.by_device.insert(device, made.clone());
        Ok(made)
    })
}

/// That of the states that wait for a device.
pub fn is_locked() -> bool {
    DEFAULTS.is_locked()
}

/// Every device gets its state, or none does. Without a backend the states wait for one.
pub fn set(wishes: &[Wish]) -> Result<()> {
    if !runtime::select::is_chosen() {
        wishes.iter().try_for_each(|wish| check_sign(wish.device))?;
        let early = &mut DEFAULTS.lock().early;
        wishes.iter().for_each(|wish| keep(early, *wish));
        return Ok(());
    }
    let resolve =
        |wish: &Wish| if wish.device == device::ALL { Ok(*wish) } else { Ok(Wish { device: device::index(wish.device)?, ..*wish }) };
    let resolved = wishes.iter().map(resolve).collect::<Result<Vec<Wish>>>()?;
    caught_up(|defaults| {
        resolved.iter().try_for_each(|wish| defaults.check(wish))?;
        resolved.into_iter().try_for_each(|wish| defaults.apply(wish))
    })
}

/// Works on the generators once what waited is done.
fn caught_up<T>(work: impl FnOnce(&mut Defaults) -> Result<T>) -> Result<T> {
    let mut defaults = DEFAULTS.lock();
    let left_out = defaults.catch_up()?;
    let done = work(&mut defaults);
    // With no lock held: who hears it may call tcuda.
    drop(defaults);
    for device in left_out {
        log::warn(&format!(
            "The random state that was set for device {device} before the first use of a device is left out: there are {}.",
            device::count()
        ));
    }
    done
}

/// Whether there are so many devices, as far as that is known.
pub fn check_count(states: usize) -> Result<()> {
    if !runtime::select::is_chosen() || states <= device::count() as usize {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("There are {states} states, but {} devices to have them.", device::count())))
}

/// As far as that can be known without a backend.
fn check_sign(device: i32) -> Result<()> {
    if device >= device::CURRENT || device == device::ALL {
        return Ok(());
    }
    let text = format!("Device index value {device} is out of index range: indices begin at 0, -1 is the current device and -3 all.");
    Err(Error::new(Status::TCUDA_ERROR_INVALID_DEVICE, text).on_device(device))
}

/// Puts a wish behind the others, of which those go that it overrides.
fn keep(early: &mut Vec<Wish>, wish: Wish) {
    early.retain(|older| wish.device != device::ALL && older.device != wish.device);
    early.push(wish);
}

impl Defaults {
    fn check(&self, wish: &Wish) -> Result<()> {
        let meant = self.by_device.iter().filter(|(known, _)| wish.device == device::ALL || wish.device == **known);
        meant.map(|(_, generator)| generator.check(wish.change)).fold(Ok(()), Result::and)
    }

    fn apply(&mut self, wish: Wish) -> Result<()> {
        let devices = if wish.device == device::ALL { 0..device::count() } else { wish.device..wish.device + 1 };
        for device in devices {
            let generator = self.by_device.entry(device).or_insert_with(|| Arc::new(Generator::new(device, State::seeded(0))));
            generator.change(wish.change)?;
        }
        Ok(())
    }

    /// Does what was asked for before there was a backend. What was then the current device is the one that was when it was chosen. The
    /// answer is for which devices it was that there are not.
    fn catch_up(&mut self) -> Result<Vec<i32>> {
        let mut left_out = Vec::new();
        if self.early.is_empty() {
            return Ok(left_out);
        }
        let (count, first) = (runtime::runtime()?.device_count, runtime::select::first_device()?);
        for wish in std::mem::take(&mut self.early) {
            let device = if wish.device == device::CURRENT { first } else { wish.device };
            if device >= count {
                left_out.push(device);
            } else {
                self.apply(Wish { device, ..wish })?;
            }
        }
        Ok(left_out)
    }
}

/// All begin anew.
pub fn clear() {
    let mut defaults = DEFAULTS.lock();
    defaults.by_device.clear();
    defaults.early.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(wishes: &[(i32, u64)]) -> Vec<(i32, u64)> {
        let mut early = Vec::new();
        wishes.iter().for_each(|(device, seed)| keep(&mut early, Wish { device: *device, change: Change::Seed(*seed) }));
        let seed = |change| if let Change::Seed(seed) = change { seed } else { panic!("{change:?}") };
        early.into_iter().map(|wish| (wish.device, seed(wish.change))).collect()
    }

    #[test]
    fn what_waits_stays_in_order_and_does_not_grow() {
        assert_eq!(kept(&[(-1, 1), (0, 2)]), [(-1, 1), (0, 2)]);
        assert_eq!(kept(&[(-1, 1), (0, 2), (-1, 3)]), [(0, 2), (-1, 3)]);
        assert_eq!(kept(&[(-1, 1), (0, 2), (-3, 3), (1, 4)]), [(-3, 3), (1, 4)]);
        assert_eq!(kept(&[(-3, 1), (-3, 2)]), [(-3, 2)]);
        let many: Vec<(i32, u64)> = (0..1000).map(|seed| ((seed % 3) as i32 - 1, seed)).collect();
        assert_eq!(kept(&many).len(), 3);
    }
}
