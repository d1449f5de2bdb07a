//! ONNX Runtime's log messages. They are dropped, because callers get the same messages as errors, except that a
//! provider logs why it refuses an option and returns an error without the reason.

use std::{cell::RefCell, sync::Arc};

use ort::logging::{LogLevel, LoggerFunction};

thread_local! {
    /// The last error that the library logged on this thread, while it is wanted.
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Returns the function that receives the library's messages.
pub(super) fn logger() -> LoggerFunction {
    Arc::new(|level, _, _, _, message| {
        if matches!(level, LogLevel::Error | LogLevel::Fatal) {
            LAST.with_borrow_mut(|last| {
                if let Some(last) = last {
                    message.clone_into(last);
                }
            });
        }
    })
}

/// Runs `work`, and returns its result with the last error that the library logged on this thread meanwhile;
/// empty if there was none.
pub(super) fn with_last_error<T>(work: impl FnOnce() -> T) -> (T, String) {
    LAST.set(Some(String::new()));
    let done = work();
    (done, LAST.take().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_error_of_the_work_is_kept() {
        let logger = logger();
        let log = |level, message| logger(level, "", "", "", message);
        log(LogLevel::Error, "before");
        let (done, said) = with_last_error(|| {
            log(LogLevel::Error, "first");
            log(LogLevel::Error, "last");
            log(LogLevel::Warning, "a warning");
            7
        });
        assert_eq!((done, said.as_str()), (7, "last"));
        log(LogLevel::Error, "after");
        assert_eq!(with_last_error(|| ()).1, "");
    }
}
