//! Tests models that call other models.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures_executor::block_on;
use oip_engine::Engine;
use oip_model::{Call, Model, ModelCall, Outcome, Responses};
use oip_resources::{ByteBudget, Lease, TimeLimits};
use oip_service::{InferenceService, RequestContext, Statistics};
use oip_types::{
    DataType, ErrorCode, InferRequest, InferResponse, ModelMetadata, ModelRef, ServiceError, TensorMetadata,
};
use tensor_core::{Shape, Tensor};

/// A model that calls another model. If there is no model to call, the model's own name selects its
/// behaviour.
struct Asker {
    metadata: ModelMetadata,
    /// The model that this model calls.
    asks: Option<&'static str>,
    /// The timeout of the call in milliseconds.
    timeout: Option<u64>,
    running: Arc<AtomicUsize>,
}

fn asker(name: &str, asks: Option<&'static str>, running: &Arc<AtomicUsize>) -> Asker {
    let tensor = |name: &str| vec![TensorMetadata::new(name, DataType::UINT8, &[-1])];
    Asker {
        metadata: ModelMetadata::new(name, "test_asker", tensor("x"), tensor("y")),
        asks,
        timeout: None,
        running: running.clone(),
    }
}

impl Model for Asker {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn run(&self, call: Call<'_>) -> Result<Outcome, ServiceError> {
        let (mut request, cancel, others) = (call.request, call.cancel, call.others);
        let x = request.take_input("x")?;
        let y = match (self.asks, self.metadata.name.as_str()) {
            (Some(asked), _) => {
                let request = InferRequest::new(ModelRef::new(asked, None)?).with_input("x", x);
                let call = ModelCall::new(request).with_timeout(self.timeout.map(Duration::from_millis));
                let Responses::One(response) = block_on(others.ask(call))? else {
                    return Err(ServiceError::internal("several responses"));
                };
                response.outputs[0].value.clone()
            }
            (None, "hangs") => {
                self.running.fetch_add(1, Ordering::SeqCst);
                while !cancel.is_cancelled() {
                    thread::sleep(Duration::from_millis(1));
                }
                self.running.fetch_sub(1, Ordering::SeqCst);
                let late = cancel.is_expired();
                let code = if late {
                    ErrorCode::DeadlineExceeded
                } else {
                    ErrorCode::Cancelled
                };
                return Err(ServiceError::new(code, "it was told"));
            }
            (None, "large") => vector(1000).into(),
            (None, _) => x,
        };
        Ok(Outcome::output("y", y))
    }
}

fn vector(len: usize) -> Tensor {
    Tensor::from_vec(Shape::vector(len as u64), vec![7u8; len]).unwrap()
}

/// Creates an engine with `models`, pairs of a model's name and the name of the model that it calls.
fn engine(models: &[(&str, Option<&'static str>)]) -> (Engine, Arc<AtomicUsize>) {
    let running = Arc::default();
    let builder = models.iter().fold(Engine::builder(), |builder, (name, asks)| {
        builder.model(asker(name, *asks, &running))
    });
    (builder.build().unwrap(), running)
}

fn ask(engine: &Engine, model: &str, cx: RequestContext) -> Result<InferResponse, ServiceError> {
    let request = InferRequest::new(ModelRef::new(model, None).unwrap()).with_input("x", vector(3));
    block_on(engine.infer(request, cx))
}

fn soon() -> RequestContext {
    RequestContext::new(Some(Instant::now() + Duration::from_secs(60)))
}

#[test]
fn a_request_goes_the_way_of_a_clients() {
    let (engine, _) = engine(&[("a", Some("b")), ("b", Some("c")), ("c", None)]);
    for _ in 0..3 {
        let response = ask(&engine, "a", soon()).unwrap();
        assert_eq!((response.model_name.as_str(), response.outputs.len()), ("a", 1));
    }
    for model in ["a", "b", "c"] {
        let statistics = engine
            .model_statistics(Some(ModelRef::new(model, None).unwrap()))
            .unwrap();
        assert_eq!(statistics[0].inference_stats.success.count, 3, "{model}");
    }
}

#[test]
fn models_that_would_wait_for_each_other_are_refused() {
    let (engine, _) = engine(&[
        ("itself", Some("itself")),
        ("a", Some("b")),
        ("b", Some("c")),
        ("c", Some("a")),
        ("nobody", Some("missing")),
    ]);
    let start = Instant::now();
    let refused = |model| ask(&engine, model, soon()).unwrap_err().message().to_owned();
    assert_eq!(
        refused("itself"),
        "model 'itself': model 'itself' cannot call itself: it would wait for itself"
    );
    let circle = "model 'c' cannot call 'a', which calls 'c' in turn (a -> b -> c): requests would wait for each other";
    assert_eq!(refused("a"), format!("model 'a': model 'b': model 'c': {circle}"));
    assert_eq!(refused("c"), format!("model 'c': {circle}"));
    assert_eq!(
        refused("nobody"),
        "model 'nobody': model 'missing' does not exist"
    );
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "nothing was waited for"
    );
}

#[test]
fn one_instance_each_serves_many_at_once() {
    let (engine, _) = engine(&[("a", Some("c")), ("b", Some("c")), ("c", None)]);
    thread::scope(|scope| {
        for caller in 0..8 {
            let engine = &engine;
            scope.spawn(move || {
                let model = if caller % 2 == 0 { "a" } else { "b" };
                (0..50).for_each(|_| drop(ask(engine, model, soon()).unwrap()));
            });
        }
    });
}

#[test]
fn the_deadline_of_the_outer_request_holds() {
    let (engine, running) = engine(&[("a", Some("b")), ("b", Some("hangs")), ("hangs", None)]);
    let cx = RequestContext::new(Some(Instant::now() + Duration::from_millis(200)));
    assert_eq!(
        ask(&engine, "a", cx).unwrap_err().code(),
        ErrorCode::DeadlineExceeded
    );
    assert_eq!(running.load(Ordering::SeqCst), 0);
}

#[test]
fn a_call_may_have_a_shorter_time() {
    let running = Arc::default();
    let hurried = Asker {
        timeout: Some(100),
        ..asker("hurried", Some("hangs"), &running)
    };
    let builder = Engine::builder().model(hurried);
    let engine = builder.model(asker("hangs", None, &running)).build().unwrap();
    let cx = soon();
    let cancel = cx.cancel().clone();
    assert_eq!(
        ask(&engine, "hurried", cx).unwrap_err().code(),
        ErrorCode::DeadlineExceeded
    );
    assert!(!cancel.is_cancelled(), "the call's end is not the request's");
}

#[test]
fn a_client_that_leaves_ends_what_is_asked_for_it() {
    let (engine, running) = engine(&[("a", Some("hangs")), ("hangs", None)]);
    let cx = soon();
    let cancel = cx.cancel().clone();
    thread::scope(|scope| {
        scope.spawn(|| {
            while running.load(Ordering::SeqCst) == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            cancel.cancel();
        });
        assert_eq!(ask(&engine, "a", cx).unwrap_err().code(), ErrorCode::Cancelled);
    });
    assert_eq!(running.load(Ordering::SeqCst), 0);
}

#[test]
fn what_others_make_is_charged_to_the_same_budget() {
    let (engine, _) = engine(&[("a", Some("large")), ("large", None)]);
    let ask = |limit| {
        let budget = ByteBudget::new(limit);
        let lease = Lease::new(&budget, &TimeLimits::default());
        let request = InferRequest::new(ModelRef::new("a", None).unwrap()).with_input("x", vector(3));
        let cx = RequestContext::for_request(&request, &lease, None, &TimeLimits::default()).unwrap();
        (block_on(engine.infer(request, cx)), budget)
    };
    let (refused, budget) = ask(500);
    assert_eq!(refused.unwrap_err().code(), ErrorCode::TooLarge);
    assert_eq!(budget.used(), 0);
    let (response, budget) = ask(5000);
    assert!(budget.used() >= 1000);
    drop(response);
    assert_eq!(budget.used(), 0);
}
