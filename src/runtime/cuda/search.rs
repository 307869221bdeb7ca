//! Where a library of CUDA is looked for, in order. Nothing is loaded here.

use super::adapt::{BLAS_LIBRARIES, COLLECTIVES, COMPILERS, FFT_LIBRARIES, RUNTIMES};
use crate::base::{config, few};
use std::cmp::Reverse;
use std::env;
use std::path::{Path, PathBuf};

/// A library that is looked up.
pub struct Wanted {
    /// The variable that names a file.
    pub variable: &'static str,
    /// CUDA's major version (or another one, of what is not a part of CUDA) and the name, newest first.
    names: &'static [(i32, &'static str)],
    /// Below `nvidia` in the packages of Python.
    wheels: &'static [&'static str],
}

pub static RUNTIME: Wanted = Wanted { variable: "TCUDA_CUDART_PATH", names: &RUNTIMES, wheels: &["cu13/lib", "cuda_runtime/lib"] };
pub static COMPILER: Wanted = Wanted { variable: "TCUDA_NVRTC_PATH", names: &COMPILERS, wheels: &["cu13/lib", "cuda_nvrtc/lib"] };
pub static COLLECTIVE: Wanted = Wanted { variable: "TCUDA_NCCL_PATH", names: &COLLECTIVES, wheels: &["nccl/lib"] };

pub static BLAS: Wanted = Wanted { variable: "TCUDA_CUBLAS_PATH", names: &BLAS_LIBRARIES, wheels: &["cu13/lib", "cublas/lib"] };
pub static FFT: Wanted = Wanted { variable: "TCUDA_CUFFT_PATH", names: &FFT_LIBRARIES, wheels: &["cu13/lib", "cufft/lib"] };

/// One place, with the libraries to try there.
pub struct Place {
    /// As messages name it.
    pub name: String,
    pub candidates: Vec<Candidate>,
}

pub struct Candidate {
    pub how: How,
    /// The name or path as the loader takes it.
    pub file: PathBuf,
    /// CUDA's major version, where the name tells.
    pub major: Option<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// The process has it already.
    Loaded,
    /// The loader knows where such a name is.
    Named,
    /// A file that exists.
    Found,
    /// What the variable says.
    Given,
}

/// Every place, each looked up only when the one before had nothing. Where the variable is set there is no other place.
/// `local` is /usr/local.
pub fn places<'a>(wanted: &'a Wanted, local: &'a Path) -> Box<dyn Iterator<Item = Place> + 'a> {
    if let Some(path) = config::get(wanted.variable) {
        let candidates = vec![Candidate { how: How::Given, file: path.into(), major: None }];
        return Box::new(std::iter::once(Place { name: wanted.variable.into(), candidates }));
    }
    let named = [("what the process has already", How::Loaded), ("the loader's path", How::Named)];
    let folders: [fn(&Wanted, &Path) -> Place; 3] = [in_homes, in_toolkits, in_python];
    Box::new(named.into_iter().map(|place| by_name(wanted, place)).chain(folders.into_iter().map(|place| place(wanted, local))))
}

fn by_name(wanted: &Wanted, (name, how): (&str, How)) -> Place {
    let candidates = wanted.names.iter().map(|(major, soname)| Candidate { how, file: soname.into(), major: Some(*major) }).collect();
    Place { name: name.into(), candidates }
}

fn in_homes(wanted: &Wanted, _local: &Path) -> Place {
    let set: Vec<(&str, PathBuf)> = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(|name| Some((name, variable(name)?))).collect();
    if set.is_empty() {
        return Place { name: "CUDA_HOME and CUDA_PATH (not set)".into(), candidates: Vec::new() };
    }
    let names: Vec<String> = set.iter().map(|(name, path)| format!("{name}={}", path.display())).collect();
    in_folders(wanted, names.join(", "), set.iter().flat_map(|(_, home)| libraries_of(home)))
}

fn in_toolkits(wanted: &Wanted, local: &Path) -> Place {
    in_folders(wanted, format!("{}/cuda*", local.display()), toolkits(local).iter().flat_map(|home| libraries_of(home)))
}

fn in_python(wanted: &Wanted, local: &Path) -> Place {
    let prefixes = prefixes(local);
    let names: Vec<String> = prefixes.iter().map(|prefix| prefix.display().to_string()).collect();
    let name = format!("Python environments (lib and the packages' nvidia/*/lib) under {}", names.join(", "));
    in_folders(wanted, name, prefixes.iter().flat_map(|prefix| wheels(wanted, prefix)))
}

/// The libraries in these folders, newest first within a folder; a folder that is reached in several ways counts once.
fn in_folders(wanted: &Wanted, name: String, folders: impl Iterator<Item = PathBuf>) -> Place {
    let mut seen = Vec::new();
    let mut candidates = Vec::new();
    for folder in folders {
        let Ok(real) = folder.canonicalize() else { continue };
        if seen.contains(&real) {
            continue;
        }
        seen.push(real);
        for (major, soname) in wanted.names {
            let file = folder.join(soname);
            if file.exists() {
                candidates.push(Candidate { how: How::Found, file, major: Some(*major) });
            }
        }
    }
    Place { name, candidates }
}

/// Where a toolkit keeps its libraries.
fn libraries_of(home: &Path) -> [PathBuf; 2] {
    [home.join("lib64"), home.join("lib")]
}

/// `cuda`, which the administrator chose, then `cuda-13.0`, `cuda-12`, ... from the newest.
fn toolkits(root: &Path) -> Vec<PathBuf> {
    let mut names: Vec<String> = entries(root).into_iter().filter(|name| name.starts_with("cuda")).collect();
    few::sort_by_key(&mut names, |name| (name != "cuda", Reverse(version_in(name))));
    names.iter().map(|name| root.join(name)).collect()
}

fn version_in(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// Where Python keeps packages: the active environments, every python3 on PATH (where it lies and where it leads to), the system's
/// own, the user's.
fn prefixes(local: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).collect();
    for folder in env::split_paths(&env::var_os("PATH").unwrap_or_default()).take(64) {
        let python = folder.join("python3");
        if let Ok(real) = python.canonicalize() {
            let upper = |file: &Path| file.parent().and_then(Path::parent).map(Path::to_path_buf);
            found.extend([upper(&python), upper(&real)].into_iter().flatten());
        }
    }
    found.push(local.into());
    found.extend(env::home_dir().map(|home| home.join(".local")));
    let mut kept: Vec<PathBuf> = Vec::new();
    for prefix in found {
        if prefix.is_absolute() && !kept.contains(&prefix) {
            kept.push(prefix);
        }
    }
    kept
}

/// The folders that NVIDIA's wheels put the library into, under one prefix.
fn wheels(wanted: &Wanted, prefix: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for library in libraries_of(prefix) {
        // Conda has the library beside Python's own.
        if library.ends_with("lib") {
            found.push(library.clone());
        }
        for version in entries(&library).iter().filter(|name| name.starts_with("python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = library.join(version).join(packages).join("nvidia");
                found.extend(wanted.wheels.iter().map(|folder| nvidia.join(folder)));
            }
        }
    }
    found
}

fn entries(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str, files: &[&str]) -> PathBuf {
        let root = env::temp_dir().join(format!("tcuda-search-{name}-{}", std::process::id()));
        for file in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        root
    }

    #[test]
    fn the_chosen_toolkit_comes_first_then_the_newest() {
        let root = scratch("toolkits", &["cuda-9.2/x", "cuda-12.4/x", "cuda-12.10/x", "cuda/x", "lib/x"]);
        let names: Vec<_> = toolkits(&root).iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        assert_eq!(names, ["cuda", "cuda-12.10", "cuda-12.4", "cuda-9.2"]);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_folder_is_searched_once_and_from_the_newest() {
        let root = scratch("folders", &["real/libcudart.so.12", "real/libcudart.so.11.0", "real/libcudart.so.10"]);
        std::os::unix::fs::symlink(root.join("real"), root.join("link")).unwrap();
        let place = in_folders(&RUNTIME, "x".into(), ["none", "real", "link"].into_iter().map(|folder| root.join(folder)));
        let files: Vec<_> = place.candidates.iter().map(|c| (c.file.strip_prefix(&root).unwrap().to_str().unwrap(), c.major)).collect();
        assert_eq!(files, [("real/libcudart.so.12", Some(12)), ("real/libcudart.so.11.0", Some(11))]);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn wheels_of_both_generations_are_found() {
        let root = scratch(
            "wheels",
            &[
                "lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13",
                "lib/python3.12/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12",
                "lib64/python3.9/site-packages/nvidia/cuda_runtime/lib/libcudart.so.11.0",
                "lib/python3/dist-packages/nvidia/cuda_runtime/lib/libcudart.so.12",
                "lib/ruby/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12",
            ],
        );
        assert_eq!(wheels(&COMPILER, &root).len(), wheels(&RUNTIME, &root).len());
        let mut majors: Vec<_> =
            in_folders(&RUNTIME, "x".into(), wheels(&RUNTIME, &root).into_iter()).candidates.iter().map(|c| c.major.unwrap()).collect();
        majors.sort();
        assert_eq!(majors, [11, 12, 12, 13]);
        std::fs::remove_dir_all(root).unwrap();
    }
}
