//! Runs of one pipeline with all combinations of some values.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gnnflow_data::format::{hex, plural};
use gnnflow_data::fs::write_atomic;
use gnnflow_pipelines::{Error as PipelineError, Summary, has_checkpoint, keep_earlier_run};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cluster::Launcher;
use crate::console::Console;
use crate::error::Error;
use crate::run_lock::RunLock;

/// The file of a sweep folder with the pipelines of its runs.
const FILE: &str = "sweep.json";
/// Maximum bytes of the name of a run folder.
const MAX_NAME: usize = 120;

/// A key and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Varied {
    key: String,
    values: Vec<String>,
}

impl Varied {
    /// The dotted path of the key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Reads `KEY=VALUE,VALUE,...`. Commas inside of brackets, braces and quotes belong to a value.
    ///
    /// ```
    /// use gnnflow::sweep::{Varied, combinations};
    ///
    /// let varied = [Varied::parse("model.hidden=16,32")?, Varied::parse("train.fanouts=[10,5],[15,10]")?];
    /// let all = combinations(&varied);
    /// assert_eq!(all.len(), 4);
    /// assert_eq!(all[1], ["model.hidden=16", "train.fanouts=[15,10]"]);
    /// # Ok::<(), gnnflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// A usage error if there is no key or an empty value, or if a value occurs twice.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            let example = "expected KEY=VALUE,VALUE, as in --vary model.hidden=64,128";
            Error::from(PipelineError::Usage(format!("--vary {text}: {why}; {example}")))
        };
        let (key, values) = text.split_once('=').ok_or_else(|| wrong("no `=`"))?;
        let values: Vec<String> = split(values).into_iter().map(|value| value.trim().to_owned()).collect();
        if key.trim().is_empty() || values.iter().any(String::is_empty) {
            return Err(wrong("an empty key or value"));
        }
        if let Some(twice) = values.iter().enumerate().find(|(i, value)| values[..*i].contains(value)) {
            return Err(wrong(&format!("{} occurs twice", twice.1)));
        }
        Ok(Self { key: key.trim().to_owned(), values })
    }
}

/// Splits at the commas that are not inside of brackets, braces or quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut first, mut parts) = (0_i32, 0, Vec::new());
    // The open quote; whether the character before it is a backslash that escapes the next one; whether a value begins here.
    let (mut quote, mut escaped, mut begins) = (None, false, true);
    for (at, character) in text.char_indices() {
        if let Some(open) = quote {
            quote = (escaped || character != open).then_some(open);
            escaped = !escaped && open == '"' && character == '\\';
            continue;
        }
        match character {
            '"' | '\'' if begins => quote = Some(character),
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[first..at]);
                first = at + 1;
            }
            _ => {}
        }
        begins = matches!(character, ',' | '[' | '{' | '=') || begins && character == ' ';
    }
    parts.push(&text[first..]);
    parts
}

/// Checks that every key varies once, and that `sets`, as `KEY=VALUE`, do not set it.
///
/// # Errors
/// A usage error that names the key.
pub fn check_keys(varied: &[Varied], sets: &[String]) -> Result<(), Error> {
    for (i, Varied { key, .. }) in varied.iter().enumerate() {
        if varied[..i].iter().any(|other| other.key == *key) {
            let message = format!("--vary {key} occurs twice; write all values after one --vary");
            return Err(PipelineError::Usage(message).into());
        }
        if sets.iter().any(|set| set.split('=').next().is_some_and(|set| set.trim() == key)) {
            return Err(PipelineError::Usage(format!(
                "--set {key} has no effect beside --vary {key}; remove one of them"
            ))
            .into());
        }
    }
    Ok(())
}

/// Returns all combinations as lists of `KEY=VALUE`. The last key varies fastest.
pub fn combinations(varied: &[Varied]) -> Vec<Vec<String>> {
    varied.iter().fold(vec![Vec::new()], |all, Varied { key, values }| {
        let with = |settings: &Vec<String>, value: &String| [&settings[..], &[format!("{key}={value}")]].concat();
        all.iter().flat_map(|settings| values.iter().map(move |value| with(settings, value))).collect()
    })
}

/// Returns the name of the folder of a combination: the last words of its keys and the values, `hidden=16,seed=1`. It depends on the
/// combination alone, so that a longer sweep finds the runs of a shorter one.
pub fn folder_name(settings: &[String]) -> String {
    let pairs: Vec<(&str, &str)> = settings.iter().filter_map(|setting| setting.split_once('=')).collect();
    let short = |key: &str| {
        let last = last_word(key);
        let of_keys = pairs.iter().filter(|(other, _)| last_word(other) == last).count();
        if of_keys == 1 { last.to_owned() } else { key.to_owned() }
    };
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' | '+' => Some(character),
        '[' | ']' | '{' | '}' | '"' | '\'' | ' ' => None,
        ',' => Some('-'),
        _ => Some('_'),
    };
    let part =
        |(key, value): &(&str, &str)| format!("{}={}", short(key), value.chars().filter_map(plain).collect::<String>());
    pairs.iter().map(part).collect::<Vec<_>>().join(",")
}

fn last_word(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// One run of a sweep.
#[derive(Clone, Debug)]
pub struct SweptRun {
    /// What it changes in the pipeline file, as `KEY=VALUE`.
    pub settings: Vec<String>,
    /// A hash of its pipeline with all defaults.
    pub hash: String,
    /// Its run folder.
    pub dir: PathBuf,
    /// The folder of its dataset, and a hash of the keys that define the dataset; `None` if it has been prepared.
    pub dataset: Option<(PathBuf, String)>,
    /// The arguments of `gnnflow run`, without the run folder.
    pub arguments: Vec<OsString>,
    /// Whether it writes a checkpoint when a signal ends it.
    pub checkpoint_on_signal: bool,
}

/// How a sweep has ended.
#[derive(Clone, Debug, Default)]
pub struct Swept {
    /// The folders of the runs that have finished, in their order.
    pub finished: Vec<PathBuf>,
    /// The exit code of the first run that failed, or 0.
    pub code: u8,
}

/// Runs what has not finished yet, one run after the other. A run that was interrupted is resumed. The runs after one that fails are
/// executed all the same.
///
/// # Errors
/// If the folder cannot be written, two runs have the same folder, or their datasets differ and have one; [`Error::Cluster`] if processes cannot be started.
pub fn sweep(folder: &Path, runs: &[SweptRun], console: &Console) -> Result<Swept, Error> {
    check_folders(runs)?;
    let _lock = RunLock::take(folder)?;
    let mut known = read_known(folder)?;
    let mut swept = Swept::default();
    for (number, run) in runs.iter().enumerate() {
        let title = format!("run {} of {}: {}", number + 1, runs.len(), run.settings.join(" "));
        let name = run.dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let finished = finished_pipeline(&run.dir);
        let before = known.get(&name).filter(|before| before.hash == run.hash);
        // The user may have run something else in the folder since.
        let same = before.is_some_and(|before| before.finished.is_none() || before.finished == finished);
        if same && before.is_some_and(|before| before.finished.is_some()) {
            console.say(&format!("{title}: has finished before, in {}", run.dir.display()));
            swept.finished.push(run.dir.clone());
            continue;
        }
        if !same && run.dir.is_dir() {
            // From here on, all results in the folder are those of this pipeline.
            let _lock = RunLock::take(&run.dir)?;
            keep_earlier_run(&run.dir, |line| console.say(line))?;
        }
        if !same {
            known.insert(name.clone(), Known { hash: run.hash.clone(), finished: None });
            write_known(folder, &known)?;
        }
        let resumes = same && has_checkpoint(&run.dir)?;
        console.say(&format!("{title}{}", if resumes { ": resumes" } else { "" }));
        let code = execute(run, resumes)?;
        match code {
            0 => {
                known.insert(name, Known { hash: run.hash.clone(), finished: finished_pipeline(&run.dir) });
                write_known(folder, &known)?;
                swept.finished.push(run.dir.clone());
            }
            130 => return Ok(Swept { code, ..swept }),
            _ => {
                console.say(&format!("{title}: failed with exit code {code}"));
                swept.code = if swept.code == 0 { code } else { swept.code };
            }
        }
    }
    console.say(&format!("{} of {} finished", swept.finished.len(), plural(runs.len(), "run")));
    Ok(swept)
}

/// Executes a run in a child process, whose messages are shown. Its table is not: a comparison of all runs follows.
fn execute(run: &SweptRun, resumes: bool) -> Result<u8, Error> {
    let mut launcher = Launcher::this_rank();
    launcher.shows_results = false;
    launcher.waits_after_signal = run.checkpoint_on_signal;
    launcher.arguments = vec!["run".into()];
    launcher.arguments.extend(run.arguments.iter().cloned());
    launcher.arguments.extend(["--run-dir".into(), run.dir.clone().into_os_string()]);
    if resumes {
        launcher.arguments.push(launcher.resume.clone());
    }
    Ok(launcher.run()?)
}

fn check_folders(runs: &[SweptRun]) -> Result<(), Error> {
    let mut taken: BTreeMap<&Path, &SweptRun> = BTreeMap::new();
    let mut datasets: BTreeMap<&Path, (&str, &SweptRun)> = BTreeMap::new();
    for run in runs {
        if let Some((folder, hash)) = &run.dataset {
            let (other_hash, other) = *datasets.entry(folder).or_insert((hash.as_str(), run));
            if other_hash != hash {
                let [a, b] = [other, run].map(|run| run.settings.join(" "));
                let message = format!(
                    "two runs would replace each other's dataset in {}: {a} and {b}; remove partition.out (from the file: --unset partition.out), \
                     and each dataset has its own folder",
                    folder.display()
                );
                return Err(PipelineError::Usage(message).into());
            }
        }
        if let Some(other) = taken.insert(&run.dir, run) {
            let [a, b] = [other, run].map(|run| run.settings.join(" "));
            let message = format!("two runs would have the folder {}: {a} and {b}", run.dir.display());
            return Err(PipelineError::Usage(message).into());
        }
        if run.dir.file_name().is_none_or(|name| name.len() > MAX_NAME) {
            let message = format!(
                "the settings {} are too long for the name of a folder; use shorter values, or fewer keys",
                run.settings.join(" ")
            );
            return Err(PipelineError::Usage(message).into());
        }
    }
    Ok(())
}

/// A run in `sweep.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Known {
    /// [`SweptRun::hash`].
    hash: String,
    /// The SHA-256 of `pipeline.toml` in the folder of the run, when it had finished.
    finished: Option<String>,
}

/// Returns the SHA-256 of the pipeline of the finished run in `dir`, if there is one.
fn finished_pipeline(dir: &Path) -> Option<String> {
    let pipeline = std::fs::read(dir.join("pipeline.toml")).ok()?;
    dir.join(Summary::FILE).is_file().then(|| hex(&Sha256::digest(pipeline)))
}

/// Reads the earlier runs, by the names of their folders.
fn read_known(folder: &Path) -> Result<BTreeMap<String, Known>, Error> {
    let path = folder.join(FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text).map_err(|error| {
            PipelineError::Input(format!("{}: not written by a sweep: {error}", path.display())).into()
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(PipelineError::io("read", &path)(error).into()),
    }
}

/// Returns the folders of the runs that a sweep in `folder` has begun, in the order of their names; none if the folder is not that of a sweep.
///
/// # Errors
/// If the list of the runs is damaged or cannot be read.
pub fn begun_runs(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let has_pipeline = |folder: &Path| folder.join("pipeline.toml").is_file();
    if has_pipeline(folder) || !folder.join(FILE).is_file() {
        return Ok(Vec::new());
    }
    let runs = read_known(folder)?.into_keys().map(|name| folder.join(name));
    Ok(runs.filter(|run| has_pipeline(run)).collect())
}

fn write_known(folder: &Path, known: &BTreeMap<String, Known>) -> Result<(), Error> {
    let path = folder.join(FILE);
    let text = serde_json::to_string_pretty(known).map_err(|error| PipelineError::Bug(error.to_string()))?;
    Ok(write_atomic(&path, text.as_bytes()).map_err(PipelineError::io("write", &path))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(texts: &[&str]) -> Vec<Vec<String>> {
        combinations(&texts.iter().map(|text| Varied::parse(text).unwrap()).collect::<Vec<_>>())
    }

    #[test]
    fn values_are_split_at_outer_commas() {
        assert_eq!(split("a,b"), ["a", "b"]);
        assert_eq!(split("[10, 5],[15,10]"), ["[10, 5]", "[15,10]"]);
        assert_eq!(split("{ kind = 'a,b', lr = 0.1 },\"x,y\""), ["{ kind = 'a,b', lr = 0.1 }", "\"x,y\""]);
        assert_eq!(split(r#""a\"b,c",d"#), [r#""a\"b,c""#, "d"]);
        assert_eq!(split(r#""a\\",b"#), [r#""a\\""#, "b"]);
        assert_eq!(split("it's,o'clock"), ["it's", "o'clock"]);
        assert_eq!(split(""), [""]);
    }

    #[test]
    fn wrong_lists_are_refused_with_an_example() {
        for (text, why) in [
            ("seed", "no `=`"),
            ("seed=", "empty"),
            ("=1,2", "empty"),
            ("seed=1,,2", "empty"),
            ("seed=1,2,1", "1 occurs twice"),
        ] {
            let error = Varied::parse(text).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains(why), "{error}");
            assert!(error.to_string().starts_with(&format!("--vary {text}: ")), "{error}");
        }
    }

    #[test]
    fn names_of_folders_are_short_and_differ() {
        let names: Vec<String> =
            settings(&["model.hidden=16,32", "train.seed=1,2"]).iter().map(|all| folder_name(all)).collect();
        assert_eq!(names, ["hidden=16,seed=1", "hidden=16,seed=2", "hidden=32,seed=1", "hidden=32,seed=2"]);
        let one = |texts: &[&str]| folder_name(&settings(texts)[0]);
        assert_eq!(one(&["graph.seed=1", "train.seed=2"]), "graph.seed=1,train.seed=2");
        assert_eq!(one(&["train.fanouts=[10,5]"]), "fanouts=10-5");
        assert_eq!(one(&["graph.nodes='a/b.parquet'"]), "nodes=a_b.parquet");
    }

    #[test]
    fn two_runs_never_share_a_folder() {
        let run = |dir: &str| SweptRun {
            settings: vec![],
            hash: String::new(),
            dir: dir.into(),
            dataset: None,
            arguments: vec![],
            checkpoint_on_signal: false,
        };
        assert!(check_folders(&[run("a"), run("b")]).is_ok());
        let of = |dir: &str, hash: &str| SweptRun { dataset: Some(("dataset".into(), hash.into())), ..run(dir) };
        assert!(check_folders(&[of("a", "1"), of("b", "1"), run("c")]).is_ok());
        assert_eq!(check_folders(&[of("a", "1"), of("b", "2")]).unwrap_err().exit_code(), 2);
        assert_eq!(check_folders(&[run("a"), run("a")]).unwrap_err().exit_code(), 2);
        assert_eq!(check_folders(&[run(&"a".repeat(MAX_NAME + 1))]).unwrap_err().exit_code(), 2);
    }
}
