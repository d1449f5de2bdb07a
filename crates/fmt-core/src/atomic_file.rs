//! Files that appear under their names only when they are complete.

use std::{
    fs::{self, File, Metadata},
    io::{self, BufWriter, Read, Seek, Write},
    path::{Path, PathBuf},
};

use tensor_core::QuotedName;

use crate::{Error, ErrorKind, FileIdentity, FileSource};

/// A file that appears under its name only when it is complete.
///
/// Where the system supports it (Linux), bytes are written to an unnamed file in the target's directory, so
/// that a killed process leaves nothing behind; elsewhere to a file with a random name
/// (`.tensorferry-XXXXXXXXXX.partial`). [`AtomicFile::persist`] syncs the data, renames the file and syncs
/// the directory; until then the old target is untouched. Dropping the value without persisting removes the
/// temporary file. No other file in the directory is ever removed.
///
/// If the target is a symbolic link, the file it points to is replaced. A replacement keeps the old file's
/// owner, group and permissions, and never widens them.
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
/// file.persist().unwrap();
/// assert_eq!(std::fs::read(&path).unwrap(), b"complete");
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    temporary: Temporary,
    /// The file to replace, with all links resolved.
    target: PathBuf,
    /// Metadata of the target when writing began.
    replaced: Option<Metadata>,
    /// Whether to fail if the target has appeared in the meantime.
    is_new: bool,
    /// Identity of the only file that may be replaced; `None` allows any file.
    replaces: Option<FileIdentity>,
}

/// Options for creating an output file.
///
/// ```
/// let mut options = fmt_core::OutputOptions::default();
/// options.is_new = true;
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OutputOptions {
    /// Whether to refuse to replace an existing file.
    pub is_new: bool,
    /// Maximum permission bits (Unix) of a new file, before the umask. A replacement keeps the old file's
    /// permissions.
    pub widest_mode: Option<u32>,
    /// Identity of the only file that may be replaced; `None` allows any file. If the path leads to another
    /// file when the new one is persisted, or the file was modified, the target is left unchanged and the
    /// error is [`ErrorKind::Changed`].
    pub replaces: Option<FileIdentity>,
}

impl OutputOptions {
    /// Returns options for a file that is derived from `source` and replaces it.
    #[must_use]
    pub fn replacing(source: &FileSource) -> Self {
        Self {
            replaces: Some(source.identity().clone()),
            ..Self::default()
        }
    }

    /// Checks that `target` is still the file to replace ([`OutputOptions::replaces`]).
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] when `target` is another file, or was modified.
    pub fn check_replaced(&self, target: &Path) -> Result<(), Error> {
        let identity = self.replaces.as_ref();
        identity.map_or(Ok(()), |identity| identity.check(target))
    }
}

/// The temporary file, before it gets its final name.
#[derive(Debug)]
enum Temporary {
    /// A file without a directory entry: the system removes it when the process ends.
    #[cfg(target_os = "linux")]
    Unnamed(BufWriter<File>),
    /// A file with a random name, removed when it is dropped.
    Named(BufWriter<File>, tempfile::TempPath),
}

impl Temporary {
    fn create(folder: &Path, mode: u32) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        if let Some(file) = unnamed(folder, mode)? {
            return Ok(Self::Unnamed(BufWriter::with_capacity(AtomicFile::BUFFER, file)));
        }
        Self::with_name(folder, mode)
    }

    fn with_name(folder: &Path, mode: u32) -> io::Result<Self> {
        let mut name = name();
        set_mode(&mut name, mode);
        let (file, path) = name.tempfile_in(folder)?.into_parts();
        Ok(Self::Named(
            BufWriter::with_capacity(AtomicFile::BUFFER, file),
            path,
        ))
    }

    fn file(&mut self) -> &mut BufWriter<File> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unnamed(file) => file,
            Self::Named(file, _) => file,
        }
    }

    /// Replaces the flushed buffer with a small one, because many files may be waiting to be renamed.
    fn without_buffer(self) -> Self {
        let small = |file: BufWriter<File>| BufWriter::with_capacity(0, file.into_parts().0);
        match self {
            #[cfg(target_os = "linux")]
            Self::Unnamed(file) => Self::Unnamed(small(file)),
            Self::Named(file, path) => Self::Named(small(file), path),
        }
    }

    /// Gives an unnamed file a random name in `folder`.
    fn named(self, folder: &Path) -> io::Result<tempfile::TempPath> {
        #[cfg(not(target_os = "linux"))]
        let _ = folder;
        match self {
            #[cfg(target_os = "linux")]
            Self::Unnamed(file) => {
                use std::os::fd::AsRawFd;
                let from = format!("/proc/self/fd/{}", file.get_ref().as_raw_fd());
                let link = |to: &Path| {
                    let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
                    Ok(rustix::fs::linkat(
                        rustix::fs::CWD,
                        &from,
                        rustix::fs::CWD,
                        to,
                        follow,
                    )?)
                };
                Ok(name().make_in(folder, link)?.into_temp_path())
            }
            Self::Named(_, path) => Ok(path),
        }
    }
}

/// Creates an unnamed file in `folder`. Returns `None` if the file system does not support unnamed files, or
/// the process could not link the file later.
#[cfg(target_os = "linux")]
fn unnamed(folder: &Path, mode: u32) -> io::Result<Option<File>> {
    use rustix::{
        fs::{Mode, OFlags},
        io::Errno,
    };
    if !Path::new("/proc/self/fd").exists() {
        return Ok(None);
    }
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::from_raw_mode(mode)) {
        Ok(descriptor) => Ok(Some(descriptor.into())),
        // Kernels and file systems that do not support `O_TMPFILE` return these errors.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn name() -> tempfile::Builder<'static, 'static> {
    let mut name = tempfile::Builder::new();
    name.prefix(".tensorferry-").suffix(".partial").rand_bytes(10);
    name
}

/// Sets the permission bits on Unix; does nothing on other systems.
fn set_mode(name: &mut tempfile::Builder<'_, '_>, mode: u32) {
    #[cfg(unix)]
    name.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    #[cfg(not(unix))]
    let _ = (name, mode);
}

impl AtomicFile {
    /// Write buffer size in bytes.
    const BUFFER: usize = 1 << 20;

    /// Permission bits of new files, before the umask.
    const NEW_FILE: u32 = 0o666;

    /// Starts writing a file that will become `target`.
    ///
    /// # Errors
    /// [`ErrorKind::NotAFile`] when the target is a directory, a device or a pipe; [`ErrorKind::Io`] when the
    /// target is a dangling link, or the temporary file cannot be created.
    pub fn create(target: &Path) -> Result<Self, Error> {
        Self::create_with(target, &OutputOptions::default())
    }

    /// Like [`AtomicFile::create`], with options.
    ///
    /// # Errors
    /// The errors of [`AtomicFile::create`]; [`ErrorKind::Exists`] when the target exists and must not be
    /// replaced.
    pub fn create_with(target: &Path, options: &OutputOptions) -> Result<Self, Error> {
        Self::begin(target, options, Temporary::create)
    }

    fn begin(
        target: &Path,
        options: &OutputOptions,
        temporary: impl FnOnce(&Path, u32) -> io::Result<Temporary>,
    ) -> Result<Self, Error> {
        let target = resolved(target)?;
        let replaced = fs::symlink_metadata(&target).ok();
        if let Some(existing) = &replaced {
            if options.is_new {
                return Err(exists());
            }
            if !existing.is_file() {
                let found = if existing.is_dir() {
                    "a directory"
                } else {
                    "a device, a pipe or a socket"
                };
                let error = Error::new(ErrorKind::NotAFile, "the target");
                return Err(error.expected("a file").found(found));
            }
        }
        if target.file_name().is_none() {
            return Err(Error::new(ErrorKind::BadName, "the target has no file name"));
        }
        let widest = options.widest_mode.unwrap_or(Self::NEW_FILE);
        let mode = replaced.as_ref().map_or(Self::NEW_FILE & widest, private_part);
        let folder = folder_of(&target);
        let temporary = temporary(folder, mode).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let what = format!(
                    "the directory {} does not exist",
                    QuotedName(&folder.to_string_lossy())
                );
                Error::io(what, io::Error::new(io::ErrorKind::NotFound, "create it first"))
            }
            _ => Error::io("the temporary file next to the target cannot be created", error),
        })?;
        Ok(Self {
            temporary,
            target,
            replaced,
            is_new: options.is_new,
            replaces: options.replaces.clone(),
        })
    }

    /// Copies the first `len` bytes of a file, in the kernel where possible. File systems with copy-on-write
    /// (reflinks) copy no data.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] when the file has fewer bytes; [`ErrorKind::Io`] when copying fails.
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
        let file = self.temporary.file();
        file.flush()?;
        from.seek(io::SeekFrom::Start(0))?;
        io::copy(&mut from.take(len), file.get_mut())
    }

    /// Moves the complete file to its target path.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] when the target has appeared but must not be replaced; [`ErrorKind::Changed`]
    /// when the target is not [`OutputOptions::replaces`]; [`ErrorKind::Io`] when a system call fails. The
    /// target is then unchanged, unless only syncing the directory failed.
    pub fn persist(self) -> Result<(), Error> {
        self.complete()?.persist()
    }

    /// Syncs the data, so that only the rename remains to be done. Use this method for several files that
    /// belong together: complete all of them before renaming the first one.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when a system call fails; the target is unchanged.
    pub fn complete(mut self) -> Result<CompleteFile, Error> {
        let out = self.temporary.file();
        out.flush()
            .map_err(|error| Error::io("the file cannot be written", error))?;
        let file = out.get_ref();
        if let Some(replaced) = &self.replaced {
            hand_on(replaced, file)
                .map_err(|error| Error::io("the target's permissions cannot be kept", error))?;
        }
        file.sync_all()
            .map_err(|error| Error::io("the file cannot be synced to disk", error))?;
        Ok(CompleteFile(Self {
            temporary: self.temporary.without_buffer(),
            ..self
        }))
    }
}

/// A complete file that is not yet at its target path, from [`AtomicFile::complete`]. Dropping the value
/// removes the file. The value keeps the file open and takes little memory.
#[derive(Debug)]
pub struct CompleteFile(AtomicFile);

impl CompleteFile {
    /// Moves the file to its target path.
    ///
    /// # Errors
    /// The errors of [`AtomicFile::persist`].
    pub fn persist(self) -> Result<(), Error> {
        let AtomicFile {
            temporary,
            target,
            is_new,
            replaces,
            ..
        } = self.0;
        let named = temporary.named(folder_of(&target));
        let named = named.map_err(|error| Error::io("the file cannot be named", error))?;
        if let Some(identity) = replaces {
            // The identity is checked as late as possible: only the rename follows.
            identity.check(&target)?;
        }
        let renamed = if is_new {
            named.persist_noclobber(&target)
        } else {
            named.persist(&target)
        };
        renamed.map_err(|failed| match failed.error.kind() {
            io::ErrorKind::AlreadyExists => exists(),
            _ => Error::io("the file cannot be renamed", failed.error),
        })?;
        sync_folder(&target)
    }
}

fn exists() -> Error {
    let error = Error::new(ErrorKind::Exists, "the target exists and must not be replaced");
    error.expected("an unused name")
}

/// Resolves `target` if it is a symbolic link; returns any other path unchanged. A dangling link is an error.
fn resolved(target: &Path) -> Result<PathBuf, Error> {
    let is_link = fs::symlink_metadata(target).is_ok_and(|found| found.is_symlink());
    if !is_link {
        return Ok(target.to_owned());
    }
    fs::canonicalize(target).map_err(|error| Error::io("the target is a broken link", error))
}

/// Resolves `path` if it is a symbolic link; returns any other path, and a dangling link, unchanged.
/// [`AtomicFile`] replaces the resolved file, and journals are next to that file.
#[must_use]
pub fn behind_links(path: &Path) -> PathBuf {
    resolved(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the path next to `path` (links resolved) with `suffix` appended to the name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = behind_links(path).into_os_string();
    name.push(suffix);
    name.into()
}

fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Returns the permission bits that a replacement has until its owner is set.
#[cfg(unix)]
fn private_part(replaced: &Metadata) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    replaced.permissions().mode() & 0o700
}

#[cfg(not(unix))]
fn private_part(_replaced: &Metadata) -> u32 {
    AtomicFile::NEW_FILE
}

/// Applies the replaced file's owner, group and permissions, or fewer permissions if the process is not
/// allowed to change the owner or group.
#[cfg(unix)]
fn hand_on(replaced: &Metadata, to: &File) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let mut mode = replaced.permissions().mode() & 0o777;
    let own = to.metadata()?;
    let is_given = (own.uid(), own.gid()) == (replaced.uid(), replaced.gid())
        || fchown(to, Some(replaced.uid()), Some(replaced.gid())).is_ok()
        || fchown(to, None, Some(replaced.gid())).is_ok();
    if !is_given {
        // A different group must not get the old group's permissions.
        mode &= !0o070;
    }
    to.set_permissions(PermissionsExt::from_mode(mode))
}

#[cfg(not(unix))]
fn hand_on(replaced: &Metadata, to: &File) -> io::Result<()> {
    to.set_permissions(replaced.permissions())
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.temporary.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.temporary.file().flush()
    }
}

/// Syncs the directory of a file after an entry was added or removed.
pub(crate) fn sync_folder(of: &Path) -> Result<(), Error> {
    // Only Unix allows opening and syncing a directory.
    if cfg!(unix) {
        let synced = File::open(folder_of(of)).and_then(|folder| folder.sync_all());
        synced.map_err(|error| Error::io("the directory cannot be synced to disk", error))?;
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

    /// The two ways to create a temporary file.
    const KINDS: [fn(&Path, u32) -> io::Result<Temporary>; 2] = [Temporary::create, Temporary::with_name];

    #[test]
    fn nothing_is_left_of_a_file_that_is_not_published() {
        for kind in KINDS {
            let folder = tempfile::tempdir().unwrap();
            let target = folder.path().join("a");
            fs::write(&target, "old").unwrap();
            let mut file = AtomicFile::begin(&target, &OutputOptions::default(), kind).unwrap();
            file.write_all(b"new").unwrap();
            drop(file);
            assert_eq!(names(folder.path()), ["a"]);
            assert_eq!(fs::read(&target).unwrap(), b"old");
            let mut file = AtomicFile::begin(&target, &OutputOptions::default(), kind).unwrap();
            file.write_all(b"new").unwrap();
            file.persist().unwrap();
            assert_eq!(names(folder.path()), ["a"]);
            assert_eq!(fs::read(&target).unwrap(), b"new");
        }
    }

    /// Where supported, a file being written has no name, so a killed process leaves no file behind.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_killed_process_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = AtomicFile::create(&folder.path().join("a")).unwrap();
        file.write_all(b"new").unwrap();
        if let Temporary::Unnamed(_) = file.temporary {
            assert!(names(folder.path()).is_empty());
        }
    }

    /// Files of the user, of other programs, and of this program in another container must not be removed.
    #[test]
    fn nothing_else_in_the_folder_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model.zt");
        let others = [
            "model.zt.tmp-1-0",
            "model.zt.tmp-2023-before-finetune",
            "model.zt.tmp-4294967294-0",
        ];
        for name in others {
            fs::write(folder.path().join(name), "precious").unwrap();
        }
        AtomicFile::create(&target).unwrap().persist().unwrap();
        assert_eq!(names(folder.path())[0], "model.zt");
        assert_eq!(names(folder.path())[1..], others);
    }

    #[test]
    fn a_target_that_must_be_new_is_not_replaced() {
        for kind in KINDS {
            let folder = tempfile::tempdir().unwrap();
            let target = folder.path().join("a");
            let options = OutputOptions {
                is_new: true,
                ..OutputOptions::default()
            };
            let file = AtomicFile::begin(&target, &options, kind).unwrap();
            fs::write(&target, "came first").unwrap();
            assert_eq!(file.persist().unwrap_err().kind(), ErrorKind::Exists);
            let refused = AtomicFile::begin(&target, &options, kind).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Exists);
            assert_eq!(names(folder.path()), ["a"]);
            assert_eq!(fs::read(&target).unwrap(), b"came first");
            fs::remove_file(&target).unwrap();
            AtomicFile::begin(&target, &options, kind)
                .unwrap()
                .persist()
                .unwrap();
            assert_eq!(names(folder.path()), ["a"]);
        }
    }

    /// Writes to a target that is a directory, a link, or a file with special permissions.
    #[cfg(unix)]
    #[test]
    fn what_stands_in_the_targets_place() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

        for kind in KINDS {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode() & 0o7777;
            let begin = |name: &str| AtomicFile::begin(&path(name), &OutputOptions::default(), kind);
            fs::create_dir(path("folder")).unwrap();
            assert_eq!(begin("folder").unwrap_err().kind(), ErrorKind::NotAFile);

            fs::write(path("private"), "old").unwrap();
            fs::set_permissions(path("private"), PermissionsExt::from_mode(0o640)).unwrap();
            fs::hard_link(path("private"), path("other name")).unwrap();
            let mut file = begin("private").unwrap();
            file.write_all(b"new").unwrap();
            let now = file.temporary.file().get_ref().metadata().unwrap();
            assert_eq!(now.mode() & 0o077, 0, "wider than the target while it is written");
            file.persist().unwrap();
            assert_eq!(mode("private"), 0o640);
            assert_eq!(fs::read(path("other name")).unwrap(), b"old");

            symlink("private", path("link")).unwrap();
            begin("link").unwrap().persist().unwrap();
            assert!(fs::symlink_metadata(path("link")).unwrap().is_symlink());
            assert_eq!(fs::read(path("private")).unwrap(), b"");
            assert_eq!(mode("private"), 0o640);
            symlink("nowhere", path("dangling")).unwrap();
            assert_eq!(begin("dangling").unwrap_err().kind(), ErrorKind::Io);

            let options = OutputOptions {
                widest_mode: Some(0o600),
                ..OutputOptions::default()
            };
            let file = AtomicFile::begin(&path("secret"), &options, kind).unwrap();
            file.persist().unwrap();
            assert_eq!(mode("secret"), 0o600);
        }
    }

    /// A complete file gets its final name only when it is persisted; one that is dropped leaves nothing
    /// behind.
    #[test]
    fn complete_files_wait_for_their_names() {
        for kind in KINDS {
            let folder = tempfile::tempdir().unwrap();
            let begin = |name: &str| {
                AtomicFile::begin(&folder.path().join(name), &OutputOptions::default(), kind).unwrap()
            };
            let complete = ["a", "b"].map(|name| {
                let mut file = begin(name);
                file.write_all(name.as_bytes()).unwrap();
                file.complete().unwrap()
            });
            assert!(!names(folder.path()).iter().any(|name| name == "a" || name == "b"));
            let [a, b] = complete;
            a.persist().unwrap();
            assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"a");
            drop(b);
            assert_eq!(names(folder.path()), ["a"]);
        }
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
        file.persist().unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"<0123>");
        let error = AtomicFile::create(&new)
            .unwrap()
            .copy_head(&source, 11)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
    }

    /// Checks that if two threads write to one target, the result is one of the two complete files.
    #[test]
    fn two_writers() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        for _ in 0..200 {
            let writers = [b'x', b'y'].map(|byte| {
                let target = target.clone();
                std::thread::spawn(move || {
                    let mut file = AtomicFile::create(&target).unwrap();
                    file.write_all(&[byte; 1000]).unwrap();
                    file.persist().unwrap();
                })
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            let content = fs::read(&target).unwrap();
            assert!(content == [b'x'; 1000] || content == [b'y'; 1000]);
        }
        assert_eq!(names(folder.path()), ["a"]);
    }

    /// A panic while writing removes the temporary file.
    #[test]
    fn a_panic_removes_the_temporary_file() {
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
