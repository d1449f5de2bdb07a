//! Opens remote files.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, OnceLock},
};

use fmt_core::{ByteSource, Error, ErrorKind, ReadOptions, TensorReader, read_range};
use parking_lot::Mutex;
use tensor_files::{Composite, ShardIndex};
use tensor_remote::{RemoteOptions, RemoteSource};

use crate::{options::Servers, progress};

static SERVERS: OnceLock<Servers> = OnceLock::new();

/// Open files, keyed by location, so that no file is opened twice.
static OPEN: Mutex<Option<HashMap<String, Arc<RemoteSource>>>> = Mutex::new(None);

/// Sets the options for access to file servers, for the whole process.
pub(crate) fn read_with(servers: Servers) {
    // The value is set only once, by `main`.
    let _ = SERVERS.set(servers);
}

/// Returns `path` as a remote location; `None` for a local path.
pub(crate) fn location(path: &Path) -> Option<&str> {
    path.to_str().filter(|path| tensor_remote::is_remote(path))
}

/// Opens a remote file of any format, or a remote index together with its shards, which are next to the
/// index.
pub(crate) fn open_composite(location: &str, options: &ReadOptions) -> Result<Composite<'static>, Error> {
    if !tensor_files::is_index(Path::new(location)) {
        return open(location, options).map(|reader| Composite::new(location, reader));
    }
    let source = source(location)?;
    if source.len() > options.limits.index_bytes {
        let error = Error::new(ErrorKind::TooLarge, "the index of the checkpoint's files");
        return Err(error.found(source.len()));
    }
    let json = progress::waiting(|| read_range(&*source, 0..source.len(), "the index"))?;
    let folder = location.rsplit_once('/').map_or("", |(folder, _)| folder);
    let index = ShardIndex::from_json(&json)?;
    tensor_files::open_shards(&index, options, |file| open(&format!("{folder}/{file}"), options))
}

/// Opens a remote file of any format.
fn open(location: &str, options: &ReadOptions) -> Result<Box<dyn TensorReader>, Error> {
    let source = source(location)?;
    let open = || {
        let head = read_range(&*source, 0..source.len().min(512), "the beginning of the file")?;
        let format = tensor_files::detect(&head, source.len(), Some(source.name().as_ref()))?;
        let opened = format.open(Arc::clone(&source) as Arc<dyn ByteSource>, options);
        opened.map_err(|error| tensor_files::explain(error, format, &head, source.len()))
    };
    progress::waiting(open)
}

/// Returns the size of a remote file in bytes; 0 if the file cannot be opened.
pub(crate) fn len(location: &str) -> u64 {
    source(location).map_or(0, |source| source.len())
}

fn source(location: &str) -> Result<Arc<RemoteSource>, Error> {
    let mut open = OPEN.lock();
    let open = open.get_or_insert_default();
    if let Some(source) = open.get(location) {
        return Ok(Arc::clone(source));
    }
    let servers = SERVERS.get().cloned().unwrap_or_default();
    let mut options = RemoteOptions::default().with_plain_http(servers.allow_http);
    // `SSL_CERT_FILE` is read here: clap would list `--ca` as required in each usage line if it read the
    // variable.
    let named = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty());
    if let Some(path) = servers.ca.or_else(|| named.map(Into::into)) {
        options = options.with_authorities(&path)?;
    }
    let source = progress::waiting(|| tensor_remote::open(location, &options))?;
    let source = Arc::new(source);
    open.insert(location.to_owned(), Arc::clone(&source));
    Ok(source)
}
