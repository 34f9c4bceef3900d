//! Writes a table of results, with rows of all workers.

use std::cell::RefCell;
use std::rc::Rc;

use gnnflow_data::format::hex;
use gnnflow_data::fs::{hidden_beside, remove, restore};
use gnnflow_dataflow::time;

use super::messages::Messages;
use super::parquet_file::{ParquetFile, encode};
use super::parts::write_parts;
use super::table::{Files, Table};
use crate::collectives::Driver;
use crate::context::WorkerContext;
use crate::error::Error;

/// Messages of one worker in flight.
const WINDOW: u32 = 8;

/// Writes a table with `nodes[p]` rows of each partition `p`, in the order of global ids. Returns the SHA-256 of all rows at the first
/// worker, and an empty string at the others. That of a table in parts is the SHA-256 of those of the parts.
pub(crate) fn write_table(
    driver: &mut Driver<'_>,
    context: &WorkerContext,
    nodes: &[u64],
    table: &Table<'_>,
) -> Result<String, Error> {
    let digest = match table.form.files {
        Files::One => write_file(driver, context, nodes, table)?,
        Files::ByPartition => write_parts(driver, context, nodes, table)?,
    };
    Ok(digest.map_or(String::new(), |digest| hex(&digest)))
}

/// Writes one file at the first worker, to which all workers send their rows.
fn write_file(
    driver: &mut Driver<'_>,
    context: &WorkerContext,
    nodes: &[u64],
    table: &Table<'_>,
) -> Result<Option<[u8; 32]>, Error> {
    let create = || {
        // A killed process may have left parts, or the former table under another name.
        restore(&table.path).map_err(Error::io("move back", &table.path))?;
        let parts = hidden_beside(&table.path, "new");
        remove(&parts).map_err(Error::io("remove", &parts))?;
        ParquetFile::create(&table.path, table)
    };
    let file = (context.worker == 0).then(create).transpose()?;
    let file = Rc::new(RefCell::new(file));
    let target = Rc::clone(&file);
    let mut messages = Messages::new(driver, context, move |bytes| {
        target.borrow_mut().as_mut().expect("the first worker receives all rows and has the file").write(bytes)
    });
    let (progress, hosted) = (driver.runtime.progress(), context.placement.parts_of(context.worker));
    progress.brief_stage(&format!("write {}", table.name()), nodes[hosted].iter().sum(), "rows");
    for (part, &nodes) in nodes.iter().enumerate() {
        for (step, range) in table.ranges(nodes).enumerate() {
            messages.advance_to(time::at(part as u32, step as u32));
            if context.placement.worker_of(part) == context.worker {
                let rows = (table.rows)(part, range)?;
                progress.advance(rows.num_rows() as u64);
                messages.send(encode(&rows)?);
            }
            messages.wait(driver, time::at(part as u32, (step as u32).saturating_sub(WINDOW)))?;
        }
    }
    messages.barrier(driver, time::at(nodes.len() as u32, 0))?;
    progress.done();
    drop(messages);
    let file = file.borrow_mut().take();
    file.map(ParquetFile::finish).transpose()
}
