//! `cluster.metrics`: rank 0 serves the status of a run to Prometheus, over HTTP.
//!
//! | file | content |
//! |---|---|
//! | `text` | the status as metrics |
//! | `server` | the HTTP server |

mod server;
mod text;

pub(crate) use server::MetricsServer;
