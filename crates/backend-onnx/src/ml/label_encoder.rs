//! `LabelEncoder`: values for keys, of any of the types that ONNX's versions 1, 2 and 4 of it know.

use std::{collections::HashMap, sync::Arc};

use tract_hir::internal::*;

use crate::{
    building::BuildContext,
    faults::Refusal,
    lowered::OnnxNode,
    ops::{Attributes, Fact, Kernel, elements, kernel},
    size,
};

pub(crate) fn label_encoder(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    if attributes.has("classes_strings") {
        return first_version(attributes);
    }
    let keys = list(attributes, "keys")?;
    let values = list(attributes, "values")?;
    let default = match attributes
        .get("default_tensor")
        .and_then(|attribute| attribute.t.as_ref())
    {
        Some(tensor) => (**tensor).clone(),
        None => match values.datum_type() {
            DatumType::String => tensor1(&[attributes.text("default_string", UNUSED).to_owned()]),
            DatumType::F32 => tensor1(&[attributes.float("default_float", -0.0)]),
            _ => tensor1(&[attributes.int("default_int64", -1)])
                .cast_to_dt(values.datum_type())?
                .into_owned(),
        },
    };
    if keys.len() != values.len() || default.len() != 1 || default.datum_type() != values.datum_type() {
        let (keys, values) = (keys.len(), values.len());
        bail!(Refusal(format!(
            "has {keys} keys, {values} values and a default that do not fit together"
        )));
    }
    Ok(kernel(LabelEncoder::new(&keys, &values, &default)?))
}

/// The default of ONNX's text for strings.
const UNUSED: &str = "_Unused";

/// Before version 2 there was one list of strings, for both directions: which one it is the input's type tells.
fn first_version(attributes: Attributes<'_>) -> TractResult<Box<dyn InferenceOp>> {
    let strings = tensor1(&attributes.texts("classes_strings")?);
    let ints = tensor1(&(0..strings.len() as i64).collect::<Vec<_>>());
    let to_int = LabelEncoder::new(&strings, &ints, &tensor1(&[attributes.int("default_int64", -1)]))?;
    let default = tensor1(&[attributes.text("default_string", UNUSED).to_owned()]);
    let to_string = LabelEncoder::new(&ints, &strings, &default)?;
    Ok(kernel(Both { to_int, to_string }))
}

/// The list of an attribute whose name tells its type.
fn list(attributes: Attributes<'_>, what: &str) -> TractResult<Tensor> {
    let tensor = attributes
        .get(&format!("{what}_tensor"))
        .and_then(|attribute| attribute.t.as_ref());
    let strings = attributes.texts(&format!("{what}_strings"))?;
    let (ints, floats) = (
        attributes.ints(&format!("{what}_int64s")),
        attributes.floats(&format!("{what}_floats")),
    );
    let given = [
        tensor.is_some(),
        !strings.is_empty(),
        !ints.is_empty(),
        !floats.is_empty(),
    ];
    if given.iter().filter(|given| **given).count() != 1 {
        bail!(Refusal(format!(
            "needs its {what} in exactly one of the attributes for them"
        )));
    }
    Ok(match tensor {
        Some(tensor) => (**tensor).clone(),
        None if given[1] => tensor1(&strings),
        None if given[2] => tensor1(ints),
        None => tensor1(floats),
    })
}

/// Values by key, all of one type each.
#[derive(Debug)]
struct LabelEncoder {
    key_type: DatumType,
    /// Where the value of each key stands in `values`.
    places: HashMap<Key, usize>,
    /// The default is the last.
    values: Tensor,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Int(i64),
    /// Bits of a float, with one zero and one NaN.
    Float(u64),
    Text(String),
}

impl Key {
    fn float(value: f64) -> Self {
        Self::Float(match value {
            value if value.is_nan() => f64::NAN.to_bits(),
            // Both zeros are equal.
            value => (value + 0.0).to_bits(),
        })
    }

    fn all(keys: &Tensor) -> TractResult<Vec<Self>> {
        Ok(match keys.datum_type() {
            DatumType::String => elements::elements::<String>(keys)?
                .iter()
                .cloned()
                .map(Self::Text)
                .collect(),
            DatumType::F32 => elements::elements::<f32>(keys)?
                .iter()
                .map(|&key| Self::float(key.into()))
                .collect(),
            DatumType::F64 => elements::elements::<f64>(keys)?
                .iter()
                .map(|&key| Self::float(key))
                .collect(),
            DatumType::I64 => elements::elements::<i64>(keys)?
                .iter()
                .copied()
                .map(Self::Int)
                .collect(),
            DatumType::I32 => elements::elements::<i32>(keys)?
                .iter()
                .map(|&key| Self::Int(key.into()))
                .collect(),
            DatumType::I16 => elements::elements::<i16>(keys)?
                .iter()
                .map(|&key| Self::Int(key.into()))
                .collect(),
            _ => bail!(Refusal("has keys of a type that is not supported".to_owned())),
        })
    }
}

impl LabelEncoder {
    fn new(keys: &Tensor, values: &Tensor, default: &Tensor) -> TractResult<Self> {
        let mut places = HashMap::new();
        for (index, key) in Key::all(keys)?.into_iter().enumerate() {
            // The first of equal keys counts.
            places.entry(key).or_insert(index);
        }
        let flat = |tensor: &Tensor| tensor.clone().into_shape(&[tensor.len()]);
        Ok(Self {
            key_type: keys.datum_type(),
            places,
            values: Tensor::stack_tensors(0, &[flat(values)?, flat(default)?])?,
        })
    }
}

impl Kernel for LabelEncoder {
    fn name(&self) -> &'static str {
        "LabelEncoder"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        if inputs[0].datum_type != self.key_type {
            bail!(Refusal("has keys of another type than its input".to_owned()));
        }
        Ok(vec![inputs[0].with(self.values.datum_type())])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let default = self.values.len() - 1;
        let keys = Key::all(&inputs[0])?;
        let places: Vec<usize> = keys
            .iter()
            .map(|key| self.places.get(key).copied().unwrap_or(default))
            .collect();
        let values = &self.values;
        Ok(tvec![dispatch_datum!(picked(values.datum_type())(
            values,
            &places,
            inputs[0].shape()
        ))?])
    }
}

fn picked<T: elements::Element>(values: &Tensor, places: &[usize], shape: &[usize]) -> TractResult<Tensor> {
    let values = elements::elements::<T>(values)?;
    size::admit_contents(places.iter().map(|&place| (&values[place], 1)))?;
    elements::tensor(shape, places.iter().map(|&place| values[place].clone()).collect())
}

/// Strings to integers and back.
#[derive(Debug)]
struct Both {
    to_int: LabelEncoder,
    to_string: LabelEncoder,
}

impl Kernel for Both {
    fn name(&self) -> &'static str {
        "LabelEncoder"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        match inputs[0].datum_type {
            DatumType::String => self.to_int.outputs(inputs),
            _ => self.to_string.outputs(inputs),
        }
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        match inputs[0].datum_type() {
            DatumType::String => self.to_int.run(inputs),
            _ => self.to_string.run(inputs),
        }
    }
}
