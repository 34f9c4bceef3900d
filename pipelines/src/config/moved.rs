//! Keys of older versions, and their replacements.

use super::tree::{Node, Value};
use crate::error::{Location, Problem};

/// The replacement of a key.
enum Now {
    /// An option of `train.schedule` or `train.sampler`: the choice, and the name of the option for each kind.
    Kinds(&'static str, &'static [(&'static str, &'static str)]),
    /// A table and its key; `""` for the whole table.
    Table(&'static str, &'static str),
}

/// Old keys, each before the table that contains it.
const MOVED: &[(&str, Now)] = &[
    ("train.cache", Now::Kinds("schedule", &[("mini-batch", "cache")])),
    ("train.cache_policy", Now::Kinds("schedule", &[("mini-batch", "cache_policy")])),
    ("train.seed_split", Now::Kinds("schedule", &[("mini-batch", "seed_split")])),
    ("train.average_every", Now::Kinds("schedule", &[("partition-parallel", "average_every")])),
    ("train.average_momentum", Now::Kinds("schedule", &[("partition-parallel", "average_momentum")])),
    ("train.mode", Now::Kinds("schedule", &[("full-graph", "mode"), ("tensor-parallel", "pipelined")])),
    ("train.staleness", Now::Kinds("schedule", &[("full-graph", "staleness")])),
    ("train.intervals", Now::Kinds("schedule", &[("full-graph", "intervals"), ("tensor-parallel", "intervals")])),
    ("train.row_dtype", Now::Kinds("schedule", &[("full-graph", "row_dtype"), ("tensor-parallel", "row_dtype")])),
    (
        "train.edges_per_epoch",
        Now::Kinds("schedule", &[("full-graph", "edges_per_epoch"), ("tensor-parallel", "edges_per_epoch")]),
    ),
    ("train.chunk_memory", Now::Kinds("schedule", &[("tensor-parallel", "chunk_memory")])),
    ("train.replace", Now::Kinds("sampler", &[("uniform", "replace"), ("weighted", "replace")])),
    ("train.temporal", Now::Kinds("sampler", &[("temporal", "take")])),
    ("train.clusters", Now::Kinds("sampler", &[("cluster", "clusters")])),
    ("train.clusters_per_batch", Now::Kinds("sampler", &[("cluster", "clusters_per_batch")])),
    ("train.walk_length", Now::Kinds("sampler", &[("saint-walk", "walk_length")])),
    ("train.walk_p", Now::Kinds("sampler", &[("saint-walk", "p")])),
    ("train.walk_q", Now::Kinds("sampler", &[("saint-walk", "q")])),
    (
        "train.sample_coverage",
        Now::Kinds("sampler", &[("saint-node", "coverage"), ("saint-edge", "coverage"), ("saint-walk", "coverage")]),
    ),
    ("train.fused_sampling", Now::Table("debug", "fused_sampling")),
    ("train.tensor_workers.enlist", Now::Table("train.tensor_workers", "accept")),
    ("train.tensor.enlist", Now::Table("train.tensor_workers", "accept")),
    ("train.tensor", Now::Table("train.tensor_workers", "")),
];

/// Removes the keys of older versions from `root`, and reports each with its replacement.
pub(crate) fn report(root: &mut Node, problems: &mut Vec<Problem>) {
    for (old, now) in MOVED {
        let Some(entry) = root.remove(old) else { continue };
        let is_in_table = |problem: &Problem| problem.key.strip_prefix(old).is_some_and(|rest| rest.starts_with('.'));
        if matches!(&entry.node.value, Value::Table(rest) if rest.is_empty()) && problems.iter().any(is_in_table) {
            // All keys of the table have been reported.
            continue;
        }
        let message = match now {
            Now::Kinds(choice, kinds) => {
                let given = root.entry(&format!("train.{choice}.kind")).map(|entry| &entry.node.value);
                let given = kinds.iter().find(|(kind, _)| matches!(given, Some(Value::String(word)) if word == kind));
                let (kind, key) = given.unwrap_or(&kinds[0]);
                match entry.place {
                    Location::Set { option, .. } => {
                        format!("write `{option} train.{choice}.{key}=..`, with `train.{choice}` = \"{kind}\"")
                    }
                    _ => format!("write `{choice} = {{ kind = \"{kind}\", {key} = .. }}`"),
                }
            }
            Now::Table(table, "") => match entry.place {
                Location::Set { option, .. } => format!("write `{option} {table}.KEY=..`"),
                _ => format!("write `[{table}]`"),
            },
            Now::Table(table, key) => match entry.place {
                Location::Set { option, .. } => format!("write `{option} {table}.{key}=..`"),
                _ => format!("write `{key}` in `[{table}]`"),
            },
        };
        problems.push(Problem::new(entry.place, *old, format!("`{old}` has moved: {message}")));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, Override, Registered, reference, schema};

    fn problems(train: &str, sets: &[String]) -> Vec<String> {
        let text = format!("[graph]\nnodes = 'n'\nedges = 'e'\n[model]\n[train]\n{train}");
        let sets: Vec<_> = sets.iter().cloned().map(Override::Set).collect();
        let error = Config::parse(&text, Path::new("p.toml"), &sets, &Registered::default()).unwrap_err();
        error.to_string().lines().map(String::from).collect()
    }

    #[test]
    fn messages_about_old_keys_name_their_replacements() {
        for (old, now) in MOVED {
            let key = old.strip_prefix("train.").unwrap();
            let [in_file, in_set] = match now {
                Now::Kinds(choice, kinds) => {
                    let (kind, new) = kinds[0];
                    [
                        format!("`{choice} = {{ kind = \"{kind}\", {new} = .. }}`"),
                        format!("`--set train.{choice}.{new}=..`"),
                    ]
                }
                Now::Table(table, "") => [format!("`[{table}]`"), format!("`--set {table}.KEY=..`")],
                Now::Table(table, new) => [format!("`{new}` in `[{table}]`"), format!("`--set {table}.{new}=..`")],
            };
            let value = if *old == "train.tensor" { "{}" } else { "1" };
            let found = problems(&format!("{key} = {value}"), &[]);
            assert!(found[0].starts_with(&format!("p.toml:6: {old}: `{old}` has moved: write {in_file}")), "{found:?}");
            assert_eq!(found.iter().filter(|line| line.contains("has moved")).count(), 1, "{found:?}");
            let found = problems("", &[format!("{old}={value}")]);
            assert!(found[0].starts_with(&format!("--set {old}: `{old}` has moved: write {in_set}")), "{found:?}");
            assert!(schema::at(reference::schema(), old).is_none(), "{old} is a key");
        }
    }

    #[test]
    fn all_replacements_are_keys() {
        for (old, now) in MOVED {
            match now {
                Now::Kinds(choice, kinds) => {
                    for (kind, key) in *kinds {
                        let sections = reference::sections();
                        let path = format!("train.{choice}");
                        let found =
                            sections.iter().find(|s| s.path == path && s.kind.as_deref() == Some(*kind)).unwrap();
                        let path = format!("{path}.{key}");
                        assert!(found.keys.iter().any(|found| found.path == path), "{old}: {kind} has no {key}");
                    }
                }
                Now::Table(table, "") => assert!(schema::at(reference::schema(), table).is_some()),
                Now::Table(table, key) => {
                    assert!(schema::at(reference::schema(), &format!("{table}.{key}")).is_some(), "{old}");
                }
            }
        }
    }

    #[test]
    fn messages_name_the_option_of_the_given_kind() {
        let found = problems("schedule = 'tensor-parallel'\nmode = 'sync'", &[]);
        assert_eq!(
            found,
            [
                "p.toml:7: train.mode: `train.mode` has moved: write `schedule = { kind = \"tensor-parallel\", pipelined = .. }`"
            ]
        );
        let found = problems("schedule = 'full-graph'", &["train.intervals=2".into()]);
        assert_eq!(
            found,
            [
                "--set train.intervals: `train.intervals` has moved: write `--set train.schedule.intervals=..`, with `train.schedule` = \"full-graph\""
            ]
        );
    }
}
