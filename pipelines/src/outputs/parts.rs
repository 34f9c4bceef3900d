//! Tables as folders with a file for each partition.
//!
//! Workers write the files of their partitions at the same time, each on its own host. A new table is in a hidden folder beside the old one
//! until all workers have written their files. Then the first worker of each disk moves the folder into place.

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use gnnflow_data::fs::{hidden_beside, move_over, remove, restore, sync_folder};
use gnnflow_dataflow::time;
use sha2::{Digest, Sha256};

use super::messages::Messages;
use super::parquet_file::{ParquetFile, encode};
use super::run_folder::SUCCESS;
use super::table::Table;
use crate::collectives::Driver;
use crate::context::WorkerContext;
use crate::error::Error;

/// Writes a file for each partition and moves them into place. Returns the SHA-256 of the files' hashes at the first worker.
pub(super) fn write_parts(
    driver: &mut Driver<'_>,
    context: &WorkerContext,
    nodes: &[u64],
    table: &Table<'_>,
) -> Result<Option<[u8; 32]>, Error> {
    let hash = Rc::new(RefCell::new(Sha256::new()));
    let target = Rc::clone(&hash);
    let mut messages = Messages::new(driver, context, move |digest| {
        target.borrow_mut().update(digest);
        Ok(())
    });
    let (folder, workers) = (NewFolder::of(&table.path), context.placement.workers());
    let busy = driver.runtime.busy("removing an unfinished table");
    folder.clear()?;
    drop(busy);
    messages.barrier(driver, time::at(0, 1))?;
    folder.create(context.worker)?;
    let (progress, hosted) = (driver.runtime.progress(), context.placement.parts_of(context.worker));
    progress.brief_stage(&format!("write {}", table.name()), nodes[hosted.clone()].iter().sum(), "rows");
    for part in hosted {
        let mut file = ParquetFile::create(&folder.part(part), table)?;
        for (step, range) in table.ranges(nodes[part]).enumerate() {
            // Workers that have written their files wait, and see that this one goes on.
            messages.advance_to(time::at(1 + part as u32, step as u32));
            let rows = (table.rows)(part, range)?;
            file.write(&encode(&rows)?)?;
            progress.advance(rows.num_rows() as u64);
            driver.runtime.progressed();
            messages.poll(driver)?;
        }
        messages.advance_to(time::at(1 + part as u32, u32::MAX));
        let busy = driver.runtime.busy("syncing a table");
        messages.send(file.finish()?.to_vec());
        drop(busy);
    }
    let end = 1 + nodes.len() as u32;
    messages.barrier(driver, time::at(end, 0))?;
    let publishes = folder.is_first_here(context.worker);
    messages.barrier(driver, time::at(end, 1))?;
    if publishes {
        let _busy = driver.runtime.busy("replacing a table");
        folder.publish(workers)?;
    }
    messages.barrier(driver, time::at(end, 2))?;
    progress.done();
    drop(messages);
    Ok((context.worker == 0).then(|| hash.take().finalize().into()))
}

/// The folder of a table that is being written. Workers of one disk share it.
struct NewFolder {
    path: PathBuf,
    /// Where the table will be.
    table: PathBuf,
}

impl NewFolder {
    fn of(table: &Path) -> Self {
        Self { path: hidden_beside(table, "new"), table: table.to_owned() }
    }

    /// Removes what a killed process has left. It tries again if another worker removes the same files at the same time.
    fn clear(&self) -> Result<(), Error> {
        restore(&self.table).map_err(Error::io("move back", &self.table))?;
        while self.path.symlink_metadata().is_ok() {
            remove(&self.path).map_err(Error::io("remove", &self.path))?;
        }
        Ok(())
    }

    /// Creates the folder, and in it an empty file by which other workers see that they share it.
    fn create(&self, worker: usize) -> Result<(), Error> {
        std::fs::create_dir_all(&self.path).map_err(Error::io("create", &self.path))?;
        let own = self.marker(worker);
        File::create(&own).map_err(Error::io("create", &own)).map(drop)
    }

    fn marker(&self, worker: usize) -> PathBuf {
        self.path.join(format!(".worker-{worker}"))
    }

    fn part(&self, part: usize) -> PathBuf {
        self.path.join(format!("part-{part:05}.parquet"))
    }

    /// Whether this worker is the first of those that share the folder. It looks for files by name, because a network file system may list the
    /// files of other hosts late.
    fn is_first_here(&self, worker: usize) -> bool {
        !(0..worker).any(|other| self.marker(other).exists())
    }

    /// Moves the folder into place.
    fn publish(&self, workers: usize) -> Result<(), Error> {
        for worker in 0..workers {
            let marker = self.marker(worker);
            remove(&marker).map_err(Error::io("remove", &marker))?;
        }
        let success = self.path.join(SUCCESS);
        File::create(&success).and_then(|file| file.sync_all()).map_err(Error::io("create", &success))?;
        sync_folder(&self.path).map_err(Error::io("flush", &self.path))?;
        move_over(&self.path, &self.table).map_err(Error::io("replace", &self.table))
    }
}
