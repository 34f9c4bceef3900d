//! A trained model from which training starts: `train.from`.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use gnnflow_data::dataset::{LabelEncoding, LabelKind, Manifest};
use gnnflow_data::format::hex;
use gnnflow_nn::ModelSpec;
use gnnflow_nn::optimizer::State;
use gnnflow_nn::params::Param;
use safetensors::tensor::Dtype;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::optimizer_file::{OptimizerFile, Tensors};
use super::trained_on::{TrainedOn, TrainingData, difference};
use super::{check_rows, numbers, open, parse, refused};
use crate::config::{Model, Task, Train};
use crate::error::Error;

/// A trained model whose layers are those of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmStart {
    /// The run folder that has the model.
    pub run: PathBuf,
    /// The SHA-256 of its file.
    pub sha256: String,
    columns: Columns,
    /// The kind of the optimizer, if training starts from its state, too.
    pub(crate) optimizer: Option<String>,
    /// Remarks on what differs.
    pub(crate) notes: Vec<String>,
}

/// The columns of the results of the pipeline's model, and the same ones of the trained model.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Columns {
    /// They are equal.
    Same,
    /// By class of the dataset, the class of the trained model; `None` for a new class.
    Classes { trained: usize, by_class: Vec<Option<usize>> },
    /// No column is the same, as the tasks differ.
    Other,
}

/// Keys of [`ModelSpec`] that may differ: dropout, and what the data and the task decide.
const MAY_DIFFER: [&str; 8] =
    ["in_dim", "out_dim", "decoder", "relations", "edge_dim", "input_dropout", "dropout", "attention_dropout"];
/// Keys of [`ModelSpec`] with another name in `[model]`.
const RENAMED: [(&str, &str); 3] = [("epsilon", "eps"), ("train_epsilon", "train_eps"), ("bases", "num_bases")];

impl WarmStart {
    /// Opens the model of the run folder `run` for training with `model` and `train` on `dataset`.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no model, it is damaged, it has other layers, or it was trained on other columns.
    pub fn open(run: &Path, (model, train): (&Model, &Train), dataset: &Manifest) -> Result<Self, Error> {
        if !run.is_dir() {
            let message = format!("train.from: {}: no such folder; name the folder of a finished run", run.display());
            return Err(Error::Input(message));
        }
        let (path, bytes) = open(run)?;
        let (_, trained) = parse(&path, &bytes)?;
        let refuse = |message: String| refused(&path, &format!("train.from: {message}"));
        let of_data = |difference: String| {
            refuse(format!(
                "{difference}; prepare the dataset with the columns and settings of that run, or leave train.from out"
            ))
        };
        let spec = model.network(&train.schedule).describe(0, 0, 0, 0);
        let differs = |key: &str, own: String, of_trained: String| {
            refuse(format!(
                "the model has {key} {of_trained}, and this pipeline {own}; {}, or leave train.from out",
                remedy(key, model, &trained, run)
            ))
        };
        if let Some((key, [own, of_trained])) = first_other_key(&spec, &trained.model) {
            return Err(differs(&format!("model.{key}"), own, of_trained));
        }
        let data = TrainingData::of(dataset);
        data.has_columns_of(&trained.data).map_err(of_data)?;
        if let Some(rows) = model.embedding.as_ref().filter(|rows| rows.dim != trained.model.in_dim) {
            return Err(differs(
                "model.embedding.dim",
                format!("= {}", rows.dim),
                format!("= {}", trained.model.in_dim),
            ));
        }
        check_rows(run, &trained)?;
        let (columns, mut notes) = columns(&data, train.task, &trained).map_err(of_data)?;
        if !data.is_scaled_as(&trained.data) {
            notes.push(
                "features are scaled by the means and deviations of this dataset, and not by those of the model's; graph.encode_like = the run \
                 would use those"
                    .into(),
            );
        }
        let sha256 = hex(&Sha256::digest(&bytes));
        let optimizer = train.from_optimizer.then(|| train.optimizer.word().to_owned());
        if let Some(kind) = &optimizer {
            OptimizerFile::open(run, &sha256, kind)?;
            if model.embedding.is_some() {
                notes.push("the state of the optimizer of learned rows begins anew".into());
            }
        }
        Ok(Self { run: run.to_owned(), sha256, columns, optimizer, notes })
    }

    /// Whether the results have other columns than those of the trained model.
    pub(crate) fn has_other_results(&self) -> bool {
        self.columns != Columns::Same
    }

    /// Sets the values of `params`, which are drawn already, to those of the trained model. Returns the names of parameters of which some
    /// values stay as they are drawn. `wider` has the shapes that the parameters would have, in their order, if the results had more columns: axes that
    /// are longer there have places for columns.
    ///
    /// # Errors
    /// [`Error::Input`] if the model is damaged or has other parameters.
    pub(crate) fn read(&self, params: &mut [Param], wider: &[Vec<usize>]) -> Result<Vec<String>, Error> {
        let (path, bytes) = open(&self.run)?;
        let (tensors, _) = parse(&path, &bytes)?;
        let tensors = Tensors { all: &tensors, prefix: "" };
        self.columns.fill(&tensors, params, wider).map_err(|message| refused(&path, &message))
    }

    /// Returns the state of the run's optimizer of this `kind`, for an optimizer with the vectors of `own`; 0 for parameters that the trained model does not
    /// have. `params` and `wider` are as for [`WarmStart::read`].
    ///
    /// # Errors
    /// [`Error::Input`] if the file is damaged, or the optimizers differ.
    pub(crate) fn read_optimizer(
        &self,
        kind: &str,
        own: &State,
        (params, wider): (&[Param], &[Vec<usize>]),
    ) -> Result<State, Error> {
        let file = OptimizerFile::open(&self.run, &self.sha256, kind)?;
        file.read(own, params, |tensors, trained| self.columns.fill(tensors, trained, wider))
    }
}

/// Says how to get the layers of the trained model.
fn remedy(key: &str, model: &Model, trained: &TrainedOn, run: &Path) -> String {
    // The schedule decides whether a `gcn` is decoupled, and so becomes an `appnp`.
    if key == "model.kind" && model.kind == "gcn" && ["gcn", "appnp"].contains(&trained.model.kind.as_str()) {
        let decoupled = trained.model.kind == "appnp";
        return format!(
            "a decoupled gcn is an appnp, and train.schedule decides whether it is decoupled: set model.decoupled = {decoupled}"
        );
    }
    format!("use the [model] of {}", run.join("pipeline.toml").display())
}

/// Returns the first key of `[model]` by which two models differ, with its values.
fn first_other_key(own: &ModelSpec, trained: &ModelSpec) -> Option<(String, [String; 2])> {
    let [own, trained] = [own, trained].map(keys);
    let show = |value: Option<&Value>| match value {
        None | Some(Value::Null) => "unset".to_owned(),
        Some(value) => format!("= {value}"),
    };
    let other =
        own.iter().find(|(key, value)| !MAY_DIFFER.contains(&key.as_str()) && trained.get(*key) != Some(*value));
    other.map(|(key, value)| {
        let name = RENAMED.iter().find(|(of_spec, _)| of_spec == key).map_or(key.as_str(), |(_, name)| name);
        (name.to_owned(), [show(Some(value)), show(trained.get(key))])
    })
}

/// Returns the keys of a specification, with those of its options.
fn keys(spec: &ModelSpec) -> Map<String, Value> {
    let Ok(Value::Object(mut keys)) = serde_json::to_value(spec) else { return Map::new() };
    if let Some(Value::Object(options)) = keys.remove("options") {
        keys.extend(options);
    }
    keys
}

/// Returns which columns of the results the trained model has, and remarks.
fn columns(data: &TrainingData, task: Task, trained: &TrainedOn) -> Result<(Columns, Vec<String>), String> {
    if task.learns_edges() && trained.task.learns_edges() {
        let classify = task == Task::EdgeClassification && trained.task == task;
        let [own, of_trained] = [data, &trained.data].map(|data| &data.encoding.edge_labels);
        if classify && own != of_trained {
            let [own, of_trained] = [own, of_trained].map(|classes| LabelEncoding::describe(classes.as_ref()));
            return Err(difference("edges with ", &of_trained, &own));
        }
        return Ok((Columns::Same, Vec::new()));
    }
    if task != trained.task {
        let note = format!("the model was trained for {}, so parameters of results begin anew", trained.task);
        return Ok((Columns::Other, vec![note]));
    }
    let (Some(own), Some(of_trained)) = (&data.encoding.labels, &trained.data.encoding.labels) else {
        return Ok((Columns::Same, Vec::new()));
    };
    if own == of_trained {
        return Ok((Columns::Same, Vec::new()));
    }
    let unnamed = |classes: &LabelEncoding| classes.names.is_empty();
    let comparable = own.kind != LabelKind::Value && unnamed(own) == unnamed(of_trained);
    if own.kind != of_trained.kind || !comparable {
        let [own, of_trained] = [own, of_trained].map(|classes| LabelEncoding::describe(Some(classes)));
        return Err(difference("nodes with ", &of_trained, &own));
    }
    let names = |classes: &LabelEncoding| match unnamed(classes) {
        true => (0..classes.count).map(|class| class.to_string()).collect(),
        false => classes.names.clone(),
    };
    let (own, of_trained): (Vec<String>, Vec<String>) = (names(own), names(of_trained));
    let places: HashMap<&String, usize> = of_trained.iter().zip(0..).collect();
    let by_class: Vec<Option<usize>> = own.iter().map(|name| places.get(name).copied()).collect();
    let kept: HashSet<usize> = by_class.iter().flatten().copied().collect();
    let new = own.iter().zip(&by_class).filter(|(_, place)| place.is_none()).map(|(name, _)| name);
    let gone = of_trained.iter().enumerate().filter(|(place, _)| !kept.contains(place)).map(|(_, name)| name);
    let mut notes = Vec::new();
    if let Some(names) = some_of(new) {
        notes.push(format!("the model has not learned the classes {names}"));
    }
    if let Some(names) = some_of(gone) {
        notes.push(format!("the dataset does not have the model's classes {names}"));
    }
    Ok((Columns::Classes { trained: of_trained.len(), by_class }, notes))
}

/// A note lists at most this many classes.
const LISTED: usize = 5;

/// Returns the first names and the number of the others; `None` for no names.
fn some_of<'a>(names: impl Iterator<Item = &'a String>) -> Option<String> {
    let names: Vec<&str> = names.map(String::as_str).collect();
    let (first, others) = names.split_at(names.len().min(LISTED));
    let others = (!others.is_empty()).then(|| format!("{} more", others.len()));
    let all: Vec<&str> = first.iter().copied().chain(others.as_deref()).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// By place along an axis of a parameter, the place in the trained parameter; `None` where it has none.
type Axis = Vec<Option<usize>>;

impl Columns {
    /// Copies values from the file. Returns the names of parameters that keep drawn values.
    fn fill(&self, tensors: &Tensors<'_>, params: &mut [Param], wider: &[Vec<usize>]) -> Result<Vec<String>, String> {
        let same = *self == Self::Same;
        let own_decoder = |name: &str| name.starts_with("decoder.");
        let mut drawn = Vec::new();
        for (Param { name, shape, values }, wider) in params.iter_mut().zip(wider) {
            let tensor = tensors.get(name);
            let axes = tensor.as_ref().filter(|tensor| tensor.dtype() == Dtype::F32).and_then(|tensor| {
                let axis = |(at, &own): (usize, &usize)| self.axis(own, wider[at], *tensor.shape().get(at)?);
                let axes: Option<Vec<Axis>> = shape.iter().enumerate().map(axis).collect();
                axes.filter(|axes| axes.len() == tensor.shape().len())
            });
            match (&tensor, axes) {
                (Some(tensor), Some(axes)) => {
                    copy(&numbers(tensor.data()), values, &axes, tensor.shape());
                    if axes.iter().flatten().any(Option::is_none) {
                        drawn.push(name.clone());
                    }
                }
                // The decoder of another task or with other options; a map of a residual connection, which depends on the number of classes.
                (None, _) if !same || own_decoder(name) => drawn.push(name.clone()),
                (Some(_), _) if own_decoder(name) => drawn.push(name.clone()),
                (Some(tensor), _) => {
                    return Err(format!(
                        "{name:?} has the shape {:?}, and in this pipeline {shape:?}; the model is damaged, or its registered layers are others",
                        tensor.shape()
                    ));
                }
                (None, _) => {
                    return Err(format!(
                        "the parameter {name:?} of this pipeline is missing; the model is damaged, or its registered layers are others"
                    ));
                }
            }
        }
        let known = |name: &str| params.iter().any(|param| param.name == name) || own_decoder(name);
        match tensors.names().find(|name| same && !known(name)) {
            Some(name) => Err(format!(
                "the parameter {name:?} is not in the model of this pipeline; the model is damaged, or its registered layers are others"
            )),
            None => Ok(drawn),
        }
    }

    /// Returns where the places along an axis are in the trained parameter. `None` if the lengths do not fit. The axis has `own` places, and `wider`
    /// ones if the results have more columns: it then has some heads, each with a place for every column.
    fn axis(&self, own: usize, wider: usize, trained: usize) -> Option<Axis> {
        let equal = || (own == trained).then(|| (0..own).map(Some).collect());
        match self {
            _ if own == wider => equal(),
            Self::Same => equal(),
            Self::Other => Some(vec![None; own]),
            Self::Classes { trained: classes, by_class } => {
                let each = own / by_class.len();
                let fits = own == each * by_class.len() && trained == each * classes;
                let places = |head: usize| by_class.iter().map(move |class| Some(head * classes + (*class)?));
                fits.then(|| (0..each).flat_map(places).collect())
            }
        }
    }
}

/// Copies a trained parameter of shape `shape` to `to`, by the axes of `to`.
fn copy(from: &[f32], to: &mut [f32], axes: &[Axis], shape: &[usize]) {
    let Some((axis, inner)) = axes.split_first() else { return to.copy_from_slice(from) };
    let (of_from, of_to) = (from.len() / shape[0], to.len() / axis.len());
    for (place, to) in axis.iter().zip(to.chunks_exact_mut(of_to)) {
        if let Some(place) = place {
            copy(&from[place * of_from..][..of_from], to, inner, &shape[1..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::SafeTensors;

    use super::super::tests::{file, param};
    use super::super::trained_on::{Provenance, SCHEMA, classes};
    use super::*;

    fn trained(task: Task) -> TrainedOn {
        TrainedOn {
            schema: SCHEMA,
            task,
            model: ModelSpec::new("sage", 2, 3, 16, 2),
            data: TrainingData::example(),
            rows: None,
            provenance: Provenance::default(),
        }
    }

    fn counted(name: &str, shape: &[usize]) -> Param {
        let values = (0..shape.iter().product::<usize>()).map(|at| at as f32).collect();
        Param { values, ..param(name, shape, 0.0) }
    }

    #[test]
    fn classes_are_matched_by_name() {
        let (nodes, model) = (Task::NodeClassification, trained(Task::NodeClassification));
        let with = |labels| columns(&TrainingData::example().with_labels(labels), nodes, &model);
        assert_eq!(with(Some(classes(2, &["cat", "dog"]))), Ok((Columns::Same, Vec::new())));
        assert_eq!(with(None), Ok((Columns::Same, Vec::new())));
        let (found, notes) = with(Some(classes(3, &["ant", "bee", "dog"]))).unwrap();
        assert_eq!(found, Columns::Classes { trained: 2, by_class: vec![None, None, Some(1)] });
        assert!(notes[0].ends_with("classes ant, bee") && notes[1].ends_with("classes cat"), "{notes:?}");
        assert!(
            with(Some(classes(2, &[]))).unwrap_err().contains("the classes cat, dog, and the dataset has 2 classes")
        );
        let value = LabelEncoding { kind: LabelKind::Value, count: 1, names: Vec::new() };
        assert!(with(Some(value)).unwrap_err().contains("numbers as labels"));
        assert_eq!(columns(&TrainingData::example(), Task::LinkPrediction, &model).unwrap().0, Columns::Other);
        let links = trained(Task::LinkPrediction);
        assert_eq!(columns(&TrainingData::example(), Task::EdgeClassification, &links).unwrap().0, Columns::Same);
        let data = TrainingData::example().with_edge_labels(Some(classes(4, &[])));
        let why = columns(&data, Task::EdgeClassification, &trained(Task::EdgeClassification)).unwrap_err();
        assert!(why.contains("no labels, and the dataset has 4 classes"), "{why}");
    }

    #[test]
    fn rows_of_classes_move_with_their_heads() {
        // 2 heads of 2 classes (cat, dog) to 2 heads of 3 classes (ant, cat, dog), along the first and the last axis.
        let columns = Columns::Classes { trained: 2, by_class: vec![None, Some(0), Some(1)] };
        let written =
            [counted("weight", &[4, 2]), counted("bias", &[2]), counted("bases", &[2, 4, 1]), counted("in", &[3])];
        let mut params = [
            param("weight", &[6, 2], -1.0),
            param("bias", &[3], -1.0),
            param("bases", &[2, 6, 1], -1.0),
            param("in", &[3], -1.0),
        ];
        let shapes = vec![vec![8, 2], vec![4], vec![2, 8, 1], vec![3]];
        let bytes = file(&written);
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let drawn = columns.fill(&Tensors { all: &tensors, prefix: "" }, &mut params, &shapes).unwrap();
        assert_eq!(drawn, ["weight", "bias", "bases"]);
        assert_eq!(params[0].values, [-1.0, -1.0, 0.0, 1.0, 2.0, 3.0, -1.0, -1.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(params[1].values, [-1.0, 0.0, 1.0]);
        assert_eq!(params[2].values, [-1.0, 0.0, 1.0, -1.0, 2.0, 3.0, -1.0, 4.0, 5.0, -1.0, 6.0, 7.0]);
        assert_eq!(params[3].values, [0.0, 1.0, 2.0]);
    }

    #[test]
    fn parameters_of_another_task_begin_anew_where_results_decide_their_shape() {
        let written = [counted("a", &[4, 2]), counted("last", &[9, 4]), counted("decoder.x", &[9])];
        let bytes = file(&written);
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = Tensors { all: &tensors, prefix: "" };
        let mut params = [param("a", &[4, 2], -1.0), param("last", &[5, 4], -1.0), param("residual", &[5, 4], -1.0)];
        let shapes = vec![vec![4, 2], vec![6, 4], vec![6, 4]];
        let drawn = Columns::Other.fill(&tensors, &mut params, &shapes).unwrap();
        assert_eq!(drawn, ["last", "residual"]);
        assert_eq!(params[0].values, written[0].values);
        assert!(params[1].values.iter().all(|&value| value == -1.0));
        for (name, shape, words) in
            [("a", [4, 3], "has the shape [4, 2], and in this pipeline [4, 3]"), ("b", [4, 2], "\"b\"")]
        {
            let mut params = [param(name, &shape, 0.0)];
            let shapes = vec![shape.to_vec()];
            let why = Columns::Same.fill(&tensors, &mut params, &shapes).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        let mut params = [param("a", &[4, 2], 0.0)];
        let why = Columns::Same.fill(&tensors, &mut params, &[vec![4, 2]]).unwrap_err();
        assert!(why.contains("\"last\" is not in the model of this pipeline"), "{why}");
    }

    #[test]
    fn first_key_of_another_model_is_named() {
        let own = ModelSpec::new("gin", 2, 3, 16, 2);
        let mut other = ModelSpec { dropout: 0.3, in_dim: 9, out_dim: 9, ..own.clone() };
        assert_eq!(first_other_key(&own, &other), None);
        other.options.epsilon = 0.5;
        let (key, [own_value, of_other]) = first_other_key(&own, &other).unwrap();
        assert_eq!((&key[..], &own_value[..], &of_other[..]), ("eps", "= 0.0", "= 0.5"));
        let (key, _) = first_other_key(&own, &ModelSpec { hidden: 8, ..own.clone() }).unwrap();
        assert_eq!(key, "hidden");
    }
}
