//! The one declaration of a key: name, type, default and doc together.

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
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
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

pub(crate) use {section, words};
