//! Generates inputs from a model's metadata.

use fastrand::Rng;
use oip_types::{BytesTensor, DataType, ModelMetadata, TensorMetadata, TensorValue};
use tensor_core::{DType, Shape, Tensor, TensorSpec, bf16, f16};

use crate::{
    client::{mismatch, options::Bench},
    failure::Outcome,
};

/// Generates values for the inputs that the user did not supply. Each `variant` gets different random values.
pub(super) fn missing(
    options: &Bench,
    metadata: &ModelMetadata,
    given: &[(String, TensorValue)],
    variant: u64,
) -> Outcome<Vec<(String, TensorValue)>> {
    if let Some((name, _)) = options.shapes.iter().find(|(name, _)| {
        given.iter().any(|(known, _)| known == name)
            || metadata.inputs.iter().all(|input| input.name != *name)
    }) {
        let message = format!(
            "--shape {name}: model '{}' has no such input to generate",
            metadata.name
        );
        return Err(mismatch(message));
    }
    let mut random = Rng::with_seed(options.seed.wrapping_add(variant));
    let missing = metadata.inputs.iter();
    let missing = missing.filter(|input| given.iter().all(|(name, _)| *name != input.name));
    missing
        .map(|input| {
            let shape = shape(options, metadata, input)?;
            let value = value(input.datatype, shape, (!options.zeros).then_some(&mut random));
            Ok((input.name.clone(), value?))
        })
        .collect()
}

/// Returns the shape that the user requested for the input, or else the model's shape. A free first dimension
/// becomes 1; any other free dimension is an error.
fn shape(options: &Bench, metadata: &ModelMetadata, input: &TensorMetadata) -> Outcome<Shape> {
    let (name, model) = (&input.name, &metadata.name);
    let asked = options.shapes.iter().find(|(asked, _)| asked == name);
    let dims = match asked {
        Some((_, dims)) => dims.clone(),
        None => {
            let dims = input.shape.dims().iter().enumerate();
            let dims = dims.map(|(axis, dim)| dim.or((axis == 0).then_some(1)));
            dims.collect::<Option<Vec<u64>>>().ok_or_else(|| {
                mismatch(format!(
                    "input {input} of model '{model}' has a free size; set it with --shape {name}=DIMS"
                ))
            })?
        }
    };
    let shape = Shape::new(&dims).map_err(mismatch)?;
    match input.shape.matches(&shape) {
        true => Ok(shape),
        false => Err(mismatch(format!(
            "input '{name}' of model '{model}' takes shape {}, --shape says {shape}",
            input.shape
        ))),
    }
}

/// Generates random elements, or zeros and empty strings.
fn value(datatype: DataType, shape: Shape, random: Option<&mut Rng>) -> Outcome<TensorValue> {
    /// Maximum number of elements. A larger tensor exceeds the request size limit of every server.
    const MOST: u64 = 1 << 31;
    let count = shape.element_count();
    let width = datatype
        .dtype()
        .map_or(BytesTensor::LENGTH_PREFIX as u64, |dtype| dtype.size() as u64);
    if count.saturating_mul(width) > MOST {
        return Err(mismatch(format!(
            "an input of shape {shape} is too large to generate"
        )));
    }
    let Some(random) = random else {
        let raw = vec![0; (count * width) as usize];
        return TensorValue::from_raw(datatype, shape, raw.into()).map_err(mismatch);
    };
    let dtype = match datatype {
        DataType::Bytes => {
            let word = |_| {
                (0..random.usize(3..10))
                    .map(|_| random.lowercase())
                    .collect::<String>()
            };
            let words: Vec<String> = (0..count).map(word).collect();
            return BytesTensor::from_elements(shape, words)
                .map(Into::into)
                .map_err(mismatch);
        }
        DataType::Fixed(dtype) => dtype,
    };
    let mut raw = Vec::with_capacity((count * width) as usize);
    for _ in 0..count {
        let number = random.u8(0..100);
        match dtype {
            DType::Bool => raw.push(number % 2),
            DType::F16 => raw.extend_from_slice(&f16::from_f32(random.f32()).to_le_bytes()),
            DType::BF16 => raw.extend_from_slice(&bf16::from_f32(random.f32()).to_le_bytes()),
            DType::F32 => raw.extend_from_slice(&random.f32().to_le_bytes()),
            DType::F64 => raw.extend_from_slice(&random.f64().to_le_bytes()),
            integer => {
                raw.push(number);
                raw.resize(raw.len() + integer.size() - 1, 0);
            }
        }
    }
    let tensor = TensorSpec::new(dtype, shape).and_then(|spec| Tensor::new(spec, raw));
    tensor.map(Into::into).map_err(mismatch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_datatype_can_be_made_up() {
        for dtype in DType::ALL
            .map(DataType::Fixed)
            .into_iter()
            .chain([DataType::Bytes])
        {
            let shape = || Shape::new(&[2, 3]).unwrap();
            let zeros = value(dtype, shape(), None).unwrap();
            assert!(zeros.raw().iter().all(|byte| *byte == 0), "{dtype}");
            let random = |seed| value(dtype, shape(), Some(&mut Rng::with_seed(seed))).unwrap();
            assert_eq!(random(1), random(1), "the same seed, the same values");
            assert_eq!((random(1).datatype(), random(1).shape()), (dtype, &shape()));
            assert!((2..100).any(|seed| random(seed) != random(1)), "{dtype}");
        }
        assert!(value(DataType::FP32, Shape::new(&[1 << 40]).unwrap(), None).is_err());
    }
}
