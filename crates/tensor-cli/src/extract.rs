//! `tensor extract`: one tensor, or some of its rows, into a file of its own.

use std::io::{self, Write};

use fmt_core::{Error, ErrorKind, OutputFile, Plan, PlannedEntry};
use tensor_core::Bytes;

use crate::{
    failure::{About, Outcome},
    files, inspect,
    options::{Extract, Rows},
    pieces,
    progress::Progress,
};

pub(crate) fn run(options: &Extract, out: &mut impl Write) -> Outcome {
    let (path, target) = (&options.file, &options.output);
    files::check_local(target)?;
    let reader = files::open(path)?;
    let index = inspect::find(&*reader, &options.tensor).about(path)?;
    let (spec, mut parts): (_, Box<dyn Iterator<Item = Result<Bytes, Error>>>) = match options.rows {
        Some(rows) => {
            let (from, to) = bounds(rows, reader.entries()[index].shape.dims())
                .map_err(|error| error.of_tensor(&options.tensor))
                .about(path)?;
            let rows = reader.rows(index, from..to).about(path)?;
            let spec = rows.spec().clone();
            (Some(spec), Box::new(std::iter::once(Ok(rows.into_bytes()))))
        }
        None => {
            let spec = reader.entries()[index].spec();
            (spec, Box::new(pieces::parts(&*reader, index).about(path)?))
        }
    };
    let total = spec.as_ref().map_or(0, tensor_core::TensorSpec::byte_len);
    let mut progress = Progress::new(total);
    let mut copy = |sink: &mut dyn FnMut(&[u8]) -> Result<(), Error>| -> Outcome {
        for part in parts.by_ref() {
            let part = part.about(path)?;
            sink(&part).about(target)?;
            progress.advance(part.len() as u64)?;
        }
        Ok(())
    };
    if files::is_standard(target) {
        return copy(&mut |bytes| {
            out.write_all(bytes)
                .map_err(|error| Error::io("standard output", error))
        });
    }
    let is_npy = target.extension().is_some_and(|extension| extension == "npy");
    if is_npy && spec.is_none() {
        let error = Error::new(
            ErrorKind::Unsupported,
            "NumPy's files have no place for the dtype",
        );
        let error = error
            .of_tensor(&options.tensor)
            .expected("a target of another name, for the bytes as they are");
        return Err(error).about(path);
    }
    let output = files::output_options(options.no_clobber, std::slice::from_ref(path));
    let mut file = OutputFile::create(target, &output).about(target)?;
    match spec.filter(|_| is_npy) {
        Some(spec) => {
            let format = &fmt_npy::Npy;
            let plan = Plan {
                entries: vec![PlannedEntry::dense(options.tensor.clone(), spec)],
                ..Plan::default()
            };
            let mut writer = create(format, &mut file, plan).about(target)?;
            copy(&mut |bytes| writer.write(bytes))?;
            writer.finish().about(target)?;
        }
        None => copy(&mut |bytes| {
            file.write_all(bytes)
                .map_err(|error| Error::io("the file cannot be written", error))
        })?,
    }
    file.publish().about(target)
}

/// Begins a file of one tensor; formats that have no names need none.
fn create<'w>(
    format: &dyn fmt_core::Format,
    file: &'w mut OutputFile,
    mut plan: Plan,
) -> Result<Box<dyn fmt_core::TensorWriter + 'w>, Error> {
    let refused = format.create(Box::new(io::sink()), plan.clone()).err();
    if refused.is_some_and(|error| error.kind() == ErrorKind::BadName) {
        plan.entries[0].name = "0".to_owned();
    }
    format.create(Box::new(file), plan)
}

fn bounds(rows: Rows, dims: &[u64]) -> Result<(u64, u64), Error> {
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
    Ok((from, to))
}
