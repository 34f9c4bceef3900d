//! `graph.encode_like`: tables that are encoded like those that a model was trained on, or like those of a dataset.

use std::path::Path;

use gnnflow_data::dataset::{Encoding, Manifest};
use gnnflow_data::source::GraphSource;

use super::{open, parse};
use crate::config::Config;
use crate::error::Error;
use crate::outputs::run_folder::MODEL;

/// Returns the tables of a pipeline; `None` if its dataset is prepared already.
///
/// # Errors
/// If a node file or the folder of `graph.encode_like` cannot be read.
pub(crate) fn source(config: &Config) -> Result<Option<GraphSource>, Error> {
    let Some(source) = config.graph.source()? else { return Ok(None) };
    let encode_like = config.graph.encode_like.as_deref().map(|folder| encoding(config, folder)).transpose()?;
    Ok(Some(GraphSource { encode_like, ..source }))
}

/// Checks that the folder of `graph.encode_like` can be read, if there is one.
///
/// # Errors
/// If it is neither a run folder with a model nor a prepared dataset.
pub(crate) fn check(config: &Config) -> Result<(), Error> {
    config.graph.encode_like.as_deref().map_or(Ok(()), |folder| encoding(config, folder).map(drop))
}

/// Returns the encoding of the data of a model in a run folder, or of a prepared dataset.
fn encoding(config: &Config, folder: &Path) -> Result<Encoding, Error> {
    if folder.join(MODEL).exists() {
        let (path, bytes) = open(folder)?;
        return Ok(parse(&path, &bytes)?.1.data.encoding);
    }
    if folder.join(Manifest::FILE).exists() {
        return Ok(Encoding::of(&Manifest::read(folder)?));
    }
    let message = format!(
        "{} has neither {MODEL} nor {}; name the folder of a finished run or of a prepared dataset",
        folder.display(),
        Manifest::FILE
    );
    Err(config.problem("graph.encode_like", message))
}
