//! The one declaration of a key: name, type, default and doc together.
//!
//! A choice of kinds is an enum: TOML spells it as a word, or as a table whose `kind` is that word and which holds the
//! keys of its kind and no others.

use serde_json::{Value as Json, json};

/// Declares a section of `pipeline.toml` as a struct whose fields are its keys.
///
/// Everything else follows from it: what TOML may hold, the default, what `--set` accepts, the spelling that "did you
/// mean" offers, and the reference page. A field's doc comment is the key's documentation;
/// `#[schemars(range(…))]` its bounds; `extend("x-results" = false)` says that the key never changes what a run
/// computes (only how fast, how often saved, where kept), so that it stays out of the fingerprint;
/// `extend("x-known" = …)` lists the built-in names of a key that may also hold a registered one.
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
            /// The word that stands for it in `pipeline.toml`.
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

/// Declares a choice of kinds, each with a section of its own keys, or without keys. The first word is the default kind.
///
/// `| $other($table)` adds a kind for names that a user's own program has registered.
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
            /// The words of the kinds that come with gnnflow, in order of declaration.
            pub const KINDS: &'static [&'static str] = &[$($word),*];

            /// The word that stands for its kind in `pipeline.toml`.
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

/// The schema of one kind of a choice: the keys of its section, and its word.
pub(crate) fn kind(word: &str, doc: &str, mut keys: Json) -> Json {
    let doc: Vec<&str> = doc.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    keys["description"] = doc.join(" ").into();
    keys["x-kind"] = word.into();
    keys["properties"]["kind"] = json!({ "type": "string", "const": word });
    keys
}

/// The schema of a choice: a word, or the table of a kind. An `open` one takes other names too.
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
