//! How a dataset encodes the columns of its tables: what a model needs to know about it, and what another dataset needs to be encoded alike.

use serde::{Deserialize, Serialize};

use super::feature_columns::FeatureColumns;
use super::manifest::{ColumnScale, FORWARD_AND_REVERSE, LabelInfo, LabelKind, ListForm, Manifest, TypeInfo};
use crate::format::plural;
use crate::source::{Normalize, SelfLoops};

/// How a dataset encodes the columns of its tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Encoding {
    /// The columns of node features.
    pub features: FeatureColumns,
    /// The scaling of node features.
    pub normalize: Normalize,
    /// The means and deviations of [`Normalize::Standard`], by value of a row; empty if a dataset of an older version does not have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scales: Vec<ColumnScale>,
    /// Labels of nodes.
    pub labels: Option<LabelEncoding>,
    /// What the lists in the tables are, if labels are lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_lists: Option<ListForm>,
    /// Types of edges, with those of reverse edges and of added self-loops.
    pub edge_types: Option<TypeInfo>,
    /// The columns of edge features.
    pub edge_features: FeatureColumns,
    /// Labels of edges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_labels: Option<LabelEncoding>,
    /// Whether the edges are mirrored.
    pub undirected: bool,
    /// Whether each edge has a reverse edge with a separate type.
    pub reverse_edges: bool,
    /// What happened to self-loops.
    pub self_loops: SelfLoops,
}

impl Encoding {
    /// Returns the encoding of a dataset.
    pub fn of(manifest: &Manifest) -> Self {
        let graph = &manifest.settings["graph"];
        let (features, edges) = (&manifest.features, &manifest.edge_columns);
        Self {
            features: FeatureColumns { values: features.dim, columns: features.columns.clone() },
            normalize: features.normalize,
            scales: features.scales.clone(),
            labels: manifest.labels.as_ref().map(LabelEncoding::of),
            label_lists: manifest.labels.as_ref().and_then(|labels| labels.lists),
            edge_types: edges.edge_type.clone(),
            edge_features: FeatureColumns { values: edges.features, columns: edges.feature_columns.clone() },
            edge_labels: edges.label.as_ref().map(LabelEncoding::of),
            undirected: manifest.undirected,
            reverse_edges: graph["reverse_edges"].as_bool().unwrap_or(false),
            self_loops: serde_json::from_value(graph["self_loops"].clone()).unwrap_or_default(),
        }
    }

    /// Returns the types of edges in the tables; `None` if the tables have no types. If a type for self-loops was added, types that are numbers have
    /// their digits as names.
    ///
    /// ```
    /// use gnnflow_data::dataset::{Encoding, TypeInfo};
    ///
    /// let names = ["cites", "writes", "rev_cites", "rev_writes"].map(String::from);
    /// let types = TypeInfo { count: 4, names: names.into() };
    /// let encoding = Encoding { edge_types: Some(types), reverse_edges: true, ..Encoding::default() };
    /// assert_eq!(encoding.table_edge_types().unwrap().names, ["cites", "writes"]);
    /// ```
    pub fn table_edge_types(&self) -> Option<TypeInfo> {
        let TypeInfo { mut count, names } = self.edge_types.clone()?;
        if self.self_loops == SelfLoops::Add {
            count = count.saturating_sub(1);
        }
        if self.reverse_edges && count == 2 && names.iter().take(2).eq(FORWARD_AND_REVERSE.iter()) {
            return None;
        }
        count /= 1 + u32::from(self.reverse_edges);
        Some(TypeInfo { count, names: names.into_iter().take(count as usize).collect() })
    }

    /// Whether the means and deviations of standardized features are unknown, because a dataset of an older version does not have them.
    pub fn lacks_scales(&self) -> bool {
        self.normalize == Normalize::Standard && self.scales.len() != self.features.values
    }
}

/// Labels of nodes or edges: their kind and classes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelEncoding {
    /// Their kind.
    pub kind: LabelKind,
    /// Number of classes; 1 for values.
    pub count: u32,
    /// Names of the classes; empty if they are numbers.
    pub names: Vec<String>,
}

impl LabelEncoding {
    /// Returns the encoding of labels.
    pub fn of(labels: &LabelInfo) -> Self {
        Self { kind: labels.kind, count: labels.classes, names: labels.names.clone() }
    }

    /// Returns the description of such labels without counts.
    pub fn info(&self) -> LabelInfo {
        let Self { kind, count, names } = self.clone();
        let counts = if kind == LabelKind::Value { Vec::new() } else { vec![0; count as usize] };
        LabelInfo { kind, classes: count, names, labeled: 0, counts, lists: None }
    }

    /// Returns whether labels of a dataset, `self`, are classes of a model. Of classes that are numbers, the dataset may lack the largest ones. A dataset
    /// without labels in any row has no classes.
    pub fn are_of(&self, model: &Self) -> bool {
        let numbers = self.kind == LabelKind::Class && self.names.is_empty();
        let fewer = numbers && (self.count == 0 || model.names.is_empty() && self.count <= model.count);
        self == model || self.kind == model.kind && fewer
    }

    /// Returns words for labels, or for none.
    ///
    /// ```
    /// use gnnflow_data::dataset::{LabelEncoding, LabelKind};
    ///
    /// let labels = LabelEncoding { kind: LabelKind::Class, count: 2, names: ["cat", "dog"].map(String::from).into() };
    /// assert_eq!(LabelEncoding::describe(Some(&labels)), "the classes cat, dog");
    /// ```
    pub fn describe(labels: Option<&Self>) -> String {
        match labels {
            None => "no labels".into(),
            Some(Self { kind: LabelKind::Value, .. }) => "numbers as labels".into(),
            Some(Self { kind, count, names }) => {
                let lists = if *kind == LabelKind::Multi { "lists of " } else { "" };
                match names.is_empty() {
                    true => format!("{lists}{}", plural(*count as usize, "class")),
                    false => format!("{lists}the classes {}", names.join(", ")),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_tables_are_found_among_those_of_the_dataset() {
        let of = |names: &[&str], count: u32, reverse_edges: bool, add: bool| {
            let names = names.iter().map(ToString::to_string).collect();
            let self_loops = if add { SelfLoops::Add } else { SelfLoops::Keep };
            let types = Some(TypeInfo { count, names });
            Encoding { edge_types: types, reverse_edges, self_loops, ..Encoding::default() }.table_edge_types()
        };
        let types =
            |count, names: &[&str]| Some(TypeInfo { count, names: names.iter().map(ToString::to_string).collect() });
        assert_eq!(Encoding::default().table_edge_types(), None);
        assert_eq!(of(&[], 3, false, false), types(3, &[]));
        assert_eq!(of(&["a", "b"], 2, false, false), types(2, &["a", "b"]));
        assert_eq!(of(&["a", "b", "self-loop"], 3, false, true), types(2, &["a", "b"]));
        assert_eq!(of(&["0", "1", "self-loop"], 3, false, true), types(2, &["0", "1"]));
        assert_eq!(of(&[], 4, true, false), types(2, &[]));
        // A manifest that was changed by hand.
        assert_eq!(of(&[], 0, false, true), types(0, &[]));
        assert_eq!(of(&["forward", "reverse"], 2, true, false), None);
        assert_eq!(of(&["forward", "reverse", "self-loop"], 3, true, true), None);
        assert_eq!(of(&["forward", "rev_forward", "self-loop"], 3, true, true), types(1, &["forward"]));
        assert_eq!(of(&["a", "reverse", "rev_a", "rev_reverse"], 4, true, false), types(2, &["a", "reverse"]));
    }
}
