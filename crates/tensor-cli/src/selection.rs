//! Options that select, rename and cast tensors.

use clap::Args;
use fmt_core::{Error, TensorReader};
use tensor_core::{DType, DTypeKind};
use tensor_files::{Composite, Pattern, Recast, Renaming, Selection};

use crate::named::NamedParser;

/// Options that select tensors. Patterns match names as they are in the file.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Tensors")]
pub(crate) struct SelectionOptions {
    /// Only tensors whose names match: a glob such as 'model.layers.*', or a regular expression after re:.
    /// Can be repeated.
    #[arg(long, value_name = "PATTERN")]
    include: Vec<Pattern>,
    /// Leave out tensors whose names match. Can be repeated.
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<Pattern>,
    /// Renames matching tensors: 'model.*=>*', or 're:layers\.(\d+)=>h.$1'. The first match counts.
    #[arg(long, value_name = "FROM=>TO")]
    rename: Vec<Renaming>,
    /// Convert floats, and quantised blocks that are understood, to f16, bf16, f32 or f64: to the nearest,
    /// ties to even. Integers and bools stay as they are; others must be left out or keep their dtype.
    /// Numbers beyond the range are a loss (--allow-loss=range).
    #[arg(long, value_name = "DTYPE", value_parser = NamedParser { names: float_names, parse: float })]
    dtype: Option<DType>,
    /// With --dtype: matching tensors keep their dtype. Can be repeated.
    #[arg(long, value_name = "PATTERN", requires = "dtype")]
    keep_dtype: Vec<Pattern>,
}

impl SelectionOptions {
    /// Removes all tensors except the selected ones from `files`, and renames the selected ones. The same
    /// selection applies to all files.
    pub(crate) fn select(&self, files: &mut [&mut Composite<'_>]) -> Result<(), Error> {
        let mut selection = Selection::default();
        selection.include.clone_from(&self.include);
        selection.exclude.clone_from(&self.exclude);
        selection.rename.clone_from(&self.rename);
        if selection.is_everything() {
            return Ok(());
        }
        selection.apply(files)
    }

    /// Returns a reader that casts the tensors of `sources`; `None` without `--dtype`.
    pub(crate) fn recast<'r>(&self, sources: &'r Composite<'_>) -> Result<Option<Recast<'r>>, Error> {
        let Some(dtype) = self.dtype else {
            return Ok(None);
        };
        let stays = |index| {
            let name = sources.name_in_file(index);
            self.keep_dtype.iter().any(|pattern| pattern.matches(name))
        };
        let reader: &dyn TensorReader = sources;
        Recast::to_float(reader, dtype, stays).map(Some)
    }
}

fn floats() -> impl Iterator<Item = DType> {
    DType::ALL
        .into_iter()
        .filter(|dtype| dtype.kind() == DTypeKind::Float)
}

fn float_names() -> Vec<&'static str> {
    floats().map(DType::name).collect()
}

fn float(text: &str) -> Result<DType, String> {
    floats()
        .find(|dtype| dtype.name().eq_ignore_ascii_case(text))
        .ok_or_else(|| "expected f16, bf16, f32 or f64".to_owned())
}
