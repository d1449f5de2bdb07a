//! Requests to workers that do not use REST bodies. These workers receive the locations of tensors: after the
//! JSON, or, for large tensors on Linux, in shared memory.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use oip_model::{Outputs, RequestPart, ResponseSink};
use oip_types::{DataType, ErrorCode, InferOutput, InferRequest, ParameterValue, ServiceError, TensorValue};
use tensor_core::{QuotedName, Shape};

#[cfg(target_os = "linux")]
use crate::messages::{NewRegion, Room};
#[cfg(target_os = "linux")]
use crate::region::{KEPT, LEAST_IN_REGION, REGION_ALIGNMENT, Region};
use crate::{
    calls::{Bell, Calls, Work},
    messages::{
        Ask, FailedPart, Failure, InputLocation, Next, OutputLocation, Part, PartReply, Results, Run,
        RunPart, TensorMemory,
    },
    protocol::{Broken, Connection, Head, Kind, read_json},
    worker_log::WorkerLog,
};

/// The shared regions of one connection.
#[derive(Default)]
pub(crate) struct SharedRegions {
    #[cfg(target_os = "linux")]
    regions: Regions,
    /// Wakes the thread that uses this connection. Created when the model first calls another model.
    bell: Option<Arc<Bell>>,
}

/// Receives the responses if the model sends several to one request.
pub(crate) struct Several<'s> {
    pub(crate) answers: &'s mut dyn ResponseSink,
    /// Makes the worker available to other requests while this request continues. Returns whether that was
    /// possible.
    pub(crate) free: &'s mut dyn FnMut() -> bool,
}

/// A request that a worker is running.
struct Exchange<'e> {
    connection: &'e Connection,
    number: u64,
    sent: &'e SentRequest<'e>,
    max_answer_bytes: u64,
    /// The model's calls to other models.
    calls: Calls<'e>,
}

#[cfg(target_os = "linux")]
#[derive(Default)]
struct Regions {
    inputs: Option<Region>,
    outputs: Option<Region>,
    /// The number of the region that was created last.
    last: u64,
}

/// The inputs of a request, and their offsets in the frame or region.
struct SentRequest<'r> {
    request: &'r InferRequest,
    offsets: Vec<u64>,
}

impl SharedRegions {
    /// Sends one request, and returns the offsets of its inputs. After a connection error, the worker can no
    /// longer be used.
    pub(crate) fn send(
        &mut self,
        connection: &Connection,
        number: u64,
        (request, parts, timeout): (&InferRequest, &[RequestPart], Option<Duration>),
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Result<Vec<u64>, ServiceError>, Broken> {
        let parameters = match parameters(request) {
            Ok(parameters) => parameters,
            Err(error) => return Ok(Err(error)),
        };
        let mut sent = SentRequest::new(request, 1);
        let region = self.put(connection, &mut sent, go_on);
        let region = match region? {
            Ok(region) => region,
            Err(error) => return Ok(Err(error)),
        };
        let run = Run {
            id: request.id.as_deref(),
            parameters,
            inputs: sent.places(),
            outputs: request
                .outputs
                .iter()
                .map(|output| output.name.as_str())
                .collect(),
            region,
            parts: parts
                .iter()
                .map(|part| RunPart {
                    id: part.id.as_deref(),
                    rows: part.rows,
                    outputs: &part.outputs,
                })
                .collect(),
            timeout: timeout.map(|timeout| u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX)),
        };
        let binary: Vec<Bytes> = match region {
            Some(_) => Vec::new(),
            None => request
                .inputs
                .iter()
                .map(|input| input.value.raw().clone())
                .collect(),
        };
        connection.send(
            Kind::Run,
            number,
            &oip_types::rest::json_body(&run),
            &binary,
            go_on,
        )?;
        Ok(Ok(sent.offsets))
    }

    /// Receives the response to a request. If the model sends several responses, they are passed to
    /// `several`, and `None` is returned.
    pub(crate) fn receive(
        &mut self,
        connection: &Connection,
        number: u64,
        (work, offsets): (Work<'_>, Vec<u64>),
        (max_answer_bytes, log): (u64, &WorkerLog),
        several: Option<Several<'_>>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Result<Option<Outputs>, ServiceError>, Broken> {
        let sent = SentRequest {
            request: work.request,
            offsets,
        };
        let mut exchange = Exchange {
            connection,
            number,
            sent: &sent,
            max_answer_bytes,
            calls: Calls::new(work),
        };
        let (head, failure) = self.after_parts(&mut exchange, several, go_on)?;
        match head.kind {
            Kind::Results => {
                let (json, body) = body(connection, head, max_answer_bytes, go_on)?;
                let results: Results = read_json(&json)?;
                let outputs = self.take(&results.outputs, &body, &sent, max_answer_bytes)?;
                self.finish(results.keeps_inputs);
                let mut answer = Outputs::new(outputs);
                for FailedPart { part, mut error } in results.failed {
                    if part >= work.parts.len() {
                        return Err(Broken::wrong("an error for an unknown request"));
                    }
                    log.failed(&mut error);
                    answer.failed.push((part, error.into_error()));
                }
                Ok(match failure {
                    Some(failure) => Err(failure),
                    None => Ok((!results.is_end).then_some(answer)),
                })
            }
            Kind::Failed if head.binary == 0 => {
                let mut failed: Failure = read_json(&connection.bytes(head.json.into(), go_on)?)?;
                log.failed(&mut failed);
                // After a failed request the model may still use its inputs.
                self.finish(true);
                Ok(Err(failure.unwrap_or_else(|| failed.into_error())))
            }
            _ => Err(Broken::wrong("an unexpected frame")),
        }
    }

    /// Passes several responses on to `several`. Returns the header of the next frame, and the error if a
    /// response was not accepted. The worker waits after each response, so that it never runs ahead of the
    /// receiver.
    fn after_parts(
        &mut self,
        exchange: &mut Exchange<'_>,
        mut several: Option<Several<'_>>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(Head, Option<ServiceError>), Broken> {
        let mut is_free = false;
        let mut failure = None;
        loop {
            let head = self.answer(exchange, go_on)?;
            let Exchange {
                connection,
                number,
                sent,
                max_answer_bytes,
                ..
            } = *exchange;
            let sink = match (head.kind, &mut several) {
                (Kind::Part, Some(several)) => &mut *several.answers,
                (Kind::Free, Some(several)) if head.binary == 0 && !is_free => {
                    is_free = true;
                    connection.bytes(head.json.into(), go_on)?;
                    // The worker becomes idle before the instance is freed, so that the next request finds an
                    // idle worker.
                    if (several.free)() {
                        several.answers.free_instance();
                    }
                    continue;
                }
                (Kind::Part, None) => {
                    return Err(Broken::wrong("one of several responses where one was requested"));
                }
                _ => return Ok((head, failure)),
            };
            let (json, body) = body(connection, head, max_answer_bytes, go_on)?;
            let part: Part = read_json(&json)?;
            let outputs = self.take(&part.outputs, &body, sent, max_answer_bytes)?;
            if failure.is_none() {
                let taken = match part.is_last {
                    true => sink.send_last(outputs),
                    false => sink.send(outputs),
                };
                failure = taken.err();
            }
            let taken = PartReply {
                is_wanted: failure.is_none(),
            };
            connection.send_json(Kind::Taken, number, &taken, go_on)?;
            // `go_on` is checked even if no read had to wait.
            if !go_on() {
                return Err(Broken::GivenUp);
            }
        }
    }

    /// Reads the header of the next response. Meanwhile, gives the worker a region for its outputs if it
    /// needs one, and handles its requests to other models.
    fn answer(
        &mut self,
        exchange: &mut Exchange<'_>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Head, Broken> {
        let (connection, number) = (exchange.connection, exchange.number);
        let mut rooms = 0;
        loop {
            let calls = &mut exchange.calls;
            calls.drive_until_heard(&mut self.bell, connection, number, go_on)?;
            let head = connection.head(go_on)?;
            // A thread of the model may have sent this message while the response to the previous request was
            // being sent.
            let is_late = head.kind == Kind::Next && head.number < number;
            if head.number != number && !is_late {
                return Err(Broken::wrong("a response to another request"));
            }
            match head.kind {
                Kind::Next if head.binary == 0 && is_late => {
                    connection.bytes(head.json.into(), go_on)?;
                }
                Kind::Ask => {
                    rooms = 0;
                    self.ask(head, exchange, go_on)?;
                }
                Kind::Next if head.binary == 0 => {
                    let next: Next = read_json(&connection.bytes(head.json.into(), go_on)?)?;
                    exchange.calls.next(&next);
                }
                Kind::Room if head.binary == 0 && rooms == 0 => {
                    rooms += 1;
                    let json = connection.bytes(head.json.into(), go_on)?;
                    self.make_room(&json, exchange, go_on)?;
                }
                Kind::Room => return Err(Broken::wrong("repeated requests for more memory")),
                _ => return Ok(head),
            }
            // `go_on` is checked even if no read had to wait.
            if !go_on() {
                return Err(Broken::GivenUp);
            }
        }
    }

    /// Accepts a request to another model. The inputs are counted toward the memory budget of the running
    /// request before they are read.
    fn ask(
        &mut self,
        head: Head,
        exchange: &mut Exchange<'_>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        let Exchange {
            connection,
            number,
            sent,
            max_answer_bytes,
            ..
        } = *exchange;
        if head.binary > max_answer_bytes {
            return Err(too_long(head.binary, max_answer_bytes));
        }
        let ask: Ask = read_json(&connection.bytes(head.json.into(), go_on)?)?;
        let is_copied =
            |input: &&OutputLocation| matches!(input.place, TensorMemory::Region | TensorMemory::Inputs);
        let copied = ask.inputs.iter().filter(is_copied).map(|input| input.length);
        let reserved = exchange.calls.reserve(head.binary).and_then(|frame| {
            let copies = copied.map(|length| exchange.calls.reserve(length));
            Ok((frame, copies.collect::<Result<Vec<_>, _>>()?))
        });
        let inputs = match reserved {
            Err(error) => {
                connection.pass_over(head.binary, go_on)?;
                Err(error)
            }
            Ok((reserved, copies)) => {
                let frame = reserved.own(connection.bytes(head.binary, go_on)?.into());
                let mut inputs = self.take(&ask.inputs, &frame, sent, max_answer_bytes)?;
                let is_copied = inputs
                    .iter_mut()
                    .zip(&ask.inputs)
                    .filter(|(_, place)| is_copied(place));
                for ((input, _), copy) in is_copied.zip(copies) {
                    input.value = input.value.clone().with_handle(|bytes| copy.own(bytes));
                }
                Ok(inputs)
            }
        };
        // The model waits for this reply. After the reply, the model may write to either region.
        if ask.inputs.iter().any(|input| is_copied(&input)) {
            connection.send_json(Kind::Taken, number, &PartReply { is_wanted: true }, go_on)?;
        }
        exchange.calls.begin(&ask, inputs)
    }

    /// Reads the outputs of a response. Fails if their total size exceeds `max_answer_bytes`, or if an output
    /// does not lie within its region or frame.
    fn take(
        &self,
        outputs: &[OutputLocation],
        frame: &Bytes,
        sent: &SentRequest<'_>,
        max_answer_bytes: u64,
    ) -> Result<Vec<InferOutput>, Broken> {
        let lengths = outputs.iter().map(|output| output.length);
        let whole = lengths.fold(0u64, u64::saturating_add);
        if whole > max_answer_bytes {
            return Err(too_long(whole, max_answer_bytes));
        }
        let outputs = outputs.iter().map(|output| {
            let raw = self.bytes_at(output, frame, sent)?;
            let value = value(output, raw).map_err(|error| {
                let name = QuotedName(&output.name);
                Broken::wrong(format!("an output {name} that is malformed: {}", error.message()))
            })?;
            Ok(InferOutput::new(&output.name, value))
        });
        outputs.collect()
    }

    fn bytes_at(
        &self,
        output: &OutputLocation,
        frame: &Bytes,
        sent: &SentRequest<'_>,
    ) -> Result<Bytes, Broken> {
        let (offset, length) = (output.offset, output.length);
        let outside = || {
            let name = QuotedName(&output.name);
            Broken::wrong(format!(
                "an output {name} outside of its memory: {length} bytes from {offset}"
            ))
        };
        match output.place {
            TensorMemory::Frame => slice(frame, offset, length).ok_or_else(outside),
            TensorMemory::Request => sent.bytes_at(offset, length).ok_or_else(outside),
            #[cfg(target_os = "linux")]
            TensorMemory::Region | TensorMemory::Inputs => {
                let region = match output.place {
                    TensorMemory::Region => self.regions.outputs.as_ref(),
                    _ => self.regions.inputs.as_ref(),
                };
                let read = region.ok_or_else(outside)?.read(offset, length);
                read.map_err(|error| match error {
                    rustix::io::Errno::INVAL => outside(),
                    error => Broken::System(error.into()),
                })
            }
            #[cfg(not(target_os = "linux"))]
            TensorMemory::Region | TensorMemory::Inputs => Err(outside()),
        }
    }
}

#[cfg(target_os = "linux")]
impl SharedRegions {
    /// Writes the inputs of a request into a region if they are large. Returns the number of the region.
    fn put(
        &mut self,
        connection: &Connection,
        sent: &mut SentRequest<'_>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Result<Option<u64>, ServiceError>, Broken> {
        let request = sent.request;
        let inputs = &request.inputs;
        let whole: u64 = inputs.iter().map(|input| input.value.raw().len() as u64).sum();
        if whole < LEAST_IN_REGION {
            return Ok(Ok(None));
        }
        *sent = SentRequest::new(request, REGION_ALIGNMENT);
        let room = whole.saturating_add(REGION_ALIGNMENT * inputs.len() as u64);
        if self
            .regions
            .inputs
            .as_ref()
            .is_none_or(|region| region.len() < room)
        {
            self.regions.inputs = None;
            self.regions.inputs = Some(self.regions.make(connection, room, true, go_on)?);
        }
        let Some(region) = &self.regions.inputs else {
            return Ok(Ok(None));
        };
        for (input, offset) in inputs.iter().zip(&sent.offsets) {
            if let Err(error) = region.write(input.value.raw(), *offset) {
                let error = ServiceError::new(
                    ErrorCode::Overloaded,
                    format!("there is no shared memory for its {whole} bytes of inputs: {error}"),
                );
                self.regions.inputs = None;
                return Ok(Err(error));
            }
        }
        Ok(Ok(Some(region.number())))
    }

    /// Creates the region that a worker requested for its outputs.
    fn make_room(
        &mut self,
        json: &[u8],
        exchange: &Exchange<'_>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        let Room { bytes } = read_json(json)?;
        // Because of alignment, tensors may take slightly more space than the sum of their sizes.
        if bytes > exchange.max_answer_bytes.saturating_add(64 << 10) {
            return Err(too_long(bytes, exchange.max_answer_bytes));
        }
        self.regions.outputs = None;
        self.regions.outputs = Some(self.regions.make(exchange.connection, bytes, false, go_on)?);
        Ok(())
    }

    /// Drops the regions that the next request cannot use or that are too large to keep. The worker drops the
    /// same regions.
    fn finish(&mut self, keeps_inputs: bool) {
        let Regions { inputs, outputs, .. } = &mut self.regions;
        if keeps_inputs {
            *inputs = None;
        }
        let mut left = KEPT;
        for region in [inputs, outputs] {
            let length = region.as_ref().map_or(0, Region::len);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => *region = None,
            }
        }
    }

    /// Returns the total size of the kept regions, in bytes.
    pub(crate) fn kept(&self) -> u64 {
        let Regions { inputs, outputs, .. } = &self.regions;
        [inputs, outputs].into_iter().flatten().map(Region::len).sum()
    }
}

#[cfg(target_os = "linux")]
impl Regions {
    fn make(
        &mut self,
        connection: &Connection,
        room: u64,
        is_for_inputs: bool,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Region, Broken> {
        use std::os::fd::AsFd;

        self.last += 1;
        let region = Region::new(self.last, room).map_err(|error| Broken::System(error.into()))?;
        let message = NewRegion {
            number: region.number(),
            length: region.len(),
            is_for_inputs,
        };
        connection.send_file(Kind::Region, 0, &message, region.as_fd(), go_on)?;
        Ok(region)
    }
}

#[cfg(not(target_os = "linux"))]
impl SharedRegions {
    #[expect(clippy::unused_self, reason = "there are regions elsewhere")]
    fn put(
        &mut self,
        _: &Connection,
        _: &mut SentRequest<'_>,
        _: &mut dyn FnMut() -> bool,
    ) -> Result<Result<Option<u64>, ServiceError>, Broken> {
        Ok(Ok(None))
    }

    #[expect(clippy::unused_self, reason = "there are regions elsewhere")]
    fn make_room(&mut self, _: &[u8], _: &Exchange<'_>, _: &mut dyn FnMut() -> bool) -> Result<(), Broken> {
        Err(Broken::wrong("an unexpected frame"))
    }

    #[expect(clippy::unused_self, reason = "there are regions elsewhere")]
    fn finish(&mut self, _: bool) {}

    #[expect(clippy::unused_self, reason = "there are regions elsewhere")]
    pub(crate) fn kept(&self) -> u64 {
        0
    }
}

impl<'r> SentRequest<'r> {
    /// Returns the name, datatype, shape and location of each input.
    fn places(&self) -> Vec<InputLocation<'r>> {
        let inputs = self.request.inputs.iter().zip(&self.offsets);
        inputs
            .map(|(input, offset)| InputLocation {
                name: &input.name,
                datatype: input.value.datatype().name(),
                shape: input.value.shape().dims(),
                offset: *offset,
                length: input.value.raw().len() as u64,
            })
            .collect()
    }

    /// Lays out the inputs one after another, each at a multiple of `alignment`.
    fn new(request: &'r InferRequest, alignment: u64) -> Self {
        let mut end = 0u64;
        let offsets = request.inputs.iter().map(|input| {
            let offset = end.next_multiple_of(alignment);
            end = offset + input.value.raw().len() as u64;
            offset
        });
        Self {
            offsets: offsets.collect(),
            request,
        }
    }

    /// Returns `length` bytes of an input as a slice, without a copy.
    fn bytes_at(&self, offset: u64, length: u64) -> Option<Bytes> {
        let mut inputs = self.request.inputs.iter().zip(&self.offsets);
        inputs.find_map(|(input, begin)| slice(input.value.raw(), offset.checked_sub(*begin)?, length))
    }
}

/// Reads the body of a response, split into its JSON and its binary part.
fn body(
    connection: &Connection,
    head: Head,
    max_answer_bytes: u64,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(Bytes, Bytes), Broken> {
    let length = u64::from(head.json).saturating_add(head.binary);
    if head.binary > max_answer_bytes {
        return Err(too_long(length, max_answer_bytes));
    }
    let mut body = Bytes::from(connection.bytes(length, go_on)?);
    let json = body.split_to(head.json as usize);
    Ok((json, body))
}

fn slice(bytes: &Bytes, offset: u64, length: u64) -> Option<Bytes> {
    let offset = usize::try_from(offset).ok()?;
    let end = offset.checked_add(usize::try_from(length).ok()?)?;
    (end <= bytes.len()).then(|| bytes.slice(offset..end))
}

fn value(output: &OutputLocation, raw: Bytes) -> Result<TensorValue, ServiceError> {
    let datatype = DataType::from_name(&output.datatype)?;
    let shape = Shape::new(&output.shape).map_err(|error| ServiceError::invalid(error.to_string()))?;
    TensorValue::from_raw(datatype, shape, raw)
}

fn too_long(length: u64, max: u64) -> Broken {
    Broken::wrong(format!("a response of {length} bytes, more than {max}"))
}

/// Converts a request's parameters to JSON.
fn parameters(request: &InferRequest) -> Result<BTreeMap<&str, serde_json::Value>, ServiceError> {
    let parameters = request.parameters.iter().map(|(name, value)| {
        let value = match value {
            ParameterValue::Bool(value) => (*value).into(),
            ParameterValue::Int64(value) => (*value).into(),
            ParameterValue::Uint64(value) => (*value).into(),
            ParameterValue::Double(value) => match serde_json::Number::from_f64(*value) {
                Some(number) => number.into(),
                None => {
                    let name = QuotedName(name);
                    return Err(ServiceError::invalid(format!(
                        "the parameter {name} is {value}, which a model in a separate process cannot be sent"
                    )));
                }
            },
            ParameterValue::String(value) => value.as_str().into(),
            other => {
                return Err(ServiceError::invalid(format!(
                    "the parameter {} is {other}, which a model in a separate process cannot be sent",
                    QuotedName(name)
                )));
            }
        };
        Ok((name.as_str(), value))
    });
    parameters.collect()
}

#[cfg(all(test, target_os = "linux"))]
impl SharedRegions {
    pub(crate) fn with_inputs(length: u64) -> Self {
        let mut places = Self::default();
        places.regions.inputs = Some(Region::exactly(length).expect("the system has memory"));
        places
    }
}

#[cfg(test)]
mod tests {
    use oip_types::ModelRef;
    use tensor_core::Tensor;

    use super::*;

    fn request() -> InferRequest {
        let vector =
            |len: usize| Tensor::from_vec(Shape::vector(len as u64), (0..len as u8).collect()).unwrap();
        InferRequest::new(ModelRef::new("m", None).unwrap())
            .with_input("a", vector(3))
            .with_input("b", vector(100))
    }

    fn results(place: &str, offset: u64, length: u64) -> Results {
        let json = format!(
            r#"{{"outputs":[{{"name":"y","datatype":"UINT8","shape":[{length}],"place":"{place}","offset":{offset},"length":{length}}}]}}"#
        );
        read_json(json.as_bytes()).unwrap()
    }

    #[test]
    fn outputs_that_are_inputs_are_not_copied() {
        let request = request();
        let sent = SentRequest::new(&request, 64);
        assert_eq!(sent.offsets, [0, 64]);
        let places = SharedRegions::default();
        let take = |place: &str, offset, length| {
            let outputs = places.take(
                &results(place, offset, length).outputs,
                &Bytes::from_static(b"frame"),
                &sent,
                1000,
            );
            outputs.map(|outputs| outputs[0].value.raw().clone())
        };
        let part = take("request", 70, 20).unwrap();
        assert_eq!(part.as_ptr(), request.inputs[1].value.raw()[6..].as_ptr());
        assert_eq!(take("frame", 1, 3).unwrap(), &b"ram"[..]);
        for (place, offset, length) in [
            ("request", 60, 5),
            ("request", 2, 2),
            ("request", 64, 101),
            ("request", u64::MAX, 2),
            ("frame", 3, 3),
            ("frame", u64::MAX, u64::MAX),
            ("region", 0, 0),
            ("inputs", 0, 1),
        ] {
            let error = take(place, offset, length).unwrap_err();
            assert!(matches!(error, Broken::Wrong(_)), "{place} {offset} {length}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn regions_are_kept_up_to_a_sum() {
        let kept = |inputs: u64, outputs: u64, keeps_inputs| {
            let mut places = SharedRegions::with_inputs(inputs << 20);
            places.regions.outputs = Some(Region::exactly(outputs << 20).unwrap());
            places.finish(keeps_inputs);
            let Regions { inputs, outputs, .. } = &places.regions;
            let lengths = [inputs, outputs].map(|region| region.as_ref().map_or(0, Region::len) >> 20);
            assert_eq!(places.kept() >> 20, lengths[0] + lengths[1]);
            (lengths[0], lengths[1])
        };
        assert_eq!(kept(80, 32, false), (80, 32));
        assert_eq!(kept(80, 33, false), (80, 0));
        assert_eq!(kept(113, 112, false), (0, 112));
        assert_eq!(kept(80, 112, true), (0, 112));
    }

    #[test]
    fn answers_are_bounded_together() {
        let request = request();
        let sent = SentRequest::new(&request, 1);
        let mut twice = results("request", 3, 100);
        twice.outputs.extend(results("request", 3, 100).outputs);
        let places = SharedRegions::default();
        assert!(places.take(&twice.outputs, &Bytes::new(), &sent, 200).is_ok());
        assert!(places.take(&twice.outputs, &Bytes::new(), &sent, 199).is_err());
        let mut wrong = results("request", 3, 100);
        wrong.outputs[0].shape = vec![7];
        assert!(places.take(&wrong.outputs, &Bytes::new(), &sent, 200).is_err());
        wrong.outputs[0].shape = vec![u64::MAX, u64::MAX];
        assert!(places.take(&wrong.outputs, &Bytes::new(), &sent, 200).is_err());
    }

    #[test]
    fn parameters_that_json_has_no_form_for_are_refused() {
        let mut request = request();
        request
            .parameters
            .insert("a".to_owned(), ParameterValue::Uint64(u64::MAX));
        assert_eq!(parameters(&request).unwrap()["a"], u64::MAX);
        request
            .parameters
            .insert("b".to_owned(), ParameterValue::Double(f64::NAN));
        assert!(parameters(&request).is_err());
    }
}
