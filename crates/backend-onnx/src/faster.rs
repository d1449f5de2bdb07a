//! Which of the two runtimes a model is left to: both run the same made-up request, and their times are compared.

use std::{
    cmp::Reverse,
    time::{Duration, Instant},
};

use oip_service::{CancelToken, LoadContext, Model};
use oip_types::InferRequest;
use tensor_core::Shape;

use crate::{onnx_runtime::made_up_request, signature::Port, trial};

/// tract is used where it takes at most so many times what ONNX Runtime takes: the files of models are checked before tract
/// runs them, and nothing that they do ends the process.
pub(crate) const FACTOR: f64 = 1.5;

/// How long the runs may take, all together.
const PATIENCE: Duration = Duration::from_secs(3);

/// Runs before those that are measured: a plan for a shape is made at the second or third.
const FIRST_RUNS: usize = 3;

/// Runs that are measured, the quickest of which counts.
const RUNS: usize = 5;

/// Shapes of more elements than this, all inputs together, are not tried: most requests are smaller.
const MAX_ELEMENTS: u64 = 1 << 19;

/// What a run takes two models, by the first request that both answer; `None` if none was found in time.
pub(crate) fn compare(models: [&dyn Model; 2], inputs: &[Port], cx: &LoadContext) -> Option<[Duration; 2]> {
    let last = Instant::now() + PATIENCE;
    let token = CancelToken::new(Some(cx.deadline.map_or(last, |deadline| deadline.min(last))));
    shapes(inputs, cx)
        .into_iter()
        .take_while(|_| !token.is_cancelled())
        .find_map(|shapes| {
            let request = made_up_request(inputs, shapes)?;
            let [first, second] = models.map(|model| time(model, &request, &token));
            Some([first?, second?])
        })
}

/// Whether these times, of tract and of ONNX Runtime, speak for tract.
pub(crate) fn is_as_fast([tract, onnx_runtime]: [Duration; 2]) -> bool {
    tract.as_secs_f64() <= FACTOR * onnx_runtime.as_secs_f64()
}

/// Shapes for a request: those of the warm-up requests, then made-up ones, the largest first.
fn shapes(inputs: &[Port], cx: &LoadContext) -> Vec<Vec<Shape>> {
    let is_batched = cx.config.max_batch_size > 0;
    let warm_ups = cx.config.model_warmup.iter().filter_map(|warm_up| {
        let rows = is_batched.then(|| u64::from(warm_up.batch_size.max(1)));
        let shape = |port: &Port| {
            let dims = warm_up.inputs.get(&port.name)?.dims.iter();
            let dims: Option<Vec<u64>> = rows
                .map(Some)
                .into_iter()
                .chain(dims.map(|&dim| u64::try_from(dim).ok()))
                .collect();
            Shape::new(&dims?).ok()
        };
        inputs.iter().map(shape).collect::<Option<Vec<Shape>>>()
    });
    let elements = |shapes: &Vec<Shape>| -> u64 {
        let counts = shapes.iter().map(Shape::element_count);
        counts.fold(0, u64::saturating_add)
    };
    let mut made_up = trial::shapes(inputs);
    made_up.retain(|shapes| elements(shapes) <= MAX_ELEMENTS);
    made_up.sort_by_key(|shapes| Reverse(elements(shapes)));
    warm_ups.chain(made_up).collect()
}

fn time(model: &dyn Model, request: &InferRequest, token: &CancelToken) -> Option<Duration> {
    for _ in 0..FIRST_RUNS {
        model.infer(request.clone(), token).ok()?;
    }
    let runs = (0..RUNS).map_while(|_| {
        let started = Instant::now();
        model.infer(request.clone(), token).ok()?;
        Some(started.elapsed())
    });
    runs.min()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::{collections::BTreeMap, sync::Arc, thread};

    use oip_types::{
        DataType, InferOutput, ModelConfig, ModelMetadata, ServiceError,
        model_config::{Warmup, WarmupData, WarmupInput},
    };

    use super::*;
    use crate::signature::Dim;

    /// Sleeps, and takes up to so many elements.
    struct Sleeper {
        time: Duration,
        most: u64,
        metadata: ModelMetadata,
    }

    impl Sleeper {
        fn new(milliseconds: u64, most: u64) -> Self {
            Self {
                time: Duration::from_millis(milliseconds),
                most,
                metadata: ModelMetadata::new("m", "test", vec![], vec![]),
            }
        }
    }

    impl Model for Sleeper {
        fn metadata(&self) -> &ModelMetadata {
            &self.metadata
        }

        fn infer(&self, request: InferRequest, _: &CancelToken) -> Result<Vec<InferOutput>, ServiceError> {
            thread::sleep(self.time);
            match request.input("x").unwrap().shape().element_count() <= self.most {
                true => Ok(vec![]),
                false => Err(ServiceError::invalid("too large")),
            }
        }
    }

    fn port() -> [Port; 1] {
        [Port {
            name: "x".to_owned(),
            datatype: DataType::FP32,
            dims: Some(vec![Dim::Free, Dim::Fixed(3), Dim::Free]),
        }]
    }

    #[test]
    fn the_quicker_one_is_found_by_a_request_that_both_answer() {
        let (quick, slow) = (Sleeper::new(0, 10), Sleeper::new(20, 1000));
        let cx = LoadContext::default();
        let times = compare([&slow, &quick], &port(), &cx).unwrap();
        assert!(!is_as_fast(times));
        let times = compare([&quick, &slow], &port(), &cx).unwrap();
        assert!(is_as_fast(times));
        let none = Sleeper::new(0, 0);
        assert_eq!(compare([&none, &quick], &port(), &cx), None);
    }

    #[test]
    fn warm_up_requests_come_first_and_small_shapes_last() {
        let input = WarmupInput {
            data_type: DataType::FP32,
            dims: vec![3, 77],
            data: WarmupData::ZeroData(true),
        };
        let warm_up = Warmup {
            batch_size: 2,
            inputs: BTreeMap::from([("x".to_owned(), input)]),
            ..Warmup::default()
        };
        let config = ModelConfig {
            max_batch_size: 4,
            model_warmup: vec![warm_up],
            ..ModelConfig::default()
        };
        let cx = LoadContext::default().with_config(Arc::new(config));
        let shapes = shapes(&port(), &cx);
        assert_eq!(shapes[0][0].dims(), [2, 3, 77]);
        let rest: Vec<u64> = shapes[1..]
            .iter()
            .map(|shapes| shapes[0].element_count())
            .collect();
        assert!(
            rest.is_sorted_by(|a, b| a >= b) && rest.last() == Some(&3),
            "{rest:?}"
        );
    }
}
