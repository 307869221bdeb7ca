//! The embedded PTX. A family's kernels share a file, but each is loaded by itself when it is first launched: the driver compiles PTX when
//! it loads it, and a whole family would keep the first launch waiting for half a second.

use crate::base::{Error, Result};
use std::ffi::CString;
use std::io::Read;

/// One file of `kernels/`: its PTX for the oldest device first, each with the architecture that it needs (75 is compute capability 7.5).
pub struct Family {
    pub name: &'static str,
    /// Compressed with zstd, numbers as distances.
    pub images: &'static [(i32, &'static [u8])],
}

/// All that some family is there for.
pub(super) const ARCHITECTURES: &[i32] = &[75, 80];

const ENTRY: &str = ".visible .entry ";

impl Family {
    /// The PTX of one kernel for a device.
    pub fn ptx(&self, kernel: &str, architecture: i32) -> Result<CString> {
        let damaged = || Error::internal(format!("the PTX of the kernel {kernel} of the family '{}' cannot be read", self.name));
        // An older device than any is told so by its driver.
        let image = self.images.iter().rev().find(|(least, _)| *least <= architecture).or(self.images.first());
        let (_, image) = image.ok_or_else(damaged)?;
        let mut ptx = String::new();
        let mut decoder = ruzstd::decoding::StreamingDecoder::new(*image).map_err(|_| damaged())?;
        decoder.read_to_string(&mut ptx).map_err(|_| damaged())?;
        let one = cut(&ptx, kernel).ok_or_else(damaged)?;
        CString::new(one).map_err(|_| damaged())
    }
}

/// What all kernels of the text share, and one of them as it was compiled.
fn cut(ptx: &str, kernel: &str) -> Option<String> {
    let mut parts = ptx.split(ENTRY);
    let shared = parts.next()?;
    let one = parts.find(|part| part.strip_prefix(kernel).is_some_and(|rest| rest.starts_with('(')))?;
    Some(format!("{}{ENTRY}{}", absolute(shared), absolute(one)))
}

/// With the numbers of registers and labels for what they are stored as: distances from the last of that name that came first in a line.
/// Code that repeats is the same text then, and packs to less than half. `renumber` of kernels/build.py is the other way.
fn absolute(part: &str) -> String {
    let mut text = String::with_capacity(part.len());
    let mut last: Vec<(&str, i64)> = Vec::new();
    for line in part.split_inclusive('\n') {
        let (mut rest, mut first) = (line, true);
        while let Some(start) = rest.find(['%', '$']) {
            let end = |from: usize, is: fn(char) -> bool| rest[from..].find(|c| !is(c)).map_or(rest.len(), |length| from + length);
            let digits = end(start + 1, |c| c.is_ascii_alphabetic() || c == '_');
            let sign = usize::from(rest[digits..].starts_with('-'));
            let after = end(digits + sign, |c| c.is_ascii_digit());
            let name = &rest[start..digits];
            text.push_str(&rest[..digits]);
            match rest[digits..after].parse::<i64>() {
                Ok(distance) if name.len() > 1 => {
                    let at = last.iter().position(|(known, _)| *known == name).unwrap_or(last.len());
                    if at == last.len() {
                        last.push((name, 0));
                    }
                    let number = last[at].1 + distance;
                    if std::mem::take(&mut first) {
                        last[at].1 = number;
                    }
                    text.push_str(&number.to_string());
                }
                _ => text.push_str(&rest[digits..after]),
            }
            rest = &rest[after..];
        }
        text.push_str(rest);
    }
    text
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    fn fnv(data: &[u8]) -> u64 {
        data.iter().fold(0xcbf2_9ce4_8422_2325, |value, byte| (value ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    }

    /// The file and what it includes of ours, each once, in order: as `included` of kernels/build.py.
    fn included(path: &Path, found: &mut Vec<PathBuf>) {
        let path = path.canonicalize().unwrap();
        if found.contains(&path) {
            return;
        }
        found.push(path.clone());
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            if let Some(name) = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
                included(&path.parent().unwrap().join(name), found);
            }
        }
    }

    fn unpacked(image: &[u8]) -> String {
        let mut ptx = String::new();
        ruzstd::decoding::StreamingDecoder::new(image).unwrap().read_to_string(&mut ptx).unwrap();
        ptx.split(ENTRY).map(absolute).collect::<Vec<_>>().join(ENTRY)
    }

    /// The cheap half of `kernels/build.py --check`: what is embedded was made from the sources that lie beside it, as kernels/build.py says.
    #[test]
    fn the_ptx_is_of_these_sources() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels"));
        let digests = std::fs::read_to_string(folder.join("ptx/digests")).unwrap();
        let build = std::fs::read_to_string(folder.join("build.py")).unwrap();
        let of_recipe = |line: &&str| ["COMPILER = ", "FLAGS = ", "PTX_VERSION = "].iter().any(|name| line.starts_with(name));
        let recipe: String = build.split_inclusive('\n').filter(of_recipe).collect();
        assert_eq!(recipe.lines().count(), 3, "{recipe}");
        let (mut families, mut architectures) = (BTreeSet::new(), BTreeSet::<i32>::new());
        for line in digests.lines().skip(1) {
            let [name, source, image, compiled] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let (family, architecture) = name.rsplit_once('.').unwrap();
            architectures.insert(architecture.parse().unwrap());
            let mut files = Vec::new();
            included(&folder.join(format!("{family}.cu")), &mut files);
            let text = files.iter().flat_map(|file| std::fs::read(file).unwrap());
            let text: Vec<u8> = recipe.bytes().chain(text).collect();
            assert_eq!(
                source,
                format!("{:016x}", fnv(&text)),
                "kernels/{family}.cu, the compiler or its flags changed: run kernels/build.py"
            );
            let ptx = std::fs::read(folder.join(format!("ptx/{name}.ptx.zst"))).unwrap();
            assert_eq!(image, format!("{:016x}", fnv(&ptx)), "kernels/ptx/{name}.ptx.zst is not what kernels/build.py wrote");
            assert_eq!(compiled, format!("{:016x}", fnv(unpacked(&ptx).as_bytes())), "{name} does not become what was compiled");
            families.insert(family.to_owned());
        }
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let sources = names.filter(|path| path.extension().is_some_and(|extension| extension == "cu"));
        let sources: BTreeSet<String> = sources.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        assert_eq!(families, sources);
        assert!(architectures.iter().eq(ARCHITECTURES), "{architectures:?}");
    }

    /// That the kernel is there for every architecture, takes a struct of that size, and needs nothing newer than PTX 7.0.
    pub fn check_kernel(family: &Family, kernel: &str, argument: usize) {
        for (architecture, _) in family.images {
            let ptx = family.ptx(kernel, *architecture).unwrap().into_string().unwrap();
            assert!(ptx.starts_with(&format!(".version 7.0\n.target sm_{architecture}\n")), "{kernel}: {}", &ptx[..60]);
            let parameter = format!(".param .align 8 .b8 {kernel}_param_0[{argument}]");
            assert!(ptx.contains(&parameter), "{parameter}: the struct is not that of kernels/{}.cu", family.name);
            assert_eq!(ptx.matches(ENTRY).count(), 1);
            // What stands between two entries would be lost with the one before.
            let (_, after) = ptx.split_once(ENTRY).unwrap();
            let mut depth = 0;
            let body = after.find(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                c == '}' && depth == 0
            });
            assert!(after[body.unwrap() + 1..].trim().is_empty(), "{kernel}: something of the module follows it");
        }
    }

    #[test]
    fn one_kernel_is_cut_out() {
        let ptx = ".version 7.0\n.const a;\n.visible .entry one(\n)\n{ }\n.visible .entry one_more(\n)\n{ x }\n";
        assert_eq!(cut(ptx, "one").unwrap(), ".version 7.0\n.const a;\n.visible .entry one(\n)\n{ }\n");
        assert_eq!(cut(ptx, "one_more").unwrap(), ".version 7.0\n.const a;\n.visible .entry one_more(\n)\n{ x }\n");
        assert!(cut(ptx, "on").is_none() && cut(ptx, "more").is_none());
    }

    #[test]
    fn numbers_are_told_by_what_came_before() {
        let stored = "mov %r1, %tid.x;\nadd.s32 %r1, %r-1, %rd7;\n@%p1 bra $L2;\n$L2:\nst [%rd1], %r0, %SP, 5;\n}";
        let compiled = "mov %r1, %tid.x;\nadd.s32 %r2, %r1, %rd7;\n@%p1 bra $L2;\n$L2:\nst [%rd1], %r2, %SP, 5;\n}";
        assert_eq!(absolute(stored), compiled);
        assert_eq!(absolute("\n%, $ and %r-"), "\n%, $ and %r-");
        assert_eq!(absolute("%5 %r9-%r-3"), "%5 %r9-%r6");
    }

    #[test]
    fn the_newest_image_that_a_device_takes_is_taken() {
        use ruzstd::encoding::{CompressionLevel, compress_to_vec};
        let pack = |text: &str| &*Box::leak(compress_to_vec(text.as_bytes(), CompressionLevel::Fastest).into_boxed_slice());
        let old = pack(".target sm_75\n.visible .entry k()");
        let new = pack(".target sm_80\n.visible .entry k()");
        let images = Box::leak(Box::new([(75, old), (80, new)]));
        let family = Family { name: "test", images };
        let target = |architecture| family.ptx("k", architecture).unwrap().into_string().unwrap()[8..13].to_owned();
        assert_eq!([60, 75, 79, 80, 90, 120].map(target), ["sm_75", "sm_75", "sm_75", "sm_80", "sm_80", "sm_80"]);
        assert!(family.ptx("j", 90).unwrap_err().message.contains("'test'"));
        let broken = Family { name: "broken", images: &[(75, b"no zstd")] };
        assert!(broken.ptx("k", 90).is_err());
    }
}
