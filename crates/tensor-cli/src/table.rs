//! Formats tables and sizes for terminals.

use std::io::{self, IsTerminal, Write};

/// Terminal properties of standard output.
#[derive(Clone, Copy)]
pub(crate) struct TerminalStyle {
    /// Terminal columns; unlimited for a file or pipe.
    width: usize,
    /// Colours on a terminal, unless `NO_COLOR` is set.
    #[cfg(feature = "client")]
    is_coloured: bool,
}

impl TerminalStyle {
    pub(crate) fn of_stdout() -> Self {
        let stdout = io::stdout();
        let size = stdout.is_terminal().then(terminal_size::terminal_size).flatten();
        Self {
            width: size.map_or(usize::MAX, |(width, _)| usize::from(width.0)),
            #[cfg(feature = "client")]
            is_coloured: anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never,
        }
    }

    /// Formats a model's state, in colour if enabled.
    #[cfg(feature = "client")]
    pub(crate) fn state(self, state: &str) -> String {
        match (self.is_coloured, state) {
            (true, "READY") => format!("\x1b[32m{state}\x1b[0m"),
            (true, "UNAVAILABLE") => format!("\x1b[31m{state}\x1b[0m"),
            _ => state.to_owned(),
        }
    }
}

/// Prints rows with aligned columns, at most as wide as the terminal; columns in `right` are right-aligned.
#[cfg(feature = "client")]
pub(crate) fn print<const N: usize>(
    out: &mut impl Write,
    rows: &[[String; N]],
    right: &[usize],
) -> io::Result<()> {
    print_each(out, rows.iter().cloned(), right)
}

/// Prints rows with aligned columns like the function `print`, but generates them twice instead of storing
/// them, because there may be millions.
pub(crate) fn print_each<const N: usize>(
    out: &mut impl Write,
    rows: impl Iterator<Item = [String; N]> + Clone,
    right: &[usize],
) -> io::Result<()> {
    print_within(out, rows, right, TerminalStyle::of_stdout().width)
}

/// Returns the visible characters of a cell, without colour codes.
fn seen(cell: &str) -> usize {
    let mut is_code = false;
    let visible = cell.chars().filter(|char| {
        is_code |= *char == '\x1b';
        let is_seen = !is_code;
        is_code &= *char != 'm';
        is_seen
    });
    visible.count()
}

/// Minimum width of a column.
const LEAST: usize = 8;

fn print_within<const N: usize>(
    out: &mut impl Write,
    rows: impl Iterator<Item = [String; N]> + Clone,
    right: &[usize],
    most: usize,
) -> io::Result<()> {
    let mut widths = [0; N];
    for row in rows.clone() {
        for (width, cell) in widths.iter_mut().zip(&row) {
            *width = seen(cell).max(*width);
        }
    }
    // Shrinks the widest column first. Numbers, which are right-aligned, are never truncated.
    let total = |widths: &[usize; N]| widths.iter().sum::<usize>() + 2 * (N - 1);
    while total(&widths) > most {
        let widest = (0..N).filter(|column| !right.contains(column) && widths[*column] > LEAST);
        let Some(widest) = widest.max_by_key(|column| widths[*column]) else {
            break;
        };
        widths[widest] -= (total(&widths) - most)
            .min(widths[widest] - LEAST)
            .min(1 + widths[widest] / 8);
    }
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let cut;
            let cell = match seen(cell) > widths[column] {
                true => {
                    cut = cell.chars().take(widths[column] - 1).chain(['…']).collect();
                    &cut
                }
                false => cell,
            };
            let padding = " ".repeat(widths[column] - seen(cell));
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

/// Formats a size in bytes with a unit.
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

/// Formats a count of tensors: "1 tensor", "2 tensors".
pub(crate) fn tensors(count: usize) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} tensor{plural}")
}

/// Formats a number with about six digits.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e9).contains(&size) {
        return format!("{value:.5e}");
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Escapes text from a file, so that it stays on one line. Characters that move the cursor or change how
/// other characters are displayed are escaped.
pub(crate) fn text(text: &str) -> String {
    text.chars()
        .flat_map(|char| {
            if tensor_core::is_invisible(char) {
                char.escape_default().collect()
            } else {
                vec![char]
            }
        })
        .collect()
}

/// Escapes text like [`text`], and replaces everything after `most` characters with a note.
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
    fn narrow_terminals_cut_what_is_widest() {
        let rows = [
            ["NAME", "SIZE", "VALUES"].map(str::to_owned),
            [&*"n".repeat(60), "123456789", "\x1b[32mab\x1b[0m"].map(str::to_owned),
        ];
        let printed = |most: usize| {
            let mut out = Vec::new();
            print_within(&mut out, rows.iter().cloned(), &[1], most).unwrap();
            String::from_utf8(out).unwrap()
        };
        let narrow = printed(40);
        assert!(narrow.lines().all(|line| seen(line) <= 40), "{narrow}");
        assert!(
            narrow.contains("n…") && narrow.contains("123456789") && narrow.contains("\x1b[32mab\x1b[0m")
        );
        assert!(printed(usize::MAX).contains(&"n".repeat(60)));
        // The width is too small for any content, so everything is truncated, without a panic.
        assert!(printed(3).contains("nnnnnnn…  "));
    }

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
        // Without the escape, a terminal would display the name as if it ended with .txt.
        assert_eq!(text("a\u{202e}txt.exe"), "a\\u{202e}txt.exe");
    }
}
