//! The check of tensor names, shared by all formats.

use crate::{Error, ErrorKind, ReadOptions};

/// Checks the length of a tensor's name. In strict mode, also checks that the name contains no zero bytes. A
/// name may be empty, because writers of several formats produce such files.
///
/// ```
/// use fmt_core::{ErrorKind, ReadOptions, check_name};
/// let options = ReadOptions::default();
/// assert!(check_name("layer.0.weight", &options).is_ok());
/// assert!(check_name("", &options).is_ok());
/// assert_eq!(check_name("a\0b", &options).unwrap_err().kind(), ErrorKind::BadName);
/// ```
///
/// # Errors
/// [`ErrorKind::BadName`] when the name is invalid.
pub fn check_name(name: &str, options: &ReadOptions) -> Result<(), Error> {
    let limit = options.limits.name_bytes;
    if name.len() as u64 > limit {
        let error = Error::new(ErrorKind::BadName, "the name is too long");
        return Err(error
            .expected(format_args!("at most {limit} bytes, the limit"))
            .found(name.len()));
    }
    match name.bytes().position(|byte| byte == 0) {
        Some(at) if !options.lenient => {
            let error = Error::new(ErrorKind::BadName, "the name has a zero byte");
            Err(error.expected("none").found(format_args!("one at its byte {at}")))
        }
        _ => Ok(()),
    }
}
