//! Outputs of programs: files that appear when complete, and devices and pipes.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
};

use crate::{AtomicFile, Error, OutputOptions};

/// An output at a path, which may be a file, a device or a pipe.
///
/// If the path is unused, or leads to a regular file (directly or by a link), the output is an
/// [`AtomicFile`]. Devices and pipes are written directly, and what was written cannot be undone.
///
/// ```
/// use std::{io::Write, path::Path};
/// use fmt_core::OutputFile;
///
/// let mut out = OutputFile::create(Path::new("/dev/null"), &Default::default())?;
/// out.write_all(b"nobody reads this")?;
/// out.persist()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum OutputFile {
    /// A file that appears when it is complete.
    Atomic(Box<AtomicFile>),
    /// A device or a pipe.
    Through(BufWriter<File>),
}

impl OutputFile {
    /// Opens the output at `path` for writing.
    ///
    /// # Errors
    /// The errors of [`AtomicFile::create_with`].
    pub fn create(path: &Path, options: &OutputOptions) -> Result<Self, Error> {
        // `fs::metadata` follows links.
        let is_special = fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
        if !is_special {
            return AtomicFile::create_with(path, options).map(|file| Self::Atomic(Box::new(file)));
        }
        let file = File::options().write(true).open(path);
        let file = file.map_err(|error| Error::io("the target cannot be opened for writing", error))?;
        Ok(Self::Through(BufWriter::with_capacity(1 << 20, file)))
    }

    /// Moves the complete file to its path, or flushes to the device or pipe.
    ///
    /// # Errors
    /// The errors of [`AtomicFile::persist`].
    pub fn persist(self) -> Result<(), Error> {
        match self {
            Self::Atomic(file) => file.persist(),
            Self::Through(mut out) => out
                .flush()
                .map_err(|error| Error::io("the target cannot be written", error)),
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Atomic(file) => file.write(bytes),
            Self::Through(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Atomic(file) => file.flush(),
            Self::Through(out) => out.flush(),
        }
    }
}
