//! The keys of a run's pipeline, to compare runs.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::config::reference;
use crate::config::{Config, Registered};
use crate::error::Error;
use crate::outputs::run_folder::RunFolder;

/// All keys of the pipeline of a run as dotted paths, with their values. Keys without a value are absent. Keys that are newer than the run have
/// their defaults.
///
/// # Errors
/// [`Error::Input`] if it is no folder or has no pipeline, or the file is not TOML; [`Error::Io`] if it cannot be read.
pub fn read_settings(run_dir: &Path, registered: &Registered) -> Result<BTreeMap<String, Value>, Error> {
    let path = RunFolder::pipeline(run_dir);
    let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::Input(format!("{} is not a run folder: it has no pipeline.toml", run_dir.display()))
        }
        std::io::ErrorKind::NotADirectory => {
            let run = run_dir.display();
            Error::Input(format!("{run} is not a run folder, but a file; name run folders, or the folder of a sweep"))
        }
        _ => Error::io("read", &path)(error),
    })?;
    // The file of an older version may have keys that are refused now. It is then compared as it is.
    let text = Config::parse(&text, &path, &[], registered).map_or(text, |config| config.resolved_toml());
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| Error::Input(format!("{}: {error}", path.display())))?;
    let mut settings = BTreeMap::new();
    for (key, value) in table {
        flatten(key, serde_json::to_value(value).unwrap_or_default(), &mut settings);
    }
    Ok(settings)
}

fn flatten(path: String, value: Value, settings: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(inner) => {
            inner.into_iter().for_each(|(key, value)| flatten(format!("{path}.{key}"), value, settings));
        }
        value => drop(settings.insert(path, value)),
    }
}

/// Keys with inputs. What they name changes results, although the path does not.
const INPUTS: [&str; 5] = ["graph.nodes", "graph.edges", "graph.dataset", "partition.file", "train.from"];

/// Returns whether a key of a pipeline says what is computed: not how fast, nor where results are.
pub fn defines_results(path: &str) -> bool {
    let performance = || {
        reference::sections().into_iter().flat_map(|section| section.keys).any(|key| key.path == path && !key.results)
    };
    let places = path == "name" || path == "out" || path.ends_with(".out") || path.starts_with("price.");
    INPUTS.contains(&path) || !places && !performance()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BTreeMap<String, Value>, Error> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("pipeline.toml"), text).unwrap();
        read_settings(folder.path(), &Registered::default())
    }

    #[test]
    fn settings_are_dotted_keys_with_values() {
        let text = "[graph]\nnodes = 'n'\nedges = 'e'\n[model]\nhidden = 8\n[train]\nfanouts = [10, 5]\n";
        let settings = read(text).unwrap();
        assert_eq!(settings["model.hidden"], 8);
        assert_eq!(settings["train.fanouts"], serde_json::json!([10, 5]));
        // A default.
        assert_eq!(settings["train.optimizer"], "adam");
        // A key that no longer exists.
        assert_eq!(read("[model]\nwidth = 3").unwrap(), [("model.width".to_owned(), Value::from(3))].into());
    }

    #[test]
    fn folders_without_a_pipeline_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = read_settings(folder.path(), &Registered::default()).unwrap_err();
        assert!(error.to_string().ends_with("is not a run folder: it has no pipeline.toml"), "{error}");
        assert_eq!(read("name = ").unwrap_err().exit_code(), 3);
    }

    #[test]
    fn threads_and_folders_define_no_results() {
        assert_eq!(
            ["train.threads", "partition.out", "name", "train.schedule.prefetch"].map(defines_results),
            [false, false, false, true]
        );
        assert!(["train.seed", "model.hidden", "train.optimizer.lr", "graph.nodes"].into_iter().all(defines_results));
    }
}
