//! Messages between server and worker: frames on a socket. The crate documentation has the table.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    io::{self, ErrorKind, IoSlice, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use bytes::Bytes;
use oip_service::{Capabilities, IndependentRows, InputDims, Model, RowIndependence};
use oip_types::{
    DataType, ErrorCode, ModelConfig, ModelMetadata, Placement, ServiceError, ShapePattern, TensorMetadata,
    model_config::{InputConfig, OutputConfig},
};
use serde::{Deserialize, Serialize};

/// Interval at which a call that waits for a worker checks whether to continue.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Must change with the messages. Both sides are normally the same program, so a mismatch is a mistake.
pub(crate) const VERSION: u32 = 6;

/// Size of a frame header in bytes.
const HEAD: usize = 24;

/// Alignment of a body's binary part, so that the first tensor is aligned for any element type.
pub(crate) const ALIGNMENT: usize = 16;

/// Maximum size of a frame's JSON: metadata of about 100,000 tensors.
pub(crate) const MAX_JSON: u32 = 64 << 20;

/// Maximum size of one error's logged details in bytes.
pub(crate) const MAX_DETAILS: usize = 64 << 10;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Worker: it has started. JSON: [`Hello`].
    Hello = 1,
    /// Server: load this model. JSON: [`Load`]; binary: the model file.
    Load = 2,
    /// Worker: the model is loaded. JSON: [`Loaded`].
    Loaded = 3,
    /// Server: run this request. JSON and binary: the REST body of a request.
    Infer = 4,
    /// Worker: the response. JSON and binary: the REST body of a response.
    Outputs = 5,
    /// Worker: the request or loading failed. JSON: [`Failed`].
    Failed = 6,
    /// Server, to a worker that uses regions: run this request. JSON: [`Run`]; binary: the inputs, empty if they are in
    /// a region.
    Run = 7,
    /// Worker: the response. JSON: [`Results`]; binary: likewise.
    Results = 8,
    /// Worker: its response needs a larger region. JSON: [`Room`].
    Room = 9,
    /// Server: a region, whose file comes with the header. JSON: [`NewRegion`].
    Region = 10,
    /// Worker: one of several responses, before `Results`. JSON: [`Part`]; binary: as in `Results`.
    Part = 11,
    /// Server, after each `Part`, and after each `Ask` with inputs in a region: it was read. JSON: [`Taken`].
    Taken = 12,
    /// Worker: a request to another model, before `Results` or `Failed`. JSON: [`Ask`]; binary: its inputs, as in
    /// `Results`.
    Ask = 13,
    /// Server: a response to an `Ask`. JSON: [`Answer`]; binary: as in `Run`. A region's file comes with the header.
    Answer = 14,
    /// Worker, after an `Answer` that may not be the last: whether it wants the next one. JSON: [`Next`].
    Next = 15,
    /// Worker, before the end of several responses: it accepts another request on another connection while it continues
    /// with this one.
    Free = 16,
}

/// The header of a frame, 24 bytes, all numbers little-endian: the kind (u32), bytes of JSON (u32), the number of the
/// request (u64), bytes of binary data (u64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) json: u32,
    pub(crate) binary: u64,
}

impl Head {
    fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.json.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..].copy_from_slice(&self.binary.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Self, Broken> {
        let mut rest = bytes;
        let mut number = |width: usize| {
            let (field, tail) = rest.split_at(width);
            rest = tail;
            field
                .iter()
                .rev()
                .fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let (kind, json, request, binary) = (number(4), number(4), number(8), number(8));
        let known = [
            Kind::Hello,
            Kind::Load,
            Kind::Loaded,
            Kind::Infer,
            Kind::Outputs,
            Kind::Failed,
            Kind::Run,
            Kind::Results,
            Kind::Room,
            Kind::Region,
            Kind::Part,
            Kind::Taken,
            Kind::Ask,
            Kind::Answer,
            Kind::Next,
            Kind::Free,
        ];
        let kind = known.into_iter().find(|known| *known as u64 == kind);
        Ok(Self {
            kind: kind.ok_or_else(|| Broken::wrong("a frame of an unknown kind"))?,
            number: request,
            json: u32::try_from(json)
                .ok()
                .filter(|json| *json <= MAX_JSON)
                .ok_or_else(|| {
                    Broken::wrong(format!("a frame with {json} bytes of JSON, more than {MAX_JSON}"))
                })?,
            binary,
        })
    }
}

/// The first message of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    /// Whether the worker wants requests as [`Run`] instead of REST bodies.
    #[serde(default)]
    pub(crate) places: bool,
}

/// A request, with the locations of its inputs.
#[derive(Debug, Serialize)]
pub(crate) struct Run<'r> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<&'r str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) parameters: BTreeMap<&'r str, serde_json::Value>,
    pub(crate) inputs: Vec<InputPlace<'r>>,
    /// The names of the requested outputs; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) outputs: Vec<&'r str>,
    /// The region with the inputs; `None` if they follow the JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<u64>,
    /// The requests that were merged into this one, in the order of their rows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<RunPart<'r>>,
    /// Remaining time of the request in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<u64>,
}

/// One of several requests that were merged into one.
#[derive(Debug, Serialize)]
pub(crate) struct RunPart<'r> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<&'r str>,
    pub(crate) rows: u64,
    /// The names of its requested outputs; empty for all.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(crate) outputs: &'r [String],
}

/// The location of an input.
#[derive(Debug, Serialize)]
pub(crate) struct InputPlace<'r> {
    pub(crate) name: &'r str,
    pub(crate) datatype: &'static str,
    pub(crate) shape: &'r [u64],
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A response, with the locations of its outputs.
#[derive(Debug, Deserialize)]
pub(crate) struct Results {
    pub(crate) outputs: Vec<OutputPlace>,
    /// Whether the model still uses the region with its inputs.
    #[serde(default)]
    pub(crate) keeps_inputs: bool,
    /// Whether this message only marks the end of several responses.
    #[serde(default)]
    pub(crate) is_end: bool,
    /// The merged requests that failed, and why; their rows of the outputs are undefined.
    #[serde(default)]
    pub(crate) failed: Vec<FailedPart>,
}

/// One of several merged requests that failed.
#[derive(Debug, Deserialize)]
pub(crate) struct FailedPart {
    /// Its index in [`Run::parts`].
    pub(crate) part: usize,
    pub(crate) error: Failed,
}

/// One of several responses.
#[derive(Debug, Deserialize)]
pub(crate) struct Part {
    pub(crate) outputs: Vec<OutputPlace>,
    /// Whether the model marked this as the last one.
    pub(crate) is_last: bool,
}

/// The server's reply to a [`Part`].
#[derive(Debug, Serialize)]
pub(crate) struct Taken {
    /// Whether another response is wanted.
    pub(crate) is_wanted: bool,
}

/// A request from a model to another model.
#[derive(Debug, Deserialize)]
pub(crate) struct Ask {
    /// The worker's number for the call, unique among open calls.
    pub(crate) call: u64,
    pub(crate) model: String,
    #[serde(default)]
    pub(crate) version: Option<String>,
    #[serde(default)]
    pub(crate) id: Option<String>,
    #[serde(default)]
    pub(crate) parameters: BTreeMap<String, serde_json::Value>,
    pub(crate) inputs: Vec<OutputPlace>,
    /// The names of the requested outputs; empty for all.
    #[serde(default)]
    pub(crate) outputs: Vec<String>,
    /// Time limit in microseconds.
    #[serde(default)]
    pub(crate) timeout: Option<u64>,
    /// Whether the caller accepts any number of responses.
    #[serde(default)]
    pub(crate) takes_several: bool,
}

/// A response to an [`Ask`], or its end.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Answer<'r> {
    pub(crate) call: u64,
    /// `None` if there are no further responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outputs: Option<Vec<InputPlace<'r>>>,
    /// The length of the region with the outputs, which is used for this response only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<u64>,
    /// The error, if the call failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<Failed>,
    /// Whether this response is the last one; if not, the worker replies with [`Next`].
    pub(crate) is_end: bool,
}

/// The worker's reply to an [`Answer`] that may not be the last.
#[derive(Debug, Deserialize)]
pub(crate) struct Next {
    pub(crate) call: u64,
    pub(crate) is_wanted: bool,
}

/// The location of an output.
#[derive(Debug, Deserialize)]
pub(crate) struct OutputPlace {
    pub(crate) name: String,
    pub(crate) datatype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) place: Place,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// The memory that a location refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Place {
    /// The bytes follow the JSON in the frame.
    Frame,
    /// The region for outputs.
    Region,
    /// The region with the inputs, which the model may have written to.
    Inputs,
    /// The inputs, which the model cannot have modified: the request's own bytes.
    Request,
}

/// A request for a region of at least this size.
#[derive(Debug, Deserialize)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
}

/// A region and its purpose.
#[derive(Debug, Serialize)]
pub(crate) struct NewRegion {
    pub(crate) number: u64,
    pub(crate) length: u64,
    pub(crate) is_for_inputs: bool,
}

/// A model to load. The binary part has the content of its file, followed by that of the other files.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) backend: String,
    pub(crate) name: String,
    pub(crate) version: String,
    /// As a string: a path that is not UTF-8 has no files next to it.
    pub(crate) path: String,
    /// The names and lengths of the other files, in order.
    pub(crate) beside: Vec<(String, u64)>,
    pub(crate) config: ModelConfig,
    pub(crate) input_dims: InputDims,
    /// The inputs and outputs from the configuration, for workers that are another program.
    pub(crate) tensors: Tensors,
    /// Memory limit in bytes.
    pub(crate) memory_limit: Option<u64>,
    pub(crate) max_answer_bytes: u64,
    /// Time limit for loading in milliseconds.
    pub(crate) patience: Option<u64>,
    /// The index of this process among the model's processes: the smallest unused one.
    pub(crate) instance: usize,
}

/// The inputs and outputs from a configuration.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tensors {
    pub(crate) inputs: Vec<InputConfig>,
    pub(crate) outputs: Vec<OutputConfig>,
}

/// A loaded model: its metadata, and properties that the protocol's metadata lacks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Loaded {
    platform: String,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    #[serde(default)]
    max_batch_size: Option<u32>,
    #[serde(default)]
    instances: Option<u32>,
    /// Whether the model sends any number of responses to a request.
    #[serde(default)]
    decoupled: bool,
    /// Whether requests are batched only if the configuration has `dynamic_batching`.
    #[serde(default)]
    joined_only_when_told: bool,
    #[serde(default)]
    runtime: Option<String>,
    #[serde(default)]
    placement: Option<PlacementForm>,
    /// Its row independence; unknown if absent.
    #[serde(default)]
    rows: Option<Rows>,
}

/// A [`Placement`].
#[derive(Debug, Serialize, Deserialize)]
struct PlacementForm {
    providers: Vec<String>,
    gpus: Vec<u32>,
}

/// A [`RowIndependence`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Rows {
    Proven {
        shared_inputs: Vec<String>,
        equal_dims: Vec<Vec<(String, usize)>>,
    },
    Unproven(String),
}

impl From<RowIndependence> for Rows {
    fn from(known: RowIndependence) -> Self {
        match known {
            RowIndependence::Proven(IndependentRows {
                shared_inputs,
                equal_dims,
                ..
            }) => Self::Proven {
                shared_inputs,
                equal_dims,
            },
            RowIndependence::Unproven(reason) => Self::Unproven(reason),
            // Added to the interface, but not to this protocol.
            _ => RowIndependence::default().into(),
        }
    }
}

impl From<Rows> for RowIndependence {
    fn from(rows: Rows) -> Self {
        match rows {
            Rows::Proven {
                shared_inputs,
                equal_dims,
            } => {
                let rows = shared_inputs
                    .into_iter()
                    .fold(IndependentRows::default(), IndependentRows::with_shared_input);
                Self::Proven(
                    equal_dims
                        .into_iter()
                        .fold(rows, IndependentRows::with_equal_dims),
                )
            }
            Rows::Unproven(reason) => Self::Unproven(reason),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Port {
    name: String,
    datatype: String,
    dims: Vec<Option<u64>>,
    #[serde(default)]
    any_leading: bool,
    #[serde(default)]
    optional: bool,
    #[serde(default)]
    approximate: bool,
}

impl Loaded {
    pub(crate) fn of(model: &dyn Model) -> Self {
        let (metadata, capabilities) = (model.metadata(), model.capabilities());
        let port = |tensor: &TensorMetadata| Port {
            name: tensor.name.clone(),
            datatype: tensor.datatype.name().to_owned(),
            dims: tensor.shape.dims().to_vec(),
            any_leading: tensor.shape.has_any_leading(),
            optional: tensor.optional,
            approximate: tensor.approximate,
        };
        Self {
            platform: metadata.platform.clone(),
            inputs: metadata.inputs.iter().map(port).collect(),
            outputs: metadata.outputs.iter().map(port).collect(),
            max_batch_size: capabilities.max_batch_size,
            instances: capabilities.instances,
            decoupled: capabilities.decoupled,
            joined_only_when_told: capabilities.joined_only_when_told,
            runtime: capabilities.runtime,
            placement: capabilities.placement.map(|placement| PlacementForm {
                providers: placement.providers,
                gpus: placement.gpus,
            }),
            rows: Some(capabilities.row_independence.into()),
        }
    }

    /// Converts a worker's description of the model with this name.
    pub(crate) fn into_about(self, name: &str) -> Result<About, ServiceError> {
        let capabilities = Capabilities::default().with(|capabilities| {
            capabilities.runtime = self.runtime;
            capabilities.row_independence = self.rows.map(Into::into).unwrap_or_default();
            capabilities.max_batch_size = self.max_batch_size;
            capabilities.instances = self.instances;
            capabilities.decoupled = self.decoupled;
            capabilities.joined_only_when_told = self.joined_only_when_told;
            capabilities.placement = self
                .placement
                .map(|PlacementForm { providers, gpus }| Placement::new(providers).on_gpus(gpus));
            // Only on systems where waiting for a worker can time out.
            capabilities.elsewhere = cfg!(target_os = "linux");
        });
        let tensor = |port: Port| {
            let shape = match port.any_leading {
                true => ShapePattern::with_any_leading(port.dims),
                false => ShapePattern::new(port.dims),
            };
            let datatype = DataType::from_name(&port.datatype)?;
            let mut tensor = TensorMetadata::with_shape(port.name, datatype, shape);
            tensor.optional = port.optional;
            tensor.approximate = port.approximate;
            Ok(tensor)
        };
        let tensors = |ports: Vec<Port>| {
            ports
                .into_iter()
                .map(tensor)
                .collect::<Result<Vec<_>, ServiceError>>()
        };
        Ok(About {
            metadata: ModelMetadata::new(name, self.platform, tensors(self.inputs)?, tensors(self.outputs)?),
            capabilities,
        })
    }
}

/// A worker's description of its model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct About {
    pub(crate) metadata: ModelMetadata,
    pub(crate) capabilities: Capabilities,
}

/// An error, with the HTTP status of its code.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failed {
    status: u16,
    message: String,
    /// Details for the log rather than for the client, such as a traceback; at most [`MAX_DETAILS`] bytes are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<String>,
}

impl Failed {
    pub(crate) fn new(error: &ServiceError) -> Self {
        Self {
            status: error.code().http_status(),
            message: error.message().to_owned(),
            details: None,
        }
    }

    /// Takes the details for the log.
    pub(crate) fn take_details(&mut self) -> Option<String> {
        let mut details = self.details.take()?;
        if details.len() > MAX_DETAILS {
            details.truncate(details.floor_char_boundary(MAX_DETAILS));
        }
        Some(details)
    }

    pub(crate) fn into_error(self) -> ServiceError {
        let code = ErrorCode::ALL
            .into_iter()
            .find(|code| code.http_status() == self.status);
        ServiceError::new(code.unwrap_or(ErrorCode::Internal), self.message)
    }
}

/// Why a connection is unusable.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The other process closed the connection.
    Ended,
    /// The caller has given up waiting.
    GivenUp,
    /// The other side violated the protocol; how.
    Wrong(String),
    /// A system call failed on this side.
    System(io::Error),
}

impl Broken {
    pub(crate) fn wrong(what: impl Into<String>) -> Self {
        Self::Wrong(what.into())
    }
}

/// One end of the socket between server and worker.
pub(crate) struct Connection {
    stream: UnixStream,
    /// Bytes read ahead while waiting for a response.
    ahead: RefCell<VecDeque<u8>>,
}

impl Connection {
    /// Maximum number of bytes to read ahead.
    #[cfg(target_os = "linux")]
    const AHEAD: usize = 16 << 10;

    /// Maximum bytes per read. A frame's memory is touched in these steps, as its bytes arrive.
    const STEP: usize = 256 << 10;

    /// Creates a connection whose calls check after every `tick`, and after each transfer, whether to
    /// continue. Without a tick they wait indefinitely.
    pub(crate) fn new(stream: UnixStream, tick: Option<Duration>) -> io::Result<Self> {
        stream.set_read_timeout(tick)?;
        stream.set_write_timeout(tick)?;
        Ok(Self {
            stream,
            ahead: RefCell::default(),
        })
    }

    /// Sends one frame: JSON padded with spaces, and the binary parts without copying them.
    pub(crate) fn send(
        &self,
        kind: Kind,
        number: u64,
        json: &[u8],
        binary: &[Bytes],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        let padding = json.len().next_multiple_of(ALIGNMENT) - json.len();
        let length = u32::try_from(json.len() + padding)
            .ok()
            .filter(|length| *length <= MAX_JSON);
        let head = Head {
            kind,
            number,
            json: length.ok_or_else(|| Broken::wrong("too much JSON for one frame"))?,
            binary: binary.iter().map(|part| part.len() as u64).sum(),
        };
        let head = head.to_bytes();
        let parts = [&head[..], json, &[b' '; ALIGNMENT][..padding]].into_iter();
        let mut parts: Vec<IoSlice<'_>> = parts
            .chain(binary.iter().map(|part| &part[..]))
            .filter(|part| !part.is_empty())
            .map(IoSlice::new)
            .collect();
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            match (&self.stream).write_vectored(parts) {
                Ok(written) => IoSlice::advance_slices(&mut parts, written),
                Err(error) => wait_or_fail(error)?,
            }
            if !parts.is_empty() && !go_on() {
                return Err(Broken::GivenUp);
            }
        }
        Ok(())
    }

    /// Sends a frame that consists only of JSON.
    pub(crate) fn send_json<T: Serialize>(
        &self,
        kind: Kind,
        number: u64,
        message: &T,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        self.send(kind, number, &oip_types::rest::json_body(message), &[], go_on)
    }

    /// Tells the other side that nothing more will be sent.
    pub(crate) fn finish_sending(&self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)
    }

    /// Sends bytes outside a frame.
    pub(crate) fn send_bytes(&self, mut bytes: &[u8], go_on: &mut dyn FnMut() -> bool) -> Result<(), Broken> {
        while !bytes.is_empty() {
            match (&self.stream).write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) => wait_or_fail(error)?,
            }
            if !bytes.is_empty() && !go_on() {
                return Err(Broken::GivenUp);
            }
        }
        Ok(())
    }

    /// Returns the socket, for polling it together with other descriptors.
    pub(crate) fn socket(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.stream)
    }

    /// Returns whether there are unconsumed bytes that were read ahead.
    pub(crate) fn has_read_ahead(&self) -> bool {
        !self.ahead.borrow().is_empty()
    }

    /// Waits until `until` for a frame that ends a request and contains all of its tensors. Returns whether there is
    /// one, which can then be read without blocking. Everything else, including errors, is left to the next read.
    #[cfg(target_os = "linux")]
    pub(crate) fn has_answer_by(&self, until: std::time::Instant) -> bool {
        use std::os::fd::AsRawFd;

        use nix::{
            errno::Errno,
            poll::{PollFd, PollFlags, ppoll},
            sys::{
                socket::{MsgFlags, recv},
                time::TimeSpec,
            },
        };

        let mut ahead = self.ahead.borrow_mut();
        let mut piece = [0; Self::AHEAD];
        loop {
            if let Some(is_answer) = is_answer(ahead.make_contiguous()) {
                return is_answer;
            }
            let left = until.saturating_duration_since(std::time::Instant::now());
            let mut files = [PollFd::new(self.socket(), PollFlags::POLLIN)];
            match ppoll(&mut files, Some(TimeSpec::from_duration(left)), None) {
                Ok(0) => return false,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return false,
            }
            match recv(self.stream.as_raw_fd(), &mut piece, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return false,
                Ok(count) => ahead.extend(&piece[..count]),
                Err(Errno::EINTR | Errno::EAGAIN) if !left.is_zero() => {}
                Err(_) => return false,
            }
        }
    }

    /// Reads the next bytes of a frame and drops them.
    pub(crate) fn pass_over(&self, mut count: u64, go_on: &mut dyn FnMut() -> bool) -> Result<(), Broken> {
        while count > 0 {
            let step = count.min(Self::STEP as u64);
            self.bytes(step, go_on)?;
            count -= step;
        }
        Ok(())
    }

    /// Sends a frame that consists only of JSON, with a file.
    #[cfg(target_os = "linux")]
    pub(crate) fn send_file<T: Serialize>(
        &self,
        kind: Kind,
        number: u64,
        message: &T,
        file: std::os::fd::BorrowedFd<'_>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        use std::os::fd::AsRawFd;

        use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

        let json = oip_types::rest::json_body(message);
        let head = Head {
            kind,
            number,
            json: u32::try_from(json.len()).map_err(|_| Broken::wrong("too much JSON for one frame"))?,
            binary: 0,
        };
        let bytes = [&head.to_bytes()[..], &json[..]].concat();
        let files = [file.as_raw_fd()];
        let with_file = [ControlMessage::ScmRights(&files)];
        loop {
            let part = [IoSlice::new(&bytes)];
            let socket = self.stream.as_raw_fd();
            match sendmsg::<()>(socket, &part, &with_file, MsgFlags::MSG_NOSIGNAL, None) {
                // The file was sent with the first byte.
                Ok(sent) => return self.send_bytes(&bytes[sent..], go_on),
                Err(error) => wait_or_fail(error.into())?,
            }
            if !go_on() {
                return Err(Broken::GivenUp);
            }
        }
    }

    /// Reads the header of the next frame.
    pub(crate) fn head(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Head, Broken> {
        let mut head = [0; HEAD];
        self.fill(&mut head, go_on)?;
        Head::read(&head)
    }

    /// Reads the next bytes of a frame. The length was checked before; even so, memory is touched only as bytes arrive.
    pub(crate) fn bytes(&self, count: u64, go_on: &mut dyn FnMut() -> bool) -> Result<Vec<u8>, Broken> {
        let no_room = || Broken::System(ErrorKind::OutOfMemory.into());
        let count = usize::try_from(count).map_err(|_| no_room())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(count).map_err(|_| no_room())?;
        while bytes.len() < count {
            let start = bytes.len();
            bytes.resize(count.min(start + Self::STEP), 0);
            self.fill(&mut bytes[start..], go_on)?;
        }
        Ok(bytes)
    }

    /// Skips the next bytes of a frame.
    pub(crate) fn skip(&self, count: u64) -> Result<(), Broken> {
        match io::copy(&mut (&self.stream).take(count), &mut io::sink()) {
            Ok(skipped) if skipped == count => Ok(()),
            Ok(_) => Err(Broken::Ended),
            Err(error) => Err(Broken::System(error)),
        }
    }

    fn fill(&self, mut rest: &mut [u8], go_on: &mut dyn FnMut() -> bool) -> Result<(), Broken> {
        // Reading cannot fail: the source is in memory.
        let ahead = self.ahead.borrow_mut().read(rest).unwrap_or(0);
        rest = &mut rest[ahead..];
        while !rest.is_empty() {
            match (&self.stream).read(rest) {
                Ok(0) => return Err(Broken::Ended),
                Ok(read) => rest = &mut rest[read..],
                Err(error) => wait_or_fail(error)?,
            }
            // Also checked after each read, because a worker could send one byte at a time.
            if !rest.is_empty() && !go_on() {
                return Err(Broken::GivenUp);
            }
        }
        Ok(())
    }
}

/// Returns whether these bytes begin with a frame that ends a request and can be received without blocking; `None`
/// until that is known.
#[cfg(target_os = "linux")]
fn is_answer(bytes: &[u8]) -> Option<bool> {
    /// Longer frames are left to threads that may block.
    const LONGEST: u64 = 256 << 10;
    /// Tensors outside the frame are copied from elsewhere.
    const ELSEWHERE: [&[u8]; 2] = [br#""region""#, br#""inputs""#];
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let Ok(head) = Head::read(head) else {
        return Some(false);
    };
    let length = u64::from(head.json).saturating_add(head.binary);
    if !matches!(head.kind, Kind::Results | Kind::Outputs | Kind::Failed) || length > LONGEST {
        return Some(false);
    }
    if (rest.len() as u64) < length {
        return None;
    }
    let json = &rest[..head.json as usize];
    let is_in = |name: &[u8]| json.windows(name.len()).any(|text| text == name);
    Some(!ELSEWHERE.into_iter().any(is_in))
}

/// Maps an I/O error: timeouts and interruptions are ignored, all other errors are failures.
fn wait_or_fail(error: io::Error) -> Result<(), Broken> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => Err(Broken::Ended),
        _ => Err(Broken::System(error)),
    }
}

/// Parses the JSON of a frame.
pub(crate) fn read_json<'de, T: Deserialize<'de>>(json: &'de [u8]) -> Result<T, Broken> {
    serde_json::from_slice(json).map_err(|error| Broken::wrong(format!("JSON that cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use oip_service::{Call, Outcome};

    use super::*;

    #[test]
    fn frames_come_as_they_were_sent_and_tensors_are_aligned() {
        let (one, other) = UnixStream::pair().unwrap();
        let [one, other] = [one, other].map(|stream| Connection::new(stream, None).unwrap());
        let parts = [
            Bytes::from_static(b"abc"),
            Bytes::new(),
            Bytes::from(vec![7; 100]),
        ];
        one.send(Kind::Infer, 9, b"{}", &parts, &mut || true).unwrap();
        let head = other.head(&mut || true).unwrap();
        assert_eq!(
            (head.kind, head.number, head.json, head.binary),
            (Kind::Infer, 9, 16, 103)
        );
        let body = other.bytes(16 + 103, &mut || true).unwrap();
        assert_eq!(body[..16].trim_ascii_end(), b"{}");
        assert_eq!(body[16..], [b"abc".as_slice(), &[7; 100]].concat());
        drop(one);
        assert!(matches!(other.head(&mut || true), Err(Broken::Ended)));
    }

    #[test]
    fn heads_that_are_none() {
        let mut head = [0; HEAD];
        assert!(matches!(Head::read(&head), Err(Broken::Wrong(_))));
        head[0] = 3;
        assert!(Head::read(&head).is_ok());
        head[7] = 0xff;
        assert!(matches!(Head::read(&head), Err(Broken::Wrong(_))));
    }

    #[test]
    fn whoever_waits_can_give_up_whatever_comes() {
        let (one, other) = UnixStream::pair().unwrap();
        let connection = Connection::new(one, Some(Duration::from_millis(1))).unwrap();
        let mut left = 3;
        let mut go_on = || {
            left -= 1;
            left > 0
        };
        assert!(matches!(connection.head(&mut go_on), Err(Broken::GivenUp)));
        (&other).write_all(&[3]).unwrap();
        assert!(matches!(connection.head(&mut || false), Err(Broken::GivenUp)));
        // The reader has ended, so sending fails too.
        let parts = [Bytes::from(vec![0; 8 << 20])];
        let sent = connection.send(Kind::Load, 0, b"{}", &parts, &mut || false);
        assert!(matches!(sent, Err(Broken::GivenUp)));
    }

    /// A model with this description that runs nothing.
    struct Described(About);

    impl Model for Described {
        fn metadata(&self) -> &ModelMetadata {
            &self.0.metadata
        }

        fn run(&self, _: Call<'_>) -> Result<Outcome, ServiceError> {
            Ok(Outcome::Streamed)
        }

        fn capabilities(&self) -> Capabilities {
            self.0.capabilities.clone()
        }
    }

    #[test]
    fn metadata_survives_with_what_the_protocol_has_no_form_for() {
        let metadata = ModelMetadata::new(
            "m",
            "test_m",
            vec![
                TensorMetadata::new("x", DataType::FP32, &[-1, 64]).optional(),
                TensorMetadata::with_shape(
                    "y",
                    DataType::BYTES,
                    ShapePattern::with_any_leading(vec![Some(3)]),
                ),
            ],
            vec![TensorMetadata::new("z", DataType::BF16, &[])],
        );
        let model = Described(About {
            metadata,
            capabilities: Capabilities::default().with(|capabilities| {
                capabilities.max_batch_size = Some(7);
                capabilities.placement =
                    Some(Placement::new(["CUDAExecutionProvider", "CPUExecutionProvider"]).on_gpus([1]));
                capabilities.runtime = Some("built-in".to_owned());
                let rows = IndependentRows::default().with_shared_input("y");
                capabilities.row_independence =
                    RowIndependence::Proven(rows.with_equal_dims([("x", 1), ("y", 0)]));
                capabilities.elsewhere = cfg!(target_os = "linux");
            }),
        });
        let json = oip_types::rest::json_body(&Loaded::of(&model));
        let read: Loaded = read_json(&json).unwrap();
        assert_eq!(read.into_about("m").unwrap(), model.0);
        let without = br#"{"platform":"","inputs":[],"outputs":[],"rows":{"unproven":"so"}}"#;
        let rows = |json: &[u8]| {
            let about = read_json::<Loaded>(json).unwrap().into_about("m").unwrap();
            about.capabilities.row_independence
        };
        assert_eq!(rows(without), RowIndependence::Unproven("so".to_owned()));
        let silent = br#"{"platform":"","inputs":[],"outputs":[]}"#;
        assert_eq!(rows(silent), RowIndependence::default());
        let unknown = br#"{"platform":"","inputs":[{"name":"x","datatype":"FP8","dims":[]}],"outputs":[]}"#;
        assert!(read_json::<Loaded>(unknown).unwrap().into_about("m").is_err());
    }

    #[test]
    fn errors_keep_their_codes() {
        for code in ErrorCode::ALL {
            let failed = Failed::new(&ServiceError::new(code, "x"));
            assert_eq!(failed.into_error().code(), code);
        }
    }

    #[test]
    fn details_are_bounded() {
        let long = "ü".repeat(MAX_DETAILS);
        let json = serde_json::json!({"status": 500, "message": "m", "details": long}).to_string();
        let mut failed: Failed = read_json(json.as_bytes()).unwrap();
        assert_eq!(failed.take_details().unwrap().len(), MAX_DETAILS);
        assert!(failed.take_details().is_none());
        let mut without: Failed = read_json(br#"{"status":400,"message":"m"}"#).unwrap();
        assert!(without.take_details().is_none());
    }
}
