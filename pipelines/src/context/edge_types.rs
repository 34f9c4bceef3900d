//! Edge types by name or number.

use gnnflow_data::dataset::TypeInfo;

use crate::error::did_you_mean;

/// Returns the number of the type called `name`. The error of an unknown type lists the types.
pub(crate) fn find_type(types: &TypeInfo, name: &str) -> Result<usize, String> {
    let by_name = types.names.iter().position(|known| known == name);
    by_name.or_else(|| name.parse().ok().filter(|&index: &usize| index < types.count as usize)).ok_or_else(|| {
        let known = match types.names.as_slice() {
            [] => format!("0 to {}", types.count.saturating_sub(1)),
            names => names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", "),
        };
        let meant = did_you_mean(name, types.names.iter().map(String::as_str));
        let meant = meant.map_or_else(String::new, |meant| format!("; did you mean \"{meant}\"?"));
        format!("no edge has type \"{name}\"; the types are {known}{meant}")
    })
}
