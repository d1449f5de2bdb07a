//! Runs the program in a temporary directory, with test files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use fmt_core::{AtomicFile, Format, Plan, PlannedEntry};
use serde_json::Value;
use tempfile::TempDir;
use tensor_core::{Shape, SparseCoo, Tensor};

/// A temporary directory in which a test runs the program.
pub(crate) struct TestDir(TempDir);

/// Exit code and output of one run of the program.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl TestDir {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the program in the directory.
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        run_in(self.0.path(), arguments)
    }

    /// Starts the program in the directory.
    pub(crate) fn spawn(&self, arguments: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensor"));
        command
            .args(arguments)
            .current_dir(self.0.path())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Runs a command that must succeed, and returns its output.
    #[track_caller]
    pub(crate) fn good(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        assert_eq!((run.code, &*run.err), (0, ""), "{arguments:?}: {}", run.out);
        run.out
    }

    /// Runs a command that must fail, and returns its single line on standard error.
    #[track_caller]
    pub(crate) fn bad(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        assert_eq!(run.code, 1, "{arguments:?}: {} {}", run.out, run.err);
        assert_eq!(run.err.lines().count(), 1, "{}", run.err);
        run.err.trim_end().to_owned()
    }

    #[track_caller]
    pub(crate) fn inspect(&self, name: &str) -> Value {
        serde_json::from_str(&self.good(&["inspect", "--json", "--sha256", name])).unwrap()
    }

    /// Writes a file of dense tensors.
    pub(crate) fn write(&self, name: &str, metadata: &[(&str, &str)], tensors: &[(&str, &Tensor)]) {
        let entries = tensors
            .iter()
            .map(|(name, tensor)| PlannedEntry::dense(*name, tensor.spec().clone()));
        let mut plan = Plan {
            entries: entries.collect(),
            ..Plan::default()
        };
        plan.metadata.extend(
            metadata
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned())),
        );
        let path = self.path(name);
        let mut file = AtomicFile::create(&path).unwrap();
        {
            let format = tensor_files::format_of_path(&path).unwrap();
            let mut writer = format.create(Box::new(&mut file), plan).unwrap();
            tensors
                .iter()
                .for_each(|(_, tensor)| writer.write(tensor.bytes()).unwrap());
            writer.finish().unwrap();
        }
        file.persist().unwrap();
    }

    /// Writes a BTF file with a dense and a sparse tensor.
    pub(crate) fn write_sparse(&self, name: &str) {
        let dense = matrix();
        let sparse = SparseCoo::from_dense(&matrix().view());
        let plan = Plan {
            entries: vec![
                PlannedEntry::dense("0", dense.spec().clone()),
                PlannedEntry::coo("1", sparse.spec().clone(), sparse.nnz()),
            ],
            ..Plan::default()
        };
        let mut file = Vec::new();
        let mut writer = fmt_btf::Btf.create(Box::new(&mut file), plan).unwrap();
        for bytes in [dense.bytes(), sparse.indices().bytes(), sparse.values().bytes()] {
            writer.write(bytes).unwrap();
        }
        writer.finish().unwrap();
        fs::write(self.path(name), file).unwrap();
    }
}

fn run_in(folder: &Path, arguments: &[&str]) -> Run {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_tensor"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    Run {
        code: status.code().unwrap(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

pub(crate) fn matrix() -> Tensor {
    Tensor::from_vec(
        Shape::new(&[3, 2]).unwrap(),
        vec![1.0f32, 0.0, -2.5, 0.0, 0.0, 4.0],
    )
    .unwrap()
}

pub(crate) fn vector() -> Tensor {
    Tensor::from_vec(Shape::vector(4), vec![1i64, -2, 3, i64::MAX]).unwrap()
}
