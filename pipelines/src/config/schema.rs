//! Reads the schema of the declared sections: its choices, tables, and the values that a key allows.

use serde_json::Value as Json;

/// The kinds of a choice.
pub(crate) struct Choice<'a> {
    /// The word of each kind, and the schema of its table.
    pub(crate) kinds: Vec<(&'a str, &'a Json)>,
    /// Whether other names are allowed.
    pub(crate) open: bool,
}

impl<'a> Choice<'a> {
    /// Reads a schema; `None` if it is not a choice.
    pub(crate) fn of(schema: &'a Json) -> Option<Self> {
        schema["x-choice"].as_array()?;
        let tables = schema["anyOf"].as_array().into_iter().flatten();
        let kinds = tables.filter_map(|table| Some((table["x-kind"].as_str()?, table))).collect();
        Some(Self { kinds, open: schema["x-open"] == true })
    }

    pub(crate) fn table(&self, word: &str) -> Option<&'a Json> {
        self.kinds.iter().find(|(kind, _)| *kind == word).map(|(_, table)| *table)
    }

    /// Returns the kind of a table without `kind`.
    pub(super) fn default(&self) -> &'a str {
        self.kinds.first().map_or("", |(kind, _)| kind)
    }

    pub(super) fn words(&self) -> Vec<&'a str> {
        self.kinds.iter().map(|(kind, _)| *kind).collect()
    }

    /// Describes the allowed values for error messages.
    pub(super) fn expected(&self) -> String {
        let quoted: Vec<String> = self.kinds.iter().map(|(kind, _)| format!("\"{kind}\"")).collect();
        format!("one of {}{}", quoted.join(", "), if self.open { ", or a registered name" } else { "" })
    }
}

/// Returns the properties of a table's schema, in order of declaration.
pub(crate) fn ordered_properties(schema: &Json) -> Vec<(&str, &Json)> {
    let names = schema["x-order"].as_array().into_iter().flatten().filter_map(Json::as_str);
    names.map(|name| (name, &schema["properties"][name])).filter(|(_, property)| !property.is_null()).collect()
}

/// Returns the schema of a property's table, if it is a table.
pub(crate) fn table_of(property: &Json) -> Option<&Json> {
    let mut branches = property["anyOf"].as_array().into_iter().flatten().chain(std::iter::once(property));
    branches.find(|branch| branch["properties"].is_object())
}

/// Returns the schema at a dotted path.
pub(crate) fn at<'a>(schema: &'a Json, path: &str) -> Option<&'a Json> {
    path.split('.').try_fold(schema, |schema, key| match Choice::of(schema) {
        Some(choice) => choice.kinds.iter().find_map(|(_, table)| table["properties"].get(key)),
        None => table_of(schema)?["properties"].get(key),
    })
}

/// Returns the branches of `anyOf` or `oneOf` without null, or the schema itself.
pub(super) fn alternatives(schema: &Json) -> Vec<&Json> {
    let branches = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    let real = |branches: &'_ Vec<Json>| branches.iter().filter(|branch| branch["type"] != "null").count();
    match branches {
        Some(list) if real(list) == 1 => {
            list.iter().filter(|branch| branch["type"] != "null").flat_map(alternatives).collect()
        }
        Some(list) => list.iter().filter(|branch| branch["type"] != "null").collect(),
        None => vec![schema],
    }
}

/// Returns the types that a schema without alternatives allows, except null.
pub(super) fn types(schema: &Json) -> Vec<&str> {
    match &schema["type"] {
        Json::String(one) => vec![one],
        Json::Array(many) => many.iter().filter_map(Json::as_str).filter(|name| *name != "null").collect(),
        _ => Vec::new(),
    }
}

/// Returns whether a schema allows strings only.
pub(crate) fn only_string(schema: &Json) -> bool {
    if Choice::of(schema).is_some() {
        return false;
    }
    alternatives(schema).iter().all(|choice| types(choice) == ["string"])
}

/// Returns the words that a schema allows; empty if it allows other values.
pub(crate) fn words(schema: &Json) -> Vec<&str> {
    alternatives(schema)
        .into_iter()
        .flat_map(|choice| choice["enum"].as_array().into_iter().flatten().chain(std::iter::once(&choice["const"])))
        .filter_map(Json::as_str)
        .collect()
}

/// Describes the values of a schema: `an integer`, `one of "keep", "drop"`, `a string or a list of strings`.
pub(crate) fn expected(schema: &Json) -> String {
    if let Some(choice) = Choice::of(schema) {
        return format!("{}, or a table", choice.expected());
    }
    let choices = alternatives(schema);
    let words = words(schema);
    if !words.is_empty() && (words.len() == choices.len() || choices.len() == 1) {
        let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
        return if quoted.len() == 1 { quoted[0].clone() } else { format!("one of {}", quoted.join(", ")) };
    }
    if choices.len() > 1 {
        return choices.iter().map(|choice| expected(choice)).collect::<Vec<_>>().join(" or ");
    }
    let schema = choices[0];
    match schema["format"].as_str() {
        Some("size") => return "a size such as \"2GiB\"".into(),
        Some("duration") => return "a duration such as \"30s\"".into(),
        Some("device") => return "the name of a device, such as \"cpu\" or \"cuda\"".into(),
        Some("checkpoints") => return "a number of epochs, or a text such as \"500 steps\" or \"10min\"".into(),
        _ => {}
    }
    let one = |name: &&str| match *name {
        "string" => "a string".into(),
        "integer" => "an integer".into(),
        "number" => "a number".into(),
        "boolean" => "true or false".into(),
        "array" => match expected(&schema["items"]).split_once(' ') {
            Some(("a" | "an", item)) => {
                let many = item.replace(" or an ", "s or ").replace(" or a ", "s or ");
                format!("a list of {many}s")
            }
            _ => "a list".into(),
        },
        "object" => "a table".to_string(),
        other => other.into(),
    };
    types(schema).iter().map(one).collect::<Vec<String>>().join(" or ")
}
