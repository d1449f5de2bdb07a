//! Opens files of every format by path.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use fmt_core::{
    BoxReader, BoxWriter, ByteSource, Capabilities, Error, ErrorKind, FileSource, Format, Output,
    OutputOptions, Plan, ReadOptions, Sniff,
};
use fmt_ztensor::{ChecksumKind, Compression, TensorOptions, WriteOptions, ZtensorWriter};
use tensor_files::{Composite, SourceFiles};

use crate::{
    failure::{About, Outcome},
    options::{Checksum, Endian, Target},
    progress, table,
};

static READ_OPTIONS: OnceLock<ReadOptions> = OnceLock::new();

/// Sets the limits and rules for reading files, for the whole process.
pub(crate) fn read_with(options: ReadOptions) {
    // The value is set only once, by `main`.
    let _ = READ_OPTIONS.set(options);
}

/// Returns the limits and rules for reading files.
pub(crate) fn read_options() -> ReadOptions {
    READ_OPTIONS.get().cloned().unwrap_or_default()
}

/// Returns whether a path means standard input or output.
pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens a file of any format, or a sharded checkpoint.
pub(crate) fn open(path: &Path) -> Outcome<Composite<'static>> {
    #[cfg(feature = "remote")]
    if let Some(location) = crate::remote::location(path) {
        let opened = crate::remote::open_composite(location, &read_options()).about(path)?;
        return Ok(noted(opened, path));
    }
    if is_standard(path) {
        let source = standard_input().about(path)?;
        let opened = tensor_files::open_source(Arc::new(source), None, &read_options());
        return opened.map(|reader| Composite::new("-", reader)).about(path);
    }
    let opened = tensor_files::open_composite(path, &read_options()).map_err(|error| hint(error, path));
    let opened = opened.about(path)?;
    Ok(noted(opened, path))
}

/// Prints warnings about the files of a checkpoint on standard error.
#[allow(clippy::print_stderr, reason = "this is where notes go")]
fn noted<'r>(opened: Composite<'r>, path: &Path) -> Composite<'r> {
    for note in opened.notes() {
        eprintln!("note: {}: {note}", path.display());
    }
    opened
}

/// Opens standard input: directly if it is a file, otherwise through an unnamed temporary copy.
fn standard_input() -> Result<FileSource, Error> {
    let cannot_read = |error| Error::io("standard input cannot be read", error);
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        let own = io::stdin().as_fd().try_clone_to_owned().map_err(cannot_read)?;
        if let Ok(source) = FileSource::new(own.into()) {
            return Ok(source);
        }
    }
    let mut spooled = tempfile::tempfile()
        .map_err(|error| Error::io("standard input cannot be copied to a temporary file", error))?;
    let copied = progress::waiting(|| io::copy(&mut io::stdin().lock(), &mut spooled));
    copied.map_err(cannot_read)?;
    FileSource::new(spooled)
}

fn hint(error: Error, path: &Path) -> Error {
    if error.kind() != ErrorKind::NotAFile {
        return error;
    }
    if !path.is_dir() {
        return error.expected("a regular file; for a pipe, - reads standard input");
    }
    match file_of_a_model(path) {
        Some(file) => {
            let file = file.display().to_string();
            error.expected(format_args!(
                "a tensor file, or files and their index; as a model repository it has {}, which can be \
                 given directly",
                table::text(&file)
            ))
        }
        None => error,
    }
}

/// Returns the first file of a known format in `MODEL/VERSION/`, the layout of model repositories.
fn file_of_a_model(repository: &Path) -> Option<PathBuf> {
    let sorted = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten();
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        paths
    };
    let is_version = |folder: &PathBuf| {
        let name = folder.file_name().unwrap_or_default();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    };
    let models = sorted(repository).into_iter();
    let versions = models.flat_map(|model| sorted(&model)).filter(is_version);
    let mut files = versions.flat_map(|version| sorted(&version));
    files.find(|file| tensor_files::format_of_path(file).is_some())
}

/// Returns the size of a file, or of all files of a checkpoint. The size is unknown for standard input and
/// for an index on a server.
pub(crate) fn len(path: &Path) -> Option<u64> {
    if is_standard(path) {
        return None;
    }
    #[cfg(feature = "remote")]
    if let Some(location) = crate::remote::location(path) {
        // Determining the sizes of all files of an index would take too many requests.
        let is_index = tensor_files::is_index(Path::new(location));
        return (!is_index).then(|| crate::remote::len(location));
    }
    let files = tensor_files::checkpoint_files(path).ok()?;
    let lens = files.iter().map(|file| Some(fs::metadata(file).ok()?.len()));
    lens.sum()
}

/// Rejects remote locations as targets.
pub(crate) fn check_local(path: &Path) -> Outcome {
    #[cfg(feature = "remote")]
    if crate::remote::location(path).is_some() {
        let error = Error::new(
            ErrorKind::Unsupported,
            "files on servers are read and not written",
        );
        return Err(error.expected("a path on this machine")).about(path);
    }
    let _ = path;
    Ok(())
}

/// Returns the permission bits that all source files in `paths` share, and the owner's. The output file gets
/// them.
pub(crate) fn narrowest_mode(paths: &[PathBuf]) -> Option<u32> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let paths = paths.iter().filter(|path| !is_standard(path));
        let files = paths.flat_map(|path| tensor_files::checkpoint_files(path).unwrap_or_default());
        let modes = files.filter_map(|path| Some(fs::metadata(path).ok()?.permissions().mode() & 0o777));
        modes.reduce(|mode, other| mode & other).map(|mode| mode | 0o600)
    }
    #[cfg(not(unix))]
    {
        let _ = paths;
        None
    }
}

/// Records the identity of source files before they are opened.
pub(crate) fn source_files(from: &[PathBuf]) -> SourceFiles {
    let paths = from.iter().filter(|path| !is_standard(path));
    SourceFiles::of(paths.map(PathBuf::as_path))
}

/// Returns the options for writing an output file.
pub(crate) fn output_options(no_clobber: bool, from: &[PathBuf]) -> OutputOptions {
    let mut options = OutputOptions::default();
    options.is_new = no_clobber;
    options.widest_mode = narrowest_mode(from);
    options
}

/// Returns the format of a file to edit.
pub(crate) fn detect(path: &Path) -> Outcome<&'static dyn Format> {
    check_local(path)?;
    if is_standard(path) {
        let error = Error::new(
            ErrorKind::Unsupported,
            "standard input cannot be changed in place",
        );
        return Err(error.expected("a path; or convert, which writes a new file")).about(path);
    }
    // Opening a named pipe does not block here.
    let source = FileSource::open(path)
        .map_err(|error| hint(error, path))
        .about(path)?;
    let head = fmt_core::read_range(&source, 0..source.len().min(512), "the beginning of the file");
    tensor_files::detect(&head.about(path)?, source.len(), Some(path)).about(path)
}

/// Returns the output format with its settings: the requested format, or the one that the extension implies.
pub(crate) fn target(path: &Path, target: &Target) -> Outcome<Box<dyn Format>> {
    check_local(path)?;
    let format = match &target.format {
        Some(id) => {
            let format = tensor_files::format(id).ok_or_else(|| unknown("the format", id));
            // The error names the format to write instead.
            format.and_then(|format| match format.is_written() {
                true => Ok(format),
                false => format
                    .create(Box::new(io::sink()), Plan::default())
                    .map(|_| format),
            })
        }
        None => tensor_files::format_of_path(path).ok_or_else(|| {
            let extension = path.extension().unwrap_or_default();
            unknown(
                "the extension does not identify the format; name it with --to",
                &extension.to_string_lossy(),
            )
        }),
    };
    let format = format.about(path)?;
    let settings = Settings::of(target);
    settings.check(format.id()).about(path)?;
    Ok(Box::new(Set { format, settings }))
}

fn unknown(what: &str, found: &str) -> Error {
    let known = tensor_files::formats()
        .iter()
        .filter(|format| format.is_written());
    let known: Vec<&str> = known.map(|format| format.id()).collect();
    let error = Error::new(ErrorKind::Unsupported, what);
    error
        .expected(format_args!("one of {}", known.join(", ")))
        .found(format_args!("'{found}'"))
}

/// Format-specific options.
struct Settings {
    ztensor: WriteOptions,
    btf: fmt_btf::WriteOptions,
    tbuf: fmt_tbuf::WriteOptions,
    /// The format-specific options on the command line, each with the formats that support it.
    given: Vec<(&'static str, &'static [&'static str])>,
}

impl Settings {
    fn of(target: &Target) -> Self {
        let mut given: Vec<(&str, &[&str])> = Vec::new();
        let mut note = |is_given: bool, option, formats| {
            if is_given {
                given.push((option, formats));
            }
        };
        note(target.compress, "--compress", &["ztensor"]);
        note(target.checksum.is_some(), "--checksum", &["ztensor"]);
        note(target.endian.is_some(), "--endian", &["ztensor"]);
        note(target.strict_spec, "--strict-spec", &["ztensor", "btf"]);
        note(target.align.is_some(), "--align", &["ztensor", "tbuf"]);
        note(target.btf_coo_tag.is_some(), "--btf-coo-tag", &["btf"]);
        note(target.no_sidecar, "--no-sidecar", &["btf"]);
        let checksum = match target.checksum {
            None => TensorOptions::default().checksum,
            Some(Checksum::None) => None,
            Some(Checksum::Crc32c) => Some(ChecksumKind::Crc32c),
            Some(Checksum::Sha256) => Some(ChecksumKind::Sha256),
        };
        let mut ztensor = WriteOptions {
            tensors: TensorOptions {
                compression: target.compress.then(|| {
                    let threads = target.threads.map_or(0, usize::from);
                    Compression::level(target.level).with_threads(threads)
                }),
                checksum,
                big_endian: target.endian == Some(Endian::Big),
                ..TensorOptions::default()
            },
            strict_spec: target.strict_spec,
            ..WriteOptions::default()
        };
        let mut tbuf = fmt_tbuf::WriteOptions::default();
        if let Some(align) = target.align {
            ztensor.alignment = align.into();
            tbuf.alignment = align;
        }
        let mut btf = fmt_btf::WriteOptions {
            strict_spec: target.strict_spec,
            ..fmt_btf::WriteOptions::default()
        };
        if target.btf_coo_tag == Some(1) {
            btf.coo_code = fmt_btf::CooCode::Tfrt;
        }
        Self {
            ztensor,
            btf,
            tbuf,
            given,
        }
    }

    fn check(&self, format: &str) -> Result<(), Error> {
        match self.given.iter().find(|(_, formats)| !formats.contains(&format)) {
            None => Ok(()),
            Some((option, formats)) => {
                let error = Error::new(
                    ErrorKind::Unsupported,
                    format!("the format has no setting for {option}"),
                );
                Err(error.expected(formats.join(" or ")).found(format))
            }
        }
    }
}

/// An output format together with its settings.
struct Set {
    format: &'static dyn Format,
    settings: Settings,
}

impl Format for Set {
    fn id(&self) -> &'static str {
        self.format.id()
    }

    fn extensions(&self) -> &'static [&'static str] {
        self.format.extensions()
    }

    fn sniff(&self, head: &[u8], len: u64) -> Sniff {
        self.format.sniff(head, len)
    }

    fn open(&self, source: Arc<dyn ByteSource>, options: &ReadOptions) -> Result<BoxReader, Error> {
        self.format.open(source, options)
    }

    fn capabilities(&self) -> Option<&'static Capabilities> {
        self.format.capabilities()
    }

    fn create<'w>(&self, out: Output<'w>, plan: Plan) -> Result<BoxWriter<'w>, Error> {
        let Settings {
            ztensor, btf, tbuf, ..
        } = &self.settings;
        Ok(match self.format.id() {
            "ztensor" => Box::new(ZtensorWriter::planned(out, &plan, ztensor.clone())?),
            "btf" => Box::new(fmt_btf::BtfWriter::planned(out, &plan, btf.clone())?),
            "tbuf" => Box::new(fmt_tbuf::TbufWriter::planned(out, &plan, tbuf.clone())?),
            _ => return self.format.create(out, plan),
        })
    }
}
