//! A model's parameters: named, in order, and as one flat vector.

use std::ops::Range;

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Storage, Tensor, Var};

use super::error::{Error, Result};
use super::initial::Initial;

/// Named variables in order of creation: trained parameters, then buffers (running statistics), which have no gradient.
/// The flat vector concatenates all of them.
#[derive(Clone, Debug)]
pub struct Params {
    device: Device,
    vars: Vec<(String, Var)>,
    /// The length of the trained part of the flat vector.
    trained: usize,
}

impl Params {
    /// Iterates over names and variables, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.vars.iter().map(|(name, var)| (name.as_str(), var))
    }

    /// Returns the variable called `name`.
    pub fn get(&self, name: &str) -> Option<&Var> {
        self.vars.iter().find(|(n, _)| n == name).map(|(_, var)| var)
    }

    /// Returns the range of `var` in the flat vector, if it is one of these variables.
    pub(crate) fn range_of(&self, var: &Var) -> Option<Range<usize>> {
        let found = self.vars.iter().position(|(_, own)| own.id() == var.id())?;
        let first = elements(&self.vars[..found]);
        Some(first..first + var.elem_count())
    }

    /// Checks the gradients of trained parameters, as [`Params::gradients`] writes them.
    ///
    /// # Errors
    /// [`Error::NotFinite`] with the name of the first parameter whose gradient has a number that is not finite.
    pub fn check_gradients(&self, flat: &[f32]) -> Result<()> {
        let is_wrong = |var: &Var| {
            let gradient = self.range_of(var).and_then(|range| flat[..self.trained].get(range)).unwrap_or_default();
            gradient.iter().any(|value| !value.is_finite())
        };
        match self.iter().find(|(_, var)| is_wrong(var)) {
            Some((name, _)) => Err(Error::NotFinite(format!("the gradient of {name}"))),
            None => Ok(()),
        }
    }

    /// Returns the length of the flat vector.
    pub fn flat_len(&self) -> usize {
        elements(&self.vars)
    }

    /// Returns the length of the trained part of the flat vector; buffers follow.
    pub fn trained_len(&self) -> usize {
        self.trained
    }

    /// Copies all parameters into `flat`.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// Unless `flat` is [`Params::flat_len`] long.
    pub fn copy_to(&self, flat: &mut [f32]) -> Result<()> {
        assert_eq!(flat.len(), self.flat_len(), "`flat` must hold every parameter");
        self.each(|var, at| read(var, |values| flat[at..at + values.len()].copy_from_slice(values)))
    }

    /// Sets all parameters from `flat`.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// Unless `flat` is [`Params::flat_len`] long.
    pub fn set_from(&mut self, flat: &[f32]) -> Result<()> {
        assert_eq!(flat.len(), self.flat_len(), "`flat` must hold every parameter");
        let device = &self.device;
        self.each(|var, at| {
            let values = &flat[at..at + var.elem_count()];
            if device.is_cpu() {
                var.inplace_op1(&Overwrite(values))?;
            } else {
                var.set(&Tensor::from_slice(values, var.shape(), device)?)?;
            }
            Ok(())
        })
    }

    /// Adds every parameter's gradient to its range of `flat`. Buffers and parameters without gradient add nothing.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// Unless `flat` is [`Params::flat_len`] long.
    pub fn gradients(&self, gradients: &GradStore, flat: &mut [f32]) -> Result<()> {
        assert_eq!(flat.len(), self.flat_len(), "`flat` must hold every parameter");
        self.each(|var, at| match gradients.get(var) {
            Some(gradient) => read(gradient, |values| {
                flat[at..at + values.len()].iter_mut().zip(values).for_each(|(f, &g)| *f += g);
            }),
            None => Ok(()),
        })
    }

    /// Returns names, shapes and values in order, for a file.
    ///
    /// # Errors
    /// When the device fails.
    pub fn export(&self) -> Result<Vec<Param>> {
        let each = |(name, var): &(String, Var)| {
            let mut values = Vec::new();
            read(var, |v| values = v.to_vec())?;
            Ok(Param { name: name.clone(), shape: var.dims().to_vec(), values })
        };
        self.vars.iter().map(each).collect()
    }

    /// Sets the parameter called `name`.
    ///
    /// # Errors
    /// [`Error::State`] when there is no such parameter, or its shape differs.
    pub fn import(&mut self, name: &str, shape: &[usize], values: &[f32]) -> Result<()> {
        let refuse = |why: String| Error::State { name: name.to_owned(), why };
        let var = self.get(name).ok_or_else(|| refuse("the model has no such parameter".to_owned()))?;
        if var.dims() != shape || values.len() != var.elem_count() {
            return Err(refuse(format!("has shape {shape:?}; the model has {:?}", var.dims())));
        }
        var.set(&Tensor::from_slice(values, var.shape(), &self.device)?)?;
        Ok(())
    }

    /// Calls `f` with each variable and its offset in the flat vector.
    fn each(&self, mut f: impl FnMut(&Var, usize) -> Result<()>) -> Result<()> {
        let mut at = 0;
        for (_, var) in &self.vars {
            f(var, at)?;
            at += var.elem_count();
        }
        Ok(())
    }
}

/// A parameter as stored in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// The name.
    pub name: String,
    /// The shape, rows first.
    pub shape: Vec<usize>,
    /// The values, row-major.
    pub values: Vec<f32>,
}

/// Calls `f` with the elements of `t`, copied only if they are on another device or not contiguous.
fn read(t: &Tensor, f: impl FnOnce(&[f32])) -> Result<()> {
    let t = t.to_device(&Device::Cpu)?.contiguous()?;
    let (storage, layout) = t.storage_and_layout();
    if let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) {
        f(&storage.as_slice::<f32>()?[start..end]);
    }
    Ok(())
}

/// Overwrites a variable in place.
struct Overwrite<'a>(&'a [f32]);

impl InplaceOp1 for Overwrite<'_> {
    fn name(&self) -> &'static str {
        "overwrite"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        match (storage, layout.contiguous_offsets()) {
            (CpuStorage::F32(v), Some((start, end))) => v[start..end].copy_from_slice(self.0),
            _ => candle_core::bail!("parameters are contiguous f32"),
        }
        Ok(())
    }
}

/// Creates a model's parameters, each under the prefix of its layer.
#[derive(Debug)]
pub struct ParamBuilder {
    seed: u64,
    prefix: String,
    device: Device,
    vars: Vec<(String, Var)>,
    buffers: Vec<(String, Var)>,
}

impl ParamBuilder {
    /// A builder without parameters. Parameters are created on `device` and drawn under `seed`.
    pub fn new(seed: u64, device: &Device) -> Self {
        Self { seed, prefix: String::new(), device: device.clone(), vars: Vec::new(), buffers: Vec::new() }
    }

    /// Sets the prefix of the names of the following parameters.
    pub(crate) fn set_prefix(&mut self, prefix: impl Into<String>) {
        self.prefix = prefix.into();
    }

    /// Adds a parameter of `shape` with values from `initial`. The layer keeps the [`Var`], which shares them.
    ///
    /// # Errors
    /// When the name exists already, or the device is out of memory.
    pub fn add(&mut self, name: &str, shape: &[usize], initial: Initial) -> Result<Var> {
        let name = self.name(name)?;
        let values = initial.values(self.seed, &name, shape);
        let var = Var::from_tensor(&Tensor::from_vec(values, shape, &self.device)?)?;
        self.vars.push((name, var.clone()));
        Ok(var)
    }

    /// Adds a buffer (saved but not trained) with `value` everywhere. Also returns its offset in the buffers.
    ///
    /// # Errors
    /// As [`ParamBuilder::add`].
    pub(crate) fn add_buffer(&mut self, name: &str, shape: &[usize], value: f32) -> Result<(Var, usize)> {
        let (name, begin) = (self.name(name)?, elements(&self.buffers));
        let var = Var::from_tensor(&Tensor::full(value, shape, &self.device)?)?;
        self.buffers.push((name, var.clone()));
        Ok((var, begin))
    }

    fn name(&self, name: &str) -> Result<String> {
        let name = format!("{}{name}", self.prefix);
        if self.vars.iter().chain(&self.buffers).any(|(existing, _)| *existing == name) {
            return Err(Error::State { name, why: "two parameters have this name; use distinct names".to_owned() });
        }
        Ok(name)
    }

    /// Returns all parameters.
    pub fn finish(self) -> Params {
        let Self { device, mut vars, buffers, .. } = self;
        let trained = elements(&vars);
        vars.extend(buffers);
        Params { device, vars, trained }
    }
}

fn elements(vars: &[(String, Var)]) -> usize {
    vars.iter().map(|(_, var)| var.elem_count()).sum()
}
