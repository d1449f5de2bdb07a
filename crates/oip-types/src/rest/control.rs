//! Request bodies without tensors, for the repository, logging and shared memory extensions.

use tensor_core::QuotedName;

use super::tensor::{missing, read_parameters, set_once};
use crate::{
    LogSetting, LogSettings, Parameters, RequestLimits, ServiceError, SharedMemoryRegion,
    json::{Cursor, Number},
};

/// Decodes a repository index request and returns whether it asks for ready models only. The body may be
/// empty.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) with the problem and its position.
pub fn decode_index_request(body: &[u8], limits: &RequestLimits) -> Result<bool, ServiceError> {
    let mut ready = None;
    object(body, |cursor, member| match member {
        "ready" => set_once(
            &mut ready,
            member,
            read_bool(cursor).map_err(|error| error.within(member))?,
        ),
        _ => cursor.skip(limits.json_depth),
    })?;
    Ok(ready.unwrap_or(false))
}

/// Decodes the parameters of a load or unload request. The body may be empty.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) with the problem and its position.
pub fn decode_parameters(body: &[u8], limits: &RequestLimits) -> Result<Parameters, ServiceError> {
    let mut parameters = None;
    object(body, |cursor, member| match member {
        "parameters" => set_once(&mut parameters, member, read_parameters(cursor, limits)?),
        _ => cursor.skip(limits.json_depth),
    })?;
    Ok(parameters.unwrap_or_default())
}

/// Decodes changes to log settings.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) with the problem and its position.
pub fn decode_log_settings(body: &[u8], limits: &RequestLimits) -> Result<LogSettings, ServiceError> {
    let mut settings = LogSettings::new();
    object(body, |cursor, name| {
        limits.check_parameters(settings.len() + 1)?;
        let within = |error: ServiceError| error.within(format_args!("log setting {}", QuotedName(name)));
        let value = match cursor.peek() {
            Some(b'"') => LogSetting::String(cursor.string().map_err(within)?.into_owned()),
            Some(b'-' | b'0'..=b'9') => {
                let number = cursor.number().map_err(within)?;
                let level = number.to_integer().and_then(|level| u32::try_from(level).ok());
                LogSetting::Uint32(level.ok_or_else(|| within(unfit(&number, "a level of 32 bits")))?)
            }
            _ => LogSetting::Bool(read_bool(cursor).map_err(within)?),
        };
        match settings.insert(name.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err(within(ServiceError::invalid("it is given more than once"))),
        }
    })?;
    Ok(settings)
}

/// Decodes a request to register the shared memory region `name`.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) with the problem and its position.
pub fn decode_region(
    name: &str,
    body: &[u8],
    limits: &RequestLimits,
) -> Result<SharedMemoryRegion, ServiceError> {
    let (mut key, mut offset, mut byte_size) = (None, None, None);
    object(body, |cursor, member| match member {
        "key" => set_once(
            &mut key,
            member,
            cursor
                .string()
                .map_err(|error| error.within(member))?
                .into_owned(),
        ),
        "offset" => set_once(&mut offset, member, read_bytes(cursor, member)?),
        "byte_size" => set_once(&mut byte_size, member, read_bytes(cursor, member)?),
        _ => cursor.skip(limits.json_depth),
    })?;
    Ok(SharedMemoryRegion {
        name: name.to_owned(),
        key: key.ok_or_else(|| missing("key"))?,
        offset: offset.unwrap_or(0),
        byte_size: byte_size.ok_or_else(|| missing("byte_size"))?,
    })
}

/// Reads an object member by member; an empty body counts as an empty object.
fn object(
    body: &[u8],
    mut read: impl FnMut(&mut Cursor<'_>, &str) -> Result<(), ServiceError>,
) -> Result<(), ServiceError> {
    if body.trim_ascii().is_empty() {
        return Ok(());
    }
    let mut cursor = Cursor::new(body)?;
    cursor.object(|cursor, member| read(cursor, &member))?;
    cursor.finish()
}

fn read_bool(cursor: &mut Cursor<'_>) -> Result<bool, ServiceError> {
    match () {
        () if cursor.eat_word("true") => Ok(true),
        () if cursor.eat_word("false") => Ok(false),
        () => Err(cursor.unexpected("true or false")),
    }
}

fn read_bytes(cursor: &mut Cursor<'_>, member: &str) -> Result<u64, ServiceError> {
    let number = cursor.number().map_err(|error| error.within(member))?;
    let bytes = number.to_integer().and_then(|bytes| u64::try_from(bytes).ok());
    bytes.ok_or_else(|| unfit(&number, "a number of bytes").within(member))
}

fn unfit(number: &Number<'_>, expected: &str) -> ServiceError {
    let shown: String = number.text().chars().take(40).collect();
    ServiceError::invalid(format!("expected {expected}, found {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParameterValue;

    #[test]
    fn bodies_are_read_and_may_be_empty() {
        let limits = RequestLimits::default();
        for (body, ready) in [
            ("", false),
            (" \n", false),
            ("{}", false),
            (r#"{"ready":true,"x":[1]}"#, true),
        ] {
            assert_eq!(
                decode_index_request(body.as_bytes(), &limits).unwrap(),
                ready,
                "{body}"
            );
        }
        let parameters =
            decode_parameters(br#"{"parameters":{"unload_dependents":false}}"#, &limits).unwrap();
        assert_eq!(parameters["unload_dependents"], ParameterValue::Bool(false));
        assert!(decode_parameters(b"", &limits).unwrap().is_empty());
        let settings = decode_log_settings(br#"{"a":true,"b":3,"c":"x"}"#, &limits).unwrap();
        assert_eq!(settings["b"], LogSetting::Uint32(3));
        let region = decode_region("r", br#"{"key":"/k","byte_size":8}"#, &limits).unwrap();
        assert_eq!(
            (
                region.name.as_str(),
                region.key.as_str(),
                region.offset,
                region.byte_size
            ),
            ("r", "/k", 0, 8)
        );
    }

    #[test]
    fn wrong_bodies_say_where() {
        let limits = RequestLimits::default();
        type Decode = fn(&[u8], &RequestLimits) -> Result<(), ServiceError>;
        let index: Decode = |body, limits| decode_index_request(body, limits).map(drop);
        let parameters: Decode = |body, limits| decode_parameters(body, limits).map(drop);
        let settings: Decode = |body, limits| decode_log_settings(body, limits).map(drop);
        let region: Decode = |body, limits| decode_region("r", body, limits).map(drop);
        for (decode, body, part) in [
            (index, r#"{"ready":1}"#, "ready: "),
            (index, "[]", "expected"),
            (index, r#"{"ready":true"#, "expected"),
            (index, r#"{"ready":true,"ready":true}"#, "more than once"),
            (index, r#"{"ready":true}}"#, "expected"),
            (
                parameters,
                r#"{"parameters":{"config":{}}}"#,
                "parameter 'config'",
            ),
            (settings, r#"{"a":null}"#, "log setting 'a'"),
            (
                settings,
                r#"{"a":-1}"#,
                "log setting 'a': expected a level of 32 bits, found -1",
            ),
            (settings, r#"{"a":1.5}"#, "found 1.5"),
            (settings, r#"{"a":1,"a":1}"#, "more than once"),
            (region, "{}", "member \"key\" is missing"),
            (region, r#"{"key":"k"}"#, "member \"byte_size\" is missing"),
            (
                region,
                r#"{"key":"k","byte_size":-1}"#,
                "byte_size: expected a number of bytes, found -1",
            ),
            (region, r#"{"key":1,"byte_size":1}"#, "key: "),
        ] {
            let error = decode(body.as_bytes(), &limits).unwrap_err();
            assert!(error.message().contains(part), "{body}: {error}");
        }
    }

    /// Nesting is also bounded in ignored members.
    #[test]
    fn deep_bodies_are_refused() {
        for depth in [65, 129, 250_000] {
            let body = format!("{{\"x\":{}", "[".repeat(depth));
            assert!(decode_index_request(body.as_bytes(), &RequestLimits::default()).is_err());
            assert!(decode_parameters(body.as_bytes(), &RequestLimits::default()).is_err());
        }
    }
}
