//! The operators `TreeEnsembleRegressor` and `TreeEnsemble`, which compute targets from the scores of a tree
//! ensemble.

use std::sync::{Arc, OnceLock};

use num_traits::Float;
use onnx_tensor::prelude::*;
use tree_eval::{Aggregate, Forest, Number, Trees};

use crate::{
    ensemble::read::{doubles, targets, trees},
    post::PostTransform,
    rows::{self, Rows},
};
use onnx_tensor::{
    elements,
    faults::{Limit, Refusal},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact, Kernel, kernel},
};

/// Creates the operator `TreeEnsembleRegressor`.
pub fn regressor(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let aggregate = match attributes.text("aggregate_function", "SUM") {
        "SUM" => Aggregate::Sum,
        "AVERAGE" => Aggregate::Average,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        other => bail!(Refusal(format!("has an unknown aggregate_function '{other}'"))),
    };
    let targets = targets(attributes)?;
    let base = doubles(attributes, "base_values")?;
    if !base.is_empty() && base.len() != targets {
        bail!(Refusal(format!(
            "has {} base values for {targets} targets",
            base.len()
        )));
    }
    Ok(kernel(Regressor {
        trees: trees(attributes, "target", targets, aggregate)?,
        base,
        post: PostTransform::read(attributes)?,
        keeps_type: false,
        bound: Default::default(),
    }))
}

/// A regressor for inputs of any type. The type is only known in a run.
#[derive(Debug)]
pub(crate) struct Regressor {
    trees: Trees,
    base: Vec<f64>,
    post: PostTransform,
    /// Whether the output has the type of the input; otherwise it is FP32.
    keeps_type: bool,
    /// The regressors for FP32 and FP64, each created on first use.
    bound: [OnceLock<Arc<dyn Kernel>>; 2],
}

impl Kernel for Regressor {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let shape = [rows::count(&inputs[0])?, self.trees.scores().to_dim()];
        let is_double = self.keeps_type && inputs[0].element_type == ElementType::F64;
        if self.keeps_type && !matches!(inputs[0].element_type, ElementType::F32 | ElementType::F64) {
            bail!(Limit("is supported for FP32 and FP64 only".to_owned()));
        }
        Ok(vec![Fact::new(answer_type(is_double), shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        self.bound(inputs[0].element_type()).run(inputs)
    }
}

fn answer_type(is_double: bool) -> ElementType {
    if is_double {
        ElementType::F64
    } else {
        ElementType::F32
    }
}

impl Regressor {
    /// Creates a regressor whose output has the element type of its input.
    pub(crate) fn of_type(trees: Trees, post: PostTransform) -> Self {
        Self {
            trees,
            base: vec![],
            post,
            keeps_type: true,
            bound: Default::default(),
        }
    }

    fn bound(&self, element_type: ElementType) -> Arc<dyn Kernel> {
        let [single, double] = &self.bound;
        let bound = match element_type {
            ElementType::F64 => double.get_or_init(|| {
                Arc::new(self.bind::<f64>(|tensor| Rows::read_double(tensor), self.keeps_type))
            }),
            _ => single.get_or_init(|| Arc::new(self.bind::<f32>(|tensor| Rows::read(tensor), false))),
        };
        bound.clone()
    }

    fn bind<T: Number>(
        &self,
        read: fn(&Tensor) -> Result<Rows<'_, T>>,
        is_double: bool,
    ) -> TypedRegressor<T> {
        TypedRegressor {
            forest: self.trees.forest(),
            aggregate: self.trees.aggregate(),
            trees: T::from_f64(self.trees.count() as f64),
            base: self.base.iter().map(|&base| T::from_f64(base)).collect(),
            post: self.post,
            is_double,
            read,
        }
    }
}

/// A regressor for inputs of one type, whose trees have thresholds of that type.
#[derive(Debug)]
struct TypedRegressor<T: Number> {
    forest: Forest<T>,
    aggregate: Aggregate,
    trees: T,
    base: Vec<T>,
    post: PostTransform,
    /// Whether the output is FP64.
    is_double: bool,
    read: fn(&Tensor) -> Result<Rows<'_, T>>,
}

impl<T: Number> Kernel for TypedRegressor<T> {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let shape = [rows::count(&inputs[0])?, self.forest.scores().to_dim()];
        Ok(vec![Fact::new(answer_type(self.is_double), shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let rows = (self.read)(&inputs[0])?;
        rows::expect_width(rows.width, self.forest.features())?;
        let targets = self.forest.scores();
        let mut doubles: Vec<f64> = Vec::new();
        let mut out = Vec::with_capacity(rows.count * targets);
        let mut finish = |scores: &mut [T], _: &mut [bool]| {
            for (index, score) in scores.iter_mut().enumerate() {
                if self.aggregate == Aggregate::Average {
                    *score = *score / self.trees;
                }
                if let Some(&base) = self.base.get(index) {
                    *score += base;
                }
            }
            match self.is_double {
                true => append(&mut doubles, scores.iter().map(|score| score.to_f64()), self.post),
                false => append(&mut out, scores.iter().map(|score| score.to_f32()), self.post),
            }
        };
        for part in rows.parts() {
            self.forest.score(part?, &[], &mut finish)?;
        }
        let shape = [rows.count, targets];
        Ok(smallvec![match self.is_double {
            true => elements::tensor(&shape, doubles)?,
            false => elements::tensor(&shape, out)?,
        }])
    }
}

/// Appends the transformed scores of a row.
fn append<T: Float>(out: &mut Vec<T>, scores: impl Iterator<Item = T>, post: PostTransform) {
    let start = out.len();
    out.extend(scores);
    match &mut out[start..] {
        [score] => *score = post.single_target(*score),
        scores => post.apply(scores),
    }
}
