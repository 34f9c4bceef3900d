//! The digest of a JSON value.

use gnnflow_data::format::hex;
use sha2::{Digest, Sha256};

/// Returns the SHA-256, in hexadecimal, of a value's canonical text: sorted keys, without null.
pub(super) fn digest(value: &serde_json::Value) -> String {
    fn canonical(value: &serde_json::Value, out: &mut String) {
        use serde_json::Value as Json;
        match value {
            Json::Object(pairs) => {
                let mut pairs: Vec<_> = pairs.iter().filter(|(_, value)| !value.is_null()).collect();
                pairs.sort_by_key(|(key, _)| *key);
                out.push('{');
                for (key, value) in pairs {
                    out.push_str(&format!("{key:?}:"));
                    canonical(value, out);
                    out.push(',');
                }
                out.push('}');
            }
            Json::Array(items) => {
                out.push('[');
                for item in items {
                    canonical(item, out);
                    out.push(',');
                }
                out.push(']');
            }
            other => out.push_str(&other.to_string()),
        }
    }
    let mut text = String::new();
    canonical(value, &mut text);
    hex(&Sha256::digest(text.as_bytes()))
}
