//! Checks the lengths of slices against matrix sizes.

/// Panics unless the slice called `name` has `rows * columns` elements.
#[track_caller]
pub(crate) fn expect_matrix(name: &str, len: usize, [rows, columns]: [usize; 2]) {
    assert_eq!(
        rows.checked_mul(columns),
        Some(len),
        "{name} of {rows} rows and {columns} columns has {len} elements"
    );
}

/// Panics unless both factors and the product have as many elements as their sizes require. The second factor
/// may be transposed.
#[track_caller]
pub(crate) fn expect_product([a, b, c]: [usize; 3], [rows, depth, columns]: [usize; 3]) {
    expect_matrix("a", a, [rows, depth]);
    expect_matrix("b", b, [depth, columns]);
    expect_matrix("c", c, [rows, columns]);
}

/// Panics unless both factors consist of whole rows, and of the same number of rows. The depth may be 0.
#[track_caller]
pub(crate) fn expect_rows(a: usize, depth: usize, c: usize, columns: usize) {
    let is_fitting = match (depth, columns) {
        (0, 0) => a == 0 && c == 0,
        (0, columns) => a == 0 && c.is_multiple_of(columns),
        (depth, 0) => a.is_multiple_of(depth) && c == 0,
        (depth, columns) => a.is_multiple_of(depth) && c.is_multiple_of(columns) && a / depth == c / columns,
    };
    assert!(
        is_fitting,
        "a of {a} and c of {c} elements are not the same number of rows of {depth} and {columns}"
    );
}
