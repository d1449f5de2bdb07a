//! Plain words: turns of phrase that a reader has to read twice. docs/CONTRIBUTING.md says what is wanted instead.

/// Phrases that stand for a sentence which should be written anew, and what to write.
const SIGNS: &[(&str, &str)] = &[
    ("whoever", "name the subject: the caller, the client, the thread"),
    (
        "that there is not",
        "say what is missing, or that it is unsupported",
    ),
    (
        "what there is not",
        "say what is missing, or that it is unsupported",
    ),
    ("has no say", "say what decides"),
    ("comes to nothing", "say that it fails"),
    ("came to nothing", "say that it failed"),
];

/// `is none` as a predicate: "a header that is none". Behind "there" it is English.
const NONE: &[&str] = &["is none", "are none", "was none"];

/// The phrases of a text that should be written anew: the line, the phrase and advice.
pub(crate) fn found(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        for (sign, advice) in SIGNS {
            if has_phrase(&lower, sign) {
                found.push((index + 1, *sign, *advice));
            }
        }
        for none in NONE {
            for (at, _) in lower.match_indices(none) {
                let before = lower[..at].trim_end();
                let after = &lower[at + none.len()..];
                let is_word = !after.starts_with(|next: char| next.is_alphanumeric() || next == '_')
                    && lower[..at].ends_with(' ');
                // "is none of" is English too.
                if is_word && !before.ends_with("there") && !after.starts_with(" of ") {
                    found.push((
                        index + 1,
                        *none,
                        "say what it is: malformed, invalid, missing, empty",
                    ));
                }
            }
        }
    }
    found
}

/// Whether a phrase stands in a line between characters that are not part of a word.
fn has_phrase(line: &str, phrase: &str) -> bool {
    let is_part = |char: char| char.is_alphanumeric() || char == '_';
    line.match_indices(phrase)
        .any(|(at, _)| !line[..at].ends_with(is_part) && !line[at + phrase.len()..].starts_with(is_part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_found_as_words() {
        let text = format!(
            "/// For {} asks.\nfine\n/// A header that {} none.\n",
            "whoever", "is"
        );
        let signs: Vec<(usize, &str)> = found(&text)
            .into_iter()
            .map(|(line, sign, _)| (line, sign))
            .collect();
        assert_eq!(signs, [(1, "whoever"), (3, "is none")]);
        for fine in [
            "when there is none",
            "it is none of GGML's",
            "fn whoever_leaves()",
            "this is nonesuch",
        ] {
            assert_eq!(found(fine), [], "{fine}");
        }
    }
}
