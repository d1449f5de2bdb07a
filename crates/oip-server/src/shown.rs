//! Prints untrusted text on a terminal.

/// Escapes text from directories and files: without characters that move the cursor, change colours or change
/// the text direction.
pub(crate) fn shown(text: &str) -> String {
    let harmless = |character: char| match character {
        invisible if tensor_core::is_invisible(invisible) => char::REPLACEMENT_CHARACTER,
        other => other,
    };
    text.chars().map(harmless).collect()
}
