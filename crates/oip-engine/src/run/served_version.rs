use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use oip_service::{BoxFuture, RequestContext};
use oip_types::{InferRequest, InferResponse, ModelConfig, ModelMetadata, ServiceError};

use crate::{
    VersionMetrics,
    load::repository::ModelFolder,
    pipeline::Pipeline,
    run::{
        cache::Cached,
        charging::{Inputs, charge_outputs},
        instances::{Answer, Instances},
        statistics::Recorder,
    },
};

/// A version of a model that takes requests, with what there is to know of it.
///
/// Whoever works with it holds it by an [`Arc`]; when nobody does any more, it can be ended without losing a request.
pub(crate) struct ServedVersion {
    version: Option<String>,
    runs: Runs,
    config: Configs,
    labels: Labels,
    cache: Option<Cached>,
}

/// The effective configuration of a version.
pub(crate) struct Configs {
    pub(crate) usual: Arc<ModelConfig>,
    /// For a model that is only guessed to take batches: what holds once that has turned out to be wrong.
    pub(crate) without_batches: Option<Arc<ModelConfig>>,
}

/// What answers requests.
pub(crate) enum Runs {
    Instances(Instances),
    Pipeline(Box<Pipeline>),
}

impl ServedVersion {
    pub(crate) fn new(
        version: Option<String>,
        runs: Runs,
        config: Configs,
        labels: Labels,
        cache: Option<Cached>,
    ) -> Self {
        Self {
            version,
            runs,
            config,
            labels,
            cache,
        }
    }

    pub(crate) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    pub(crate) fn metadata(&self) -> &Arc<ModelMetadata> {
        match &self.runs {
            Runs::Instances(instances) => instances.metadata(),
            Runs::Pipeline(pipeline) => pipeline.metadata(),
        }
    }

    /// Its configuration as it is in effect.
    pub(crate) fn config(&self) -> &Arc<ModelConfig> {
        match (&self.config.without_batches, &self.runs) {
            (Some(config), Runs::Instances(instances)) if !instances.is_joining() => config,
            _ => &self.config.usual,
        }
    }

    /// The pipeline that it is, if it is one.
    pub(crate) fn pipeline(&self) -> Option<&Pipeline> {
        match &self.runs {
            Runs::Instances(_) => None,
            Runs::Pipeline(pipeline) => Some(pipeline),
        }
    }

    /// Answers a request; `infer` answers those that a pipeline makes of it.
    pub(crate) async fn infer<'i>(
        &self,
        request: InferRequest,
        cx: &RequestContext,
        infer: impl Fn(InferRequest, RequestContext) -> BoxFuture<'i, Result<InferResponse, ServiceError>>,
    ) -> Answer {
        let run = async |request| match &self.runs {
            Runs::Instances(instances) => instances.infer(request, cx).await,
            Runs::Pipeline(pipeline) => pipeline.infer(request, cx, infer).await,
        };
        let Some(cache) = &self.cache else {
            return run(request).await;
        };
        let start = Instant::now();
        let key = cache.key(&request);
        if let Some(outputs) = cache.get(&key) {
            let outputs = charge_outputs(cx.lease(), &Inputs::of(&request), false, outputs)?;
            self.recorder().hit(start.elapsed(), cx.received().elapsed());
            return Ok(outputs);
        }
        let looked = start.elapsed();
        let outputs = run(request).await?;
        let start = Instant::now();
        cache.put(key, &outputs);
        self.recorder().miss(looked + start.elapsed());
        Ok(outputs)
    }

    /// Why no request can be run although the model is loaded.
    pub(crate) fn unavailable(&self) -> Option<String> {
        match &self.runs {
            Runs::Instances(instances) => instances.unavailable(),
            Runs::Pipeline(pipeline) => pipeline.unavailable(),
        }
    }

    /// What happened to its requests.
    pub(crate) fn metrics(&self) -> VersionMetrics {
        let waiting = match &self.runs {
            Runs::Instances(instances) => instances.waiting(),
            // They wait for the models of its steps.
            Runs::Pipeline(_) => 0,
        };
        self.recorder()
            .snapshot(&self.metadata().name, self.version(), waiting)
    }

    fn recorder(&self) -> &Recorder {
        match &self.runs {
            Runs::Instances(instances) => instances.recorder(),
            Runs::Pipeline(pipeline) => pipeline.recorder(),
        }
    }

    /// Takes no more requests; those in the queue are still answered.
    pub(crate) fn stop(&self) {
        if let Runs::Instances(instances) = &self.runs {
            instances.stop();
        }
    }

    /// Waits for its threads to end after [`ServedVersion::stop`]; see [`Instances::join`].
    pub(crate) fn join(&self, deadline: Instant) -> bool {
        match &self.runs {
            Runs::Instances(instances) => instances.join(deadline),
            Runs::Pipeline(_) => true,
        }
    }

    /// The names of an output's classes; empty where there are none.
    pub(crate) fn labels(&self, output: &str) -> Arc<[String]> {
        self.labels.0.get(output).cloned().unwrap_or_default()
    }
}

/// The names of classes, by outputs.
#[derive(Debug, Default)]
pub(crate) struct Labels(BTreeMap<String, Arc<[String]>>);

impl Labels {
    /// The largest file with labels that is read, in bytes.
    const MAX_BYTES: u64 = 16 << 20;

    /// Reads the files with labels that a configuration names, one label a line.
    ///
    /// # Errors
    /// What is wrong with a file.
    pub(crate) fn read(folder: &ModelFolder, config: &ModelConfig) -> Result<Self, String> {
        let mut labels = BTreeMap::new();
        for output in config
            .output
            .iter()
            .filter(|output| !output.label_filename.is_empty())
        {
            let bytes = folder.read(&[&output.label_filename], Self::MAX_BYTES)?;
            let text = std::str::from_utf8(&bytes);
            let text = text.map_err(|_| format!("{} is not UTF-8", output.label_filename))?;
            labels.insert(output.name.clone(), text.lines().map(str::to_owned).collect());
        }
        Ok(Self(labels))
    }
}

/// Ends what is not served any more, each on a thread of its own, once its last request is answered.
#[derive(Default)]
pub(crate) struct Retirement {
    ending: Mutex<usize>,
    changed: Condvar,
    is_hurried: AtomicBool,
}

impl Retirement {
    /// How long a thread that hangs in its model is waited for; in effect for ever.
    const PATIENCE: Duration = Duration::from_secs(365 * 24 * 3600);

    /// Ends a version that new requests cannot find any more, and then calls `then`.
    pub(crate) fn retire(self: &Arc<Self>, served: Arc<ServedVersion>, then: impl FnOnce() + Send + 'static) {
        *self.lock() += 1;
        let this = self.clone();
        let then = Arc::new(Mutex::new(Some(then)));
        let take_then = {
            let then = then.clone();
            move || then.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        let end = move || {
            let mut pause = Duration::from_millis(1);
            // Those who found it before it was gone still hold it. Nobody new can.
            while Arc::strong_count(&served) > 1 && !this.is_hurried.load(Ordering::Relaxed) {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            served.stop();
            served.join(Instant::now() + Self::PATIENCE);
            drop(served);
            if let Some(then) = take_then() {
                then();
            }
            *this.lock() -= 1;
            this.changed.notify_all();
        };
        if let Err(error) = thread::Builder::new().name("retire".to_owned()).spawn(end) {
            // What runs then ends when the last request lets go of it; only nobody waits for that.
            tracing::error!(%error, "the system gave no thread to unload a model");
            let then = then.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(then) = then {
                then();
            }
            *self.lock() -= 1;
        }
    }

    /// Waits for everything to end, now without regard for those who still hold it; returns whether all did in time.
    pub(crate) fn finish(&self, deadline: Instant) -> bool {
        self.is_hurried.store(true, Ordering::Relaxed);
        let patience = deadline.saturating_duration_since(Instant::now());
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), patience, |ending| *ending > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
