//! Percent-encoding.

/// Encodes a name as a segment of a URL's path. The result needs no quotes in a shell.
pub(crate) fn percent_encoded(name: &str) -> String {
    use std::fmt::Write;
    let mut path = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                path.push(char::from(byte));
            }
            // Writing to a string does not fail.
            _ => drop(write!(path, "%{byte:02X}")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_urls_need_no_quotes() {
        assert_eq!(percent_encoded("a b;$(x)/ü"), "a%20b%3B%24%28x%29%2F%C3%BC");
    }
}
