//! TensorBuffers.

mod editor;
mod footer;
mod format;
#[expect(
    unsafe_code,
    unreachable_pub,
    elided_lifetimes_in_paths,
    explicit_outlives_requirements,
    unused_extern_crates,
    clippy::all,
    clippy::doc_markdown,
    clippy::unwrap_used,
    reason = "written by the FlatBuffers compiler"
)]
mod generated;
mod in_place;
mod index;
mod layout;
mod ledger;
mod lints;
mod names;
mod reader;
mod writer;

pub use editor::TbufEditor;
pub use format::TensorBuffers;
pub use in_place::{InPlaceWriter, recover};
pub use layout::tensor_id;
pub use reader::TbufReader;
pub use writer::{TbufWriter, WriteOptions};
