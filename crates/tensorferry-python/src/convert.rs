//! Converts files, like `tensor convert`.

use std::{ops::ControlFlow, path::PathBuf};

use fmt_core::{Error, Format, ReadOptions, TensorReader};
use parking_lot::Mutex;
use pyo3::prelude::*;
use tensor_core::{DType, DTypeKind};
use tensor_files::{
    AllowedLoss, Composite, ConvertOptions, Loss, Pattern, Progress, Recast, Renaming, Selection,
    ShardOptions, SourceFiles,
};

use crate::{error, error_recording::RecordingReader};

/// Target format and options of a conversion.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Options {
    format: Option<String>,
    allow_loss: bool,
    strict: bool,
    dtype: Option<String>,
    keep_dtype: Vec<String>,
    include: Vec<String>,
    exclude: Vec<String>,
    rename: Vec<String>,
    max_shard_size: Option<u64>,
    /// Progress callback: bytes written so far, and total.
    progress: Option<Py<PyAny>>,
}

/// Converts a file. Returns the losses: data that the target format cannot hold.
#[pyfunction]
pub(crate) fn convert(
    py: Python<'_>,
    source: PathBuf,
    target: PathBuf,
    options: Options,
) -> PyResult<Vec<String>> {
    let job = Job::new(source, target, &options)?;
    // The exception of the callback, which ends the conversion.
    let raised: Mutex<Option<PyErr>> = Mutex::new(None);
    let report = |progress: Progress| {
        Python::attach(|py| {
            let called = match &options.progress {
                Some(call) => call.call1(py, (progress.done, progress.total)).map(drop),
                None => Ok(()),
            };
            match called.and_then(|()| py.check_signals()) {
                Ok(()) => ControlFlow::Continue(()),
                Err(raising) => {
                    *raised.lock() = Some(raising);
                    ControlFlow::Break(())
                }
            }
        })
    };
    let converted = py.detach(|| job.run(&report));
    if let Some(raised) = raised.lock().take() {
        return Err(raised);
    }
    let losses = converted.map_err(|(error, path)| error::of_file(py, &error, Some(path)))?;
    Ok(losses.iter().map(ToString::to_string).collect())
}

/// A conversion with its parsed options.
struct Job {
    source: PathBuf,
    target: PathBuf,
    format: &'static dyn Format,
    selection: Selection,
    /// The tensors that keep their dtype.
    kept: Vec<Pattern>,
    dtype: Option<DType>,
    allow_loss: AllowedLoss,
    max_shard_size: Option<u64>,
}

impl Job {
    fn new(source: PathBuf, target: PathBuf, options: &Options) -> PyResult<Self> {
        let format = crate::save::wanted_format(&target, options.format.as_deref())?;
        let mut selection = Selection::default();
        selection.include = parsed("include", &options.include)?;
        selection.exclude = parsed("exclude", &options.exclude)?;
        selection.rename = parsed::<Renaming>("rename", &options.rename)?;
        Ok(Self {
            source,
            target,
            format,
            selection,
            kept: parsed("keep_dtype", &options.keep_dtype)?,
            dtype: options.dtype.as_deref().map(float).transpose()?,
            allow_loss: AllowedLoss {
                metadata: !options.strict,
                ..if options.allow_loss {
                    AllowedLoss::ALL
                } else {
                    AllowedLoss::NONE
                }
            },
            max_shard_size: options.max_shard_size,
        })
    }

    /// Converts the file, and returns the losses. An error names the file that it is about.
    fn run(
        &self,
        report: &(dyn Fn(Progress) -> ControlFlow<()> + Sync),
    ) -> Result<Vec<Loss>, (Error, &PathBuf)> {
        let (source, target) = (&self.source, &self.target);
        let of_source = |error: Error| (error, source);
        let sources = SourceFiles::of([&**source]);
        let opened = tensor_files::open(source, &ReadOptions::default()).map_err(of_source)?;
        let noted = RecordingReader::new(&*opened);
        let mut files = Composite::new(source.display().to_string(), &noted as &dyn TensorReader);
        if !self.selection.is_everything() {
            self.selection.apply(&mut [&mut files]).map_err(of_source)?;
        }
        let stays = |index| {
            let name = files.name_in_file(index);
            self.kept.iter().any(|pattern| pattern.matches(name))
        };
        let recast = self
            .dtype
            .map(|dtype| Recast::to_float(&files, dtype, stays))
            .transpose();
        let recast = recast.map_err(of_source)?;
        let reader: &dyn TensorReader = match &recast {
            Some(recast) => recast,
            None => &files,
        };
        let late = || recast.as_ref().map(Recast::losses).unwrap_or_default();
        let how = ConvertOptions {
            allow_loss: self.allow_loss,
            sources,
            on_progress: Some(report),
            lost_on_the_way: Some(&late),
            ..ConvertOptions::default()
        };
        let written = match self.max_shard_size {
            Some(most) => {
                let shards = ShardOptions::at_most(most);
                tensor_files::convert_sharded(reader, self.format, target, &shards, &how)
                    .map(|sharded| sharded.losses)
            }
            None => {
                tensor_files::convert(reader, self.format, target, &how).map(|converted| converted.losses)
            }
        };
        written.map_err(|error| (error, if noted.has_failed() { source } else { target }))
    }
}

/// Parses patterns or renamings; errors name the option.
fn parsed<T>(option: &str, texts: &[String]) -> PyResult<Vec<T>>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let parse = |text: &String| {
        text.parse()
            .map_err(|wrong| error::usage(format!("{option} {text:?}: {wrong}")))
    };
    texts.iter().map(parse).collect()
}

/// Parses a floating-point dtype, given by its short name or its NumPy name.
fn float(text: &str) -> PyResult<DType> {
    let short = match text {
        "float16" => "f16",
        "bfloat16" => "bf16",
        "float32" => "f32",
        "float64" => "f64",
        other => other,
    };
    let mut floats = DType::ALL
        .into_iter()
        .filter(|dtype| dtype.kind() == DTypeKind::Float);
    let found = floats.find(|dtype| dtype.name().eq_ignore_ascii_case(short));
    found.ok_or_else(|| error::usage(format!("dtype: expected f16, bf16, f32 or f64, found {text:?}")))
}
