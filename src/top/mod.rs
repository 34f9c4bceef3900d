//! `gnnflow top`: the status of a run on the terminal.
//!
//! | file | content |
//! |---|---|
//! | `view` | the texts that are shown, from `status.json` |
//! | `table` | as one table |
//! | `screen` | on the whole terminal, refreshed every second |

mod screen;
mod table;
mod view;

pub(crate) use screen::show;
pub(crate) use table::text;
