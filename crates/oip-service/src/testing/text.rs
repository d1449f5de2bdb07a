//! Text models of the in-memory service. Their outputs depend only on the lengths of the strings.

use oip_types::{BytesTensor, InferOutput, InferRequest, ServiceError};
use tensor_core::{Element, Shape, Tensor};

pub(super) fn run(name: &str, request: &InferRequest) -> Result<Vec<InferOutput>, ServiceError> {
    let lengths = |name: &str| {
        let strings = request.input(name).and_then(|value| value.as_bytes());
        strings.map_or_else(Vec::new, |strings| {
            strings.iter().map(<[u8]>::len).collect::<Vec<usize>>()
        })
    };
    let texts = lengths("text");
    let rows = texts.len() as u64;
    Ok(match name {
        "minilm" => {
            let vectors = texts.iter().flat_map(|length| [*length as f32, 4.0]).collect();
            let counts = texts.iter().map(|length| *length as i64).collect();
            vec![
                InferOutput::new("embedding", tensor(&[rows, 2], vectors)?),
                InferOutput::new("token_count", tensor::<i64>(&[rows], counts)?),
            ]
        }
        "reranker" => {
            let pairs = lengths("text_pair");
            let scores = texts
                .iter()
                .zip(pairs)
                .map(|(text, pair)| 1.0 / (1.0 + text.abs_diff(pair) as f32));
            vec![InferOutput::new("score", tensor(&[rows], scores.collect())?)]
        }
        _ => {
            let scores = [0.25_f32, 0.75].repeat(texts.len());
            let labels = ["bad", "good"].repeat(texts.len());
            let shape = Shape::new(&[rows, 2])?;
            vec![
                InferOutput::new("scores", tensor(&[rows, 2], scores)?),
                InferOutput::new("labels", BytesTensor::from_elements(shape, labels)?),
            ]
        }
    })
}

fn tensor<T: Element>(dims: &[u64], values: Vec<T>) -> Result<Tensor, ServiceError> {
    Ok(Tensor::from_vec(dims, values)?)
}
