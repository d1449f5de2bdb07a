//! JSON with tensors: a cursor that parses into typed buffers, and a writer that prints from them.
//!
//! Bodies without tensors (metadata, errors) go through `serde_json`; see `rest`.

mod cursor;
mod data;
mod number;
mod print;
mod run;
mod write;

pub(crate) use cursor::Cursor;
pub(crate) use data::{Room, read_data};
pub(crate) use number::Number;
pub(crate) use write::{Writer, answer_too_large, write_data, write_text, write_texts};

use crate::{DataType, ServiceError};

/// Creates the error for a datatype without a JSON form.
fn no_json_form(datatype: DataType) -> ServiceError {
    ServiceError::invalid(format!(
        "{datatype} elements have no JSON form; send and request them as binary data"
    ))
}
