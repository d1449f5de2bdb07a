//! zTensor 0.1.

mod cbor;
mod checksum;
mod compress;
mod decode;
mod editor;
mod footer;
mod format;
mod frames;
mod index;
mod layout;
mod ledger;
mod lints;
mod names;
mod options;
mod reader;
mod rows;
mod sink;
mod value;
mod writer;

pub use checksum::ChecksumKind;
pub use editor::{ZtensorEditor, recover};
pub use format::Ztensor;
pub use options::{Compression, TensorOptions, WriteOptions};
pub use reader::ZtensorReader;
pub use value::{CborValue, CustomField};
pub use writer::ZtensorWriter;
