//! Read-ahead on a separate thread, so that reading overlaps with hashing, conversion or writing.

use std::{sync::mpsc, thread};

use fmt_core::{Error, TENSOR_STREAM_UNIT, TensorReader, TensorStream};

/// Bytes per read.
const PIECE: usize = 1 << 20;
/// Maximum number of pieces read ahead.
const AHEAD: usize = 3;
/// Tensors up to this size are read without another thread.
const WORTH_A_THREAD: u64 = 4 * PIECE as u64;

/// Passes a dense tensor's bytes to `see` in order, row-major and little-endian, in pieces of 1 MiB. For a
/// large tensor another thread reads up to four pieces ahead.
///
/// ```
/// # use fmt_core::{Format, TensorReader, Plan, PlannedEntry};
/// # use tensor_core::{Bytes, DType, Shape, TensorSpec};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let format = tensor_files::format("safetensors").ok_or("no such format")?;
/// # let spec = TensorSpec::new(DType::U8, Shape::vector(3))?;
/// # let plan = Plan { entries: vec![PlannedEntry::dense("weights", spec)], ..Plan::default() };
/// # let mut file = Vec::new();
/// # let mut writer = format.create(Box::new(&mut file), plan)?;
/// # writer.write(&[1, 2, 3])?;
/// # writer.finish()?;
/// # let reader = format.open(std::sync::Arc::new(Bytes::from(file)), &Default::default())?;
/// let mut sum = 0;
/// tensor_files::read_ahead(&*reader, 0, &mut |bytes| {
///     sum += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
///     Ok(())
/// })?;
/// assert_eq!(sum, 6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors of [`TensorReader::stream`] and of `see`; if both fail, the error at the lower offset.
pub fn read_ahead(
    reader: &dyn TensorReader,
    index: usize,
    see: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let len = reader.entries()[index].byte_len().unwrap_or(u64::MAX);
    let piece = usize::try_from(len).map_or(PIECE, |len| len.clamp(1, PIECE));
    let piece = piece.next_multiple_of(TENSOR_STREAM_UNIT);
    let mut stream = reader.stream(index)?;
    if len > WORTH_A_THREAD {
        let tried = thread::scope(|scope| {
            let (full, arriving) = mpsc::sync_channel(AHEAD);
            let (empty, spare) = mpsc::channel();
            let reading = move || read_all(&mut *stream, piece, &full, &spare);
            thread::Builder::new().spawn_scoped(scope, reading).ok()?;
            // If `show_all` returns early, the reading thread's next send fails, and that thread ends.
            Some(show_all(&arriving, &empty, see))
        });
        match tried {
            Some(outcome) => return outcome,
            // If no thread can be started, the calling thread reads.
            None => stream = reader.stream(index)?,
        }
    }
    let mut piece = vec![0; piece];
    loop {
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            len => see(&piece[..len])?,
        }
    }
}

/// A buffer and the length of its filled part, or a read error.
type Piece = Result<(Vec<u8>, usize), Error>;

fn read_all(
    stream: &mut dyn TensorStream,
    piece: usize,
    full: &mpsc::SyncSender<Piece>,
    spare: &mpsc::Receiver<Vec<u8>>,
) {
    loop {
        let mut buffer = spare.try_recv().unwrap_or_else(|_| vec![0; piece]);
        let read = match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(len) => Ok((buffer, len)),
            Err(error) => Err(error),
        };
        let is_last = read.is_err();
        if full.send(read).is_err() || is_last {
            return;
        }
    }
}

fn show_all(
    arriving: &mpsc::Receiver<Piece>,
    empty: &mpsc::Sender<Vec<u8>>,
    see: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    for piece in arriving {
        let (piece, len) = piece?;
        see(&piece[..len])?;
        // If the reading thread has ended, sending fails, and the buffer is no longer needed.
        let _ = empty.send(piece);
    }
    Ok(())
}
