//! Checks a document against the schema of the declared sections. Reports all problems, not only the first.

use super::checkpoint_every::CheckpointEvery;
use super::device::Device;
use super::reference::keys_and_tables_named;
use super::schema::{Choice, alternatives, at, expected, ordered_properties, table_of, types, words};
use super::tree::{Entry, Node, Value};
use super::values::{Bytes, Span};
use crate::error::{Problem, did_you_mean, own_word};
use serde_json::Value as Json;

impl Choice<'_> {
    fn check(&self, entries: &[Entry], node: &Node, path: &str, problems: &mut Vec<Problem>) {
        let kind = entries.iter().find(|entry| entry.key == "kind");
        let word = match kind.map(|entry| &entry.node.value) {
            Some(Value::String(word)) => word,
            other => {
                let found =
                    other.map_or_else(|| node.describe(), |_| kind.map_or(String::new(), |kind| kind.node.describe()));
                let place = kind.map_or(&node.place, |kind| &kind.place).clone();
                let message = format!("expected {}, found {found}", self.expected());
                return problems.push(Problem::new(place, format!("{path}.kind"), message));
            }
        };
        let table = self.table(word);
        if table.is_none() && !self.open {
            let place = kind.map_or(&node.place, |kind| &kind.place).clone();
            let message = format!("expected {}, found {word:?}{}", self.expected(), suggestion(word, &self.words()));
            return problems.push(Problem::new(place, format!("{path}.kind"), message));
        }
        for entry in entries.iter().filter(|entry| entry.key != "kind") {
            let inner = format!("{path}.{}", entry.key);
            let key = entry.key.as_str();
            if let Some(property) = table.map(|table| &table["properties"][key]).filter(|property| !property.is_null())
            {
                check(property, &entry.node, &inner, problems);
                continue;
            }
            let having = self.kinds.iter().filter(|(_, table)| !table["properties"][key].is_null());
            let having: Vec<&str> = having.map(|(kind, _)| *kind).collect();
            let message = if having.is_empty() {
                let known = table.into_iter().flat_map(ordered_properties);
                let known: Vec<&str> = known.map(|(key, _)| key).collect();
                format!("unknown key of `{word}`{}", key_suggestion(key, &known))
            } else {
                of_other_kinds(word, &having)
            };
            problems.push(Problem::new(entry.place.clone(), inner, message));
        }
    }
}

/// Returns the error text for a key that the kind `word` does not have, and the kinds `having` have.
pub(crate) fn of_other_kinds(word: &str, having: &[&str]) -> String {
    let having: Vec<String> = having.iter().map(|kind| format!("`{kind}`")).collect();
    match having.split_last() {
        Some((last, others)) if !others.is_empty() => {
            format!("unknown key of `{word}`; only {} and {last} have it", others.join(", "))
        }
        _ => format!("unknown key of `{word}`; only {} has it", having.concat()),
    }
}

/// Replaces the word of each choice in `node` by its table, and adds `kind` to tables without it.
pub(crate) fn expand(schema: &Json, node: &mut Node) {
    if let Some(choice) = Choice::of(schema) {
        let place = node.place.clone();
        let kind = |word: &str| Entry {
            key: "kind".into(),
            place: place.clone(),
            node: Node { place: place.clone(), value: Value::String(word.into()) },
        };
        match &mut node.value {
            Value::String(word) if choice.open || choice.table(word).is_some() => {
                node.value = Value::Table(vec![kind(word)]);
            }
            Value::Table(entries) => {
                if !entries.iter().any(|entry| entry.key == "kind") {
                    entries.push(kind(choice.default()));
                }
                let word = entries.iter().find(|entry| entry.key == "kind").map(|entry| entry.node.value.clone());
                let Some(Value::String(word)) = word else { return };
                let Some(table) = choice.table(&word) else { return };
                entries.iter_mut().for_each(|entry| expand(&table["properties"][&entry.key], &mut entry.node));
            }
            _ => {}
        }
        return;
    }
    match &mut node.value {
        Value::Table(entries) => {
            let Some(table) = table_of(schema) else { return };
            entries.iter_mut().for_each(|entry| expand(&table["properties"][&entry.key], &mut entry.node));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| expand(&schema["items"], item)),
        _ => {}
    }
}

/// Appends the differences of `node` (at the dotted `path`) from `schema` to `problems`.
pub(crate) fn check(schema: &Json, node: &Node, path: &str, problems: &mut Vec<Problem>) {
    let mut report = |message: String| problems.push(Problem::new(node.place.clone(), path, message));
    if let Some(choice) = Choice::of(schema) {
        return match &node.value {
            Value::Table(entries) => choice.check(entries, node, path, problems),
            Value::String(word) => {
                let meant = suggestion(word, &choice.words());
                report(format!("expected {}, found {word:?}{meant}", choice.expected()));
            }
            _ => report(format!("expected {}, or a table, found {}", choice.expected(), node.describe())),
        };
    }
    let choices = alternatives(schema);
    if choices.len() > 1 {
        let words = words(schema);
        match (&node.value, choices.iter().filter(|choice| fits_type(choice, node)).collect::<Vec<_>>().as_slice()) {
            (Value::String(text), _) if words.len() == choices.len() => {
                if !words.iter().any(|word| word == text) {
                    report(format!("expected {}, found {text:?}{}", expected(schema), suggestion(text, &words)));
                }
            }
            // The other alternatives are not strings, and belong into the message.
            (Value::String(text), [choice]) if is_other_word(choice, text) => {
                report(format!("expected {}, found {text:?}", expected(schema)));
            }
            (_, [choice]) => check(choice, node, path, problems),
            _ => report(format!("expected {}, found {}", expected(schema), node.describe())),
        }
        return;
    }
    let schema = choices[0];
    if !fits_type(schema, node) {
        return report(format!("expected {}, found {}", expected(schema), node.describe()));
    }
    match &node.value {
        Value::Table(entries) => {
            let known: Vec<&str> = ordered_properties(schema).into_iter().map(|(key, _)| key).collect();
            for entry in entries {
                let inner = if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
                match &schema["properties"][&entry.key] {
                    Json::Null if schema["additionalProperties"].is_object() => {
                        check(&schema["additionalProperties"], &entry.node, &inner, problems);
                    }
                    Json::Null => {
                        let message = format!("unknown key{}", key_suggestion(&entry.key, &known));
                        problems.push(Problem::new(entry.place.clone(), inner, message));
                    }
                    property => check(property, &entry.node, &inner, problems),
                }
            }
        }
        Value::Array(items) => {
            let (least, most) = (schema["minItems"].as_u64(), schema["maxItems"].as_u64());
            let found = items.len() as u64;
            if least == most && least.is_some_and(|n| n != found) {
                report(format!("expected a list of {} values, found {found}", least.unwrap_or(0)));
            } else if least.is_some_and(|n| found < n) {
                report("expected a list that is not empty".into());
            }
            for (i, item) in items.iter().enumerate() {
                check(&schema["items"], item, &format!("{path}[{i}]"), problems);
            }
        }
        Value::String(text) => {
            let format = schema["format"].as_str();
            let parsed = match format {
                Some("size") => text.parse::<Bytes>().map(drop),
                Some("duration") => text.parse::<Span>().map(drop),
                Some("checkpoints") => text.parse::<CheckpointEvery>().map(drop),
                Some("device") => text.parse::<Device>().map(drop),
                _ => Ok(()),
            };
            let words = words(schema);
            if let Err(message) = parsed {
                report(message);
            } else if !words.is_empty() && !words.contains(&text.as_str()) {
                report(format!("expected {}, found {text:?}{}", expected(schema), suggestion(text, &words)));
            }
        }
        Value::Integer(number) => bounds(schema, *number as f64, &mut report),
        Value::Float(number) if !number.is_finite() => report(format!("expected a finite number, found {number}")),
        Value::Float(number) => bounds(schema, *number, &mut report),
        Value::Boolean(_) | Value::Datetime(_) => {}
    }
}

fn bounds(schema: &Json, number: f64, report: &mut dyn FnMut(String)) {
    let wrong = [
        ("minimum", "at least", number < schema["minimum"].as_f64().unwrap_or(number)),
        ("exclusiveMinimum", "more than", schema["exclusiveMinimum"].as_f64().is_some_and(|least| number <= least)),
        ("maximum", "at most", number > schema["maximum"].as_f64().unwrap_or(number)),
        ("exclusiveMaximum", "less than", schema["exclusiveMaximum"].as_f64().is_some_and(|most| number >= most)),
    ];
    if let Some((key, words, _)) = wrong.iter().find(|(_, _, wrong)| *wrong) {
        report(format!("must be {words} {}, but is {number}", schema[*key]));
    }
}

/// Whether a schema allows some words, and `text` is not one of them.
fn is_other_word(schema: &Json, text: &str) -> bool {
    let words = words(schema);
    !words.is_empty() && !words.contains(&text)
}

fn fits_type(schema: &Json, node: &Node) -> bool {
    if Choice::of(schema).is_some() {
        return matches!(node.value, Value::String(_) | Value::Table(_));
    }
    let choices = alternatives(schema);
    if choices.len() > 1 {
        return choices.iter().any(|choice| fits_type(choice, node));
    }
    types(choices[0]).iter().any(|name| {
        matches!(
            (*name, &node.value),
            ("string", Value::String(_))
                | ("integer", Value::Integer(_))
                | ("number", Value::Integer(_) | Value::Float(_))
                | ("boolean", Value::Boolean(_))
                | ("array", Value::Array(_))
                | ("object", Value::Table(_))
        )
    })
}

/// Returns the suggestion for the last part of an unknown dotted key.
pub(super) fn suggestion_for_path(schema: &Json, path: &str) -> String {
    let (parent, word) = path.rsplit_once('.').map_or((None, path), |(parent, word)| (Some(parent), word));
    let table = match parent {
        Some(parent) => at(schema, parent).and_then(table_of),
        None => table_of(schema),
    };
    let known: Vec<&str> = table.into_iter().flat_map(ordered_properties).map(|(key, _)| key).collect();
    key_suggestion(word, &known)
}

/// Maximum number of places with the same name that an error lists.
const MAX_SUGGESTIONS: usize = 4;

/// Returns the suggestion for an unknown key: gnnflow's word for it, if it is one of `known`; or the keys and tables of this name in
/// other tables; or the most similar one of `known`.
fn key_suggestion(key: &str, known: &[&str]) -> String {
    let here = own_word(key).is_some_and(|own| known.contains(&own));
    let elsewhere: Vec<String> = keys_and_tables_named(key).iter().map(|path| format!("\"{path}\"")).collect();
    match elsewhere.len() {
        1..=MAX_SUGGESTIONS if !here => format!("; did you mean {}?", elsewhere.join(" or ")),
        _ => suggestion(key, known),
    }
}

fn suggestion(word: &str, candidates: &[&str]) -> String {
    did_you_mean(word, candidates.iter().copied())
        .map_or_else(String::new, |meant| format!("; did you mean \"{meant}\"?"))
}
