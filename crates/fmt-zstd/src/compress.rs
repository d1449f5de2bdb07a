//! Writes Zstandard blobs: several threads compress the frames of a large tensor, which are written in order.

use std::{
    collections::VecDeque,
    io::Write,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use fmt_core::{Error, ErrorKind};
use zstd::zstd_safe::{CCtx, CParameter};

use crate::{Compression, frames::SeekTable, parallel::default_threads, rules::TABLES, sink::HashingSink};

/// Compresses tensors one by one into frames. The output depends only on the bytes and the options.
///
/// ```
/// use fmt_zstd::{Compression, Compressor, HashingSink};
///
/// let mut sink = HashingSink::new(Vec::new(), 0);
/// let mut compressor = Compressor::new()?;
/// compressor.begin(&Compression::default(), 1 << 20)?;
/// for piece in vec![0; 1 << 20].chunks(1000) {
///     compressor.write(piece, &mut sink)?;
/// }
/// compressor.finish(&mut sink)?;
/// assert!(sink.position() < 200);
/// # Ok::<(), fmt_core::Error>(())
/// ```
pub struct Compressor {
    encoder: Encoder,
    /// Input of the next frame, collected from pieces.
    gathered: Vec<u8>,
    compressed: Vec<u8>,
    /// Input size of a frame of the current tensor.
    frame_bytes: usize,
    level: i32,
    /// Maximum number of frames in flight; 0 if the calling thread compresses them.
    most_under_way: usize,
    table: SeekTable,
    crew: Option<Crew>,
    /// Frames being compressed by other threads, in order.
    under_way: VecDeque<Receiver<Frame>>,
    /// Written frames, whose buffers are reused.
    spare: Vec<Frame>,
}

/// A frame that is passed to a compression thread and back.
#[derive(Default)]
struct Frame {
    bytes: Vec<u8>,
    level: i32,
    compressed: Vec<u8>,
    outcome: Option<Result<(), Error>>,
}

/// Maximum size of plain and compressed bytes in flight.
const MOST_UNDER_WAY: usize = 256 << 20;

impl Compressor {
    /// Creates a compressor, which starts threads only when a tensor needs them.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] when memory is exhausted.
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            encoder: Encoder::new()?,
            gathered: Vec::new(),
            compressed: Vec::new(),
            frame_bytes: 0,
            level: 0,
            most_under_way: 0,
            table: SeekTable::default(),
            crew: None,
            under_way: VecDeque::new(),
            spare: Vec::new(),
        })
    }

    /// Begins a tensor of `len` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for frames that do not fit the address space.
    pub fn begin(&mut self, options: &Compression, len: u64) -> Result<(), Error> {
        let is_whole = len <= Compression::WHOLE.max(options.frame_bytes);
        let frame_bytes = if is_whole { len } else { options.frame_bytes };
        self.frame_bytes = usize::try_from(frame_bytes)
            .map_err(|_| Error::new(ErrorKind::TooLarge, "the bytes of a frame").found(frame_bytes))?;
        self.table.frames.clear();
        self.gathered.clear();
        // After an error, frames of the previous tensor may still be in flight.
        self.under_way.clear();
        self.level = options.level;
        let threads = match options.threads {
            0 => default_threads(),
            threads => threads,
        };
        // Up to twice as many frames as threads are in flight, so that no thread waits for a frame.
        let most = (2 * threads).min(MOST_UNDER_WAY / (2 * self.frame_bytes.max(1)));
        self.most_under_way = if is_whole || threads == 1 || most < 2 {
            0
        } else {
            most
        };
        if self.most_under_way > 0 {
            let crew = self.crew.take().filter(|crew| crew.threads == threads);
            self.crew = crew.or_else(|| Crew::start(threads));
        }
        Ok(())
    }

    /// Compresses the tensor's next bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when writing fails; [`ErrorKind::TooLarge`] when memory is exhausted.
    pub fn write<W: Write>(&mut self, mut bytes: &[u8], sink: &mut HashingSink<W>) -> Result<(), Error> {
        while !bytes.is_empty() {
            let missing = self.frame_bytes - self.gathered.len();
            let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
            bytes = rest;
            let is_alone = self.most_under_way == 0;
            if is_alone && self.gathered.is_empty() && taken.len() == self.frame_bytes {
                self.frame(taken, sink)?;
                continue;
            }
            self.gathered.extend_from_slice(taken);
            if self.gathered.len() == self.frame_bytes {
                self.gathered_frame(sink)?;
            }
        }
        Ok(())
    }

    /// Writes the last frame, and the table of frames if there is more than one.
    ///
    /// # Errors
    /// The errors of [`Compressor::write`].
    pub fn finish<W: Write>(&mut self, sink: &mut HashingSink<W>) -> Result<(), Error> {
        // An empty tensor is stored as an empty frame.
        let has_none = self.table.frames.is_empty() && self.under_way.is_empty();
        if !self.gathered.is_empty() || has_none {
            self.gathered_frame(sink)?;
        }
        while !self.under_way.is_empty() {
            self.collect(sink)?;
        }
        if self.table.frames.len() > 1 {
            sink.write(&self.table.encode())?;
        }
        Ok(())
    }

    /// Compresses the collected bytes into a frame, on the calling thread or another one.
    fn gathered_frame<W: Write>(&mut self, sink: &mut HashingSink<W>) -> Result<(), Error> {
        let mut gathered = std::mem::take(&mut self.gathered);
        if self.most_under_way > 0
            && let Some(crew) = &self.crew
        {
            let mut frame = self.spare.pop().unwrap_or_default();
            // The next input is collected in the buffer of an earlier frame.
            std::mem::swap(&mut frame.bytes, &mut gathered);
            gathered.clear();
            self.gathered = gathered;
            frame.level = self.level;
            self.under_way.push_back(crew.hand_over(frame));
            if self.under_way.len() >= self.most_under_way {
                self.collect(sink)?;
            }
            return Ok(());
        }
        let written = self.frame(&gathered, sink);
        gathered.clear();
        self.gathered = gathered;
        written
    }

    /// Waits for the first frame in flight, and writes it.
    fn collect<W: Write>(&mut self, sink: &mut HashingSink<W>) -> Result<(), Error> {
        let Some(first) = self.under_way.pop_front() else {
            return Ok(());
        };
        let ended = || Error::new(ErrorKind::Io, "a thread that compresses has ended");
        let mut frame = first.recv().map_err(|_| ended())?;
        frame.outcome.take().unwrap_or_else(|| Err(ended()))?;
        self.table.push(frame.compressed.len(), frame.bytes.len());
        sink.write(&frame.compressed)?;
        self.spare.push(frame);
        Ok(())
    }

    fn frame<W: Write>(&mut self, bytes: &[u8], sink: &mut HashingSink<W>) -> Result<(), Error> {
        self.encoder.encode(bytes, self.level, &mut self.compressed)?;
        self.table.push(self.compressed.len(), bytes.len());
        sink.write(&self.compressed)
    }
}

impl SeekTable {
    fn push(&mut self, stored: usize, decoded: usize) {
        // Frames of a table contain at most 1 GiB, whose compressed bound is below 2^32; a frame without a
        // table may be larger.
        let word = |len| u32::try_from(len).unwrap_or(u32::MAX);
        self.frames.push((word(stored), word(decoded)));
    }
}

/// Compresses bytes into one frame. The result depends only on the bytes, not on earlier frames.
struct Encoder(CCtx<'static>);

impl Encoder {
    fn new() -> Result<Self, Error> {
        let context = CCtx::try_create();
        let context =
            context.ok_or_else(|| Error::new(ErrorKind::TooLarge, "not enough memory for a compressor"))?;
        Ok(Self(context))
    }

    fn encode(&mut self, bytes: &[u8], level: i32, out: &mut Vec<u8>) -> Result<(), Error> {
        let parameters = [
            CParameter::CompressionLevel(level),
            CParameter::ContentSizeFlag(true),
            CParameter::ChecksumFlag(true),
        ];
        for parameter in parameters {
            self.0.set_parameter(parameter).map_err(failed)?;
        }
        out.clear();
        out.reserve(zstd::zstd_safe::compress_bound(bytes.len()));
        self.0.compress2(out, bytes).map_err(failed)?;
        Ok(())
    }
}

/// Compression threads, which end when the value is dropped.
struct Crew {
    threads: usize,
    jobs: Sender<(Frame, Sender<Frame>)>,
}

impl Crew {
    /// Starts the threads; `None` if no thread could be started.
    fn start(threads: usize) -> Option<Self> {
        let (jobs, waiting) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let started = (0..threads).filter(|_| {
            let waiting = Arc::clone(&waiting);
            let worker = thread::Builder::new().name("compress".to_owned());
            worker.spawn(move || work(&waiting)).is_ok()
        });
        (started.count() > 0).then_some(Self { threads, jobs })
    }

    fn hand_over(&self, frame: Frame) -> Receiver<Frame> {
        let (done, receiver) = mpsc::channel();
        // If all threads have ended, the receiver of the frame reports the error.
        let _ = self.jobs.send((frame, done));
        receiver
    }
}

fn work(waiting: &Mutex<Receiver<(Frame, Sender<Frame>)>>) {
    let mut encoder = None;
    loop {
        let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((mut frame, done)) = job else { return };
        let made = match &mut encoder {
            Some(encoder) => Ok(encoder),
            none => Encoder::new().map(|made| none.insert(made)),
        };
        let made = made.and_then(|encoder| encoder.encode(&frame.bytes, frame.level, &mut frame.compressed));
        frame.outcome = Some(made);
        // Sending fails if the compressor has discarded the frame after an error.
        let _ = done.send(frame);
    }
}

fn failed(code: usize) -> Error {
    let what = format!("compressing failed: {}", zstd::zstd_safe::get_error_name(code));
    Error::new(ErrorKind::TooLarge, what).rule(TABLES)
}
