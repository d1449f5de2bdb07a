//! The repository's directory, held open. All paths are resolved from its descriptor, component by component,
//! and never leave it.
//!
//! Paths are not compared as strings: the directory may be reached through a link whose target cannot be
//! resolved, such as `/proc/<pid>/root/models` of another container (KServe's modelcars), and links in it may
//! change at any time.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, readlinkat, statat},
    io::Errno,
};

/// An open directory and its path.
#[derive(Debug)]
pub(crate) struct Root {
    folder: OwnedFd,
    path: PathBuf,
    /// Directories outside this one that links may lead to, each with its canonical path.
    also: Vec<(OwnedFd, PathBuf)>,
}

/// Flags for opening intermediate directories. With `O_PATH`, where supported, the process needs no
/// permission to list them.
const ON_THE_WAY: OFlags = {
    #[cfg(target_os = "linux")]
    let way = OFlags::PATH;
    #[cfg(not(target_os = "linux"))]
    let way = OFlags::RDONLY;
    way.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC)
};

/// Maximum number of links in a path, as in the kernel.
const MAX_LINKS: usize = 40;

/// The target of a path in a [`Root`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PathTarget {
    /// The target is inside: a path relative to the directory without links, or an absolute path in one of
    /// the additional directories.
    Inside(PathBuf),
    /// The target is outside the directory and the additional directories.
    Outside,
}

impl Root {
    /// Opens a directory. Links in `path` itself are followed, since the operator chose it.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, &[])
    }

    /// Opens a directory like [`open`](Self::open), with additional directories that links may lead to.
    /// Missing directories are skipped, since no link can lead into them.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn open_with(path: &Path, also: &[PathBuf]) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let open = |path: &Path| rustix::fs::open(path, ON_THE_WAY, Mode::empty());
        let folder = open(&path)?;
        let also = also
            .iter()
            .filter_map(|path| Some((open(path).ok()?, path.clone())));
        Ok(Self {
            folder,
            path,
            also: also.collect(),
        })
    }

    /// Returns the full path of a relative path.
    pub(crate) fn path(&self, below: &Path) -> PathBuf {
        match below.as_os_str().is_empty() {
            true => self.path.clone(),
            false => self.path.join(below),
        }
    }

    /// Resolves the links in a path relative to the directory, or in a path in one of the additional
    /// directories.
    ///
    /// # Errors
    /// The system's error, such as "not found".
    pub(crate) fn resolve(&self, below: &Path) -> io::Result<PathTarget> {
        let inside = match below.is_absolute() {
            true => PathTarget::Outside,
            false => self.resolve_within(below)?,
        };
        match inside {
            PathTarget::Outside if !self.also.is_empty() => self.resolve_beside(below),
            resolved => Ok(resolved),
        }
    }

    /// Resolves a path that leaves the directory. The result may be outdated when the file is opened, but
    /// opening starts at the directory's descriptor and follows no links.
    fn resolve_beside(&self, below: &Path) -> io::Result<PathTarget> {
        let real = self.path.join(below).canonicalize()?;
        if self.also.iter().any(|(_, folder)| real.starts_with(folder)) {
            return Ok(PathTarget::Inside(real));
        }
        // The path may leave the directory through one link and return through another.
        let home = self.path.canonicalize()?;
        Ok(match real.strip_prefix(home) {
            Ok(inside) => PathTarget::Inside(inside.to_owned()),
            Err(_) => PathTarget::Outside,
        })
    }

    /// Returns the open directory that contains a resolved path, and the path relative to it.
    fn base<'a>(&'a self, resolved: &'a Path) -> io::Result<(&'a OwnedFd, &'a Path)> {
        if !resolved.is_absolute() {
            return Ok((&self.folder, resolved));
        }
        let mut bases = self.also.iter();
        let found = bases.find_map(|(folder, path)| Some((folder, resolved.strip_prefix(path).ok()?)));
        found.ok_or_else(|| io::ErrorKind::PermissionDenied.into())
    }

    fn resolve_within(&self, below: &Path) -> io::Result<PathTarget> {
        // A stack of the entered directories with their names. The next name is looked up in the top
        // directory of the stack.
        let mut entered: Vec<(OwnedFd, OsString)> = Vec::new();
        let mut ahead = names(below)?;
        let mut links = 0;
        let mut last: Option<OsString> = None;
        while let Some(name) = ahead.pop_front() {
            if last.is_some() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            if name == ".." {
                if entered.pop().is_none() {
                    return Ok(PathTarget::Outside);
                }
                continue;
            }
            let at = entered
                .last()
                .map_or(self.folder.as_fd(), |(folder, _)| folder.as_fd());
            match FileType::from_raw_mode(stat_of(at, &name)?.st_mode) {
                FileType::Directory => {
                    let folder = openat(at, name.as_os_str(), ON_THE_WAY | OFlags::NOFOLLOW, Mode::empty())?;
                    entered.push((folder, name));
                }
                FileType::Symlink => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let target = readlinkat(at, name.as_os_str(), Vec::new())?;
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    let target = if target.is_absolute() {
                        // An absolute link into the directory itself is treated as relative to it.
                        let Ok(inside) = target.strip_prefix(&self.path) else {
                            return Ok(PathTarget::Outside);
                        };
                        entered.clear();
                        inside.to_owned()
                    } else {
                        target
                    };
                    let mut next = names(&target)?;
                    next.append(&mut ahead);
                    ahead = next;
                }
                _ => last = Some(name),
            }
        }
        let names = entered.into_iter().map(|(_, name)| name).chain(last);
        Ok(PathTarget::Inside(names.collect()))
    }

    /// Returns the metadata of a [resolved](Self::resolve) path.
    ///
    /// # Errors
    /// The system's error. It is an error if a component of the path has become a link since the path was
    /// resolved.
    pub(crate) fn stat(&self, resolved: &Path) -> io::Result<Stat> {
        let (base, within) = self.base(resolved)?;
        match (within.parent(), within.file_name()) {
            (Some(folder), Some(name)) => stat_of(enter(base, folder)?.as_fd(), name),
            _ => Ok(rustix::fs::fstat(base)?),
        }
    }

    /// Opens the regular file at a [resolved](Self::resolve) path, and returns its metadata. Never blocks,
    /// not even on a FIFO.
    ///
    /// # Errors
    /// The system's error. It is an error if the path is not a regular file, or if a component has become a
    /// link since the path was resolved.
    pub(crate) fn open_file(&self, resolved: &Path) -> io::Result<(File, Stat)> {
        let (base, within) = self.base(resolved)?;
        let name = within.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let folder = enter(base, within.parent().unwrap_or(Path::new("")))?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&folder, name, flags, Mode::empty()).map_err(swapped)?;
        let stat = rustix::fs::fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((file.into(), stat)),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Lists the directory at a [resolved](Self::resolve) path: names and types, sorted, without hidden
    /// entries.
    ///
    /// # Errors
    /// The system's error, even in the middle of the listing: a partial list would look as if files had been
    /// deleted.
    pub(crate) fn list(&self, resolved: &Path) -> io::Result<Vec<(OsString, FileType)>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (base, within) = self.base(resolved)?;
        let folder = match within.file_name() {
            Some(name) => {
                let above = enter(base, within.parent().unwrap_or(Path::new("")))?;
                openat(&above, name, flags, Mode::empty()).map_err(swapped)?
            }
            None => openat(base, ".", flags, Mode::empty())?,
        };
        entries_of(folder)
    }
}

/// Opens a directory below another one by a path without links.
fn enter(base: &OwnedFd, within: &Path) -> io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    if !within.as_os_str().is_empty() {
        use rustix::fs::{ResolveFlags, openat2};
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(base, within, ON_THE_WAY, Mode::empty(), how) {
            // `openat2` is not available: the kernel is too old, or a container forbids the system call.
            Err(Errno::NOSYS | Errno::PERM) => {}
            entered => return entered.map_err(swapped),
        }
    }
    enter_name_by_name(base, within)
}

/// Opens a directory without `openat2`, one component at a time.
fn enter_name_by_name(base: &OwnedFd, within: &Path) -> io::Result<OwnedFd> {
    let mut folder = openat(base, ".", ON_THE_WAY, Mode::empty())?;
    for name in names(within)? {
        if name == ".." {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        folder = openat(
            &folder,
            name.as_os_str(),
            ON_THE_WAY | OFlags::NOFOLLOW,
            Mode::empty(),
        )
        .map_err(swapped)?;
    }
    Ok(folder)
}

/// Returns the error for a path that changed after it was resolved.
fn swapped(error: Errno) -> io::Error {
    match error {
        Errno::LOOP | Errno::XDEV => io::ErrorKind::PermissionDenied.into(),
        error => error.into(),
    }
}

fn stat_of(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<Stat> {
    Ok(statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Splits a relative path into its components. Keeps `..` and drops `.`.
fn names(path: &Path) -> io::Result<VecDeque<OsString>> {
    let mut names = VecDeque::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push_back(name.to_owned()),
            Component::ParentDir => names.push_back("..".into()),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(names)
}

fn entries_of(folder: OwnedFd) -> io::Result<Vec<(OsString, FileType)>> {
    let mut entries = Vec::new();
    let mut stream = Dir::new(folder)?;
    while let Some(entry) = stream.next() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name.as_bytes().starts_with(b".") {
            continue;
        }
        let kind = match entry.file_type() {
            // Not every file system reports the type in the listing. Entries that were deleted meanwhile are
            // skipped.
            FileType::Unknown => match stat_of(stream.fd()?, name) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(_) => continue,
            },
            kind => kind,
        };
        entries.push((name.to_owned(), kind));
    }
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(entries)
}

/// Returns whether the metadata belongs to a directory.
pub(crate) fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Returns whether the metadata belongs to a symbolic link.
pub(crate) fn is_link(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
}

/// Returns whether the metadata belongs to a regular file.
pub(crate) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Read, os::unix::fs::symlink, process::Command};

    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        folder
    }

    fn inside(path: &str) -> PathTarget {
        PathTarget::Inside(path.into())
    }

    #[test]
    fn links_are_followed_within_the_folder_only() {
        let outside = folder(&["secret"]);
        let folder = folder(&["m/1/x", "blobs/abc"]);
        let at = |name: &str| folder.path().join(name);
        symlink("../../blobs/abc", at("m/1/relative")).unwrap();
        symlink(at("blobs/abc"), at("m/1/absolute")).unwrap();
        symlink("1", at("m/latest")).unwrap();
        symlink("../../../etc/passwd", at("m/1/above")).unwrap();
        symlink(outside.path().join("secret"), at("m/1/out")).unwrap();
        symlink("/proc/self/root/etc", at("m/1/magic")).unwrap();
        symlink("round", at("m/round")).unwrap();
        symlink("nowhere", at("m/dangling")).unwrap();
        let root = Root::open(folder.path()).unwrap();
        let resolve = |path: &str| root.resolve(Path::new(path));
        for (path, resolved) in [
            ("", inside("")),
            ("m/1/x", inside("m/1/x")),
            ("m/latest/x", inside("m/1/x")),
            ("m/latest/relative", inside("blobs/abc")),
            ("m/1/absolute", inside("blobs/abc")),
            ("m/../blobs/./abc", inside("blobs/abc")),
            ("m/1/above", PathTarget::Outside),
            ("m/1/out", PathTarget::Outside),
            ("m/1/magic", PathTarget::Outside),
            ("../x", PathTarget::Outside),
        ] {
            assert_eq!(resolve(path).unwrap(), resolved, "{path}");
        }
        for (path, kind) in [
            ("m/dangling", io::ErrorKind::NotFound),
            ("m/1/x/y", io::ErrorKind::NotADirectory),
        ] {
            assert_eq!(resolve(path).unwrap_err().kind(), kind, "{path}");
        }
        assert!(resolve("m/round").is_err());
    }

    /// A link that replaces a directory after its path was resolved is not followed, with or without
    /// `openat2`.
    #[test]
    fn what_is_swapped_after_it_was_resolved_is_not_followed() {
        let outside = folder(&["1/x"]);
        let folder = folder(&["m/1/x"]);
        let root = Root::open(folder.path()).unwrap();
        assert_eq!(root.resolve(Path::new("m/1/x")).unwrap(), inside("m/1/x"));
        fs::remove_dir_all(folder.path().join("m/1")).unwrap();
        symlink(outside.path().join("1"), folder.path().join("m/1")).unwrap();
        let error = root.open_file(Path::new("m/1/x")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(enter_name_by_name(&root.folder, Path::new("m/1")).is_err());
        assert!(enter_name_by_name(&root.folder, Path::new("m")).is_ok());
    }

    /// The path of the repository may be a `/proc` link whose target path does not resolve, or resolves to
    /// another directory.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_whose_path_does_not_exist_any_more_is_read() {
        let folder = folder(&["m/1/x"]);
        let held = File::open(folder.path()).unwrap();
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
        let moved = folder.path().with_extension("moved");
        fs::rename(folder.path(), &moved).unwrap();
        fs::create_dir(folder.path()).unwrap();
        let root = Root::open(Path::new(&link)).unwrap();
        let PathTarget::Inside(path) = root.resolve(Path::new("m/1/x")).unwrap() else {
            panic!("it is inside");
        };
        let mut text = String::new();
        root.open_file(&path)
            .unwrap()
            .0
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "m/1/x");
        assert_eq!(
            root.list(Path::new("m")).unwrap(),
            [("1".into(), FileType::Directory)]
        );
        assert_eq!(root.path(&path), Path::new(&link).join("m/1/x"));
        fs::remove_dir_all(&moved).unwrap();
    }

    /// Links may lead to directories that the operator names. Relative and absolute links, to files and to
    /// directories, are followed.
    #[test]
    fn links_may_lead_to_folders_that_are_named() {
        let hub = folder(&["snapshots/a/config", "blobs/abc", "blobs/deep/1/x", "refs/secret"]);
        let home = hub.path().canonicalize().unwrap();
        let at = |name: &str| home.join("snapshots/a").join(name);
        symlink("../../blobs/abc", at("file")).unwrap();
        symlink(home.join("blobs/deep"), at("model")).unwrap();
        symlink("../../refs/secret", at("secret")).unwrap();
        symlink("../../blobs/none", at("dangling")).unwrap();
        symlink("../refs/secret", home.join("blobs/onward")).unwrap();
        symlink("../../blobs/onward", at("onward")).unwrap();
        symlink("../snapshots/a/config", home.join("blobs/home")).unwrap();
        symlink("../../blobs/home", at("home")).unwrap();
        let root = Root::open_with(&home.join("snapshots/a"), &[home.join("blobs")]).unwrap();
        let resolve = |path: &str| root.resolve(Path::new(path));
        let beside = |path: &str| PathTarget::Inside(home.join("blobs").join(path));
        for (path, resolved) in [
            ("file", beside("abc")),
            ("model", beside("deep")),
            ("model/1/x", beside("deep/1/x")),
            ("home", inside("config")),
            ("secret", PathTarget::Outside),
            ("onward", PathTarget::Outside),
            ("../b", PathTarget::Outside),
        ] {
            if path == "../b" {
                assert!(resolve(path).is_err(), "there is no such file");
                continue;
            }
            assert_eq!(resolve(path).unwrap(), resolved, "{path}");
        }
        assert_eq!(resolve("dangling").unwrap_err().kind(), io::ErrorKind::NotFound);
        // A resolved path resolves to itself, and can be listed.
        let folder = home.join("blobs/deep");
        assert_eq!(root.resolve(&folder.join("1")).unwrap(), beside("deep/1"));
        assert_eq!(root.list(&folder).unwrap(), [("1".into(), FileType::Directory)]);
        assert!(
            is_folder(&root.stat(&folder).unwrap()) && is_folder(&root.stat(&home.join("blobs")).unwrap())
        );
        let mut text = String::new();
        let (mut file, _) = root.open_file(&folder.join("1/x")).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "blobs/deep/1/x");
        let outside = root.open_file(&home.join("refs/secret")).unwrap_err();
        assert_eq!(outside.kind(), io::ErrorKind::PermissionDenied);
        // A link that replaced the resolved directory is not followed.
        fs::remove_dir_all(home.join("blobs/deep/1")).unwrap();
        symlink(home.join("refs"), home.join("blobs/deep/1")).unwrap();
        assert!(root.open_file(&folder.join("1/secret")).is_err());
    }

    #[test]
    fn pipes_are_not_waited_for() {
        let folder = folder(&["x"]);
        let made = Command::new("mkfifo").arg(folder.path().join("pipe")).status();
        assert!(made.unwrap().success());
        let root = Root::open(folder.path()).unwrap();
        let error = root.open_file(Path::new("pipe")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    /// An error while listing makes the whole call fail: callers could not tell a partial list from a
    /// complete one.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_list_that_fails_is_an_error() {
        let folder = folder(&["x"]);
        // The kernel refuses to list a directory that was opened without read permission.
        let unreadable = rustix::fs::open(folder.path(), ON_THE_WAY, Mode::empty()).unwrap();
        assert!(entries_of(unreadable).is_err());
    }
}
