//! Keys that the command line sets or removes.

use super::tree::{self, Node};
use super::{check, reference, schema};
use crate::error::{Location, Problem};

/// A change of a pipeline file by the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Override {
    /// `--set KEY=VALUE` sets a dotted key. The value is TOML; a word that is not TOML is a string.
    Set(String),
    /// A value of `--vary KEY=VALUE,…`, as `KEY=VALUE`. It is like `--set`, and has its own name in messages.
    Vary(String),
    /// `--unset KEY` removes a dotted key or section, so that it has its default. The file may not have it.
    Unset(String),
}

/// Applies the overrides to the document, in order.
pub(super) fn apply(root: &mut Node, overrides: &[Override]) -> Vec<Problem> {
    let applied = overrides.iter().map(|change| match change {
        Override::Set(text) => set(root, "--set", text),
        Override::Vary(text) => set(root, "--vary", text),
        Override::Unset(key) => unset(root, key.trim()),
    });
    applied.filter_map(Result::err).collect()
}

fn set(root: &mut Node, option: &'static str, text: &str) -> Result<(), Problem> {
    let place = |key: &str| Location::Set { option, key: key.into() };
    let Some((key, raw)) = text.split_once('=') else {
        return Err(Problem::new(place(text), text, "expected KEY=VALUE, as in train.epochs=5"));
    };
    let (key, raw) = (key.trim(), raw.trim());
    let path: Vec<&str> = key.split('.').collect();
    if path.iter().any(|part| part.is_empty()) {
        return Err(Problem::new(place(key), key, "expected a dotted key, as in train.epochs"));
    }
    let mut node = Node::from_set(place(key), raw);
    // If the key is a string, `--set name=2024` sets the string "2024".
    let wants_string = schema::at(reference::schema(), key).is_some_and(schema::only_string);
    if wants_string && !matches!(node.value, tree::Value::String(_)) {
        node.value = tree::Value::String(raw.into());
    }
    let put = root.set(&path, node);
    check::expand(reference::schema(), root);
    put.map_err(|part| Problem::new(place(key), key, format!("`{part}` is not a table; set it as a whole")))
}

/// Removes `key`. Any key of the file can be removed, also an unknown one.
fn unset(root: &mut Node, key: &str) -> Result<(), Problem> {
    if root.remove(key).is_none() && schema::at(reference::schema(), key).is_none() {
        let message = format!("unknown key{}", check::suggestion_for_path(reference::schema(), key));
        return Err(Problem::new(Location::Unset(key.into()), key, message));
    }
    Ok(())
}
