//! Finds and loads the library of ONNX Runtime, once per process.

use std::{
    fmt, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use oip_model::memory_limit;
use oip_types::{ServiceError, causes};
use ort::{LoadDynamicError, environment::Environment, logging::LogLevel};
use parking_lot::Mutex;

use super::{find, log, providers::Package};

/// ONNX Runtime, loaded into the process from a shared library.
///
/// A process can load only one such library, which stays loaded until the process exits.
///
/// ```
/// use backend_onnx::OnnxRuntime;
///
/// let error = OnnxRuntime::load("/nowhere/libonnxruntime.so").unwrap_err();
/// assert!(error.to_string().starts_with("ONNX Runtime cannot be loaded from /nowhere/libonnxruntime.so: "));
/// ```
#[derive(Clone, Debug)]
pub struct OnnxRuntime {
    environment: Environment,
    path: PathBuf,
    /// The execution providers compiled into the library.
    providers: Vec<String>,
    package: Option<Package>,
}

/// Memory limit in bytes for the values of all runs. 0 means the default, a fraction of the machine's memory,
/// until a library is loaded.
static MEMORY: AtomicU64 = AtomicU64::new(0);

/// Returns the memory limit in bytes for the values of all runs in the loaded library.
pub(super) fn memory() -> u64 {
    MEMORY.load(Ordering::Relaxed)
}

impl OnnxRuntime {
    /// Limits the memory for the values of all concurrent runs, without weights, to `bytes` bytes. A run that
    /// would need more fails with [`Overloaded`](oip_types::ErrorCode::Overloaded). The default is 3/8 of the
    /// memory of the machine or the process's control group, since many small values take twice their counted
    /// size.
    ///
    /// Applies to a library that is loaded afterwards.
    pub fn limit_memory(bytes: u64) {
        MEMORY.store(bytes, Ordering::Relaxed);
    }

    /// Loads the library from a file such as `libonnxruntime.so`. A second call with the same path returns
    /// the loaded library.
    ///
    /// Loading runs code of the library, so the library must be trusted.
    ///
    /// # Errors
    /// Returns [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the file does not exist or is
    /// not a library, when the library is not ONNX Runtime or is older than 1.17, and when a different one is
    /// already loaded.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ServiceError> {
        static LOADED: Mutex<Option<OnnxRuntime>> = Mutex::new(None);
        let path = path.as_ref();
        let failed = |reason: &str| {
            ServiceError::invalid(format!(
                "ONNX Runtime cannot be loaded from {}: {reason}",
                path.display()
            ))
        };
        // The path must be absolute, or the system would search its own directories.
        let found = fs::canonicalize(path).map_err(|error| failed(&error.to_string()))?;
        if !found.is_file() {
            return Err(failed("not a file; name the library, such as libonnxruntime.so"));
        }
        let mut loaded = LOADED.lock();
        match &*loaded {
            Some(runtime) if runtime.path == found => return Ok(runtime.clone()),
            Some(runtime) => {
                let other = runtime.path.display();
                return Err(failed(&format!("the process already uses the one of {other}")));
            }
            None => {}
        }
        // The crate `ort` panics if a library exports the expected names but misbehaves.
        let (environment, providers) = catch_unwind(AssertUnwindSafe(|| start(&found)))
            .unwrap_or(Err(StartError::Panic))
            .map_err(|error| failed(&error.to_string()))?;
        let runtime = Self {
            environment,
            providers,
            package: Package::of(&found),
            path: found,
        };
        if let Some(mixture) = runtime.mixture() {
            tracing::warn!("{mixture}");
        }
        *loaded = Some(runtime.clone());
        Ok(runtime)
    }

    /// Searches the usual locations for a library and loads the first that is new enough: next to this
    /// program, the path in `ORT_DYLIB_PATH`, the active virtual environment, `python3`'s packages, and the
    /// system's library directories. Runs `python3` to find its packages.
    ///
    /// # Errors
    /// Returns an error that lists each library found with the reason why it was refused, or says that none
    /// was found.
    pub fn find() -> Result<Self, ServiceError> {
        let mut refused = Vec::new();
        for path in find::candidates() {
            match Self::load(&path) {
                Ok(runtime) => return Ok(runtime),
                Err(error) => refused.push(error.message().to_owned()),
            }
        }
        Err(ServiceError::invalid(match refused.is_empty() {
            true => format!("no library of ONNX Runtime was found {}", find::PLACES),
            false => refused.join("; "),
        }))
    }

    /// Returns the file that [`OnnxRuntime::find`] would try first, without loading it: the library may still
    /// be too old. The search runs once per process.
    #[must_use]
    pub fn first_place() -> Option<&'static Path> {
        static PLACE: LazyLock<Option<PathBuf>> = LazyLock::new(|| find::candidates().into_iter().next());
        PLACE.as_deref()
    }

    /// Returns whether one of the usual locations has a library.
    pub(crate) fn is_found() -> bool {
        Self::first_place().is_some()
    }

    /// Returns the library's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the library's build information, such as the commit it was built from, for logs.
    #[must_use]
    pub fn build(&self) -> &'static str {
        ort::info()
    }

    /// Returns the names of the execution providers compiled into the library, most preferred first. Whether
    /// they work also depends on the machine.
    #[must_use]
    pub fn providers(&self) -> &[String] {
        &self.providers
    }

    /// Returns the Python package of the library, such as `onnxruntime-gpu 1.31.1`; `None` if it is not from
    /// a package.
    #[must_use]
    pub fn package(&self) -> Option<String> {
        self.package.as_ref().map(ToString::to_string)
    }

    /// Returns a message with the remedy if Python packages of ONNX Runtime have overwritten each other's
    /// files.
    #[must_use]
    pub fn mixture(&self) -> Option<String> {
        self.package.as_ref()?.mixture()
    }

    /// Describes the library for error messages.
    pub(super) fn describe(&self) -> String {
        match &self.package {
            Some(package) if !package.is_not_of(&self.path) => format!("the ONNX Runtime of {package}"),
            _ => format!("the ONNX Runtime in {}", self.path.display()),
        }
    }

    pub(super) fn environment(&self) -> &Environment {
        &self.environment
    }
}

/// The reason why a library that exists fails to initialize.
#[derive(Debug)]
enum StartError {
    Load(LoadDynamicError),
    Environment(ort::Error),
    Panic,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(LoadDynamicError::Dlopen { error, .. }) => {
                // The message of the system's loader is among the causes of the error.
                for (depth, cause) in causes(error).enumerate() {
                    write!(f, "{}{cause}", if depth > 0 { ": " } else { "" })?;
                }
                Ok(())
            }
            Self::Load(LoadDynamicError::MissingApi { .. }) => {
                f.write_str("it is a library, but not ONNX Runtime")
            }
            Self::Load(LoadDynamicError::InvalidVersionString) => f.write_str("it has no version"),
            Self::Load(LoadDynamicError::BadVersion { version_str, .. }) => write!(
                f,
                "it is version {version_str}, expected 1.{} or newer",
                ort::MINOR_VERSION
            ),
            Self::Environment(error) => error.fmt(f),
            Self::Panic => f.write_str("it does not behave like ONNX Runtime"),
        }
    }
}

fn start(path: &Path) -> Result<(Environment, Vec<String>), StartError> {
    let builder = ort::init_from(path).map_err(StartError::Load)?;
    let environment = builder
        .with_name("oip")
        .with_telemetry(false)
        .with_logger(log::logger())
        .build()
        .map_err(StartError::Environment)?;
    environment.set_log_level(LogLevel::Error);
    let limit = match memory() {
        0 => memory_limit().map_or(u64::MAX, |bytes| bytes / 8 * 3),
        bytes => bytes,
    };
    MEMORY.store(limit, Ordering::Relaxed);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    onnx_session::limit_memory(&environment, limit).map_err(StartError::Environment)?;
    let providers = onnx_session::available_providers(&environment).map_err(StartError::Environment)?;
    Ok((environment, providers))
}
