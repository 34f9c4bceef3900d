//! The threads that all commands share.

use gnnflow_data::Error as DataError;

use crate::Error;

/// Starts rayon's common threads, which read, check and write files. They would start themselves at their first use, and panic
/// where the system refuses them.
pub(crate) fn start_reading_threads() -> Result<(), Error> {
    match rayon::ThreadPoolBuilder::new().thread_name(|i| format!("files-{i}")).build_global() {
        // Without a source it says that the threads are there already.
        Err(error) if std::error::Error::source(&error).is_some() => {
            let source = std::io::Error::other(error);
            Err(DataError::Threads { what: "the threads that read and write files", source }.into())
        }
        _ => Ok(()),
    }
}
