//! The README and the book match the program: listings parse, commands run, links have targets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::TestDir;
use gnnflow_pipelines::config::{Config, Override, Registered};

/// A fenced listing. The words after its language are attributes:
///
/// | attribute | meaning |
/// |---|---|
/// | `fragment` | TOML: a part of a pipeline file, completed by [`BASE`] before it is checked |
/// | `registered` | TOML: uses the names that `examples/own_parts.rs` registers |
/// | `file=NAME` | TOML: the file name under which the page's commands read it |
/// | `run` | TOML: also run |
/// | `no-run="REASON"` | commands that cannot run here |
/// | `fails=CODE` | commands that end with this exit code |
/// | `files=import` | commands that `tests/import.rs` runs, with the files that they name |
struct Listing {
    language: String,
    attributes: String,
    text: String,
    place: String,
}

impl Listing {
    fn has(&self, attribute: &str) -> bool {
        self.attributes.split_whitespace().any(|word| word == attribute)
    }

    fn value(&self, attribute: &str) -> Option<&str> {
        let (_, rest) = self.attributes.split_once(&format!("{attribute}="))?;
        rest.split_whitespace().next()
    }
}

/// Sections that complete a fragment to a pipeline.
const BASE: [&str; 4] =
    ["[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\n", "[partition]\n", "[model]\n", "[train]\n"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the files with this extension in a folder and its subfolders.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path, extension)),
            false if path.extension().is_some_and(|found| found == extension) => found.push(path),
            false => {}
        }
    }
    found.sort();
    found
}

fn book() -> PathBuf {
    root().join("docs/book/src")
}

/// Returns the book's pages and the other Markdown documents for users.
fn documents() -> Vec<PathBuf> {
    let mut found = files(&book(), "md");
    assert!(found.len() >= 30);
    found.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    let others = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    found.extend(others.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    found
}

/// Returns the listings of a document, and its text without them.
fn listings(path: &Path) -> (Vec<Listing>, String) {
    let (mut found, mut prose): (Vec<Listing>, _) = (vec![], String::new());
    let mut open = false;
    for (number, line) in read(path).lines().enumerate() {
        match (line.strip_prefix("```"), open) {
            (Some(info), false) => {
                let (language, attributes) = info.split_once(' ').unwrap_or((info, ""));
                let place = format!("{}:{}", path.strip_prefix(root()).unwrap().display(), number + 1);
                let (language, attributes) = (language.to_owned(), attributes.to_owned());
                found.push(Listing { language, attributes, text: String::new(), place });
                open = true;
            }
            (Some(_), true) => open = false,
            (None, true) => found.last_mut().unwrap().text.extend([line, "\n"]),
            (None, false) => prose.extend([line, "\n"]),
        }
    }
    assert!(!open, "{}: a listing without an end", path.display());
    (found, prose)
}

/// Adds to a fragment the sections of [`BASE`] that it does not have.
fn completed(fragment: &str) -> String {
    let missing = BASE.iter().filter(|section| !fragment.lines().any(|line| section.starts_with(&format!("{line}\n"))));
    missing.fold(format!("{fragment}\n"), |text, section| text + section)
}

#[test]
fn every_toml_listing_is_a_valid_pipeline_or_a_part_of_one() {
    let mut count = 0;
    for path in documents() {
        for listing in listings(&path).0.iter().filter(|listing| listing.language == "toml") {
            let text = if listing.has("fragment") { completed(&listing.text) } else { listing.text.clone() };
            let own = |name: &str| if listing.has("registered") { vec![name.to_owned()] } else { vec![] };
            let registered = Registered {
                partitioners: own("stripes"),
                samplers: own("nearest"),
                layers: own("graphconv"),
                operators: own("mask"),
            };
            if let Err(error) = Config::parse(&text, Path::new(&listing.place), &[], &registered) {
                panic!("{}: {error}", listing.place);
            }
            count += 1;
        }
    }
    assert!(count >= 15, "{count}");
}

#[test]
fn every_command_runs_or_has_a_reason_not_to() {
    let binary = Path::new(env!("CARGO_BIN_EXE_gnnflow")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut count = 0;
    for document in documents() {
        let place = TestDir::new();
        for pipeline in crate::common::ready_made() {
            let name = pipeline.file_name().unwrap().to_string_lossy().into_owned();
            place.write(&format!("pipelines/{name}"), read(&pipeline));
        }
        let found = listings(&document).0;
        for listing in &found {
            if let Some(name) = listing.value("file") {
                place.write(name, &listing.text);
            }
        }
        let run = |commands: &str, code: i32, at: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-e", "-c", commands]).current_dir(place.path(".")).env("PATH", &path).stdin(Stdio::null());
            let output = shell.output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{at}: {}", String::from_utf8_lossy(&output.stderr));
        };
        for listing in &found {
            let commands = listing.text.lines().any(|line| line.starts_with("gnnflow "));
            if listing.language == "toml" && listing.has("run") {
                run(&format!("gnnflow run {}", listing.value("file").unwrap()), 0, &listing.place);
            } else if listing.language == "sh" && commands {
                if listing.has("files=import") {
                    continue;
                }
                if let Some(reason) = listing.value("no-run") {
                    assert!(reason.len() > 2, "{}", listing.place);
                    continue;
                }
                run(&listing.text, listing.value("fails").map_or(0, |code| code.parse().unwrap()), &listing.place);
                count += 1;
            }
        }
    }
    assert!(count >= 8, "{count}");
}

#[test]
fn every_rust_listing_is_a_part_of_an_example() {
    let examples: Vec<String> = files(&root().join("examples"), "rs").iter().map(|path| read(path)).collect();
    let mut count = 0;
    for document in documents() {
        for listing in listings(&document).0.iter().filter(|listing| listing.language == "rust") {
            assert!(examples.iter().any(|text| text.contains(&listing.text)), "{}: not in examples/", listing.place);
            count += 1;
        }
    }
    assert!(count >= 5, "{count}");
}

/// Returns the targets of the links and pictures in a text.
fn targets(prose: &str) -> impl Iterator<Item = &str> {
    prose.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// Returns the anchors of a page's headings, in the form of mdBook and GitHub.
fn anchors(page: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let prose = listings(page).1;
    for line in prose.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let letters = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            found.insert(letters.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
        if let Some(include) = line.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}")) {
            found.append(&mut anchors(&page.parent().unwrap().join(include)));
        }
    }
    found
}

#[test]
fn every_link_has_a_target() {
    for document in documents() {
        let prose = listings(&document).1;
        for include in prose.lines().filter_map(|line| line.strip_prefix("{{#include ")?.strip_suffix("}}")) {
            assert!(document.parent().unwrap().join(include).exists(), "{} includes {include}", document.display());
        }
        for target in targets(&prose).filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => document.clone(),
                file => document.parent().unwrap().join(file),
            };
            assert!(path.exists(), "{} links {target}", document.display());
            if !anchor.is_empty() {
                assert!(anchors(&path).contains(anchor), "{} links {target}", document.display());
            }
            if document.starts_with(book()) {
                let inside = path.canonicalize().unwrap().starts_with(book().canonicalize().unwrap());
                assert!(inside, "{} links {target}, which is not a part of the book", document.display());
            }
        }
    }
}

#[test]
fn every_page_is_in_the_summary_and_every_picture_on_a_page() {
    let src = book();
    let summary = read(&src.join("SUMMARY.md"));
    let mut listed = BTreeMap::new();
    targets(&summary).for_each(|target| *listed.entry(src.join(target)).or_insert(0) += 1);
    for page in files(&src, "md").into_iter().filter(|page| !page.ends_with("SUMMARY.md")) {
        assert_eq!(listed.remove(&page), Some(1), "{}", page.display());
    }
    assert!(listed.is_empty(), "{listed:?}");

    let mut used = BTreeSet::new();
    for page in files(&src, "md") {
        let prose = listings(&page).1;
        let pictures = targets(&prose).filter(|target| target.ends_with(".svg"));
        used.extend(pictures.map(|target| page.parent().unwrap().join(target).canonicalize().unwrap()));
    }
    let pictures = files(&src.join("img"), "svg");
    assert!(pictures.len() >= 12);
    for picture in pictures {
        assert!(used.contains(&picture.canonicalize().unwrap()), "no page shows {}", picture.display());
    }
}

#[test]
fn readme_has_the_two_commands_of_ci() {
    let commands: Vec<String> = listings(&root().join("README.md"))
        .0
        .iter()
        .filter(|listing| listing.language == "sh")
        .flat_map(|listing| listing.text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    for start in ["cargo run ", "cargo test "] {
        assert_eq!(commands.iter().filter(|command| command.starts_with(start)).count(), 1, "{start}");
    }
}

#[test]
fn pipelines_of_the_accuracy_table_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/book/src/accuracy");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 9);
    for file in files {
        for sets in [&[][..], &[Override::Set("train.seed=2".to_owned())]] {
            Config::load(&file, sets, &Registered::default()).unwrap();
        }
    }
}
