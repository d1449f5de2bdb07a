//! `tensor convert`, `merge` and `split`: converts between formats, from and to one or many files.

use std::{
    io::Write,
    path::{Path, PathBuf},
    time::Instant,
};

use fmt_core::{Error, ErrorKind, Format, TensorReader};
use tensor_core::{DType, QuotedName};
use tensor_files::{AllowedLoss, Composite, ConvertOptions, Loss, Recast, ShardOptions};

use crate::{
    failure::{About, Outcome},
    files,
    options::{Convert, LossKind, Merge, Split, Target},
    report,
    selection::SelectionOptions,
    sources::{self, unless_interrupted},
    table,
};

pub(crate) fn run(options: &Convert, out: &mut (impl Write + Send)) -> Outcome {
    let job = Job {
        from: std::slice::from_ref(&options.from),
        to: &options.to,
        target: &options.target,
        choosing: &options.choosing,
        max_shard_size: options.max_shard_size,
        json: options.json,
    };
    job.run(out)
}

pub(crate) fn merge(options: &Merge, out: &mut (impl Write + Send)) -> Outcome {
    let job = Job {
        from: &options.files,
        to: &options.output,
        target: &options.target,
        choosing: &options.choosing,
        max_shard_size: options.max_shard_size,
        json: options.json,
    };
    job.run(out)
}

pub(crate) fn split(options: &Split, out: &mut (impl Write + Send)) -> Outcome {
    let job = Job {
        from: std::slice::from_ref(&options.from),
        to: &options.to,
        target: &options.target,
        choosing: &options.choosing,
        max_shard_size: Some(options.max_shard_size),
        json: options.json,
    };
    job.run(out)
}

/// The source, the target and the options of a conversion.
struct Job<'o> {
    from: &'o [PathBuf],
    to: &'o Path,
    target: &'o Target,
    choosing: &'o SelectionOptions,
    max_shard_size: Option<u64>,
    json: bool,
}

/// The output of a conversion.
struct ConversionOutput {
    /// The files with tensors; none for standard output.
    files: Vec<report::WrittenFile>,
    /// The path of the shards' index.
    index: Option<String>,
    losses: Vec<Loss>,
}

impl ConversionOutput {
    /// Prints the number of files, if there are several or an index.
    fn print(&self, out: &mut dyn Write) -> Outcome {
        match &self.index {
            Some(index) => writeln!(out, "{} files, and their index {index}", self.files.len())?,
            None if self.files.len() > 1 => writeln!(out, "{} files", self.files.len())?,
            None => {}
        }
        Ok(())
    }
}

impl Job<'_> {
    /// Runs the conversion. The output is one file, which is published atomically when complete, several
    /// shards with an index, or standard output.
    fn run(&self, out: &mut (impl Write + Send)) -> Outcome {
        let start = Instant::now();
        let source_files = files::source_files(self.from);
        let mut sources = sources::open_all(self.from)?;
        self.choosing.select(&mut [&mut sources]).about(&self.from[0])?;
        let to = &*self.file_name(&sources)?;
        let format = files::target(to, self.target)?;
        let conflicts = conflicts(&sources, self.target).about(to)?;
        let sources = sources::watched(sources);
        let recast = self.choosing.recast(&sources).about(&self.from[0])?;
        let reader: &dyn TensorReader = match &recast {
            Some(recast) => recast,
            None => &sources,
        };
        let bits = self.target.as_bits.then(|| Recast::as_bits(reader, &*format));
        let reader = bits.as_ref().map_or(reader, |bits| bits);
        let late = || recast.as_ref().map(Recast::losses).unwrap_or_default();
        let options = ConvertOptions {
            allow_loss: allowed(self.target),
            names_beside: !self.target.no_sidecar,
            dense_budget: files::read_options().limits.decoded_bytes,
            sources: source_files,
            output: files::output_options(self.target.no_clobber, self.from),
            lost_on_the_way: Some(&late),
            ..ConvertOptions::default()
        };
        let tensors = sources.entries().len();
        let mut written = self.write(reader, &*format, to, &options, out)?;
        let as_bits = bits.as_ref().map(Recast::losses).unwrap_or_default();
        let losses = [as_bits, std::mem::take(&mut written.losses)].concat();
        let unconverted = recast.as_ref().map(Recast::unconverted).unwrap_or_default();
        // Removes the progress bar before the notes and the report are printed.
        drop(bits);
        drop(recast);
        drop(sources);
        let notes = Notes {
            losses: &losses,
            conflicts: &conflicts,
            unconverted: &unconverted,
        };
        if files::is_standard(to) {
            // Standard output carries the file, so notes go to standard error.
            return notes.print(&mut std::io::stderr());
        }
        if self.json {
            let report = report::Conversion {
                files: written.files,
                index: written.index,
                tensors,
                losses: notes.lost_items(),
                unconverted: unconverted.into_iter().map(|(name, _)| name).collect(),
                elapsed_ms: start.elapsed().as_secs_f64() * 1e3,
            };
            return Ok(report::print(&report, out)?);
        }
        notes.print(out)?;
        written.print(out)
    }

    /// Writes the tensors to standard output, to shards or to the file `to`.
    fn write(
        &self,
        reader: &dyn TensorReader,
        format: &dyn Format,
        to: &Path,
        options: &ConvertOptions<'_>,
        out: &mut (impl Write + Send),
    ) -> Outcome<ConversionOutput> {
        if files::is_standard(to) {
            let converted = tensor_files::convert_into(reader, format, out, options).about(to);
            return Ok(ConversionOutput {
                files: Vec::new(),
                index: None,
                losses: converted.map_err(unless_interrupted)?.losses,
            });
        }
        if let Some(max_bytes) = self.max_shard_size {
            let shards = ShardOptions::at_most(max_bytes);
            let sharded = tensor_files::convert_sharded(reader, format, to, &shards, options).about(to);
            let sharded = sharded.map_err(unless_interrupted)?;
            let files = sharded.files.iter();
            return Ok(ConversionOutput {
                files: files.map(|file| report::WrittenFile::at(file)).collect(),
                index: sharded.index.map(|index| index.display().to_string()),
                losses: sharded.losses,
            });
        }
        let converted = tensor_files::convert(reader, format, to, options).about(to);
        let losses = converted.map_err(unless_interrupted)?.losses;
        Ok(ConversionOutput {
            files: vec![report::WrittenFile::at(to)],
            index: None,
            losses,
        })
    }

    /// Returns the path of the output file; for an output directory, the base name of the shards in the
    /// directory.
    fn file_name(&self, sources: &Composite<'_>) -> Outcome<PathBuf> {
        let is_folder = self.to.is_dir() || self.to.as_os_str().to_string_lossy().ends_with('/');
        if files::is_standard(self.to) && self.max_shard_size.is_some() {
            let error = Error::new(
                ErrorKind::Unsupported,
                "several files cannot be written to standard output",
            );
            return Err(error.expected("a directory, or a name")).about(self.to);
        }
        if !is_folder {
            return Ok(self.to.to_owned());
        }
        if self.max_shard_size.is_none() {
            let error = Error::new(ErrorKind::NotAFile, "the target is a directory");
            return Err(error.expected("the name of a file, or --max-shard-size for several")).about(self.to);
        }
        let id = self.target.format.as_deref().unwrap_or(sources.format());
        let extensions = tensor_files::format(id).map_or(&[][..], |format| format.extensions());
        let extension = extensions.first().copied().unwrap_or(id);
        Ok(self.to.join(format!("model.{extension}")))
    }
}

/// Returns the metadata keys whose values differ between the files; the first file's value is kept.
fn conflicts(sources: &Composite<'_>, target: &Target) -> Result<Vec<(String, String)>, Error> {
    let mut conflicts = sources
        .conflicts()
        .map(|(key, file)| (key.to_owned(), file.to_owned()));
    if let (true, Some((key, file))) = (target.strict, conflicts.next()) {
        let what = format!("the files have different values for {}", QuotedName(&key));
        return Err(Error::new(ErrorKind::Duplicate, what).found(format_args!("another value in {file}")));
    }
    let conflicts = sources
        .conflicts()
        .map(|(key, file)| (key.to_owned(), file.to_owned()));
    Ok(conflicts.collect())
}

fn allowed(target: &Target) -> AllowedLoss {
    let has = |kind| target.allow_loss.contains(&LossKind::All) || target.allow_loss.contains(&kind);
    AllowedLoss {
        tensors: has(LossKind::Tensors),
        sparsity: has(LossKind::Sparsity),
        names: has(LossKind::Names) || target.no_sidecar,
        metadata: !target.strict,
        foreign_parts: has(LossKind::Parts),
        range: has(LossKind::Range),
    }
}

/// What the user must know about a conversion: losses, conflicts, and tensors that were not converted.
struct Notes<'n> {
    losses: &'n [Loss],
    conflicts: &'n [(String, String)],
    /// Tensors that --dtype did not convert, with their dtypes.
    unconverted: &'n [(String, DType)],
}

impl Notes<'_> {
    /// Returns what was lost, including the values that differ between files, for the report in JSON.
    fn lost_items(&self) -> Vec<report::LostItem> {
        let losses = self.losses.iter().map(report::LostItem::of);
        let conflicts = self.conflicts.iter();
        let conflicts = conflicts.map(|(key, file)| report::LostItem::conflict(key, file));
        losses.chain(conflicts).collect()
    }

    /// Prints what was lost or dropped, one line per kind.
    fn print(&self, out: &mut dyn Write) -> Outcome {
        const SHOWN: usize = 5;
        let (mut keys, mut attributes, mut dtypes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut tied, mut bytes_again) = (Vec::new(), 0u64);
        for loss in self.losses {
            match loss {
                Loss::Metadata(key) => keys.push(QuotedName(key).to_string()),
                Loss::Attribute(tensor, key) => {
                    attributes.push(format!("{} of {}", QuotedName(key), QuotedName(tensor)));
                }
                Loss::DType(tensor, dtype) => dtypes.push(format!("{dtype} of {}", QuotedName(tensor))),
                Loss::Sharing(tensor, of, bytes) => {
                    tied.push(format!("{} with {}", QuotedName(tensor), QuotedName(of)));
                    bytes_again = bytes_again.saturating_add(*bytes);
                }
                other => writeln!(out, "lost: {other}")?,
            }
        }
        let unconverted = self.unconverted.iter();
        let unconverted = unconverted.map(|(name, dtype)| format!("{dtype} of {}", QuotedName(name)));
        let lines = [
            ("dropped metadata", keys),
            ("dropped attributes", attributes),
            ("stored as bits", dtypes),
            ("not floats, left as they are", unconverted.collect()),
        ];
        for (what, of) in lines {
            if of.is_empty() {
                continue;
            }
            let more = match of.len().saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            writeln!(out, "{what}: {}{more}", of[..of.len().min(SHOWN)].join(", "))?;
        }
        if let Some((first, more)) = tied.split_first() {
            let more = match more.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            writeln!(
                out,
                "written again, since the format cannot share bytes: {first}{more}, {} together",
                table::size(bytes_again)
            )?;
        }
        for (key, file) in self.conflicts {
            writeln!(
                out,
                "dropped metadata: {} of {file}: an earlier file has another value",
                QuotedName(key)
            )?;
        }
        Ok(())
    }
}
