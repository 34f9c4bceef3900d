//! Reads whole objects.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Pending;
use super::object::Object;
use crate::error::Result;

/// Bytes that are requested at a time.
const PIECE: u64 = 8 << 20;
/// Pieces that are requested at the same time.
const CONCURRENT: usize = 4;

impl Object {
    /// Calls `each` with the bytes of the object, piece by piece, from the first to the last. Memory: 4 pieces of 8 MiB.
    ///
    /// # Errors
    /// [`Error::Remote`](crate::Error::Remote) when the object has changed or the server cannot be reached within the time limit; those of `each`.
    pub(crate) fn for_each_piece(self: &Arc<Self>, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut starts = (0..self.bytes()).step_by(PIECE as usize);
        let mut requested = VecDeque::with_capacity(CONCURRENT);
        loop {
            let free = CONCURRENT - requested.len();
            for start in starts.by_ref().take(free) {
                let end = (start + PIECE).min(self.bytes());
                requested.push_back(Pending::start(Arc::clone(self).read(start..end))?);
            }
            let Some(first) = requested.pop_front() else { return Ok(()) };
            each(&first.wait()??)?;
        }
    }
}
