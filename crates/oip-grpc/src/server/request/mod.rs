//! Decodes `ModelInferRequest` directly from the message's bytes.
//!
//! A first pass validates the message and records counts and sizes ([`outline`]); then the request is built.
//! Memory is charged to the lease before it is allocated, and raw inputs remain slices of the message.

mod account;
mod cursor;
// The tests compare with prost's messages, which the feature `client` generates.
#[cfg(all(test, feature = "client"))]
mod differential;
mod elements;
#[cfg(test)]
mod hostile;
mod outline;

use bytes::Bytes;
use oip_resources::{Charge, Lease};
use oip_types::{
    DataType, InferInput, InferRequest, ModelRef, ParameterValue, Parameters, ReadSharedMemory,
    RequestLimits, RequestedOutput, ServiceError, SharedMemorySlice, TensorValue, check_parameter_name,
    take_bool,
};
use tensor_core::QuotedName;

use self::{
    account::Account,
    outline::{Entries, InputOutline, Outline, OutputOutline, Value, Walk},
};
pub(crate) use self::{account::Effort, cursor::Failure};
use super::GrpcOutput;

/// Request parameter: whether outputs are raw (true) or typed (false).
const BINARY_DATA_OUTPUT: &str = "binary_data_output";
/// Request parameter: whether to mark the end of responses with an empty response, if no other response does.
const ENABLE_EMPTY_FINAL_RESPONSE: &str = "triton_enable_empty_final_response";

/// A decoded request, with the requested form of its response.
#[derive(Debug)]
pub(crate) struct ReadRequest {
    pub(crate) request: InferRequest,
    /// Whether outputs are raw; they are typed otherwise.
    pub(crate) wants_raw: bool,
    /// Whether to send an empty final response if no other response marks the end.
    pub(crate) wants_empty_final: bool,
    /// The charge for names and parameters.
    pub(crate) charge: Charge,
}

/// The request's id and model, which errors repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Echo {
    pub(crate) id: String,
    pub(crate) model_name: String,
    pub(crate) model_version: String,
}

impl Echo {
    /// Takes the id and model from an outline. Strings longer than `limit` are invalid and not repeated.
    fn of(outline: &Outline<'_>, limit: usize) -> Self {
        let short = |text: &str| match text.len() <= limit {
            true => text.to_owned(),
            false => String::new(),
        };
        Self {
            id: short(outline.id),
            model_name: short(outline.model_name),
            model_version: short(outline.model_version),
        }
    }

    /// Takes the id and model from a decoded request.
    pub(crate) fn of_request(request: &InferRequest) -> Self {
        let model = request.model();
        Self {
            id: request.id.clone().unwrap_or_default(),
            model_name: model.name().to_owned(),
            model_version: model.version().unwrap_or_default().to_owned(),
        }
    }
}

/// Decodes requests within limits, and charges their memory to the lease.
pub(crate) struct Reader<'r> {
    pub(crate) limits: &'r RequestLimits,
    pub(crate) output: GrpcOutput,
    pub(crate) shared_memory: &'r dyn ReadSharedMemory,
    pub(crate) lease: &'r Lease,
}

impl Reader<'_> {
    /// Decodes a request; an error is returned with the request id. Raw inputs remain slices of the message.
    pub(crate) fn read(&self, message: &Bytes, effort: Effort) -> Result<ReadRequest, (Echo, Failure)> {
        let mut outline = Outline::default();
        self.read_into(&mut outline, message, effort)
            .map_err(|failure| (Echo::of(&outline, self.limits.id_bytes), failure))
    }

    fn read_into<'m>(
        &self,
        outline: &mut Outline<'m>,
        message: &'m Bytes,
        effort: Effort,
    ) -> Result<ReadRequest, Failure> {
        let mut account = Account::new(self.lease, effort)?;
        let mut walk = Walk {
            limits: self.limits,
            account: &mut account,
        };
        let walked = walk.request(message, outline);
        let model = ModelRef::new(outline.model_name, Some(outline.model_version));
        match (walked, model) {
            (Ok(()), Ok(model)) => {
                let built = self.build(model, outline, message, &mut account);
                let (request, wants_raw, wants_empty_final) =
                    built.map_err(|failure| failure.within(model))?;
                Ok(ReadRequest {
                    request,
                    wants_raw,
                    wants_empty_final,
                    charge: account.into_charge(),
                })
            }
            (Ok(()), Err(error)) => Err(error.into()),
            (Err(failure), Ok(model)) => Err(failure.within(model)),
            // Parsing may have failed before the model name was read.
            (Err(failure), Err(_)) => Err(failure),
        }
    }

    fn build<'m>(
        &self,
        model: ModelRef<'_>,
        outline: &mut Outline<'m>,
        message: &'m Bytes,
        account: &mut Account<'_>,
    ) -> Result<(InferRequest, bool, bool), Failure> {
        // Outputs have the form of the inputs. A request without contents gets raw outputs, as Triton's
        // clients expect.
        let is_raw = outline.inputs.iter().all(|input| input.contents.is_none());
        let mut request = InferRequest::new(model);
        self.limits.check_id(outline.id)?;
        request.id = Some(outline.id.to_owned()).filter(|id| !id.is_empty());
        request.parameters = self.parameters(std::mem::take(&mut outline.parameters))?;
        let wants_empty_final = take_bool(&mut request.parameters, ENABLE_EMPTY_FINAL_RESPONSE)?;
        request
            .parameters
            .keys()
            .try_for_each(|name| check_parameter_name(name))?;
        let wants_raw = match (
            take_bool(&mut request.parameters, BINARY_DATA_OUTPUT)?,
            self.output,
        ) {
            (Some(binary), _) => binary,
            (None, GrpcOutput::Mirror) => is_raw,
            (None, GrpcOutput::Raw) => true,
            (None, GrpcOutput::Typed) => false,
        };
        let inputs = std::mem::take(&mut outline.inputs).into_iter();
        let inputs = inputs
            .map(|input| self.input(input))
            .collect::<Result<Vec<_>, _>>()?;
        if !outline.raw.is_empty() {
            check_raw(&inputs, outline.raw.len())?;
        }
        let mut raw = outline.raw.iter();
        let mut budget = self.limits.tensor_bytes;
        for input in inputs {
            let raw = if input.slice.is_none() { raw.next() } else { None };
            let raw = raw.map(|raw| message.slice_ref(raw));
            let (name, value) = (
                input.outline.name,
                self.value(&input, raw, message, account, &mut budget),
            );
            request.inputs.push(InferInput {
                name: name.to_owned(),
                value: value.map_err(|failure| failure.within(format_args!("input {}", QuotedName(name))))?,
                parameters: input.parameters,
            });
        }
        let outputs = std::mem::take(&mut outline.outputs).into_iter();
        request.outputs = outputs
            .map(|output| self.output(output))
            .collect::<Result<_, _>>()?;
        Ok((request, wants_raw, wants_empty_final.unwrap_or(false)))
    }

    /// Decodes parameters. Their memory was charged to the lease when the outline was built.
    fn parameters(&self, entries: Entries<'_>) -> Result<Parameters, ServiceError> {
        self.limits.check_parameters(entries.len())?;
        let read = |(name, value): (&str, Value<'_>)| {
            let value = match value {
                Value::Bool(value) => ParameterValue::Bool(value),
                Value::Int64(value) => ParameterValue::Int64(value),
                Value::Uint64(value) => ParameterValue::Uint64(value),
                Value::Double(value) => ParameterValue::Double(value),
                Value::String(value) => ParameterValue::String(value.to_owned()),
                Value::Missing => {
                    let message = format!("parameter {} has no value", QuotedName(name));
                    return Err(ServiceError::invalid(message));
                }
            };
            Ok((name.to_owned(), value))
        };
        entries.into_iter().map(read).collect()
    }

    fn input<'m>(&self, mut outline: InputOutline<'m>) -> Result<Input<'m>, ServiceError> {
        let entries = std::mem::take(&mut outline.parameters);
        let read = || {
            let mut parameters = self.parameters(entries)?;
            let slice = SharedMemorySlice::take(&mut parameters)?;
            Ok((parameters, slice))
        };
        let (parameters, slice) = read().map_err(|error: ServiceError| {
            error.within(format_args!("input {}", QuotedName(outline.name)))
        })?;
        Ok(Input {
            outline,
            parameters,
            slice,
        })
    }

    fn output(&self, outline: OutputOutline<'_>) -> Result<RequestedOutput, ServiceError> {
        let OutputOutline { name, parameters } = outline;
        let parameters = self
            .parameters(parameters)
            .map_err(|error| error.within(format_args!("output {}", QuotedName(name))))?;
        Ok(RequestedOutput {
            name: name.to_owned(),
            parameters,
        })
    }

    /// Reads an input's elements from shared memory, raw contents or typed contents.
    fn value(
        &self,
        input: &Input<'_>,
        raw: Option<Bytes>,
        message: &Bytes,
        account: &mut Account<'_>,
        budget: &mut usize,
    ) -> Result<TensorValue, Failure> {
        let datatype = DataType::from_name(input.outline.datatype)?;
        self.limits.check_rank(input.outline.rank)?;
        let shape = self.limits.shape(&input.outline.shape)?;
        let raw = match (&input.slice, raw, &input.outline.contents) {
            (Some(_), _, Some(_)) => {
                let message = "expected contents or shared_memory_region, found both";
                return Err(ServiceError::invalid(message).into());
            }
            (Some(slice), ..) => {
                account.work(usize::try_from(slice.byte_size).unwrap_or(usize::MAX))?;
                self.shared_memory.read(slice)?
            }
            (None, Some(raw), _) => raw,
            (None, None, Some(elements)) => {
                return elements.decode(datatype, shape, message, account, budget);
            }
            // An empty tensor needs no contents.
            (None, None, None) if shape.element_count() == 0 => Bytes::new(),
            (None, None, None) => {
                let message = "expected contents or raw_input_contents, found neither";
                return Err(ServiceError::invalid(message).into());
            }
        };
        // Validation reads the length of every byte string, so it counts as work.
        if datatype == DataType::Bytes {
            account.work(raw.len())?;
        }
        Ok(TensorValue::from_raw(datatype, shape, raw)?)
    }
}

/// An input whose elements are not decoded yet.
struct Input<'m> {
    outline: InputOutline<'m>,
    parameters: Parameters,
    /// The slice of shared memory that holds the elements, if any.
    slice: Option<SharedMemorySlice>,
}

/// Checks that exactly the inputs outside shared memory have raw contents.
fn check_raw(inputs: &[Input<'_>], found: usize) -> Result<(), ServiceError> {
    let expected = inputs.iter().filter(|input| input.slice.is_none()).count();
    if expected != found {
        let one_per = match expected == inputs.len() {
            true => "input",
            false => "input that is not in shared memory",
        };
        let message = format!("expected {expected} raw_input_contents, one per {one_per}, found {found}");
        return Err(ServiceError::invalid(message));
    }
    match inputs.iter().find(|input| input.outline.contents.is_some()) {
        None => Ok(()),
        Some(input) => Err(ServiceError::invalid(format!(
            "input {}: expected no contents together with raw_input_contents",
            QuotedName(input.outline.name)
        ))),
    }
}
