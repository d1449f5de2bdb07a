//! The table of operators, one file per family. Each row is complete, even where neighbours are equal, since
//! ONNX's page of an operator is compared with its row.

mod attention;
mod control;
mod conv;
mod elementwise;
mod gather;
mod image;
mod matmul;
mod ml;
mod norm;
mod other_runtimes;
mod pool;
mod quant;
mod random;
mod reduce;
mod rnn;
mod shape;
mod signal;
mod text;

use std::{collections::BTreeMap, sync::LazyLock};

use crate::Operator;

/// The rows by family, sorted by domain and name within each.
const FAMILIES: &[&[Operator]] = &[
    attention::ROWS,
    control::ROWS,
    conv::ROWS,
    elementwise::ROWS,
    gather::ROWS,
    image::ROWS,
    matmul::ROWS,
    ml::ROWS,
    norm::ROWS,
    other_runtimes::ROWS,
    pool::ROWS,
    quant::ROWS,
    random::ROWS,
    reduce::ROWS,
    rnn::ROWS,
    shape::ROWS,
    signal::ROWS,
    text::ROWS,
];

/// All rows of the table, by domain and name.
static BY_NAME: LazyLock<BTreeMap<(&str, &str), &Operator>> = LazyLock::new(|| {
    let rows = FAMILIES.iter().copied().flatten();
    rows.map(|row| ((row.domain, row.name), row)).collect()
});

/// Returns the row of an operator, or `None` if it is unknown. `domain` is `""` for ONNX's own operators.
#[must_use]
pub fn operator(domain: &str, name: &str) -> Option<&'static Operator> {
    BY_NAME.get(&(domain, name)).copied()
}

/// Returns all rows, ordered by domain and name.
pub fn operators() -> impl Iterator<Item = &'static Operator> {
    BY_NAME.values().copied()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{ANY, Outputs, Runs, schema_of};

    #[test]
    fn rows_are_sorted_and_have_each_operator_once() {
        for rows in FAMILIES {
            assert!(
                rows.is_sorted_by(|a, b| (a.domain, a.name) < (b.domain, b.name)),
                "{}",
                rows[0].name
            );
        }
        let count: usize = FAMILIES.iter().map(|rows| rows.len()).sum();
        assert_eq!(BY_NAME.len(), count);
    }

    #[test]
    fn every_operator_of_onnx_has_a_schema_that_fits() {
        let is_computed = |row: &&Operator| matches!(row.runs, Runs::Kernel | Runs::Steps);
        let of_onnx = |row: &&Operator| ["", "ai.onnx.ml"].contains(&row.domain);
        for row in operators().filter(is_computed).filter(of_onnx) {
            let name = row.name;
            let schema = schema_of(row.domain, name).unwrap_or_else(|| panic!("{name} has no schema"));
            let &(_, most) = schema.outputs.last().unwrap();
            match row.outputs {
                Outputs::Exactly(count) => assert!(count <= most, "{name}"),
                Outputs::Optional => assert!((2..ANY).contains(&most), "{name}"),
                Outputs::AsNamed => assert_eq!(most, ANY, "{name}"),
            }
            let is_bounded = row.since > 1;
            assert!(
                !is_bounded || row.since >= schema.inputs[0].0,
                "{name} came later"
            );
        }
    }
}
