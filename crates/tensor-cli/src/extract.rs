//! `tensor extract`: writes one tensor, some rows of it, or several tensors to a file.

use std::{
    io::{self, Write},
    ops::Range,
    path::Path,
    time::Instant,
};

use fmt_core::{Error, ErrorKind, Format, OutputFile, Plan, PlannedEntry, TensorReader};
use tensor_files::{AllowedLoss, Composite, ConvertOptions, Loss, Recast};

use crate::{
    failure::{About, Outcome},
    files, inspect,
    options::{Extract, Rows},
    pieces::{self, Pieces},
    report,
    sources::{self, unless_interrupted},
};

/// Returns an error that names the first loss, if any data was lost while writing.
fn refuse_loss(lost: &[Loss], path: &Path) -> Outcome {
    lost.first().map_or(Ok(()), |loss| {
        let error = Error::new(ErrorKind::Unsupported, format!("the dtype cannot hold {loss}"));
        Err(error).about(path)
    })
}

pub(crate) fn run(options: &Extract, out: &mut (impl Write + Send)) -> Outcome {
    let (path, target, start) = (&*options.file, &*options.output, Instant::now());
    files::check_local(target)?;
    let source_files = files::source_files(std::slice::from_ref(&options.file));
    let sources = sources::watched(open_selected(options)?);
    let recast = options.choosing.recast(&sources).about(path)?;
    let reader: &dyn TensorReader = match &recast {
        Some(recast) => recast,
        None => &sources,
    };
    let format = tensor_files::format_of_path(target)
        .filter(|format| !files::is_standard(target) && format.is_written());
    let output = files::output_options(options.no_clobber, std::slice::from_ref(&options.file));
    let late = || recast.as_ref().map(Recast::losses).unwrap_or_default();
    match (format, options.rows) {
        (Some(format), None) => {
            let options = ConvertOptions {
                // An extracted part of a file need not carry the metadata of the whole file.
                allow_loss: AllowedLoss {
                    names: true,
                    metadata: true,
                    foreign_parts: true,
                    ..AllowedLoss::NONE
                },
                names_beside: false,
                sources: source_files,
                output,
                lost_on_the_way: Some(&late),
                ..ConvertOptions::default()
            };
            let converted = tensor_files::convert(reader, format, target, &options);
            converted.map(drop).about(path).map_err(unless_interrupted)?;
        }
        (format, rows) => {
            let one = One::new(reader, rows).about(path)?;
            if files::is_standard(target) {
                one.print(out).about(path).map_err(unless_interrupted)?;
                // The output is already written and cannot be undone, but the command fails.
                return refuse_loss(&late(), path);
            }
            let output = source_files.output_for(target, &output);
            let mut file = OutputFile::create(target, &output).about(target)?;
            one.write(format, &mut file)
                .about(path)
                .map_err(unless_interrupted)?;
            refuse_loss(&late(), path)?;
            file.persist().about(target)?;
        }
    }
    let tensors = sources.entries().len();
    drop(recast);
    drop(sources);
    if options.json && !files::is_standard(target) {
        let report = report::Conversion::of_one(Path::new(target), tensors, start);
        report::print(&report, out)?;
    }
    Ok(())
}

/// Opens the file, and selects the tensors to extract.
fn open_selected(options: &Extract) -> Outcome<Composite<'static>> {
    let path = &*options.file;
    let mut sources = files::open(path)?;
    if let Some(name) = &options.tensor {
        let wanted = inspect::find(&sources, name).about(path)?;
        let mut indices = 0..;
        sources.retain(|_| indices.next() == Some(wanted));
    }
    options.choosing.select(&mut [&mut sources]).about(path)?;
    Ok(sources)
}

/// The tensor to extract, or some of its rows.
struct One<'r> {
    reader: &'r dyn TensorReader,
    rows: Option<Range<u64>>,
}

impl<'r> One<'r> {
    fn new(reader: &'r dyn TensorReader, rows: Option<Rows>) -> Result<Self, Error> {
        let [entry] = reader.entries() else {
            let error = Error::new(
                ErrorKind::Unsupported,
                "rows and raw bytes need exactly one tensor",
            );
            return Err(error.found(format_args!("{} tensors", reader.entries().len())));
        };
        let rows = rows.map(|rows| bounds(rows, entry.shape.dims()));
        let rows = rows.transpose().map_err(|error| error.of_tensor(&entry.name))?;
        Ok(Self { reader, rows })
    }

    fn pieces(&self) -> Result<Pieces<'r>, Error> {
        match &self.rows {
            Some(rows) => pieces::rows(self.reader, 0, rows.clone()),
            None => pieces::parts(self.reader, 0),
        }
    }

    fn copy(&self, sink: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        self.pieces()?.try_for_each(|piece| sink(&piece?))
    }

    /// Writes the tensor's bytes to standard output.
    fn print(&self, out: &mut impl Write) -> Result<(), Error> {
        let failed = |error| Error::io("standard output", error);
        self.copy(&mut |bytes| out.write_all(bytes).map_err(failed))
    }

    /// Writes the tensor as a file of `format`, or as raw bytes without a format.
    fn write(&self, format: Option<&dyn Format>, file: &mut OutputFile) -> Result<(), Error> {
        let entry = &self.reader.entries()[0];
        let Some(format) = format else {
            let failed = |error| Error::io("the file cannot be written", error);
            return self.copy(&mut |bytes| file.write_all(bytes).map_err(failed));
        };
        let spec = entry.spec().ok_or_else(|| {
            let error = Error::new(
                ErrorKind::Unsupported,
                "elements that can only be copied have no rows",
            );
            error.of_tensor(&entry.name)
        })?;
        let spec = match &self.rows {
            Some(rows) => fmt_core::row_range(&spec, rows.clone())?.0,
            None => spec,
        };
        let plan = Plan {
            entries: vec![PlannedEntry::dense(entry.name.clone(), spec)],
            ..Plan::default()
        };
        let mut writer = create(format, file, plan)?;
        self.copy(&mut |bytes| writer.write(bytes))?;
        writer.finish().map(drop)
    }
}

/// Starts a file of one tensor. If the format cannot store the tensor's name, the tensor is named "0".
fn create<'w>(
    format: &dyn Format,
    file: &'w mut OutputFile,
    mut plan: Plan,
) -> Result<Box<dyn fmt_core::TensorWriter + 'w>, Error> {
    let refused = format.create(Box::new(io::sink()), plan.clone()).err();
    if refused.is_some_and(|error| error.kind() == ErrorKind::BadName) {
        plan.entries[0].name = "0".to_owned();
    }
    format.create(Box::new(file), plan)
}

fn bounds(rows: Rows, dims: &[u64]) -> Result<Range<u64>, Error> {
    let Some(&count) = dims.first() else {
        return Err(Error::new(ErrorKind::OutOfBounds, "a scalar has no rows"));
    };
    let (from, to) = (rows.from.unwrap_or(0), rows.to.unwrap_or(count));
    if from > to || to > count {
        let error = Error::new(ErrorKind::OutOfBounds, "there are no such rows");
        return Err(error
            .expected(format_args!("rows within 0:{count}"))
            .found(format_args!("{from}:{to}")));
    }
    Ok(from..to)
}
