//! Every key with its type, default and documentation, from the sections' own declarations; and the page that lists them.

use super::{Config, check};
use schemars::generate::SchemaSettings;
use serde_json::Value as Json;
use std::{fmt::Write, sync::LazyLock};

/// What `pipeline.toml` may hold, as a JSON Schema with nothing behind references.
///
/// Editors that know JSON Schema complete and check pipeline files by it.
pub fn schema() -> &'static Json {
    static SCHEMA: LazyLock<Json> = LazyLock::new(|| {
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        settings.into_generator().into_root_schema_for::<Config>().to_value()
    });
    &SCHEMA
}

/// One key of `pipeline.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The dotted path, as `--set` takes it.
    pub path: String,
    /// What the value may be, in words.
    pub kind: String,
    /// The value when the key is not there, as TOML; `None` when there is none.
    pub default: Option<String>,
    /// A value that makes sense, as TOML, for a key without default.
    pub example: Option<String>,
    /// What it is for.
    pub doc: String,
    /// Whether it can change what a run computes, rather than how fast or where to.
    pub results: bool,
}

/// A table of `pipeline.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// The dotted path; empty for the top of the file.
    pub path: String,
    /// What it is for.
    pub doc: String,
    /// Its keys, in order of declaration, tables aside.
    pub keys: Vec<Key>,
}

/// All tables with all keys, in order of declaration.
pub fn sections() -> Vec<Section> {
    let mut all = Vec::new();
    collect(schema(), "", "The top of the file.".into(), &mut all);
    all
}

fn collect(schema: &Json, path: &str, doc: String, all: &mut Vec<Section>) {
    let at = all.len();
    all.push(Section { path: path.into(), doc, keys: Vec::new() });
    for (name, property) in ordered_properties(schema) {
        let inner = if path.is_empty() { name.into() } else { format!("{path}.{name}") };
        let doc = property["description"].as_str().unwrap_or_default().replace('\n', " ");
        if let Some(table) = table_of(property) {
            // A section's own documentation says more than the key that holds it.
            let own = table["description"].as_str().map_or(doc, |own| own.replace('\n', " "));
            collect(table, &inner, own, all);
            continue;
        }
        all[at].keys.push(Key {
            path: inner,
            kind: kind(property),
            default: Some(&property["default"]).filter(|value| !value.is_null()).map(Json::to_string),
            example: property["examples"].get(0).map(Json::to_string),
            doc,
            results: property["x-results"] != false,
        });
    }
}

/// The properties of a table's schema, in order of declaration.
pub(crate) fn ordered_properties(schema: &Json) -> Vec<(&str, &Json)> {
    let names = schema["x-order"].as_array().into_iter().flatten().filter_map(Json::as_str);
    names.map(|name| (name, &schema["properties"][name])).filter(|(_, property)| !property.is_null()).collect()
}

/// The schema of the table that a property holds, if it holds one.
fn table_of(property: &Json) -> Option<&Json> {
    let mut branches = property["anyOf"].as_array().into_iter().flatten().chain(std::iter::once(property));
    branches.find(|branch| branch["properties"].is_object())
}

/// The schema at a dotted path.
pub(crate) fn at<'a>(schema: &'a Json, path: &str) -> Option<&'a Json> {
    path.split('.').try_fold(schema, |schema, key| table_of(schema)?["properties"].get(key))
}

fn kind(property: &Json) -> String {
    let known: Vec<String> =
        property["x-known"].as_array().into_iter().flatten().map(|word| word.to_string()).collect();
    if !known.is_empty() {
        return format!("one of {}, or a registered name", known.join(", "));
    }
    let mut kind = check::expected(property);
    for article in ["a ", "an "] {
        kind = kind.strip_prefix(article).map(String::from).unwrap_or(kind);
    }
    let bound = |key: &str, sign: &str| {
        // The largest number of a TOML integer is no news.
        let value = Some(&property[key]).filter(|value| value.is_number() && value.as_i64() != Some(i64::MAX));
        value.map(|value| format!("{sign} {value}"))
    };
    let bounds = [
        bound("minimum", "≥").filter(|_| property["minimum"] != 0 || property["type"] != "integer"),
        bound("exclusiveMinimum", ">"),
        bound("maximum", "≤"),
        bound("exclusiveMaximum", "<"),
    ];
    let bounds: Vec<String> = bounds.into_iter().flatten().collect();
    if bounds.is_empty() { kind } else { format!("{kind} {}", bounds.join(", ")) }
}

/// The reference page, as Markdown: `docs/reference.md`, and what `gnnflow reference` prints.
pub fn markdown() -> String {
    let mut page = String::from(
        "# pipeline.toml\n\n\
         Generated from the declarations in `pipelines/src/config/`; `gnnflow reference` prints it.\n\n\
         The sections that are present are the stages that run; a file with only `[graph]` and `[partition]` is batch\n\
         preprocessing. Relative paths are relative to the file. Every key can be given on the command line:\n\
         `--set train.epochs=5`; the value is TOML, and a word that is no TOML is a string. Keys marked ⚙ never change what a\n\
         run computes, only how fast, how often it is saved, or where to.\n",
    );
    for section in sections() {
        let title = if section.path.is_empty() { "Top".into() } else { format!("`[{}]`", section.path) };
        let _ = write!(page, "\n## {title}\n\n{}\n", section.doc);
        if section.keys.is_empty() {
            continue;
        }
        page.push_str("\n| key | value | default | |\n|---|---|---|---|\n");
        for key in &section.keys {
            let name = key.path.rsplit('.').next().unwrap_or(&key.path);
            let default = key.default.as_ref().map_or_else(String::new, |default| format!("`{default}`"));
            let mark = if key.results { "" } else { " ⚙" };
            let cell = |text: &str| text.replace('|', "\\|");
            let _ =
                writeln!(page, "| `{name}`{mark} | {} | {} | {} |", cell(&key.kind), cell(&default), cell(&key.doc));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_documented_and_has_a_default_or_an_example() {
        for section in sections() {
            assert!(!section.doc.is_empty(), "[{}]", section.path);
            for key in section.keys {
                assert!(!key.doc.is_empty() && !key.kind.is_empty(), "{key:?}");
                assert!(key.default.is_some() || key.example.is_some(), "{key:?}");
            }
        }
    }

    /// `GNNFLOW_UPDATE=1 cargo test` writes the page anew.
    #[test]
    fn the_page_in_docs_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference.md");
        if std::env::var_os("GNNFLOW_UPDATE").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(written == markdown(), "docs/reference.md is out of date: run the tests once with GNNFLOW_UPDATE=1");
    }
}
