//! Changes to names and metadata that leave the data where it is.

use std::path::Path;

use fmt_core::{Error, HeadEditor, ReadOptions};

/// Opens a file to change names and metadata, if its format has its index at the beginning: safetensors and GGUF. The
/// formats with an index at the end have editors of their own, which can do more; for others this is `None`.
///
/// ```no_run
/// let format = "safetensors";
/// if let Some(mut editor) = tensor_files::head_editor("a.safetensors".as_ref(), format, &Default::default())? {
///     editor.rename("w", "weight")?;
///     let was_in_place = editor.save()?;
/// }
/// # Ok::<(), fmt_core::Error>(())
/// ```
///
/// # Errors
/// As opening the file with that format.
pub fn head_editor(path: &Path, format: &str, options: &ReadOptions) -> Result<Option<HeadEditor>, Error> {
    match format {
        #[cfg(feature = "safetensors")]
        "safetensors" => fmt_safetensors::edit(path, options).map(Some),
        #[cfg(feature = "gguf")]
        "gguf" => fmt_gguf::edit(path, options).map(Some),
        _ => Ok(None),
    }
}
