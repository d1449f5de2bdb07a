//! A backend whose model files contain the name of the model's behavior, and the processes that run its
//! models.

use std::{
    fs,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use oip_model::{Backend, Call, CancelToken, LoadContext, Model, ModelSource, NeedsProcess, Outcome};
use oip_types::{
    BytesTensor, DataType, InferOutput, InferRequest, ModelConfig, ModelMetadata, ModelRef, ServiceError,
    TensorMetadata, model_config::ConfigParameter,
};
use oip_worker::{IsolatedBackend, Isolation};
use rustix::process::{Signal, getpid, kill_process};
use tensor_core::{Shape, Tensor};

/// Name of the environment variable that selects the role of a process of this program.
pub(crate) const ROLE: &str = "OIP_WORKER_TEST_ROLE";

/// Plays a role, and never returns.
pub(crate) fn play(role: &str) -> ! {
    match role {
        "worker" => {
            oip_worker::run(&[Arc::new(DeedBackend)]);
        }
        "server" => crate::life::serve(),
        #[cfg(target_os = "linux")]
        role if role.starts_with("asks: ") => crate::calls::play(role),
        #[cfg(target_os = "linux")]
        role if role.starts_with("another program: ") => crate::tensor_locations::play(role),
        role => crate::hostile::pretend(role),
    }
    std::process::exit(1)
}

/// Returns a command that starts this program in the role `role`.
pub(crate) fn process(role: &str) -> Command {
    let mut command = Command::new(oip_worker::this_program());
    command
        .args(["another_process", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role);
    command
}

pub(crate) fn isolation(role: &'static str) -> Isolation {
    Isolation::new(move || process(role))
}

/// Loads a model with the behavior `deed` into workers.
pub(crate) fn isolated(deed: &str) -> Box<dyn Model> {
    load(deed, isolation("worker"), &[("isolation", "process")]).unwrap()
}

pub(crate) fn load(
    deed: &str,
    isolation: Isolation,
    parameters: &[(&str, &str)],
) -> Result<Box<dyn Model>, ServiceError> {
    load_within(deed, isolation, parameters, Duration::from_secs(60))
}

/// Loads a model whose workers can be distinguished from those of other models.
pub(crate) fn named(name: &str, deed: &str) -> Box<dyn Model> {
    let parameters = [("isolation", "process")];
    load_as(
        name,
        deed,
        isolation("worker"),
        &parameters,
        Duration::from_secs(60),
    )
    .unwrap()
}

/// Returns the process ids of a model's workers.
pub(crate) fn workers_of(name: &str) -> Vec<u32> {
    let label = format!("\0{name}/1\0");
    let is_its = |pid: &u32| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline"));
        command.is_ok_and(|command| command.contains(&label))
    };
    children_of(std::process::id())
        .into_iter()
        .filter(is_its)
        .collect()
}

pub(crate) fn load_within(
    deed: &str,
    isolation: Isolation,
    parameters: &[(&str, &str)],
    patience: Duration,
) -> Result<Box<dyn Model>, ServiceError> {
    load_as("m", deed, isolation, parameters, patience)
}

pub(crate) fn load_as(
    name: &str,
    deed: &str,
    isolation: Isolation,
    parameters: &[(&str, &str)],
    patience: Duration,
) -> Result<Box<dyn Model>, ServiceError> {
    let source = ModelSource::new(name, "1", "model.deed", deed.to_owned().into());
    let parameter = |value: &str| ConfigParameter {
        string_value: value.to_owned(),
    };
    let config = ModelConfig {
        parameters: parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), parameter(value)))
            .collect(),
        ..ModelConfig::default()
    };
    let cx = LoadContext::default()
        .with_deadline(Some(Instant::now() + patience))
        .with_config(Arc::new(config));
    IsolatedBackend::new(Arc::new(DeedBackend), isolation).load(&source, &cx)
}

pub(crate) fn request(x: i32) -> InferRequest {
    InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", vector(vec![x]))
}

pub(crate) fn vector(x: Vec<i32>) -> Tensor {
    Tensor::from_vec(Shape::vector(x.len() as u64), x).unwrap()
}

/// Runs a request with a long timeout.
pub(crate) fn infer(model: &dyn Model, x: i32) -> Result<i32, ServiceError> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let outputs = model.infer(request(x), &CancelToken::new(Some(deadline)))?;
    Ok(outputs[0].value.as_fixed().unwrap().to_vec::<i32>().unwrap()[0])
}

/// Waits until `is_so` returns true. After a timeout, panics with the message `what`.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "it does not happen: {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the living child processes of `parent`.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some((state, of)) = state(pid)
            && of == parent
            && state != 'Z'
        {
            children.push(pid);
        }
    }
    children
}

pub(crate) fn is_alive(pid: u32) -> bool {
    // A dead process may be a zombie until its new parent reaps it.
    state(pid).is_some_and(|(state, _)| state != 'Z')
}

/// Returns the state and the parent of a process.
fn state(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Returns the id of the process that runs a model, as reported by the model.
pub(crate) fn pid_of(model: &dyn Model) -> u32 {
    let outputs = model.infer(request(PID), &CancelToken::new(None)).unwrap();
    outputs[0].value.as_fixed().unwrap().to_vec::<i32>().unwrap()[0] as u32
}

/// Input to which every model responds with its process id.
pub(crate) const PID: i32 = -1;
/// Input for which every model returns the arguments that it was loaded with.
pub(crate) const TELL: i32 = -2;
/// Input on which a model shows its behavior. Other inputs are returned unchanged.
pub(crate) const ACT: i32 = 13;

/// Loads `model.deed` files.
pub(crate) struct DeedBackend;

impl Backend for DeedBackend {
    fn name(&self) -> &'static str {
        "deed"
    }

    fn other_names(&self) -> &'static [&'static str] {
        &["test_deed"]
    }

    fn file_names(&self) -> &[&str] {
        &["model.deed"]
    }

    fn load(&self, source: &ModelSource, cx: &LoadContext) -> Result<Box<dyn Model>, ServiceError> {
        let deed = String::from_utf8(source.content.to_vec()).unwrap();
        if let Some(deed) = deed.strip_prefix("while loading: ") {
            act(deed, &CancelToken::new(cx.deadline));
            return Err(ServiceError::invalid("it is broken"));
        }
        if deed == "alone" && cx.can_isolate {
            let reason = NeedsProcess::new("it ends its process");
            return Err(ServiceError::invalid(reason.to_string()).caused_by(reason));
        }
        let x = TensorMetadata::new("x", DataType::INT32, &[-1]);
        Ok(Box::new(Deed {
            deed,
            seen: format!(
                "{} {} {:?} {:?} {}",
                source.name,
                source.version,
                source.path,
                cx.config.parameters.keys(),
                cx.deadline.is_some()
            ),
            metadata: ModelMetadata::new(
                "",
                "test_deed",
                vec![x, TensorMetadata::new("text", DataType::BYTES, &[-1]).optional()],
                vec![
                    TensorMetadata::new("y", DataType::INT32, &[-1]),
                    TensorMetadata::new("text", DataType::BYTES, &[-1]).optional(),
                ],
            ),
        }))
    }
}

struct Deed {
    deed: String,
    /// The arguments that the backend received when it loaded the model.
    seen: String,
    metadata: ModelMetadata,
}

impl Model for Deed {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError> {
        let (mut request, cancel) = (call.request, call.cancel);
        let text = request.take_input("text").ok();
        let x = request.take_input("x")?;
        let elements = x.as_fixed().unwrap().to_vec::<i32>().unwrap();
        // In a batch, the element that triggers the behavior may be at any index.
        let first = elements.iter().find(|x| **x == ACT).or(elements.first()).copied();
        let y = match first {
            Some(PID) => vector(vec![std::process::id() as i32]).into(),
            Some(TELL) => {
                let told = [self.seen.as_str(), request.id.as_deref().unwrap_or("")];
                let told = BytesTensor::from_elements(Shape::vector(2), told)?;
                return Ok(vec![InferOutput::new("y", x), InferOutput::new("text", told)].into());
            }
            Some(ACT) if self.deed.starts_with("large ") => {
                let bytes: usize = self.deed["large ".len()..].parse().unwrap();
                vector(vec![7; bytes / 4]).into()
            }
            Some(ACT) if self.deed == "gives rank 40" => x
                .as_fixed()
                .unwrap()
                .reshape(Shape::new(&[1; 40]).unwrap())
                .unwrap()
                .into(),
            Some(ACT) => {
                act(&self.deed, cancel);
                x
            }
            _ => x,
        };
        let mut outputs = vec![InferOutput::new("y", y)];
        outputs.extend(text.map(|text| InferOutput::new("text", text)));
        Ok(outputs.into())
    }
}

fn act(deed: &str, cancel: &CancelToken) {
    match deed {
        "aborts" => std::process::abort(),
        "overflows its stack" => assert!(deeper(1) > 0),
        // The signal is raised repeatedly: Rust's handler takes the first signal for an invalid memory access
        // and retries the instruction.
        "segfaults" => loop {
            kill_process(getpid(), Signal::SEGV).unwrap();
            thread::sleep(Duration::from_millis(1));
        },
        "exits" => std::process::exit(3),
        "panics" => panic!("at src/secret.rs"),
        "takes 4 GiB" => {
            // Writing to the memory makes the system allocate it, even on systems where the limit does not
            // apply.
            let taken = vec![1u8; 4 << 30];
            assert_eq!(taken.iter().step_by(1 << 20).count(), 4 << 10);
        }
        "hangs" => loop {
            std::hint::spin_loop();
        },
        "waits to be cancelled" => {
            while !cancel.is_cancelled() {
                thread::sleep(Duration::from_millis(1));
            }
        }
        "sleeps" => thread::sleep(Duration::from_millis(300)),
        #[allow(clippy::print_stdout, reason = "that is what it does")]
        "prints" => {
            print!("{}", "\0\u{1}garbage".repeat(10_000));
            println!();
        }
        _ => {}
    }
}

#[expect(unconditional_recursion, reason = "that is what it does")]
fn deeper(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    deeper(depth + 1) + frame[depth as usize % 64]
}
