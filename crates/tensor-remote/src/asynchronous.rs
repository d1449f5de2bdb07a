//! Asynchronous sources, and a blocking adapter for them.

use std::{
    io::{self, Read},
    ops::Range,
    pin::Pin,
    sync::Arc,
};

use bytes::Bytes;
use fmt_core::{Error, source_error};
use tokio::runtime::Handle;

use crate::{IndexPlace, RemoteSource, source::Fetch};

/// The future of a read. It returns exactly the bytes of the requested range.
pub type ReadFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send + 'a>>;

/// An asynchronous source of a file's bytes. Each read is one range request; [`RemoteSource::from_async`]
/// coalesces reads and caches parts.
///
/// ```
/// use std::{io, ops::Range, sync::Arc};
/// use bytes::Bytes;
/// use fmt_core::{ByteSource, ReadOptions, TensorReader};
/// use fmt_safetensors::SafetensorsReader;
/// use tensor_remote::{AsyncByteSource, ReadFuture, RemoteSource};
///
/// /// A file kept by some service.
/// struct Kept(Bytes);
///
/// impl AsyncByteSource for Kept {
///     fn len(&self) -> u64 {
///         self.0.len() as u64
///     }
///
///     fn read(&self, range: Range<u64>) -> ReadFuture<'_> {
///         Box::pin(async move {
///             tokio::task::yield_now().await;
///             ByteSource::read(&self.0, range)
///         })
///     }
/// }
///
/// # #[tokio::main(flavor = "multi_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file = b"\x40\0\0\0\0\0\0\0{\"w\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}          123";
/// # let file = [&(file.len() as u64 - 11).to_le_bytes(), &file[8..]].concat();
/// let source = Arc::new(Kept(Bytes::from(file)));
/// let runtime = tokio::runtime::Handle::current();
/// // Readers block, so they belong on a separate thread.
/// let tensor = tokio::task::spawn_blocking(move || {
///     let source = RemoteSource::from_async(source, "model.safetensors", runtime)?;
///     SafetensorsReader::open(Arc::new(source), &ReadOptions::default())?.tensor(0)
/// });
/// assert_eq!(tensor.await??.bytes(), "123");
/// # Ok(())
/// # }
/// ```
pub trait AsyncByteSource: Send + Sync {
    /// Returns the number of bytes, which is constant.
    fn len(&self) -> u64;

    /// Returns whether the file is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads exactly the bytes in `range`, which is not empty and lies inside the file.
    ///
    /// # Errors
    /// When reading fails or the file became shorter (`UnexpectedEof`).
    fn read(&self, range: Range<u64>) -> ReadFuture<'_>;
}

impl RemoteSource {
    /// Adapts an asynchronous source to blocking reads, on a runtime driven by other threads. Immediately
    /// reads the part of the file that contains the index. The extension of `name`, the file's name,
    /// determines where the index is expected.
    ///
    /// # Errors
    /// When the read of the index fails.
    ///
    /// # Panics
    /// When this function or any read is called inside a future: use `tokio::task::spawn_blocking`.
    pub fn from_async(source: Arc<dyn AsyncByteSource>, name: &str, runtime: Handle) -> Result<Self, Error> {
        let (len, place) = (source.len(), IndexPlace::of_name(name));
        let fetch = BlockingFetch { source, runtime };
        let mut parts = Vec::new();
        for range in [Some(0..place.front().min(len)), place.end(len)]
            .into_iter()
            .flatten()
        {
            let start = range.start;
            let mut bytes = Vec::new();
            let read = fetch.pieces(range).read_to_end(&mut bytes);
            read.map_err(|error| source_error(error, start, "the first part of the file"))?;
            parts.push((start, bytes.into()));
        }
        Ok(Self::new(len, name.to_owned(), Box::new(fetch), parts))
    }
}

struct BlockingFetch {
    source: Arc<dyn AsyncByteSource>,
    runtime: Handle,
}

impl BlockingFetch {
    fn pieces(&self, range: Range<u64>) -> Pieces {
        Pieces {
            source: Arc::clone(&self.source),
            runtime: self.runtime.clone(),
            rest: range,
            piece: Bytes::new(),
        }
    }
}

impl Fetch for BlockingFetch {
    fn fetch(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(self.pieces(range)))
    }
}

/// Reads a range in consecutive pieces.
struct Pieces {
    source: Arc<dyn AsyncByteSource>,
    runtime: Handle,
    rest: Range<u64>,
    piece: Bytes,
}

/// Maximum size of one read, and thereby of the buffer.
const LARGEST_PIECE: u64 = 8 << 20;

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() && !self.rest.is_empty() {
            let end = self.rest.end.min(self.rest.start + LARGEST_PIECE);
            let range = self.rest.start..end;
            self.piece = self.runtime.block_on(self.source.read(range.clone()))?;
            if self.piece.len() as u64 != range.end - range.start {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.rest.start = end;
        }
        let len = out.len().min(self.piece.len());
        out[..len].copy_from_slice(&self.piece.split_to(len));
        Ok(len)
    }
}
