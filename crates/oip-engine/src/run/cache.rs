//! The response cache: answers that are kept for requests that come again.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use lru::LruCache;
use oip_service::{CpuPool, Lease};
use oip_types::{InferOutput, InferRequest, ParameterValue, ServiceError, TensorValue};

/// Request parameters that say how to run and not what: answers do not depend on them.
const NOT_CONTENT: [&str; 2] = ["priority", "timeout"];

/// Answers of all models that have a cache, within one budget of bytes; those that were not asked for the longest time
/// go first.
pub(crate) struct ResponseCache {
    budget: u64,
    kept: Mutex<Kept>,
    cpu: CpuPool,
}

/// Bytes of tensors above which they are hashed and copied by a thread of the pool.
const LARGE: usize = 64 << 10;

/// A number that answers are kept under: each load of a model has its own, and each plan of a pipeline, which is planned
/// anew when one of its models changes. So no answer outlives what gave it. No number comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    pub(crate) fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

struct Kept {
    answers: LruCache<Key, Answer>,
    bytes: u64,
}

struct Answer {
    outputs: Vec<InferOutput>,
    bytes: u64,
}

/// What a request asks, as a collision-resistant digest: one client must not be able to prepare an answer for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// The key of a request to a model. Each list comes after its length, so that no two requests have the same bytes.
    pub(crate) fn new(generation: Generation, request: &InferRequest) -> Self {
        let mut hasher = Hasher(blake3::Hasher::new());
        hasher.number(generation.0);
        let content = |(name, _): &(&String, &ParameterValue)| !NOT_CONTENT.contains(&name.as_str());
        hasher.parameters(request.parameters.iter().filter(content));
        // By name: the order in which a client lists inputs means nothing.
        let mut inputs: Vec<_> = request.inputs.iter().collect();
        inputs.sort_by(|a, b| a.name.cmp(&b.name));
        hasher.number(inputs.len() as u64);
        for input in inputs {
            hasher.text(&input.name);
            hasher.parameters(input.parameters.iter());
            hasher.text(input.value.datatype().name());
            hasher.number(input.value.shape().rank() as u64);
            input
                .value
                .shape()
                .dims()
                .iter()
                .for_each(|dim| hasher.number(*dim));
            hasher.bytes(input.value.raw());
        }
        hasher.number(request.outputs.len() as u64);
        for output in &request.outputs {
            hasher.text(&output.name);
            hasher.parameters(output.parameters.iter());
        }
        Self(*hasher.0.finalize().as_bytes())
    }
}

/// Hashes fields so that no two lists of fields have the same bytes.
struct Hasher(blake3::Hasher);

impl Hasher {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn parameters<'p>(&mut self, parameters: impl Iterator<Item = (&'p String, &'p ParameterValue)> + Clone) {
        self.number(parameters.clone().count() as u64);
        for (name, value) in parameters {
            self.text(name);
            self.text(&format!("{value:?}"));
        }
    }
}

impl ResponseCache {
    /// Bytes that an entry takes beside its tensors, roughly.
    const OVERHEAD: u64 = 256;

    /// An empty cache for so many bytes of tensors and names.
    pub(crate) fn new(budget: u64, cpu: CpuPool) -> Self {
        Self {
            budget,
            cpu,
            kept: Mutex::new(Kept {
                answers: LruCache::unbounded(),
                bytes: 0,
            }),
        }
    }

    /// The key of a request, made off the caller's thread where that takes long.
    ///
    /// # Errors
    /// As [`CpuPool::run`].
    pub(crate) async fn key(
        &self,
        generation: Generation,
        request: &InferRequest,
        lease: &Lease,
    ) -> Result<Key, ServiceError> {
        let bytes: usize = request.inputs.iter().map(|input| input.value.raw().len()).sum();
        if bytes <= LARGE {
            return Ok(Key::new(generation, request));
        }
        let request = request.clone();
        self.cpu
            .run(lease, bytes as u64, move || Ok(Key::new(generation, &request)))
            .await
    }

    /// Keeps an answer as [`ResponseCache::put`] does, off the caller's thread where that takes long. If there is no time for
    /// that, it is not kept.
    pub(crate) async fn keep(self: &Arc<Self>, key: Key, outputs: &[InferOutput], lease: &Lease) {
        let bytes: usize = outputs.iter().map(|output| output.value.raw().len()).sum();
        if bytes <= LARGE {
            return self.put(key, outputs);
        }
        let (cache, outputs) = (self.clone(), outputs.to_vec());
        let keeping = move || {
            cache.put(key, &outputs);
            Ok(())
        };
        // The request is answered all the same.
        let _ = self.cpu.run(lease, bytes as u64, keeping).await;
    }

    /// The answer to a request that came before, if it is kept.
    pub(crate) fn get(&self, key: &Key) -> Option<Vec<InferOutput>> {
        self.lock().answers.get(key).map(|answer| answer.outputs.clone())
    }

    /// Keeps an answer, if it is not too large. It is copied: a model's outputs may be a small part of a large batch
    /// whose memory would be kept with them.
    pub(crate) fn put(&self, key: Key, outputs: &[InferOutput]) {
        let sizes = outputs
            .iter()
            .map(|output| (output.value.raw().len() + output.name.len()) as u64);
        let bytes = sizes.sum::<u64>() + Self::OVERHEAD;
        // One answer that takes most of the budget would put all others out.
        if bytes > self.budget / 4 {
            return;
        }
        let Ok(outputs) = outputs.iter().map(copy).collect() else {
            return;
        };
        let mut kept = self.lock();
        if let Some(old) = kept.answers.put(key, Answer { outputs, bytes }) {
            kept.bytes -= old.bytes;
        }
        kept.bytes += bytes;
        while kept.bytes > self.budget {
            let Some((_, oldest)) = kept.answers.pop_lru() else {
                break;
            };
            kept.bytes -= oldest.bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn copy(output: &InferOutput) -> Result<InferOutput, ServiceError> {
    let value = &output.value;
    let raw = Bytes::copy_from_slice(value.raw());
    let mut copy = output.clone();
    copy.value = TensorValue::from_raw(value.datatype(), value.shape().clone(), raw)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use oip_types::{ModelRef, Parameters};
    use tensor_core::{Shape, Tensor};

    use super::*;

    fn vector(values: &[f32]) -> Tensor {
        Tensor::from_vec(Shape::vector(values.len() as u64), values.to_vec()).unwrap()
    }

    fn request() -> InferRequest {
        InferRequest::new(ModelRef::new("m", None).unwrap())
            .with_input("a", vector(&[1.0]))
            .with_input("b", vector(&[2.0, 3.0]))
    }

    #[test]
    fn keys_tell_apart_what_matters_and_nothing_else() {
        let key = Key::new(Generation(1), &request());
        let mut same = request();
        same.id = Some("other".into());
        same.inputs.reverse();
        same.parameters.insert("timeout".into(), ParameterValue::Int64(5));
        assert_eq!(Key::new(Generation(1), &same), key);

        let mut parameter = request();
        parameter
            .parameters
            .insert("temperature".into(), ParameterValue::Double(0.5));
        let swapped = InferRequest::new(ModelRef::new("m", None).unwrap())
            .with_input("a", vector(&[1.0, 2.0]))
            .with_input("b", vector(&[3.0]));
        let reshaped = InferRequest::new(ModelRef::new("m", None).unwrap())
            .with_input("a", vector(&[1.0]))
            .with_input(
                "b",
                vector(&[2.0, 3.0]).reshape(Shape::new(&[1, 2]).unwrap()).unwrap(),
            );
        let others = [
            Key::new(Generation(2), &request()),
            Key::new(Generation(1), &parameter),
            Key::new(Generation(1), &swapped),
            Key::new(Generation(1), &reshaped),
            Key::new(Generation(1), &request().with_output("y")),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(*other, key);
            assert!(!others[..index].contains(other));
        }
    }

    /// A list must not be mistaken for a part of the one before it.
    #[test]
    fn keys_tell_lists_apart() {
        let value = ParameterValue::String("x".into());
        let mut one = request().with_output("y");
        one.outputs[0].parameters = Parameters::from([("output".to_owned(), value.clone())]);
        let two = request().with_output("y").with_output(format!("{value:?}"));
        assert_ne!(Key::new(Generation(1), &one), Key::new(Generation(1), &two));
    }

    #[test]
    fn the_oldest_answers_go_when_the_budget_is_used_up() {
        let key = |number| Key::new(Generation(number), &request());
        let answer = |number: u64| vec![InferOutput::new("y", vector(&[number as f32; 256]))];
        let cache = ResponseCache::new(8 * (1024 + 1 + ResponseCache::OVERHEAD), CpuPool::default());
        (0..8).for_each(|number| cache.put(key(number), &answer(number)));
        assert_eq!(cache.get(&key(0)), Some(answer(0)));
        cache.put(key(8), &answer(8));
        let kept: Vec<u64> = (0..9)
            .filter(|number| cache.get(&key(*number)).is_some())
            .collect();
        assert_eq!(kept, [0, 2, 3, 4, 5, 6, 7, 8]);
        // The same answer again takes no more room; one that is too large is not kept.
        (0..20).for_each(|_| cache.put(key(8), &answer(8)));
        assert!(cache.get(&key(2)).is_some());
        cache.put(key(9), &[InferOutput::new("y", vector(&[0.0; 1000]))]);
        assert_eq!(cache.get(&key(9)), None);
    }

    #[test]
    fn answers_do_not_keep_the_batch_that_they_came_in() {
        let batch = vector(&[7.0; 1000]);
        let outputs = [InferOutput::new("y", batch.rows(3..4).unwrap())];
        let cache = ResponseCache::new(1 << 20, CpuPool::default());
        cache.put(Key::new(Generation(0), &request()), &outputs);
        let kept = cache.get(&Key::new(Generation(0), &request())).unwrap();
        assert_eq!(kept, outputs);
        assert_ne!(kept[0].value.raw().as_ptr(), outputs[0].value.raw().as_ptr());
    }

    /// Large inputs are hashed, and large outputs copied, by the pool.
    #[test]
    fn large_tensors_leave_the_callers_thread() {
        let cache = Arc::new(ResponseCache::new(64 << 20, CpuPool::new(1)));
        let lease = Lease::unlimited();
        let small = request();
        let large =
            InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("a", vector(&vec![1.0; 100_000]));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        for (request, is_quick) in [(&small, true), (&large, false)] {
            let generation = Generation(1);
            let polled = std::pin::pin!(cache.key(generation, request, &lease)).poll(&mut cx);
            assert_eq!(polled.is_ready(), is_quick);
            let key = futures_executor::block_on(cache.key(generation, request, &lease)).unwrap();
            assert_eq!(key, Key::new(generation, request));
            let outputs = [InferOutput::new("y", request.inputs[0].value.clone())];
            futures_executor::block_on(cache.keep(key, &outputs, &lease));
            assert_eq!(cache.get(&key).unwrap(), outputs);
        }
    }
}
