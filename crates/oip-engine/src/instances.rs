use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use futures_channel::oneshot;
use oip_service::{CancelToken, Model};
use oip_types::{ErrorCode, InferOutput, InferRequest, ModelMetadata, ServiceError};

use crate::queue::{PushError, Queue};

/// The threads that run one version of a model, and the queue before them.
pub(crate) struct Instances {
    metadata: Arc<ModelMetadata>,
    version: Option<String>,
    queue: Arc<Queue<Job>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A request on its way to a thread.
struct Job {
    request: InferRequest,
    cancel: CancelToken,
    answer: oneshot::Sender<Answer>,
}

/// What comes back from a thread.
pub(crate) type Answer = Result<Vec<InferOutput>, ServiceError>;

impl Instances {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub(crate) fn start(
        model: Box<dyn Model>,
        metadata: ModelMetadata,
        version: Option<String>,
        threads: usize,
        queue_capacity: usize,
    ) -> std::io::Result<Self> {
        let (model, metadata) = (Arc::<dyn Model>::from(model), Arc::new(metadata));
        let queue = Arc::new(Queue::new(queue_capacity));
        let instances = Self {
            metadata: metadata.clone(),
            version,
            queue: queue.clone(),
            threads: Mutex::default(),
        };
        for index in 0..threads.max(1) {
            let (model, metadata, queue) = (model.clone(), metadata.clone(), queue.clone());
            let builder = thread::Builder::new().name(thread_name("run", &metadata.name, index));
            let builder = builder.stack_size(STACK_SIZE);
            let thread = builder.spawn(move || serve(&*model, &metadata, &queue));
            match thread {
                Ok(thread) => instances.lock_threads().push(thread),
                Err(error) => {
                    instances.stop();
                    return Err(error);
                }
            }
        }
        Ok(instances)
    }

    pub(crate) fn metadata(&self) -> &Arc<ModelMetadata> {
        &self.metadata
    }

    pub(crate) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Puts a request, which was checked, into the queue.
    pub(crate) fn submit(
        &self,
        request: InferRequest,
        cancel: CancelToken,
    ) -> Result<oneshot::Receiver<Answer>, ServiceError> {
        let (answer, receiver) = oneshot::channel();
        match self.queue.push(Job {
            request,
            cancel,
            answer,
        }) {
            Ok(()) => Ok(receiver),
            Err(PushError::Full) => Err(ServiceError::new(
                ErrorCode::Overloaded,
                "its queue is full; try again later",
            )),
            Err(PushError::Closed) => Err(ServiceError::new(ErrorCode::Unavailable, "it is being unloaded")),
        }
    }

    /// Takes no more requests; those in the queue are still answered.
    pub(crate) fn stop(&self) {
        self.queue.close();
    }

    /// Waits for the threads to end after [`Instances::stop`], and returns whether all of them did.
    pub(crate) fn join(&self, deadline: Instant) -> bool {
        let threads = std::mem::take(&mut *self.lock_threads());
        let mut all = true;
        for thread in threads {
            // There is no join with a time limit. A thread that hangs in its model is left behind.
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            all &= thread.is_finished() && thread.join().is_ok();
        }
        all
    }

    fn lock_threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Stack for threads that run code of models: graphs can be deep.
pub(crate) const STACK_SIZE: usize = 16 << 20;

/// A thread's name, within the 15 bytes that Linux keeps.
pub(crate) fn thread_name(task: &str, model: &str, index: usize) -> String {
    let model: String = model.chars().filter(char::is_ascii_graphic).take(6).collect();
    format!("{task}-{model}-{index}")
}

/// The life of a thread: takes what waits longest, runs it, answers.
fn serve(model: &dyn Model, metadata: &ModelMetadata, queue: &Queue<Job>) {
    while let Some(Job {
        request,
        cancel,
        answer,
    }) = queue.pop()
    {
        if answer.is_canceled() {
            continue;
        }
        let result = if cancel.is_expired() {
            Err(ServiceError::new(
                ErrorCode::DeadlineExceeded,
                "the deadline passed before the model could run",
            ))
        } else if cancel.is_cancelled() {
            Err(ServiceError::new(
                ErrorCode::Cancelled,
                "the request was cancelled",
            ))
        } else {
            run(model, metadata, request, &cancel)
        };
        // Nobody may wait any more, and then nobody misses it.
        let _ = answer.send(result);
    }
}

fn run(model: &dyn Model, metadata: &ModelMetadata, request: InferRequest, cancel: &CancelToken) -> Answer {
    let requested = request.outputs.clone();
    let outputs =
        catch_unwind(AssertUnwindSafe(|| model.infer(request, cancel))).unwrap_or_else(|panic| {
            let cause = panic_message(&*panic);
            tracing::error!(model = metadata.name, cause, "a model panicked");
            Err(ServiceError::internal(
                "it panicked; this request is lost, the next one will be tried",
            ))
        })?;
    metadata.pick_outputs(&requested, outputs)
}

/// What a panic said, for the log.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message")
}
