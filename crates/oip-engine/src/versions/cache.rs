//! Caches responses, and coalesces identical requests that run at the same time.

use std::collections::HashMap;

use bytes::Bytes;
use futures_channel::oneshot;
use lru::LruCache;
use oip_types::{InferOutput, InferRequest, ParameterValue, ServiceError, TensorValue};
use parking_lot::{Mutex, MutexGuard};

use crate::generation::Generation;

/// Request parameters that do not affect responses.
const NOT_CONTENT: [&str; 2] = ["priority", "timeout"];

/// The cached responses of all models that enable caching. All responses share one memory budget. The least
/// recently used responses are evicted first.
pub(crate) struct ResponseCache {
    budget: u64,
    kept: Mutex<CacheState>,
}

/// Result of a lookup.
pub(crate) enum Lookup<'c> {
    Response(Vec<InferOutput>),
    /// An identical request is running. The receiver gets its response; if the request fails, the channel
    /// closes.
    InWork(oneshot::Receiver<Vec<InferOutput>>),
    /// Neither a response nor a running identical request was found. From now on, identical requests wait for
    /// this one.
    Nothing(Leader<'c>),
}

/// A request that identical requests wait for. If the leader is dropped without a response, each waiting
/// request runs itself.
pub(crate) struct Leader<'c> {
    cache: &'c ResponseCache,
    key: Key,
}

struct CacheState {
    answers: LruCache<Key, CachedResponse>,
    bytes: u64,
    /// Requests that wait for an identical one.
    waiting: HashMap<Key, Vec<oneshot::Sender<Vec<InferOutput>>>>,
}

struct CachedResponse {
    outputs: Vec<InferOutput>,
    bytes: u64,
}

/// A collision-resistant digest of a request, so that no client can plant a response to another client's
/// request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// Computes the key of a request. Lists are prefixed with their length, so that encodings are injective.
    pub(crate) fn new(generation: Generation, request: &InferRequest) -> Self {
        let mut hasher = Hasher(blake3::Hasher::new());
        hasher.number(generation.number());
        let content = |(name, _): &(&String, &ParameterValue)| !NOT_CONTENT.contains(&name.as_str());
        hasher.parameters(request.parameters.iter().filter(content));
        // Sorted by name, since the order of inputs does not matter.
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

/// Hashes length-prefixed fields, so that different lists of fields give different digests.
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
    /// Approximate size of an entry in addition to its tensors.
    const OVERHEAD: u64 = 256;

    /// Creates an empty cache of `budget` bytes.
    pub(crate) fn new(budget: u64) -> Self {
        Self {
            budget,
            kept: Mutex::new(CacheState {
                answers: LruCache::unbounded(),
                bytes: 0,
                waiting: HashMap::new(),
            }),
        }
    }

    /// Looks up a response, or a running identical request.
    pub(crate) fn find(&self, key: Key) -> Lookup<'_> {
        let mut kept = self.lock();
        if let Some(answer) = kept.answers.get(&key) {
            return Lookup::Response(answer.outputs.clone());
        }
        if let Some(waiting) = kept.waiting.get_mut(&key) {
            // Removes requests whose clients disconnected. There may be thousands of waiting requests, so
            // this happens only when their number is a power of two.
            if waiting.len().is_power_of_two() {
                waiting.retain(|other| !other.is_canceled());
            }
            let (sender, receiver) = oneshot::channel();
            waiting.push(sender);
            return Lookup::InWork(receiver);
        }
        kept.waiting.insert(key, Vec::new());
        Lookup::Nothing(Leader { cache: self, key })
    }

    #[cfg(test)]
    fn get(&self, key: &Key) -> Option<Vec<InferOutput>> {
        self.lock().answers.get(key).map(|answer| answer.outputs.clone())
    }

    /// Stores a copy of a response, unless the response is too large. Outputs are copied since they may be
    /// slices that would keep a large batch alive.
    fn put(&self, key: Key, outputs: &[InferOutput]) {
        let sizes = outputs
            .iter()
            .map(|output| (output.value.raw().len() + output.name.len()) as u64);
        let bytes = sizes.sum::<u64>() + Self::OVERHEAD;
        // A response that takes much of the budget would evict too many others.
        if bytes > self.budget / 4 {
            return;
        }
        let Ok(outputs) = outputs.iter().map(copy).collect() else {
            return;
        };
        // Evicted responses are freed after the lock is released; there may be thousands.
        let mut leaving = Vec::new();
        let mut kept = self.lock();
        if let Some(old) = kept.answers.put(key, CachedResponse { outputs, bytes }) {
            kept.bytes -= old.bytes;
            leaving.push(old);
        }
        kept.bytes += bytes;
        while kept.bytes > self.budget {
            let Some((_, oldest)) = kept.answers.pop_lru() else {
                break;
            };
            kept.bytes -= oldest.bytes;
            leaving.push(oldest);
        }
        drop(kept);
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.kept.lock()
    }
}

impl Leader<'_> {
    /// Stores the response, and sends it to the waiting requests.
    pub(crate) fn finish(self, outputs: &[InferOutput]) {
        self.cache.put(self.key, outputs);
        let waiting = self.leave();
        // From now on another request may become the leader.
        std::mem::forget(self);
        for waiting in waiting {
            // The client of the waiting request may have disconnected.
            let _ = waiting.send(outputs.to_vec());
        }
    }

    fn leave(&self) -> Vec<oneshot::Sender<Vec<InferOutput>>> {
        self.cache.lock().waiting.remove(&self.key).unwrap_or_default()
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        // Dropping the senders wakes the waiting requests. The lock is not held here.
        drop(self.leave());
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
        let key = Key::new(Generation::of(1), &request());
        let mut same = request();
        same.id = Some("other".into());
        same.inputs.reverse();
        same.parameters.insert("timeout".into(), ParameterValue::Int64(5));
        assert_eq!(Key::new(Generation::of(1), &same), key);

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
            Key::new(Generation::of(2), &request()),
            Key::new(Generation::of(1), &parameter),
            Key::new(Generation::of(1), &swapped),
            Key::new(Generation::of(1), &reshaped),
            Key::new(Generation::of(1), &request().with_output("y")),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(*other, key);
            assert!(!others[..index].contains(other));
        }
    }

    /// Keys differ if the same fields are divided differently into lists.
    #[test]
    fn keys_tell_lists_apart() {
        let value = ParameterValue::String("x".into());
        let mut one = request().with_output("y");
        one.outputs[0].parameters = Parameters::from([("output".to_owned(), value.clone())]);
        let two = request().with_output("y").with_output(format!("{value:?}"));
        assert_ne!(
            Key::new(Generation::of(1), &one),
            Key::new(Generation::of(1), &two)
        );
    }

    #[test]
    fn the_oldest_answers_go_when_the_budget_is_used_up() {
        let key = |number| Key::new(Generation::of(number), &request());
        let answer = |number: u64| vec![InferOutput::new("y", vector(&[number as f32; 256]))];
        let cache = ResponseCache::new(8 * (1024 + 1 + ResponseCache::OVERHEAD));
        (0..8).for_each(|number| cache.put(key(number), &answer(number)));
        assert_eq!(cache.get(&key(0)), Some(answer(0)));
        cache.put(key(8), &answer(8));
        let kept: Vec<u64> = (0..9)
            .filter(|number| cache.get(&key(*number)).is_some())
            .collect();
        assert_eq!(kept, [0, 2, 3, 4, 5, 6, 7, 8]);
        // Replacing a response takes no additional memory. A response that is too large is not stored.
        (0..20).for_each(|_| cache.put(key(8), &answer(8)));
        assert!(cache.get(&key(2)).is_some());
        cache.put(key(9), &[InferOutput::new("y", vector(&[0.0; 1000]))]);
        assert_eq!(cache.get(&key(9)), None);
    }

    #[test]
    fn equal_requests_wait_for_the_first_one_and_hear_of_its_end() {
        let (cache, key) = (ResponseCache::new(1 << 20), |number| {
            Key::new(Generation::of(number), &request())
        });
        let answer = vec![InferOutput::new("y", vector(&[1.0]))];
        for is_kept in [true, false] {
            let number = u64::from(is_kept);
            let Lookup::Nothing(leader) = cache.find(key(number)) else {
                panic!("nobody has asked for it");
            };
            let follow = || match cache.find(key(number)) {
                Lookup::InWork(receiver) => receiver,
                _ => panic!("it is in work"),
            };
            let mut followers = [follow(), follow()];
            drop(follow());
            assert!(
                matches!(cache.find(key(7)), Lookup::Nothing(_)),
                "others do not wait"
            );
            match is_kept {
                true => leader.finish(&answer),
                false => drop(leader),
            }
            for follower in &mut followers {
                let expected = if is_kept {
                    Ok(Some(answer.clone()))
                } else {
                    Err(oneshot::Canceled)
                };
                assert_eq!(follower.try_recv(), expected);
            }
            let is_found = matches!(cache.find(key(number)), Lookup::Response(found) if found == answer);
            assert_eq!(is_found, is_kept);
        }
        assert!(cache.lock().waiting.is_empty());
    }

    /// Dropping the guard of a finished leader must not remove the next leader's key.
    #[test]
    fn a_leader_that_is_done_does_not_end_the_next_one() {
        let (cache, key) = (ResponseCache::new(0), Key::new(Generation::of(0), &request()));
        let Lookup::Nothing(leader) = cache.find(key) else {
            panic!("nobody has asked for it");
        };
        leader.finish(&[]);
        let Lookup::Nothing(_next) = cache.find(key) else {
            panic!("nothing is kept");
        };
        assert!(matches!(cache.find(key), Lookup::InWork(_)));
    }

    #[test]
    fn answers_do_not_keep_the_batch_that_they_came_in() {
        let batch = vector(&[7.0; 1000]);
        let outputs = [InferOutput::new("y", batch.rows(3..4).unwrap())];
        let cache = ResponseCache::new(1 << 20);
        cache.put(Key::new(Generation::of(0), &request()), &outputs);
        let kept = cache.get(&Key::new(Generation::of(0), &request())).unwrap();
        assert_eq!(kept, outputs);
        assert_ne!(kept[0].value.raw().as_ptr(), outputs[0].value.raw().as_ptr());
    }
}
