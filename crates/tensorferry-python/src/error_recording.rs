//! A reader that records its errors. When one file is read while another is written, the record shows which
//! of the two failed.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use fmt_core::{Entry, Error, Lint, Metadata, TensorReader, TensorStream, Verification};
use tensor_core::{SparseCoo, Tensor};

/// A reader that records its errors.
pub(crate) struct RecordingReader<'r> {
    reader: &'r dyn TensorReader,
    has_failed: AtomicBool,
}

impl<'r> RecordingReader<'r> {
    pub(crate) fn new(reader: &'r dyn TensorReader) -> Self {
        Self {
            reader,
            has_failed: AtomicBool::new(false),
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    fn note<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if outcome.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        outcome
    }
}

impl TensorReader for RecordingReader<'_> {
    fn format(&self) -> &'static str {
        self.reader.format()
    }

    fn entries(&self) -> &[Entry] {
        self.reader.entries()
    }

    fn metadata(&self) -> &Metadata {
        self.reader.metadata()
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.reader.find(name)
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        self.note(self.reader.tensor(index))
    }

    fn load_all(&self, budget: u64) -> Result<Vec<(usize, Tensor)>, Error> {
        self.note(self.reader.load_all(budget))
    }

    fn sparse(&self, index: usize) -> Result<SparseCoo, Error> {
        self.note(self.reader.sparse(index))
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        self.note(self.reader.rows(index, rows))
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        let stream = self.note(self.reader.stream(index))?;
        let noted = self;
        Ok(Box::new(NotedStream { stream, noted }))
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        self.note(self.reader.read_into(index, out))
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        self.note(self.reader.verify(index))
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        self.note(self.reader.lints())
    }

    fn shared(&self) -> Vec<(usize, usize)> {
        self.reader.shared()
    }

    fn foreign_parts(&self) -> &[String] {
        self.reader.foreign_parts()
    }
}

struct NotedStream<'s> {
    stream: Box<dyn TensorStream + 's>,
    noted: &'s RecordingReader<'s>,
}

impl TensorStream for NotedStream<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let read = self.stream.read(out);
        self.noted.note(read)
    }
}
