//! Charts of values over the epochs of a run.

use std::borrow::Cow;

use super::axis::Axis;
use super::count;
use super::number::{power_of_ten, score};
use super::svg::{Anchor, CHARACTER, Svg};

const WIDTH: f64 = 680.0;
const HEIGHT: f64 = 300.0;
/// Height above the plot, for the title and the best epoch.
const ABOVE: f64 = 52.0;
/// Height below the plot, for the ticks and the name of the x axis.
const BELOW: f64 = 44.0;
/// Width to the right of the plot, for the legend.
const LEGEND: f64 = 152.0;
/// Height of a line of the legend.
const LEGEND_LINE: f64 = 22.0;
/// Maximum number of characters of a name in the legend.
const MAX_NAME: usize = 14;
/// Maximum number of points of a line that are marked.
const MAX_MARKED: usize = 30;
/// Larger values are not drawn, because sums of them would be infinite.
const MAX_VALUE: f64 = 1e300;

/// What a line is about: nodes or edges of one run, or one of several runs. Each has the same color and marks in all charts.
#[derive(Clone)]
pub(super) enum Source {
    Steps,
    Train,
    Val,
    Test,
    Run { index: usize, name: String },
}

impl Source {
    /// Returns the class for the page's style.
    fn class(&self) -> Cow<'static, str> {
        match self {
            Self::Steps => "steps".into(),
            Self::Train => "train".into(),
            Self::Val => "val".into(),
            Self::Test => "test".into(),
            Self::Run { index, .. } => format!("run{index}").into(),
        }
    }

    /// Returns the name for the legend.
    fn name(&self) -> Cow<'_, str> {
        match self {
            Self::Steps => "training steps".into(),
            Self::Run { name, .. } => name.into(),
            _ => self.class(),
        }
    }

    /// Returns the name without its begin, if it is too long for the legend.
    fn short_name(&self) -> String {
        let name = self.name();
        let length = name.chars().count();
        if length <= MAX_NAME {
            return name.into_owned();
        }
        std::iter::once('…').chain(name.chars().skip(length + 1 - MAX_NAME)).collect()
    }

    /// Returns the outline of a mark: a circle, a square (which is hollow) or a diamond. Of marks at one point, all can be seen.
    fn mark(&self) -> &'static str {
        match self {
            Self::Steps => "m-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0z",
            Self::Train | Self::Run { .. } => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
            Self::Val => "m-4.5-4.5h9v9h-9z",
            Self::Test => "m0-3.5l3.5 3.5-3.5 3.5-3.5-3.5z",
        }
    }
}

/// A line of a chart.
pub(super) struct Line {
    pub(super) source: Source,
    /// Epochs, or seconds, and values.
    pub(super) points: Vec<(usize, f64)>,
}

/// The epochs of a run. All of its charts have the same x axis.
#[derive(Clone, Copy)]
pub(super) struct Epochs {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) best: Option<usize>,
}

/// What the x axis of a chart is.
#[derive(Clone, Copy)]
enum Over {
    Epochs,
    Seconds,
}

impl Over {
    /// Returns the name of the axis.
    fn name(self) -> &'static str {
        match self {
            Self::Epochs => "epoch",
            Self::Seconds => "seconds",
        }
    }

    /// Returns the text of a place on the axis.
    fn place(self, value: usize) -> String {
        match self {
            Self::Epochs => format!("epoch {}", count(value as u64)),
            Self::Seconds => format!("{} s", count(value as u64)),
        }
    }
}

/// Draws `lines` over seconds, later ones over earlier ones. Returns `None` if there are no points.
pub(super) fn time_chart(title: &str, lines: &[Line]) -> Option<String> {
    let seconds = lines.iter().flat_map(|line| &line.points).map(|(second, _)| *second);
    let (first, last) = (seconds.clone().min()?, seconds.max()?);
    draw(title, lines, Epochs { first, last, best: None }, Over::Seconds)
}

/// Draws `lines`, later ones over earlier ones, and marks the best epoch. Returns `None` if there are no points.
pub(super) fn chart(title: &str, lines: &[Line], epochs: Epochs) -> Option<String> {
    draw(title, lines, epochs, Over::Epochs)
}

fn draw(title: &str, lines: &[Line], epochs: Epochs, over: Over) -> Option<String> {
    let lines: Vec<Line> = lines.iter().map(drawable).filter(|line| !line.points.is_empty()).collect();
    let plot = Plot::new(&lines, epochs, over)?;
    let mut svg = Svg::new(WIDTH, HEIGHT, &format!("{title} by {}", over.name()));
    svg.label("title", (0.0, 20.0), Anchor::Start, &format!("{title}{}", unit(plot.y.exponent)));
    plot.draw_axes(&mut svg);
    if let Some(best) = epochs.best {
        plot.draw_best(&mut svg, best);
    }
    for line in &lines {
        plot.draw_line(&mut svg, line);
    }
    draw_legend(&mut svg, &lines);
    Some(svg.end())
}

/// Returns the unit of values that are divided by ten to the power of `exponent`.
fn unit(exponent: i32) -> String {
    if exponent == 0 { String::new() } else { format!(", in units of {}", power_of_ten(exponent)) }
}

/// Returns `line` without the points that have no place on an axis.
fn drawable(line: &Line) -> Line {
    let points = line.points.iter().copied().filter(|(_, value)| value.abs() < MAX_VALUE).collect();
    Line { source: line.source.clone(), points }
}

/// The area between the axes.
struct Plot {
    left: f64,
    over: Over,
    x: Axis,
    y: Axis,
}

impl Plot {
    const RIGHT: f64 = WIDTH - LEGEND;
    const BOTTOM: f64 = HEIGHT - BELOW;

    fn new(lines: &[Line], epochs: Epochs, over: Over) -> Option<Self> {
        let x = Axis::whole(epochs.first as u64, epochs.last as u64);
        let y = Axis::of(lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value))?;
        let longest = y.ticks().iter().map(|(_, label)| label.len()).max().unwrap_or(0);
        Some(Self { left: (20.0 + longest as f64 * CHARACTER).max(56.0), over, x, y })
    }

    fn column(&self, epoch: f64) -> f64 {
        self.left + self.x.place(epoch) * (Self::RIGHT - self.left)
    }

    fn row(&self, value: f64) -> f64 {
        Self::BOTTOM - self.y.place(value) * (Self::BOTTOM - ABOVE)
    }

    fn draw_axes(&self, svg: &mut Svg) {
        for (value, label) in self.y.ticks() {
            let row = self.row(value);
            svg.line("grid", &[(self.left, row), (Self::RIGHT, row)]);
            svg.label("tick", (self.left - 8.0, row + 4.0), Anchor::End, &label);
        }
        for (epoch, label) in self.x.ticks() {
            let column = self.column(epoch);
            svg.line("axis", &[(column, Self::BOTTOM), (column, Self::BOTTOM + 5.0)]);
            svg.label("tick", (column, Self::BOTTOM + 19.0), Anchor::Middle, &label);
        }
        svg.line("axis", &[(self.left, Self::BOTTOM), (Self::RIGHT, Self::BOTTOM)]);
        svg.label("name", ((self.left + Self::RIGHT) / 2.0, Self::BOTTOM + 37.0), Anchor::Middle, self.over.name());
    }

    fn draw_best(&self, svg: &mut Svg, epoch: usize) {
        let column = self.column(epoch as f64);
        svg.line("best", &[(column, ABOVE), (column, Self::BOTTOM)]);
        let label = format!("best epoch: {}", count(epoch as u64));
        svg.label("name", (column, ABOVE - 8.0), Anchor::Middle, &label);
    }

    fn draw_line(&self, svg: &mut Svg, line: &Line) {
        let points: Vec<_> = line.points.iter().map(|&(epoch, y)| (self.column(epoch as f64), self.row(y))).collect();
        svg.begin_group(&line.source.class());
        svg.line("line", &points);
        if points.len() <= MAX_MARKED {
            for (point, (epoch, value)) in points.iter().zip(&line.points) {
                let hint = format!("{}, {}: {}", line.source.name(), self.over.place(*epoch), score(*value));
                svg.mark(*point, line.source.mark(), &hint);
            }
        }
        svg.end_group();
    }
}

fn draw_legend(svg: &mut Svg, lines: &[Line]) {
    let left = Plot::RIGHT + 16.0;
    for (i, line) in lines.iter().enumerate() {
        let row = ABOVE + 8.0 + i as f64 * LEGEND_LINE;
        svg.begin_group(&line.source.class());
        svg.line("line", &[(left, row), (left + 28.0, row)]);
        if line.points.len() <= MAX_MARKED {
            svg.mark((left + 14.0, row), line.source.mark(), &line.source.name());
        }
        svg.label("name", (left + 36.0, row + 4.0), Anchor::Start, &line.source.short_name());
        svg.end_group();
    }
}

#[cfg(test)]
mod tests {
    use super::super::svg::assert_labels_inside;
    use super::*;

    const RUN: Epochs = Epochs { first: 1, last: 2, best: None };

    fn line(source: Source, points: Vec<(usize, f64)>) -> Line {
        Line { source, points }
    }

    /// Returns a chart of all lines over `epochs` epochs, with values times `scale`.
    fn full(epochs: usize, scale: f64) -> String {
        let points = |low: f64| (1..=epochs).map(|epoch| (epoch, scale * (low + 1.0 / epoch as f64))).collect();
        let lines = [(Source::Steps, 0.1), (Source::Train, 0.0), (Source::Val, 0.3), (Source::Test, 0.3)];
        chart(
            "Loss",
            &lines.map(|(source, low)| line(source, points(low))),
            Epochs { first: 1, last: epochs, best: Some(epochs) },
        )
        .unwrap()
    }

    #[test]
    fn lines_are_drawn_only_if_there_are_points() {
        assert_eq!(chart("Loss", &[line(Source::Train, vec![])], RUN), None);
        assert_eq!(chart("Loss", &[line(Source::Train, vec![(1, f64::NAN), (2, f64::INFINITY)])], RUN), None);
        let lines = [line(Source::Train, vec![(1, 2.0), (2, 1.0)]), line(Source::Val, vec![(1, 2.5)])];
        let svg = chart("Loss", &lines, RUN).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("polyline") && svg.contains(">Loss<"), "{svg}");
        assert!(svg.contains(">train<") && svg.contains(">val<") && !svg.contains("best"), "{svg}");
    }

    #[test]
    fn single_epoch_is_a_marked_point_above_its_tick() {
        let svg = full(1, 1.0);
        let middle = (56.0 + Plot::RIGHT) / 2.0;
        assert!(svg.contains(&format!("x=\"{middle:.1}\" y=\"275.0\" text-anchor=\"middle\">1</text>")), "{svg}");
        assert!(svg.contains(&format!("d=\"M{middle:.1} ")), "{svg}");
        assert_eq!(svg.matches("class=\"mark\"").count(), 4 + 4, "{svg}");
    }

    #[test]
    fn labels_are_inside_and_the_best_epoch_is_named() {
        for epochs in [1, 2, 3, 20, 60, 1234, 100_000] {
            let svg = full(epochs, 1.0);
            assert_labels_inside(&svg);
            assert!(svg.contains(&format!("best epoch: {}<", count(epochs as u64))));
        }
        for scale in [-1e18, -1e-7, 0.0, 1e-7, 1.0, 12_345.0, 9e5, 1e18, 1e299] {
            assert_labels_inside(&full(3, scale));
        }
    }

    #[test]
    fn axis_has_all_epochs_of_the_run() {
        let svg =
            chart("Accuracy", &[line(Source::Val, vec![(2, 0.5)])], Epochs { first: 1, last: 3, best: None }).unwrap();
        assert!([">1<", ">2<", ">3<"].iter().all(|label| svg.contains(label)), "{svg}");
    }

    #[test]
    fn title_has_the_unit_of_huge_values() {
        assert!(full(3, 1.0).contains(">Loss<"));
        assert!(full(3, 1e18).contains(">Loss, in units of 10¹⁸<"));
    }

    #[test]
    fn long_names_of_runs_end_in_the_legend_and_are_whole_in_hints() {
        let source = Source::Run { index: 2, name: "model.hidden=128".into() };
        let svg = chart("Loss", &[line(source, vec![(1, 0.5)])], RUN).unwrap();
        assert_labels_inside(&svg);
        assert!(svg.contains(">…el.hidden=128<") && svg.contains(">model.hidden=128, epoch 1: 0.5000<"), "{svg}");
        assert!(svg.contains("class=\"run2\""), "{svg}");
    }

    #[test]
    fn only_short_lines_have_marks() {
        assert!(full(MAX_MARKED, 1.0).contains("class=\"mark\""));
        assert!(!full(MAX_MARKED + 1, 1.0).contains("class=\"mark\""));
    }
}
