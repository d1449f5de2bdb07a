//! The table of models, fitted to the terminal.

use std::{
    fmt::Write as _,
    io::{IsTerminal, stdout},
};

use anstream::{AutoStream, ColorChoice};
use oip_engine::ModelStatus;
use oip_types::{Joining, TensorMetadata};

use super::terminal_text::shown;

/// How to format output for the terminal.
#[derive(Clone, Copy)]
pub(super) struct TerminalStyle {
    /// Number of columns; unlimited if standard output is not a terminal.
    pub(super) width: usize,
    /// Whether colours are used: on a terminal, unless `NO_COLOR` is set.
    pub(super) is_coloured: bool,
}

impl TerminalStyle {
    #[cfg(test)]
    pub(super) const PLAIN: Self = Self {
        width: usize::MAX,
        is_coloured: false,
    };

    pub(super) fn of_stdout() -> Self {
        let size = stdout()
            .is_terminal()
            .then(terminal_size::terminal_size)
            .flatten();
        Self {
            width: size.map_or(usize::MAX, |(width, _)| usize::from(width.0)),
            is_coloured: AutoStream::choice(&stdout()) != ColorChoice::Never,
        }
    }
}

const TITLES: [&str; 7] = [
    "MODEL",
    "VERSION",
    "STATE",
    "LOADED IN",
    "BATCHED",
    "INPUTS",
    "OUTPUTS",
];

/// Column of the state, and the first of the two columns for tensors.
const STATE: usize = 2;
const TENSORS: usize = 5;

type Row = [String; TITLES.len()];

/// Formats a table with a row per version, and additional rows for further inputs and outputs. Below it are
/// the reasons why versions are not ready, and why requests are not batched.
pub(super) fn table(models: &[ModelStatus], look: TerminalStyle) -> String {
    let mut rows = vec![TITLES.map(str::to_owned)];
    rows.extend(models.iter().flat_map(rows_of));
    let widths = widths(&rows, look.width);
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!("{:<width$}", shortened(cell, *width)));
        let line = cells.collect::<Vec<_>>().join("  ");
        let line = match look.is_coloured {
            true => coloured(line.trim_end(), &row[STATE]),
            false => line.trim_end().to_owned(),
        };
        let _ = writeln!(text, "{line}");
    }
    let reasons: String = models.iter().flat_map(reasons).collect();
    if !reasons.is_empty() {
        text = text + "\n" + &reasons;
    }
    text
}

/// Returns the rows of a version.
fn rows_of(model: &ModelStatus) -> Vec<Row> {
    let metadata = model.metadata.as_ref();
    let (inputs, outputs) = metadata.map_or((&[][..], &[][..]), |metadata| {
        (&metadata.inputs, &metadata.outputs)
    });
    let cell = |tensors: &[TensorMetadata], line: usize| match tensors.get(line) {
        Some(_) if line == SHOWN => format!("and {} more", tensors.len() - SHOWN),
        Some(tensor) => format!("{} {}{}", shown(&tensor.name), tensor.datatype, tensor.shape),
        None => String::new(),
    };
    let lines = inputs.len().max(outputs.len()).clamp(1, SHOWN + 1);
    let mut rows: Vec<Row> = (0..lines)
        .map(|line| {
            let mut row = Row::default();
            row[TENSORS] = cell(inputs, line);
            row[TENSORS + 1] = cell(outputs, line);
            row
        })
        .collect();
    let load_time = model.load_time.map(|time| format!("{} ms", time.as_millis()));
    rows[0][..TENSORS].clone_from_slice(&[
        shown(&model.name),
        model.version.as_deref().map_or("-".to_owned(), shown),
        model.state.name().to_owned(),
        load_time.unwrap_or_default(),
        model.joining.as_ref().map_or("", Joining::word).to_owned(),
    ]);
    rows
}

/// Returns the lines below the table that are about a version.
fn reasons(model: &ModelStatus) -> impl Iterator<Item = String> {
    let name = shown(&model.name);
    let which = match model.version.as_deref() {
        Some(version) => format!("{name} {}", shown(version)),
        None => name,
    };
    let reason = Some(&model.reason).filter(|reason| !reason.is_empty());
    let joining = model.joining.as_ref().filter(|joining| !joining.is_joined());
    let lines = [
        reason.map(|reason| format!("{which}: {}\n", shown(reason))),
        joining.map(|joining| format!("{which}: batched: {}\n", shown(&joining.to_string()))),
    ];
    lines.into_iter().flatten()
}

/// Returns the widths of the columns. The columns of inputs and of outputs share the part of `total` that the
/// other columns do not need. If one of the two needs less than half of that width, the other gets the
/// remainder.
fn widths(rows: &[Row], total: usize) -> [usize; TITLES.len()] {
    let mut widths = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    });
    let fixed = widths[..TENSORS].iter().sum::<usize>() + 2 * (TITLES.len() - 1);
    let left = total.saturating_sub(fixed).max(2 * LEAST);
    let (inputs, outputs) = (widths[TENSORS], widths[TENSORS + 1]);
    if inputs.saturating_add(outputs) > left {
        let half = left / 2;
        let inputs = match (inputs, outputs) {
            (inputs, _) if inputs <= half => inputs,
            (_, outputs) if outputs <= half => left - outputs,
            _ => half,
        };
        (widths[TENSORS], widths[TENSORS + 1]) = (inputs, left - inputs);
    }
    widths
}

/// Minimum width of the columns for inputs and outputs.
const LEAST: usize = 16;

/// Truncates a string to `width` columns, and marks the truncation.
fn shortened(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        None => text.to_owned(),
        Some(_) => text.chars().take(width - 1).chain(['…']).collect(),
    }
}

/// Colours the state in a table row. Formats the heading in bold.
fn coloured(line: &str, state: &str) -> String {
    let code = match state {
        "STATE" => return format!("\x1b[1m{line}\x1b[0m"),
        "READY" => "32",
        "UNAVAILABLE" => "31",
        _ => return line.to_owned(),
    };
    line.replacen(&format!(" {state}"), &format!(" \x1b[{code}m{state}\x1b[0m"), 1)
}

/// Maximum number of inputs or outputs shown per version; tensor files have thousands.
const SHOWN: usize = 8;

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use oip_types::{DataType, ModelMetadata, ModelState};

    use super::*;

    #[test]
    fn many_tensors_are_counted_and_names_are_harmless() {
        let outputs = (0..20).map(|index| TensorMetadata::new(format!("t\x1b{index}"), DataType::UINT8, &[]));
        let metadata = ModelMetadata::new(
            "many",
            "tensorferry_ztensor",
            vec![TensorMetadata::new("x", DataType::UINT8, &[])],
            outputs.collect(),
        );
        let ready = ModelStatus::new("many", None, ModelState::Ready, "").with_metadata(Arc::new(metadata));
        let text = table(&[ready], TerminalStyle::PLAIN);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + SHOWN + 1);
        assert!(lines[2].ends_with("t\u{fffd}1 UINT8[]"), "{text}");
        assert!(
            lines[SHOWN + 1].trim() == "and 12 more" && !text.contains('\x1b'),
            "{text}"
        );
    }

    #[test]
    fn names_of_folders_are_harmless_too() {
        let name = "evil\u{1b}[2J\u{202e}x";
        let failed = ModelStatus::new(name, Some("1\n2"), ModelState::Unavailable, "no\rgood\u{7}");
        let text = table(&[failed], TerminalStyle::PLAIN);
        assert!(
            text.contains("evil\u{fffd}[2J\u{fffd}x 1\u{fffd}2: no\u{fffd}good\u{fffd}"),
            "{text:?}"
        );
        assert_eq!(text.lines().count(), 4);
    }

    #[test]
    fn the_table_shows_everything_once() {
        let metadata = ModelMetadata::new(
            "digits",
            "onnx_onnxv1",
            vec![TensorMetadata::new("X", DataType::FP32, &[-1, 64])],
            vec![
                TensorMetadata::new("label", DataType::INT64, &[-1]),
                TensorMetadata::new("probabilities", DataType::FP32, &[-1, 10]),
            ],
        )
        .with_versions(["1"]);
        let ready = ModelStatus::new("digits", Some("1"), ModelState::Ready, "")
            .with_metadata(Arc::new(metadata))
            .with_joining(Joining::Proven)
            .with_load_time(Duration::from_millis(12));
        let failed = ModelStatus::new("broken", Some("3"), ModelState::Unavailable, "it is truncated");
        let causal = Joining::alone("CumSum 'y' runs along axis 0").advising("write max_batch_size: 8");
        let alone = ModelStatus::new("sums", None, ModelState::Ready, "").with_joining(causal);
        assert_eq!(
            table(&[ready, failed, alone], TerminalStyle::PLAIN),
            "\
MODEL   VERSION  STATE        LOADED IN  BATCHED  INPUTS          OUTPUTS
digits  1        READY        12 ms      proven   X FP32[-1, 64]  label INT64[-1]
                                                                  probabilities FP32[-1, 10]
broken  3        UNAVAILABLE
sums    -        READY                   no

broken 3: it is truncated
sums: batched: no (CumSum 'y' runs along axis 0; to promise that rows are independent, write max_batch_size: 8)
"
        );
    }

    #[test]
    fn narrow_terminals_have_whole_lines() {
        let long = |name: &str| TensorMetadata::new(name.repeat(20), DataType::FP32, &[-1, 64]);
        let metadata = ModelMetadata::new("m", "onnx_onnxv1", vec![long("in")], vec![long("out")]);
        let model = ModelStatus::new("m", Some("1"), ModelState::Ready, "").with_metadata(Arc::new(metadata));
        let look = TerminalStyle {
            width: 80,
            is_coloured: false,
        };
        let text = table(std::slice::from_ref(&model), look);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(text.matches('…').count(), 2, "{text}");
        let look = TerminalStyle {
            is_coloured: true,
            ..TerminalStyle::PLAIN
        };
        let text = table(&[model], look);
        assert!(
            text.starts_with("\x1b[1mMODEL") && text.contains(" \x1b[32mREADY\x1b[0m "),
            "{text:?}"
        );
    }
}
