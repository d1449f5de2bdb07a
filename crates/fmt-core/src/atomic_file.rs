use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read, Seek, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{Error, ErrorKind};

/// A file that appears under its name only when it is complete.
///
/// Bytes go to a temporary file beside the target. [`AtomicFile::publish`] brings them to the disk, renames the file and
/// brings the folder to the disk; until then whatever was there before is untouched. Dropped without that, the temporary
/// file is removed. One that a killed process left behind is removed by the next writer to the same target.
///
/// A target that is a symbolic link is replaced itself; what it leads to stays as it is. A new file replaces an old one
/// with the old one's permissions, never wider ones.
///
/// ```
/// use std::io::Write;
/// use fmt_core::AtomicFile;
///
/// # let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("weights.zt");
/// let mut file = AtomicFile::create(&path).unwrap();
/// file.write_all(b"complete").unwrap();
/// assert!(!path.exists());
/// file.publish().unwrap();
/// assert_eq!(std::fs::read(&path).unwrap(), b"complete");
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    /// `None` only while it is being published.
    file: Option<BufWriter<File>>,
    temporary: PathBuf,
    target: PathBuf,
    is_published: bool,
}

impl AtomicFile {
    /// Bytes gathered before the system is asked to write them.
    const BUFFER: usize = 1 << 20;

    /// Begins a file that will be `target`.
    ///
    /// # Errors
    /// [`ErrorKind::NotAFile`] when the target is a folder; [`ErrorKind::Io`] when the temporary file cannot be made.
    pub fn create(target: &Path) -> Result<Self, Error> {
        let existing = fs::symlink_metadata(target).ok();
        if existing.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(Error::new(ErrorKind::NotAFile, "the target")
                .expected("a file")
                .found("a folder"));
        }
        let name = target
            .file_name()
            .ok_or_else(|| Error::new(ErrorKind::BadName, "the target has no file name"))?;
        sweep(target);
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let mut temporary_name = name.to_owned();
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        temporary_name.push(format!(".tmp-{}-{count}", process::id()));
        let temporary = target.with_file_name(temporary_name);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary);
        let file =
            file.map_err(|error| Error::io("the temporary file beside the target cannot be made", error))?;
        let atomic = Self {
            file: Some(BufWriter::with_capacity(Self::BUFFER, file)),
            temporary,
            target: target.to_owned(),
            is_published: false,
        };
        if let Some(existing) = existing.filter(fs::Metadata::is_file) {
            let kept = fs::set_permissions(&atomic.temporary, existing.permissions());
            kept.map_err(|error| Error::io("the target's permissions cannot be kept", error))?;
        }
        Ok(atomic)
    }

    /// Copies the first `len` bytes of a file, in the kernel where the system can: file systems that share blocks
    /// between files copy nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] when the file has fewer bytes; [`ErrorKind::Io`].
    pub fn copy_head(&mut self, from: &File, len: u64) -> Result<(), Error> {
        let copied = self.copy(from, len);
        let copied = copied.map_err(|error| Error::io("the file cannot be copied", error))?;
        if copied != len {
            let error = Error::new(ErrorKind::Changed, "the file to copy became shorter").at(copied);
            return Err(error.expected(len).found(copied));
        }
        Ok(())
    }

    fn copy(&mut self, mut from: &File, len: u64) -> io::Result<u64> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        file.flush()?;
        from.seek(io::SeekFrom::Start(0))?;
        io::copy(&mut from.take(len), file.get_mut())
    }

    /// Makes the file what its name says.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; then the target is what it was, unless the folder itself could not be brought to the disk.
    pub fn publish(mut self) -> Result<(), Error> {
        let buffered = self
            .file
            .take()
            .ok_or_else(|| Error::new(ErrorKind::Io, "the file was published before"))?;
        let file = buffered
            .into_inner()
            .map_err(|error| Error::io("the file cannot be written", error.into_error()))?;
        file.sync_all()
            .map_err(|error| Error::io("the file cannot be brought to the disk", error))?;
        // What closing could complain of was asked just now.
        drop(file);
        fs::rename(&self.temporary, &self.target)
            .map_err(|error| Error::io("the file cannot be renamed", error))?;
        self.is_published = true;
        sync_folder(&self.target)
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.is_published {
            // Nothing more can be done about a file that cannot be removed.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Removes temporary files for this target whose writers live no more.
fn sweep(target: &Path) {
    let (Some(folder), Some(name)) = (target.parent(), target.file_name()) else {
        return;
    };
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let prefix = format!("{}.tmp-", name.to_string_lossy());
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let found = found.to_string_lossy();
        let Some(rest) = found.strip_prefix(&prefix) else {
            continue;
        };
        let pid = rest.split('-').next().and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !is_alive(pid)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether a process lives; where that cannot be told, it is taken to live.
fn is_alive(pid: u32) -> bool {
    pid == process::id() || !Path::new("/proc/self").exists() || Path::new(&format!("/proc/{pid}")).exists()
}

/// Brings to the disk that a name came to be, or went, in the folder of a file.
pub(crate) fn sync_folder(of: &Path) -> Result<(), Error> {
    // Only Unix has folders that can be opened and brought to the disk.
    if cfg!(unix) {
        let folder = of.parent().filter(|folder| !folder.as_os_str().is_empty());
        let synced = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
        synced.map_err(|error| Error::io("the folder cannot be brought to the disk", error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn nothing_is_left_of_a_file_that_is_not_published() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        fs::write(&target, "old").unwrap();
        let mut file = AtomicFile::create(&target).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(names(folder.path()).len(), 2);
        drop(file);
        assert_eq!(names(folder.path()), ["a"]);
        assert_eq!(fs::read(&target).unwrap(), b"old");
    }

    /// WR-01: what a killed writer leaves is swept by the next; what another living one writes is not.
    #[test]
    fn wr_01_leftovers_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        // No process has the largest number there is.
        fs::write(folder.path().join("a.tmp-4294967294-0"), "").unwrap();
        fs::write(folder.path().join("a.tmp-1-0"), "").unwrap();
        fs::write(folder.path().join("ab.tmp-4294967294-0"), "").unwrap();
        AtomicFile::create(&target).unwrap().publish().unwrap();
        assert_eq!(names(folder.path()), ["a", "a.tmp-1-0", "ab.tmp-4294967294-0"]);
    }

    /// WR-04, WR-10: folders, links and permissions.
    #[cfg(unix)]
    #[test]
    fn wr_10_what_stands_in_the_targets_place() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("folder")).unwrap();
        assert_eq!(
            AtomicFile::create(&path("folder")).unwrap_err().kind(),
            ErrorKind::NotAFile
        );

        fs::write(path("private"), "old").unwrap();
        fs::set_permissions(path("private"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(path("private"), path("other name")).unwrap();
        let mut file = AtomicFile::create(&path("private")).unwrap();
        file.write_all(b"new").unwrap();
        file.publish().unwrap();
        assert_eq!(
            fs::metadata(path("private")).unwrap().permissions().mode() & 0o7777,
            0o600
        );
        assert_eq!(fs::read(path("other name")).unwrap(), b"old");

        symlink("private", path("link")).unwrap();
        AtomicFile::create(&path("link")).unwrap().publish().unwrap();
        assert!(fs::symlink_metadata(path("link")).unwrap().is_file());
        assert_eq!(fs::read(path("private")).unwrap(), b"new");
    }

    #[test]
    fn heads_are_copied() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        fs::write(&old, b"0123456789").unwrap();
        let source = File::open(&old).unwrap();
        let mut file = AtomicFile::create(&new).unwrap();
        file.write_all(b"<").unwrap();
        file.copy_head(&source, 4).unwrap();
        file.write_all(b">").unwrap();
        file.publish().unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"<0123>");
        let error = AtomicFile::create(&new)
            .unwrap()
            .copy_head(&source, 11)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
    }

    /// WR-07: two writers to one target: one of the two files, whole.
    #[test]
    fn wr_07_two_writers() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        for _ in 0..200 {
            let writers = [b'x', b'y'].map(|byte| {
                let target = target.clone();
                std::thread::spawn(move || {
                    let mut file = AtomicFile::create(&target).unwrap();
                    file.write_all(&[byte; 1000]).unwrap();
                    file.publish().unwrap();
                })
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            let content = fs::read(&target).unwrap();
            assert!(content == [b'x'; 1000] || content == [b'y'; 1000]);
        }
        assert_eq!(names(folder.path()), ["a"]);
    }

    /// WR-08: a panic on the way.
    #[test]
    fn wr_08_a_panic_removes_the_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        let writing = std::panic::catch_unwind(|| {
            let _file = AtomicFile::create(&target).unwrap();
            panic!("on the way");
        });
        assert!(writing.is_err());
        assert!(names(folder.path()).is_empty());
    }
}
