//! Tests shared by all format crates (feature `testing`).
//!
//! Untrusted files are opened and read on a small stack, and every allocated byte is counted. Reading from
//! memory and from a file must give the same result.

pub mod bench;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use bytes::Bytes;

use crate::{Error, ErrorKind, FileSource, Format, Layout, ReadOptions, TensorReader};

/// Stack size for opening and reading a file, in bytes.
const STACK: usize = 256 << 10;
/// Time limit for reading a file. A reader that takes longer counts as hanging, and the test fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes that may be allocated regardless of the file's size.
pub const BASE_ALLOWANCE: u64 = 64 << 10;

/// The contents read from a file: the name of each tensor with its bytes or the error.
pub type Contents = Vec<(String, Result<Vec<u8>, ErrorKind>)>;

/// Opens a file and reads it completely. Returns the name of each tensor with its bytes or the error.
///
/// # Errors
/// The error of opening.
///
/// # Panics
/// When opening or reading panics, overflows a small stack, hangs, or gives a different result for the same
/// bytes in a file on disk. When, in addition to [`BASE_ALLOWANCE`], opening allocates more than twice the
/// size of the file, or reading allocates more than eight times the total size of the file and its decoded
/// tensors.
pub fn open_hostile(
    format: &'static dyn Format,
    bytes: &[u8],
    options: &ReadOptions,
) -> Result<Contents, Error> {
    let (bytes, options) = (Bytes::copy_from_slice(bytes), options.clone());
    let (sender, verdict) = mpsc::channel();
    let opening = move || {
        let mut opened = Err(Error::new(ErrorKind::Io, "not opened"));
        let allocated =
            allocation_counter::measure(|| opened = format.open(Arc::new(bytes.clone()), &options));
        let allowance = BASE_ALLOWANCE + 2 * bytes.len() as u64;
        let most = allocated.bytes_max;
        assert!(
            most <= allowance,
            "opening {} bytes allocated {most}, more than {allowance}",
            bytes.len()
        );
        let from_disk = open_from_disk(format, &bytes, &options)
            .map(drop)
            .map_err(|error| error.kind());
        let from_memory = opened.as_ref().map(drop).map_err(Error::kind);
        assert_eq!(from_memory, from_disk, "memory and file are judged differently");
        let read = opened.map(|reader| {
            let mut contents = Vec::new();
            let decoded: u64 = reader
                .entries()
                .iter()
                .filter_map(crate::Entry::byte_len)
                .map(|len| len.min(options.limits.decoded_bytes))
                .fold(0, u64::saturating_add);
            let allocated = allocation_counter::measure(|| contents = read_everything(&*reader));
            // The contents and the data being read are both in memory, and each way of reading may hold a
            // copy.
            let allowance = BASE_ALLOWANCE + 8 * (bytes.len() as u64).saturating_add(decoded);
            let most = allocated.bytes_max;
            assert!(
                most <= allowance,
                "reading {} bytes allocated {most}, more than {allowance}",
                bytes.len()
            );
            contents
        });
        // After the timeout, the receiver is dropped.
        let _ = sender.send(read);
    };
    let thread = thread::Builder::new()
        .stack_size(STACK)
        .spawn(opening)
        .expect("the system gives a thread");
    match verdict.recv_timeout(PATIENCE) {
        Ok(verdict) => verdict,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the file hangs its reader"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            thread.join().expect("the reader does not panic");
            unreachable!("a reader that did not panic sent its verdict")
        }
    }
}

fn open_from_disk(
    format: &dyn Format,
    bytes: &[u8],
    options: &ReadOptions,
) -> Result<Box<dyn TensorReader>, Error> {
    let path = env::temp_dir().join(format!(
        "fmt-core-{}-{:?}",
        std::process::id(),
        thread::current().id()
    ));
    fs::write(&path, bytes).expect("the temporary directory can be written");
    let opened = FileSource::open(&path).and_then(|source| format.open(Arc::new(source), options));
    let _ = fs::remove_file(&path);
    opened
}

/// Calls `open`, which opens a file whose index has `index_len` bytes, and checks how much memory `open`
/// allocates.
///
/// # Panics
/// When opening allocates more than 10 bytes for each byte of the index in addition to [`BASE_ALLOWANCE`].
pub fn check_opening(what: &str, index_len: usize, open: impl FnOnce()) {
    const MOST: u64 = 10;
    let allocated = allocation_counter::measure(open);
    let most = BASE_ALLOWANCE + MOST * index_len as u64;
    assert!(
        allocated.bytes_max <= most,
        "{what}: {} bytes for an index of {index_len}",
        allocated.bytes_max
    );
}

/// Reads every tensor in every supported way and compares the results.
///
/// # Panics
/// When two ways of reading the same tensor give different bytes, or one fails where another does not.
pub fn read_everything(reader: &dyn TensorReader) -> Contents {
    let lints = reader.lints();
    assert!(lints.is_ok(), "lints: {lints:?}");
    (0..reader.entries().len())
        .map(|index| (reader.entries()[index].name.clone(), read_one(reader, index)))
        .collect()
}

/// Returns the bytes or the error of a stream that is read in small pieces.
fn read_stream(reader: &dyn TensorReader, index: usize) -> Result<Vec<u8>, Error> {
    let (mut stream, mut piece) = (reader.stream(index)?, [0; 4096]);
    let mut bytes = Vec::new();
    loop {
        match stream.read(&mut piece)? {
            0 => return Ok(bytes),
            len => bytes.extend_from_slice(&piece[..len]),
        }
    }
}

fn read_one(reader: &dyn TensorReader, index: usize) -> Result<Vec<u8>, ErrorKind> {
    let entry = &reader.entries()[index];
    let _ = reader.verify(index);
    if let Layout::Coo { .. } = entry.layout {
        assert_eq!(
            reader.tensor(index).map_err(|error| error.kind()),
            Err(ErrorKind::Unsupported)
        );
        let sparse = reader.sparse(index).map_err(|error| error.kind())?;
        return Ok([&sparse.indices().bytes()[..], sparse.values().bytes()].concat());
    }
    assert!(reader.sparse(index).is_err());
    let tensor = reader.tensor(index).map_err(|error| error.kind());
    if let (Ok(tensor), Ok(streamed)) = (&tensor, read_stream(reader, index)) {
        assert!(tensor.bytes() == &streamed, "a stream gives other bytes");
    }
    let Ok(tensor) = tensor else {
        let len = entry
            .byte_len()
            .and_then(|len| usize::try_from(len).ok())
            .filter(|len| *len <= 1 << 20);
        if let Some(len) = len {
            assert!(
                reader.read_into(index, &mut vec![0; len]).is_err(),
                "read_into gives what tensor() refuses"
            );
        }
        return tensor.map(|tensor| tensor.bytes().to_vec());
    };
    assert!(entry.unsupported.is_none());
    assert_eq!(Some(tensor.spec()), entry.spec().as_ref());
    let mut buffer = vec![0xa5; tensor.bytes().len()];
    reader
        .read_into(index, &mut buffer)
        .map_err(|error| error.kind())?;
    assert_eq!(buffer, tensor.bytes()[..], "read_into and tensor() differ");
    let mut short = vec![0; buffer.len() + 1];
    assert_eq!(
        reader.read_into(index, &mut short).map_err(|error| error.kind()),
        Err(ErrorKind::SizeMismatch)
    );
    if let Some(&rows) = tensor.shape().dims().first() {
        for range in [0..rows, 0..rows / 2, rows / 3..rows, rows..rows] {
            let part = reader.rows(index, range.clone()).map_err(|error| error.kind())?;
            assert_eq!(Ok(part), tensor.rows(range), "rows() and tensor() differ");
        }
        assert_eq!(
            reader
                .rows(index, 0..rows.saturating_add(1))
                .map_err(|error| error.kind())
                .err(),
            (rows < u64::MAX).then_some(ErrorKind::OutOfBounds)
        );
    }
    Ok(tensor.bytes().to_vec())
}

/// A corpus file and its expected result.
#[derive(Clone, Debug)]
pub struct CorpusFile {
    /// The file's name, which begins with the id of its test case.
    pub name: String,
    /// The file's bytes.
    pub bytes: Vec<u8>,
    /// Whether the file is accepted, or how it is rejected.
    pub verdict: Verdict,
}

/// The expected result for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The file opens and can be read, except for unsupported tensors.
    Accept,
    /// The file is rejected with this kind of error, because it breaks this rule of the format's description.
    Reject(ErrorKind, &'static str),
    /// The file opens, but reading one of its tensors fails with this kind of error.
    Damaged(ErrorKind),
}

/// The files of a corpus, while they are collected.
#[derive(Debug, Default)]
pub struct CorpusCases(Vec<CorpusFile>);

impl CorpusCases {
    /// Adds a file that is accepted.
    pub fn accept(&mut self, name: &str, bytes: Vec<u8>) {
        self.push(name, bytes, Verdict::Accept);
    }

    /// Adds a file that is rejected because it breaks `rule`.
    pub fn reject(&mut self, name: &str, kind: ErrorKind, rule: &'static str, bytes: Vec<u8>) {
        self.push(name, bytes, Verdict::Reject(kind, rule));
    }

    /// Adds a file with a tensor that cannot be read.
    pub fn damaged(&mut self, name: &str, kind: ErrorKind, bytes: Vec<u8>) {
        self.push(name, bytes, Verdict::Damaged(kind));
    }

    fn push(&mut self, name: &str, bytes: Vec<u8>, verdict: Verdict) {
        self.0.push(CorpusFile {
            name: name.to_owned(),
            bytes,
            verdict,
        });
    }

    /// Returns the files, in the order in which they were added.
    #[must_use]
    pub fn into_files(self) -> Vec<CorpusFile> {
        self.0
    }
}

/// Checks a format's corpus against the files in `folder` (`accept/`, `reject/`, and `damaged/` if present)
/// and against the reader.
///
/// With `UPDATE_CORPUS` in the environment, which `cargo xtask corpus` sets, the files are written instead of
/// compared.
///
/// # Panics
/// When files and cases differ, a case has no unique name, or a result differs from the expected one.
pub fn check_corpus(format: &'static dyn Format, folder: &Path, files: &[CorpusFile]) {
    let wanted = corpus_paths(format, folder, files);
    if env::var_os("UPDATE_CORPUS").is_some() {
        write_corpus(folder, &wanted);
    }
    assert!(
        stored_files(folder).iter().eq(wanted.keys()),
        "files and cases differ; `cargo xtask corpus` writes the files"
    );
    let mut wrong = Vec::new();
    for (path, file) in wanted {
        let bytes = fs::read(&path).expect("the corpus can be read");
        assert!(
            bytes == file.bytes,
            "{} is stale; `cargo xtask corpus` writes it",
            path.display()
        );
        let verdict = verdict_of(format, file);
        if verdict != file.verdict {
            wrong.push(format!(
                "{}: {verdict:?} instead of {:?}",
                file.name, file.verdict
            ));
        }
    }
    assert!(wrong.is_empty(), "wrong verdicts:\n{}", wrong.join("\n"));
}

/// Maps the path of each case's file to the case.
fn corpus_paths<'f>(
    format: &dyn Format,
    folder: &Path,
    files: &'f [CorpusFile],
) -> BTreeMap<PathBuf, &'f CorpusFile> {
    let mut wanted = BTreeMap::new();
    for file in files {
        let side = match file.verdict {
            Verdict::Accept => "accept",
            Verdict::Reject(..) => "reject",
            Verdict::Damaged(_) => "damaged",
        };
        let path = folder
            .join(side)
            .join(format!("{}.{}", file.name, format.extensions()[0]));
        assert!(
            wanted.insert(path, file).is_none(),
            "two cases are called {}",
            file.name
        );
    }
    wanted
}

/// Replaces the files in `folder` with those of the cases.
fn write_corpus(folder: &Path, wanted: &BTreeMap<PathBuf, &CorpusFile>) {
    let _ = fs::remove_dir_all(folder);
    for (path, file) in wanted {
        fs::create_dir_all(path.parent().unwrap_or(folder)).expect("the corpus can be written");
        fs::write(path, &file.bytes).expect("the corpus can be written");
    }
}

/// Returns the sorted paths of all files in `folder`.
fn stored_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for side in ["accept", "damaged", "reject"] {
        let entries = match fs::read_dir(folder.join(side)) {
            Err(_) if side == "damaged" => continue,
            entries => entries.expect("the corpus is there; `cargo xtask corpus` writes it"),
        };
        found.extend(entries.map(|entry| entry.expect("the corpus can be read").path()));
    }
    found.sort();
    found
}

/// Opens a case's bytes, reads all tensors and returns the result.
fn verdict_of(format: &'static dyn Format, file: &CorpusFile) -> Verdict {
    match open_hostile(format, &file.bytes, &ReadOptions::default()) {
        Ok(contents) => {
            let failures = contents.into_iter().filter_map(|(_, read)| read.err());
            let mut failures = failures.filter(|kind| *kind != ErrorKind::Unsupported);
            failures.next().map_or(Verdict::Accept, Verdict::Damaged)
        }
        Err(error) => {
            let rule = error
                .broken_rule()
                .unwrap_or_else(|| panic!("{}: no rule in: {error}", file.name));
            Verdict::Reject(error.kind(), rule)
        }
    }
}

/// Opens many files and reads them completely, like [`open_hostile`], but only from memory and on a single
/// thread, so that a hundred thousand files take seconds. Returns the number of files that opened.
///
/// # Panics
/// When opening or reading a file panics or overflows a small stack. When opening a file allocates more than
/// `base_allowance` (normally [`BASE_ALLOWANCE`]) plus twice the size of the file. When all files together
/// take longer than a minute.
pub fn open_many_hostile(
    format: &'static dyn Format,
    files: impl IntoIterator<Item = Vec<u8>> + Send + 'static,
    options: &ReadOptions,
    base_allowance: u64,
) -> usize {
    const PATIENCE: Duration = Duration::from_secs(60);
    let (options, (sender, opened)) = (options.clone(), mpsc::channel());
    let opening = move || {
        let mut count = 0;
        for bytes in files {
            let allowance = base_allowance + 2 * bytes.len() as u64;
            let source = Arc::new(Bytes::from(bytes));
            let mut opened = None;
            let allocated =
                allocation_counter::measure(|| opened = Some(format.open(source.clone(), &options)));
            let most = allocated.bytes_max;
            assert!(
                most <= allowance,
                "opening {source:?} allocated {most}, more than {allowance}"
            );
            if let Some(Ok(reader)) = opened {
                read_everything(&*reader);
                count += 1;
            }
        }
        // After the timeout, the receiver is dropped.
        let _ = sender.send(count);
    };
    let thread = thread::Builder::new()
        .stack_size(STACK)
        .spawn(opening)
        .expect("the system gives a thread");
    match opened.recv_timeout(PATIENCE) {
        Ok(count) => count,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the files hang their reader"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            thread.join().expect("the reader does not panic");
            unreachable!("a reader that did not panic sent its count")
        }
    }
}

/// Returns `count` mutants of a file, deterministically: first every truncation and every flipped bit, then
/// mixtures of flips, overwritten words, and removed and repeated pieces.
pub fn mutants(base: &[u8], count: usize) -> impl Iterator<Item = Vec<u8>> + '_ {
    let truncations = (0..base.len()).map(|len| base[..len].to_vec());
    let flips = (0..base.len() * 8).map(|bit| {
        let mut mutant = base.to_vec();
        mutant[bit / 8] ^= 1 << (bit % 8);
        mutant
    });
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ base.len() as u64);
    let mixtures = std::iter::repeat_with(move || mixture(base, &mut random));
    truncations.chain(flips).chain(mixtures).take(count)
}

/// Integers that readers often mishandle.
const WORDS: [u64; 12] = [
    0,
    1,
    7,
    8,
    63,
    64,
    1 << 31,
    (1 << 32) - 1,
    1 << 61,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

fn mixture(base: &[u8], random: &mut Random) -> Vec<u8> {
    let mut mutant = base.to_vec();
    for _ in 0..=random.below(3) {
        if mutant.is_empty() {
            break;
        }
        let at = random.below(mutant.len() as u64) as usize;
        match random.below(6) {
            0 => mutant[at] ^= 1 << random.below(8),
            1 => mutant[at] = random.next() as u8,
            2 | 3 => {
                let mut word = WORDS[random.below(WORDS.len() as u64) as usize];
                if random.below(3) == 0 {
                    word = base.len() as u64 + random.below(17) - 8;
                }
                let width = [1, 2, 4, 8][random.below(4) as usize].min(mutant.len() - at);
                mutant[at..at + width].copy_from_slice(&word.to_le_bytes()[..width]);
            }
            4 => {
                let end = (at + 1 + random.below(16) as usize).min(mutant.len());
                mutant.drain(at..end);
            }
            _ => {
                let end = (at + 1 + random.below(16) as usize).min(mutant.len());
                let piece = mutant[at..end].to_vec();
                mutant.splice(at..at, piece);
            }
        }
    }
    mutant
}

/// A deterministic xorshift generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
