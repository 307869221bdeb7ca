//! Pages of docs/ that repeat what the code says.

use std::path::Path;
use tcuda::base::{config, status};

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
    let listed = rows(&page("ENVIRONMENT.md"), |first| first.contains("CUDA"));
    let known: Vec<Vec<String>> = config::VARIABLES.iter().map(|v| [v.name, v.default, v.meaning].map(str::to_string).to_vec()).collect();
    assert_eq!(listed, known);
}
