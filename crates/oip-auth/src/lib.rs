//! Access control for an Open Inference Protocol server: a [`Gate`] in front of its services, for any
//! transport.
//!
//! A [`Guard`] identifies clients by bearer tokens (stored as SHA-256), JSON Web Tokens (RS256, ES256, EdDSA,
//! with a key set in a file or at a URL), or names in client certificates. It reads the identities from a
//! table file, which is reloaded when it changes. Each identity has a set of allowed APIs and models, and a
//! rate limit. [`RestrictedApis`] implements Triton's option of requiring a header with a secret value. A
//! [`Door`] describes which calls an address accepts, so that calls that change the server can have a
//! separate address.
//!
//! ```toml
//! [identities.ci]
//! token-sha256 = ["1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0"]   # printf %s s3cret | sha256sum
//! apis = ["inference", "metadata"]
//! models = ["iris-*"]
//! rate = 100
//!
//! [anonymous]
//! apis = ["health"]
//! ```
//!
//! The gate bases its decision on the [`Route`](oip_service::route::Route) of a request's path, and
//! `oip-http` dispatches on the same route. A layer that rewrites paths must come before the gate, since gRPC
//! services and other routers read the path again. If the decision needs the content, such as the model's
//! name in a gRPC message, the request carries a [`Grant`](oip_service::Grant), which the transport checks.
//! Internal requests, such as the steps of a pipeline, are not checked.
//!
//! ```
//! use std::{
//!     convert::Infallible,
//!     future::{Ready, ready},
//!     task::{Context, Poll},
//! };
//!
//! use http::{Request, Response};
//! use oip_auth::{AcceptedCalls, Door, Gate, Guard, Transport};
//! use tower_service::Service;
//!
//! /// The service behind the gate, such as `oip-http`'s router.
//! #[derive(Clone)]
//! struct Hello;
//!
//! impl Service<Request<()>> for Hello {
//!     type Response = Response<String>;
//!     type Error = Infallible;
//!     type Future = Ready<Result<Response<String>, Infallible>>;
//!
//!     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
//!         Poll::Ready(Ok(()))
//!     }
//!
//!     fn call(&mut self, _: Request<()>) -> Self::Future {
//!         ready(Ok(Response::new("hello".to_owned())))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let door = Door { accepts: AcceptedCalls::NoChanges("use --admin-address"), ..Door::default() };
//! let transport = Transport {
//!     is_grpc: false,
//!     refuse: |error, _| Response::builder().status(error.code().http_status()).body(error.to_string()).unwrap(),
//!     certificate: |_| Vec::new(),
//! };
//! let mut gate = Gate::new(Hello, Guard::open(), door, transport);
//! let read = Request::get("/v2/models/m").body(()).unwrap();
//! assert_eq!(gate.call(read).await.unwrap().status(), 200);
//! let change = Request::post("/v2/repository/models/m/unload").body(()).unwrap();
//! assert_eq!(gate.call(change).await.unwrap().status(), 403);
//! # }
//! ```

mod error;
mod gate;
mod guard;
mod jwt;
mod key;
mod pattern;
mod remote_keys;
mod restricted_apis;
mod table;

pub use error::AuthError;
pub use gate::{Gate, GateFuture, Transport};
pub use guard::{AcceptedCalls, Door, Guard, KeyFetches};
// This type is part of the interfaces of [`RestrictedApis`] and [`Guard`].
pub use oip_service::route::Api;
pub use restricted_apis::{RestrictedApis, check_restricted};
