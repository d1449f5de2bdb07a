//! Makes untrusted text safe to print on a terminal.

/// Escapes characters that move the cursor, change colours or change the text direction. Text from
/// directories and files may contain them.
pub(crate) fn shown(text: &str) -> String {
    let harmless = |character: char| match character {
        invisible if tensor_core::is_invisible(invisible) => char::REPLACEMENT_CHARACTER,
        other => other,
    };
    text.chars().map(harmless).collect()
}
