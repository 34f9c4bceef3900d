//! A TOML document as values with their positions: a line of the file, or a `--set`.

use crate::error::{Location, Problem};
use serde_json::{Map, Number};
use toml::de::{DeTable, DeValue};

/// A value and its position.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) place: Location,
    pub(crate) value: Value,
}

/// A TOML value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    String(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Datetime(String),
    Array(Vec<Node>),
    Table(Vec<Entry>),
}

/// A key of a table. `place` is the position of the key; in a table header it differs from that of the value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) place: Location,
    pub(crate) node: Node,
}

impl Node {
    /// Reads a document. Continues after errors, to report all of them.
    pub(crate) fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let (root, errors) = DeTable::parse_recoverable(text);
        let line = |offset: usize| Location::Line(1 + text[..offset.min(text.len())].matches('\n').count());
        if !errors.is_empty() {
            let one = |error: &toml::de::Error| {
                let place = error.span().map_or(Location::File, |span| line(span.start));
                Problem::new(place, "", error.message().replace('\n', ", "))
            };
            return Err(errors.iter().map(one).collect());
        }
        Ok(Self { place: Location::File, value: table(root.get_ref(), &line) })
    }

    /// Parses the value of a `--set` or `--vary` as TOML; if that fails, `raw` is a string.
    pub(crate) fn from_set(place: Location, raw: &str) -> Self {
        let value = match DeValue::parse(raw) {
            Ok(parsed) => value(parsed.get_ref(), &|_| place.clone()),
            Err(_) => Value::String(raw.into()),
        };
        Self { place, value }
    }

    /// Puts `node` at the dotted `path`, and adds missing tables. `Err` has the part of the path that is not a table.
    pub(crate) fn set(&mut self, path: &[&str], node: Node) -> Result<(), String> {
        let (key, rest) = (path[0], &path[1..]);
        let Value::Table(entries) = &mut self.value else { return Err(key.into()) };
        let index = entries.iter().position(|entry| entry.key == key).unwrap_or_else(|| {
            let empty = Node { place: node.place.clone(), value: Value::Table(Vec::new()) };
            entries.push(Entry { key: key.into(), place: node.place.clone(), node: empty });
            entries.len() - 1
        });
        let entry = &mut entries[index];
        if rest.is_empty() {
            entry.place = node.place.clone();
            entry.node = node;
            return Ok(());
        }
        entry.node.set(rest, node).map_err(|inner| if inner == rest[0] { key.into() } else { inner })
    }

    pub(crate) fn remove(&mut self, path: &str) -> Option<Entry> {
        let (key, rest) = path.split_once('.').map_or((path, None), |(key, rest)| (key, Some(rest)));
        let Value::Table(entries) = &mut self.value else { return None };
        let index = entries.iter().position(|entry| entry.key == key)?;
        match rest {
            Some(rest) => entries[index].node.remove(rest),
            None => Some(entries.remove(index)),
        }
    }

    /// Returns the entry at a dotted path. `list[1].key` is a key of a list's item.
    pub(crate) fn entry(&self, path: &str) -> Option<&Entry> {
        let (key, rest) = path.split_once('.').map_or((path, None), |(key, rest)| (key, Some(rest)));
        let (key, item) = item_of(key);
        let Value::Table(entries) = &self.value else { return None };
        let entry = entries.iter().find(|entry| entry.key == key)?;
        let Some(rest) = rest else { return item.is_none().then_some(entry) };
        match (item, &entry.node.value) {
            (None, _) => entry.node.entry(rest),
            (Some(item), Value::Array(items)) => items.get(item)?.entry(rest),
            (Some(_), _) => None,
        }
    }

    /// Returns the position of the dotted `path`, or of its nearest ancestor in the document.
    pub(crate) fn place(&self, path: &str) -> Location {
        let mut path = path;
        loop {
            match (self.entry(path), path.rsplit_once('.')) {
                (Some(entry), _) => return entry.place.clone(),
                (None, Some((parent, _))) => path = parent,
                (None, None) => return Location::File,
            }
        }
    }

    /// Converts to JSON for serde. Dates become strings, but the schema has refused them before.
    pub(crate) fn json(&self) -> serde_json::Value {
        match &self.value {
            Value::String(text) | Value::Datetime(text) => text.as_str().into(),
            Value::Integer(number) => (*number).into(),
            Value::Float(number) => {
                Number::from_f64(*number).map_or(serde_json::Value::Null, serde_json::Value::Number)
            }
            Value::Boolean(yes) => (*yes).into(),
            Value::Array(items) => items.iter().map(Self::json).collect(),
            Value::Table(entries) => {
                let pairs = entries.iter().map(|entry| (entry.key.clone(), entry.node.json()));
                serde_json::Value::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }

    /// Describes the value for error messages: `the string "two"`.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            Value::String(text) => format!("the string {text:?}"),
            Value::Integer(number) => format!("the integer {number}"),
            Value::Float(number) => format!("the number {number:?}"),
            Value::Boolean(yes) => yes.to_string(),
            Value::Datetime(_) => "a date".into(),
            Value::Array(_) => "a list".into(),
            Value::Table(_) => "a table".into(),
        }
    }
}

/// Splits `key[1]` into `key` and 1.
fn item_of(key: &str) -> (&str, Option<usize>) {
    let item = key.strip_suffix(']').and_then(|key| key.rsplit_once('['));
    match item.and_then(|(key, index)| Some((key, index.parse().ok()?))) {
        Some((key, index)) => (key, Some(index)),
        None => (key, None),
    }
}

fn table(table: &DeTable<'_>, line: &dyn Fn(usize) -> Location) -> Value {
    let entries = table.iter().map(|(key, node)| Entry {
        key: key.get_ref().to_string(),
        place: line(key.span().start),
        node: Node { place: line(node.span().start), value: value(node.get_ref(), line) },
    });
    Value::Table(entries.collect())
}

fn value(from: &DeValue<'_>, line: &dyn Fn(usize) -> Location) -> Value {
    match from {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            // An integer that is too large for TOML. As a float it fails all bounds, and the message shows it.
            Err(_) => Value::Float(number.as_str().parse().unwrap_or(f64::INFINITY)),
        },
        DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(yes) => Value::Boolean(*yes),
        DeValue::Datetime(date) => Value::Datetime(date.to_string()),
        DeValue::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| Node { place: line(item.span().start), value: value(item.get_ref(), line) })
                .collect(),
        ),
        DeValue::Table(entries) => table(entries, line),
    }
}
