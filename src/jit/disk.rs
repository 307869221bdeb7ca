//! What was compiled, kept in files. Several processes may use one folder: a file appears under its name when it is whole. One that is
//! damaged is made anew, and a folder that cannot be written costs time only.

use crate::base::{config, entropy, log, process};
use crate::runtime::compile::Image;
use std::fs::{self, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const VARIABLE: &str = "TCUDA_JIT_CACHE";

/// Says which value is none.
pub fn configure() {
    if let Some(value) = config::get(VARIABLE).filter(|value| value != "0" && value != "1") {
        log::warn(&format!("{VARIABLE} is '{value}'; it can be 0 or 1. It counts as 1."));
    }
}

/// Where files go; None: nowhere.
pub fn folder() -> Option<PathBuf> {
    if config::get(VARIABLE).is_some_and(|value| value == "0") {
        return None;
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // By its specification, a relative path in it counts as unset.
    let caches = || set("XDG_CACHE_HOME").filter(|path| path.is_absolute()).or_else(|| Some(std::env::home_dir()?.join(".cache")));
    config::get("TCUDA_JIT_CACHE_PATH").map(PathBuf::from).or_else(|| Some(caches()?.join("tcuda/kernels")))
}

/// Whatever is not right with a file: it is not there.
pub fn load(folder: &Path, key: &str) -> Option<Image> {
    decode(&read(&folder.join(name_of(key)))?, key)
}

/// What is in a file is run, so it is one that nobody else could have written: none behind a link, no pipe to wait for.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()?;
    let found = file.metadata().ok()?;
    if !is_trusted(&found, process::user()) {
        return None;
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok().map(|_| bytes)
}

fn is_trusted(found: &Metadata, user: u32) -> bool {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    found.is_file() && found.mode() & WRITABLE_BY_OTHERS == 0 && [0, user].contains(&found.uid())
}

pub fn store(folder: &Path, key: &str, image: &Image) {
    if let Err(error) = try_store(folder, key, image) {
        // No Once: who hears it may compile too.
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) {
            log::info(&format!(
                "What is compiled at run time cannot be kept in {}: {error}. It is compiled again in each process.",
                folder.display()
            ));
        }
    }
}

fn try_store(folder: &Path, key: &str, image: &Image) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let name = name_of(key);
    remove_left(folder);
    // Numbers of processes come again, also beside each other: in containers.
    let own = folder.join(format!(".{name}.{:016x}", entropy::bits().map_err(|error| std::io::Error::other(error.message))?));
    let written = || {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&own)?;
        file.write_all(&encode(key, image))?;
        fs::rename(&own, folder.join(&name))
    };
    written().inspect_err(|_| drop(fs::remove_file(&own)))
}

/// What processes left that ended while they wrote, which takes some milliseconds.
fn remove_left(folder: &Path) {
    const OLD: Duration = Duration::from_secs(3600);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_own = name.to_str().is_some_and(|name| name.starts_with('.') && name.contains(".kernel."));
        let is_old = || entry.metadata()?.modified()?.elapsed().map_err(std::io::Error::other).map(|age| age > OLD);
        if is_own && is_old().unwrap_or(false) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn name_of(key: &str) -> String {
    format!("{:032x}.kernel", digest(key.as_bytes()))
}

/// FNV-1a of 128 bits. Each step can be undone, so a change of one byte always shows; and a file that another key hashes to is found
/// out, since it has its whole key in it.
fn digest(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |value, byte| {
        (value ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

const MAGIC: &[u8] = b"tcuda kernel 1\n";

/// The key, the image's parts, each behind its length, and the digest of all that.
fn encode(key: &str, image: &Image) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let symbols = image.symbols.join("\n");
    for part in [key.as_bytes(), symbols.as_bytes(), &image.code] {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part);
    }
    let end = digest(&bytes);
    bytes.extend(end.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8], key: &str) -> Option<Image> {
    let (body, end) = bytes.split_last_chunk::<16>()?;
    if digest(body) != u128::from_le_bytes(*end) {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?;
    let mut part = || {
        let (length, after) = rest.split_first_chunk::<8>()?;
        let (part, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        rest = after;
        Some(part)
    };
    let (stored, symbols, code) = (part()?, part()?, part()?);
    let symbols = std::str::from_utf8(symbols).ok()?;
    let symbols = symbols.lines().map(str::to_owned).collect();
    (stored == key.as_bytes()).then(|| Image { code: code.to_vec(), symbols })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        Image { code: (0..=255).cycle().take(1000).collect(), symbols: vec!["_Z1fIfE".into(), "g".into()] }
    }

    #[test]
    fn what_is_kept_comes_back_for_its_own_key_only() {
        let bytes = encode("key", &image());
        assert_eq!(decode(&bytes, "key"), Some(image()));
        // As if another key had the same digest.
        assert_eq!(decode(&bytes, "another"), None);
        let none = Image { code: vec![0], symbols: vec![] };
        assert_eq!(decode(&encode("", &none), ""), Some(none));
    }

    #[test]
    fn files_of_others_are_not_trusted() {
        let path = std::env::temp_dir().join(format!("tcuda-trusted-{:016x}", entropy::bits().unwrap()));
        fs::write(&path, "x").unwrap();
        let found = |mode| {
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            fs::metadata(&path).unwrap()
        };
        let own = process::user();
        let is_roots = found(0o600).uid() == 0;
        assert!(is_trusted(&found(0o600), own) && is_trusted(&found(0o755), own));
        assert!(is_trusted(&found(0o600), own + 1) == is_roots);
        for mode in [0o620, 0o602, 0o666] {
            assert!(!is_trusted(&found(mode), own), "{mode:o}");
        }
        if is_roots {
            // Only root can make one that is another's.
            std::os::unix::fs::chown(&path, Some(1), None).unwrap();
            assert!(!is_trusted(&found(0o600), own) && is_trusted(&found(0o600), 1));
        }
        fs::remove_file(&path).unwrap();
        assert!(!is_trusted(&fs::metadata("/proc").unwrap(), own));
    }

    #[test]
    fn damage_is_seen_wherever_it_is() {
        let bytes = encode("key", &image());
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length], "key"), None, "cut to {length}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert_eq!(decode(&damaged, "key"), None, "byte {at}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert_eq!(decode(&longer, "key"), None);
        // With a right digest, but lengths that are none.
        let mut wrong = MAGIC.to_vec();
        wrong.extend(u64::MAX.to_le_bytes());
        wrong.extend(digest(&wrong).to_le_bytes());
        assert_eq!(decode(&wrong, "key"), None);
    }

    /// The published values.
    #[test]
    fn the_digest_is_fnv_1a() {
        assert_eq!(digest(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(digest(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
