//! Activations fused with dropout, widening, and sums of columns.
//!
//! Dropout masks are never stored: draw `i` under the mask's [`Key`] decides element `i`, on any thread and in both
//! passes.

use gnnflow_data::rng::Key;

use crate::parallel;
use crate::simd::dispatch::multiversion;
use crate::simd::element::{Element, Real};

/// Numbers per task.
const PIECE: usize = 1 << 14;
/// Rows per partial sum; partial sums are summed in `f64`.
const PANEL: usize = 512;

/// A function applied to every number.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Activation {
    /// `x`
    Identity,
    /// `max(x, 0)`; its slope at 0 is 0.
    Relu,
    /// `x` above 0, else `slope · x`.
    LeakyRelu(f64),
    /// `x` above 0, else `e^x − 1`.
    Elu,
    /// The hyperbolic tangent.
    Tanh,
    /// `x·Φ(x)` with Φ by its tanh approximation: `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))` (Hendrycks, Gimpel 2016).
    Gelu,
}

/// A dropout mask and the factor of the remaining numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    key: Key,
    /// Elements with 32-bit draws below this are dropped.
    cut: u32,
    scale: f64,
    /// The mask's element of the first number.
    first: u64,
}

impl Dropout {
    /// Drops each number with `probability` under `key`; divides the others by `1 - probability`.
    ///
    /// # Panics
    /// Unless `probability` is in `[0, 1)`.
    pub fn new(probability: f64, key: Key) -> Self {
        assert!((0.0..1.0).contains(&probability), "dropout of {probability}");
        Self { key, cut: (probability * 4_294_967_296.0) as u32, scale: 1.0 / (1.0 - probability), first: 0 }
    }

    /// Returns a separate mask for `word` (for example a node) with the same probability.
    #[inline(always)]
    pub fn under(self, word: u64) -> Self {
        Self { key: self.key.fold(word), ..self }
    }

    /// Returns the mask from element `elements` on: a part of a matrix then gets its part of the matrix's mask.
    ///
    /// ```
    /// use gnnflow_data::rng::{Key, Purpose};
    /// use gnnflow_kernels::dense::elementwise::Dropout;
    ///
    /// let whole = Dropout::new(0.5, Key::new(1, Purpose::Dropout));
    /// assert!((0..99).all(|i| whole.behind(7).factor(i) == whole.factor(7 + i)));
    /// ```
    pub fn behind(self, elements: u64) -> Self {
        Self { first: self.first + elements, ..self }
    }

    /// Returns the mask's element of the first number.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the factor of element `i`: 0 or [`Dropout::scale`].
    #[inline(always)]
    pub fn factor(&self, i: u64) -> f64 {
        if self.keeps(i) { self.scale } else { 0.0 }
    }

    /// Returns the key of the mask.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Elements with 32-bit draws below this are dropped.
    pub fn cut(&self) -> u32 {
        self.cut
    }

    /// Returns the factor of elements that are not dropped.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    #[inline(always)]
    fn keeps(&self, i: u64) -> bool {
        (self.key.draw(self.first + i) >> 32) as u32 >= self.cut
    }
}

/// A function and its derivative, to specialize loops.
trait Curve<A>: Copy + Sync {
    fn value(self, x: A) -> A;
    fn slope(self, x: A) -> A;
}

#[derive(Clone, Copy)]
struct Identity;
#[derive(Clone, Copy)]
struct Relu;
#[derive(Clone, Copy)]
struct Leaky<A>(A);
#[derive(Clone, Copy)]
struct Elu;
#[derive(Clone, Copy)]
struct Tanh;
#[derive(Clone, Copy)]
struct Gelu;

impl<A: Real> Curve<A> for Identity {
    #[inline(always)]
    fn value(self, x: A) -> A {
        x
    }
    #[inline(always)]
    fn slope(self, _: A) -> A {
        A::ONE
    }
}

impl<A: Real> Curve<A> for Relu {
    #[inline(always)]
    fn value(self, x: A) -> A {
        // With this comparison, NaN stays NaN.
        if x < A::ZERO { A::ZERO } else { x }
    }
    #[inline(always)]
    fn slope(self, x: A) -> A {
        if x > A::ZERO { A::ONE } else { A::ZERO }
    }
}

impl<A: Real> Curve<A> for Leaky<A> {
    #[inline(always)]
    fn value(self, x: A) -> A {
        if x > A::ZERO { x } else { self.0 * x }
    }
    #[inline(always)]
    fn slope(self, x: A) -> A {
        if x > A::ZERO { A::ONE } else { self.0 }
    }
}

impl<A: Real> Curve<A> for Elu {
    #[inline(always)]
    fn value(self, x: A) -> A {
        if x > A::ZERO { x } else { x.exp() - A::ONE }
    }
    #[inline(always)]
    fn slope(self, x: A) -> A {
        if x > A::ZERO { A::ONE } else { x.exp() }
    }
}

/// Has no branches, so that loops vectorize; for large `x` the quotient vanishes.
#[inline(always)]
fn tanh<A: Real>(x: A) -> A {
    A::ONE - A::from_f64(2.0) / ((x + x).exp() + A::ONE)
}

impl<A: Real> Curve<A> for Tanh {
    #[inline(always)]
    fn value(self, x: A) -> A {
        tanh(x)
    }
    #[inline(always)]
    fn slope(self, x: A) -> A {
        let t = tanh(x);
        A::ONE - t * t
    }
}

impl Gelu {
    /// √(2/π)
    const ROOT: f64 = 0.797_884_560_802_865_4;
    const CUBE: f64 = 0.044_715;

    /// `tanh(√(2/π) · (x + 0.044715·x³))`
    #[inline(always)]
    fn inner_tanh<A: Real>(x: A) -> A {
        tanh(A::from_f64(Self::ROOT) * (x + A::from_f64(Self::CUBE) * (x * x * x)))
    }
}

impl<A: Real> Curve<A> for Gelu {
    #[inline(always)]
    fn value(self, x: A) -> A {
        A::from_f64(0.5) * x * (A::ONE + Self::inner_tanh(x))
    }
    #[inline(always)]
    fn slope(self, x: A) -> A {
        let (half, t) = (A::from_f64(0.5), Self::inner_tanh(x));
        let inner = A::from_f64(Self::ROOT) * (A::ONE + A::from_f64(3.0 * Self::CUBE) * (x * x));
        half * (A::ONE + t) + half * x * (A::ONE - t * t) * inner
    }
}

macro_rules! with_curve {
    ($activation:expr, $A:ty, |$curve:ident| $body:expr) => {
        match $activation {
            Activation::Identity => {
                let $curve = Identity;
                $body
            }
            Activation::Relu => {
                let $curve = Relu;
                $body
            }
            Activation::LeakyRelu(slope) => {
                let $curve = Leaky(<$A>::from_f64(slope));
                $body
            }
            Activation::Elu => {
                let $curve = Elu;
                $body
            }
            Activation::Tanh => {
                let $curve = Tanh;
                $body
            }
            Activation::Gelu => {
                let $curve = Gelu;
                $body
            }
        }
    };
}

/// `out[i] = factor(i) · activation(x[i])`, with factor 1 without dropout.
///
/// ```
/// use gnnflow_kernels::dense::elementwise::{Activation, activate};
///
/// let mut out = [0f32; 3];
/// activate(Activation::Relu, None, &[-1f32, 0., 2.], &mut out);
/// assert_eq!(out, [0., 0., 2.]);
/// ```
///
/// # Panics
/// If lengths differ.
pub fn activate<T: Element>(activation: Activation, dropout: Option<Dropout>, x: &[T], out: &mut [T::Acc]) {
    assert_eq!(x.len(), out.len(), "one output number per input number");
    with_curve!(activation, T::Acc, |curve| {
        parallel::chunks(out, PIECE, &|piece, out| {
            let x = parallel::chunk(x, piece, PIECE);
            match dropout {
                None => curve_piece(curve, x, out),
                Some(dropout) => curve_dropout_piece(curve, dropout, (piece * PIECE) as u64, x, out),
            }
        });
    });
}

/// Gradient of [`activate`] with respect to `x`.
///
/// # Panics
/// If lengths differ.
pub fn activate_backward<A: Real>(
    activation: Activation,
    dropout: Option<Dropout>,
    x: &[A],
    gradient: &[A],
    out: &mut [A],
) {
    assert!(x.len() == out.len() && x.len() == gradient.len(), "one output number per input number");
    with_curve!(activation, A, |curve| {
        parallel::chunks(out, PIECE, &|piece, out| {
            let [x, g] = [x, gradient].map(|numbers| parallel::chunk(numbers, piece, PIECE));
            match dropout {
                None => slope_piece(curve, x, g, out),
                Some(dropout) => slope_dropout_piece(curve, dropout, (piece * PIECE) as u64, x, g, out),
            }
        });
    });
}

multiversion! {
    fn curve_piece [T: Element, C: Curve<T::Acc>] (curve: C, x: &[T], out: &mut [T::Acc]) {
        for (x, out) in x.iter().zip(out) {
            *out = curve.value(x.widen());
        }
    }
}

multiversion! {
    fn curve_dropout_piece [T: Element, C: Curve<T::Acc>] (curve: C, dropout: Dropout, first: u64, x: &[T], out: &mut [T::Acc]) {
        let scale = T::Acc::from_f64(dropout.scale);
        for (i, (x, out)) in (first..).zip(x.iter().zip(out)) {
            let value = curve.value(x.widen()) * scale;
            *out = if dropout.keeps(i) { value } else { T::Acc::ZERO };
        }
    }
}

multiversion! {
    fn slope_piece [A: Real, C: Curve<A>] (curve: C, x: &[A], gradient: &[A], out: &mut [A]) {
        for ((&x, &g), out) in x.iter().zip(gradient).zip(out) {
            *out = g * curve.slope(x);
        }
    }
}

multiversion! {
    fn slope_dropout_piece [A: Real, C: Curve<A>] (curve: C, dropout: Dropout, first: u64, x: &[A], gradient: &[A], out: &mut [A]) {
        let scale = A::from_f64(dropout.scale);
        for (i, ((&x, &g), out)) in (first..).zip(x.iter().zip(gradient).zip(out)) {
            let value = g * curve.slope(x) * scale;
            *out = if dropout.keeps(i) { value } else { A::ZERO };
        }
    }
}

/// Like [`activate`] with [`Activation::Relu`], in place and on this thread.
pub fn relu_in_place<A: Real>(dropout: Option<Dropout>, x: &mut [A]) {
    match dropout {
        None => relu_piece(x),
        Some(dropout) => relu_dropout_piece(dropout, x),
    }
}

multiversion! {
    fn relu_piece [A: Real] (x: &mut [A]) {
        for x in x {
            *x = Relu.value(*x);
        }
    }
}

multiversion! {
    fn relu_dropout_piece [A: Real] (dropout: Dropout, x: &mut [A]) {
        let scale = A::from_f64(dropout.scale);
        for (i, x) in (0..).zip(x) {
            *x = if dropout.keeps(i) { Relu.value(*x) * scale } else { A::ZERO };
        }
    }
}

/// Gradient of [`activate`] with [`Activation::Relu`], from its result: the slope is 1 where the result is positive.
///
/// ```
/// use gnnflow_kernels::dense::elementwise::relu_of_result;
///
/// let mut out = [0f32; 2];
/// relu_of_result(None, &[0., 3.], &[5., 7.], &mut out);
/// assert_eq!(out, [0., 7.]);
/// ```
///
/// # Panics
/// If lengths differ.
pub fn relu_of_result<A: Real>(dropout: Option<Dropout>, result: &[A], gradient: &[A], out: &mut [A]) {
    assert!(result.len() == out.len() && result.len() == gradient.len(), "one output number per input number");
    let scale = A::from_f64(dropout.map_or(1.0, |dropout| dropout.scale));
    parallel::chunks(out, PIECE, &|piece, out| {
        let [result, g] = [result, gradient].map(|numbers| parallel::chunk(numbers, piece, PIECE));
        relu_slope_piece(scale, result, g, out);
    });
}

multiversion! {
    fn relu_slope_piece [A: Real] (scale: A, result: &[A], gradient: &[A], out: &mut [A]) {
        for ((&x, &g), out) in result.iter().zip(gradient).zip(out) {
            *out = g * Relu.slope(x) * scale;
        }
    }
}

/// As [`relu_of_result`], in place: `gradient` becomes the gradient of the input.
///
/// # Panics
/// If lengths differ.
pub fn relu_of_result_in_place<A: Real>(dropout: Option<Dropout>, result: &[A], gradient: &mut [A]) {
    assert!(result.len() == gradient.len(), "one gradient per number");
    let scale = A::from_f64(dropout.map_or(1.0, |dropout| dropout.scale));
    parallel::chunks(gradient, PIECE, &|piece, gradient| {
        relu_slope_in_place_piece(scale, parallel::chunk(result, piece, PIECE), gradient);
    });
}

multiversion! {
    fn relu_slope_in_place_piece [A: Real] (scale: A, result: &[A], gradient: &mut [A]) {
        for (&x, g) in result.iter().zip(gradient) {
            *g = *g * Relu.slope(x) * scale;
        }
    }
}

/// `out[r, c] = x[r, c] + bias[c]`
///
/// # Panics
/// If lengths do not match.
pub fn add_bias<A: Real>(x: &[A], bias: &[A], out: &mut [A]) {
    assert_eq!(x.len(), out.len(), "one output number per input number");
    let width = bias.len();
    if width == 0 {
        return;
    }
    let size = PIECE.div_ceil(width) * width;
    parallel::chunks(out, size, &|piece, out| add_bias_piece(parallel::chunk(x, piece, size), bias, out));
}

/// `out[r, c] = dropout(max(x[r, c] + bias[c], 0))`, with the bits of [`add_bias`] and [`activate`].
///
/// ```
/// use gnnflow_kernels::dense::elementwise::bias_relu;
///
/// let mut out = [0f32; 4];
/// bias_relu(&[1., 2., 3., 4.], &[-2., 1.], None, &mut out);
/// assert_eq!(out, [0., 3., 1., 5.]);
/// ```
///
/// # Panics
/// If lengths do not match.
pub fn bias_relu<A: Real>(x: &[A], bias: &[A], dropout: Option<Dropout>, out: &mut [A]) {
    assert_eq!(x.len(), out.len(), "one output number per input number");
    let width = bias.len();
    if width == 0 {
        return;
    }
    let size = PIECE.div_ceil(width) * width;
    parallel::chunks(out, size, &|piece, out| {
        add_bias_piece(parallel::chunk(x, piece, size), bias, out);
        relu_in_place(dropout.map(|dropout| dropout.behind((piece * size) as u64)), out);
    });
}

multiversion! {
    fn add_bias_piece [A: Real] (x: &[A], bias: &[A], out: &mut [A]) {
        for (x, out) in x.chunks_exact(bias.len()).zip(out.chunks_exact_mut(bias.len())) {
            for ((&x, &b), out) in x.iter().zip(bias).zip(out) {
                *out = x + b;
            }
        }
    }
}

/// `out[c] = Σ x[r, c]`: partial sums of a fixed number of rows, summed in `f64` and in order.
///
/// ```
/// let mut out = [0f32; 2];
/// gnnflow_kernels::dense::elementwise::column_sum(&[1., 2., 3., 4.], &mut out);
/// assert_eq!(out, [4., 6.]);
/// ```
///
/// # Panics
/// If `x` does not have whole rows of `out.len()` numbers.
pub fn column_sum<A: Real>(x: &[A], out: &mut [A]) {
    let width = out.len();
    if width == 0 {
        return;
    }
    assert_eq!(x.len() % width, 0, "x has whole rows");
    by_panel(x.len() / width, out, |rows, sums| {
        column_sum_piece(&x[rows.start * width..rows.end * width], sums);
    });
}

/// Calls `f` per panel of rows to add to zeros, and sums the results in `f64`, in the order of panels.
pub(crate) fn by_panel<A: Real>(rows: usize, out: &mut [A], f: impl Fn(std::ops::Range<usize>, &mut [A]) + Sync) {
    let width = out.len();
    let panels: Vec<Vec<A>> = parallel::map(rows.div_ceil(PANEL), &|p| {
        let mut sums = vec![A::ZERO; width];
        f(p * PANEL..((p + 1) * PANEL).min(rows), &mut sums);
        sums
    });
    for (c, out) in out.iter_mut().enumerate() {
        *out = A::from_f64(panels.iter().map(|p| p[c].to_f64()).sum());
    }
}

multiversion! {
    fn column_sum_piece [A: Real] (x: &[A], sums: &mut [A]) {
        for row in x.chunks_exact(sums.len()) {
            for (sum, &x) in sums.iter_mut().zip(row) {
                *sum += x;
            }
        }
    }
}
