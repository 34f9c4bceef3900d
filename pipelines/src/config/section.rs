//! Macros that declare keys: name, type, default and documentation in one place.
//!
//! A choice of kinds is an enum. In TOML it is a word, or a table with that word as `kind` and the keys of this kind.

use serde_json::{Value as Json, json};

/// Declares a section of `pipeline.toml` as a struct whose fields are its keys.
///
/// The schema of TOML files, the checks, `--set`, "did you mean" and the reference page are derived from it. A field's doc
/// comment is the key's documentation, and `#[schemars(range(…))]` its bounds. `extend("x-results" = false)` marks a
/// performance key: it never changes results and is not part of the fingerprint. `extend("x-known" = …)` lists the
/// built-in names of a key that also accepts registered names.
macro_rules! section {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty = $default:expr,)*
    }) => {
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        $(#[$meta])*
        #[serde(default, deny_unknown_fields)]
        #[schemars(extend("x-order" = [$(stringify!($field)),*]))]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

/// Declares a key's closed set of words, as an enum that TOML spells in kebab-case.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// Its word in `pipeline.toml`.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

/// Declares a choice of kinds, each with a section of keys or without keys. The first kind is the default.
///
/// `| $other($table)` adds a kind for registered names.
macro_rules! choice {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[doc = $doc:literal])* $variant:ident $(($table:ty))? = $word:literal,)*
        $(| $(#[$other_meta:meta])* $other:ident($other_table:ty),)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "kind")]
        pub enum $name {
            $($(#[doc = $doc])* #[serde(rename = $word)] $variant $(($table))?,)*
            $($(#[$other_meta])* #[serde(untagged)] $other($other_table),)?
        }

        impl $name {
            /// The words of the built-in kinds, in order of declaration.
            pub const KINDS: &'static [&'static str] = &[$($word),*];

            /// The word of its kind in `pipeline.toml`.
            pub fn word(&self) -> &str {
                match self {
                    $(Self::$variant { .. } => $word,)*
                    $(Self::$other(other) => other.word(),)?
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let _ = &generator;
                let mut kinds = Vec::new();
                $({
                    #[allow(unused_mut, unused_assignments)]
                    let mut keys = serde_json::json!({ "type": "object", "additionalProperties": false });
                    $(keys = generator.subschema_for::<$table>().to_value();)?
                    kinds.push($crate::config::section::kind($word, concat!("", $($doc, "\n"),*), keys));
                })*
                let open: &[&str] = &[$(stringify!($other))?];
                $crate::config::section::choice_of(Self::KINDS, kinds, !open.is_empty())
            }
        }
    };
}

/// Returns the schema of one kind of a choice: its word, and the keys of its section.
pub(crate) fn kind(word: &str, doc: &str, mut keys: Json) -> Json {
    let doc: Vec<&str> = doc.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    keys["description"] = doc.join(" ").into();
    keys["x-kind"] = word.into();
    keys["properties"]["kind"] = json!({ "type": "string", "const": word });
    keys
}

/// Returns the schema of a choice: a word, or the table of a kind. An `open` choice accepts other names, too.
pub(crate) fn choice_of(words: &[&str], kinds: Vec<Json>, open: bool) -> schemars::Schema {
    let word = if open { json!({ "type": "string" }) } else { json!({ "type": "string", "enum": words }) };
    let mut all = vec![word];
    all.extend(kinds);
    if open {
        all.push(
            json!({ "type": "object", "properties": { "kind": { "type": "string" } }, "additionalProperties": false }),
        );
    }
    schemars::json_schema!({ "anyOf": all, "x-choice": words, "x-open": open })
}

pub(crate) use {choice, section, words};
