//! One session of ONNX Runtime that many threads run at once.
//!
//! The crate `ort` runs a session through `&mut self`, so a program that serves many requests would need a
//! session per concurrent run. Each session would have its own copy of the weights. Sharing weights between
//! sessions does not work: ONNX Runtime's transpose optimizer rewrites them for one session only (which
//! silently gives wrong numbers), and its quantized operators refuse them. ONNX Runtime itself allows
//! concurrent calls of `Run` for one session: its documentation says so, its own bindings do it, and the
//! library locks execution providers that do not support it. This crate makes that one call.
//!
//! It also limits the memory for the values of all sessions of an environment ([`limit_memory`]), and stores
//! the names of inputs and outputs as C strings, so that runs do not convert them.
//!
//! ```no_run
//! use onnx_session::SharedSession;
//! use ort::{session::{RunOptions, builder::SessionBuilder}, value::Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let environment = ort::init_from("libonnxruntime.so")?.build()?;
//! let session = SessionBuilder::new(&environment)?.commit_from_file("digits.onnx")?;
//! let session = SharedSession::new(session)?;
//! std::thread::scope(|threads| {
//!     for _ in 0..4 {
//!         threads.spawn(|| -> ort::Result<()> {
//!             let input = Tensor::from_array(([1, 64], vec![0.5_f32; 64]))?;
//!             let outputs = session.run(&[(&input).into()], &RunOptions::new()?)?;
//!             println!("{:?}", outputs[0].try_extract_tensor::<i64>()?);
//!             Ok(())
//!         });
//!     }
//! });
//! # Ok(())
//! # }
//! ```

use std::{
    ffi::{CStr, CString, c_char},
    fmt,
    ptr::{self, NonNull},
};

use ort::{
    AsPointer, Error,
    environment::Environment,
    session::{RunOptions, Session, SessionInputValue},
    sys::{OrtAllocatorType, OrtMemType},
    value::{DynValue, Outlet},
};

/// Creates one memory pool of at most `bytes` bytes for the values of all sessions of an environment. A run
/// that would need more fails.
///
/// The limit applies to sessions that are created afterwards with the entry `session.use_env_allocators`
/// ([`with_env_allocators`](ort::session::builder::SessionBuilder::with_env_allocators)). Weights count
/// against the limit too, unless the entry `session.use_device_allocator_for_initializers` is set.
///
/// # Errors
/// Returns the errors of ONNX Runtime, for example if the environment already has a pool.
pub fn limit_memory(environment: &Environment, bytes: usize) -> ort::Result<()> {
    let api = ort::api();
    let mut memory = ptr::null_mut();
    let mut config = ptr::null_mut();
    let (keys, values) = ([c"max_mem".as_ptr()], [bytes]);
    // SAFETY: the out-pointers point to local variables; `keys` are NUL-terminated and as many as `values`.
    // The library copies its arguments, so `memory` and `config` are released here, once each, if they were
    // created. The environment is alive, and the library locks its list of allocators.
    #[expect(unsafe_code, reason = "the crate `ort` does not have these calls")]
    unsafe {
        let mut status = (api.CreateCpuMemoryInfo)(
            OrtAllocatorType::OrtArenaAllocator,
            OrtMemType::OrtMemTypeDefault,
            &raw mut memory,
        );
        let mut result = Error::result_from_status(status);
        if result.is_ok() {
            status = (api.CreateArenaCfgV2)(keys.as_ptr(), values.as_ptr(), keys.len(), &raw mut config);
            result = Error::result_from_status(status);
        }
        if result.is_ok() {
            status = (api.CreateAndRegisterAllocator)(environment.ptr().cast_mut(), memory, config);
            result = Error::result_from_status(status);
        }
        if !config.is_null() {
            (api.ReleaseArenaCfg)(config);
        }
        if !memory.is_null() {
            (api.ReleaseMemoryInfo)(memory);
        }
        result
    }
}

/// Returns the names of the execution providers that the library was built with, most preferred first. A
/// provider may still be unusable, because it needs libraries or devices that this machine lacks.
///
/// # Errors
/// Returns the errors of ONNX Runtime.
pub fn available_providers(_: &Environment) -> ort::Result<Vec<String>> {
    let api = ort::api();
    let (mut names, mut count) = (ptr::null_mut(), 0);
    // SAFETY: both out-pointers point to local variables. On success, `names` is an array of `count`
    // NUL-terminated strings. They are copied, and the array is released once, with this count.
    #[expect(unsafe_code, reason = "the crate `ort` asks for one provider at a time")]
    unsafe {
        Error::result_from_status((api.GetAvailableProviders)(&raw mut names, &raw mut count))?;
        let length = usize::try_from(count).unwrap_or(0);
        let providers = (0..length)
            .map(|index| *names.add(index))
            .filter(|name| !name.is_null())
            .map(|name| CStr::from_ptr(name).to_string_lossy().into_owned())
            .collect();
        Error::result_from_status((api.ReleaseAvailableProviders)(names, count))?;
        Ok(providers)
    }
}

/// A session that runs concurrent requests.
///
/// The session must use the CPU, or execution providers that ONNX Runtime itself contains. Providers without
/// support for concurrent runs (WebGPU, XNNPACK, CUDA and TensorRT with CUDA graphs) report this to the
/// library, which then runs the session under a lock. TensorRT locks its engine, and OpenVINO creates an
/// inference request for each run.
pub struct SharedSession {
    session: Session,
    inputs: Names,
    outputs: Names,
}

impl SharedSession {
    /// Wraps `session`.
    ///
    /// # Errors
    /// Returns an error if the name of an input or output contains a zero byte.
    pub fn new(session: Session) -> ort::Result<Self> {
        Ok(Self {
            inputs: Names::of(session.inputs())?,
            outputs: Names::of(session.outputs())?,
            session,
        })
    }

    /// Returns the names and types of the inputs, in the order of the `values` of [`SharedSession::run`].
    #[must_use]
    pub fn inputs(&self) -> &[Outlet] {
        self.session.inputs()
    }

    /// Returns the names and types of the outputs, in the order in which [`SharedSession::run`] returns them.
    #[must_use]
    pub fn outputs(&self) -> &[Outlet] {
        self.session.outputs()
    }

    /// Runs the model once with these input values. Another thread may end the run with
    /// [`RunOptions::terminate`].
    ///
    /// # Errors
    /// Returns the errors of ONNX Runtime, and an error if the number of values differs from the number of
    /// inputs.
    pub fn run(&self, values: &[SessionInputValue<'_>], options: &RunOptions) -> ort::Result<Vec<DynValue>> {
        if values.len() != self.inputs.pointers.len() {
            return Err(Error::new(format!(
                "the model has {} inputs, {} values were given",
                self.inputs.pointers.len(),
                values.len()
            )));
        }
        let values: Vec<*const ort::sys::OrtValue> = values.iter().map(|value| value.ptr()).collect();
        let mut outputs = Outputs(vec![ptr::null_mut(); self.outputs.pointers.len()]);
        // SAFETY: session, options and values are borrowed for the whole call, and the library only reads the
        // values. The names are NUL-terminated and owned by `self`. There are as many input names as values,
        // and as many output pointers as output names. The output pointers are null, so the library allocates
        // the outputs. `Run` is thread-safe.
        #[expect(unsafe_code, reason = "the call of the library that this crate is for")]
        let status = unsafe {
            (ort::api().Run)(
                self.session.ptr().cast_mut(),
                options.ptr(),
                self.inputs.pointers.as_ptr(),
                values.as_ptr(),
                values.len(),
                self.outputs.pointers.as_ptr(),
                self.outputs.pointers.len(),
                outputs.0.as_mut_ptr(),
            )
        };
        // SAFETY: the call above returned the status, and it is used only once, here.
        #[expect(unsafe_code, reason = "the status is a pointer")]
        unsafe { Error::result_from_status(status) }?;
        outputs.into_values(self.session.allocator())
    }
}

impl fmt::Debug for SharedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSession")
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

/// Output values that the library allocated and that have no owner yet.
struct Outputs(Vec<*mut ort::sys::OrtValue>);

impl Outputs {
    fn into_values(mut self, allocator: &ort::memory::Allocator) -> ort::Result<Vec<DynValue>> {
        if self.0.iter().any(|value| value.is_null()) {
            return Err(Error::new("ONNX Runtime left out an output"));
        }
        let mut values = Vec::with_capacity(self.0.len());
        while let Some(value) = self.0.pop().and_then(NonNull::new) {
            // SAFETY: the library allocated the value for this run, and it was removed from the list, so
            // there is no other owner.
            #[expect(unsafe_code, reason = "the value is a pointer")]
            values.push(unsafe { DynValue::from_ptr(value, Some(allocator)) });
        }
        values.reverse();
        Ok(values)
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        for value in self.0.drain(..).filter(|value| !value.is_null()) {
            // SAFETY: the library allocated the value for this run. It is released only once, because `drain`
            // removes it from the list.
            #[expect(unsafe_code, reason = "the value is a pointer")]
            unsafe {
                (ort::api().ReleaseValue)(value);
            }
        }
    }
}

/// Names of inputs or outputs, as pointers to C strings.
struct Names {
    pointers: Vec<*const c_char>,
    /// The strings to which `pointers` point. Moving the list does not move their contents.
    _texts: Vec<CString>,
}

impl Names {
    fn of(outlets: &[Outlet]) -> ort::Result<Self> {
        let texts = outlets.iter().map(|outlet| CString::new(outlet.name()));
        let texts: Vec<CString> = texts
            .collect::<Result<_, _>>()
            .map_err(|error| Error::new(error.to_string()))?;
        Ok(Self {
            pointers: texts.iter().map(|text| text.as_ptr()).collect(),
            _texts: texts,
        })
    }
}

// SAFETY: the pointers point to strings that `_texts` owns and that are never changed.
#[expect(unsafe_code, reason = "pointers are neither `Send` nor `Sync` by themselves")]
unsafe impl Send for Names {}

// SAFETY: the pointers point to strings that `_texts` owns and that are never changed.
#[expect(unsafe_code, reason = "pointers are neither `Send` nor `Sync` by themselves")]
unsafe impl Sync for Names {}
