//! `tensor manifest`: format-independent digests, and verification against them.

use std::{
    cell::RefCell,
    fs::File,
    io::{Read, Write},
    ops::ControlFlow,
    path::Path,
};

use fmt_core::{ByteSource, Entry, Error, ErrorKind, FileSource, TensorReader, read_range};
use sha2::{Digest, Sha256};
use tensor_files::{Manifest, Recast};

use crate::{
    failure::{About, Outcome},
    inspect::hex,
    options::Manifest as Options,
    progress::Progress,
};

pub(crate) fn run(options: &Options, out: &mut impl Write) -> Outcome {
    if options.files {
        for path in &options.paths {
            for file in tensor_files::checkpoint_files(path).about(path)? {
                let digest = digest_of_file(&file)?;
                write!(out, "{}", line(&digest, &file))?;
            }
        }
        return Ok(());
    }
    let mut all = crate::sources::open_all(&options.paths)?;
    options
        .choosing
        .select(&mut [&mut all])
        .about(&options.paths[0])?;
    let recast = options.choosing.recast(&all).about(&options.paths[0])?;
    let reader: &dyn TensorReader = match &recast {
        Some(recast) => recast,
        None => &all,
    };
    let manifest = of(reader, &options.paths[0])?;
    // If a number became infinite, the manifest does not describe the values of the checkpoint.
    let lost = recast.as_ref().map(Recast::losses).unwrap_or_default();
    if let Some(loss) = lost.first() {
        let error = Error::new(
            ErrorKind::Unsupported,
            format!("the manifest would not show {loss}"),
        );
        return Err(error.expected("a wider dtype, or --keep-dtype")).about(&options.paths[0]);
    }
    let text = if options.json {
        manifest.to_json()
    } else {
        manifest.to_text()
    };
    write!(out, "{text}")?;
    Ok(())
}

/// Computes the manifest of open files.
pub(crate) fn of(files: &dyn TensorReader, path: &Path) -> Outcome<Manifest> {
    let lens = files.entries().iter().filter_map(Entry::byte_len);
    let progress = RefCell::new(Progress::new(lens.fold(0, u64::saturating_add)));
    let watch = |bytes| {
        progress.borrow_mut().advance(bytes);
        ControlFlow::Continue(())
    };
    Manifest::of_watched(files, &watch).about(path)
}

/// Reads a manifest from a file.
pub(crate) fn read(path: &Path) -> Outcome<Manifest> {
    /// Maximum size in bytes; enough for two million tensors with long names.
    const LONGEST: u64 = 1 << 30;
    let source = FileSource::open(path).about(path)?;
    if source.len() > LONGEST {
        let error = Error::new(ErrorKind::TooLarge, "the manifest");
        return Err(error
            .expected(format_args!("at most {LONGEST} bytes"))
            .found(source.len()))
        .about(path);
    }
    let bytes = read_range(&source, 0..source.len(), "the manifest").about(path)?;
    Manifest::parse(&bytes).about(path)
}

fn digest_of_file(path: &Path) -> Outcome<String> {
    let failed = |error| Error::io("the file cannot be read", error);
    let source = FileSource::open(path).about(path)?;
    let mut progress = Progress::new(source.len());
    let (mut file, mut hash, mut piece): (&File, _, _) = (source.file(), Sha256::new(), vec![0; 256 << 10]);
    loop {
        let read = file.read(&mut piece).map_err(failed).about(path)?;
        if read == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&piece[..read]);
        progress.advance(read as u64);
    }
}

/// Formats a digest in the format of `sha256sum`, which `sha256sum -c` can check.
fn line(digest: &str, file: &Path) -> String {
    let name = file.display().to_string();
    if !name.contains(['\n', '\r', '\\']) {
        return format!("{digest}  {name}\n");
    }
    let escaped = name
        .replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('\r', "\\r");
    format!("\\{digest}  {escaped}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_sha256sum() {
        assert_eq!(line("ab", Path::new("a b")), "ab  a b\n");
        assert_eq!(line("ab", Path::new("a\n\\b")), "\\ab  a\\n\\\\b\n");
    }
}
