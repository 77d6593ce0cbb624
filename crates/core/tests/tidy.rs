//! The house inspects itself: what a reviewer would otherwise have to look for by hand.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fs, iter};

#[test]
fn arrows_between_packages_stand_in_the_table() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = arrows_of(&page);
    let mut faults = Vec::new();
    for folder in packages() {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = ")).unwrap();
        let name = name.trim_matches('"');
        let Some(allowed) = table.get(name) else {
            faults.push(format!("{name} isn't in the table"));
            continue;
        };
        for used in dependencies_of(&manifest).filter(|used| table.contains_key(used)) {
            if !allowed.contains(&used) {
                faults.push(format!("{name} uses {used}: that arrow isn't in the table"));
            }
        }
    }
    none("ARCHITECTURE.md, \"may use\"", &faults);
}

#[test]
fn every_package_says_its_invariant() {
    let mut faults = Vec::new();
    for folder in packages() {
        let library = folder.join("src/lib.rs");
        let main = if library.exists() { library } else { folder.join("src/main.rs") };
        if !fs::read_to_string(&main).unwrap().contains("//! **Invariant.** ") {
            faults.push(format!("{} says no `**Invariant.**` in its header", main.display()));
        }
    }
    none("a package's header ends with its invariant", &faults);
}

#[test]
fn lines_fit_the_screen() {
    each_source("a line is at most 100 columns wide", |source, faults| {
        for (at, line) in source.lines() {
            if line.chars().count() > COLUMNS_MAX {
                faults.push(format!("{}:{at}", source.name()));
            }
        }
    });
}

#[test]
fn functions_are_one_thought() {
    each_source("a function is at most 70 lines long (or says `// A table.`)", |source, faults| {
        for body in functions_of(&source.text) {
            let lines: Vec<&str> = source.text.lines().skip(body.start).take(body.len()).collect();
            let is_table = lines.iter().any(|line| line.trim().starts_with("// A table"));
            if lines.len() > FUNCTION_LINES_MAX && !is_table {
                let (name, at) = (source.name(), body.start + 1);
                faults.push(format!("{name}:{at}: {} lines: {}", lines.len(), lines[0].trim()));
            }
        }
    });
}

#[test]
fn long_files_explain_themselves() {
    each_source("a file of over 900 lines says `// Long because: …`", |source, faults| {
        let is_long = source.text.lines().count() > FILE_LINES_MAX;
        if is_long && !source.text.contains("// Long because: ") {
            faults.push(source.name());
        }
    });
}

#[test]
fn nothing_is_left_for_later() {
    // Put together here, so that this file doesn't accuse itself.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")];
    each_source("what is missing is said in words, or done", |source, faults| {
        for (at, line) in source.lines() {
            if marks.iter().any(|mark| line.contains(mark)) {
                faults.push(format!("{}:{at}", source.name()));
            }
        }
    });
}

#[test]
fn every_test_runs() {
    let mark = concat!("#[ig", "nore");
    each_source("no test is ignored: a known wrong is asserted as it is", |source, faults| {
        if source.text.contains(mark) {
            faults.push(source.name());
        }
    });
}

#[test]
fn the_length_of_a_function_is_found() {
    let text = "impl X {\n    pub fn a() {\n        b();\n    }\n\n    fn c() -> u8 { 1 }\n\n    \
                fn d(\n        e: u8,\n    ) {\n        e\n    }\n}\n";
    assert_eq!(functions_of(text), [1..4, 5..6, 7..12]);
}

/// One file that people wrote.
struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    /// Its path within the project.
    fn name(&self) -> String {
        self.path.strip_prefix(root()).unwrap_or(&self.path).display().to_string()
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        iter::zip(1.., self.text.lines())
    }
}

fn each_source(rule: &str, inspect: impl Fn(&Source, &mut Vec<String>)) {
    let mut faults = Vec::new();
    let mut folders = packages();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                // What a program wrote is that program's business.
                if !text.lines().next().is_some_and(|line| line.contains("@generated")) {
                    inspect(&Source { path, text }, &mut faults);
                }
            }
        }
    }
    none(rule, &faults);
}

fn none(rule: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{rule}; not so:\n{}", faults.join("\n"));
}

/// The lines of each function, from its `fn` to its end. Relies on the tree being formatted: a
/// function ends at the first `}`, or for a mere signature `);` or the like, that is indented as
/// its beginning is.
fn functions_of(text: &str) -> Vec<Range<usize>> {
    let lines: Vec<&str> = text.lines().collect();
    let starts = (0..lines.len()).filter(|&at| is_function(lines[at]));
    let length_from = |start: usize| {
        let line = lines[start];
        if line.ends_with([';', '}']) {
            return Some(1);
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_end = |line: &&str| {
            let code = line.strip_prefix(indent).unwrap_or_default();
            code == "}" || code.starts_with(')') && code.ends_with(';')
        };
        lines[start..].iter().position(is_end).map(|at| at + 1)
    };
    starts.filter_map(|start| Some(start..start + length_from(start)?)).collect()
}

/// Whether a line begins a function: nothing but qualifiers stands before `fn`.
fn is_function(line: &str) -> bool {
    let qualifiers = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe"];
    let mut words = line.split_whitespace().skip_while(|word| qualifiers.contains(word));
    words.next() == Some("fn")
}

/// The table `| package | may use |`: backquoted names on both sides.
fn arrows_of(page: &str) -> BTreeMap<&str, Vec<&str>> {
    let rows = page.lines().skip_while(|line| !line.starts_with("| package | may use |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut names = row.split('`').skip(1).step_by(2);
        (names.next().expect("a row names a package"), names.collect())
    })
    .collect()
}

/// What a manifest's packages need to run. What only their tests need may point anywhere.
fn dependencies_of(manifest: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    manifest.lines().filter_map(move |line| {
        if line.starts_with('[') {
            is_inside = line.ends_with("dependencies]") && !line.contains("dev-dependencies");
            return None;
        }
        let (name, _) = line.split_once(['.', ' ', '='])?;
        (is_inside && !name.starts_with('#')).then_some(name)
    })
}

fn packages() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("crates")).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("Cargo.toml").exists());
    folders.sort();
    folders
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

const COLUMNS_MAX: usize = 100;

const FUNCTION_LINES_MAX: usize = 70;

const FILE_LINES_MAX: usize = 900;
