//! Connections with shared memory regions, over HTTP.

use hyper::client::conn::http1::SendRequest;

use crate::{
    http::{body::Parts, connection::Connection},
    shared_memory::pool::Pool,
};

/// The pools of connections with regions, one for each mode of I/O.
#[derive(Debug, Default)]
pub(in crate::http) struct Connections {
    pub(super) driven: Pool<SendRequest<Parts>>,
    pub(super) here: Pool<Connection>,
}
