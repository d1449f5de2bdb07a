//! `oip-server init`: writes an example repository that can be served immediately.

use std::{
    fs,
    io::{self, Write, stdout},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;

use crate::failure::Failure;

/// Writes an example repository: a network that reads digits, a tensor file, a pipeline of both, and a page
/// that says how to go on.
#[derive(Debug, Parser)]
#[command(name = "oip-server init", after_help = "Example: oip-server init shop")]
pub(crate) struct Init {
    /// The directory to write it to: a new one, or one that is empty
    #[arg(value_name = "DIR", default_value = "models")]
    folder: PathBuf,
}

/// The files of the example repository, with their contents.
const FILES: &[(&str, &[u8])] = &[
    #[cfg(feature = "onnx")]
    (
        "digits/1/model.onnx",
        include_bytes!("../examples/models/digits/1/model.onnx"),
    ),
    #[cfg(feature = "onnx")]
    ("digits/config.pbtxt", DIGITS.as_bytes()),
    #[cfg(feature = "onnx")]
    ("digits/example.json", ONE_DIGIT),
    #[cfg(feature = "tensors")]
    (
        "digit_means/1/model.safetensors",
        include_bytes!("../examples/models/digit_means/1/model.safetensors"),
    ),
    #[cfg(all(feature = "onnx", feature = "tensors"))]
    (
        "digit_portrait/config.pbtxt",
        include_bytes!("../examples/models/digit_portrait/config.pbtxt"),
    ),
    #[cfg(all(feature = "onnx", feature = "tensors"))]
    ("digit_portrait/example.json", ONE_DIGIT),
    ("one_digit.json", ONE_DIGIT),
    ("README.md", README.as_bytes()),
];

/// A request with a handwritten digit 7.
const ONE_DIGIT: &[u8] = include_bytes!("../examples/requests/one_digit.json");

#[cfg(feature = "onnx")]
const DIGITS: &str = "\
# Everything in this file may be left out: inputs, outputs and batching are read from the model.

# The maximum batch size: requests run together in batches of at most this many rows, and a larger request is refused.
# Setting it promises that rows are independent. This model's file proves that, so this line is not needed.
# max_batch_size: 64

# The number of threads that run the model at the same time; --instances sets it for all models.
# instance_group [{ count: 2 }]

# How long a request may wait for others to share its batch; without this it never waits.
# dynamic_batching { max_queue_delay_microseconds: 500 }
";

const README: &str = "\
# An example repository

A model is a directory with versions: `<model>/<version>/model.onnx`. A booster (`model.ubj`, `model.txt`) or a tensor file
(`model.safetensors`, `.npz`, `.gguf`, ...) takes the place of `model.onnx`. Optional, next to the \
versions: `config.pbtxt`, and `example.json`, the request that the console shows.

| model | what it does |
|---|---|
| `digits` | a neural network: 64 grey values of a handwritten digit in, its label and probabilities out |
| `digit_means` | a tensor file: the mean image of each digit, whole or by rows |
| `digit_portrait` | a pipeline: the label of `digits` looked up in `digit_means` |

From the directory that holds this page:

    oip-server check .                 # loads everything, reports what would fail, opens no port
    oip-server .                       # serves it; a console is at http://127.0.0.1:8080/
    curl -s http://127.0.0.1:8080/v2/models/digits/infer -d @one_digit.json
    tensor infer --model digit_means -i 'mean.rows=[3, 8]'

`oip-server . --model-control-mode poll` loads what changes here while it runs.
";

/// Writes the files, and prints the next steps.
pub(crate) fn run(init: &Init) -> Result<ExitCode, Failure> {
    let folder = &init.folder;
    let shown = folder.display();
    if is_taken(folder).map_err(|error| Failure::run(format!("{shown}: {error}")))? {
        return Err(Failure::run(format!(
            "{shown} exists and is not an empty directory, and nothing is overwritten: name another one"
        )));
    }
    for (name, content) in FILES {
        write(&folder.join(name), content)
            .map_err(|error| Failure::run(format!("{shown}/{name} cannot be written: {error}")))?;
    }
    let next = format!(
        "wrote an example repository\n\n  oip-server {shown}\n\n{shown}/README.md lists the next steps\n"
    );
    // Errors are ignored, since standard output may be closed.
    let _ = stdout().write_all(next.as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// Returns whether the path exists and is not an empty directory.
fn is_taken(folder: &Path) -> io::Result<bool> {
    match fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(true),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Never overwrites a file that was created concurrently.
    fs::File::create_new(path)?.write_all(content)
}
