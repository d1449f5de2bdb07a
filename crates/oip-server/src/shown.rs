//! Text that others wrote, on a terminal.

/// Makes a string from files or directories safe for a terminal: removes characters that move the cursor,
/// change colours or the direction of text.
pub(crate) fn shown(text: &str) -> String {
    let harmless = |character: char| match character {
        invisible if tensor_core::is_invisible(invisible) => char::REPLACEMENT_CHARACTER,
        other => other,
    };
    text.chars().map(harmless).collect()
}
