//! Text that others wrote, on a terminal.

/// Text from folders and files as it may go to a terminal: without what would move the cursor, change colours or turn
/// the direction of what follows.
pub(crate) fn shown(text: &str) -> String {
    let harmless = |character: char| match character {
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            char::REPLACEMENT_CHARACTER
        }
        control if control.is_control() => char::REPLACEMENT_CHARACTER,
        other => other,
    };
    text.chars().map(harmless).collect()
}
