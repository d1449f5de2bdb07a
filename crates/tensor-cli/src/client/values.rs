//! Parses input values: JSON on the command line or in a file, and CSV.

use std::{fs, path::Path};

use fmt_core::Error;
use oip_types::{
    DataType, InferRequest, ModelRef, RequestLimits, TensorMetadata, TensorValue, rest::decode_request,
};
use serde_json::{Value, json};
use tensor_core::{DType, Shape};

use crate::{
    client::mismatch,
    failure::{About, Outcome},
};

/// Parses `[[5.1, 3.5]]`: nested lists of numbers, strings or booleans. `what` names the source of the text
/// in errors.
pub(super) fn literal(
    what: &str,
    text: &str,
    name: &str,
    expected: Option<&TensorMetadata>,
) -> Outcome<TensorValue> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| mismatch(format!("input '{name}': {what} is not JSON: {error}")))?;
    let dims = dims(&value);
    let datatype = expected.map_or_else(|| guess(&value), |expected| expected.datatype);
    // Parses the original text, so that no digit is lost.
    tensor(what, name, &dims, datatype, text)
}

/// Reads a JSON file: a list as in [`literal`], or a whole request, from which the input `name` is taken.
pub(super) fn json_file(path: &Path, name: &str, expected: Option<&TensorMetadata>) -> Outcome<TensorValue> {
    let text = read(path)?;
    let what = path.display().to_string();
    if !text.trim_start().starts_with('{') {
        return literal(&what, &text, name, expected);
    }
    let request = request(&what, name, &text)?;
    let found = request.inputs.into_iter().find(|input| input.name == name);
    found
        .map(|input| input.value)
        .ok_or_else(|| mismatch(format!("{what} holds a request without the input '{name}'")))
}

/// Reads a CSV file: rows of numbers or strings, with or without a header line.
pub(super) fn csv_file(path: &Path, name: &str, expected: Option<&TensorMetadata>) -> Outcome<TensorValue> {
    let text = read(path)?;
    let what = path.display().to_string();
    let wrong = |message: String| mismatch(format!("input '{name}': {what}: {message}"));
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let mut rows = Vec::new();
    for row in reader.records() {
        rows.push(row.map_err(|error| wrong(error.to_string()))?);
    }
    let is_number = |field: &str| field.is_empty() || field.parse::<f64>().is_ok();
    let is_names = |row: &csv::StringRecord| !row.iter().any(|field| is_number(field) || is_bool(field));
    let datatype = match expected {
        Some(expected) => expected.datatype,
        None if rows.iter().skip(1).flatten().all(is_number) => DataType::FP32,
        None => DataType::Bytes,
    };
    // String columns cannot have a header line, because it is indistinguishable from data.
    if datatype != DataType::Bytes && rows.first().is_some_and(is_names) {
        rows.remove(0);
    }
    let columns = rows.first().map_or(0, csv::StringRecord::len);
    let mut data = String::from("[");
    for (line, row) in rows.iter().enumerate() {
        for (column, field) in row.iter().enumerate() {
            if data.len() > 1 {
                data.push(',');
            }
            data += &element(datatype, field).ok_or_else(|| {
                let (line, column) = (line + 1, column + 1);
                wrong(format!(
                    "row {line}, column {column}: expected {datatype}, found '{}'",
                    crate::table::text(field)
                ))
            })?;
        }
    }
    data.push(']');
    let dims = [rows.len() as u64, columns as u64];
    let value = tensor(&what, name, &dims, datatype, &data)?;
    // A single column becomes a vector if the model's input is a vector.
    let is_vector = expected.is_some_and(|expected| expected.shape.dims().len() == 1);
    match is_vector && columns == 1 {
        true => reshaped(&value, &dims[..1]),
        false => Ok(value),
    }
}

/// Converts a CSV field to JSON.
fn element(datatype: DataType, field: &str) -> Option<String> {
    let lower = field.to_ascii_lowercase();
    match datatype {
        DataType::Bytes => Some(json!(field).to_string()),
        DataType::Fixed(DType::Bool) => match &*lower {
            "true" | "1" => Some("true".to_owned()),
            "false" | "0" => Some("false".to_owned()),
            _ => None,
        },
        DataType::Fixed(dtype) => {
            let is_float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
            let number: f64 = match &*lower {
                "" if is_float => f64::NAN,
                other => other.parse().ok()?,
            };
            // JSON lacks NaN, the infinities, `.5` and `+1`; integers keep all their digits.
            let is_plain = field
                .trim_start_matches('-')
                .chars()
                .all(|char| char.is_ascii_digit());
            match number.is_finite() {
                true if is_plain => Some(field.parse::<i128>().ok()?.to_string()),
                true => Some(number.to_string()),
                false if is_float && number.is_nan() => Some("null".to_owned()),
                false if is_float => {
                    Some(json!(if number > 0.0 { "Infinity" } else { "-Infinity" }).to_string())
                }
                false => None,
            }
        }
    }
}

fn is_bool(field: &str) -> bool {
    field.eq_ignore_ascii_case("true") || field.eq_ignore_ascii_case("false")
}

/// Reshapes a value to the model's shape if the element count matches and the shape is unambiguous: people
/// often omit the batch dimension, and CSV has only two dimensions.
pub(super) fn fit_shape(expected: &TensorMetadata, value: TensorValue) -> TensorValue {
    let pattern = &expected.shape;
    if pattern.matches(value.shape()) || pattern.has_any_leading() {
        return value;
    }
    let count = value.shape().element_count();
    let free = pattern.dims().iter().filter(|dim| dim.is_none()).count();
    let fixed = pattern
        .dims()
        .iter()
        .flatten()
        .try_fold(1u64, |all, dim| all.checked_mul(*dim));
    let Some(fixed) = fixed.filter(|fixed| free <= 1 && *fixed > 0 && count.is_multiple_of(*fixed)) else {
        return value;
    };
    let dims: Vec<u64> = pattern
        .dims()
        .iter()
        .map(|dim| dim.unwrap_or(count / fixed))
        .collect();
    // A flat list may be reshaped to any shape. For a list of rows, the number of rows stays the same.
    let is_allowed = match value.shape().dims() {
        [_] => true,
        [rows, _] => dims.len() > 2 && dims.first() == Some(rows),
        _ => false,
    };
    match is_allowed {
        true => reshaped(&value, &dims).unwrap_or(value),
        false => value,
    }
}

fn reshaped(value: &TensorValue, dims: &[u64]) -> Outcome<TensorValue> {
    let shape = Shape::new(dims).map_err(mismatch)?;
    let (datatype, raw) = (value.datatype(), value.raw().clone());
    TensorValue::from_raw(datatype, shape, raw).map_err(|error| mismatch(error.message()))
}

/// Parses a tensor with the protocol's request parser, which checks nesting, ranges and element counts.
fn tensor(what: &str, name: &str, dims: &[u64], datatype: DataType, data: &str) -> Outcome<TensorValue> {
    let datatype = datatype.name();
    let body =
        format!(r#"{{"inputs":[{{"name":"x","shape":{dims:?},"datatype":"{datatype}","data":{data}}}]}}"#);
    let mut request = request(what, name, &body)?;
    request.take_input("x").map_err(|error| mismatch(error.message()))
}

fn request(what: &str, name: &str, body: &str) -> Outcome<InferRequest> {
    let model = ModelRef::new("m", None).map_err(|error| mismatch(error.message()))?;
    let limits = RequestLimits::default().with(|limits| limits.tensor_bytes = usize::MAX);
    let decoded = decode_request(model, &body.as_bytes().to_vec().into(), None, &limits);
    let decoded =
        decoded.map_err(|error| mismatch(format!("input '{name}': {what}: {}", error.message())))?;
    Ok(decoded.request)
}

/// Returns the shape of nested lists, from the first item of each list. The parser rejects ragged lists
/// later.
fn dims(value: &Value) -> Vec<u64> {
    let mut dims = Vec::new();
    let mut inner = Some(value);
    while let Some(Value::Array(list)) = inner {
        dims.push(list.len() as u64);
        inner = list.first();
    }
    dims
}

/// Guesses the datatype of a JSON value, for servers without metadata.
fn guess(value: &Value) -> DataType {
    match value {
        Value::Array(list) => list.first().map_or(DataType::FP32, guess),
        Value::String(_) => DataType::Bytes,
        Value::Bool(_) => DataType::BOOL,
        Value::Number(number) if number.is_i64() => DataType::INT64,
        Value::Number(_) | Value::Null | Value::Object(_) => DataType::FP32,
    }
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path)
        .map_err(|error| Error::io("the file cannot be read", error))
        .about(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expects(datatype: DataType, dims: &[i64]) -> TensorMetadata {
        TensorMetadata::new("x", datatype, dims)
    }

    fn floats(value: &TensorValue) -> Vec<f32> {
        value.as_fixed().unwrap().to_vec().unwrap()
    }

    #[test]
    fn literals_have_the_models_datatype() {
        let read = |text: &str, datatype| literal("it", text, "x", Some(&expects(datatype, &[-1, 2])));
        let value = read("[[1, 2.5], [3, -4]]", DataType::FP32).unwrap();
        assert_eq!(
            (value.shape().dims(), floats(&value)),
            (&[2, 2][..], vec![1.0, 2.5, 3.0, -4.0])
        );
        assert_eq!(
            read("[[9007199254740993, 0]]", DataType::INT64).unwrap().raw()[0],
            1
        );
        assert_eq!(
            read(r#"[["a", "b"]]"#, DataType::Bytes).unwrap().datatype(),
            DataType::Bytes
        );
        for (wrong, datatype) in [
            ("[[1, 2], [3]]", DataType::FP32),
            ("[[1, 300]]", DataType::UINT8),
            ("[[1, 2", DataType::FP32),
            ("[[1.5, 2]]", DataType::INT64),
        ] {
            let error = read(wrong, datatype).unwrap_err().to_string();
            assert!(error.contains("input 'x'"), "{wrong}: {error}");
        }
    }

    #[test]
    fn what_servers_do_not_say_is_guessed() {
        let datatype = |text: &str| literal("it", text, "x", None).unwrap().datatype();
        assert_eq!(datatype("[1, 2]"), DataType::INT64);
        assert_eq!(datatype("[1.5]"), DataType::FP32);
        assert_eq!(datatype("[true]"), DataType::BOOL);
        assert_eq!(datatype(r#"["a"]"#), DataType::Bytes);
    }

    #[test]
    fn shapes_are_completed_where_there_is_one_way() {
        let shape = |text: &str, dims: &[i64]| {
            let expected = expects(DataType::FP32, dims);
            let value = literal("it", text, "x", Some(&expected)).unwrap();
            fit_shape(&expected, value).shape().dims().to_vec()
        };
        assert_eq!(shape("[1, 2, 3]", &[-1, 3]), [1, 3]);
        assert_eq!(shape("[[1, 2, 3, 4]]", &[-1, 2, 2]), [1, 2, 2]);
        assert_eq!(shape("[1, 2]", &[-1, 3]), [2]);
        // Two rows with two columns are not reshaped to one row of four.
        assert_eq!(shape("[[1, 2], [3, 4]]", &[-1, 4]), [2, 2]);
        assert_eq!(shape("[[1, 2, 3, 4], [5, 6, 7, 8]]", &[-1, 2, 2]), [2, 2, 2]);
        assert_eq!(shape("[[1, 2], [3, 4]]", &[-1, 2, 2]), [2, 2]);
        assert_eq!(shape("[1, 2]", &[-1, -1]), [2]);
    }

    #[test]
    fn csv_has_rows_of_numbers_or_texts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.csv");
        let read = |text: &str, expected: &TensorMetadata| {
            std::fs::write(&path, text).unwrap();
            csv_file(&path, "x", Some(expected))
        };
        let numbers = expects(DataType::FP32, &[-1, 2]);
        let value = read("width,height\n1,2.5\n-3,\n", &numbers).unwrap();
        assert_eq!(value.shape().dims(), [2, 2]);
        let values = floats(&value);
        assert!(
            values[..3] == [1.0, 2.5, -3.0] && values[3].is_nan(),
            "{values:?}"
        );
        let vector = read("1\n2\n", &expects(DataType::INT64, &[-1])).unwrap();
        assert_eq!(vector.shape().dims(), [2]);
        let texts = read("a,\"b,c\"\n", &expects(DataType::Bytes, &[-1, 2])).unwrap();
        assert_eq!(texts.as_bytes().unwrap().iter().last(), Some(&b"b,c"[..]));
        let error = read("1,2\n3,x\n", &numbers).unwrap_err().to_string();
        assert!(
            error.contains("row 2, column 2: expected FP32, found 'x'"),
            "{error}"
        );
        assert!(
            read("1,2\n3\n", &numbers)
                .unwrap_err()
                .to_string()
                .contains("x.csv")
        );
    }

    #[test]
    fn requests_in_files_have_their_inputs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.json");
        std::fs::write(
            &path,
            r#"{"inputs": [{"name": "x", "datatype": "INT64", "shape": [2], "data": [7, 8]}]}"#,
        )
        .unwrap();
        let value = json_file(&path, "x", None).unwrap();
        assert_eq!(
            (value.datatype(), value.shape().dims()),
            (DataType::INT64, &[2][..])
        );
        let error = json_file(&path, "y", None).unwrap_err().to_string();
        assert!(error.contains("a request without the input 'y'"), "{error}");
    }
}
