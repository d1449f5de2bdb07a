//! Constructors of readers by path and from memory, shared by all formats.

/// Generates a reader's `from_path` and `from_bytes` from its `open(Arc<dyn ByteSource>, &ReadOptions)`.
///
/// ```
/// use std::sync::Arc;
/// use fmt_core::{ByteSource, Error, ReadOptions};
///
/// struct Length(u64);
///
/// impl Length {
///     fn open(source: Arc<dyn ByteSource>, _: &ReadOptions) -> Result<Self, Error> {
///         Ok(Self(source.len()))
///     }
/// }
///
/// fmt_core::open_by_path_and_bytes!(Length);
/// assert_eq!(Length::from_bytes("abc")?.0, 3);
/// # Ok::<(), Error>(())
/// ```
#[macro_export]
macro_rules! open_by_path_and_bytes {
    ($reader:ident) => {
        impl $reader {
            /// Opens a file on disk. Its tensors are read on demand.
            ///
            /// # Errors
            /// The errors of [`FileSource::open`]($crate::FileSource::open) and `open`.
            pub fn from_path(path: impl AsRef<::std::path::Path>) -> Result<Self, $crate::Error> {
                let source = $crate::FileSource::open(path.as_ref())?;
                Self::open(
                    ::std::sync::Arc::new(source),
                    &$crate::ReadOptions::default(),
                )
            }

            /// Opens a file in memory, including a mapping created by `tensor-mmap`. Unencoded tensors become
            /// slices of that memory.
            ///
            /// # Errors
            /// The errors of `open`.
            pub fn from_bytes(bytes: impl Into<$crate::__Bytes>) -> Result<Self, $crate::Error> {
                let bytes: $crate::__Bytes = bytes.into();
                Self::open(
                    ::std::sync::Arc::new(bytes),
                    &$crate::ReadOptions::default(),
                )
            }
        }
    };
}
