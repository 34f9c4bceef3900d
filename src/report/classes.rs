//! The metrics of each class, and the confusion matrix.

use std::fmt::Write;

use gnnflow_pipelines::Summary;
use gnnflow_pipelines::summary::ByClass;

use super::count;
use super::number::score;
use super::page::escape;

/// Maximum number of classes in the table of metrics.
const MAX_LISTED: usize = 100;
/// Maximum number of classes in the confusion matrix.
const MAX_CONFUSED: usize = 20;

/// Writes the metrics of the classes of the test nodes, or of the validation nodes if there are no test nodes.
pub(super) fn class_section(page: &mut String, summary: &Summary) {
    let by_class = |split: &'static str| summary.by_class.get(split).map(|by_class| (split, by_class));
    let Some((split, by_class)) = by_class("test").or_else(|| by_class("val")) else { return };
    let _ = writeln!(page, "<h2>Classes ({split})</h2>");
    class_table(page, summary.examples(), by_class);
    if !by_class.confusion.is_empty() && by_class.classes.len() <= MAX_CONFUSED {
        confusion_matrix(page, by_class);
    }
}

fn class_table(page: &mut String, examples: &str, by_class: &ByClass) {
    let _ = writeln!(
        page,
        "<table><tr><th>class</th><th>{examples}</th><th>predicted</th><th>precision</th><th>recall</th><th>F1</th></tr>"
    );
    for class in by_class.classes.iter().take(MAX_LISTED) {
        let (name, [nodes, predicted]) = (escape(&class.class), [class.nodes, class.predicted].map(count));
        let [precision, recall, f1] = [class.precision, class.recall, class.f1].map(score);
        let _ = writeln!(
            page,
            "<tr><td>{name}</td><td>{nodes}</td><td>{predicted}</td><td>{precision}</td><td>{recall}</td><td>{f1}</td></tr>"
        );
    }
    page.push_str("</table>\n");
    if by_class.classes.len() > MAX_LISTED {
        let all = count(by_class.classes.len() as u64);
        let _ = writeln!(page, "<p>The first {MAX_LISTED} of {all} classes; <code>summary.json</code> has all.</p>");
    }
}

/// Writes counts by class (rows) and prediction (columns), in a stronger color for a larger share of the class.
fn confusion_matrix(page: &mut String, by_class: &ByClass) {
    let heads: String = by_class.classes.iter().map(|class| format!("<th>{}</th>", escape(&class.class))).collect();
    let _ = writeln!(page, "<table class=\"confusion\"><tr><th>class \\ predicted</th>{heads}</tr>");
    for (class, row) in by_class.classes.iter().zip(&by_class.confusion) {
        let _ = write!(page, "<tr><td>{}</td>", escape(&class.class));
        for &nodes in row {
            let share = (100.0 * nodes as f64 / class.nodes.max(1) as f64).round();
            let _ = write!(page, "<td style=\"--share:{share}%\">{}</td>", count(nodes));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_pipelines::summary::ClassScores;

    #[test]
    fn classes_are_escaped_and_shares_are_of_rows() {
        let class = |class: &str, nodes| ClassScores { class: class.into(), nodes, ..ClassScores::default() };
        let by_class =
            ByClass { classes: vec![class("a<b", 4), class("c", 0)], confusion: vec![vec![3, 1], vec![0, 0]] };
        let mut page = String::new();
        class_section(&mut page, &Summary { by_class: [("test".into(), by_class)].into(), ..Summary::default() });
        assert!(page.contains("<h2>Classes (test)</h2>") && page.contains("a&lt;b") && !page.contains("a<b"), "{page}");
        assert!(page.contains("<td style=\"--share:75%\">3</td><td style=\"--share:25%\">1</td>"), "{page}");
        let mut empty = String::new();
        class_section(&mut empty, &Summary::default());
        assert_eq!(empty, "");
    }
}
