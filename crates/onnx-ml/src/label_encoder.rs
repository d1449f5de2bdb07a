//! The operator `LabelEncoder`: maps keys to values, with the types of its versions 1, 2 and 4.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    elements,
    faults::Refusal,
    node::Attributes,
    node::Node,
    operator::{Compute, Fact, Kernel, kernel},
    size,
};

/// Creates the operator `LabelEncoder`.
pub fn label_encoder(node: &Node) -> Result<Box<dyn Compute>> {
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
        None => match values.element_type() {
            ElementType::String => Tensor::vector(&[attributes.text("default_string", UNUSED).to_owned()]),
            ElementType::F32 => Tensor::vector(&[attributes.float("default_float", -0.0)]),
            ElementType::F64 => Tensor::vector(&[-0.0f64]),
            _ => Tensor::vector(&[attributes.int("default_int64", -1)])
                .cast_to_type(values.element_type())?
                .into_owned(),
        },
    };
    if keys.len() != values.len() || default.len() != 1 || default.element_type() != values.element_type() {
        let (keys, values) = (keys.len(), values.len());
        bail!(Refusal(format!(
            "has {keys} keys, {values} values and a default that do not fit together"
        )));
    }
    Ok(kernel(LabelEncoder::new(&keys, &values, &default)?))
}

/// The default of `default_string` in the ONNX specification.
const UNUSED: &str = "_Unused";

/// Reads version 1, which has one list of strings for both directions. The input type determines the
/// direction.
fn first_version(attributes: Attributes<'_>) -> Result<Box<dyn Compute>> {
    let strings = Tensor::vector(&attributes.texts("classes_strings")?);
    let ints = Tensor::vector(&(0..strings.len() as i64).collect::<Vec<_>>());
    let to_int = LabelEncoder::new(
        &strings,
        &ints,
        &Tensor::vector(&[attributes.int("default_int64", -1)]),
    )?;
    let default = Tensor::vector(&[attributes.text("default_string", UNUSED).to_owned()]);
    let to_string = LabelEncoder::new(&ints, &strings, &default)?;
    Ok(kernel(FirstVersion { to_int, to_string }))
}

/// Returns the attribute `<what>_tensor`, `<what>_strings`, `<what>_int64s` or `<what>_floats` as a tensor.
fn list(attributes: Attributes<'_>, what: &str) -> Result<Tensor> {
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
        None if given[1] => Tensor::vector(&strings),
        None if given[2] => Tensor::vector(ints),
        None => Tensor::vector(floats),
    })
}

/// A map from keys of one type to values of one type.
#[derive(Debug)]
struct LabelEncoder {
    key_type: ElementType,
    places: Places,
    /// The values, followed by the default value.
    values: Tensor,
}

/// Maps each key to the index of its value.
#[derive(Debug)]
enum Places {
    Texts(HashMap<String, usize>),
    /// Maps the bits of each number to the index of its value.
    Numbers(HashMap<u64, usize>),
}

/// A numeric type of keys, which are compared by their bits.
trait Key: Element + Copy {
    fn bits(self) -> u64;
}

macro_rules! whole_keys {
    ($($type:ty)*) => {
        $(impl Key for $type {
            fn bits(self) -> u64 {
                self as u64
            }
        })*
    };
}
whole_keys! { i16 i32 i64 }

impl Key for f64 {
    fn bits(self) -> u64 {
        match self.is_nan() {
            true => Self::NAN.to_bits(),
            // Adding 0 turns -0 into 0, so that both zeros have the same bits.
            false => (self + 0.0).to_bits(),
        }
    }
}

impl Key for f32 {
    fn bits(self) -> u64 {
        f64::from(self).bits()
    }
}

/// Evaluates `$body` with `$T` bound to the Rust type of a numeric key.
macro_rules! with_key {
    ($element_type:expr, $T:ident => $body:expr) => {
        match $element_type {
            ElementType::F32 => with_key!(@type f32, $T => $body),
            ElementType::F64 => with_key!(@type f64, $T => $body),
            ElementType::I64 => with_key!(@type i64, $T => $body),
            ElementType::I32 => with_key!(@type i32, $T => $body),
            ElementType::I16 => with_key!(@type i16, $T => $body),
            _ => bail!(Refusal("has keys of a type that is not supported".to_owned())),
        }
    };
    (@type $type:ty, $T:ident => $body:expr) => {{
        type $T = $type;
        $body
    }};
}

/// Returns the index of each key. If keys are equal, the index of the first one is used.
fn places<K: Hash + Eq>(keys: impl Iterator<Item = K>) -> HashMap<K, usize> {
    let mut places = HashMap::new();
    for (index, key) in keys.enumerate() {
        places.entry(key).or_insert(index);
    }
    places
}

impl LabelEncoder {
    fn new(keys: &Tensor, values: &Tensor, default: &Tensor) -> Result<Self> {
        let places = match keys.element_type() {
            ElementType::String => Places::Texts(places(elements::elements::<String>(keys)?.iter().cloned())),
            element_type => with_key!(element_type, T => {
                let keys = elements::elements::<T>(keys)?.iter();
                Places::Numbers(places(keys.map(|key| key.bits())))
            }),
        };
        let flat = |tensor: &Tensor| tensor.clone().into_shape(&[tensor.len()]);
        Ok(Self {
            key_type: keys.element_type(),
            places,
            values: Tensor::concat(0, &[flat(values)?, flat(default)?])?,
        })
    }

    /// Calls `take` with the value index of each key, in order. Calls back instead of returning a list, since
    /// a list of all indices might exceed the memory limit.
    fn each(&self, keys: &Tensor, take: &mut dyn FnMut(usize)) -> Result<()> {
        let default = self.values.len() - 1;
        let mut pace = Pace::default();
        match &self.places {
            Places::Texts(places) => {
                for text in elements::elements::<String>(keys)? {
                    pace.spend(8 + text.len() as u64 / 8)?;
                    take(places.get(text).copied().unwrap_or(default));
                }
            }
            Places::Numbers(places) => with_key!(keys.element_type(), T => {
                for key in elements::elements::<T>(keys)? {
                    pace.spend(8)?;
                    take(places.get(&key.bits()).copied().unwrap_or(default));
                }
            }),
        }
        Ok(())
    }
}

impl Kernel for LabelEncoder {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        if inputs[0].element_type != self.key_type {
            bail!(Refusal("has keys of another type than its input".to_owned()));
        }
        Ok(vec![inputs[0].with(self.values.element_type())])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let element_type = self.values.element_type();
        let encoded = with_unit!(element_type, U => encoded::<U>(self, &inputs[0]));
        Ok(smallvec![encoded?])
    }
}

fn encoded<U: Unit>(encoder: &LabelEncoder, keys: &Tensor) -> Result<Tensor> {
    let values = encoder.values.as_units::<U>()?;
    if U::HAS_CONTENTS {
        let mut bytes = 0u64;
        let mut add = |place: usize| bytes += size::TEXT + values[place].contents() as u64;
        encoder.each(keys, &mut add)?;
        size::admit_texts(bytes)?;
    }
    let mut made = Vec::with_capacity(keys.len());
    encoder.each(keys, &mut |place| made.push(values[place].clone()))?;
    Tensor::from_units(encoder.values.element_type(), keys.shape(), made)
}

/// Maps strings to integers and integers to strings, depending on the input type.
#[derive(Debug)]
struct FirstVersion {
    to_int: LabelEncoder,
    to_string: LabelEncoder,
}

impl Kernel for FirstVersion {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        match inputs[0].element_type {
            ElementType::String => self.to_int.outputs(inputs),
            _ => self.to_string.outputs(inputs),
        }
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        match inputs[0].element_type() {
            ElementType::String => self.to_int.run(inputs),
            _ => self.to_string.run(inputs),
        }
    }
}
