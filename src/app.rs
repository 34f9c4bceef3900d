//! The program as a value, for programs with user-defined parts.

use gnnflow_data::Partitioner;
use gnnflow_dataflow::apply_operator::BatchOperator;
use gnnflow_kernels::sample::Sampler;
use gnnflow_nn::{Layer, LayerSpec, ParamBuilder, Result as ComputeResult};
use gnnflow_pipelines::Registry;
use std::ffi::OsString;
use std::process::ExitCode;

/// The `gnnflow` program with user-defined partitioners, samplers, operators and layers. Pipeline files use them by name:
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
///     // Pipeline files may now use `method = "modulo"` in [partition].
///     let app = gnnflow::App::new().partitioner(Modulo);
///     app.main_with(["gnnflow", "--version"]) // a real program calls app.main()
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct App {
    registry: Registry,
}

impl App {
    /// The program without user-defined parts. Call this first in `main`, while there is only one thread.
    pub fn new() -> Self {
        gnnflow_nn::init();
        Self::default()
    }

    /// Registers a partitioner for `partition.method`, by its name.
    #[must_use]
    pub fn partitioner(mut self, partitioner: impl Partitioner + 'static) -> Self {
        self.registry.add_partitioner(partitioner);
        self
    }

    /// Registers a sampler for `train.sampler`, by its name.
    #[must_use]
    pub fn sampler(mut self, sampler: impl Sampler + 'static) -> Self {
        self.registry.add_sampler(sampler);
        self
    }

    /// Registers a kind of layer for `model.kind`. `factory` makes the layers. Between them, the model applies residual, norm, activation
    /// and dropout, as the keys of `[model]` say.
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

    /// Runs the command of the process's arguments. Returns the exit code for `main`.
    pub fn main(self) -> ExitCode {
        self.main_with(std::env::args_os())
    }

    /// Like [`App::main`], with these arguments, the program's name first.
    pub fn main_with(self, args: impl IntoIterator<Item = impl Into<OsString>>) -> ExitCode {
        crate::cli::main(args.into_iter().map(Into::into), self.registry)
    }
}
