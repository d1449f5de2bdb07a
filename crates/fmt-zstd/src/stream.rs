//! Streams of tensors: raw bytes, byte-swapped if necessary, and compressed frames.

use std::{iter::Peekable, ops::Range};

use fmt_core::{ByteSource, Error, ErrorKind, Limits, TensorStream, read_into, read_range};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use crate::{
    checksum::{Claim, Hasher},
    decode::{Decoding, check_ratio, decode_frames, survey},
    frames::{Frame, Piece, Pieces, Window, corrupt},
    hashed::CHUNK,
    rows::read_table,
    rules::{BOOLEANS, FRAMES},
};

/// Streams stored bytes, byte-swapped if necessary, and verifies their checksum.
pub(crate) struct StoredStream<'a> {
    source: &'a dyn ByteSource,
    start: u64,
    rest: Range<u64>,
    /// Width of elements that are byte-swapped, in bytes; 1 if no elements are swapped.
    swapped: usize,
    claim: Option<(Claim, Hasher)>,
}

impl<'a> StoredStream<'a> {
    /// Creates a stream of the bytes in `range`. `swapped` is the width of elements to byte-swap, or 1.
    pub(crate) fn new(
        source: &'a dyn ByteSource,
        range: Range<u64>,
        swapped: usize,
        claim: Option<(Claim, Hasher)>,
    ) -> Self {
        Self {
            source,
            start: range.start,
            rest: range,
            swapped,
            claim,
        }
    }
}

impl TensorStream for StoredStream<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let left = self.rest.end - self.rest.start;
        let len = usize::try_from(left).map_or(out.len(), |left| left.min(out.len()));
        let out = &mut out[..len];
        for chunk in out.chunks_mut(CHUNK) {
            read_into(self.source, self.rest.start, chunk, "the data")?;
            self.rest.start += chunk.len() as u64;
            if let Some((_, hasher)) = &mut self.claim {
                hasher.update(chunk);
            }
            swap(chunk, self.swapped);
        }
        check_at_end(&mut self.claim, self.rest.is_empty(), self.start)?;
        Ok(len)
    }
}

/// Converts elements of `width` bytes from big-endian to little-endian.
pub(crate) fn swap(bytes: &mut [u8], width: usize) {
    fn turn<const N: usize>(bytes: &mut [u8]) {
        let (elements, _) = bytes.as_chunks_mut::<N>();
        elements.iter_mut().for_each(|element| element.reverse());
    }
    match width {
        2 => turn::<2>(bytes),
        4 => turn::<4>(bytes),
        8 => turn::<8>(bytes),
        _ => {}
    }
}

/// Verifies the checksum of decoded bytes, and optionally that booleans are valid.
pub(crate) struct CheckedStream<'a> {
    inner: Box<dyn TensorStream + 'a>,
    left: u64,
    /// The position of the blob in the file.
    start: u64,
    claim: Option<(Claim, Hasher)>,
    is_zero_or_one: bool,
}

impl<'a> CheckedStream<'a> {
    pub(crate) fn new(
        inner: Box<dyn TensorStream + 'a>,
        len: u64,
        start: u64,
        claim: Option<(Claim, Hasher)>,
        is_zero_or_one: bool,
    ) -> Self {
        Self {
            inner,
            left: len,
            start,
            claim,
            is_zero_or_one,
        }
    }
}

impl TensorStream for CheckedStream<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let len = self.inner.read(out)?;
        let read = &out[..len];
        if self.is_zero_or_one {
            check_booleans(read).map_err(|error| error.at(self.start))?;
        }
        if let Some((_, hasher)) = &mut self.claim {
            hasher.update(read);
        }
        self.left = self.left.saturating_sub(len as u64);
        check_at_end(&mut self.claim, self.left == 0, self.start)?;
        Ok(len)
    }
}

/// Checks that booleans are 0 or 1, as some formats require.
pub(crate) fn check_booleans(bytes: &[u8]) -> Result<(), Error> {
    match bytes.iter().find(|byte| **byte > 1) {
        Some(byte) => {
            let error = Error::new(ErrorKind::Corrupt, "an element of type bool").rule(BOOLEANS);
            Err(error.expected("0 or 1").found(byte))
        }
        None => Ok(()),
    }
}

fn check_at_end(claim: &mut Option<(Claim, Hasher)>, is_end: bool, start: u64) -> Result<(), Error> {
    if !is_end {
        return Ok(());
    }
    match claim.take() {
        Some((claim, hasher)) => claim.check(&hasher.finish()).map_err(|error| error.at(start)),
        None => Ok(()),
    }
}

/// Maximum decoded size of a group of small frames that several threads decode together.
const GROUP: u64 = 8 << 20;

/// Streams the content of compressed frames, and verifies the checksum of the compressed bytes.
pub(crate) struct DecodedStream<'a> {
    source: &'a dyn ByteSource,
    limits: Limits,
    threads: usize,
    /// The position of the blob in the file.
    start: u64,
    pieces: Peekable<Pieces<Window<'a>>>,
    claim: Option<(Claim, Hasher)>,
    have_checksums: bool,
    /// Decoded bytes that have not been returned yet.
    ready: Vec<u8>,
    taken: usize,
    /// A frame that is decoded incrementally.
    open: Option<OpenFrame>,
    /// Number of decoded bytes that have not been returned yet.
    left: u64,
    whole: u64,
}

impl<'a> DecodedStream<'a> {
    /// Creates a stream of a blob with `whole` decoded bytes.
    pub(crate) fn new(
        decoding: Decoding<'a>,
        blob: Range<u64>,
        whole: u64,
        claim: Option<(Claim, Hasher)>,
    ) -> Result<Self, Error> {
        let Decoding {
            source,
            limits,
            threads,
        } = decoding;
        check_ratio(blob.end - blob.start, whole, blob.start)?;
        let table = read_table(source, &blob)?;
        let table = table.map(|(table, len)| ((blob.end - len - blob.start) as usize, table));
        let window = || Window::new(source, blob.clone());
        let survey = survey(window(), table.as_ref(), blob.start, whole, limits)?;
        Ok(Self {
            source,
            limits: limits.clone(),
            threads,
            start: blob.start,
            pieces: Pieces::new(window(), blob.start, limits).peekable(),
            claim,
            have_checksums: survey.have_checksums,
            ready: Vec::new(),
            taken: 0,
            open: None,
            left: whole,
            whole,
        })
    }

    /// Returns whether frame checksums cover the whole blob.
    pub(crate) fn have_checksums(&self) -> bool {
        self.have_checksums
    }

    fn in_file(&self, range: &Range<usize>) -> Range<u64> {
        self.start + range.start as u64..self.start + range.end as u64
    }

    fn hash(&mut self, bytes: &[u8]) {
        if let Some((_, hasher)) = &mut self.claim {
            hasher.update(bytes);
        }
    }

    /// Advances to the next frames; returns false at the end.
    fn advance(&mut self) -> Result<bool, Error> {
        let Some(piece) = self.pieces.next().transpose()? else {
            return Ok(false);
        };
        match piece {
            Piece::Skippable(range) => {
                let mut range = self.in_file(&range);
                while self.claim.is_some() && !range.is_empty() {
                    let end = range.end.min(range.start + CHUNK as u64);
                    let bytes = read_range(self.source, range.start..end, "a skippable frame")?;
                    self.hash(&bytes);
                    range.start = end;
                }
            }
            Piece::Frame(frame) if is_small(&frame) => self.decode_group(frame)?,
            Piece::Frame(frame) => self.open = Some(OpenFrame::new(&frame, self.start, &self.limits)?),
        }
        Ok(true)
    }

    /// Decodes the frame `first` and the small frames after it.
    fn decode_group(&mut self, first: Frame) -> Result<(), Error> {
        let mut content = first.content.unwrap_or(0);
        let mut range = first.range.clone();
        let mut frames = vec![first];
        while let Some(Ok(Piece::Frame(next))) = self.pieces.peek()
            && is_small(next)
            && content + next.content.unwrap_or(0) <= GROUP
        {
            content += next.content.unwrap_or(0);
            range.end = next.range.end;
            frames.push(next.clone());
            self.pieces.next();
        }
        let blob = read_range(self.source, self.in_file(&range), "the compressed data")?;
        self.hash(&blob);
        // The buffer has at most [`GROUP`] bytes.
        self.ready.clear();
        self.ready.resize(content as usize, 0);
        self.taken = 0;
        let jobs = frames.iter().map(|frame| {
            (
                frame.range.start - range.start..frame.range.end - range.start,
                frame.content,
            )
        });
        let at = self.start + range.start as u64;
        decode_frames(&blob, at, jobs, &mut self.ready, self.threads)
    }

    fn too_long(&self) -> Error {
        let error = corrupt(self.start, "the compressed data");
        error
            .expected(format_args!("{} bytes", self.whole))
            .found("frames that hold another number")
    }
}

/// Returns whether a frame is decoded as a whole: its declared size and its stored size are small.
fn is_small(frame: &Frame) -> bool {
    let stored = frame.range.len() as u64;
    frame
        .content
        .is_some_and(|content| content <= GROUP && stored <= content + content / 8 + 1024)
}

impl TensorStream for DecodedStream<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let mut written = 0;
        while written < out.len() {
            if self.taken < self.ready.len() {
                let len = (self.ready.len() - self.taken).min(out.len() - written);
                out[written..written + len].copy_from_slice(&self.ready[self.taken..self.taken + len]);
                self.taken += len;
                written += len;
                self.left = self.left.checked_sub(len as u64).ok_or_else(|| self.too_long())?;
            } else if let Some(open) = &mut self.open {
                let hasher = self.claim.as_mut().map(|(_, hasher)| hasher);
                let (len, is_over) = open.read(self.source, &mut out[written..], hasher)?;
                if is_over {
                    self.open = None;
                }
                written += len;
                self.left = self.left.checked_sub(len as u64).ok_or_else(|| self.too_long())?;
            } else if !self.advance()? {
                if self.left > 0 {
                    return Err(self.too_long());
                }
                check_at_end(&mut self.claim, true, self.start)?;
                break;
            }
        }
        // Hashes the bytes after the last data, so that the call that reaches the end also verifies the
        // checksum.
        while self.left == 0 && written > 0 && self.taken == self.ready.len() && self.claim.is_some() {
            if self.open.is_some() || !self.advance()? {
                break;
            }
        }
        if self.left == 0 && self.open.is_none() && self.pieces.peek().is_none() {
            check_at_end(&mut self.claim, true, self.start)?;
        }
        Ok(written)
    }
}

/// A frame that is decoded incrementally: its size is large or not declared.
struct OpenFrame {
    decoder: Decoder<'static>,
    /// The range of the frame's unread bytes in the file.
    rest: Range<u64>,
    at: u64,
    input: Vec<u8>,
    taken: usize,
}

impl OpenFrame {
    fn new(frame: &Frame, start: u64, limits: &Limits) -> Result<Self, Error> {
        let at = start + frame.range.start as u64;
        let content = frame.content.unwrap_or(0);
        let window = 1u64.checked_shl(limits.window_log).unwrap_or(u64::MAX);
        if frame.is_single_segment && content > window {
            let error = Error::new(ErrorKind::TooLarge, "a frame that is decoded in one piece").at(at);
            return Err(error
                .expected(format_args!("at most {window} bytes, the limit for windows"))
                .found(content)
                .rule(FRAMES));
        }
        let no_decoder = || {
            let what = "not enough memory for a decoder";
            Error::new(ErrorKind::TooLarge, what).rule(FRAMES)
        };
        let mut decoder = Decoder::new().map_err(|_| no_decoder())?;
        decoder
            .set_parameter(DParameter::WindowLogMax(limits.window_log.clamp(10, 31)))
            .map_err(|_| no_decoder())?;
        Ok(Self {
            decoder,
            rest: at..start + frame.range.end as u64,
            at,
            input: Vec::new(),
            taken: 0,
        })
    }

    /// Decodes as many bytes as fit into `out`. Returns their number, and whether the frame is complete.
    fn read(
        &mut self,
        source: &dyn ByteSource,
        out: &mut [u8],
        mut hasher: Option<&mut Hasher>,
    ) -> Result<(usize, bool), Error> {
        let mut written = 0;
        loop {
            if self.taken == self.input.len() && !self.rest.is_empty() {
                let end = self.rest.end.min(self.rest.start + CHUNK as u64);
                self.input.resize((end - self.rest.start) as usize, 0);
                read_into(source, self.rest.start, &mut self.input, "the compressed data")?;
                if let Some(hasher) = &mut hasher {
                    hasher.update(&self.input);
                }
                (self.rest.start, self.taken) = (end, 0);
            }
            let mut input = InBuffer::around(&self.input[self.taken..]);
            let mut output = OutBuffer::around(&mut out[written..]);
            let hint = self.decoder.run(&mut input, &mut output);
            let hint = hint.map_err(|error| corrupt(self.at, "a frame cannot be decoded").found(error))?;
            let (read, made) = (input.pos(), output.pos());
            self.taken += read;
            written += made;
            let is_at_end = self.taken == self.input.len() && self.rest.is_empty();
            if hint == 0 {
                if is_at_end {
                    return Ok((written, true));
                }
                return Err(corrupt(self.at, "a frame ends before its last byte"));
            }
            if written == out.len() {
                return Ok((written, false));
            }
            if read == 0 && made == 0 && is_at_end {
                return Err(corrupt(self.at, "a frame is truncated"));
            }
        }
    }
}
