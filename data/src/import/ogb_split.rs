//! The split of an OGB download: `split/<how>/{train,valid,test}.csv.gz`, lists of node numbers.

use std::path::{Path, PathBuf};

use super::ogb_files::{find, missing, open};
use super::{Import, OgbPart};
use crate::dataset::split;
use crate::error::{Error, Result};

/// Returns the folder of the requested split; `None` without a split.
pub(super) fn folder(import: &Import, dir: &Path) -> Result<Option<PathBuf>> {
    if import.without.contains(&OgbPart::Split) {
        return Ok(None);
    }
    let splits = dir.join("split");
    if !splits.is_dir() {
        return Err(missing(dir, "split/", "the folder with train, valid and test nodes", Some("split")));
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&splits).map_err(Error::io(&splits, "list"))? {
        let path = entry.map_err(Error::io(&splits, "list"))?.path();
        if path.is_dir() {
            names.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    names.sort();
    let fail = |reason: String| Err(Error::File { path: splits.clone(), reason });
    match (&import.ogb_split, &names[..]) {
        (Some(wanted), _) if names.contains(wanted) => Ok(Some(splits.join(wanted))),
        (Some(wanted), _) => fail(format!("has no split \"{wanted}\"; it has {}", names.join(", "))),
        (None, [only]) => Ok(Some(splits.join(only))),
        (None, []) => fail("has no folder; fetch the download again, or ignore the split (--without split)".into()),
        (None, _) => fail(format!("has several splits ({}); choose one with --ogb-split", names.join(", "))),
    }
}

/// Returns the split of each of `nodes` nodes.
pub(super) fn read(folder: &Path, nodes: u64) -> Result<Vec<u8>> {
    let mut of = vec![split::NONE; nodes as usize];
    for (name, which) in [("train", split::TRAIN), ("valid", split::VAL), ("test", split::TEST)] {
        let Some(path) = find(folder, name) else {
            if folder.join("split_dict.pt").exists() {
                let reason = "the split is a PyTorch file; save train, valid and test as text (.csv.gz) beside it";
                return Err(Error::File { path: folder.join("split_dict.pt"), reason: reason.into() });
            }
            return Err(missing(folder, &format!("{name}.csv.gz"), "a part of the split", Some("split")));
        };
        let mut records = open(&path)?;
        while records.advance()? {
            let node = records.int(0, "node")?;
            let place = usize::try_from(node).ok().and_then(|node| of.get_mut(node));
            let place = place.ok_or_else(|| records.wrong(format!("node {node}, but there are {nodes} nodes")))?;
            if *place != split::NONE {
                return Err(records.wrong(format!("node {node} is already in the split")));
            }
            *place = which;
        }
    }
    Ok(of)
}
