//! Usual names of columns, in lower case. The first ones are preferred.

/// Edges: the node that the edge leaves.
pub(crate) const SRC: &[&str] = &[
    "src",
    "source",
    "from",
    "src_id",
    "source_id",
    "id_1",
    "id1",
    "node_1",
    "node1",
    "head",
    "start",
    "u",
    ":start_id",
];
/// Edges: the node that the edge enters.
pub(crate) const DST: &[&str] =
    &["dst", "target", "to", "dst_id", "target_id", "id_2", "id2", "node_2", "node2", "tail", "end", "v", ":end_id"];
/// Nodes: the id.
pub(crate) const ID: &[&str] = &["node_id", "id", "node", "nodeid", "new_id", "name", ":id"];

/// Nodes: the label.
pub(crate) const LABEL: &[&str] = &["label", "labels", "y", "class", "target", "category"];
/// Nodes: the split.
pub(crate) const SPLIT: &[&str] = &["split", "subset", "set"];
/// Nodes: the features.
pub(crate) const FEATURES: &[&str] =
    &["features", "feature", "feats", "feat", "x", "attributes", "attr", "embedding", "vector"];
/// Nodes: the type.
pub(crate) const NODE_TYPE: &[&str] = &["node_type", "ntype", "type", "kind"];
/// Nodes: the time.
pub(crate) const NODE_TIME: &[&str] = &["node_time", "time", "timestamp", "ts", "date", "year"];

/// Edges: the type.
pub(crate) const EDGE_TYPE: &[&str] =
    &["edge_type", "etype", "relation", "rel", "relation_type", "rel_type", "predicate", "type", "kind"];
/// Edges: the weight.
pub(crate) const WEIGHT: &[&str] = &["weight", "weights", "edge_weight", "w"];
/// Edges: the time.
pub(crate) const TIME: &[&str] = &["time", "timestamp", "ts", "date", "datetime", "year"];
/// Edges: the split.
pub(crate) const EDGE_SPLIT: &[&str] = &["edge_split", "split"];
/// Edges: the label.
pub(crate) const EDGE_LABEL: &[&str] = &["edge_label", "label", "class", "y"];
/// Edges: the features.
pub(crate) const EDGE_FEATURES: &[&str] = &["edge_features", "features", "edge_attr", "edge_feat", "feat"];
