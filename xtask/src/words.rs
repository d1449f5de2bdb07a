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
    ("as good as any", "say that it does not matter, or why"),
    ("never not", "say what it always was"),
    ("is no elements", "there are no elements"),
    ("to be had", "available, installed, found"),
    ("who reads", "name the subject: readers, a reader"),
    ("could complain of", "name the error"),
];

/// `is none` as a predicate: "a header that is none". Behind "there" it is English.
const NONE: &[&str] = &["is none", "are none", "was none"];

/// Forms of "to hold one thing against another", which a reader takes for a grudge.
const HOLD: &[&str] = &["hold", "holds", "held", "holding"];

/// Words that a comment does not begin with: the subject of its sentence is missing.
const NO_SUBJECT: &[&str] = &["who ", "whose ", "nobody "];

/// The comment on a line, in lower case.
fn comment(lower: &str, is_page: bool) -> Option<&str> {
    let line = lower.trim_start();
    let mut marks = ["//!", "///", "//", "#"]
        .into_iter()
        .filter(|mark| !is_page || *mark != "#");
    marks.find_map(|mark| line.strip_prefix(mark))?.strip_prefix(' ')
}

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

/// The phrases of a text that should be written anew: the line, the phrase and advice. In pages `#` is a heading, elsewhere a comment.
pub(crate) fn found(text: &str, is_page: bool) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        for (sign, advice) in SIGNS {
            if has_phrase(&lower, sign) {
                found.push((index + 1, *sign, *advice));
            }
        }
        // A line that goes on with the sentence of the line before may begin with any word.
        let begins = line
            .trim_start_matches(['/', '!', '#', ' '])
            .starts_with(char::is_uppercase);
        for word in NO_SUBJECT {
            if begins && comment(&lower, is_page).is_some_and(|comment| comment.starts_with(word)) {
                found.push((
                    index + 1,
                    word.trim_end(),
                    "name the subject: a caller, a client, a thread",
                ));
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
            // With a capital it is Python's.
            for (at, _) in line.match_indices(none) {
                let before = line[..at].trim_end().to_lowercase();
                let after = &line[at + none.len()..];
                let is_word = !after.starts_with(|next: char| next.is_alphanumeric() || next == '_')
                    && line[..at].ends_with(' ');
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
        let signs: Vec<(usize, &str)> = found(&text, false)
            .into_iter()
            .map(|(line, sign, _)| (line, sign))
            .collect();
        assert_eq!(signs, [(1, "whoever"), (3, "is none")]);
        let text = format!(
            "it {} every output, of any shape, {} the list\n",
            "holds", "against"
        );
        assert_eq!(found(&text, false)[0].1, "hold ... against");
        let text = format!(
            "    // {} waits any more.\n// a text of\n// {} own\n",
            "Nobody", "whose"
        );
        assert_eq!(found("# Whose it is\n", true), []);
        assert_eq!(found(&text, false)[0].1, "nobody");
        assert_eq!(found(&text, false).len(), 1);
        for fine in [
            "when there is none",
            "it is none of GGML's",
            "if x is None:",
            "fn whoever_leaves()",
            "this is nonesuch",
        ] {
            assert_eq!(found(fine, false), [], "{fine}");
        }
    }
}
