//! The steps before and after a service runs a request: checking the request, and delivering the outputs
//! unchanged, as classes, or in shared memory.

use std::{fmt, pin::pin, sync::Arc};

use oip_model::{ResponseStream, Responses};
use oip_resources::{CpuPool, Lease};
use oip_types::{
    BytesTensor, CONNECTION_REGION, ErrorCode, InferOutput, InferRequest, InferResponse, ModelMetadata,
    ModelRef, Parameters, RequestedOutput, ServiceError, SharedMemorySlice, classify, take_class_count,
};
use tensor_core::QuotedName;

use crate::{Classes, InferenceService, RequestContext, panics::catch_panic};

/// Outputs larger than this, in bytes, are delivered by a thread of the pool.
const LARGE: usize = 64 << 10;

/// Outputs larger than this, in bytes, are delivered by a thread of the pool even if they are only copied
/// into mapped memory.
const QUICK: usize = 256 << 10;

/// The memory in bytes that classification needs per element: its index, its string and its part of the
/// response.
const BYTES_PER_CLASS: u64 = 80;

/// Checks a request, runs it, and delivers the outputs as requested. Every transport calls this function
/// between reading the request and writing the response.
///
/// If the service does not [check requests](InferenceService::checks_requests) itself, this function checks
/// the request, checks and selects the outputs, and sets the response's id.
///
/// The delivery parameters of requested outputs are removed before the service sees the request. Large
/// outputs are classified and written into shared memory by a thread of `cpu`.
///
/// # Errors
/// The errors of the service, of [`ModelMetadata::check_request`] and of [`ModelMetadata::pick_outputs`];
/// [`InvalidArgument`](ErrorCode::InvalidArgument) when an output cannot be delivered as requested; the
/// errors of [`Lease::charge`] and [`CpuPool::run`]; [`Internal`](ErrorCode::Internal) when the service
/// panics.
pub async fn respond(
    service: &Arc<dyn InferenceService>,
    cpu: &CpuPool,
    request: InferRequest,
    cx: RequestContext,
) -> Result<InferResponse, ServiceError> {
    let model = NamedModel::of(&request);
    // Pinning the inner future keeps this future from containing it twice.
    let answered = pin!(run_and_deliver(service, cpu, &model, request, cx));
    catch_panic(answered)
        .await
        .map_err(|panic| panic.within(&model))?
}

/// Like [`respond`], for models that may send any number of responses. If a model sends several responses,
/// their outputs are delivered unchanged.
///
/// # Errors
/// The errors of [`respond`]; [`InvalidArgument`](ErrorCode::InvalidArgument) when classification or shared
/// memory is requested from a model that sends several responses.
pub async fn respond_stream(
    service: &Arc<dyn InferenceService>,
    cpu: &CpuPool,
    mut request: InferRequest,
    cx: RequestContext,
) -> Result<Responses, ServiceError> {
    let model = NamedModel::of(&request);
    let answered = async {
        let plans = plan(&**service, &mut request, cx.lease())?;
        let lease = (!plans.is_empty()).then(|| cx.lease().clone());
        let checked = CheckedRequest::of(&**service, &request)?;
        let responses = service.infer_stream(request, cx).await?;
        let responses = match checked {
            Some(checked) => checked.finish_any(responses)?,
            None => responses,
        };
        match (responses, lease) {
            (answers, None) => Ok(answers),
            (Responses::One(response), Some(lease)) => {
                let delivered = deliver_planned(service, cpu, &model, &lease, plans, response);
                delivered.await.map(Responses::One)
            }
            (Responses::Several(_), Some(_)) => Err(ServiceError::invalid(
                "classification and shared memory need a model with one response per request",
            )
            .within(&model)),
        }
    };
    catch_panic(answered)
        .await
        .map_err(|panic| panic.within(&model))?
}

async fn run_and_deliver(
    service: &Arc<dyn InferenceService>,
    cpu: &CpuPool,
    model: &NamedModel,
    mut request: InferRequest,
    cx: RequestContext,
) -> Result<InferResponse, ServiceError> {
    let plans = plan(&**service, &mut request, cx.lease())?;
    let checked = CheckedRequest::of(&**service, &request)?;
    let lease = (!plans.is_empty()).then(|| cx.lease().clone());
    let mut response = service.infer(request, cx).await?;
    if let Some(checked) = checked {
        checked.finish(&mut response)?;
    }
    let Some(lease) = lease else {
        return Ok(response);
    };
    Box::pin(deliver_planned(service, cpu, model, &lease, plans, response)).await
}

/// The parts of a request that are needed to check its response, for services that do not check requests
/// themselves.
struct CheckedRequest {
    metadata: Arc<ModelMetadata>,
    id: Option<String>,
    wanted: Vec<RequestedOutput>,
}

impl CheckedRequest {
    /// Checks a request; returns `None` if the service checks it.
    fn of(service: &dyn InferenceService, request: &InferRequest) -> Result<Option<Self>, ServiceError> {
        if service.checks_requests() {
            return Ok(None);
        }
        let metadata = service.model_metadata(request.model())?;
        let checked = metadata.check_request(request);
        checked.map_err(|error| within(&metadata, error))?;
        Ok(Some(Self {
            metadata,
            id: request.id.clone(),
            wanted: request.outputs.clone(),
        }))
    }

    fn finish(&self, response: &mut InferResponse) -> Result<(), ServiceError> {
        let outputs = std::mem::take(&mut response.outputs);
        let picked = self.metadata.pick_outputs(&self.wanted, outputs);
        response.outputs = picked.map_err(|error| within(&self.metadata, error))?;
        response.id.clone_from(&self.id);
        Ok(())
    }

    fn finish_any(self, responses: Responses) -> Result<Responses, ServiceError> {
        Ok(match responses {
            Responses::One(mut response) => {
                self.finish(&mut response)?;
                Responses::One(response)
            }
            Responses::Several(mut responses) => Responses::Several(ResponseStream::new(move |cx| {
                responses.poll_next(cx).map(|next| {
                    next.map(|next| {
                        let mut next = next?;
                        self.finish(&mut next.response)?;
                        Ok(next)
                    })
                })
            })),
        })
    }
}

fn within(metadata: &ModelMetadata, error: ServiceError) -> ServiceError {
    error.within(format_args!("model {}", QuotedName(&metadata.name)))
}

async fn deliver_planned(
    service: &Arc<dyn InferenceService>,
    cpu: &CpuPool,
    model: &NamedModel,
    lease: &Lease,
    plans: Plans,
    mut response: InferResponse,
) -> Result<InferResponse, ServiceError> {
    let outputs = response.outputs.iter();
    let bytes = outputs.map(|output| output.value.raw().len()).sum::<usize>();
    let is_quick = plans.are_copies();
    let deliver = {
        let (service, lease, model) = (service.clone(), lease.clone(), model.clone());
        move || {
            let version = response.model_version.clone().or(model.version);
            let model = ModelRef::new(&model.name, version.as_deref())?;
            deliver(&*service, model, &lease, &plans, &mut response).map_err(|error| error.within(model))?;
            Ok(response)
        }
    };
    if bytes <= LARGE || is_quick && bytes <= QUICK {
        deliver()
    } else {
        cpu.run(lease, bytes as u64, deliver).await
    }
}

/// The model name and version of a request, kept for error messages after the request is consumed. The value
/// displays like a [`ModelRef`], and is formatted only when needed.
///
/// ```
/// use oip_service::NamedModel;
/// use oip_types::{InferRequest, ModelRef};
///
/// # fn main() -> Result<(), oip_types::ServiceError> {
/// let model = ModelRef::new("digits", Some("2"))?;
/// let named = NamedModel::of(&InferRequest::new(model));
/// assert_eq!(named.to_string(), model.to_string());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct NamedModel {
    name: String,
    version: Option<String>,
}

impl NamedModel {
    /// Returns the model that a request names.
    #[must_use]
    pub fn of(request: &InferRequest) -> Self {
        let model = request.model();
        Self {
            name: model.name().to_owned(),
            version: model.version().map(str::to_owned),
        }
    }
}

impl fmt::Display for NamedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ModelRef::new(&self.name, self.version.as_deref()) {
            Ok(model) => model.fmt(f),
            // Requested names were already checked.
            Err(_) => f.write_str(&self.name),
        }
    }
}

/// How to deliver the outputs of a request.
#[derive(Default)]
struct Plans {
    each: Vec<Plan>,
    /// The part of the connection's own region that receives large outputs without a plan in `each`.
    area: Option<SharedMemorySlice>,
}

impl Plans {
    /// Returns whether all outputs are only copied into the connection's own region.
    fn are_copies(&self) -> bool {
        self.each.iter().all(|plan| match &plan.delivery {
            Delivery::Classes(_) => false,
            Delivery::SharedMemory(slice) => slice.region == CONNECTION_REGION,
        })
    }

    fn is_empty(&self) -> bool {
        self.each.is_empty() && self.area.is_none()
    }
}

/// How to deliver one output.
struct Plan {
    output: String,
    delivery: Delivery,
}

enum Delivery {
    Classes(u64),
    SharedMemory(SharedMemorySlice),
}

/// Removes the delivery parameters from the requested outputs and returns the plans.
fn plan(
    service: &dyn InferenceService,
    request: &mut InferRequest,
    lease: &Lease,
) -> Result<Plans, ServiceError> {
    let area = match lease.has_connection_memory() && SharedMemorySlice::is_of_connection(&request.parameters)
    {
        true => SharedMemorySlice::take(&mut request.parameters)
            .and_then(|area| area.map(|area| in_connection(lease, area)).transpose())
            .map_err(|error| error.within(request.model()))?,
        false => None,
    };
    // Nearly every request takes this shortcut.
    if request.outputs.iter().all(|output| output.parameters.is_empty()) {
        return Ok(Plans {
            area,
            ..Plans::default()
        });
    }
    let mut plans = Vec::new();
    let mut outputs = std::mem::take(&mut request.outputs);
    let planned = outputs.iter_mut().try_for_each(|output| {
        let delivery = read_delivery(service, lease, &mut output.parameters)
            .map_err(|error| error.within(format_args!("output {}", QuotedName(&output.name))))?;
        plans.extend(delivery.map(|delivery| Plan {
            output: output.name.clone(),
            delivery,
        }));
        Ok(())
    });
    request.outputs = outputs;
    planned.map_err(|error: ServiceError| error.within(request.model()))?;
    Ok(Plans { each: plans, area })
}

fn read_delivery(
    service: &dyn InferenceService,
    lease: &Lease,
    parameters: &mut Parameters,
) -> Result<Option<Delivery>, ServiceError> {
    let classes = take_class_count(parameters)?;
    let slice = SharedMemorySlice::take(parameters)?;
    let not_offered = |what: &str| {
        Err(ServiceError::invalid(format!(
            "{what} is not offered by this server"
        )))
    };
    match (classes, slice) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(ServiceError::invalid(
            "classification and shared memory cannot be requested together",
        )),
        (Some(_), None) if service.classification().is_none() => not_offered("classification"),
        (Some(count), None) => Ok(Some(Delivery::Classes(count))),
        (None, Some(slice)) if slice.region == CONNECTION_REGION => {
            in_connection(lease, slice).map(|slice| Some(Delivery::SharedMemory(slice)))
        }
        (None, Some(_)) if service.shared_memory().is_none() => not_offered("shared memory"),
        (None, Some(slice)) => Ok(Some(Delivery::SharedMemory(slice))),
    }
}

fn deliver(
    service: &dyn InferenceService,
    model: ModelRef<'_>,
    lease: &Lease,
    plans: &Plans,
    response: &mut InferResponse,
) -> Result<(), ServiceError> {
    let mut area = plans.area.clone();
    for output in &mut response.outputs {
        let Some(plan) = plans.each.iter().find(|plan| plan.output == output.name) else {
            if let Some(area) = &mut area {
                write_into_area(lease, area, output)?;
            }
            continue;
        };
        let delivered = match &plan.delivery {
            Delivery::Classes(count) => {
                let classes = service
                    .classification()
                    .map(|offer| offer.classes(model, &output.name));
                classify_output(output, *count, &classes.unwrap_or_default(), lease)
            }
            Delivery::SharedMemory(slice) => write(service, lease, slice, output.value.raw()).map(|()| {
                let byte_size = output.value.raw().len() as u64;
                output.shared_memory = Some(SharedMemorySlice {
                    byte_size,
                    ..slice.clone()
                });
            }),
        };
        delivered.map_err(|error| error.within(format_args!("output {}", QuotedName(&output.name))))?;
    }
    Ok(())
}

/// Replaces an output with its classes, whose memory is charged to the request.
fn classify_output(
    output: &mut InferOutput,
    count: u64,
    classes: &Classes,
    lease: &Lease,
) -> Result<(), ServiceError> {
    let labels = classes.labels.iter().map(String::len).max().unwrap_or(0) as u64;
    // `classify` refuses outputs with more elements.
    let elements = output.value.shape().element_count().min(1 << 20);
    let mut charge = lease.charge(elements.saturating_mul(BYTES_PER_CLASS + 2 * labels))?;
    let classified = classify(&output.value, count, classes.is_batched, &classes.labels)?;
    let shape = classified.shape().clone();
    let raw = classified.into_raw();
    charge.shrink_to(raw.len() as u64);
    output.value = BytesTensor::new(shape, charge.own(raw))?.into();
    Ok(())
}

/// Outputs of at least this size are written into the connection's own region if they fit.
const LEAST_IN_AREA: usize = 16 << 10;

/// Alignment of outputs in the connection's own region, as for tensors in memory.
const ALIGNMENT: u64 = 64;

/// Writes a large output to the start of `area`, if it fits, and removes the used part from `area`. An output
/// that does not fit is sent in the response.
fn write_into_area(
    lease: &Lease,
    area: &mut SharedMemorySlice,
    output: &mut InferOutput,
) -> Result<(), ServiceError> {
    let bytes = output.value.raw();
    let byte_size = bytes.len() as u64;
    if bytes.len() < LEAST_IN_AREA {
        return Ok(());
    }
    let start = area.offset.checked_next_multiple_of(ALIGNMENT);
    let end = area.offset.checked_add(area.byte_size);
    let (Some(offset), Some(end)) = (start, end) else {
        return Ok(());
    };
    let Some(rest) = end
        .checked_sub(offset)
        .and_then(|room| room.checked_sub(byte_size))
    else {
        return Ok(());
    };
    let slice = SharedMemorySlice {
        region: area.region.clone(),
        offset,
        byte_size,
    };
    write_into_connection(lease, &slice, bytes)
        .map_err(|error| error.within(format_args!("output {}", QuotedName(&output.name))))?;
    output.shared_memory = Some(slice);
    (area.offset, area.byte_size) = (offset + byte_size, rest);
    Ok(())
}

/// Returns the slice if it refers to the connection's own region and is within its bounds.
#[cfg(unix)]
fn in_connection(lease: &Lease, slice: SharedMemorySlice) -> Result<SharedMemorySlice, ServiceError> {
    use oip_resources::{connection_memory_name, no_connection_memory};

    let whole = lease
        .connection_memory()
        .ok_or_else(no_connection_memory)?
        .byte_size();
    let (offset, byte_size) = (slice.offset, slice.byte_size);
    match offset.checked_add(byte_size) {
        Some(end) if end <= whole => Ok(slice),
        _ => {
            let message = format!("{byte_size} bytes from byte {offset} are not within its {whole} bytes");
            Err(ServiceError::invalid(message).within(connection_memory_name()))
        }
    }
}

#[cfg(not(unix))]
fn in_connection(_: &Lease, _: SharedMemorySlice) -> Result<SharedMemorySlice, ServiceError> {
    let message = "connections have no shared memory of their own on this system";
    Err(ServiceError::invalid(message))
}

#[cfg(unix)]
fn write_into_connection(lease: &Lease, slice: &SharedMemorySlice, bytes: &[u8]) -> Result<(), ServiceError> {
    use oip_resources::{connection_memory_name, no_connection_memory};

    let memory = lease.connection_memory().ok_or_else(no_connection_memory)?;
    memory
        .write(slice.offset, bytes)
        .map_err(|error| error.within(connection_memory_name()))
}

#[cfg(not(unix))]
fn write_into_connection(_: &Lease, _: &SharedMemorySlice, _: &[u8]) -> Result<(), ServiceError> {
    Err(ServiceError::new(
        ErrorCode::Internal,
        "connections have no shared memory here",
    ))
}

fn write(
    service: &dyn InferenceService,
    lease: &Lease,
    slice: &SharedMemorySlice,
    bytes: &[u8],
) -> Result<(), ServiceError> {
    if bytes.len() as u64 > slice.byte_size {
        let (expected, found) = (bytes.len(), slice.byte_size);
        return Err(ServiceError::invalid(format!(
            "shared memory region {}: expected at least {expected} bytes, found {found}",
            QuotedName(&slice.region)
        )));
    }
    if slice.region == CONNECTION_REGION {
        return write_into_connection(lease, slice, bytes);
    }
    let Some(memory) = service.shared_memory() else {
        return Err(ServiceError::new(ErrorCode::Internal, "shared memory is gone"));
    };
    memory.write(slice, bytes)
}

#[cfg(feature = "testing")]
#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::Poll,
    };

    use futures_executor::block_on;
    use oip_types::{DataType, ParameterValue, ServerMetadata, TensorMetadata, class_count_parameter};
    use tensor_core::{Shape, Tensor};

    use super::*;
    use crate::testing::{TestService, identity};
    use oip_model::{BoxFuture, StreamedResponse};

    fn request(values: &[f32], parameters: Parameters) -> InferRequest {
        let value = Tensor::from_vec(Shape::vector(values.len() as u64), values.to_vec()).unwrap();
        let name = identity(DataType::FP32);
        let mut request = InferRequest::new(ModelRef::new(&name, None).unwrap()).with_input("x", value);
        request.outputs.push(oip_types::RequestedOutput {
            name: "y".to_owned(),
            parameters,
        });
        request
    }

    fn run(service: &Arc<TestService>, request: InferRequest) -> Result<InferResponse, ServiceError> {
        let service: Arc<dyn InferenceService> = service.clone();
        block_on(respond(
            &service,
            &CpuPool::new(1),
            request,
            RequestContext::new(None),
        ))
    }

    /// A service that checks nothing: it returns input `x` as output `y`, adds an output `z`, and counts its
    /// requests.
    struct Careless {
        metadata: Arc<ModelMetadata>,
        requests: AtomicUsize,
    }

    impl Careless {
        fn new() -> Arc<Self> {
            let tensor = |name| TensorMetadata::new(name, DataType::FP32, &[-1]);
            let outputs = vec![tensor("y"), tensor("z")];
            Arc::new(Self {
                metadata: Arc::new(ModelMetadata::new("m", "test", vec![tensor("x")], outputs)),
                requests: AtomicUsize::new(0),
            })
        }

        fn respond(&self, mut request: InferRequest) -> Result<InferResponse, ServiceError> {
            self.requests.fetch_add(1, Ordering::SeqCst);
            let x = request.take::<f32>("x")?;
            let z = Tensor::scalar(x[0] as i64);
            let z = if x[0] < 0.0 {
                z
            } else {
                Tensor::from_slice([1], &[x[0]])?
            };
            Ok(InferResponse::new(
                "m",
                vec![InferOutput::new("z", z), InferOutput::new("y", x)],
            ))
        }
    }

    impl InferenceService for Careless {
        fn server_metadata(&self) -> ServerMetadata {
            ServerMetadata::new("careless", "1")
        }

        fn model_metadata(&self, _: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
            Ok(self.metadata.clone())
        }

        fn infer(
            &self,
            request: InferRequest,
            _: RequestContext,
        ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
            Box::pin(async move { self.respond(request) })
        }

        /// Sends the response several times, and then a response whose output has a different type.
        fn infer_stream(
            &self,
            request: InferRequest,
            _: RequestContext,
        ) -> BoxFuture<'_, Result<Responses, ServiceError>> {
            let good = self.respond(request).unwrap();
            let mut bad = good.clone();
            bad.outputs[1].value = Tensor::scalar(1u8).into();
            let mut responses = vec![bad, good.clone(), good].into_iter().rev();
            let stream = ResponseStream::new(move |_| {
                let response = responses.next();
                let streamed = |response| {
                    Ok(StreamedResponse {
                        response,
                        is_last: false,
                    })
                };
                Poll::Ready(response.map(streamed))
            });
            Box::pin(async move { Ok(Responses::Several(stream)) })
        }
    }

    fn to_careless(name: &str, x: f32) -> InferRequest {
        let model = ModelRef::new("m", None).unwrap();
        let mut request = InferRequest::new(model).with_input(name, Tensor::from_slice([1], &[x]).unwrap());
        request.id = Some("7".to_owned());
        request
    }

    #[test]
    fn the_caller_checks_requests_and_outputs_and_brings_the_id() {
        let careless = Careless::new();
        let service: Arc<dyn InferenceService> = careless.clone();
        let run = |request| {
            let cx = RequestContext::new(None);
            block_on(respond(&service, &CpuPool::new(1), request, cx))
        };
        let error = run(to_careless("w", 1.0)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(
            error.message().starts_with("model 'm': unexpected input 'w'"),
            "{error}"
        );
        assert_eq!(careless.requests.load(Ordering::SeqCst), 0, "it was asked");

        let response = run(to_careless("x", 2.0)).unwrap();
        let names: Vec<&str> = response
            .outputs
            .iter()
            .map(|output| output.name.as_str())
            .collect();
        assert_eq!((names, response.id.as_deref()), (vec!["y", "z"], Some("7")));
        let response = run(to_careless("x", 2.0).with_output("z")).unwrap();
        assert_eq!(
            (response.outputs.len(), response.get::<f32>("z").unwrap()[0]),
            (1, 2.0)
        );

        let error = run(to_careless("x", -2.0)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(
            error
                .message()
                .starts_with("model 'm': the model returned a wrong output 'z'"),
            "{error}"
        );
    }

    #[test]
    fn the_caller_checks_each_response_of_a_stream() {
        let service: Arc<dyn InferenceService> = Careless::new();
        let request = to_careless("x", 2.0).with_output("y");
        let cpu = CpuPool::new(1);
        let responses = respond_stream(&service, &cpu, request, RequestContext::new(None));
        let Responses::Several(mut responses) = block_on(responses).unwrap() else {
            panic!("one response of a service that gives several");
        };
        for _ in 0..2 {
            let response = block_on(responses.next()).unwrap().unwrap().response;
            assert_eq!((response.outputs.len(), response.id.as_deref()), (1, Some("7")));
        }
        let error = block_on(responses.next()).unwrap().unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(
            block_on(respond_stream(
                &service,
                &cpu,
                to_careless("w", 2.0),
                RequestContext::new(None)
            ))
            .is_err()
        );
    }

    #[test]
    fn outputs_become_classes() {
        let service = Arc::new(TestService::default());
        let parameters = Parameters::from([class_count_parameter(2)]);
        let response = run(&service, request(&[0.5, 2.0, 1.0], parameters.clone())).unwrap();
        let classes = response.output("y").unwrap().as_bytes().unwrap();
        assert_eq!(
            classes.iter().collect::<Vec<_>>(),
            [&b"2.000000:1:dog"[..], b"1.000000:2"]
        );

        let plain = Arc::new(TestService::plain());
        let error = run(&plain, request(&[0.5], parameters)).unwrap_err();
        assert_eq!(
            error.message(),
            "model 'identity_fp32': output 'y': classification is not offered by this server"
        );
    }

    #[test]
    fn outputs_are_written_into_shared_memory() {
        let service = Arc::new(TestService::default());
        service.share("/k", vec![0; 16]);
        let region = oip_types::SharedMemoryRegion {
            name: "r".into(),
            key: "/k".into(),
            offset: 4,
            byte_size: 12,
        };
        service.shared_memory().unwrap().register(region).unwrap();
        let slice = SharedMemorySlice {
            region: "r".into(),
            offset: 4,
            byte_size: 8,
        };
        let response = run(&service, request(&[1.0, -2.0], slice.to_parameters())).unwrap();
        assert_eq!(response.outputs[0].shared_memory, Some(slice.clone()));
        let memory = service.shared("/k").unwrap();
        assert_eq!(memory, [[0u8; 8], [0, 0, 128, 63, 0, 0, 0, 192]].concat());

        let error = run(&service, request(&[1.0; 3], slice.to_parameters())).unwrap_err();
        assert_eq!(
            error.message(),
            "model 'identity_fp32': output 'y': shared memory region 'r': expected at least 12 bytes, found 8"
        );
        let mut both = slice.to_parameters();
        both.insert("classification".into(), ParameterValue::Int64(1));
        assert_eq!(
            run(&service, request(&[1.0], both)).unwrap_err().code(),
            ErrorCode::InvalidArgument
        );
    }
}
