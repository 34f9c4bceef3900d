//! Compares every operation of a device, forward and backward, with a reference on fixed inputs.
//!
//! A GPU is compared with the CPU's kernels in the same precision. The CPU is compared with plain tensor arithmetic in
//! double precision ([`naive`]), with candle's gradients. Inputs include rows without edges and with a thousand, widths
//! that four does not divide, and several heads. On a GPU, whole models and sampled batches are compared too.

mod cases;
mod found;
mod models;
mod naive;
mod rates;
mod sampling;

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use candle_core::{DType, Device, Tensor, Var};
use serde::Serialize;

use self::cases::{Case, Function, Input};
use self::found::{Found, numbers};
use super::device::describe;
use super::error::Result;

pub use self::rates::{Rate, device_rates};

/// The result of [`check_device`], as written to a file.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// The version of this layout: 1.
    pub schema: u32,
    /// The time, in UTC: `2030-01-31T23:59:59Z`.
    pub date: String,
    /// The version of this program.
    pub version: &'static str,
    /// The name of the device.
    pub device: String,
    /// The description of the device.
    pub description: String,
    /// The reference.
    pub reference: &'static str,
    /// How errors are measured.
    pub measure: &'static str,
    /// Whether all comparisons passed.
    pub passed: bool,
    /// All comparisons.
    pub comparisons: Vec<Comparison>,
    /// The rates of [`device_rates`], if they were measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<Rate>,
}

/// The comparison of one result, or one gradient, of an operation.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The operation.
    pub operation: &'static str,
    /// The block and sizes.
    pub on: String,
    /// The type of the input's numbers.
    pub dtype: &'static str,
    /// `"result"`, or `"gradient of x"`.
    pub of: String,
    /// The number of compared numbers.
    pub numbers: usize,
    /// How many of them have equal bits.
    pub same_bits: usize,
    /// The largest error.
    pub largest_error: f64,
    /// The largest allowed error.
    pub tolerance: f64,
    /// Whether the error is allowed.
    pub passed: bool,
    /// Why nothing could be compared.
    pub failure: Option<String>,
}

/// The largest allowed error of logits, loss and gradients of whole models.
const MODEL: f64 = 1e-4;
const MEASURE: &str = "|found - wanted| / max(1, |wanted|)";

/// Runs every operation on the device called `name` and compares the results.
///
/// ```no_run
/// let report = gnnflow_nn::check_device("cuda")?;
/// println!("{report}");
/// assert!(report.passed);
/// # Ok::<(), gnnflow_nn::Error>(())
/// ```
///
/// # Errors
/// [`Error::Device`](super::Error::Device) when the device cannot be used. Wrong and failed results are in the report.
pub fn check_device(name: &str) -> Result<DeviceReport> {
    let device = super::device(name)?;
    let reference = if device.is_cpu() { "plain arithmetic in f64" } else { "the CPU's kernels" };
    let mut comparisons = Vec::new();
    for case in cases::all() {
        for &dtype in case.types {
            compare(&case, dtype, &device, &mut comparisons);
        }
    }
    if !device.is_cpu() {
        for (operation, kind, configure) in models::MODELS {
            let run = |device: &Device| models::run(kind, configure, device).map_err(|error| error.to_string());
            let blank = blank(operation, "a batch of two hops".to_owned(), DType::F32, MODEL);
            push(blank, run(&device), run(&Device::Cpu), &mut comparisons);
        }
        for (on, fanouts) in sampling::HOPS {
            let run = |device: &Device| sampling::run(fanouts, device).map_err(|error| error.to_string());
            push(blank("sample", on.to_owned(), DType::U32, 0.0), run(&device), run(&Device::Cpu), &mut comparisons);
        }
    }
    Ok(DeviceReport {
        schema: 1,
        date: now(),
        version: env!("CARGO_PKG_VERSION"),
        device: name.to_owned(),
        description: describe(&device),
        reference,
        measure: MEASURE,
        passed: comparisons.iter().all(|c| c.passed),
        comparisons,
        rates: Vec::new(),
    })
}

/// Runs one case in one type and compares its result and gradients.
fn compare(case: &Case, dtype: DType, device: &Device, comparisons: &mut Vec<Comparison>) {
    let found = run(&case.ours, case, dtype, device, false);
    let wanted = if device.is_cpu() {
        run(&case.naive, case, dtype, &Device::Cpu, true)
    } else {
        run(&case.ours, case, dtype, &Device::Cpu, false)
    };
    // Double precision serves gradient checks, so its tolerance is fixed and strict.
    let tolerance = if dtype == DType::F64 { 1e-11 } else { case.tolerance };
    let as_text = |found: candle_core::Result<Found>| found.map_err(|error| error.to_string());
    push(blank(case.operation, case.on.clone(), dtype, tolerance), as_text(found), as_text(wanted), comparisons);
}

/// An empty comparison.
fn blank(operation: &'static str, on: String, dtype: DType, tolerance: f64) -> Comparison {
    let (of, dtype) = (String::new(), dtype.as_str());
    let (numbers, same_bits, largest_error) = (0, 0, 0.0);
    Comparison { operation, on, dtype, of, numbers, same_bits, largest_error, tolerance, passed: true, failure: None }
}

/// Compares each result with the reference, or records why that is impossible.
fn push(blank: Comparison, found: Result<Found, String>, wanted: Result<Found, String>, into: &mut Vec<Comparison>) {
    match (found, wanted) {
        (Ok(found), Ok(wanted)) => {
            for ((of, found), (_, wanted)) in found.into_iter().zip(wanted) {
                into.push(measure(Comparison { of, ..blank.clone() }, &found, &wanted));
            }
        }
        (Err(error), _) | (_, Err(error)) => {
            let (of, failure) = ("result".to_owned(), Some(error.lines().next().unwrap_or_default().to_owned()));
            into.push(Comparison { of, passed: false, failure, ..blank });
        }
    }
}

fn measure(blank: Comparison, found: &[f64], wanted: &[f64]) -> Comparison {
    if found.len() != wanted.len() {
        let failure = Some(format!("{} numbers; expected {}", found.len(), wanted.len()));
        return Comparison { passed: false, failure, ..blank };
    }
    let pairs = || found.iter().zip(wanted);
    let same_bits = pairs().filter(|(f, w)| f.to_bits() == w.to_bits()).count();
    let error = |(f, w): (&f64, &f64)| if f.to_bits() == w.to_bits() { 0.0 } else { (f - w).abs() / w.abs().max(1.0) };
    // An unexpected NaN is the largest error.
    let largest_error = pairs().map(error).fold(0.0, |m, e| if e.is_nan() { f64::INFINITY } else { e.max(m) });
    Comparison { numbers: found.len(), same_bits, largest_error, passed: largest_error <= blank.tolerance, ..blank }
}

/// Returns the result of `function` on the case's inputs, and the gradients of a weighted sum of it.
///
/// Inputs are rounded to the case's type, then converted to double precision if `widened`.
fn run(function: &Function, case: &Case, dtype: DType, device: &Device, widened: bool) -> candle_core::Result<Found> {
    let half = matches!(dtype, DType::BF16 | DType::F16);
    let mut inputs = Vec::new();
    let mut variables = Vec::new();
    for Input { name, shape, values, stored, .. } in &case.inputs {
        let own = if half && !stored { DType::F32 } else { dtype };
        let rounded = Tensor::from_slice(values, shape.as_slice(), &Device::Cpu)?.to_dtype(own)?;
        let tensor = if widened { rounded.to_dtype(DType::F64)? } else { rounded }.to_device(device)?;
        if half {
            inputs.push(tensor);
        } else {
            let variable = Var::from_tensor(&tensor)?;
            inputs.push(variable.as_tensor().clone());
            variables.push((name, variable));
        }
    }
    let result = function(&inputs)?;
    let mut found = vec![("result".to_owned(), numbers(&result)?)];
    if case.differentiable && !half {
        let weights = cases::numbers("weights of the result", result.elem_count());
        let weights = Tensor::from_vec(weights, result.shape(), &Device::Cpu)?;
        let weights = weights.to_dtype(result.dtype())?.to_device(device)?;
        let weighted = (result * weights)?;
        // A scalar is its own sum, and candle has no CUDA kernel for it.
        let total = if weighted.rank() == 0 { weighted } else { weighted.sum_all()? };
        let gradients = total.backward()?;
        for (name, variable) in variables {
            let gradient = match gradients.get(&variable) {
                Some(gradient) => numbers(gradient)?,
                None => vec![0.0; variable.elem_count()],
            };
            found.push((format!("gradient of {name}"), gradient));
        }
    }
    Ok(found)
}

/// Returns the current time in UTC, to the second.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds)
}

/// Formats seconds since 1970 as a date and time of the Gregorian calendar.
fn date(seconds: u64) -> String {
    let (mut day, of_day) = (seconds / 86_400, seconds % 86_400);
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for days in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", day + 1)
}

/// One line per operation and type, with the worst error of all sizes, results and gradients.
impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({}) against {}, {}", self.device, self.description, self.reference, self.date)?;
        writeln!(f, "error: {}", self.measure)?;
        writeln!(
            f,
            "{:<24} {:<5} {:>9} {:>10} {:>9} {:>9}",
            "operation", "type", "numbers", "same bits", "error", "tolerance"
        )?;
        let mut groups: Vec<Vec<&Comparison>> = Vec::new();
        for c in &self.comparisons {
            match groups.iter_mut().find(|group| (group[0].operation, group[0].dtype) == (c.operation, c.dtype)) {
                Some(group) => group.push(c),
                None => groups.push(vec![c]),
            }
        }
        for group in groups {
            let first = group[0];
            let total = |of: fn(&Comparison) -> usize| group.iter().map(|c| of(c)).sum::<usize>();
            let (all, same) = (total(|c| c.numbers), total(|c| c.same_bits));
            let error = group.iter().fold(0f64, |worst, c| worst.max(c.largest_error));
            let share = if all == 0 { 100.0 } else { 100.0 * same as f64 / all as f64 };
            let verdict = if group.iter().all(|c| c.passed) { "ok" } else { "WRONG" };
            let (operation, dtype, tolerance) = (first.operation, first.dtype, first.tolerance);
            writeln!(f, "{operation:<24} {dtype:<5} {all:>9} {share:>9.1}% {error:>9.1e} {tolerance:>9.1e} {verdict}")?;
            for c in group.iter().filter(|c| !c.passed) {
                let what = c.failure.clone().unwrap_or_else(|| format!("error {:.2e}", c.largest_error));
                writeln!(f, "    {} on {}: {what}", c.of, c.on)?;
            }
        }
        for rate in &self.rates {
            writeln!(f, "{rate}")?;
        }
        let wrong = self.comparisons.iter().filter(|c| !c.passed).count();
        match wrong {
            0 => write!(f, "{} comparisons, all within tolerance", self.comparisons.len()),
            _ => write!(f, "{wrong} of {} comparisons are WRONG", self.comparisons.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_device_on_cpu_passes() -> Result<()> {
        let report = check_device("cpu")?;
        assert!(report.passed, "{report}");
        assert!(report.comparisons.iter().any(|c| c.of.starts_with("gradient")));
        Ok(())
    }

    #[test]
    fn measure_with_wrong_numbers_fails() {
        let blank = |tolerance| blank("sum", String::new(), DType::F32, tolerance);
        let close = measure(blank(1e-3), &[1.0, 2000.0, f64::NAN], &[1.0, 2001.0, f64::NAN]);
        assert!(close.passed && close.same_bits == 2, "{close:?}");
        assert!(!measure(blank(1e-3), &[1.0], &[1.1]).passed);
        assert!(!measure(blank(1e-3), &[f64::NAN], &[1.0]).passed);
        assert!(!measure(blank(1e-3), &[1.0], &[1.0, 1.0]).passed);
    }

    #[test]
    fn date_equals_the_gregorian_calendar() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_826_215), "2000-02-29T12:10:15Z");
        assert_eq!(date(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(date(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
