//! Name patterns with wildcards.

/// A pattern in which the wildcard `*` matches any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(String);

impl Pattern {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Returns whether the pattern matches every name.
    pub(crate) fn takes_all(&self) -> bool {
        self.0 == "*"
    }

    /// Returns whether the pattern matches `name`, in time proportional to the product of both lengths.
    pub(crate) fn takes(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return rest.is_empty();
        }
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return rest.ends_with(part);
            }
            let Some(found) = rest.find(part) else {
                return false;
            };
            rest = &rest[found + part.len()..];
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, name, takes) in [
            ("*", "", true),
            ("*", "m", true),
            ("iris", "iris", true),
            ("iris", "iris2", false),
            ("iris-*", "iris-", true),
            ("iris-*", "iris-small", true),
            ("iris-*", "my-iris-small", false),
            ("*-small", "iris-small", true),
            ("*-small", "iris-small-2", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("**", "x", true),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(Pattern::new(pattern).takes(name), takes, "{pattern} {name}");
        }
    }
}
