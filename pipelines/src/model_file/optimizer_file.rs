//! `optimizer.safetensors`: the optimizer's state after the epoch of the model beside it, for training that goes on with both.

use std::path::{Path, PathBuf};

use gnnflow_data::format::hex;
use gnnflow_nn::optimizer::State;
use gnnflow_nn::params::Param;
use safetensors::tensor::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::refused;
use crate::checkpoint::tensor_file::{self, Tensor};
use crate::error::Error;
use crate::outputs::run_folder::{MODEL, OPTIMIZER};

/// Version of [`Description`] and of the names of tensors.
const SCHEMA: u32 = 1;

/// The advice in errors.
const LEAVE_OUT: &str = "leave train.from_optimizer out";

/// What the tensors are. That of parameter P in vector V is `V/P`.
#[derive(Debug, Serialize, Deserialize)]
struct Description {
    schema: u32,
    /// The word of `train.optimizer.kind`.
    kind: String,
    /// Steps taken.
    steps: u64,
    /// The names of the state's vectors.
    vectors: Vec<String>,
    /// The SHA-256 of the model's file.
    model: String,
}

/// The state of an optimizer in a file.
pub(super) struct OptimizerFile {
    path: PathBuf,
    bytes: Vec<u8>,
    description: Description,
}

/// Writes the state of an optimizer of this kind. `params` are all parameters, of which it updates the first ones. The model is in `folder` already.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(params: &[Param], (kind, state): (&str, &State), folder: &Path) -> Result<(), Error> {
    let model = folder.join(MODEL);
    let bytes = std::fs::read(&model).map_err(Error::io("read", &model))?;
    let description = Description {
        schema: SCHEMA,
        kind: kind.to_owned(),
        steps: state.steps,
        vectors: state.vectors.iter().map(|(name, _)| name.clone()).collect(),
        model: hex(&Sha256::digest(&bytes)),
    };
    let content = serde_json::to_string(&description).map_err(|error| Error::Bug(error.to_string()))?;
    let mut tensors = Vec::new();
    for (vector, values) in &state.vectors {
        let mut rest = &values[..];
        for Param { name, shape, values } in params {
            let Some((own, after)) = rest.split_at_checked(values.len()) else { break };
            let name = format!("{vector}/{name}");
            tensors.push(Tensor { name, dtype: Dtype::F32, shape: shape.clone(), bytes: bytemuck::cast_slice(own) });
            rest = after;
        }
    }
    tensor_file::write(&folder.join(OPTIMIZER), Some(&content), tensors)
}

impl OptimizerFile {
    /// Opens the state in the run folder `run` for an optimizer of this kind. `model` is the SHA-256 of the model's file there.
    ///
    /// # Errors
    /// [`Error::Input`] if there is none, it is damaged, or it is of another model or optimizer.
    pub(super) fn open(run: &Path, model: &str, kind: &str) -> Result<Self, Error> {
        let path = run.join(OPTIMIZER);
        let refuse = |message: String| refused(&path, &format!("train.from_optimizer: {message}"));
        if !path.exists() {
            let message = "no such file: that run is not finished (finish it with --resume), or is of an older version of gnnflow";
            return Err(refuse(format!("{message}; {LEAVE_OUT}")));
        }
        let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
        let (_, content) = tensor_file::parse(&bytes)
            .map_err(|reason| refuse(format!("the file {reason}; restore it from a copy, or {LEAVE_OUT}")))?;
        let description: Description = serde_json::from_str(&content)
            .map_err(|error| refuse(format!("the file is of another version of gnnflow ({error}); {LEAVE_OUT}")))?;
        if description.schema != SCHEMA {
            let message =
                format!("the file has schema {}, and this version of gnnflow reads {SCHEMA}", description.schema);
            return Err(refuse(format!("{message}; {LEAVE_OUT}")));
        }
        if description.model != model {
            return Err(refuse(format!(
                "this is not the state of {MODEL} beside it; restore it from a copy, or {LEAVE_OUT}"
            )));
        }
        if description.kind != kind {
            let message =
                format!("the optimizer of that run is {:?}, and that of this pipeline {kind:?}", description.kind);
            return Err(refuse(format!(
                "{message}; use train.optimizer.kind = {:?}, or {LEAVE_OUT}",
                description.kind
            )));
        }
        Ok(Self { path, bytes, description })
    }

    /// Returns the state for an optimizer with the vectors of `own`. `fill` sets the values of parameters, which are 0, from the tensors with a prefix.
    ///
    /// # Errors
    /// [`Error::Input`] if the optimizer has other vectors or parameters.
    pub(super) fn read(
        &self,
        own: &State,
        params: &[Param],
        fill: impl Fn(&Tensors<'_>, &mut [Param]) -> Result<Vec<String>, String>,
    ) -> Result<State, Error> {
        let refuse = |message: String| refused(&self.path, &format!("train.from_optimizer: {message}"));
        let names: Vec<&String> = own.vectors.iter().map(|(name, _)| name).collect();
        if !self.description.vectors.iter().eq(names.iter().copied()) {
            let list = |names: &[&String]| match names {
                [] => "no vectors".to_owned(),
                names => names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", "),
            };
            let of_file: Vec<&String> = self.description.vectors.iter().collect();
            let message =
                format!("the state has {}, and the optimizer of this pipeline {}", list(&of_file), list(&names));
            return Err(refuse(format!("{message}; use the [train] of that run, or {LEAVE_OUT}")));
        }
        let tensors = SafeTensors::deserialize(&self.bytes).map_err(|error| refuse(format!("is damaged: {error}")))?;
        let mut vectors = Vec::new();
        for (name, values) in &own.vectors {
            // Only the first parameters are trained.
            let (mut trained, mut len) = (Vec::new(), 0);
            for param in params {
                len += param.values.len();
                if len > values.len() {
                    break;
                }
                trained.push(Param { values: vec![0.0; param.values.len()], ..param.clone() });
            }
            fill(&Tensors { all: &tensors, prefix: &format!("{name}/") }, &mut trained).map_err(refuse)?;
            vectors.push((name.clone(), trained.into_iter().flat_map(|param| param.values).collect()));
        }
        Ok(State { steps: self.description.steps, vectors })
    }
}

/// The tensors of a file whose names begin with a prefix.
pub(super) struct Tensors<'a> {
    pub(super) all: &'a SafeTensors<'a>,
    pub(super) prefix: &'a str,
}

impl<'a> Tensors<'a> {
    /// Returns the tensor with a name, without the prefix.
    pub(super) fn get(&self, name: &str) -> Option<safetensors::tensor::TensorView<'a>> {
        self.all.tensor(&format!("{}{name}", self.prefix)).ok()
    }

    /// Returns the names, without the prefix.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.all.names().into_iter().filter_map(|name| name.strip_prefix(self.prefix))
    }
}
