//! The checkpoint files of a run: the last one, and some before it.
//!
//! `last.safetensors` is the newest. When the next one is written, it becomes `e7.safetensors` (after 7 epochs) or `e7s40.safetensors`
//! (after 40 steps more).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

const EXTENSION: &str = ".safetensors";

/// How far training has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Epochs trained.
    pub(crate) epochs: u32,
    /// Steps of the next epoch that are trained.
    pub(crate) steps: u32,
}

impl Position {
    /// Returns the position after `epochs` epochs.
    pub(crate) fn after(epochs: u32) -> Self {
        Self { epochs, steps: 0 }
    }
}

/// `e7`, or `e7s40`.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.epochs)?;
        if self.steps > 0 {
            write!(f, "s{}", self.steps)?;
        }
        Ok(())
    }
}

impl FromStr for Position {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let text = text.strip_prefix('e').ok_or(())?;
        let (epochs, steps) = text.split_once('s').unwrap_or((text, "0"));
        let number = |text: &str| text.parse().map_err(|_| ());
        Ok(Self { epochs: number(epochs)?, steps: number(steps)? })
    }
}

/// Returns the path of the last checkpoint in `folder`.
pub(crate) fn last(folder: &Path) -> PathBuf {
    folder.join(format!("last{EXTENSION}"))
}

fn before(folder: &Path, at: Position) -> PathBuf {
    folder.join(format!("{at}{EXTENSION}"))
}

/// Returns the checkpoints before the last one in `folder`, from the newest on.
fn all_before(folder: &Path) -> Result<Vec<Position>, Error> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", folder)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(Error::io("read", folder))?.file_name();
        let position: Option<Position> = name.to_str().and_then(|name| name.strip_suffix(EXTENSION)?.parse().ok());
        found.extend(position);
    }
    found.sort_by(|a: &Position, b| b.cmp(a));
    Ok(found)
}

/// Returns the files of all checkpoints in `folder`, from the last one on.
///
/// # Errors
/// If the folder cannot be read.
pub(crate) fn newest_first(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let earlier = all_before(folder)?.into_iter().map(|at| before(folder, at));
    Ok(std::iter::once(last(folder)).filter(|last| last.exists()).chain(earlier).collect())
}

/// Gives the last checkpoint, which is of `at`, a second name, before another one replaces it.
///
/// # Errors
/// If the folder cannot be changed.
pub(crate) fn set_aside(folder: &Path, at: Position) -> Result<(), Error> {
    let (from, to) = (last(folder), before(folder, at));
    // The run may have continued after a checkpoint before the last one, which is damaged or missing.
    if to.exists() {
        return Ok(());
    }
    gnnflow_data::fs::link_or_copy(&from, &to).map_err(Error::io("copy", from))
}

/// Removes all checkpoints but `keep`, of which the last one is of `at`. Returns the positions of those that are left.
///
/// # Errors
/// If a file cannot be removed.
pub(crate) fn remove_old(folder: &Path, at: Position, keep: usize) -> Result<Vec<Position>, Error> {
    let mut kept = vec![at];
    for other in all_before(folder)? {
        if other < at && kept.len() < keep {
            kept.push(other);
        } else {
            let path = before(folder, other);
            gnnflow_data::fs::remove(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_parse_their_display() {
        for (epochs, steps, text) in [(7, 0, "e7"), (7, 40, "e7s40"), (0, 1, "e0s1")] {
            let position = Position { epochs, steps };
            assert_eq!(position.to_string(), text);
            assert_eq!(text.parse(), Ok(position));
        }
        for text in ["7", "e", "e7s", "last", "e-1"] {
            assert_eq!(text.parse::<Position>(), Err(()), "{text}");
        }
    }

    #[test]
    fn newest_checkpoints_are_kept_in_order() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        let write = |name: &str| std::fs::write(folder.join(name), "").unwrap();
        let names = || -> Vec<String> {
            let files = newest_first(folder).unwrap().into_iter();
            files.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(newest_first(&folder.join("none")).unwrap(), Vec::<PathBuf>::new());
        write("embeddings-e3-p00000.safetensors");
        let mut before = None;
        for at in [(3, 0), (9, 0), (9, 5), (10, 0)].map(|(epochs, steps)| Position { epochs, steps }) {
            if let Some(before) = before.replace(at) {
                set_aside(folder, before).unwrap();
            }
            write("last.safetensors");
        }
        assert_eq!(names(), ["last", "e9s5", "e9", "e3"].map(|name| format!("{name}.safetensors")));
        let [last, e9] = [Position::after(10), Position::after(9)];
        assert_eq!(remove_old(folder, last, 3).unwrap(), [last, Position { epochs: 9, steps: 5 }, e9]);
        assert_eq!(names(), ["last", "e9s5", "e9"].map(|name| format!("{name}.safetensors")));
        // A run that has continued after an earlier checkpoint replaces those after it.
        std::fs::remove_file(folder.join("last.safetensors")).unwrap();
        set_aside(folder, e9).unwrap();
        write("last.safetensors");
        assert_eq!(remove_old(folder, Position { epochs: 9, steps: 3 }, 9).unwrap().len(), 2);
        assert_eq!(names(), ["last", "e9"].map(|name| format!("{name}.safetensors")));
        assert_eq!(remove_old(folder, last, 1).unwrap(), [last]);
        assert_eq!(names(), ["last.safetensors"]);
        assert!(folder.join("embeddings-e3-p00000.safetensors").exists());
    }
}
