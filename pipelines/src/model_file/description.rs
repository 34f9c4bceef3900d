//! The description of a model, for people.

use std::fmt;
use std::path::Path;

use gnnflow_data::dataset::{Encoding, LabelEncoding};
use gnnflow_data::format::plural;
use gnnflow_data::source::Normalize;
use serde::Serialize;

use super::trained_on::{Provenance, TrainedOn, ValidationMetric};
use super::{open, parse};
use crate::error::Error;

/// What a model file says about its model. It prints as text and serializes as in the file.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct ModelDescription(TrainedOn);

impl ModelDescription {
    /// Reads the description of the model in the run folder `run`.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no model, it is damaged, or it is of another version.
    pub fn read(run: &Path) -> Result<Self, Error> {
        let (path, bytes) = open(run)?;
        Ok(Self(parse(&path, &bytes)?.1))
    }
}

impl fmt::Display for ModelDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TrainedOn { task, model, data, provenance, .. } = &self.0;
        let Provenance { build, pipeline, seed, epoch, metric, .. } = provenance;
        write!(f, "model     {}, {} for {task}: epoch {epoch}", model.kind, plural(model.layers, "layer"))?;
        if let Some(ValidationMetric { name, value }) = metric {
            write!(f, ", validation {name} {value:.4}")?;
        }
        writeln!(f, "; pipeline {pipeline}, seed {seed}, gnnflow {build}")?;
        let Encoding { features, normalize, labels, edge_types, edge_features, edge_labels, .. } = &data.encoding;
        if features.values > 0 {
            let scaled = match normalize {
                Normalize::None => "",
                Normalize::Row => ", each row with sum 1",
                Normalize::Standard => ", each column with mean 0 and variance 1",
            };
            writeln!(f, "nodes     {}{scaled}", features.describe("feature"))?;
        }
        writeln!(f, "labels    {}", LabelEncoding::describe(labels.as_ref()))?;
        if edge_labels.is_some() {
            writeln!(f, "edges     {}", LabelEncoding::describe(edge_labels.as_ref()))?;
        }
        if let Some(types) = edge_types {
            let names = if types.names.is_empty() { String::new() } else { format!(": {}", types.names.join(", ")) };
            writeln!(f, "edges     {}{names}", plural(types.count as usize, "type"))?;
        }
        if edge_features.values > 0 {
            writeln!(f, "edges     {}", edge_features.describe("feature"))?;
        }
        Ok(())
    }
}
