//! Tables and sizes for people.

use std::io::{self, Write};

/// Prints rows with their columns aligned; the columns in `right` to the right.
pub(crate) fn print<const N: usize>(
    out: &mut impl Write,
    rows: &[[String; N]],
    right: &[usize],
) -> io::Result<()> {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let padding = " ".repeat(widths[column] - cell.chars().count());
            let is_right = right.contains(&column);
            let [before, after] = if is_right {
                [&*padding, ""]
            } else {
                ["", &*padding]
            };
            line += &format!("{before}{cell}{after}  ");
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// A number of bytes as people say it.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value < 9.95 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// A number of tensors.
pub(crate) fn tensors(count: usize) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} tensor{plural}")
}

/// A number with about six digits.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e9).contains(&size) {
        return format!("{value:.5e}");
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text of a file, as one line without characters that would move the cursor.
pub(crate) fn text(text: &str) -> String {
    text.chars()
        .flat_map(|char| {
            if char.is_control() {
                char.escape_default().collect()
            } else {
                vec![char]
            }
        })
        .collect()
}

/// The same, with a note in place of what comes after the first `most` characters.
pub(crate) fn shortened(long: &str, most: usize) -> String {
    match long.char_indices().nth(most) {
        None => text(long),
        Some((end, _)) => {
            let more = long[end..].chars().count();
            format!(
                "{}… ({more} characters more; --json has them)",
                text(&long[..end])
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_digits() {
        let sizes = [0, 1023, 1024, 10_189, 1 << 20, 5 << 30].map(size);
        assert_eq!(
            sizes,
            ["0 B", "1023 B", "1.0 KiB", "10 KiB", "1.0 MiB", "5.0 GiB"]
        );
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 1.0, -2.5, 1.0 / 3.0, 3.82e-37, 1e12, f64::INFINITY].map(number);
        assert_eq!(
            numbers,
            ["0", "1", "-2.5", "0.333333", "3.82000e-37", "1.00000e12", "inf"]
        );
    }

    #[test]
    fn text_stays_on_its_line() {
        assert_eq!(text("a\n\x1b[31mb\u{e9}"), "a\\n\\u{1b}[31mb\u{e9}");
    }
}
