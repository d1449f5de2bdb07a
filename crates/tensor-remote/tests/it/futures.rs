//! Asynchronous sources, read from blocking code.

use std::{io, ops::Range, sync::Arc};

use bytes::Bytes;
use fmt_core::ByteSource;
use tensor_remote::{AsyncByteSource, ReadFuture, RemoteSource};

use crate::server::content;

/// Reads through the source return the file's bytes; errors of the inner source are passed through.
#[test]
fn a_source_of_futures_is_read_like_any_other() {
    struct SlowSource(Bytes);
    impl AsyncByteSource for SlowSource {
        fn len(&self) -> u64 {
            self.0.len() as u64
        }
        fn read(&self, range: Range<u64>) -> ReadFuture<'_> {
            Box::pin(async move {
                tokio::task::yield_now().await;
                match range.start {
                    4_000_000.. => Err(io::ErrorKind::PermissionDenied.into()),
                    _ => ByteSource::read(&self.0, range),
                }
            })
        }
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let bytes = content(5_000_000);
    let handle = runtime.handle().clone();
    let source =
        RemoteSource::from_async(Arc::new(SlowSource(bytes.clone())), "m.safetensors", handle).unwrap();
    assert_eq!(source.read(100..3_000_000).unwrap(), bytes.slice(100..3_000_000));
    let error = source.read(4_200_000..4_900_000).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}
