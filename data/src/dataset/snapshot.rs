//! A snapshot of a dataset: a second folder with the same files, by hard links.

use std::io::Write;
use std::path::Path;

use super::{Dataset, FileKind, Manifest, part_folder};
use crate::error::{Error, Result};
use crate::fs::{link_or_copy, persist, remove, temporary_file};

impl Dataset {
    /// Links the files of partition `part`, without its halo, into the folder `snapshot`. Files that are there are replaced. A later update of
    /// this dataset leaves the snapshot as it is.
    ///
    /// The snapshot can be opened when it has [`Dataset::write_snapshot_manifest`]. It uses no disk space until the dataset changes. Where the
    /// file system has no hard links, files are copied.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be written.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn link_partition(&self, part: usize, snapshot: &Path) -> Result<()> {
        let folder = snapshot.join(part_folder(part));
        std::fs::create_dir_all(&folder).map_err(Error::io(&folder, "create"))?;
        for kind in [FileKind::Topology, FileKind::Nodes, FileKind::Features] {
            let to = folder.join(kind.name());
            remove(&to).map_err(Error::io(&to, "remove"))?;
            if kind.info(&self.manifest().partitions[part]).is_some() {
                link_or_copy(&self.file(part, kind), &to).map_err(Error::io(&to, "write"))?;
            }
        }
        Ok(())
    }

    /// Writes the manifest of a snapshot in the folder `snapshot`, which exists. Several processes may do so at the same time.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be written.
    pub fn write_snapshot_manifest(&self, snapshot: &Path) -> Result<()> {
        let path = snapshot.join(Manifest::FILE);
        let write = |text: String| {
            let mut file = temporary_file(snapshot)?;
            file.write_all(text.as_bytes())?;
            persist(file, &path)
        };
        write(self.manifest().to_json()?).map_err(Error::io(&path, "write"))
    }
}
