//! Prepares the dataset of a pipeline in one process.

use std::path::Path;

use gnnflow_data::heartbeat::set_patience;
use gnnflow_data::{Dataset, Progress};
use gnnflow_pipelines::{Config, Registry};

use crate::cluster::{Failure, Liveness, Membership, STALLS, execute};
use crate::error::Error;

/// What a process does, in messages.
pub(crate) const PREPARING: &str = "preparing the dataset";

/// Prepares the dataset of `config` in this process alone. The preparation ends with an error if it gets stuck. `liveness` shows what it does.
///
/// # Errors
/// Those of the preparation.
pub(crate) fn prepare_alone<P: Progress + Clone + 'static>(
    config: &Config,
    registry: &Registry,
    out: Option<&Path>,
    progress: &P,
    liveness: Liveness,
) -> Result<Dataset, Error> {
    let stall_timeout = config.cluster.stall_timeout.0;
    set_patience(STALLS * stall_timeout);
    let membership = Membership::single_with(liveness.clone(), stall_timeout);
    let (config, registry, progress) = (config.clone(), registry.clone(), progress.clone());
    let out = out.map(Path::to_owned);
    let prepared = execute(membership, move |_| {
        let _busy = liveness.busy(PREPARING);
        Ok::<_, Failure>(gnnflow_pipelines::prepare(&config, &registry, out.as_deref(), &progress))
    })?;
    Ok(prepared?)
}
