//! Names for sizes that are counted while a model runs, such as that of `NonZero`.

use tract_hir::internal::*;

/// What such names begin with. A dimension of an input that has such a name in the file is taken for one, which costs no more than a
/// plan that knows less.
const COUNTED: &str = "counted_";

/// A new name.
pub(crate) fn counted(scope: &SymbolScope, what: &str) -> Symbol {
    scope.new_with_prefix(&format!("{COUNTED}{what}"))
}

/// Whether a dimension depends on what is counted while the model runs, rather than on the shapes of inputs alone.
pub(crate) fn is_counted(dim: &TDim) -> bool {
    let symbols = dim.symbols();
    symbols
        .iter()
        .any(|symbol| symbol.to_string().starts_with(COUNTED))
}
