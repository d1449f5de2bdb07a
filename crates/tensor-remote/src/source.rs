//! Reads that follow each other become few requests, and index parts that are read twice are fetched once.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, Read},
    ops::Range,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use fmt_core::ByteSource;

/// What can be asked for a range of a file.
pub(crate) trait Fetch: Send + Sync {
    /// Asks for a range, which is not empty and lies inside the file. The reader gives just these bytes, or an error.
    fn fetch(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>>;
}

/// A file that is read by ranges from somewhere far away.
///
/// - Parts up to 256 KiB are kept, 16 MiB of them at most, so an index is fetched once. No request asks for less than
///   32 KiB, since the way there costs more.
/// - Larger parts are not kept: readers take them out of an answer that is still arriving. Reads that go on where the
///   last one ended use the same answer. Up to four answers are open at a time.
/// - A part that is announced with [`ByteSource::will_read`] is one request. Without that, reads that follow each other
///   ask for ever more in advance, up to 64 MiB.
///
/// Several threads can read at once; each then has answers of its own.
pub struct RemoteSource {
    len: u64,
    name: String,
    fetch: Box<dyn Fetch>,
    state: Mutex<State>,
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// What a source has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Ranges that were asked for; redirects and repetitions after failures are not counted.
    pub requests: u64,
    /// Bytes of the file that were received.
    pub bytes: u64,
}

#[derive(Default)]
struct State {
    /// Small parts, the last used ones behind.
    blocks: VecDeque<Block>,
    /// Answers that are arriving, the last used ones behind.
    answers: VecDeque<Answer>,
    /// Where fetched parts ended and how much was asked for in advance there.
    ends: VecDeque<(u64, u64)>,
    /// Parts that will be read from front to back.
    announced: VecDeque<Range<u64>>,
}

struct Block {
    start: u64,
    bytes: Bytes,
    /// The first bytes, which have the index or the format's mark, are kept.
    is_pinned: bool,
}

struct Answer {
    at: u64,
    end: u64,
    reader: Box<dyn Read + Send>,
}

/// The least that is asked for.
const LEAST: u64 = 32 << 10;
/// The largest part that is kept.
const LARGEST_BLOCK: u64 = 256 << 10;
/// Parts that are kept.
const BLOCKS: usize = 64;
/// Answers that are open at a time.
const ANSWERS: usize = 4;
/// The most that is asked for in advance.
const LARGEST_WINDOW: u64 = 64 << 20;
/// Bytes that are passed over rather than asked for anew.
const GAP: u64 = 64 << 10;
/// Ends and announcements that are remembered.
const REMEMBERED: usize = 16;
/// Memory is asked for before it is filled in steps that begin with this.
const FIRST_STEP: u64 = 1 << 20;

impl RemoteSource {
    /// A source of `len` bytes; `parts` are those that are there already, with their places.
    pub(crate) fn new(len: u64, name: String, fetch: Box<dyn Fetch>, parts: Vec<(u64, Bytes)>) -> Self {
        let mut state = State::default();
        let (mut requests, mut received) = (0, 0);
        for (start, bytes) in parts {
            let len = bytes.len() as u64;
            (requests, received) = (requests + 1, received + len);
            // An index that goes on behind it needs as much again at least.
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

    /// The file's name: what is behind the last slash.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What has been asked for and received so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic {
            requests: self.requests.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills `out` with the bytes from `at` on. The caller will want all up to `wanted`.
    fn fill(&self, mut at: u64, mut out: &mut [u8], wanted: u64) -> io::Result<()> {
        while !out.is_empty() {
            let found = self.state().find(at);
            let taken = match found {
                Found::Kept(bytes) => {
                    let len = bytes.len().min(out.len());
                    out[..len].copy_from_slice(&bytes[..len]);
                    len
                }
                Found::Arriving(answer) => self.take_from(answer, at, out)?,
                Found::Nothing => self.ask(at, out, wanted)?,
            };
            at += taken as u64;
            out = &mut out[taken..];
        }
        Ok(())
    }

    /// Asks for what begins at `at`; returns how much of it went into `out`.
    fn ask(&self, at: u64, out: &mut [u8], wanted: u64) -> io::Result<usize> {
        let end = self.state().plan(at, wanted.max(at + out.len() as u64), self.len);
        self.requests.fetch_add(1, Relaxed);
        let mut reader = self.fetch.fetch(at..end)?;
        if end - at > LARGEST_BLOCK {
            return self.take_from(Answer { at, end, reader }, at, out);
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

    /// Fills `out` as far as an answer has it, which is then kept for the read that goes on there.
    fn take_from(&self, mut answer: Answer, at: u64, out: &mut [u8]) -> io::Result<usize> {
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

/// What there is of the bytes from some place on.
enum Found {
    Kept(Bytes),
    Arriving(Answer),
    Nothing,
}

impl State {
    fn find(&mut self, at: u64) -> Found {
        if let Some(bytes) = self.kept(at) {
            return Found::Kept(bytes);
        }
        self.take_answer(at).map_or(Found::Nothing, Found::Arriving)
    }

    /// What is kept from `at` on.
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

    /// An answer that is about to arrive at `at`.
    fn take_answer(&mut self, at: u64) -> Option<Answer> {
        let near = |answer: &Answer| answer.at <= at && at - answer.at <= GAP && at < answer.end;
        let place = self.answers.iter().position(near)?;
        self.answers.remove(place)
    }

    /// Up to where to ask for what begins at `at`.
    fn plan(&mut self, at: u64, wanted: u64, len: u64) -> u64 {
        let follows = |(end, _): &(u64, u64)| *end <= at && at - *end <= GAP;
        let before = self.ends.iter().position(follows);
        let window = match before.and_then(|place| self.ends.remove(place)) {
            Some((_, window)) => (2 * window).min(LARGEST_WINDOW),
            None => LEAST,
        };
        // An announcement is for one reading.
        let announced = self.announced.iter().position(|range| range.contains(&at));
        let announced = announced.and_then(|place| self.announced.remove(place));
        let announced = announced.map_or(0, |range| range.end);
        let mut end = wanted.max(announced).max(at.saturating_add(window)).min(len);
        // An index that is longer than was guessed lacks its beginning only.
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
        // The file's length is what a server says. No more memory is taken than twice what has arrived.
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
