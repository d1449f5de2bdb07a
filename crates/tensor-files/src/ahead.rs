//! Reading on a thread of its own, so that it goes on while what was read is hashed, converted or written.

use std::{sync::mpsc, thread};

use fmt_core::{Error, TENSOR_STREAM_UNIT, TensorReader, TensorStream};

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;
/// Pieces that are read ahead, at most.
const AHEAD: usize = 3;
/// Tensors up to this are not worth a thread.
const WORTH_A_THREAD: u64 = 4 * PIECE as u64;

/// Shows the bytes of a tensor that is not sparse from front to back, row-major and little-endian, in pieces of 1 MiB. Of a
/// large tensor up to four pieces are read ahead by another thread.
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
/// As [`TensorReader::stream`], and what `see` fails with: the first one by the order of the bytes.
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
            // When this ends early, the other thread finds nobody to send to.
            Some(show_all(&arriving, &empty, see))
        });
        match tried {
            Some(outcome) => return outcome,
            // Without another thread this one does it all.
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

/// A buffer and how much of it is filled.
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
        // When the other thread has ended, the memory is not needed any more.
        let _ = empty.send(piece);
    }
    Ok(())
}
