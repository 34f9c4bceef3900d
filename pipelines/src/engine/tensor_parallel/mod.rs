//! Full-graph training by columns (NeutronTP): each worker keeps some columns of the rows of all nodes.

pub(crate) mod chain_attention;
pub(crate) mod chunks;
pub(crate) mod column_shards;
pub(crate) mod head_shards;
pub(crate) mod send_order;
