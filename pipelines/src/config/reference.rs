//! All keys with type, default and documentation, from the declared sections; and the reference page.

use super::Config;
use super::schema::{Choice, expected, ordered_properties, table_of};
use crate::error::own_word;
use schemars::generate::SchemaSettings;
use serde_json::Value as Json;
use std::{fmt::Write, sync::LazyLock};

/// Returns the JSON Schema of `pipeline.toml`, without references.
///
/// Editors with support for JSON Schema complete and check pipeline files with it.
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
    /// The allowed values, in words.
    pub kind: String,
    /// The default as TOML, if there is one.
    pub default: Option<String>,
    /// A useful value as TOML, for a key without default.
    pub example: Option<String>,
    /// The documentation.
    pub doc: String,
    /// Whether it can change results; false for performance keys.
    pub results: bool,
}

/// A table of `pipeline.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// The dotted path; empty for the top of the file.
    pub path: String,
    /// The kind of a choice with these keys; `None` for a table that is not a choice.
    pub kind: Option<String>,
    /// The documentation.
    pub doc: String,
    /// Its keys, in order of declaration, without tables.
    pub keys: Vec<Key>,
    /// Whether the reference page omits it.
    pub hidden: bool,
}

/// Returns all tables with all keys, in order of declaration.
pub fn sections() -> Vec<Section> {
    let mut all = Vec::new();
    collect(schema(), "", None, "The top of the file.".into(), &mut all);
    all
}

/// Returns the paths of the keys with this name, or with gnnflow's name for this word of DGL or PyG. `-` counts as `_`.
///
/// ```
/// use gnnflow_pipelines::config::reference::keys_named;
///
/// assert_eq!(keys_named("epochs"), ["train.epochs"]);
/// assert_eq!(keys_named("batch-size")[0], "train.batch");
/// ```
pub fn keys_named(word: &str) -> Vec<String> {
    named(word, false)
}

/// As [`keys_named`], with the tables of this name.
pub(crate) fn keys_and_tables_named(word: &str) -> Vec<String> {
    named(word, true)
}

fn named(word: &str, tables: bool) -> Vec<String> {
    let name = own_word(word).map_or_else(|| word.replace('-', "_"), str::to_owned);
    let last = |path: &str| path.rsplit('.').next().is_some_and(|last| last == name);
    let mut paths: Vec<String> = Vec::new();
    for section in sections().into_iter().filter(|section| !section.hidden) {
        let table = Some(section.path).filter(|_| tables);
        for path in table.into_iter().chain(section.keys.into_iter().map(|key| key.path)).filter(|path| last(path)) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    paths
}

fn collect(schema: &Json, path: &str, kind: Option<&str>, doc: String, all: &mut Vec<Section>) {
    let at = all.len();
    let (kind, hidden) = (kind.map(String::from), schema["x-hidden"] == true);
    all.push(Section { path: path.into(), kind, doc, keys: Vec::new(), hidden });
    for (name, property) in ordered_properties(schema) {
        let inner = if path.is_empty() { name.into() } else { format!("{path}.{name}") };
        let doc = property["description"].as_str().unwrap_or_default().replace('\n', " ");
        let choice = Choice::of(property);
        if let Some(table) = table_of(property).filter(|_| choice.is_none()) {
            // The documentation of the section, or else that of the key.
            let own = table["description"].as_str().map_or(doc, |own| own.replace('\n', " "));
            collect(table, &inner, None, own, all);
            continue;
        }
        for (kind, table) in choice.iter().flat_map(|choice| &choice.kinds) {
            let doc = table["description"].as_str().unwrap_or_default().to_owned();
            collect(table, &inner, Some(kind), doc, all);
        }
        all[at].keys.push(Key {
            path: inner,
            kind: kind_of(property),
            default: Some(&property["default"])
                .filter(|value| !value.is_null())
                .map(|value| short(property, value).to_string()),
            example: property["examples"].get(0).map(toml),
            doc,
            results: property["x-results"] != false,
        });
    }
}

/// Returns a value of a schema in its shortest form: tables of choices with only defaults become words.
pub(crate) fn short(schema: &Json, value: &Json) -> Json {
    let Some(choice) = Choice::of(schema) else {
        return match value.as_array() {
            Some(items) => items.iter().map(|item| short(&schema["items"], item)).collect(),
            None => value.clone(),
        };
    };
    let word = value["kind"].as_str().unwrap_or_default();
    let Some((entries, table)) = value.as_object().zip(choice.table(word)) else { return value.clone() };
    let is_default = |(key, value): (&String, &Json)| {
        let property = &table["properties"][key];
        key == "kind" || value.is_null() || short(property, value) == short(property, &property["default"])
    };
    if entries.iter().all(is_default) { word.into() } else { value.clone() }
}

fn toml(value: &Json) -> String {
    match value {
        Json::Object(entries) => {
            let entries: Vec<String> = entries.iter().map(|(key, value)| format!("{key} = {}", toml(value))).collect();
            format!("{{ {} }}", entries.join(", "))
        }
        Json::Array(items) => format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

fn kind_of(property: &Json) -> String {
    let known: Vec<String> =
        property["x-known"].as_array().into_iter().flatten().map(|word| word.to_string()).collect();
    if !known.is_empty() {
        return format!("one of {}, or a registered name", known.join(", "));
    }
    let mut kind = expected(property);
    for article in ["a ", "an "] {
        kind = kind.strip_prefix(article).map(String::from).unwrap_or(kind);
    }
    if property["format"] == "checkpoints" {
        // The bounds are those of a number of epochs.
        return kind;
    }
    let bound = |key: &str, sign: &str| {
        // The maximum of TOML integers is left out.
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

/// Returns the reference page as Markdown: `docs/book/src/reference.md` and the output of `gnnflow reference`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# pipeline.toml\n\n\
         Generated from the declarations in `pipelines/src/config/`; `gnnflow reference` prints it.\n\n\
         The sections that are present are the stages that run; a file with only `[graph]` and `[partition]` is batch\n\
         preprocessing. Relative paths are relative to the file. Every key can be given on the command line:\n\
         `--set train.epochs=5`; a value that is not TOML is a string. Keys marked ⚙ are performance keys: they never\n\
         change results.\n\n\
         A choice of kinds is a word, or a table with `kind` and the keys of that kind: `schedule = \"full-graph\"` or\n\
         `schedule = { kind = \"full-graph\", mode = \"async\" }`. `--set train.schedule.mode=async` adds a key to the table,\n\
         `--set train.schedule=mini-batch` replaces it. `--unset train.fanouts` removes a key of the file.\n",
    );
    for section in sections().into_iter().filter(|section| !section.hidden) {
        let (path, doc) = (&section.path, &section.doc);
        let _ = match (&section.kind, path.as_str()) {
            (None, "") => write!(page, "\n## Top\n\n{doc}\n"),
            (None, path) => write!(page, "\n## `[{path}]`\n\n{doc}\n"),
            (Some(kind), path) => write!(page, "\n## `[{path}]` `kind = \"{kind}\"`\n\n{doc}\n"),
        };
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
    fn all_keys_have_documentation_and_a_default_or_an_example() {
        for section in sections() {
            assert!(!section.doc.is_empty(), "[{}]", section.path);
            for key in section.keys {
                assert!(!key.doc.is_empty() && !key.kind.is_empty(), "{key:?}");
                assert!(key.default.is_some() || key.example.is_some(), "{key:?}");
            }
        }
    }

    /// `GNNFLOW_UPDATE=1 cargo test` rewrites the page.
    #[test]
    fn reference_page_in_docs_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/book/src/reference.md");
        if std::env::var_os("GNNFLOW_UPDATE").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == markdown(),
            "docs/book/src/reference.md is out of date: run the tests once with GNNFLOW_UPDATE=1"
        );
    }
}
