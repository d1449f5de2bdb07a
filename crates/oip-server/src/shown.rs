//! Text that others wrote, on a terminal.

/// Text from folders and files as it may go to a terminal: without what would move the cursor, change colours or turn
/// the direction of what follows.
pub(crate) fn shown(text: &str) -> String {
    let harmless = |character: char| match character {
        invisible if tensor_core::is_invisible(invisible) => char::REPLACEMENT_CHARACTER,
        other => other,
    };
    text.chars().map(harmless).collect()
}
