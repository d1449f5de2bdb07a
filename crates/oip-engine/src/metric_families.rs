//! Metrics of each model version, under Triton's names where Triton has the same metric.

use std::iter;

use oip_telemetry::{Families, Family, Samples};
use oip_types::{ModelState, StatisticDuration};

use crate::{
    Engine,
    statistics::{FailureReason, Histogram, VersionMetrics},
    versions::status::ModelStatus,
};

impl Engine {
    /// Writes the metrics of all models, under Triton's names where Triton has the same metric: those of
    /// ready versions, and the states of all versions that the engine has tried to load.
    ///
    /// ```
    /// use oip_engine::{Engine, EngineConfig, Repository};
    /// use oip_telemetry::prometheus;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// let engine = Engine::start(Repository::open(path, &[], None)?, EngineConfig::default());
    /// let page = prometheus::page(|families| engine.write_metrics(families));
    /// assert!(page.contains("# TYPE nv_inference_request_success counter"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_metrics(&self, families: &mut Families<'_>) {
        write_metrics(families, &self.metrics());
        write_states(families, &self.models());
    }
}

/// A counter or gauge of each ready version.
struct PerVersion {
    family: Family,
    of: fn(&VersionMetrics) -> u64,
}

const fn counter(name: &'static str, help: &'static str, of: fn(&VersionMetrics) -> u64) -> PerVersion {
    let family = Family::counter(name, help);
    PerVersion { family, of }
}

const NUMBERS: [PerVersion; 13] = [
    counter(
        "nv_inference_request_success",
        "Inference requests that were answered, whatever their number of rows.",
        |metrics| metrics.statistics.inference_stats.success.count,
    ),
    counter(
        "nv_inference_count",
        "Inferences of the model: rows of batches, or requests to a model without batching.",
        |metrics| metrics.statistics.inference_count,
    ),
    counter(
        "nv_inference_exec_count",
        "Runs of the model, each for one batch.",
        |metrics| metrics.statistics.execution_count,
    ),
    counter(
        "nv_inference_request_duration_us",
        "Microseconds from arrival to response, of all requests that were answered.",
        |metrics| microseconds(metrics.statistics.inference_stats.success),
    ),
    counter(
        "nv_inference_queue_duration_us",
        "Microseconds that requests waited for the model.",
        |metrics| microseconds(metrics.statistics.inference_stats.queue),
    ),
    counter(
        "nv_inference_compute_input_duration_us",
        "Microseconds of requests for preparing their inputs.",
        |metrics| microseconds(metrics.statistics.inference_stats.compute_input),
    ),
    counter(
        "nv_inference_compute_infer_duration_us",
        "Microseconds of requests in the model itself.",
        |metrics| microseconds(metrics.statistics.inference_stats.compute_infer),
    ),
    counter(
        "nv_inference_compute_output_duration_us",
        "Microseconds of requests for checking and splitting outputs.",
        |metrics| microseconds(metrics.statistics.inference_stats.compute_output),
    ),
    PerVersion {
        family: Family::gauge(
            "nv_inference_pending_request_count",
            "Requests that wait for the model now.",
        ),
        of: |metrics| metrics.waiting,
    },
    counter(
        "nv_cache_num_hits_per_model",
        "Requests that were answered from the response cache.",
        |metrics| metrics.statistics.inference_stats.cache_hit.count,
    ),
    counter(
        "nv_cache_num_misses_per_model",
        "Requests that were looked for in the response cache and not found.",
        |metrics| metrics.statistics.inference_stats.cache_miss.count,
    ),
    counter(
        "nv_cache_hit_duration_per_model",
        "Microseconds for taking responses from the response cache.",
        |metrics| microseconds(metrics.statistics.inference_stats.cache_hit),
    ),
    counter(
        "nv_cache_miss_duration_per_model",
        "Microseconds for lookups in the response cache that failed, and for storing responses.",
        |metrics| microseconds(metrics.statistics.inference_stats.cache_miss),
    ),
];

const FAILURES: Family = Family::counter(
    "nv_inference_request_failure",
    "Inference requests that failed, by reason.",
);

/// A histogram family with one series per ready version.
struct Sizes {
    family: Family,
    of: fn(&VersionMetrics) -> &Histogram,
    /// Conversion factor from the engine's unit to the family's.
    unit: f64,
}

const HISTOGRAMS: [Sizes; 4] = [
    Sizes {
        family: Family::histogram(
            "oip_request_duration_seconds",
            "Time from arrival to response, of requests that were answered.",
        ),
        of: |metrics| &metrics.total,
        unit: MICROSECONDS,
    },
    Sizes {
        family: Family::histogram(
            "oip_queue_duration_seconds",
            "Time that requests waited for the model, of those that were answered.",
        ),
        of: |metrics| &metrics.queue,
        unit: MICROSECONDS,
    },
    Sizes {
        family: Family::histogram(
            "oip_compute_duration_seconds",
            "Compute time (inputs, the model, outputs) of requests that were answered.",
        ),
        of: |metrics| &metrics.compute,
        unit: MICROSECONDS,
    },
    Sizes {
        family: Family::histogram("oip_batch_rows", "Rows of the batches that the model ran."),
        of: |metrics| &metrics.batch_rows,
        unit: 1.0,
    },
];

const MICROSECONDS: f64 = 1e6;

const READY: Family = Family::gauge(
    "oip_model_ready",
    "Whether a version accepts requests: 1 if it does, 0 if it is loading, failed to load, or hangs.",
);

const LOAD_TIME: Family = Family::gauge("nv_model_load_duration_secs", "Seconds that loading took.");

const LOAD_MEMORY: Family = Family::gauge(
    "oip_model_memory_bytes",
    "Estimated memory of a version: the growth of the server's memory while it was loaded.",
);

const PROVIDER: Family = Family::gauge(
    "oip_model_execution_provider",
    "The first execution provider of a version of an ONNX model on ONNX Runtime, and its GPUs; always 1.",
);

/// Writes the families of ready versions.
fn write_metrics(text: &mut Families<'_>, versions: &[VersionMetrics]) {
    for PerVersion { family, of } in &NUMBERS {
        let mut samples = text.family(family);
        for metrics in versions {
            samples.add(&labels(metrics), of(metrics));
        }
    }
    let mut samples = text.family(&FAILURES);
    for metrics in versions {
        let [model, version] = labels(metrics);
        // Failures are written even if zero: computing a rate requires a counter that exists before the first
        // event.
        for reason in FailureReason::ALL {
            let failures = metrics.failures.iter();
            let count: u64 = failures
                .filter_map(|(of, count)| (*of == reason).then_some(count))
                .sum();
            samples.add(&[model, version, ("reason", reason.name())], count);
        }
    }
    for Sizes { family, of, unit } in &HISTOGRAMS {
        let mut samples = text.family(family);
        for metrics in versions {
            add_histogram(&mut samples, metrics, of(metrics), *unit);
        }
    }
}

fn add_histogram(samples: &mut Samples<'_>, metrics: &VersionMetrics, histogram: &Histogram, unit: f64) {
    let bounds = histogram.bounds.iter().map(|bound| *bound as f64 / unit);
    let sum = histogram.sum as f64 / unit;
    samples.add_histogram(&labels(metrics), bounds, &histogram.counts, sum);
}

fn labels(metrics: &VersionMetrics) -> [(&str, &str); 2] {
    let statistics = &metrics.statistics;
    [("model", &statistics.name), ("version", &statistics.version)]
}

/// Writes the families of all `versions`: those that the server has tried to load.
fn write_states(text: &mut Families<'_>, versions: &[ModelStatus]) {
    let mut samples = text.family(&READY);
    for status in versions {
        samples.add(&status_labels(status), status.state == ModelState::Ready);
    }
    let mut samples = text.family(&LOAD_TIME);
    for status in versions {
        if let (ModelState::Ready, Some(time)) = (status.state, status.load_time) {
            samples.add(&status_labels(status), time.as_secs_f64());
        }
    }
    let mut samples = text.family(&LOAD_MEMORY);
    for status in versions {
        if let (ModelState::Ready, Some(memory)) = (status.state, status.load_memory) {
            samples.add(&status_labels(status), memory);
        }
    }
    let mut placed = versions.iter().filter_map(|status| {
        let placement = status.placement.as_ref()?;
        let provider = placement.providers.first()?;
        (status.state == ModelState::Ready).then_some((status, placement, provider))
    });
    // A family without samples is not written.
    let Some(first) = placed.next() else {
        return;
    };
    let mut samples = text.family(&PROVIDER);
    for (status, placement, provider) in iter::once(first).chain(placed) {
        let gpus: Vec<String> = placement.gpus.iter().map(u32::to_string).collect();
        let [model, version] = status_labels(status);
        samples.add(
            &[model, version, ("provider", provider), ("gpus", &gpus.join(","))],
            1,
        );
    }
}

fn status_labels(status: &ModelStatus) -> [(&str, &str); 2] {
    let version = status.version.as_deref().unwrap_or_default();
    [("model", &status.name), ("version", version)]
}

fn microseconds(duration: StatisticDuration) -> u64 {
    duration.ns / 1_000
}
