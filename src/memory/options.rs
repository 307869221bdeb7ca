//! Options of the device cache: `TCUDA_ALLOC_CONF`, `key:value,key:value`, parsed strictly.

use crate::base::{Error, Result, config, log};
use parking_lot::RwLock;

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// Virtual-memory segments (the default), else one cudaMalloc a segment.
    pub expandable_segments: bool,
    /// Share of the device's memory that may be held.
    pub per_process_memory_fraction: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { expandable_segments: true, per_process_memory_fraction: 1.0 }
    }
}

static IN_EFFECT: RwLock<Option<Options>> = RwLock::new(None);

/// The options in effect. The text is read once; tcuda_init refuses a wrong one, a wrong one in the environment is reported and ignored
/// as a whole.
pub fn get() -> Options {
    if let Some(options) = *IN_EFFECT.read() {
        return options;
    }
    let parsed = config::get("TCUDA_ALLOC_CONF").map_or(Ok(Options::default()), |text| parse(&text));
    let options = parsed.unwrap_or_else(|error| {
        log::warn(&format!("{error} The defaults are in effect."));
        Options::default()
    });
    *IN_EFFECT.write().get_or_insert(options)
}

/// Forgets what was read, so that the next use reads again.
pub fn reset() {
    *IN_EFFECT.write() = None;
}

const KEYS: [&str; 2] = ["expandable_segments", "per_process_memory_fraction"];

pub fn parse(text: &str) -> Result<Options> {
    let mut options = Options::default();
    let mut position = 0;
    for part in text.split(',') {
        let start = position + 1;
        position += part.len() + 1;
        if text.trim().is_empty() {
            break;
        }
        let wrong = |what: String| Error::invalid_argument(format!("TCUDA_ALLOC_CONF '{text}', at character {start}: {what}"));
        let Some((key, value)) = part.split_once(':') else {
            return Err(wrong(format!("'{part}' is no key:value pair.")));
        };
        let (key, value) = (key.trim(), value.trim());
        match key {
            "expandable_segments" => {
                options.expandable_segments = match value {
                    "True" | "true" | "1" => true,
                    "False" | "false" | "0" => false,
                    _ => return Err(wrong(format!("{key} is '{value}'; it can be true or false."))),
                }
            }
            "per_process_memory_fraction" => {
                let fraction = value.parse().ok().filter(|fraction| (0.0..=1.0).contains(fraction));
                options.per_process_memory_fraction =
                    fraction.ok_or_else(|| wrong(format!("{key} is '{value}'; it can be a number from 0 to 1.")))?;
            }
            _ => return Err(wrong(format!("the key '{key}' is unknown; known are {}.", KEYS.join(" and ")))),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_texts() {
        assert_eq!(parse("").unwrap(), Options::default());
        let both = parse("expandable_segments:False, per_process_memory_fraction:0.5").unwrap();
        assert_eq!(both, Options { expandable_segments: false, per_process_memory_fraction: 0.5 });
    }

    #[test]
    fn wrong_texts_are_refused_with_the_place() {
        for (text, place) in [
            ("expandable_segments", "character 1"),
            ("expandable_segments:maybe", "character 1"),
            ("expandable_segments:true,x:1", "character 26"),
            ("expandable_segments:true,", "character 26"),
            ("per_process_memory_fraction:1.5", "character 1"),
            ("per_process_memory_fraction:nan", "character 1"),
            ("expandable_segments,true", "character 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message.contains(place), "{error}");
        }
    }
}
