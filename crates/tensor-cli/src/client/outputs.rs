//! Writes outputs to files, or prints them as a table.

use std::{
    io::Write,
    ops::Range,
    path::{Path, PathBuf},
};

use fmt_core::{
    AtomicFile, Entry, Error, ErrorKind, Format, Lint, Metadata, OpaqueDType, Plan, PlannedEntry,
    StoredDType, TensorReader, Verification,
};
use oip_types::{
    DataType, InferOutput, InferResponse, ModelMetadata, TensorValue,
    rest::{self, BinaryOutputs, NonFinite},
};
use tensor_core::{Shape, Tensor};
use tensor_files::{ConvertOptions, Loss};

use crate::{
    client::{
        mismatch,
        options::{Target, TextForm},
        texts,
    },
    failure::{About, Outcome},
    table,
};

/// Returns the names of the outputs that the targets name. An empty list means all outputs.
pub(super) fn named(targets: &[Target]) -> Vec<String> {
    let mut names = Vec::new();
    for target in targets {
        match target {
            Target::All(_) | Target::Text(None, ..) => return Vec::new(),
            Target::One(name, _) | Target::Lines(name, _) | Target::Text(Some(name), ..)
                if !names.contains(name) =>
            {
                names.push(name.clone());
            }
            Target::One(..) | Target::Lines(..) | Target::Text(..) => {}
        }
    }
    names
}

/// Checks whether the outputs can be written, as far as the metadata shows, before a run that may take a long
/// time.
pub(super) fn check(targets: &[Target], metadata: &ModelMetadata, wanted: &[String]) -> Outcome {
    let promised = metadata.outputs.iter();
    let promised = promised.filter(|output| wanted.is_empty() || wanted.contains(&output.name));
    let example = promised.map(|output| {
        let dims: Vec<u64> = output.shape.dims().iter().map(|dim| dim.unwrap_or(1)).collect();
        let shape = Shape::new(&dims).unwrap_or_else(|_| Shape::vector(1));
        (output.name.clone(), output.datatype, shape)
    });
    let example: Vec<_> = example.collect();
    for target in targets
        .iter()
        .filter(|target| !matches!(target, Target::Text(..)))
    {
        let of_target = example.iter().filter(|(name, ..)| target.takes(name));
        let entries = of_target
            .map(|(name, datatype, shape)| target.entry(name, *datatype, shape.clone()))
            .collect::<Outcome<Vec<_>>>()?;
        if let Some((path, format)) = target.format()?
            && !entries.is_empty()
        {
            accepted(&Outputs::of(entries, Vec::new()), format).about(path)?;
        }
    }
    Ok(())
}

/// Writes the outputs to files; each file appears atomically when complete.
pub(super) fn write(targets: &[Target], response: &InferResponse) -> Outcome {
    for target in targets {
        let outputs = response
            .outputs
            .iter()
            .filter(|output| target.takes(&output.name));
        let outputs: Vec<_> = outputs.collect();
        if outputs.is_empty() {
            let wanted = target
                .name()
                .map_or("an output".to_owned(), |name| format!("output '{name}'"));
            return Err(mismatch(format!("expected {wanted} in the response, found none")));
        }
        if let Target::Text(_, path, form) = target {
            write_text(path, *form, response, &outputs)?;
            continue;
        }
        let Some((path, format)) = target.format()? else {
            write_lines(target, &outputs[0].value)?;
            continue;
        };
        let (mut entries, mut tensors) = (Vec::new(), Vec::new());
        for output in outputs {
            let shape = output.value.shape().clone();
            let mut entry = target.entry(&output.name, output.value.datatype(), shape)?;
            match &output.value {
                TensorValue::Fixed(tensor) => tensors.push(tensor.clone()),
                TensorValue::Bytes(elements) => {
                    let texts = texts::write(elements).map_err(|error| error.of_tensor(&output.name));
                    let (dtype, tensor) = texts.about(path)?;
                    entry.dtype = StoredDType::Opaque(dtype);
                    tensors.push(tensor);
                }
            }
            entries.push(entry);
        }
        let outputs = Outputs::of(entries, tensors);
        let options = accepted(&outputs, format).about(path)?;
        tensor_files::convert(&outputs, format, path, &options).about(path)?;
    }
    Ok(())
}

/// Returns the options for writing outputs in a format: a single output may lose its name, because the
/// command line names it.
fn accepted(outputs: &Outputs, format: &dyn Format) -> Result<ConvertOptions<'static>, Error> {
    let mut options = ConvertOptions::default();
    let losses = tensor_files::losses(outputs, format, &options);
    let is_only_a_name = losses == [Loss::Names] && outputs.entries.len() == 1;
    options.allow_loss.names = is_only_a_name;
    if let Some(loss) = losses.first().filter(|_| !is_only_a_name) {
        let what = format!("{} cannot hold {loss}", format.id());
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let entries = outputs.entries.iter().enumerate().filter_map(|(index, entry)| {
        let name = if is_only_a_name {
            index.to_string()
        } else {
            entry.name.clone()
        };
        match &entry.dtype {
            StoredDType::Opaque(dtype) => PlannedEntry::opaque(name, dtype.clone(), entry.shape.clone()),
            _ => Some(PlannedEntry::dense(name, entry.spec()?)),
        }
    });
    let plan = Plan {
        entries: entries.collect(),
        ..Plan::default()
    };
    // A format without names rejects the plan's names here. That loss was checked above, so the error is
    // ignored.
    match format.create(Box::new(std::io::sink()), plan).err() {
        Some(error) if error.kind() != ErrorKind::BadName => Err(error),
        _ => Ok(options),
    }
}

/// Prints the response as the protocol's JSON; floats that JSON cannot express become strings.
pub(super) fn print_json(response: &InferResponse, out: &mut impl Write) -> Outcome {
    let body = rest::encode_response(response, &BinaryOutputs::default(), NonFinite::String);
    let body = body.map_err(|error| mismatch(error.message()))?;
    out.write_all(&body.into_bytes())?;
    Ok(writeln!(out)?)
}

/// Writes outputs to a text file, as the protocol's JSON or as CSV.
fn write_text(path: &Path, form: TextForm, response: &InferResponse, outputs: &[&InferOutput]) -> Outcome {
    let text = match form {
        TextForm::Csv => csv(response, outputs)?,
        TextForm::Json => {
            let mut chosen = response.clone();
            chosen.outputs = outputs.iter().map(|output| (*output).clone()).collect();
            let mut text = Vec::new();
            print_json(&chosen, &mut text)?;
            text
        }
    };
    let mut file = AtomicFile::create(path).about(path)?;
    file.write_all(&text)
        .map_err(|error| Error::io("the file cannot be written", error))
        .about(path)?;
    file.persist().about(path)
}

/// Writes the rows of all outputs next to each other, one column per value, below a header line.
fn csv(response: &InferResponse, outputs: &[&InferOutput]) -> Outcome<Vec<u8>> {
    let rows_of = |output: &InferOutput| output.value.shape().dims().first().copied().unwrap_or(1);
    let rows = outputs.first().map_or(0, |output| rows_of(output));
    if let Some(other) = outputs.iter().find(|output| rows_of(output) != rows) {
        return Err(mismatch(format!(
            "CSV has one number of rows, output '{}' has {rows} and '{}' {}; --output NAME=FILE.csv writes one output",
            outputs[0].name,
            other.name,
            rows_of(other)
        )));
    }
    let mut header = Vec::new();
    let mut columns = Vec::new();
    for output in outputs {
        let data = fields(response, output)?;
        let width = (data.len() as u64).checked_div(rows).unwrap_or(0) as usize;
        match output.value.shape().dims().len() {
            0 | 1 => header.push(output.name.clone()),
            _ => header.extend((0..width).map(|column| format!("{}_{column}", output.name))),
        }
        columns.push((data, width));
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&header).map_err(mismatch)?;
    for row in 0..rows as usize {
        let fields = columns
            .iter()
            .flat_map(|(data, width)| &data[row * width..(row + 1) * width]);
        writer.write_record(fields).map_err(mismatch)?;
    }
    writer.into_inner().map_err(mismatch)
}

/// Returns the elements of an output as strings, formatted as in the protocol's JSON, so that they parse back
/// exactly.
fn fields(response: &InferResponse, output: &InferOutput) -> Outcome<Vec<String>> {
    if let Some(elements) = output.value.as_bytes() {
        let texts = elements.iter().map(|element| {
            let text = std::str::from_utf8(element);
            text.map(str::to_owned)
                .map_err(|_| mismatch(format!("output '{}' has strings that are not UTF-8", output.name)))
        });
        return texts.collect();
    }
    let mut alone = response.clone();
    alone.outputs = vec![output.clone()];
    let mut json = Vec::new();
    print_json(&alone, &mut json)?;
    let json = String::from_utf8(json).map_err(mismatch)?;
    // The last list is the data: numbers, booleans, and quoted floats that JSON cannot express. No element
    // contains a comma.
    let data = json.rsplit_once("\"data\":[").map_or("", |(_, data)| data);
    let data = data.split_once(']').map_or("", |(data, _)| data);
    let elements = data.split(',').filter(|element| !element.is_empty());
    Ok(elements
        .map(|element| element.trim_matches('"').to_owned())
        .collect())
}

fn write_lines(target: &Target, value: &TensorValue) -> Outcome {
    let Target::Lines(name, path) = target else {
        return Ok(());
    };
    let Some(bytes) = value.as_bytes() else {
        return Err(no_lines(name, value.datatype()));
    };
    let mut file = AtomicFile::create(path).about(path)?;
    for (index, element) in bytes.iter().enumerate() {
        if element.contains(&b'\n') {
            let message =
                format!("output '{name}': element {index} has more than one line, and cannot be one");
            return Err(mismatch(message));
        }
        let written = file.write_all(element).and_then(|()| file.write_all(b"\n"));
        written
            .map_err(|error| Error::io("the file cannot be written", error))
            .about(path)?;
    }
    file.persist().about(path)
}

fn no_lines(name: &str, found: DataType) -> crate::failure::Failure {
    mismatch(format!(
        "output '{name}' is {found}, and only BYTES become lines of text; give a file of tensors without the @"
    ))
}

impl Target {
    /// Returns the name of the output that the target is for; `None` if the target takes all outputs.
    fn name(&self) -> Option<&str> {
        match self {
            Self::All(_) | Self::Text(None, ..) => None,
            Self::One(name, _) | Self::Lines(name, _) | Self::Text(Some(name), ..) => Some(name),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::All(path) | Self::One(_, path) | Self::Lines(_, path) | Self::Text(_, path, _) => path,
        }
    }

    fn takes(&self, output: &str) -> bool {
        self.name().is_none_or(|name| name == output)
    }

    /// Returns the path and format of the tensor file; `None` if the target is a text file.
    fn format(&self) -> Outcome<Option<(&PathBuf, &'static dyn Format)>> {
        let (Self::All(path) | Self::One(_, path)) = self else {
            return Ok(None);
        };
        let format = tensor_files::format_of_path(path).ok_or_else(|| {
            let known: Vec<&str> = tensor_files::formats()
                .iter()
                .flat_map(|format| format.extensions())
                .copied()
                .collect();
            Error::new(
                ErrorKind::Unsupported,
                "the extension is not that of a known format",
            )
            .expected(format_args!("one of {}", known.join(", ")))
        });
        Ok(Some((path, format.about(path)?)))
    }

    /// Returns an entry with which to check whether the target can hold an output, before its values are
    /// known.
    fn entry(&self, name: &str, datatype: DataType, shape: Shape) -> Outcome<Entry> {
        match (self, datatype) {
            (Self::Lines(..), DataType::Fixed(_)) => Err(no_lines(name, datatype)),
            (Self::All(path) | Self::One(_, path), DataType::Bytes) => {
                let format = tensor_files::format_of_path(path);
                if format.is_none_or(|format| !["npy", "npz"].contains(&format.id())) {
                    return Err(mismatch(format!(
                        "output '{name}' is BYTES, which only .npy and .npz can hold of the files of tensors; --output \
                         {name}=@FILE makes it lines of text, and --outputs leaves it out"
                    )));
                }
                // The string length is not known before the run.
                let dtype = StoredDType::Opaque(OpaqueDType::new("S1", 1, 1));
                let mut entry = Entry::new(name.to_owned(), dtype, shape, 0..0);
                entry.unsupported = Some("strings are not numbers".to_owned());
                Ok(entry)
            }
            // The entry is only a placeholder, because text files have no entries.
            (_, datatype) => {
                let dtype = datatype.dtype().unwrap_or(tensor_core::DType::U8);
                Ok(Entry::new(
                    name.to_owned(),
                    StoredDType::Known(dtype),
                    shape,
                    0..0,
                ))
            }
        }
    }
}

/// The outputs as a tensor file in memory, from which the format writers read.
struct Outputs {
    entries: Vec<Entry>,
    tensors: Vec<Tensor>,
    metadata: Metadata,
}

impl Outputs {
    fn of(entries: Vec<Entry>, tensors: Vec<Tensor>) -> Self {
        Self {
            entries,
            tensors,
            metadata: Metadata::new(),
        }
    }
}

impl TensorReader for Outputs {
    fn format(&self) -> &'static str {
        "memory"
    }

    fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        Ok(self.tensors[index].clone())
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        let taken = self.tensors[index].rows(rows);
        taken.map_err(|error| Error::new(ErrorKind::OutOfBounds, error.to_string()))
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        let bytes = self.tensors[index].bytes();
        if bytes.len() != out.len() {
            let error = Error::new(ErrorKind::SizeMismatch, "the buffer for a tensor");
            return Err(error.expected(bytes.len()).found(out.len()));
        }
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn verify(&self, _: usize) -> Result<Verification, Error> {
        Ok(Verification::Unchecked)
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        Ok(Vec::new())
    }
}

/// Prints the outputs: names, datatypes, shapes and the first values.
pub(super) fn print(response: &InferResponse, out: &mut impl Write) -> Outcome {
    let header = ["NAME", "DATATYPE", "SHAPE", "VALUES"].map(str::to_owned);
    let rows = response.outputs.iter().map(|output| {
        [
            table::text(&output.name),
            output.value.datatype().to_string(),
            output.value.shape().to_string(),
            first_values(&output.value),
        ]
    });
    let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
    Ok(table::print(out, &rows, &[])?)
}

/// Formats the first values of a tensor in one short line.
fn first_values(value: &TensorValue) -> String {
    /// Number of values shown.
    const SHOWN: u64 = 6;
    /// Number of characters shown of a byte string.
    const LETTERS: usize = 24;
    let count = value.shape().element_count();
    let mut shown: Vec<String> = match value {
        TensorValue::Bytes(bytes) => {
            let text = |element: &[u8]| {
                let text = table::text(&String::from_utf8_lossy(element));
                match text.char_indices().nth(LETTERS) {
                    Some((end, _)) => format!("\"{}…\"", &text[..end]),
                    None => format!("\"{text}\""),
                }
            };
            bytes.iter().take(SHOWN as usize).map(text).collect()
        }
        TensorValue::Fixed(tensor) => {
            let first = tensor
                .reshape(Shape::vector(count))
                .and_then(|flat| flat.rows(0..count.min(SHOWN)));
            let each = |first: Tensor| -> Vec<String> {
                let single = |index| first.rows(index..index + 1).map(|one| one.to_string());
                let values = (0..first.shape().element_count()).filter_map(|index| single(index).ok());
                values
                    .map(|text| text.trim_matches(['[', ']']).trim().to_owned())
                    .collect()
            };
            first.map(each).unwrap_or_default()
        }
    };
    if count > SHOWN {
        shown.push("...".to_owned());
    }
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use oip_types::{BytesTensor, InferOutput};

    use super::*;

    /// Numbers written as CSV parse back to identical values.
    #[test]
    fn numbers_in_csv_keep_their_digits() {
        let singles = [1.848_701_4e-29_f32, -0.1, f32::NAN, f32::INFINITY];
        let doubles = [5.886_890_400_000_000_5e-30_f64, 0.1 + 0.2, 1e300, -0.0];
        let large = [i64::MAX, i64::MIN, 0, 1];
        let tensor = |shape: &[u64]| Shape::new(shape).unwrap();
        let response = InferResponse::new(
            "m",
            vec![
                InferOutput::new("f", Tensor::from_vec(tensor(&[2, 2]), singles.to_vec()).unwrap()),
                InferOutput::new("d", Tensor::from_vec(tensor(&[2, 2]), doubles.to_vec()).unwrap()),
                InferOutput::new("i", Tensor::from_vec(tensor(&[2, 2]), large.to_vec()).unwrap()),
                InferOutput::new(
                    "t",
                    BytesTensor::from_elements(tensor(&[2]), ["a,\"b\"]", ""]).unwrap(),
                ),
            ],
        )
        .with_id(Some("\"data\":[7]".to_owned()));
        let outputs: Vec<&InferOutput> = response.outputs.iter().collect();
        let text = csv(&response, &outputs).unwrap();
        let mut rows = csv::Reader::from_reader(&text[..]);
        let rows: Vec<Vec<String>> = rows
            .records()
            .map(|row| row.unwrap().iter().map(str::to_owned).collect())
            .collect();
        assert_eq!(rows[0][0].parse::<f32>().unwrap(), singles[0]);
        assert_eq!(rows[0][0], "1.8487014e-29");
        assert!(rows[1][0].parse::<f32>().unwrap().is_nan());
        assert_eq!(rows[1][1].parse::<f32>().unwrap(), f32::INFINITY);
        let column = |column: usize| {
            [
                &rows[0][column],
                &rows[0][column + 1],
                &rows[1][column],
                &rows[1][column + 1],
            ]
        };
        assert!(column(2).map(|text| text.parse::<f64>().unwrap().to_bits()) == doubles.map(f64::to_bits));
        assert_eq!(column(4).map(|text| text.parse::<i64>().unwrap()), large);
        assert_eq!((rows[0][6].as_str(), rows[1][6].as_str()), ("a,\"b\"]", ""));
    }

    /// An element that contains a line break would be read back as two elements, so it is rejected.
    #[test]
    fn elements_of_several_lines_do_not_become_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("y.txt");
        std::fs::write(&path, "precious").unwrap();
        let elements = BytesTensor::from_elements(Shape::vector(2), ["a", "b\nc"]).unwrap();
        let response = InferResponse::new("m", vec![InferOutput::new("y", elements)]);
        let error = write(&[Target::Lines("y".into(), path.clone())], &response).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("output 'y': element 1 has more than one line"),
            "{error}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = write(&[Target::Lines("z".into(), path)], &response).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("expected output 'z' in the response, found none"),
            "{error}"
        );
    }
}
