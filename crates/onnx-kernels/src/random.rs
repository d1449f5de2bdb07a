//! Random numbers. With a seed, every run returns the numbers of ONNX Runtime's first run with the GNU C++
//! library. Without a seed, each run returns different numbers.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use onnx_tensor::prelude::*;

use onnx_tensor::{cancelling::Pace, faults::Unsupported, node::Node, operator::Compute};
use onnx_tensor::{
    elements::{elements, filled, of_type},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `RandomNormal`, `RandomUniform`, `RandomNormalLike`, `RandomUniformLike`, or
/// `Bernoulli`.
pub fn random(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let float = |name: &str, default: f32| attributes.float(name, default);
    let drawn = match node.op_type.as_str() {
        "RandomNormal" | "RandomNormalLike" => Distribution::Normal {
            mean: float("mean", 0.0),
            scale: float("scale", 1.0),
        },
        "Bernoulli" => Distribution::Bernoulli,
        _ => Distribution::Uniform {
            low: float("low", 0.0),
            high: float("high", 1.0),
        },
    };
    let element_type = match attributes.has("dtype") {
        true => {
            let code = attributes.int("dtype", 1);
            let datatype = i32::try_from(code).ok().and_then(ElementType::from_code);
            let reason = || format!("the attribute 'dtype' is {code}, which is not supported");
            Some(datatype.ok_or_else(|| Unsupported::Here(reason()))?)
        }
        false => None,
    };
    let dims = attributes.ints("shape").iter().map(|&dim| usize::try_from(dim));
    let is_like = node.op_type.ends_with("Like") || matches!(drawn, Distribution::Bernoulli);
    Ok(kernel(Random {
        drawn,
        element_type,
        shape: match is_like {
            true => None,
            false => Some(dims.collect::<Result<_, _>>()?),
        },
        seed: attributes.has("seed").then(|| float("seed", 0.0)),
    }))
}

#[derive(Clone, Copy, Debug)]
enum Distribution {
    Normal {
        mean: f32,
        scale: f32,
    },
    Uniform {
        low: f32,
        high: f32,
    },
    /// Returns 1 with the probability that the input element gives, otherwise 0.
    Bernoulli,
}

#[derive(Debug)]
struct Random {
    drawn: Distribution,
    element_type: Option<ElementType>,
    /// The shape of the result; `None` for the shape of the input.
    shape: Option<Vec<usize>>,
    seed: Option<f32>,
}

impl Kernel for Random {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let shape = match &self.shape {
            Some(shape) => shape.iter().map(ToDim::to_dim).collect(),
            None => inputs.first().context("no input")?.shape.clone(),
        };
        let of_input = inputs.first().map(|fact| fact.element_type);
        let element_type = self.element_type.or(of_input).unwrap_or(ElementType::F32);
        let is_known = matches!(self.drawn, Distribution::Bernoulli) || element_type.is_float();
        if !is_known
            || inputs.first().is_some_and(|fact| {
                matches!(self.drawn, Distribution::Bernoulli) && !fact.element_type.is_float()
            })
        {
            bail!(Unsupported::Anywhere("is supported for floats only".to_owned()));
        }
        Ok(vec![Fact::new(element_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let shape: Vec<usize> = match (&self.shape, inputs.first()) {
            (Some(shape), _) => shape.clone(),
            (None, Some(input)) => input.shape().to_vec(),
            (None, None) => bail!("no input"),
        };
        let of_input = inputs.first().map(|input| input.element_type());
        let element_type = self.element_type.or(of_input).unwrap_or(ElementType::F32);
        let mut source = Source::new(self.seed);
        let of_bernoulli = match self.drawn {
            Distribution::Bernoulli => Some(inputs.first().context("no input")?.cast_to::<f32>()?),
            _ => None,
        };
        let probabilities = match &of_bernoulli {
            Some(probabilities) => elements::<f32>(probabilities)?,
            None => &[],
        };
        let drawn = filled::<f32>(&shape, |values| {
            let mut pace = Pace::default();
            for (at, value) in values.iter_mut().enumerate() {
                pace.spend(8)?;
                *value = match self.drawn {
                    Distribution::Normal { mean, scale } => source.normal() * scale + mean,
                    Distribution::Uniform { low, high } => source.uniform() * (high - low) + low,
                    Distribution::Bernoulli => f32::from(u8::from(source.uniform() < probabilities[at])),
                };
            }
            Ok(())
        })?;
        Ok(smallvec![of_type(drawn, element_type)?])
    }
}

/// The random number generator `minstd_rand0` of C++, with the conversions to floats of the GNU library.
struct Source {
    state: u64,
    saved: Option<f32>,
}

const MODULUS: u64 = 2_147_483_647;

impl Source {
    fn new(seed: Option<f32>) -> Self {
        let seed = match seed {
            Some(seed) => u64::from(seed as u32),
            None => {
                static CALLS: AtomicU64 = AtomicU64::new(0);
                let mut hasher = RandomState::new().build_hasher();
                hasher.write_u64(CALLS.fetch_add(1, Ordering::Relaxed));
                hasher.finish()
            }
        };
        let state = match seed % MODULUS {
            0 => 1,
            state => state,
        };
        Self { state, saved: None }
    }

    /// Returns a uniformly distributed number in 0..1.
    fn uniform(&mut self) -> f32 {
        self.state = self.state * 16_807 % MODULUS;
        let part = (self.state - 1) as f32 / (MODULUS - 1) as f32;
        if part < 1.0 { part } else { 1.0f32.next_down() }
    }

    fn normal(&mut self) -> f32 {
        if let Some(saved) = self.saved.take() {
            return saved;
        }
        loop {
            let x = 2.0 * self.uniform() - 1.0;
            let y = 2.0 * self.uniform() - 1.0;
            let square = x * x + y * y;
            if square <= 1.0 && square != 0.0 {
                let factor = (-2.0 * square.ln() / square).sqrt();
                self.saved = Some(x * factor);
                return y * factor;
            }
        }
    }
}
