//! The threads that all commands share.

use gnnflow_data::Error as DataError;

use crate::error::Error;

/// Starts rayon's global thread pool, which reads, checks and writes files. Otherwise rayon starts it at its first use, and panics
/// if the system has no threads left.
///
/// # Errors
/// If the system has no threads left.
pub(crate) fn start_reading_threads() -> Result<(), Error> {
    match rayon::ThreadPoolBuilder::new().thread_name(|i| format!("files-{i}")).build_global() {
        // An error without a source means that the pool exists already.
        Err(error) if std::error::Error::source(&error).is_some() => {
            let source = std::io::Error::other(error);
            Err(DataError::Threads { what: "the threads that read and write files", source }.into())
        }
        _ => Ok(()),
    }
}
