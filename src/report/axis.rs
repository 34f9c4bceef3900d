//! Axes of charts: their range, and ticks with labels.

use super::number::{decimal, exponent};

/// Maximum number of steps between ticks of whole numbers.
const WHOLE_STEPS: f64 = 8.0;
/// Number of steps that the range of other values is divided by. An axis can have two more, and half as many.
const STEPS: f64 = 5.0;

/// An axis. Ticks are at multiples of 1, 2 or 5 times a power of ten.
#[derive(Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    step: f64,
    /// Labels are in units of ten to this power.
    pub(super) exponent: i32,
}

impl Axis {
    /// Returns the axis of whole numbers from `first` to `last`. All ticks are whole.
    pub(super) fn whole(first: u64, last: u64) -> Self {
        let (low, high) = (first as f64, last as f64);
        Self { low, high, step: round_up((high - low) / WHOLE_STEPS).max(1.0), exponent: 0 }
    }

    /// Returns the axis of `values`, which ends at ticks, or `None` if there are no values. Equal values are shown above 0.
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (mut low, mut high) =
            values.map(|value| (value, value)).reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))?;
        let largest = high.abs().max(low.abs());
        if high - low <= 1e-9 * largest {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if largest < f64::MIN_POSITIVE {
            (low, high) = (0.0, 1.0);
        }
        let step = round_up((high - low) / STEPS);
        // Divisions of multiples of the step can be inexact.
        let (low, high) = ((low / step + 1e-6).floor() * step, (high / step - 1e-6).ceil() * step);
        Some(Self { low, high, step, exponent: exponent(high.abs().max(low.abs())) })
    }

    /// Returns the place of `value` between the ends, from 0 to 1. An axis of one value has it in the middle.
    pub(super) fn place(&self, value: f64) -> f64 {
        if self.high > self.low { (value - self.low) / (self.high - self.low) } else { 0.5 }
    }

    /// Returns the ticks and their labels. All labels have the same number of decimal places.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let unit = 10f64.powi(self.exponent);
        let digits = (-(self.step / unit).log10() - 1e-6).ceil().max(0.0) as usize;
        let [first, last] = [(self.low / self.step - 1e-6).ceil(), (self.high / self.step + 1e-6).floor()];
        let ticks = (first as i64..=last as i64).map(|i| i as f64 * self.step);
        ticks.map(|tick| (tick, decimal(tick / unit, digits))).collect()
    }
}

/// Returns the smallest number of 1, 2 or 5 times a power of ten that is at least `step`, or 0 for 0.
fn round_up(step: f64) -> f64 {
    if step <= 0.0 {
        return 0.0;
    }
    let power = 10f64.powf(step.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= step * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|(_, label)| label).collect()
    }

    fn of(values: &[f64]) -> Axis {
        Axis::of(values.iter().copied()).unwrap()
    }

    #[test]
    fn epochs_of_short_and_long_runs_are_whole() {
        assert_eq!(labels(&Axis::whole(1, 1)), ["1"]);
        assert_eq!(labels(&Axis::whole(1, 2)), ["1", "2"]);
        assert_eq!(labels(&Axis::whole(1, 3)), ["1", "2", "3"]);
        assert_eq!(labels(&Axis::whole(1, 20)), ["5", "10", "15", "20"]);
        assert_eq!(labels(&Axis::whole(1, 60)), ["10", "20", "30", "40", "50", "60"]);
        assert_eq!(labels(&Axis::whole(9_990, 12_500)), ["10,000", "10,500", "11,000", "11,500", "12,000", "12,500"]);
        for last in (1..3000).chain([123_456, 1_000_000]) {
            let ticks = Axis::whole(1, last).ticks();
            assert!((1..=9).contains(&ticks.len()), "{last}: {ticks:?}");
            assert!(ticks.iter().all(|(tick, _)| tick.fract() == 0.0 && (1.0..=last as f64).contains(tick)));
        }
    }

    #[test]
    fn ends_of_values_are_ticks_with_the_digits_they_need() {
        assert_eq!(labels(&of(&[0.31, 0.92])), ["0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&of(&[0.0, 1.0])), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&of(&[0.3, 0.8])), ["0.3", "0.4", "0.5", "0.6", "0.7", "0.8"]);
        assert_eq!(labels(&of(&[-1.0, 9.0])), ["-2", "0", "2", "4", "6", "8", "10"]);
        assert_eq!(labels(&of(&[0.693_12, 0.693_18])), ["0.69312", "0.69314", "0.69316", "0.69318"]);
        assert_eq!(labels(&of(&[1000.0, 5000.0])), ["1,000", "2,000", "3,000", "4,000", "5,000"]);
    }

    #[test]
    fn huge_and_tiny_values_have_short_labels_and_a_power_of_ten() {
        let huge = of(&[0.7, 1_945_121_659_089_995_520.0]);
        assert_eq!(
            (labels(&huge), huge.exponent),
            (["0.0", "0.5", "1.0", "1.5", "2.0"].map(String::from).to_vec(), 18)
        );
        let tiny = of(&[2e-5, 9e-5]);
        assert_eq!(
            (labels(&tiny), tiny.exponent),
            (["0.2", "0.4", "0.6", "0.8", "1.0"].map(String::from).to_vec(), -4)
        );
    }

    #[test]
    fn equal_values_are_shown_above_zero() {
        assert_eq!(labels(&of(&[1.0, 1.0 + 1e-15])), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&of(&[-3.0])), ["-3", "-2", "-1", "0"]);
        assert_eq!(labels(&of(&[0.0])), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert!(Axis::of(std::iter::empty()).is_none());
    }

    #[test]
    fn values_of_every_size_are_inside_and_have_few_distinct_labels() {
        for power in -40..40 {
            for (low, high) in [(0.0, 1.0), (0.999, 1.001), (-3.7, 8.1), (4.2, 4.2)] {
                let axis = of(&[low, high].map(|value| value * 10f64.powi(power)));
                let labels = labels(&axis);
                assert!((2..=8).contains(&labels.len()), "{axis:?}: {labels:?}");
                assert!(labels.windows(2).all(|pair| pair[0] != pair[1]), "{axis:?}: {labels:?}");
                assert!(labels.iter().all(|label| label.len() <= 9), "{axis:?}: {labels:?}");
                let places = [low, high].map(|value| axis.place(value * 10f64.powi(power)));
                assert!(places.iter().all(|place| (-1e-6..=1.0 + 1e-6).contains(place)), "{axis:?}: {places:?}");
            }
        }
    }
}
