//! Opens a dataset that is elsewhere, and copies its files when they are read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Dataset;
use super::copies::{Copies, is_whole, origin_of};
use super::files::FileKind;
use crate::error::Result;
use crate::progress::Progress;

impl Dataset {
    /// Opens the dataset at the folder or URL `origin`, and keeps copies of its files in `folder`. Reads only the manifest. Other files are copied when they are
    /// first read, and compared with their checksums while they are written.
    ///
    /// A copy from an earlier start is used if it is intact and belongs to the present dataset. Requests are repeated after temporary failures, until no
    /// data has arrived for `retry`.
    ///
    /// ```
    /// use gnnflow_data::testing::{IdStyle, Modulo, power_law};
    /// use gnnflow_data::{Dataset, PrepareSettings, Silent, prepare};
    /// use std::time::Duration;
    ///
    /// let place = tempfile::tempdir()?;
    /// let source = power_law(50, 300, 1).dump(place.path(), IdStyle::Dense)?;
    /// let settings = PrepareSettings::new(place.path().join("prepared"), 2);
    /// prepare(&source, &Modulo, &settings, &Silent)?;
    ///
    /// let copies = place.path().join("copies");
    /// let dataset = Dataset::open_copies(&place.path().join("prepared"), &copies, Duration::from_secs(60))?;
    /// dataset.topology(1)?;
    /// assert!(copies.join("part-00001/topology.arrow").exists());
    /// assert!(!copies.join("part-00000/topology.arrow").exists());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Dataset::open`] about the dataset at `origin`. [`Error::Remote`](crate::Error::Remote) if it cannot be read. [`Error::Setting`](crate::Error::Setting) if `folder` has other files than copies.
    pub fn open_copies(origin: &Path, folder: &Path, retry: Duration) -> Result<Self> {
        let copies = Copies::open(origin, folder, retry)?;
        Ok(Self { copies: Some(copies.into()), ..Self::open(folder)? })
    }

    /// Returns the folder or URL of the dataset whose files are copied to the folder `dir`; `None` if it has no copies.
    pub fn origin_of(dir: &Path) -> Option<PathBuf> {
        origin_of(dir)
    }

    /// Returns how many bytes this process has copied; `None` for a dataset that is not elsewhere.
    pub fn copied_bytes(&self) -> Option<u64> {
        self.copies.as_ref().map(|copies| copies.bytes())
    }

    /// Copies those of `files` that have no copy yet. Does nothing for a dataset that is not elsewhere.
    pub(super) fn copy_missing(&self, files: &[(usize, FileKind)], progress: &dyn Progress) -> Result<()> {
        let Some(copies) = &self.copies else { return Ok(()) };
        let with_info = files.iter().filter_map(|&(part, kind)| {
            let info = kind.info(&self.manifest().partitions[part])?;
            Some((part, kind, info))
        });
        let missing: Vec<_> =
            with_info.filter(|(part, kind, info)| !is_whole(&self.file(*part, *kind), info)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let total = missing.iter().map(|(_, _, info)| info.bytes).sum();
        progress.brief_stage("copying the dataset", total, "bytes");
        for (part, kind, info) in missing {
            let path = self.file(part, kind);
            if let Some(identity) = copies.copy((part, kind), &path, &info, progress)? {
                *self.state(part, kind).verified() = Some(identity);
            }
        }
        progress.done();
        Ok(())
    }

    /// Removes the damaged copy `path`, so that it is copied again. Returns false for a dataset that is not elsewhere, and for a file that is no copy.
    pub(crate) fn discard_copy(&self, path: &Path, progress: &dyn Progress) -> Result<bool> {
        let Some(copies) = &self.copies else { return Ok(false) };
        let Some((_, info)) = self.files().find(|(file, _)| file == path) else { return Ok(false) };
        copies.discard(path, &info, progress)?;
        Ok(true)
    }
}
