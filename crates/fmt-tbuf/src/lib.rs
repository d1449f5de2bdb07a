//! TensorBuffers.

mod footer;
mod format;
#[expect(
    unsafe_code,
    unreachable_pub,
    elided_lifetimes_in_paths,
    unused_extern_crates,
    missing_docs,
    clippy::all,
    reason = "written by the FlatBuffers compiler"
)]
mod generated;
mod index;
mod layout;
mod ledger;
mod lints;
mod names;
mod reader;
mod writer;

pub use format::TensorBuffers;
pub use layout::tensor_id;
pub use reader::TbufReader;
pub use writer::{TbufWriter, WriteOptions};
