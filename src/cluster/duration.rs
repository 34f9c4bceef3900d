//! Times in messages.

use std::time::Duration;

/// Formats a time: `350 ms`, `2.1 s`, `120 s`.
pub(super) fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        short if short < 1.0 => format!("{} ms", time.as_millis()),
        whole if whole.fract() < 0.05 || whole >= 60.0 => format!("{whole:.0} s"),
        other => format!("{other:.1} s"),
    }
}
