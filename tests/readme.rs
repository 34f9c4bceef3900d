//! What the README shows is what the program takes.

use std::path::Path;

use gnnflow_pipelines::config::{Config, Registered};

/// The code blocks of one language in the README.
fn blocks(language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let after = |block: &str| block.split("\n```").next().unwrap_or_default().to_owned();
    text.split(&format!("\n```{language}\n")).skip(1).map(after).collect()
}

#[test]
fn its_pipelines_are_valid() {
    let pipelines = blocks("toml");
    assert!(!pipelines.is_empty());
    for text in pipelines {
        Config::parse(&text, Path::new("README.toml"), &[], &Registered::default()).unwrap();
    }
}

#[test]
fn it_has_the_two_commands_that_ci_runs() {
    let commands: Vec<String> =
        blocks("sh").iter().flat_map(|block| block.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    for start in ["cargo run ", "cargo test "] {
        assert_eq!(commands.iter().filter(|command| command.starts_with(start)).count(), 1, "{start}");
    }
}

#[test]
fn the_pipelines_behind_the_table_of_accuracies_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/accuracy");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 9);
    for file in files {
        for sets in [&[][..], &["train.seed=2".to_owned()]] {
            Config::load(&file, sets, &Registered::default()).unwrap();
        }
    }
}
#[test]
fn the_files_that_it_links_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("README.md")).unwrap();
    for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(link.contains("://") || root.join(link).exists(), "README.md links {link}");
    }
}
