//! Pages that repeat what the code says, and their links.

use std::collections::BTreeSet;
use std::path::Path;
use tcuda::base::{config, status};
use tcuda::memory::options;
use tcuda::random::{self, Geometry};

fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
}

/// The cells of the table rows whose first cell passes.
fn rows(page: &str, first: impl Fn(&str) -> bool) -> Vec<Vec<String>> {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect::<Vec<_>>();
    page.lines().filter(|line| line.starts_with('|')).map(cells).filter(|cells| first(&cells[0])).collect()
}

#[test]
fn every_status_is_explained() {
    let listed: Vec<(i32, String)> = rows(&page("ERRORS.md"), |first| first.parse::<i32>().is_ok())
        .into_iter()
        .map(|cells| {
            assert!(cells.len() == 4 && !cells[2].is_empty(), "{cells:?}");
            (cells[0].parse().unwrap(), cells[1].clone())
        })
        .collect();
    let known: Vec<(i32, String)> = status::all().map(|status| (status as i32, status::name(status as i32).unwrap().to_string())).collect();
    assert_eq!(listed, known);
}

#[test]
fn every_variable_is_listed_as_it_is() {
    let listed = rows(&page("ENVIRONMENT.md"), |first| first.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
    let known: Vec<Vec<String>> = config::VARIABLES.iter().map(|v| [v.name, v.default, v.meaning].map(str::to_string).to_vec()).collect();
    assert_eq!(listed, known);
}

/// The texts of the sources that look like names of variables, without what is for tests only.
fn named_in_sources() -> BTreeSet<String> {
    fn walk(folder: &Path, names: &mut BTreeSet<String>) {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                walk(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !path.ends_with("model.rs")
                && !path.ends_with("base/config.rs")
            {
                let text = std::fs::read_to_string(&path).unwrap();
                let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
                let is_name =
                    |word: &&str| word.contains('_') && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
                names.extend(text.split('"').filter(is_name).map(str::to_owned));
            }
        }
    }
    let mut names = BTreeSet::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut names);
    names
}

#[test]
fn every_variable_that_the_sources_name_is_listed_and_every_listed_one_is_read() {
    let (named, page) = (named_in_sources(), page("ENVIRONMENT.md"));
    let header = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/tcuda.h")).unwrap();
    let prefixes = ["TCUDA_", "CUDA_", "CUBLAS_", "NVTX_", "XDG_", "VIRTUAL_", "CONDA_"];
    for name in named.iter().filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix))) {
        let known = name.starts_with("TCUDA_ERROR_")
            || name.contains("_STATUS_")
            || page.contains(&format!("`{name}`"))
            || header.contains(&format!("{name} "))
            || header.contains(&format!("{name}\n"));
        assert!(known, "docs/ENVIRONMENT.md does not tell of {name}");
    }
    for variable in config::VARIABLES {
        assert!(named.contains(variable.name), "nothing reads {}", variable.name);
    }
    assert!(named.contains("CONDA_PREFIX") && named.contains("TCUDA_LOG"));
}

#[test]
fn every_option_of_the_cache_is_listed_as_it_is() {
    let page = page("MEMORY.md");
    let table = |head: &str| {
        let (_, rest) = page.split_once(head).unwrap_or_else(|| panic!("no table {head}"));
        rows(rest.split_once("\n\n").unwrap().0, |first| !first.starts_with('-'))
    };
    let known: Vec<Vec<String>> =
        options::KEYS.iter().map(|key| vec![key.name.into(), key.default(), key.values.into(), key.meaning.into()]).collect();
    assert_eq!(table("| key | default | values | meaning |"), known);
    let known: Vec<Vec<String>> = options::WITHOUT_EFFECT.iter().map(|key| vec![key.name.into(), key.why.into()]).collect();
    assert_eq!(table("| key without effect | why |"), known);
}

#[test]
fn every_geometry_is_listed_as_it_is() {
    let listed = rows(&page("RANDOM.md"), |first| random::NAMED.iter().any(|(name, ..)| *name == first));
    let known = random::NAMED.iter().map(|(name, multiprocessors, threads)| {
        let most = Geometry::Named { multiprocessors: *multiprocessors, threads: *threads }.most_threads();
        let most = format!("{},{:03}", most / 1000, most % 1000);
        vec![name.to_string(), multiprocessors.to_string(), threads.to_string(), most]
    });
    assert_eq!(listed, known.collect::<Vec<_>>());
}

#[test]
fn every_function_that_stands_for_one_of_torchs_is_there() {
    let symbols = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tcuda.symbols")).unwrap();
    let symbols: BTreeSet<&str> = symbols.lines().collect();
    let cells = rows(&page("TORCH.md"), |first| !first.starts_with('-')).into_iter().flatten().collect::<Vec<_>>().join(" ");
    let words = cells.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| word.starts_with("tcuda_"));
    let named: BTreeSet<&str> = words.filter(|word| !word.ends_with("_t")).collect();
    let lacking: Vec<_> = named.difference(&symbols).collect();
    assert!(named.len() > 100 && lacking.is_empty(), "{} names, of which these are none: {lacking:?}", named.len());
}

#[test]
fn the_program_of_the_readme_is_the_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let program = readme.split_once("```c\n").and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    assert_eq!(program, std::fs::read_to_string(root.join("examples_c/hello.c")).unwrap());
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
}

#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let (mut links, mut anchors) = (0, 0);
    for page in docs.chain(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name))) {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let (target, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if target.is_empty() { page.clone() } else { page.parent().unwrap().join(target) };
            assert!(target.exists(), "{}: {link}", page.display());
            if !heading.is_empty() {
                let there = std::fs::read_to_string(target).unwrap();
                let found =
                    there.lines().filter_map(|line| line.strip_prefix('#')).any(|line| anchor(line.trim_start_matches('#')) == heading);
                assert!(found, "{}: {link}", page.display());
                anchors += 1;
            }
            links += 1;
        }
    }
    assert!(links > 10 && anchors > 10, "{links} links, {anchors} anchors");
}
