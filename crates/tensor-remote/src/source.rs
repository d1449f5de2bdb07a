//! Coalesces sequential reads into few requests, and caches index parts.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, Read},
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use fmt_core::ByteSource;
use parking_lot::{Mutex, MutexGuard};

/// Fetches ranges of a file.
pub(crate) trait Fetch: Send + Sync {
    /// Requests a nonempty range inside the file. The reader yields exactly the bytes of the range, or an
    /// error.
    fn fetch(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>>;
}

/// A file read by ranges over the network.
///
/// - Parts up to 256 KiB are cached (16 MiB in total), so an index is fetched once. Requests cover at least
///   32 KiB, because a round trip takes longer than their transfer.
/// - Larger parts are not cached: they are read directly from a response, which stays open for the next
///   sequential read. Up to four responses are open at a time.
/// - A part announced with [`ByteSource::will_read`] is fetched with one request. Otherwise sequential reads
///   increase the read-ahead, up to 64 MiB.
///
/// Several threads can read concurrently, each from its own response.
pub struct RemoteSource {
    len: u64,
    name: String,
    fetch: Box<dyn Fetch>,
    state: Mutex<State>,
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// Network usage of a source since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Number of range requests, without redirects and retries.
    pub requests: u64,
    /// Number of bytes of the file that were received.
    pub bytes: u64,
}

#[derive(Default)]
struct State {
    /// Cached small parts, in LRU order.
    blocks: VecDeque<Block>,
    /// Open responses, in LRU order.
    answers: VecDeque<OpenResponse>,
    /// End offsets of fetched parts, each with the read-ahead used for the part.
    ends: VecDeque<(u64, u64)>,
    /// Announced ranges, to be read sequentially.
    announced: VecDeque<Range<u64>>,
}

struct Block {
    start: u64,
    bytes: Bytes,
    /// Whether the block is never evicted. The parts fetched first are pinned, because they contain the index
    /// or the magic number.
    is_pinned: bool,
}

struct OpenResponse {
    at: u64,
    end: u64,
    reader: Box<dyn Read + Send>,
}

/// Minimum request size.
const LEAST: u64 = 32 << 10;
/// Maximum size of a cached part.
const LARGEST_BLOCK: u64 = 256 << 10;
/// Maximum number of cached parts.
const BLOCKS: usize = 64;
/// Maximum number of open responses.
const ANSWERS: usize = 4;
/// Maximum read-ahead.
const LARGEST_WINDOW: u64 = 64 << 20;
/// Maximum gap in bytes that is skipped within an open response; for a larger gap, a new request is sent.
const GAP: u64 = 64 << 10;
/// Maximum number of remembered ends and announcements.
const REMEMBERED: usize = 16;
/// Initial allocation step; memory is allocated in growing steps as data arrives.
const FIRST_STEP: u64 = 1 << 20;

impl RemoteSource {
    /// Creates a source of `len` bytes; `parts` are the parts that are already fetched, with their offsets.
    pub(crate) fn new(len: u64, name: String, fetch: Box<dyn Fetch>, parts: Vec<(u64, Bytes)>) -> Self {
        let mut state = State::default();
        let (mut requests, mut received) = (0, 0);
        for (start, bytes) in parts {
            let len = bytes.len() as u64;
            (requests, received) = (requests + 1, received + len);
            // If the index continues after this part, it is probably about twice as long, so the next request
            // reads ahead by this part's length.
            state.ends.push_back((start + len, len / 2));
            state.blocks.push_back(Block {
                start,
                bytes,
                is_pinned: true,
            });
        }
        Self {
            len,
            name,
            fetch,
            state: Mutex::new(state),
            requests: AtomicU64::new(requests),
            bytes: AtomicU64::new(received),
        }
    }

    /// Returns the file's name: the part after the last slash.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the network usage so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic {
            requests: self.requests.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Fills `out` from offset `at`. The caller will continue to read up to the offset `wanted`.
    fn fill(&self, mut at: u64, mut out: &mut [u8], wanted: u64) -> io::Result<()> {
        while !out.is_empty() {
            let found = self.state().find(at);
            let taken = match found {
                Available::Kept(bytes) => {
                    let len = bytes.len().min(out.len());
                    out[..len].copy_from_slice(&bytes[..len]);
                    len
                }
                Available::Arriving(answer) => self.take_from(answer, at, out)?,
                Available::Nothing => self.ask(at, out, wanted)?,
            };
            at += taken as u64;
            out = &mut out[taken..];
        }
        Ok(())
    }

    /// Requests data from offset `at`, and reads its beginning into `out`. Returns the number of bytes read.
    fn ask(&self, at: u64, out: &mut [u8], wanted: u64) -> io::Result<usize> {
        let end = self.state().plan(at, wanted.max(at + out.len() as u64), self.len);
        self.requests.fetch_add(1, Relaxed);
        let mut reader = self.fetch.fetch(at..end)?;
        if end - at > LARGEST_BLOCK {
            return self.take_from(OpenResponse { at, end, reader }, at, out);
        }
        let mut bytes = vec![0; (end - at) as usize];
        reader.read_exact(&mut bytes)?;
        self.bytes.fetch_add(end - at, Relaxed);
        let len = bytes.len().min(out.len());
        out[..len].copy_from_slice(&bytes[..len]);
        let is_pinned = false;
        self.state().keep(Block {
            start: at,
            bytes: bytes.into(),
            is_pinned,
        });
        Ok(len)
    }

    /// Fills `out` from a response, and keeps the response for the next sequential read.
    fn take_from(&self, mut answer: OpenResponse, at: u64, out: &mut [u8]) -> io::Result<usize> {
        let skipped = io::copy(&mut (&mut answer.reader).take(at - answer.at), &mut io::sink())?;
        let len = usize::try_from(answer.end - at).map_or(out.len(), |left| left.min(out.len()));
        answer.reader.read_exact(&mut out[..len])?;
        self.bytes.fetch_add(skipped + len as u64, Relaxed);
        answer.at = at + len as u64;
        if answer.at < answer.end {
            let mut state = self.state();
            state.answers.push_back(answer);
            if state.answers.len() > ANSWERS {
                state.answers.pop_front();
            }
        }
        Ok(len)
    }
}

/// Data at an offset that needs no new request.
enum Available {
    Kept(Bytes),
    Arriving(OpenResponse),
    Nothing,
}

impl State {
    fn find(&mut self, at: u64) -> Available {
        if let Some(bytes) = self.kept(at) {
            return Available::Kept(bytes);
        }
        self.take_answer(at)
            .map_or(Available::Nothing, Available::Arriving)
    }

    /// Returns cached bytes from offset `at`.
    fn kept(&mut self, at: u64) -> Option<Bytes> {
        let has = |block: &Block| block.start <= at && at - block.start < block.bytes.len() as u64;
        let place = self.blocks.iter().position(has)?;
        let block = self.blocks.remove(place)?;
        let bytes = block.bytes.slice((at - block.start) as usize..);
        self.blocks.push_back(block);
        Some(bytes)
    }

    fn keep(&mut self, block: Block) {
        self.blocks.push_back(block);
        if self.blocks.len() > BLOCKS
            && let Some(oldest) = self.blocks.iter().position(|block| !block.is_pinned)
        {
            self.blocks.remove(oldest);
        }
    }

    /// Takes the open response from which the bytes at `at` can be read next.
    fn take_answer(&mut self, at: u64) -> Option<OpenResponse> {
        let near = |answer: &OpenResponse| answer.at <= at && at - answer.at <= GAP && at < answer.end;
        let place = self.answers.iter().position(near)?;
        self.answers.remove(place)
    }

    /// Returns the offset at which the request that starts at `at` ends.
    fn plan(&mut self, at: u64, wanted: u64, len: u64) -> u64 {
        let follows = |(end, _): &(u64, u64)| *end <= at && at - *end <= GAP;
        let before = self.ends.iter().position(follows);
        let window = match before.and_then(|place| self.ends.remove(place)) {
            Some((_, window)) => (2 * window).min(LARGEST_WINDOW),
            None => LEAST,
        };
        // An announced range is fetched as a whole when a byte of it is requested, so it can be forgotten.
        let announced = self.announced.iter().position(|range| range.contains(&at));
        let announced = announced.and_then(|place| self.announced.remove(place));
        let announced = announced.map_or(0, |range| range.end);
        let mut end = wanted.max(announced).max(at.saturating_add(window)).min(len);
        // If the index is longer than guessed, only its beginning is missing, so the request ends where the
        // cached end begins.
        let pinned = self.blocks.iter().filter(|block| block.is_pinned);
        for start in pinned.map(|block| block.start) {
            if (at + 1..end).contains(&start) {
                end = start;
            }
        }
        self.ends.push_back((end, window));
        if self.ends.len() > REMEMBERED {
            self.ends.pop_front();
        }
        end
    }
}

impl ByteSource for RemoteSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        let len = range.end.checked_sub(range.start);
        let len = len.filter(|_| range.end <= self.len);
        let len = len.ok_or(io::ErrorKind::UnexpectedEof)?;
        if len == 0 {
            return Ok(Bytes::new());
        }
        let kept = self.state().kept(range.start);
        if let Some(bytes) = kept.filter(|bytes| bytes.len() as u64 >= len) {
            return Ok(bytes.slice(..len as usize));
        }
        // The length comes from the server and is not trusted: the buffer is at most twice as large as the
        // received data.
        let mut buffer = Vec::new();
        while (buffer.len() as u64) < len {
            let had = buffer.len();
            let step = (had as u64).max(FIRST_STEP).min(len - had as u64);
            let step = usize::try_from(step).map_err(|_| io::ErrorKind::OutOfMemory)?;
            buffer.try_reserve(step)?;
            buffer.resize(had + step, 0);
            self.fill(range.start + had as u64, &mut buffer[had..], range.end)?;
        }
        Ok(buffer.into())
    }

    fn read_into(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64);
        let end = end.filter(|end| *end <= self.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.fill(offset, out, end)
    }

    fn will_read(&self, range: Range<u64>) {
        let mut state = self.state();
        state.announced.push_back(range);
        if state.announced.len() > REMEMBERED {
            state.announced.pop_front();
        }
    }
}

impl fmt::Debug for RemoteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSource")
            .field("name", &self.name)
            .field("len", &self.len)
            .field("traffic", &self.traffic())
            .finish_non_exhaustive()
    }
}
