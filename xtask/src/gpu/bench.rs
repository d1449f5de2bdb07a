//! The state of a run: the server, a directory of models for each column, and the remaining time.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{models, server::Server};

/// Columns of the latency table: suffix of the model's name, title, and configuration.
pub(super) const COLUMNS: [(&str, &str, &str); 4] = [
    ("cuda", "CUDA", "instance_group { kind: KIND_GPU }"),
    (
        "ort",
        "ORT, all threads",
        "runtime: \"onnxruntime\"\ninstance_group { kind: KIND_CPU count: 1 }\n\
         parameters { key: \"intra_op_thread_count\" value { string_value: \"0\" } }",
    ),
    (
        "ort1",
        "ORT, 1 thread",
        "runtime: \"onnxruntime\"\ninstance_group { kind: KIND_CPU }",
    ),
    (
        "own",
        "built-in",
        "runtime: \"built-in\"\ninstance_group { count: 1 }",
    ),
];

/// The directories, the server and the end time of a run.
pub(super) struct Bench {
    pub(super) program: PathBuf,
    pub(super) library: PathBuf,
    pub(super) models: PathBuf,
    pub(super) server: Server,
    pub(super) end: Instant,
}

impl Bench {
    /// Returns whether less than `needed` time remains.
    pub(super) fn is_over(&self, needed: Duration) -> bool {
        Instant::now() + needed > self.end
    }
}

/// Returns the suffix of the reference column: CUDA, or ONNX Runtime on the CPU if there is no GPU.
pub(super) fn best_column(has_cuda: bool) -> &'static str {
    if has_cuda { "cuda" } else { "ort" }
}

/// Returns the library in the directory `at`, or `at` itself if it is a file.
pub(super) fn library(at: &Path) -> Result<PathBuf> {
    if at.is_file() {
        return Ok(at.to_owned());
    }
    let entries = fs::read_dir(at).with_context(|| format!("reading {}", at.display()))?;
    let names = entries.flatten().map(|entry| entry.path());
    let is_library = |path: &PathBuf| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        name.starts_with("libonnxruntime.so")
    };
    let mut found: Vec<PathBuf> = names.filter(is_library).collect();
    found.sort();
    match &found[..] {
        [] => bail!("there is no libonnxruntime.so in {}", at.display()),
        [library] => Ok(library.clone()),
        several => bail!(
            "several libraries are in {}; name one of them: {several:?}",
            at.display()
        ),
    }
}

/// Writes a directory for each model and column, and the models for failure tests.
pub(super) fn write_models(folder: &Path) -> Result<()> {
    let write = |name: &str, file: &Path, config: &str| -> Result<()> {
        let version = folder.join(name).join("1");
        fs::create_dir_all(&version)?;
        fs::hard_link(file, version.join("model.onnx"))?;
        fs::write(folder.join(name).join("config.pbtxt"), config)?;
        Ok(())
    };
    fs::create_dir_all(folder)?;
    let beside = folder.with_file_name("files");
    fs::create_dir_all(&beside)?;
    for (model, content) in [
        ("resnet50", models::resnet50()),
        ("bert", models::bert_base()),
        ("grow", models::grow()),
    ] {
        let file = beside.join(format!("{model}.onnx"));
        fs::write(&file, content)?;
        let batches = if model == "grow" {
            ""
        } else {
            "max_batch_size: 32\n"
        };
        for (column, _, config) in COLUMNS {
            write(
                &format!("{model}_{column}"),
                &file,
                &format!("{batches}{config}\n"),
            )?;
            let isolated = "parameters { key: \"isolation\" value { string_value: \"process\" } }";
            write(
                &format!("{model}_{column}_apart"),
                &file,
                &format!("{batches}{config}\n{isolated}\n"),
            )?;
        }
    }
    Ok(())
}
