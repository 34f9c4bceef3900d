//! Pictures as SVG text. Colors and fonts are in the style of the page, so that they follow its light or dark scheme.

use std::fmt::Write;

use super::page::escape;

/// Estimated width of a character of a label in pixels. Digits are narrower.
pub(super) const CHARACTER: f64 = 7.0;

/// The point of a label that is at its position.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture. Lengths are in pixels from its upper left corner.
pub(super) struct Svg {
    text: String,
}

impl Svg {
    /// Begins a picture of `width` by `height` that shows `title`.
    pub(super) fn new(width: f64, height: f64, title: &str) -> Self {
        let title = escape(title);
        let (width, height) = (width.ceil(), height.ceil());
        let size = format!("width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\"");
        Self {
            text: format!("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-label=\"{title}\" {size}>\n"),
        }
    }

    /// Ends the picture.
    pub(super) fn end(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    /// Begins a group of elements.
    pub(super) fn begin_group(&mut self, class: &str) {
        let _ = writeln!(self.text, "<g class=\"{class}\">");
    }

    /// Ends the last group that was begun.
    pub(super) fn end_group(&mut self) {
        self.text.push_str("</g>\n");
    }

    /// Writes a label on the line at `y`.
    pub(super) fn label(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, label: &str) {
        self.any_label(class, (x, y), anchor, "", label);
    }

    /// Writes a label from bottom to top, with its middle at the point.
    pub(super) fn upward_label(&mut self, class: &str, (x, y): (f64, f64), label: &str) {
        self.any_label(class, (x, y), Anchor::Middle, &format!(" transform=\"rotate(-90 {x:.1} {y:.1})\""), label);
    }

    fn any_label(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, more: &str, label: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let label = escape(label);
        let _ = writeln!(
            self.text,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{label}</text>"
        );
    }

    /// Draws a line through `points`.
    pub(super) fn line(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(self.text, "<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
    }

    /// Draws the outline `path` relative to a point, with a text that is shown under the pointer.
    pub(super) fn mark(&mut self, (x, y): (f64, f64), path: &str, hint: &str) {
        let hint = escape(hint);
        let _ = writeln!(self.text, "<path class=\"mark\" d=\"M{x:.1} {y:.1}{path}\"><title>{hint}</title></path>");
    }

    /// Appends other elements.
    pub(super) fn push(&mut self, elements: &str) {
        self.text.push_str(elements);
    }
}

/// Checks that all labels of a picture are inside of it.
#[cfg(test)]
pub(super) fn assert_labels_inside(svg: &str) {
    let number = |text: &str, key: &str| -> f64 {
        let value = text.split_once(&format!("{key}=\"")).unwrap().1;
        value.split('"').next().unwrap().parse().unwrap()
    };
    let (width, height) = (number(svg, " width"), number(svg, " height"));
    let labels: Vec<&str> = svg.split("<text ").skip(1).map(|rest| rest.split_once("</text>").unwrap().0).collect();
    assert!(!labels.is_empty());
    for text in labels {
        let (x, y) = (number(text, " x"), number(text, " y"));
        let length = text.split_once('>').unwrap().1.chars().count() as f64 * CHARACTER;
        let before = match text.split_once("text-anchor=\"").unwrap().1.split('"').next().unwrap() {
            "start" => 0.0,
            "middle" => length / 2.0,
            _ => length,
        };
        if text.contains("rotate") {
            assert!(x >= 12.0 && y - length / 2.0 >= 0.0 && y + length / 2.0 <= height, "{text}");
        } else {
            assert!(x - before >= 0.0 && x - before + length <= width, "{text}");
            assert!((12.0..=height - 4.0).contains(&y), "{text}");
        }
    }
}
