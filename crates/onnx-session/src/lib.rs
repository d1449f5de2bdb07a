//! One session of ONNX Runtime that many threads run at once.
//!
//! The crate `ort` runs a session through `&mut self`, so programs that serve many requests would need a
//! session for each simultaneous run: as many copies of the weights, or weights that sessions share, which
//! ONNX Runtime's transpose optimizer rewrites for one of them only (silently wrong numbers) and which its
//! quantised operators refuse. ONNX Runtime itself allows `Run` from any number of threads: its documentation
//! says so, its own bindings do it, and execution providers that cannot are locked inside of the library.
//! This crate makes that one call.
//!
//! It also limits what all sessions of an environment take together for values ([`limit_memory`]), and keeps
//! the names of inputs and outputs as C wants them, so that a run does not make them anew.
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

/// Gives an environment one pool for the values of all its sessions, of at most `bytes`. A run that would
/// need more fails.
///
/// It holds for sessions that are made afterwards with the entry `session.use_env_allocators`
/// ([`with_env_allocators`](ort::session::builder::SessionBuilder::with_env_allocators)). Weights are taken
/// from it too, unless the entry `session.use_device_allocator_for_initializers` says otherwise.
///
/// # Errors
/// ONNX Runtime's own, such as when the environment has a pool already.
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

/// The execution providers that a library was built with, by its names, the preferred one first. That one is
/// here does not say that it can be used: it may need libraries and devices that this machine does not have.
///
/// # Errors
/// ONNX Runtime's own.
pub fn available_providers(_: &Environment) -> ort::Result<Vec<String>> {
    let api = ort::api();
    let (mut names, mut count) = (ptr::null_mut(), 0);
    // SAFETY: both places are this function's. On success the library has made an array of so many strings,
    // each of which ends with a zero byte; they are copied, and the array is released once, with the number
    // that came with it.
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

/// A session whose runs go on at the same time.
///
/// Only for sessions on the CPU, or on providers of ONNX Runtime's own. Those that cannot do several runs at
/// once (WebGPU, XNNPACK, CUDA and TensorRT with CUDA graphs) say so to the library, which then locks each
/// run of the session; TensorRT locks its engine, OpenVINO gives each run a request of its own.
pub struct SharedSession {
    session: Session,
    inputs: Names,
    outputs: Names,
}

impl SharedSession {
    /// Takes a session.
    ///
    /// # Errors
    /// When a name of an input or output has a zero byte.
    pub fn new(session: Session) -> ort::Result<Self> {
        Ok(Self {
            inputs: Names::of(session.inputs())?,
            outputs: Names::of(session.outputs())?,
            session,
        })
    }

    /// What is known of the inputs, in the order in which [`SharedSession::run`] takes them.
    #[must_use]
    pub fn inputs(&self) -> &[Outlet] {
        self.session.inputs()
    }

    /// What is known of the outputs, in the order in which [`SharedSession::run`] gives them.
    #[must_use]
    pub fn outputs(&self) -> &[Outlet] {
        self.session.outputs()
    }

    /// Runs the model once. Another thread may end the run by [`RunOptions::terminate`].
    ///
    /// # Errors
    /// ONNX Runtime's own, and when there are not as many values as the model has inputs.
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
        // SAFETY: session, options and values are alive, borrowed for the call; the values are only read.
        // Names end with a zero byte and live in `self`. There are as many names as values, and as many
        // places as names of outputs; places that are null are filled by the library. `Run` may be called by
        // several threads at once.
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
        // SAFETY: the status comes from the call above and is used here only.
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

/// Values that the library made and nothing owns yet.
struct Outputs(Vec<*mut ort::sys::OrtValue>);

impl Outputs {
    fn into_values(mut self, allocator: &ort::memory::Allocator) -> ort::Result<Vec<DynValue>> {
        if self.0.iter().any(|value| value.is_null()) {
            return Err(Error::new("ONNX Runtime left out an output"));
        }
        let mut values = Vec::with_capacity(self.0.len());
        while let Some(value) = self.0.pop().and_then(NonNull::new) {
            // SAFETY: the library made the value for this run, and nothing else has it: it was taken off the
            // list.
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
            // SAFETY: as above; it is released once, for it leaves the list.
            #[expect(unsafe_code, reason = "the value is a pointer")]
            unsafe {
                (ort::api().ReleaseValue)(value);
            }
        }
    }
}

/// Names as C has them.
struct Names {
    pointers: Vec<*const c_char>,
    /// Where the pointers point. Moving this does not move the text.
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

// SAFETY: the pointers are to text that this owns and nothing changes.
#[expect(unsafe_code, reason = "pointers are neither `Send` nor `Sync` by themselves")]
unsafe impl Send for Names {}

// SAFETY: as above.
#[expect(unsafe_code, reason = "pointers are neither `Send` nor `Sync` by themselves")]
unsafe impl Sync for Names {}
