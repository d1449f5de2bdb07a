//! The `Date` header of HTTP/2 responses. For HTTP/1, hyper writes this header.

use std::{
    cell::RefCell,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::HeaderValue;

thread_local! {
    /// The last formatted value, with the time in seconds that it represents. Formatting the date takes
    /// longer than formatting all other parts of a response head.
    static LAST: RefCell<Option<(Duration, HeaderValue)>> = const { RefCell::new(None) };
}

/// Returns the current time, to the second.
pub(crate) fn now() -> HeaderValue {
    let now = SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let second = Duration::from_secs(second);
    LAST.with_borrow_mut(|last| match last {
        Some((of, value)) if *of == second => value.clone(),
        _ => {
            let text = httpdate::fmt_http_date(UNIX_EPOCH + second);
            let value = HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""));
            *last = Some((second, value.clone()));
            value
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_second_they_are_asked_for() {
        let before = SystemTime::now() - Duration::from_secs(1);
        let value = now();
        let time = httpdate::parse_http_date(value.to_str().unwrap()).unwrap();
        assert!(before <= time && time <= SystemTime::now(), "{value:?}");
        assert_eq!(value.len(), "Sun, 06 Nov 1994 08:49:37 GMT".len());
    }
}
