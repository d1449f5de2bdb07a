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
    ("what came of", "name it: the result, the outcome, the answer"),
    ("what comes of", "name it: the result, the outcome, the answer"),
    (
        "what becomes of",
        "name it: the result, the outcome, how it is treated",
    ),
    ("what became of", "name it: the result, the outcome"),
    ("comes of it", "say what it does or leaves behind"),
    ("for who", "name the reader: clients, callers, whatever asks"),
    ("to who asks", "name the reader: clients, callers, whatever asks"),
    ("of one's own", "your own, a private one, a separate one"),
    ("is told as", "say what the message says"),
    ("is told by", "recognised by, identified by, marked by"),
    ("are told by", "recognised by, identified by, marked by"),
    ("refused with their", "refused with the expected message"),
    ("would be a model as", "say what to do: move it to MODEL/1/FILE"),
    ("the one before it stays", "the previous one stays in use"),
    ("holds from now on", "is in use"),
    ("comes to nothing", "say that it fails"),
    ("came to nothing", "say that it failed"),
];

/// `is none` as a predicate: "a header that is none". Behind "there" it is English.
const NONE: &[&str] = &["is none", "are none", "was none"];

/// Forms of "to hold one thing against another", which a reader takes for a grudge.
const HOLD: &[&str] = &["hold", "holds", "held", "holding"];

/// Words between the two halves of that.
const MOST_BETWEEN: usize = 12;

/// Whether a line, in lower case, holds something against something.
fn holds_against(line: &str) -> bool {
    let mut since = None;
    for word in line.split(|char: char| !char.is_alphanumeric() && !"_`'-/".contains(char)) {
        match word {
            "" => {}
            "against" if since.is_some_and(|words| words <= MOST_BETWEEN) => return true,
            word if HOLD.contains(&word) => since = Some(0),
            _ => since = since.map(|words| words + 1),
        }
    }
    false
}

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
        if holds_against(&lower) {
            found.push((
                index + 1,
                "hold ... against",
                "say that it is checked against it, or compared with it",
            ));
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
        let text = format!(
            "it {} every output, of any shape, {} the list\n",
            "holds", "against"
        );
        assert_eq!(found(&text)[0].1, "hold ... against");
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
