//! The connections with regions of a client.

use hyper::client::conn::http1::SendRequest;

use crate::{
    http::{body::Parts, connection::Connection},
    shared_memory::pool::Pool,
};

/// Connections with regions, of both ways that a client has.
#[derive(Debug, Default)]
pub(in crate::http) struct Connections {
    pub(super) driven: Pool<SendRequest<Parts>>,
    pub(super) here: Pool<Connection>,
}
