//! The engine of jobs that do not train, or have finished training.

use super::{BlocksHash, Engine, Round};
use crate::collectives::Driver;
use crate::error::Error;

/// Trains nothing. Exact inference computes the results of all nodes.
#[derive(Default)]
pub(crate) struct NoTraining {
    blocks: BlocksHash,
}

impl Engine for NoTraining {
    fn train_round(&mut self, _: &mut Driver<'_>, _: u32, _: &dyn Fn(u32) -> f64) -> Result<Round, Error> {
        Err(Error::Bug("this job does not train".into()))
    }

    fn blocks(&mut self) -> &mut BlocksHash {
        &mut self.blocks
    }
}
