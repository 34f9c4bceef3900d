//! Decides whether the first line of a text file has the names of its columns.
//!
//! | sign | the first line is |
//! |---|---|
//! | numbers only, or numbers in both id columns as in the rows below | data |
//! | a word over a column of numbers | names |
//! | two usual names (`source`, `target`, `id`, …) | names |
//! | one usual name | names, probably |
//! | its value in a column is new, but the other values of the column repeat | names, probably |
//! | its value occurs again in its column, or an id occurs again at the other end; two equal fields | data, probably |
//! | a number over other columns of numbers | data, probably |
//!
//! Signs that contradict each other, or no sign at all, leave it undecided.

use std::collections::HashMap;

use super::records::{float, int};

/// Minimal number of rows that show whether the values of a column repeat.
const ROWS: usize = 20;

/// The first line. `certain` is false for a guess that the user should see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstLine {
    Names { certain: bool },
    Data { certain: bool },
    Unknown,
}

/// What is known of the columns before the first line is understood.
pub(super) struct Expected<'a> {
    /// Usual names of columns, in lower case.
    pub(super) usual: &'a [&'a [&'a str]],
    /// Columns that the user named.
    pub(super) named: Vec<&'a str>,
    /// Positions of the ids if the first line is data.
    pub(super) ids: Vec<usize>,
    /// Whether fields are separated by blanks. Column names are rare in such files.
    pub(super) blanks: bool,
}

/// Returns the names and the ends of ranges among the user's columns.
pub(super) fn named<'a>(columns: &[&'a Option<String>], lists: &'a [String]) -> Vec<&'a str> {
    let lists = lists.iter().flat_map(|item| item.split(".."));
    columns.iter().filter_map(|column| column.as_deref()).chain(lists).filter(|name| !name.is_empty()).collect()
}

/// Returns the position of a column that the user gives as a number from 1.
pub(super) fn position(column: Option<&String>, default: usize) -> usize {
    column.and_then(|number| number.parse::<usize>().ok()?.checked_sub(1)).unwrap_or(default)
}

/// Returns what the first of `rows` is.
pub(super) fn first_line(rows: &[Vec<String>], expected: &Expected<'_>) -> FirstLine {
    let certain = true;
    let Some((first, rest)) = rows.split_first() else { return FirstLine::Data { certain } };
    if expected.named.iter().any(|name| !is_number(name) && first.iter().any(|field| field == name)) {
        return FirstLine::Names { certain };
    }
    let columns = || 0..first.len();
    let data = |i: usize| is_number(&first[i]) && same_numbers(&first[i], rest, i);
    let ids = expected.ids.iter().filter(|&&i| i < first.len());
    if first.iter().all(|field| is_number(field)) || ids.clone().all(|&i| data(i)) {
        return FirstLine::Data { certain };
    }
    let usual = |field: &&String| expected.usual.iter().any(|names| names.contains(&field.to_lowercase().as_str()));
    let usual = first.iter().filter(usual).count();
    let over_numbers = columns().any(|i| is_word(&first[i]) && all_numbers(rest, i));
    let new = columns().any(|i| is_word(&first[i]) && is_new_where_others_repeat(rows, i, expected.ids.contains(&i)));
    let certain = false;
    match occurs_again(first, rest, &expected.ids) {
        true if over_numbers || usual > 0 || new => FirstLine::Unknown,
        true => FirstLine::Data { certain },
        false if over_numbers || usual > 1 => FirstLine::Names { certain: true },
        false if columns().any(data) => match usual > 0 || new {
            true => FirstLine::Unknown,
            false => FirstLine::Data { certain },
        },
        false if usual > 0 || new => FirstLine::Names { certain },
        false if expected.blanks => FirstLine::Data { certain },
        false => FirstLine::Unknown,
    }
}

fn is_number(field: &str) -> bool {
    float(field.as_bytes()).is_some()
}

/// Whether a field may be a name. Words for a missing value are not names.
fn is_word(field: &str) -> bool {
    let missing = ["", "na", "n/a", "null", "none", "-", "?"];
    !is_number(field) && !missing.contains(&field.to_lowercase().as_str())
}

/// The values of a column without empty ones.
fn values(rows: &[Vec<String>], column: usize) -> impl Iterator<Item = &str> {
    rows.iter().filter_map(move |row| row.get(column)).map(String::as_str).filter(|value| !value.is_empty())
}

fn all_numbers(rows: &[Vec<String>], column: usize) -> bool {
    values(rows, column).next().is_some() && values(rows, column).all(is_number)
}

/// Whether the values of a column are numbers like `first`. An integer over decimals may be a name, such as a year.
fn same_numbers(first: &str, rest: &[Vec<String>], column: usize) -> bool {
    let is_int = |value: &str| int(value.as_bytes()).is_some();
    values(rest, column).all(|value| is_number(value) && (is_int(value) || !is_int(first)))
}

/// Whether a field of the first line occurs again where it would if it were data.
fn occurs_again(first: &[String], rest: &[Vec<String>], ids: &[usize]) -> bool {
    let word = |i: &usize| first.get(*i).filter(|field| is_word(field));
    let in_column = |i: usize| values(rest, i).any(|value| value == first[i]);
    let at_an_end = |field: &String| ids.iter().any(|&i| values(rest, i).any(|value| value == field));
    let equal = |i: usize| first[..i].contains(&first[i]);
    (0..first.len()).filter(|i| word(i).is_some()).any(|i| in_column(i) || equal(i))
        || ids.iter().filter_map(word).any(at_an_end)
}

/// Whether the first value of a column occurs once, but at most one in twenty of the others does. If all rows were data
/// in random order, this had a probability of one in twenty. Ids are often sorted; so of equal ids in successive rows,
/// one counts.
fn is_new_where_others_repeat(rows: &[Vec<String>], column: usize, sorted: bool) -> bool {
    let mut all: Vec<&str> = values(rows, column).collect();
    if sorted {
        all.dedup();
    }
    let mut counts: HashMap<&str, usize> = HashMap::new();
    all.iter().for_each(|value| *counts.entry(value).or_default() += 1);
    let once = counts.values().filter(|&&count| count == 1).count();
    all.len() >= ROWS && all.first().is_some_and(|first| counts[first] == 1) && once * 20 <= all.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: FirstLine = FirstLine::Names { certain: true };
    const DATA: FirstLine = FirstLine::Data { certain: true };
    const LIKELY_NAMES: FirstLine = FirstLine::Names { certain: false };
    const LIKELY_DATA: FirstLine = FirstLine::Data { certain: false };

    fn of(text: &str, blanks: bool) -> FirstLine {
        let delimiter = if blanks { ' ' } else { ',' };
        let rows: Vec<Vec<String>> =
            text.lines().map(|line| line.split(delimiter).map(String::from).collect()).collect();
        let usual = [crate::usual_names::SRC, crate::usual_names::DST];
        first_line(&rows, &Expected { usual: &usual, named: Vec::new(), ids: vec![0, 1], blanks })
    }

    /// Rows of a graph of packages: names of which most occur once, and a kind.
    fn packages(kind: impl Fn(usize) -> &'static str) -> String {
        (0..60).map(|i| format!("p{},q{},{}\n", i / 3, i * 7 % 41, kind(i))).collect()
    }

    #[test]
    fn numbers_and_usual_names_decide() {
        for (text, expected) in [
            ("1,2\n2,3\n", DATA),
            ("a,b\n1,2\n", NAMES),
            ("source,target\nx,y\n", NAMES),
            ("package,version,size\nx,y,7\n", NAMES),
            ("x,y,7\nz,w,8\n", LIKELY_DATA),
            ("x,y,NA\nz,w,8\n", FirstLine::Unknown),
            ("1,2,knows\n3,4,knows\n", DATA),
            ("from,x\ny,z\n", LIKELY_NAMES),
            ("country,2019,2020\nfr,1.5,2.5\n", FirstLine::Unknown),
            ("to,5\nbe,7\n", FirstLine::Unknown),
            ("", DATA),
        ] {
            assert_eq!(of(text, false), expected, "{text}");
        }
    }

    #[test]
    fn text_is_decided_by_repeated_values_or_not_at_all() {
        let kinds = packages(|i| if i.is_multiple_of(4) { "dev" } else { "runtime" });
        assert_eq!(of(&format!("package,depends_on,kind\n{kinds}"), false), LIKELY_NAMES);
        assert_eq!(of(&kinds, false), LIKELY_DATA);
        let without = packages(|_| "").replace(",\n", "\n");
        assert_eq!(of(&format!("package,depends_on\n{without}"), false), FirstLine::Unknown);
        // An id of the first line is the other end of a later edge.
        assert_eq!(of("ann,bob\ncy,dan\neve,ann\n", false), LIKELY_DATA);
        // Usual names that are also ids.
        assert_eq!(of("u,v\nv,w\n", false), FirstLine::Unknown);
        // Column names are rare in files with blanks.
        assert_eq!(of("ann bob\ncy dan\n", true), LIKELY_DATA);
        // Sorted ids do not repeat.
        let sorted: String = (0..90).map(|i| format!("n{},m{i}\n", i / 3)).collect();
        assert_eq!(of(&format!("first,only\n{sorted}"), false), FirstLine::Unknown);
    }
}
