//! The program as a value: built in parts of a user's own, it is a user's own program.

use gnnflow_data::Partitioner;
use gnnflow_dataflow::batch::apply_operator::BatchOperator;
use gnnflow_kernels::sample::Sampler;
use gnnflow_nn::{Layer, LayerSpec, ParamBuilder, Result as ComputeResult};
use gnnflow_pipelines::Registry;
use std::ffi::OsString;
use std::process::ExitCode;

/// The `gnnflow` program, with whatever is registered.
///
/// A `main.rs` of ten lines is a gnnflow with a partitioner, a sampler or a layer more, which pipeline files call by name:
///
/// ```
/// use gnnflow_data::partitioner::{Assignment, Goal, GraphStream, Partitioner};
///
/// struct Modulo;
///
/// impl Partitioner for Modulo {
///     fn name(&self) -> &str {
///         "modulo"
///     }
///     fn assign(&self, _: &dyn GraphStream, goal: &Goal) -> gnnflow_data::Result<Assignment> {
///         let parts = u64::from(goal.parts);
///         Ok(Assignment::computed(move |node| (node % parts) as u32))
///     }
/// }
///
/// fn main() -> std::process::ExitCode {
///     // Now `method = "modulo"` in [partition] is this one.
///     let app = gnnflow::App::new().partitioner(Modulo);
///     app.main_with(["gnnflow", "--version"]) // a real one: app.main()
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct App {
    registry: Registry,
}

impl App {
    /// The program as it comes. Call it first thing in `main`, while there is one thread.
    pub fn new() -> Self {
        gnnflow_nn::init();
        Self::default()
    }

    /// Adds a partitioner, for `partition.method`, under the name that it says.
    #[must_use]
    pub fn partitioner(mut self, partitioner: impl Partitioner + 'static) -> Self {
        self.registry.add_partitioner(partitioner);
        self
    }

    /// Adds a sampler, for `train.sampler`, under the name that it says.
    #[must_use]
    pub fn sampler(mut self, sampler: impl Sampler + 'static) -> Self {
        self.registry.add_sampler(sampler);
        self
    }

    /// Adds a kind of layer, for `model.kind`, made by `factory`; ReLU stands between its layers.
    #[must_use]
    pub fn layer<F>(mut self, name: &str, factory: F) -> Self
    where
        F: Fn(&LayerSpec, &mut ParamBuilder) -> ComputeResult<Box<dyn Layer>> + Send + Sync + 'static,
    {
        self.registry.layers_mut().register(name, factory);
        self
    }

    /// Adds an operator on batches, for `train.operators`: a function of a stream of batches. See [`BatchOperator`].
    #[must_use]
    pub fn operator(mut self, name: &str, operator: impl BatchOperator + 'static) -> Self {
        self.registry.add_operator(name, operator);
        self
    }

    /// Runs the command that the process's arguments ask for. Return what it returns from `main`.
    pub fn main(self) -> ExitCode {
        self.main_with(std::env::args_os())
    }

    /// The same with other arguments, the program's name first.
    pub fn main_with(self, args: impl IntoIterator<Item = impl Into<OsString>>) -> ExitCode {
        crate::cli::main(args.into_iter().map(Into::into), self.registry)
    }
}
