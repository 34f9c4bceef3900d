//! Charts as SVG text.

use gnnflow_pipelines::Error;
use plotters::prelude::*;
use std::ops::Range;

/// A line of a chart: its name, and points (epoch, value).
pub(super) type Series = (&'static str, Vec<(f64, f64)>);

const SIZE: (u32, u32) = (640, 280);

/// Draws lines over epochs as SVG. Returns `None` if there are no points.
pub(super) fn lines(title: &str, series: &[Series]) -> Result<Option<String>, Error> {
    let points = || series.iter().flat_map(|(_, points)| points).filter(|(_, value)| value.is_finite());
    if points().next().is_none() {
        return Ok(None);
    }
    let fold = |of: fn(&(f64, f64)) -> f64| {
        points().map(of).fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)))
    };
    let ((left, right), (low, high)) = (fold(|point| point.0), fold(|point| point.1));
    let margin = ((high - low) * 0.05).max(1e-6);
    let mut svg = String::new();
    draw(&mut svg, title, series, left..right.max(left + 1.0), low - margin..high + margin)
        .map_err(|error| Error::Bug(format!("chart \"{title}\": {error}")))?;
    Ok(Some(svg))
}

fn draw(
    svg: &mut String,
    title: &str,
    series: &[Series],
    x: Range<f64>,
    y: Range<f64>,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(text)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(52)
        .build_cartesian_2d(x, y)
        .map_err(text)?;
    chart.configure_mesh().x_desc("epoch").light_line_style(WHITE).draw().map_err(text)?;
    for (i, (name, points)) in series.iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let finite = points.iter().copied().filter(|(_, value)| value.is_finite());
        let line = chart.draw_series(LineSeries::new(finite, color.stroke_width(2))).map_err(text)?;
        line.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()
        .map_err(text)?;
    Ok(area.present().map_err(text)?)
}

/// Converts drawing errors, which borrow the SVG text, to strings.
fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_drawn_only_if_there_are_points() {
        assert_eq!(lines("loss", &[("train", vec![])]).unwrap(), None);
        assert_eq!(lines("loss", &[("train", vec![(1.0, f64::NAN)])]).unwrap(), None);
        let svg =
            lines("loss", &[("train", vec![(1.0, 2.0), (2.0, 1.0)]), ("val", vec![(1.0, 2.5)])]).unwrap().unwrap();
        assert!(
            svg.starts_with("<svg") && svg.contains("polyline") && svg.contains("loss") && svg.contains("val"),
            "{svg}"
        );
        // One point gives an axis of length 0.
        assert!(lines("loss", &[("train", vec![(1.0, 1.0)])]).unwrap().is_some());
    }
}
