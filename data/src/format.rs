//! Numbers as text for people.

/// Returns an integer with commas between its thousands: `1,234,567`.
///
/// ```
/// use gnnflow_data::format;
/// assert_eq!([format::count(123), format::count(1_234_567)], ["123", "1,234,567"]);
/// ```
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// Returns `number` and `word`, in the plural unless `number` is 1: `1 process`, `2 processes`.
pub fn plural(number: usize, word: &str) -> String {
    format!("{number} {word}{}", ending(number as u64, word))
}

/// Like [`plural`], with commas between thousands: `1,000 rows`.
pub fn counted(number: u64, word: &str) -> String {
    format!("{} {word}{}", count(number), ending(number, word))
}

fn ending(number: u64, word: &str) -> &'static str {
    match number {
        1 => "",
        _ if word.ends_with('s') => "es",
        _ => "s",
    }
}

/// Returns a number of bytes in the largest binary unit that leaves at least 1, to about three digits.
///
/// ```
/// use gnnflow_data::format;
/// assert_eq!([1023, 1536, 300 << 20].map(format::bytes), ["1023 B", "1.5 KiB", "300 MiB"]);
/// ```
pub fn bytes(bytes: u64) -> String {
    let (size, unit) = binary_unit(bytes);
    let digits = usize::from(unit != "B" && size < 100.0);
    format!("{size:.digits$} {unit}")
}

/// Like [`bytes`], with one decimal place in every unit but bytes.
pub(crate) fn bytes_in_tenths(bytes: u64) -> String {
    let (size, unit) = binary_unit(bytes);
    let digits = usize::from(unit != "B");
    format!("{size:.digits$} {unit}")
}

fn binary_unit(bytes: u64) -> (f64, &'static str) {
    let power = (bytes.max(1).ilog2() / 10).min(4);
    (bytes as f64 / (1u64 << (10 * power)) as f64, ["B", "KiB", "MiB", "GiB", "TiB"][power as usize])
}

/// Returns bytes as lowercase hexadecimal digits.
///
/// ```
/// assert_eq!(gnnflow_data::format::hex(&[0, 255, 10]), "00ff0a");
/// ```
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_commas() {
        assert_eq!([0, 12, 123, 1234, 1234567].map(count), ["0", "12", "123", "1,234", "1,234,567"]);
    }

    #[test]
    fn sizes_have_the_largest_unit_that_leaves_1() {
        let sizes = [0, 1023, 1024, 1536, 5 << 30].map(bytes_in_tenths);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB"]);
        assert_eq!([300 << 20, (300 << 20) + 1].map(bytes_in_tenths), ["300.0 MiB", "300.0 MiB"]);
        assert_eq!([0, 1023, 1024, 300 << 20].map(bytes), ["0 B", "1023 B", "1.0 KiB", "300 MiB"]);
    }

    #[test]
    fn plurals_end_in_s_or_es() {
        let words = [plural(1, "process"), plural(2, "process"), plural(0, "row"), counted(2000, "row")];
        assert_eq!(words, ["1 process", "2 processes", "0 rows", "2,000 rows"]);
    }
}
