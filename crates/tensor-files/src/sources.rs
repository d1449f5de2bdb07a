//! The source files of a conversion, and which of them its target may replace.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fmt_core::{Error, ErrorKind, FileIdentity, OutputOptions};

use crate::checkpoint::checkpoint_files;

/// The source files of a conversion, recorded before they are opened.
///
/// If the target is one of the sources, it replaces only the file that was read, not a file that has since
/// taken its place. Files of a sharded checkpoint are never replaced by a conversion's result: if the process
/// were killed during the replacement, neither the old nor the new checkpoint would be complete.
///
/// ```
/// use tensor_files::{ConvertOptions, SourceFiles, convert, format, open};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.safetensors");
/// # std::fs::write(&path, b"\x02\0\0\0\0\0\0\0{}")?;
/// let options = ConvertOptions { sources: SourceFiles::of([&*path]), ..ConvertOptions::default() };
/// let reader = open(&path, &Default::default())?;
/// convert(&*reader, format("safetensors").unwrap(), &path, &options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SourceFiles(Vec<SourceFile>);

#[derive(Clone, Debug)]
struct SourceFile {
    /// The path, with all links resolved.
    path: PathBuf,
    identity: FileIdentity,
    /// Whether the file is one of several files of a checkpoint.
    is_part: bool,
}

impl SourceFiles {
    /// Records the files that these paths refer to. Paths that do not exist are skipped: opening them will
    /// return the error.
    pub fn of<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Self {
        let mut sources = Vec::new();
        for path in paths {
            let files = checkpoint_files(path).unwrap_or_default();
            let is_part = files.len() > 1;
            sources.extend(files.into_iter().filter_map(|file| {
                Some(SourceFile {
                    identity: FileIdentity::of(&file).ok()?,
                    path: fs::canonicalize(file).ok()?,
                    is_part,
                })
            }));
        }
        Self(sources)
    }

    /// Returns the options for creating a target: if `target` is one of these files, the options allow
    /// replacing only the recorded file.
    #[must_use]
    pub fn output_for(&self, target: &Path, output: &OutputOptions) -> OutputOptions {
        let mut output = output.clone();
        let own = || self.at(target).map(|source| source.identity.clone());
        output.replaces = output.replaces.or_else(own);
        output
    }

    /// Checks that the target is not a file of a sharded checkpoint among the sources.
    pub(crate) fn check_target(&self, target: &Path) -> Result<(), Error> {
        match self.at(target) {
            Some(source) if source.is_part => Err(in_the_way(target)),
            _ => Ok(()),
        }
    }

    /// Checks that none of the files that are written, replaced or removed together is a source file.
    pub(crate) fn check_targets<'p>(&self, mut targets: impl Iterator<Item = &'p Path>) -> Result<(), Error> {
        match targets.find(|target| self.at(target).is_some()) {
            Some(target) => Err(in_the_way(target)),
            None => Ok(()),
        }
    }

    fn at(&self, target: &Path) -> Option<&SourceFile> {
        let target = (!self.0.is_empty()).then(|| fs::canonicalize(target).ok())??;
        self.0.iter().find(|source| source.path == target)
    }
}

fn in_the_way(target: &Path) -> Error {
    let what = "the checkpoint would replace its own source files, and an interruption would lose both";
    let error = Error::new(ErrorKind::Exists, what);
    error
        .expected("another directory; the result can be moved when it is complete")
        .found(format_args!("{}, which is read", target.display()))
}
