//! A heat map of the nodes that partitions need from each other.

use super::axis::Axis;
use super::count;
use super::number::short_count;
use super::svg::{Anchor, CHARACTER, Svg};

/// Maximum side of the map in pixels.
const SIDE: f64 = 480.0;
/// Maximum side of a cell in pixels.
const CELL: f64 = 90.0;
/// Maximum number of partitions for which cells contain their value.
const MAX_VALUES: usize = 16;
/// Maximum number of partitions for which cells show their value under the pointer.
const MAX_HINTS: usize = 64;
/// Width to the left of the map, for the name and the ticks of the rows.
const LEFT: f64 = 64.0;
/// Height above the map, for the name of the scale.
const ABOVE: f64 = 28.0;
/// Height below the map, for the ticks and the name of the columns.
const BELOW: f64 = 44.0;
/// Space between the map and the scale.
const GAP: f64 = 28.0;
/// Width of the scale.
const SCALE: f64 = 16.0;
/// From this part of the largest value on, a value is written in the color of the background.
const STRONG: f64 = 0.6;

/// Draws a cell per pair of partitions, in a stronger color for more nodes: row p and column q show `halo[p][q]`, the number of nodes
/// of q with edges into p.
pub(super) fn heat_map(halo: &[Vec<u64>]) -> String {
    let map = Map::new(halo);
    let mut svg = Svg::new(map.width(), ABOVE + map.side + BELOW, "halo nodes between partitions");
    map.draw_cells(&mut svg);
    if halo.len() <= MAX_VALUES {
        map.draw_values(&mut svg);
    }
    map.draw_partitions(&mut svg);
    map.draw_scale(&mut svg);
    svg.end()
}

struct Map<'a> {
    halo: &'a [Vec<u64>],
    /// Side of a cell.
    cell: f64,
    /// Side of the map.
    side: f64,
    nodes: Axis,
}

impl<'a> Map<'a> {
    fn new(halo: &'a [Vec<u64>]) -> Self {
        let parts = halo.len() as f64;
        let cell = (SIDE / parts).min(CELL);
        let most = halo.iter().flatten().copied().max().unwrap_or(0);
        Self { halo, cell, side: cell * parts, nodes: Axis::whole(0, most.max(1)) }
    }

    fn width(&self) -> f64 {
        let longest = self.nodes.ticks().iter().map(|(_, label)| label.len()).max().unwrap_or(0).max("nodes".len());
        LEFT + self.side + GAP + SCALE + 16.0 + longest as f64 * CHARACTER
    }

    /// Returns the pairs of different partitions: row, column and nodes.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize, u64)> {
        let rows = self.halo.iter().enumerate();
        let all =
            rows.flat_map(|(row, cells)| cells.iter().enumerate().map(move |(column, nodes)| (row, column, *nodes)));
        all.filter(|(row, column, _)| row != column)
    }

    /// Returns the middle of a row or column.
    fn middle(&self, part: f64) -> f64 {
        (part + 0.5) * self.cell
    }

    /// Draws the pairs that share nodes in units of cells, over the frame.
    fn draw_cells(&self, svg: &mut Svg) {
        let frame = format!("x=\"{LEFT}\" y=\"{ABOVE}\" width=\"{0:.1}\" height=\"{0:.1}\"", self.side);
        svg.push(&format!("<rect class=\"frame\" {frame}/>\n"));
        svg.push(&format!("<g class=\"heat\" transform=\"translate({LEFT} {ABOVE}) scale({:.4})\">\n", self.cell));
        for (row, column, nodes) in self.pairs().filter(|(_, _, nodes)| *nodes > 0) {
            let weight = self.nodes.place(nodes as f64);
            let hint = if self.halo.len() <= MAX_HINTS { hint(row, column, nodes) } else { String::new() };
            let place = format!("x=\"{column}\" y=\"{row}\" width=\"1\" height=\"1\"");
            svg.push(&format!("<rect class=\"cell\" {place} fill-opacity=\"{weight:.3}\">{hint}</rect>\n"));
        }
        svg.end_group();
    }

    /// Writes the nodes of each pair into its cell, shortened if not all fit.
    fn draw_values(&self, svg: &mut Svg) {
        let fits = |label: &str| label.len() as f64 * CHARACTER <= self.cell - 4.0;
        let fit = self.pairs().all(|(_, _, nodes)| fits(&count(nodes)));
        for (row, column, nodes) in self.pairs() {
            let label = if fit { count(nodes) } else { short_count(nodes) };
            let class = if self.nodes.place(nodes as f64) < STRONG { "value" } else { "value inverse" };
            let point = (LEFT + self.middle(column as f64), ABOVE + self.middle(row as f64) + 4.0);
            svg.label(class, point, Anchor::Middle, &label);
        }
    }

    /// Names the axes, and numbers partitions in the middle of their rows and columns.
    fn draw_partitions(&self, svg: &mut Svg) {
        let bottom = ABOVE + self.side;
        for (part, label) in Axis::whole(0, self.halo.len() as u64 - 1).ticks() {
            let middle = self.middle(part);
            svg.label("tick", (LEFT + middle, bottom + 17.0), Anchor::Middle, &label);
            svg.label("tick", (LEFT - 8.0, ABOVE + middle + 4.0), Anchor::End, &label);
        }
        svg.label("name", (LEFT + self.side / 2.0, bottom + 36.0), Anchor::Middle, "from partition");
        svg.upward_label("name", (20.0, ABOVE + self.side / 2.0), "to partition");
    }

    /// Draws the colors from no nodes, below, to the largest number.
    fn draw_scale(&self, svg: &mut Svg) {
        let left = LEFT + self.side + GAP;
        svg.push(
            "<defs><linearGradient id=\"nodes\" x1=\"0\" y1=\"1\" x2=\"0\" y2=\"0\">\
             <stop class=\"none\" offset=\"0\"/><stop class=\"most\" offset=\"1\"/></linearGradient></defs>\n",
        );
        let place = format!("x=\"{left:.1}\" y=\"{ABOVE}\" width=\"{SCALE}\" height=\"{:.1}\"", self.side);
        svg.push(&format!("<rect class=\"scale\" {place} fill=\"url(#nodes)\"/>\n"));
        for (nodes, label) in self.nodes.ticks() {
            let row = ABOVE + (1.0 - self.nodes.place(nodes)) * self.side;
            svg.line("axis", &[(left + SCALE, row), (left + SCALE + 4.0, row)]);
            svg.label("tick", (left + SCALE + 8.0, row + 4.0), Anchor::Start, &label);
        }
        svg.label("name", (left, ABOVE - 10.0), Anchor::Start, "nodes");
    }
}

/// Returns the text that a cell shows under the pointer.
fn hint(row: usize, column: usize, nodes: u64) -> String {
    format!("<title>from {column} to {row}: {} nodes</title>", count(nodes))
}

#[cfg(test)]
mod tests {
    use super::super::svg::assert_labels_inside;
    use super::*;

    /// Returns a map of `parts` partitions with at most `most` nodes a pair.
    fn map(parts: usize, most: u64) -> String {
        let cells =
            |row: usize| (0..parts).map(move |column| if row == column { 0 } else { most / (row + column) as u64 });
        heat_map(&(0..parts).map(|row| cells(row).collect()).collect::<Vec<_>>())
    }

    #[test]
    fn labels_are_inside() {
        for parts in [1, 2, 3, 8, 16, 17, 64, 256] {
            for most in [0, 1, 1000, 123_456_789] {
                assert_labels_inside(&map(parts, most));
            }
        }
    }

    #[test]
    fn cells_of_few_partitions_contain_values() {
        let svg = map(8, 100_000);
        assert_eq!(svg.matches("class=\"cell\"").count(), 8 * 7);
        assert_eq!(svg.matches("class=\"value").count(), 8 * 7);
        // Darkest are (0, 1) and (1, 0); 100,000 fits into a cell.
        assert_eq!(svg.matches("class=\"value inverse\"").count(), 2, "{svg}");
        assert_eq!(svg.matches("100,000</text>").count(), 2 + 1, "{svg}");
        assert_eq!(map(16, 100_000).matches(">100k</text>").count(), 2);
        assert!(!map(17, 100_000).contains("class=\"value"));
    }

    #[test]
    fn pairs_without_nodes_have_no_cell() {
        let svg = heat_map(&[vec![0, 7], vec![0, 0]]);
        assert_eq!(svg.matches("class=\"cell\"").count(), 1);
        assert!(svg.contains("from 1 to 0: 7 nodes") && svg.contains(">0</text>"), "{svg}");
    }

    #[test]
    fn partitions_are_numbered_in_the_middle_of_cells() {
        let svg = map(2, 10);
        let label = |x: f64, part: usize| format!("x=\"{x:.1}\" y=\"225.0\" text-anchor=\"middle\">{part}</text>");
        assert!(svg.contains(&label(LEFT + 45.0, 0)) && svg.contains(&label(LEFT + 135.0, 1)), "{svg}");
    }
}
