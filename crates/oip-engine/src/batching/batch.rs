//! Concatenates requests along axis 0, and splits their outputs again.

use oip_model::{IndependentRows, RequestPart};
use oip_types::{
    InferInput, InferOutput, InferRequest, ModelMetadata, ParameterValue, Parameters, RequestedOutput,
    ServiceError, TensorValue,
};
use tensor_core::QuotedName;

use crate::batching::scheduler::{Ask, BatchPolicy, JoinKey};

/// Describes a request for the scheduler. The caller has checked `request` against the model's metadata, and
/// fills in the priority, timeout and deadline afterwards.
///
/// # Errors
/// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) if the request has more rows than a configured
/// `max_batch_size`, or if its inputs have different numbers of rows.
pub(crate) fn ask(
    policy: &BatchPolicy,
    metadata: &ModelMetadata,
    request: &InferRequest,
) -> Result<Ask, ServiceError> {
    let bytes = request
        .inputs
        .iter()
        .map(|input| input.value.raw().len() as u64)
        .sum();
    let alone = Ask {
        rows: 1,
        bytes,
        ..Ask::default()
    };
    let independent = policy.independent_rows();
    let rows = match rows(policy.max_rows(), &independent.shared_inputs, request) {
        Ok(Some(rows)) => rows,
        Ok(None) => {
            let measured = (policy.max_rows() == 0).then(|| measured_rows(metadata, request));
            return Ok(Ask {
                measured_rows: measured.flatten(),
                ..alone
            });
        }
        // Without a configuration, the number of rows is not limited.
        Err(_) if !policy.is_configured() => {
            let rows = leading_rows(&independent.shared_inputs, request).unwrap_or(1);
            return Ok(Ask { rows, ..alone });
        }
        Err(error) => return Err(error),
    };
    // A request without rows runs alone, so that the model itself can accept or refuse it.
    let may_join = rows > 0 && policy.joins() && has_equal_dims(independent, request);
    let key = may_join.then(|| join_key(metadata, independent, request));
    Ok(Ask {
        rows,
        key: key.flatten(),
        measured_rows: (rows > 0).then_some(rows),
        ..alone
    })
}

/// Returns the number of rows of a request, for a model with batches of up to `max_rows` rows; `None` if
/// `max_rows` is 0 or no input has rows. Inputs listed in `shared` have no rows.
///
/// # Errors
/// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) if the request has more rows than `max_rows`,
/// or if its inputs have different numbers of rows.
pub(crate) fn rows(
    max_rows: u64,
    shared: &[String],
    request: &InferRequest,
) -> Result<Option<u64>, ServiceError> {
    let mut inputs = inputs_with_rows(shared, request);
    let Some(first) = inputs.next().filter(|_| max_rows > 0) else {
        return Ok(None);
    };
    let Some(rows) = first.value.rows() else {
        return Ok(None);
    };
    match inputs.find(|input| input.value.rows() != Some(rows)) {
        Some(other) => Err(ServiceError::invalid(format!(
            "inputs {} and {} must have the same number of rows, found shapes {} and {}",
            QuotedName(&first.name),
            QuotedName(&other.name),
            first.value.shape(),
            other.value.shape(),
        ))),
        None if rows > max_rows => Err(ServiceError::invalid(format!(
            "expected a batch of at most {max_rows} rows, found {rows}"
        ))),
        None => Ok(Some(rows)),
    }
}

/// Returns the common first dimension of all inputs whose first dimension is free in `metadata`; `None` if
/// these dimensions differ or are 0. Returns 1 if no input has a free first dimension. The returned number
/// determines the run time if all other dimensions are fixed.
pub(crate) fn measured_rows(metadata: &ModelMetadata, request: &InferRequest) -> Option<u64> {
    let free = metadata
        .inputs
        .iter()
        .filter(|expected| expected.shape.dims().first() == Some(&None));
    let mut found = free.filter_map(|expected| request.input(&expected.name)?.rows());
    let rows = found.next().unwrap_or(1);
    (rows > 0 && found.all(|other| other == rows)).then_some(rows)
}

fn leading_rows(shared: &[String], request: &InferRequest) -> Option<u64> {
    inputs_with_rows(shared, request).next()?.value.rows()
}

fn inputs_with_rows<'r>(
    shared: &'r [String],
    request: &'r InferRequest,
) -> impl Iterator<Item = &'r InferInput> {
    request
        .inputs
        .iter()
        .filter(|input| !shared.contains(&input.name))
}

/// Returns whether dimensions with the same symbolic name are equal in a request.
fn has_equal_dims(independent: &IndependentRows, request: &InferRequest) -> bool {
    independent.equal_dims.iter().all(|group| {
        let dim = |(name, axis): &(String, usize)| request.input(name)?.shape().dims().get(*axis).copied();
        let mut dims = group.iter().filter_map(dim);
        let first = dims.next();
        dims.all(|dim| Some(dim) == first)
    })
}

/// Builds the key that must be equal for two requests to be batched together: which optional inputs are
/// present, whether the request names outputs (if some outputs are optional), all free dimensions except the
/// first, the values of `shared` inputs, and all parameters visible to the model. Returns `None` if the
/// shared values are so large that comparing them costs more than batching saves.
///
/// The key covers everything in which requests that match the metadata can differ. For most models the key is
/// empty and needs no allocation.
fn join_key(
    metadata: &ModelMetadata,
    independent: &IndependentRows,
    request: &InferRequest,
) -> Option<JoinKey> {
    /// Maximum size in bytes of a key with shared inputs.
    const MAX_SHARED: usize = 64 << 10;
    let mut key = Vec::new();
    for expected in &metadata.inputs {
        let value = request.input(&expected.name);
        if expected.optional {
            key.push(u8::from(value.is_some()));
        }
        let dims = value.map_or(&[][..], |value| value.shape().dims());
        // Models may interpret a dimension of 0 as a size to be inferred.
        if dims.iter().any(|dim| *dim == 0 || *dim > independent.max_dim) {
            return None;
        }
        let has_any_rank = expected.shape.has_any_leading();
        if has_any_rank {
            key.push(dims.len() as u8); // at most `Shape::MAX_RANK`
        }
        let is_shared = independent.shared_inputs.contains(&expected.name);
        let patterns = expected.shape.dims();
        for (index, dim) in dims.iter().enumerate().skip(usize::from(!is_shared)) {
            if has_any_rank || patterns.get(index).is_none_or(Option::is_none) {
                key.extend_from_slice(&dim.to_le_bytes());
            }
        }
        if let Some(value) = value.filter(|_| is_shared) {
            let bytes = value.raw();
            if key.len().saturating_add(bytes.len()) > MAX_SHARED {
                return None;
            }
            key.extend_from_slice(&bytes.len().to_le_bytes());
            key.extend_from_slice(bytes);
        }
    }
    // Whether a request names outputs can change which optional outputs the model returns.
    if metadata.outputs.iter().any(|output| output.optional) {
        key.push(u8::from(request.outputs.is_empty()));
    }
    push_parameters(&mut key, b'r', "", &request.parameters);
    for input in &request.inputs {
        push_parameters(&mut key, b'i', &input.name, &input.parameters);
    }
    for output in &request.outputs {
        push_parameters(&mut key, b'o', &output.name, &output.parameters);
    }
    Some(JoinKey(key))
}

/// Appends an injective encoding of `parameters` and their owner to `key`.
fn push_parameters(key: &mut Vec<u8>, kind: u8, owner: &str, parameters: &Parameters) {
    if parameters.is_empty() {
        return;
    }
    let text = |key: &mut Vec<u8>, text: &str| {
        key.extend_from_slice(&text.len().to_le_bytes());
        key.extend_from_slice(text.as_bytes());
    };
    key.push(kind);
    text(key, owner);
    key.extend_from_slice(&parameters.len().to_le_bytes());
    for (name, value) in parameters {
        text(key, name);
        match value {
            ParameterValue::Bool(value) => key.extend_from_slice(&[0, u8::from(*value)]),
            ParameterValue::Int64(value) => {
                key.push(1);
                key.extend_from_slice(&value.to_le_bytes());
            }
            ParameterValue::Uint64(value) => {
                key.push(2);
                key.extend_from_slice(&value.to_le_bytes());
            }
            ParameterValue::Double(value) => {
                key.push(3);
                key.extend_from_slice(&value.to_bits().to_le_bytes());
            }
            value => {
                key.push(4);
                text(key, &value.to_string());
            }
        }
    }
}

/// Concatenates requests into one. Inputs are copied once. The `shared` inputs of all requests are equal, so
/// those of the first request are used. The combined request names the union of the requested outputs.
///
/// # Errors
/// The errors of [`TensorValue::join_rows`].
pub(crate) fn join(requests: &[InferRequest], shared: &[String]) -> Result<InferRequest, ServiceError> {
    let [first, ..] = requests else {
        return Err(ServiceError::internal("a batch without requests"));
    };
    let mut joined = InferRequest::new(first.model());
    joined.parameters.clone_from(&first.parameters);
    joined.outputs = wanted(requests);
    for InferInput {
        name,
        parameters,
        value,
        ..
    } in &first.inputs
    {
        let value = if shared.contains(name) {
            value.clone()
        } else {
            let parts = requests.iter().filter_map(|request| request.input(name));
            TensorValue::join_rows(&parts.collect::<Vec<_>>())?
        };
        joined.inputs.push(InferInput {
            name: name.clone(),
            value,
            parameters: parameters.clone(),
        });
    }
    Ok(joined)
}

/// Describes the requests of a batch to the model, each with its number of rows.
pub(crate) fn parts(requests: &[InferRequest], rows: &[u64]) -> Vec<RequestPart> {
    let parts = requests.iter().zip(rows).map(|(request, rows)| RequestPart {
        id: request.id.clone(),
        rows: *rows,
        outputs: request.outputs.iter().map(|output| output.name.clone()).collect(),
    });
    parts.collect()
}

/// Returns the union of the requested outputs; empty (all outputs) if any request names none.
fn wanted(requests: &[InferRequest]) -> Vec<RequestedOutput> {
    let mut wanted: Vec<RequestedOutput> = Vec::new();
    for request in requests {
        if request.outputs.is_empty() {
            return Vec::new();
        }
        for output in &request.outputs {
            if !wanted.iter().any(|known| known.name == output.name) {
                wanted.push(output.clone());
            }
        }
    }
    wanted
}

/// Checks that outputs have as many rows as the batch.
///
/// # Errors
/// [`Internal`](oip_types::ErrorCode::Internal), naming the output.
pub(crate) fn check_rows(outputs: &[InferOutput], rows: u64) -> Result<(), ServiceError> {
    match outputs.iter().find(|output| output.value.rows() != Some(rows)) {
        None => Ok(()),
        Some(output) => Err(ServiceError::internal(format!(
            "the model returned a wrong output {}: expected {rows} rows as in its inputs, found shape {}",
            QuotedName(&output.name),
            output.value.shape(),
        ))),
    }
}

/// Splits checked outputs: each request gets its own rows of the outputs that it requested, in the order of
/// the request.
///
/// # Errors
/// [`Internal`](oip_types::ErrorCode::Internal) if the outputs do not have as many rows as the batch.
pub(crate) fn split(
    outputs: Vec<InferOutput>,
    requests: &[InferRequest],
    rows: &[u64],
) -> Result<Vec<Vec<InferOutput>>, ServiceError> {
    check_rows(&outputs, rows.iter().sum())?;
    let mut answers: Vec<Vec<InferOutput>> = requests
        .iter()
        .map(|_| Vec::with_capacity(outputs.len()))
        .collect();
    for output in outputs {
        let pieces = output.value.split_rows(rows);
        let pieces = pieces.map_err(|error| ServiceError::internal(error.to_string()))?;
        for ((request, answer), value) in requests.iter().zip(&mut answers).zip(pieces) {
            let is_wanted = |wanted: &RequestedOutput| wanted.name == output.name;
            if request.outputs.is_empty() || request.outputs.iter().any(is_wanted) {
                answer.push(InferOutput {
                    value,
                    name: output.name.clone(),
                    parameters: output.parameters.clone(),
                    shared_memory: None,
                });
            }
        }
    }
    for (request, answer) in requests.iter().zip(&mut answers) {
        let wanted = |output: &InferOutput| {
            request
                .outputs
                .iter()
                .position(|wanted| wanted.name == output.name)
        };
        // A stable sort keeps the model's order for a request that names no outputs.
        answer.sort_by_key(wanted);
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use oip_types::{BytesTensor, DataType, ErrorCode, ModelConfig, ModelRef, TensorMetadata};
    use tensor_core::{Shape, Tensor};

    use super::*;

    fn metadata() -> ModelMetadata {
        ModelMetadata::new(
            "m",
            "test_test",
            vec![
                TensorMetadata::new("x", DataType::UINT8, &[-1, -1]),
                TensorMetadata::new("s", DataType::BYTES, &[-1, 2]),
            ],
            vec![
                TensorMetadata::new("y", DataType::UINT8, &[-1]),
                TensorMetadata::new("z", DataType::BYTES, &[-1, 2]),
            ],
        )
    }

    fn matrix(rows: u64, columns: u64) -> Tensor {
        let shape = Shape::new(&[rows, columns]).unwrap();
        Tensor::from_vec(shape, (0..rows * columns).map(|value| value as u8).collect()).unwrap()
    }

    fn strings(rows: u64) -> BytesTensor {
        let shape = Shape::new(&[rows, 2]).unwrap();
        let elements = (0..rows * 2).map(|index| "ab".repeat(index as usize));
        BytesTensor::from_elements(shape, elements).unwrap()
    }

    fn request(rows: u64, columns: u64) -> InferRequest {
        InferRequest::new(ModelRef::new("m", None).unwrap())
            .with_input("x", matrix(rows, columns))
            .with_input("s", strings(rows))
    }

    fn configured(max_batch_size: u32) -> BatchPolicy {
        BatchPolicy::from_config(&ModelConfig {
            max_batch_size,
            ..ModelConfig::default()
        })
        .unwrap()
    }

    /// Requests with more rows than `max_batch_size`, or whose inputs have different numbers of rows, are
    /// refused.
    #[test]
    fn batches_that_cannot_be_are_refused_by_name() {
        let message = |rows, other| {
            let request = InferRequest::new(ModelRef::new("m", None).unwrap())
                .with_input("x", matrix(rows, 3))
                .with_input("s", strings(other));
            let error = ask(&configured(4), &metadata(), &request).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument);
            error.to_string()
        };
        assert_eq!(message(5, 5), "expected a batch of at most 4 rows, found 5");
        assert_eq!(
            message(2, 3),
            "inputs 'x' and 's' must have the same number of rows, found shapes [2, 3] and [3, 2]"
        );
    }

    #[test]
    fn what_nobody_configured_refuses_nothing() {
        let policy = BatchPolicy::derived(&metadata(), &IndependentRows::default(), 64);
        let is_alone = |request: &InferRequest| ask(&policy, &metadata(), request).unwrap().key.is_none();
        assert!(!is_alone(&request(64, 3)));
        assert!(is_alone(&request(65, 3)));
        assert!(is_alone(&request(0, 3)));
        let differing = InferRequest::new(ModelRef::new("m", None).unwrap())
            .with_input("x", matrix(2, 3))
            .with_input("s", strings(3));
        assert!(is_alone(&differing));
    }

    #[test]
    fn without_joining_rows_are_checked_all_the_same() {
        let policy = configured(4).without_joining();
        let asked = ask(&policy, &metadata(), &request(3, 3)).unwrap();
        assert_eq!((asked.rows, asked.key), (3, None));
        assert!(ask(&policy, &metadata(), &request(5, 3)).is_err());
    }

    #[test]
    fn optional_outputs_are_given_by_whether_outputs_are_named() {
        let mut optional = metadata();
        optional.outputs[1] = optional.outputs[1].clone().optional();
        let key = |request: &InferRequest| ask(&configured(4), &optional, request).unwrap().key;
        let unnamed = request(1, 3);
        let [first, other] = [0, 1].map(|at| request(1, 3).with_output(optional.outputs[at].name.clone()));
        assert_ne!(key(&unnamed), key(&first));
        assert_eq!(key(&first), key(&other));
        assert!(BatchPolicy::derived(&optional, &IndependentRows::default(), 64).max_rows() > 0);
    }

    #[test]
    fn only_requests_that_the_model_cannot_tell_apart_are_joined() {
        let key = |request: &InferRequest| ask(&configured(4), &metadata(), request).unwrap().key.unwrap();
        let base = request(1, 3);
        assert_eq!(key(&base), key(&request(2, 3)), "rows do not matter");
        assert_ne!(key(&base), key(&request(1, 4)));
        let mut reordered = base.clone();
        reordered.inputs.reverse();
        assert_eq!(key(&base), key(&reordered), "nor does the order of inputs");

        let mut optional = metadata();
        optional.inputs[1] = optional.inputs[1].clone().optional();
        let key_of = |request: &InferRequest| join_key(&optional, &IndependentRows::default(), request);
        let mut without = base.clone();
        without.inputs.truncate(1);
        assert_ne!(
            key_of(&base),
            key_of(&without),
            "an input would be lost, or missing"
        );

        let with = |value: ParameterValue| {
            let mut request = base.clone();
            request.parameters.insert("a".into(), value);
            request
        };
        let mut of_input = base.clone();
        let parameter = ("a".to_owned(), ParameterValue::Int64(1));
        let name = of_input.inputs[0].name.clone();
        of_input.inputs[0].parameters.extend([parameter.clone()]);
        let mut of_output = base.clone();
        of_output.outputs = vec![RequestedOutput {
            name,
            parameters: [parameter].into(),
        }];
        assert_ne!(
            key(&of_input),
            key(&of_output),
            "an output may have an input's name"
        );
        let values = [
            ParameterValue::Bool(true),
            ParameterValue::Int64(1),
            ParameterValue::Int64(2),
            ParameterValue::Uint64(1),
            ParameterValue::Double(1.0),
            ParameterValue::Double(f64::NAN),
            ParameterValue::String("1".into()),
        ];
        let keys: Vec<JoinKey> = values.iter().map(|value| key(&with(value.clone()))).collect();
        for (index, this) in keys.iter().enumerate() {
            assert_ne!(*this, key(&base));
            assert!(
                keys[index + 1..].iter().all(|that| that != this),
                "{:?}",
                values[index]
            );
            assert_eq!(*this, key(&with(values[index].clone())));
        }
        // A parameter of an input differs from the same parameter of the request.
        let mut of_input = base.clone();
        of_input.inputs[0]
            .parameters
            .insert("a".into(), ParameterValue::Int64(1));
        assert_ne!(key(&of_input), key(&with(ParameterValue::Int64(1))));
    }

    /// A model whose input `x` has rows, while its inputs `threshold` and `table` have none.
    fn thresholded() -> (ModelMetadata, IndependentRows) {
        let tensor = |name: &str, dims: &[i64]| TensorMetadata::new(name, DataType::UINT8, dims);
        let inputs = vec![
            tensor("threshold", &[]),
            tensor("x", &[-1, -1]),
            tensor("table", &[-1]),
        ];
        let metadata = ModelMetadata::new("m", "test_test", inputs, vec![tensor("y", &[-1])]);
        let rows = IndependentRows::default()
            .with_shared_input("threshold")
            .with_shared_input("table")
            .with_equal_dims([("x", 1), ("table", 0)]);
        (metadata, rows)
    }

    fn thresholded_request(threshold: u8, rows: u64, table: Vec<u8>) -> InferRequest {
        let columns = table.len() as u64;
        InferRequest::new(ModelRef::new("m", None).unwrap())
            .with_input("threshold", Tensor::scalar(threshold))
            .with_input("x", matrix(rows, columns))
            .with_input("table", Tensor::from_vec(Shape::vector(columns), table).unwrap())
    }

    #[test]
    fn inputs_without_rows_are_joined_only_where_they_are_equal_and_are_given_once() {
        let (metadata, rows) = thresholded();
        let policy = BatchPolicy::derived(&metadata, &rows, 64);
        let asked = |request: &InferRequest| ask(&policy, &metadata, request).unwrap();
        let base = thresholded_request(1, 2, vec![5, 6]);
        let asked_base = asked(&base);
        assert_eq!((asked_base.rows, asked_base.measured_rows), (2, Some(2)));
        let same = thresholded_request(1, 3, vec![5, 6]);
        assert_eq!(asked_base.key, asked(&same).key);
        for other in [
            thresholded_request(2, 2, vec![5, 6]),
            thresholded_request(1, 2, vec![5, 7]),
            thresholded_request(1, 2, vec![5, 6, 7]),
        ] {
            let other = asked(&other).key;
            assert!(other.is_some() && other != asked_base.key);
        }
        // Comparing values this large costs more than batching saves.
        assert_eq!(asked(&thresholded_request(1, 1, vec![0; 65 << 10])).key, None);

        let joined = join(&[base, same], &rows.shared_inputs).unwrap();
        assert_eq!(joined.input("x").unwrap().shape().dims(), [5, 2]);
        assert_eq!(joined.input("table").unwrap().shape().dims(), [2]);
        assert_eq!(joined.input("threshold").unwrap().raw()[..], [1]);
    }

    #[test]
    fn a_request_runs_alone_in_which_dimensions_of_one_name_differ() {
        let (metadata, rows) = thresholded();
        let policy = BatchPolicy::derived(&metadata, &rows, 64);
        let mut request = thresholded_request(1, 2, vec![5, 6]);
        assert!(ask(&policy, &metadata, &request).unwrap().key.is_some());
        request.inputs[2].value = Tensor::from_vec(Shape::vector(1), vec![5u8]).unwrap().into();
        let asked = ask(&policy, &metadata, &request).unwrap();
        assert_eq!((asked.rows, asked.key), (2, None));
    }

    #[test]
    fn requests_that_are_not_joined_are_measured_by_the_first_dimension_they_have_in_common() {
        let measured = |inputs: &[&[i64]], dims: &[[u64; 2]]| {
            let inputs = inputs.iter().enumerate();
            let tensor = |(index, dims): (usize, &&[i64])| {
                TensorMetadata::new(format!("x{index}"), DataType::UINT8, dims)
            };
            let metadata = ModelMetadata::new("m", "p", inputs.map(tensor).collect(), Vec::new());
            let mut request = InferRequest::new(ModelRef::new("m", None).unwrap());
            for (index, [rows, columns]) in dims.iter().enumerate() {
                request = request.with_input(format!("x{index}"), matrix(*rows, *columns));
            }
            let asked = ask(&BatchPolicy::one_by_one(), &metadata, &request).unwrap();
            assert_eq!((asked.rows, &asked.key), (1, &None));
            asked.measured_rows
        };
        assert_eq!(measured(&[&[-1, 2], &[-1, 3]], &[[5, 2], [5, 3]]), Some(5));
        assert_eq!(measured(&[&[-1, 2], &[4, 3]], &[[5, 2], [4, 3]]), Some(5));
        assert_eq!(measured(&[&[4, 2]], &[[4, 2]]), Some(1));
        assert_eq!(measured(&[&[-1, 2], &[-1, 3]], &[[5, 2], [4, 3]]), None);
        assert_eq!(measured(&[&[-1, 2]], &[[0, 2]]), None);
    }

    #[test]
    fn requests_get_their_own_rows_of_what_they_want() {
        let mut reordered = request(1, 3);
        reordered.inputs.reverse();
        let requests = [
            request(2, 3).with_output("z"),
            reordered.with_output("z").with_output("y"),
            request(3, 3).with_output("y"),
        ];
        let joined = join(&requests, &[]).unwrap();
        assert_eq!(joined.input("x").unwrap().shape().dims(), [6, 3]);
        assert_eq!(joined.input("s").unwrap().rows(), Some(6));
        let parts = parts(&requests, &[2, 1, 3]);
        let parts = parts.iter().map(|part| (part.rows, part.outputs.join(" ")));
        let expected = [(2, "z"), (1, "z y"), (3, "y")].map(|(rows, outputs)| (rows, outputs.to_owned()));
        assert_eq!(parts.collect::<Vec<_>>(), expected);
        let names: Vec<&str> = joined.outputs.iter().map(|output| output.name.as_str()).collect();
        assert_eq!(names, ["z", "y"]);

        let outputs = || {
            vec![
                InferOutput::new("y", matrix(6, 1).reshape(Shape::vector(6)).unwrap()),
                InferOutput::new("z", strings(6)),
            ]
        };
        let answers = split(outputs(), &requests, &[2, 1, 3]).unwrap();
        let show = |answer: &Vec<InferOutput>| -> Vec<String> {
            let show = |output: &InferOutput| format!("{}{}", output.name, output.value.shape());
            answer.iter().map(show).collect()
        };
        assert_eq!(
            answers.iter().map(show).collect::<Vec<_>>(),
            [vec!["z[2, 2]"], vec!["z[1, 2]", "y[1]"], vec!["y[3]"]]
        );
        assert_eq!(answers[2][0].value.raw()[..], [3, 4, 5]);
        let words: Vec<&[u8]> = answers[1][0].value.as_bytes().unwrap().iter().collect();
        assert_eq!(words, ["ab".repeat(4).as_bytes(), "ab".repeat(5).as_bytes()]);
        assert!(wanted(&[request(1, 3), requests[0].clone()]).is_empty());

        let error = split(outputs(), &requests, &[2, 1, 4]).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert_eq!(
            error.to_string(),
            "the model returned a wrong output 'y': expected 7 rows as in its inputs, found shape [6]"
        );
    }
}
