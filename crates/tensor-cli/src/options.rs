//! The command line.
//!
//! Groups of options that commands share are flattened structs. Single options such as `--json` are repeated,
//! since the help of each command says what they print there.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use fmt_core::ReadOptions;

use crate::{named::NamedParser, selection::SelectionOptions, units::size};

const EXAMPLES: &str = "\
Examples:
  tensor inspect --stats model.safetensors
  tensor convert model.safetensors model.zt --compress
  tensor diff --rtol 1e-3 old.safetensors new.gguf
  tensor infer -m iris -i 'X=[[5.1, 3.5, 1.4, 0.2]]'      on http://127.0.0.1:8080, --url or TENSOR_URL";

/// Inspect, verify, convert, compare and edit files of tensors; run models on them.
///
/// Formats are recognised by their content, and for new files by the extension: TensorBuffers (.tbuf), TFRT's
/// Binary Tensor Format (.btf), zTensor 0.1 (.zt), safetensors (.safetensors), NumPy (.npy, .npz), GGUF
/// (.gguf), zTensor 2.x (.zt with `--to ztensor2`: the Python package `ztensor` of today reads this, not
/// 0.1), and for reading only zTensor 1.x (.zt), PyTorch (.pt, .pth, .bin), whose code is never run, and the
/// weights of ONNX models (.onnx).
///
/// A file to read can be on a server that answers range requests: `https://HOST/PATH`, `hf://OWNER/REPO/FILE`
/// for the Hugging Face Hub (`HF_TOKEN`, `HF_ENDPOINT`), or `s3://BUCKET/KEY` (`AWS_ACCESS_KEY_ID`,
/// `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`, or a profile in `~/.aws`, `AWS_PROFILE`). Only
/// what is needed of it is fetched.
///
/// A file called `-` is standard input, which is copied to a temporary file first, or standard output. An
/// output file appears when it is complete, and replaces an existing one. If it is a symbolic link, its
/// target is replaced; devices and pipes are written directly.
#[derive(Debug, Parser)]
#[command(name = "tensor", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) reading: ReadingOptions,
    #[cfg(any(feature = "client", feature = "remote"))]
    #[command(flatten)]
    pub(crate) servers: Servers,
}

/// Connections to servers, both file servers and inference servers.
#[cfg(any(feature = "client", feature = "remote"))]
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Servers")]
pub(crate) struct Servers {
    /// Trust only the certificate authorities in this file (PEM), instead of Mozilla's list for file servers
    /// and the system's for inference servers. The default is the environment variable `SSL_CERT_FILE`.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Allow http:// for files on other hosts too: anybody on the network path can then modify the file.
    #[cfg(feature = "remote")]
    #[arg(long, global = true)]
    pub(crate) allow_http: bool,
}

/// Limits for reading.
#[derive(Args, Debug)]
#[command(next_help_heading = "Reading")]
pub(crate) struct ReadingOptions {
    /// Accept files that break rules which cannot lead to wrong data, as listed in docs/formats.
    #[arg(long, global = true)]
    pub(crate) lenient: bool,
    /// Maximum size of an index [default: 256 MiB].
    #[arg(long, global = true, value_name = "SIZE", value_parser = size)]
    pub(crate) max_index: Option<u64>,
    /// Maximum number of tensors in a file [default: 2000000].
    #[arg(long, global = true, value_name = "COUNT")]
    pub(crate) max_tensors: Option<u64>,
    /// Maximum number of dimensions of a tensor [default: 64].
    #[arg(long, global = true, value_name = "COUNT")]
    pub(crate) max_rank: Option<u64>,
    /// Maximum length of a name [default: 64 KiB].
    #[arg(long, global = true, value_name = "SIZE", value_parser = size)]
    pub(crate) max_name: Option<u64>,
    /// Maximum number of attributes of a tensor or a file [default: 65536].
    #[arg(long, global = true, value_name = "COUNT")]
    pub(crate) max_fields: Option<u64>,
    /// Maximum memory for a tensor that must be decoded as a whole [default: 4 GiB].
    #[arg(long, global = true, value_name = "SIZE", value_parser = size)]
    pub(crate) max_decoded: Option<u64>,
}

impl ReadingOptions {
    pub(crate) fn options(&self) -> ReadOptions {
        let mut options = ReadOptions {
            lenient: self.lenient,
            ..ReadOptions::default()
        };
        let limits = &mut options.limits;
        for (limit, wanted) in [
            (&mut limits.index_bytes, self.max_index),
            (&mut limits.tensors, self.max_tensors),
            (&mut limits.rank, self.max_rank),
            (&mut limits.name_bytes, self.max_name),
            (&mut limits.fields, self.max_fields),
            (&mut limits.decoded_bytes, self.max_decoded),
        ] {
            *limit = wanted.unwrap_or(*limit);
        }
        options
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the contents of a file.
    Inspect(Inspect),
    /// Check structure and checksums, and report what is valid but unusual.
    Verify(Verify),
    /// Write a file in another format or with other settings.
    Convert(Convert),
    /// Compare two files, of the same format or not, by names and content.
    Diff(Diff),
    /// Merge the tensors of several files, or of a sharded checkpoint, into one file.
    Merge(Merge),
    /// Split a file into a sharded checkpoint with an index, in the layout of Hugging Face's libraries.
    Split(Split),
    /// Print a digest for each tensor, which is the same in all formats and can be signed.
    Manifest(Manifest),
    /// Write one tensor, some of its rows, or several tensors to a new file.
    Extract(Extract),
    /// Rename a tensor. TensorBuffers and zTensor get a new index after their data, safetensors and GGUF a
    /// new header if there is room; other formats are rewritten.
    Rename(Rename),
    /// Set metadata of a file or attributes of a tensor, in place where `rename` can.
    Set(Set),
    /// Write one tensor of another file into a file: replaces the tensor of that name or appends it. The file
    /// is rewritten.
    Put(PutOptions),
    /// Append one tensor of another file to a file; the name must be new.
    Append(PutOptions),
    /// Check the index of a sharded checkpoint against its files, and rewrite it.
    Index(Index),
    /// Run a model on a server, with inputs from files, and outputs into files or as a table.
    #[cfg(feature = "client")]
    Infer(crate::client::options::Infer),
    /// Send recorded requests again, and compare the responses with the recorded ones.
    #[cfg(feature = "client")]
    Replay(crate::client::options::Replay),
    /// Measure the latency and throughput of a model on a server.
    #[cfg(feature = "client")]
    Bench(crate::client::options::Bench),
    /// List the models of a server.
    #[cfg(feature = "client")]
    Ls(crate::client::options::List),
    /// Show the inputs and outputs of a model on a server.
    #[cfg(feature = "client")]
    Show(crate::client::options::Show),
    /// Show whether a server is ready, and the statistics of its models.
    #[cfg(feature = "client")]
    Status(crate::client::options::StatusOptions),
    /// Make a server load or reload models.
    #[cfg(feature = "client")]
    Load(crate::client::options::Load),
    /// Make a server unload models.
    #[cfg(feature = "client")]
    Unload(crate::client::options::Unload),
    /// Print a completion script for your shell.
    #[command(
        after_help = "Examples:\n  tensor completions bash > ~/.local/share/bash-completion/completions/tensor\n  tensor completions zsh > ~/.zfunc/_tensor\n  tensor completions fish > ~/.config/fish/completions/tensor.fish"
    )]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write manual pages.
    #[command(after_help = "Example: tensor man ~/.local/share/man/man1")]
    Man {
        /// The directory to write them to.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

impl Command {
    /// Returns whether the command changes nothing, so that an interrupt has nothing to undo or report.
    pub(crate) fn is_reading_only(&self) -> bool {
        match self {
            Self::Inspect(_) | Self::Verify(_) | Self::Diff(_) | Self::Manifest(_) => true,
            #[cfg(feature = "client")]
            Self::Ls(_) | Self::Show(_) | Self::Status(_) => true,
            _ => false,
        }
    }

    /// Returns whether the output is for a program.
    pub(crate) fn is_json(&self) -> bool {
        match self {
            Self::Inspect(options) => options.json,
            Self::Verify(options) => options.json,
            Self::Convert(options) => options.json,
            Self::Diff(options) => options.json,
            Self::Merge(options) => options.json,
            Self::Split(options) => options.json,
            Self::Manifest(options) => options.json,
            Self::Extract(options) => options.json,
            Self::Rename(options) => options.json,
            Self::Set(options) => options.json,
            Self::Put(options) | Self::Append(options) => options.json,
            Self::Index(options) => options.json,
            #[cfg(feature = "client")]
            Self::Infer(options) => options.json,
            #[cfg(feature = "client")]
            Self::Replay(options) => options.json,
            #[cfg(feature = "client")]
            Self::Bench(options) => options.json,
            #[cfg(feature = "client")]
            Self::Ls(options) => options.json,
            #[cfg(feature = "client")]
            Self::Show(options) => options.json,
            #[cfg(feature = "client")]
            Self::Status(options) => options.json,
            #[cfg(feature = "client")]
            Self::Load(options) => options.json,
            #[cfg(feature = "client")]
            Self::Unload(options) => options.json,
            Self::Completions { .. } | Self::Man { .. } => false,
        }
    }

    /// Returns the connection options of a client command.
    #[cfg(feature = "client")]
    pub(crate) fn connection(&mut self) -> Option<&mut crate::client::options::Connection> {
        match self {
            Self::Infer(options) => Some(&mut options.server.connection),
            Self::Bench(options) => Some(&mut options.server.connection),
            Self::Replay(options) => Some(&mut options.connection),
            Self::Ls(options) => Some(&mut options.connection),
            Self::Show(options) => Some(&mut options.connection),
            Self::Status(options) => Some(&mut options.connection),
            Self::Load(options) => Some(&mut options.connection),
            Self::Unload(options) => Some(&mut options.connection),
            Self::Inspect(_)
            | Self::Verify(_)
            | Self::Convert(_)
            | Self::Diff(_)
            | Self::Merge(_)
            | Self::Split(_)
            | Self::Manifest(_)
            | Self::Extract(_)
            | Self::Rename(_)
            | Self::Set(_)
            | Self::Put(_)
            | Self::Append(_)
            | Self::Index(_)
            | Self::Completions { .. }
            | Self::Man { .. } => None,
        }
    }
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  tensor inspect model.safetensors\n  tensor inspect --stats -t embed.weight model.gguf\n  tensor inspect hf://openai-community/gpt2/model.safetensors"
)]
pub(crate) struct Inspect {
    /// The files. A sharded checkpoint is given by its directory or index.
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Only the tensor of this name. Can be repeated.
    #[arg(long = "tensor", short, value_name = "NAME")]
    pub(crate) tensors: Vec<String>,
    /// Print JSON for programs, one object per file and line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the SHA-256 of each tensor's bytes, row-major and little-endian; for a sparse tensor, of its
    /// indices and then its values.
    #[arg(long)]
    pub(crate) sha256: bool,
    /// Print minimum, maximum and mean, the number of NaNs, and a sketch of the distribution.
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print the values, summarized like NumPy does.
    #[arg(long, conflicts_with = "json")]
    pub(crate) values: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  tensor verify model.zt\n  tensor verify --manifest model.manifest out/")]
pub(crate) struct Verify {
    /// The files.
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Also fail for findings that are valid but unusual.
    #[arg(long, conflicts_with = "index")]
    pub(crate) strict: bool,
    /// Compare all tensors with a manifest from `tensor manifest`, text or JSON: names, dtypes, shapes and
    /// contents.
    #[arg(long, value_name = "FILE", conflicts_with = "index")]
    pub(crate) manifest: Option<PathBuf>,
    /// Print JSON for programs, one object per file and line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Check only the index, without reading data: no checksums, no padding.
    #[arg(long)]
    pub(crate) index: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  tensor convert model.safetensors model.zt --compress\n  tensor convert Llama-3-8B/ half.safetensors --dtype bf16 --keep-dtype '*norm*'\n  cat a.npz | tensor convert - - --to safetensors > a.safetensors"
)]
pub(crate) struct Convert {
    /// The file to read, or the directory or index of a sharded checkpoint.
    pub(crate) from: PathBuf,
    /// The file to write; - for standard output, with --to. With --max-shard-size, the directory or the base
    /// name of the shards.
    pub(crate) to: PathBuf,
    /// Write shards with at most this many bytes of tensors (5GB, 512MiB) and an index, as `split` does.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_shard_size: Option<u64>,
    #[command(flatten)]
    pub(crate) choosing: SelectionOptions,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print what was written and lost as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Example: tensor split model.safetensors out/ --max-shard-size 5GB")]
pub(crate) struct Split {
    /// The file to read, or the directory or index of a sharded checkpoint.
    pub(crate) from: PathBuf,
    /// The directory to write to, or the base name of the shards: out/model.safetensors gives
    /// out/model-00001-of-00003.safetensors and so on, and out/model.safetensors.index.json.
    pub(crate) to: PathBuf,
    /// Maximum bytes of tensors per shard: 5GB, 512MiB or bytes. A larger tensor gets a separate shard.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "5GB")]
    pub(crate) max_shard_size: u64,
    #[command(flatten)]
    pub(crate) choosing: SelectionOptions,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print what was written and lost as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  tensor manifest model.safetensors > model.manifest\n  tensor manifest --files checkpoint/ > SHA256SUMS\n  tensor verify --manifest model.manifest copy.zt"
)]
pub(crate) struct Manifest {
    /// The files. A tensor name may occur in only one of them.
    #[arg(required = true, value_name = "FILES")]
    pub(crate) paths: Vec<PathBuf>,
    /// Print digests of whole files instead, in the format of sha256sum; for a sharded checkpoint, of its
    /// index and shards.
    #[arg(long, conflicts_with_all = ["json", "include", "exclude", "rename", "dtype"])]
    pub(crate) files: bool,
    /// Print JSON, which can be verified too.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) choosing: SelectionOptions,
}

#[derive(Args, Debug)]
#[command(after_help = "Example: tensor merge encoder.safetensors head.npz -o model.safetensors")]
pub(crate) struct Merge {
    /// The file to write.
    #[arg(long, short)]
    pub(crate) output: PathBuf,
    /// The files to read. A tensor name may occur in only one of them.
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Write shards with at most this many bytes of tensors (5GB, 512MiB) and an index, as `split` does.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_shard_size: Option<u64>,
    #[command(flatten)]
    pub(crate) choosing: SelectionOptions,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print what was written and lost as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options for the output file.
#[derive(Args, Debug)]
pub(crate) struct Target {
    /// The format, if the extension does not identify it.
    #[arg(long = "to", value_name = "FORMAT", value_parser = NamedParser { names: written_formats, parse: clap::builder::StringValueParser::new() })]
    pub(crate) format: Option<String>,
    /// Continue without what the format cannot represent: tensors, sparsity, names, parts (of archives),
    /// range (numbers that become infinite with --dtype), or all of these. Losses are printed.
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, value_delimiter = ',', default_missing_value = "all")]
    pub(crate) allow_loss: Vec<LossKind>,
    /// Also fail for metadata that the format cannot represent; otherwise it is dropped and reported.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Compress (zTensor).
    #[arg(long)]
    pub(crate) compress: bool,
    /// Compression level from 1 (fast) to 19 (small).
    #[arg(long, value_name = "1-19", requires = "compress", default_value_t = 3)]
    pub(crate) level: i32,
    /// Number of compression threads [default: the number of processors, at most 16]. The output does not
    /// depend on it.
    #[arg(long, value_name = "COUNT", requires = "compress", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// The checksum of each tensor (zTensor) [default: crc32c].
    #[arg(long)]
    pub(crate) checksum: Option<Checksum>,
    /// The byte order of numbers (zTensor) [default: little].
    #[arg(long)]
    pub(crate) endian: Option<Endian>,
    /// Follow the specification strictly, even where existing readers need more (zTensor, BTF).
    #[arg(long)]
    pub(crate) strict_spec: bool,
    /// Alignment of data in bytes (zTensor from 64, TensorBuffers from 1) [default: 64].
    #[arg(long, value_name = "BYTES")]
    pub(crate) align: Option<u32>,
    /// The number that marks sparse tensors: 2 as specified, or 1 as TFRT's code reads (BTF) [default: 2].
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) btf_coo_tag: Option<u8>,
    /// Write no sidecar file with the names for a format without names; tensors are then called 0, 1, ...
    /// (BTF).
    #[arg(long)]
    pub(crate) no_sidecar: bool,
    /// Store elements of a dtype that the format lacks as unsigned integers of the same width, bit for bit.
    #[arg(long)]
    pub(crate) as_bits: bool,
    /// Fail if the output file exists.
    #[arg(long)]
    pub(crate) no_clobber: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LossKind {
    All,
    Tensors,
    Sparsity,
    Names,
    Parts,
    Range,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Checksum {
    None,
    Crc32c,
    Sha256,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Endian {
    Little,
    Big,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  tensor diff old.safetensors new.safetensors\n  tensor diff --rtol 1e-3 model.safetensors model.gguf"
)]
pub(crate) struct Diff {
    /// The first file.
    pub(crate) left: PathBuf,
    /// The second file.
    pub(crate) right: PathBuf,
    /// Tolerance relative to the number in the second file.
    #[arg(long, value_name = "PARTS", default_value_t = 0.0, value_parser = tolerance)]
    pub(crate) rtol: f64,
    /// Absolute tolerance.
    #[arg(long, value_name = "DIFFERENCE", default_value_t = 0.0, value_parser = tolerance)]
    pub(crate) atol: f64,
    /// Report different metadata and attributes as a difference, not as a note.
    #[arg(long)]
    pub(crate) metadata: bool,
    #[command(flatten)]
    pub(crate) choosing: SelectionOptions,
    /// Print JSON for programs.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  tensor extract model.safetensors embed.weight --rows 10:20 -o rows.npy\n  tensor extract model.zt --include 'layers.0.*' -o layer.safetensors"
)]
pub(crate) struct Extract {
    /// The file.
    pub(crate) file: PathBuf,
    /// The tensor; without it, the tensors that --include selects.
    #[arg(required_unless_present = "include", conflicts_with = "include")]
    pub(crate) tensor: Option<String>,
    /// Rows along the first axis, end exclusive: 10:20, :20, 10:.
    #[arg(long, value_name = "FROM:TO", value_parser = rows)]
    pub(crate) rows: Option<Rows>,
    /// The file to write, in the format of its extension; for any other name, or -, the raw bytes of one
    /// tensor, row-major and little-endian.
    #[arg(long, short)]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) choosing: SelectionOptions,
    /// Print what was written as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Fail if the output file exists.
    #[arg(long)]
    pub(crate) no_clobber: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Example: tensor rename model.zt lm_head.weight head.weight")]
pub(crate) struct Rename {
    /// The file.
    pub(crate) file: PathBuf,
    /// The current name of the tensor.
    pub(crate) from: String,
    /// Its new name.
    pub(crate) to: String,
    /// Print what was changed as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  tensor set model.zt licence=MIT\n  tensor set model.zt unit=metre --tensor distances\n  tensor set model.zt licence=      removes it"
)]
pub(crate) struct Set {
    /// The file.
    pub(crate) file: PathBuf,
    /// The key and its value; an empty value removes the key.
    #[arg(value_name = "KEY=VALUE", value_parser = assignment)]
    pub(crate) assignment: (String, String),
    /// Set an attribute of this tensor instead of metadata of the file.
    #[arg(long)]
    pub(crate) tensor: Option<String>,
    /// Print what was changed as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  tensor put model.safetensors lm_head.weight new.npy\n  tensor append model.gguf extra.bias other.zt --tensor bias"
)]
pub(crate) struct PutOptions {
    /// The file to write to.
    pub(crate) file: PathBuf,
    /// The name of the tensor in that file.
    pub(crate) name: String,
    /// The file to read the tensor from.
    pub(crate) from: PathBuf,
    /// The tensor in the source file; optional if it has only one.
    #[arg(long, value_name = "NAME")]
    pub(crate) tensor: Option<String>,
    /// Print what was changed as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Example: tensor index out/ --write")]
pub(crate) struct Index {
    /// The directory with the shards, such as model-00001-of-00003.safetensors.
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Write the index if it is missing or does not match; without this option, such an index is an error
    /// (exit code 1).
    #[arg(long)]
    pub(crate) write: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A range of rows with open ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) from: Option<u64>,
    pub(crate) to: Option<u64>,
}

fn written_formats() -> Vec<&'static str> {
    let written = tensor_files::formats()
        .iter()
        .filter(|format| format.is_written());
    written.map(|format| format.id()).collect()
}

fn rows(text: &str) -> Result<Rows, String> {
    let number = |text: &str| match text {
        "" => Ok(None),
        text => text
            .parse()
            .map(Some)
            .map_err(|_| format!("'{text}' is not a row number")),
    };
    let (from, to) = text.split_once(':').ok_or("expected FROM:TO")?;
    let rows = Rows {
        from: number(from)?,
        to: number(to)?,
    };
    match rows {
        Rows {
            from: Some(from),
            to: Some(to),
        } if from > to => Err(format!("row {from} comes after row {to}")),
        rows => Ok(rows),
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
        _ => Err("expected a number from 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Options::command().debug_assert();
    }

    /// Every command has examples, and each is a valid command line.
    #[test]
    fn every_command_has_examples_that_are_its_own() {
        let whole = Options::command();
        let commands = whole
            .get_subcommands()
            .map(|command| (Some(command.get_name()), command));
        for (name, command) in commands.chain([(None, &whole)]) {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let examples = examples(&help);
            let is_own = |words: &Vec<String>| name.is_none_or(|name| words[0] == name);
            assert!(examples.iter().any(is_own), "{name:?} has no example");
            for words in examples {
                let taken = Options::try_parse_from(["tensor".to_owned()].into_iter().chain(words));
                assert!(taken.is_ok(), "{name:?}: {}", taken.unwrap_err());
            }
        }
    }

    /// Extracts the arguments of the example lines in a help text, without shell redirections and comments.
    fn examples(help: &str) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        for line in help.lines() {
            let Some((_, call)) = line.split_once("tensor ") else {
                continue;
            };
            let end = ["  ", " > ", " || ", " ("]
                .iter()
                .filter_map(|sign| call.find(sign));
            let call = &call[..end.min().unwrap_or(call.len())];
            // Every other part is inside quotes, where blanks belong to a word.
            let mut words = vec![String::new()];
            for (index, part) in call.split('\'').enumerate() {
                let mut pieces = match index % 2 {
                    0 => part.split(' ').collect(),
                    _ => vec![part],
                }
                .into_iter();
                words.last_mut().unwrap().push_str(pieces.next().unwrap());
                words.extend(pieces.map(str::to_owned));
            }
            words.retain(|word| !word.is_empty());
            found.push(words);
        }
        found
    }

    #[test]
    fn rows_have_open_ends() {
        assert_eq!(
            rows("3:7"),
            Ok(Rows {
                from: Some(3),
                to: Some(7)
            })
        );
        assert_eq!(rows(":"), Ok(Rows { from: None, to: None }));
        for wrong in ["7", "7:3", "a:b", "-1:2"] {
            assert!(rows(wrong).is_err(), "{wrong}");
        }
    }
}
