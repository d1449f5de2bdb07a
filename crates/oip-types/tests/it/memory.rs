//! Tests that decoding and encoding reserve memory before they allocate it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use oip_types::{
    BytesTensor, DataType, ErrorCode, InferOutput, InferResponse, Memory, ModelMetadata, ModelRef,
    NoSharedMemory, RequestLimits, Reservation, ServiceError, TensorMetadata, TensorValue,
    rest::{self, BinaryOutputs, NonFinite},
};
use tensor_core::{Shape, Tensor};

fn response(outputs: Vec<InferOutput>) -> InferResponse {
    InferResponse::new("m", outputs)
}

/// A memory budget of fixed size, and the bytes in use.
struct FixedBudget {
    limit: usize,
    used: Arc<AtomicUsize>,
    most: AtomicUsize,
}

struct Part(Arc<AtomicUsize>, usize, usize);

impl Memory for FixedBudget {
    fn reserve(&self, bytes: usize) -> Result<Box<dyn Reservation>, ServiceError> {
        let mut part = Part(self.used.clone(), 0, self.limit);
        part.grow(bytes)?;
        self.most
            .fetch_max(self.used.load(Ordering::SeqCst), Ordering::SeqCst);
        Ok(Box::new(part))
    }
}

impl Reservation for Part {
    fn grow(&mut self, bytes: usize) -> Result<(), ServiceError> {
        if self.0.load(Ordering::SeqCst) + bytes > self.2 {
            return Err(ServiceError::new(ErrorCode::Overloaded, "no room"));
        }
        self.0.fetch_add(bytes, Ordering::SeqCst);
        self.1 += bytes;
        Ok(())
    }

    fn shrink_to(&mut self, bytes: usize) {
        let less = self.1.saturating_sub(bytes);
        self.0.fetch_sub(less, Ordering::SeqCst);
        self.1 -= less;
    }

    fn own(self: Box<Self>, buffer: Bytes) -> Bytes {
        assert!(self.1 >= buffer.len(), "{} bytes for {}", self.1, buffer.len());
        Bytes::from_owner(GrantedBuffer(buffer, self))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::SeqCst);
    }
}

struct GrantedBuffer(
    Bytes,
    #[expect(dead_code, reason = "dropped with the buffer")] Box<Part>,
);

impl AsRef<[u8]> for GrantedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn bounded(limit: usize) -> FixedBudget {
    FixedBudget {
        limit,
        used: Arc::default(),
        most: AtomicUsize::new(0),
    }
}

/// Chunked encoding gives the same bytes as encoding at once, for any content.
#[test]
fn answers_in_pieces_have_the_same_bytes() {
    let text = "a\"\n\u{1}é漢".repeat(40_000);
    let texts = BytesTensor::from_elements(Shape::vector(3), ["", &text, "b"]).unwrap();
    let many = BytesTensor::from_elements(Shape::vector(100_000), vec!["x"; 100_000]).unwrap();
    let bools = Tensor::from_vec(Shape::vector(300_000), vec![true; 300_000]).unwrap();
    let floats: Vec<f64> = (0..60_000).map(|number| f64::from(number) / 7.0).collect();
    let floats = Tensor::from_vec(Shape::vector(60_000), floats).unwrap();
    // The data is not aligned to the element size.
    let unaligned = [&[0][..], floats.bytes()].concat();
    let unaligned = Tensor::new(floats.spec().clone(), Bytes::from(unaligned).slice(1..)).unwrap();
    let empty = Tensor::from_vec(Shape::vector(0), Vec::<i8>::new()).unwrap();
    let outputs: Vec<TensorValue> = vec![
        texts.into(),
        empty.into(),
        bools.into(),
        many.into(),
        floats.into(),
        unaligned.into(),
        Tensor::scalar(7u8).into(),
    ];
    let outputs = outputs.into_iter().enumerate();
    let outputs: Vec<InferOutput> = outputs
        .map(|(index, value)| InferOutput::new(format!("y{index}"), value))
        .collect();
    for outputs in [vec![], outputs[6..].to_vec(), outputs] {
        let response = response(outputs);
        let binary = BinaryOutputs::all(false);
        let whole = rest::encode_response(&response, &binary, NonFinite::Null).unwrap();
        let memory = bounded(usize::MAX);
        let pieces =
            rest::encode_response_within(&response, &binary, NonFinite::Null, &memory, usize::MAX).unwrap();
        assert_eq!(pieces.len(), whole.len());
        assert!(pieces.json.iter().all(|piece| piece.len() <= 256 << 10));
        assert!(pieces.json.concat() == whole.json);
        let used = memory.used.load(Ordering::SeqCst);
        assert!(
            used >= pieces.len() && used <= pieces.len() * 5 / 4 + 4096,
            "{used}"
        );
        drop(pieces);
        assert_eq!(memory.used.load(Ordering::SeqCst), 0);
    }
}

/// Encoding reserves memory before it allocates, and fails beyond the size limit and beyond the memory
/// budget.
#[test]
fn printing_stops_at_the_limit_and_where_memory_ends() {
    let bools = Tensor::from_vec(Shape::vector(4 << 20), vec![false; 4 << 20]).unwrap();
    let response = response(vec![InferOutput::new("y", bools)]);
    let binary = BinaryOutputs::all(false);
    let print = |memory: &FixedBudget, limit| {
        let printed = rest::encode_response_within(&response, &binary, NonFinite::Null, memory, limit);
        let refused = printed.err().map(|error| error.code());
        assert_eq!(memory.used.load(Ordering::SeqCst), 0);
        refused
    };
    let memory = bounded(2 << 20);
    assert_eq!(print(&memory, usize::MAX), Some(ErrorCode::Overloaded));
    assert!(memory.most.load(Ordering::SeqCst) <= 2 << 20);
    let memory = bounded(usize::MAX);
    assert_eq!(print(&memory, 1 << 20), Some(ErrorCode::Internal));
    assert!(
        memory.most.load(Ordering::SeqCst) <= (1 << 20) + (512 << 10),
        "it went on"
    );
}

/// Decoding reserves memory before it allocates, and fails if the budget is too small.
#[test]
fn decoding_asks_before_it_allocates() {
    let model = ModelRef::new("m", None).unwrap();
    let numbers = format!("[{}]", vec!["1"; 100_000].join(","));
    let texts = format!("[{}]", vec!["\"\""; 100_000].join(","));
    for (datatype, data, takes) in [("INT64", &numbers, 800_000), ("BYTES", &texts, 400_000)] {
        let body = format!(
            r#"{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[100000],"data":{data}}}]}}"#
        );
        let decode = |memory: &FixedBudget| {
            rest::decode_request_with(
                model,
                &Bytes::from(body.clone()),
                None,
                &RequestLimits::default(),
                &NoSharedMemory,
                memory,
            )
        };
        let memory = bounded(2 * takes);
        let decoded = decode(&memory).unwrap();
        assert_eq!(decoded.request.inputs[0].value.raw().len(), takes);
        let used = memory.used.load(Ordering::SeqCst);
        assert!(used >= takes && used <= takes * 9 / 8, "{used}");
        drop(decoded);
        assert_eq!(memory.used.load(Ordering::SeqCst), 0);
        let memory = bounded(takes - 1);
        assert_eq!(
            decode(&memory).unwrap_err().code(),
            ErrorCode::Overloaded,
            "{datatype}"
        );
        assert_eq!(memory.used.load(Ordering::SeqCst), 0);
    }
}

/// The positions of named rows can take more memory than the rows, so memory for the positions is reserved
/// too.
#[test]
fn the_places_of_rows_by_name_are_asked_for() {
    const ROWS: usize = 100_000;
    let rows = vec![r#"{"a":1}"#; ROWS].join(",");
    let body = Bytes::from(format!(r#"{{"instances":[{rows}]}}"#));
    let input = TensorMetadata::new("a", DataType::UINT8, &[-1]);
    let metadata = ModelMetadata::new("m", "test", vec![input], Vec::new());
    let model = ModelRef::new("m", None).unwrap();
    let decode = |memory: &FixedBudget| {
        rest::decode_v1_request(model, &metadata, &body, &RequestLimits::default(), memory)
            .map(|decoded| decoded.request)
    };
    let memory = bounded(usize::MAX);
    assert_eq!(decode(&memory).unwrap().inputs[0].value.raw().len(), ROWS);
    let places = ROWS * size_of::<usize>();
    let error = decode(&bounded(places)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Overloaded);
}

/// The shape follows from the first list on each level, and lists of other lengths are rejected.
#[test]
fn deep_lists_have_the_sizes_of_their_first_items() {
    let input = TensorMetadata::new("a", DataType::UINT8, &[-1, -1, -1]);
    let metadata = ModelMetadata::new("m", "test", vec![input], Vec::new());
    let model = ModelRef::new("m", None).unwrap();
    let shape = |instances: &str| {
        let body = Bytes::from(format!(r#"{{"instances":{instances}}}"#));
        let memory = bounded(usize::MAX);
        let decoded = rest::decode_v1_request(model, &metadata, &body, &RequestLimits::default(), &memory)?;
        Ok::<_, ServiceError>(decoded.request.inputs[0].value.shape().to_string())
    };
    assert_eq!(shape("[[[1,2]],[[3,4]],[[5,6]]]").unwrap(), "[3, 1, 2]");
    assert_eq!(shape("[[],[]]").unwrap(), "[2, 0]");
    assert_eq!(shape("[[[]],[[]]]").unwrap(), "[2, 1, 0]");
    assert!(shape("[[1,2],[3]]").is_err());
}
