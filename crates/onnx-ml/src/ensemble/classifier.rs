//! The operator `TreeEnsembleClassifier`, which computes labels and probabilities from the scores of a tree
//! ensemble.

use std::sync::{Arc, OnceLock};

use onnx_tensor::prelude::*;
use tree_eval::{Aggregate, Forest, Number, Trees};

use crate::{
    ensemble::read::{additions, doubles, trees},
    post::{PostTransform, Single},
    rows::{self, Labels, Rows},
};
use onnx_tensor::{
    elements,
    faults::Refusal,
    node::Attributes,
    node::Node,
    operator::{Compute, Fact, Kernel, kernel},
};

/// Creates the operator `TreeEnsembleClassifier`.
pub fn classifier(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let labels = Labels::read(attributes, "classlabels_int64s", "classlabels_strings")?;
    let classes = labels.len();
    if classes < 2 {
        bail!(Refusal("has a single class".to_owned()));
    }
    let base = doubles(attributes, "base_values")?;
    let post = PostTransform::read(attributes)?;
    let trees = trees(attributes, "class", classes, Aggregate::Sum)?;
    let (scores, all_positive) = additions(&trees);
    let shared = match scores[..] {
        [true, false] if base.len() <= 1 => Some(0),
        [false, true] if base.is_empty() => Some(1),
        _ => None,
    };
    if !(base.is_empty() || base.len() == classes || shared.is_some()) {
        bail!(Refusal(format!(
            "has {} base values for {classes} classes; expected none or {classes}, or one for two classes of which \
             leaves score the first only",
            base.len()
        )));
    }
    if shared.is_some() {
        post.check_pair()?;
    }
    let shared = shared.map(|class| SharedScore {
        class,
        // The single score is a probability if no weight is negative. With the logistic function, it is
        // always a margin.
        single: match all_positive && post != PostTransform::Logistic {
            true => Single::Probability,
            false => Single::Margin,
        },
    });
    Ok(kernel(Classifier {
        rule: Rule {
            labels,
            base,
            post,
            shared,
        },
        trees,
        bound: Default::default(),
    }))
}

/// A classifier for inputs of any type. The type is only known in a run.
#[derive(Debug)]
struct Classifier {
    trees: Trees,
    rule: Rule,
    /// The classifiers for FP32 and FP64, each created on first use.
    bound: [OnceLock<Arc<dyn Kernel>>; 2],
}

/// Maps scores to a class and probabilities.
#[derive(Clone, Debug)]
struct Rule {
    labels: Labels,
    base: Vec<f64>,
    post: PostTransform,
    shared: Option<SharedScore>,
}

/// The single score of a binary classifier: leaves only add to the score of one class.
#[derive(Clone, Copy, Debug)]
struct SharedScore {
    /// The class to whose score the leaves add. The score always counts for the second class, even if this is
    /// the first one.
    class: usize,
    single: Single,
}

impl Kernel for Classifier {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        self.rule.outputs(inputs)
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        self.bound(inputs[0].element_type()).run(inputs)
    }
}

impl Classifier {
    fn bound(&self, element_type: ElementType) -> Arc<dyn Kernel> {
        let [single, double] = &self.bound;
        let bound = match element_type {
            ElementType::F64 => double.get_or_init(|| {
                Arc::new(TypedClassifier {
                    forest: self.trees.forest::<f64, f64>(),
                    rule: self.rule.clone(),
                    read: |tensor| Rows::read_double(tensor),
                })
            }),
            _ => single.get_or_init(|| {
                Arc::new(TypedClassifier {
                    forest: self.trees.forest::<f32, f32>(),
                    rule: self.rule.clone(),
                    read: |tensor| Rows::read(tensor),
                })
            }),
        };
        bound.clone()
    }
}

/// A classifier for inputs of one type, whose trees have thresholds of that type.
#[derive(Debug)]
struct TypedClassifier<T: Number> {
    forest: Forest<T>,
    rule: Rule,
    read: fn(&Tensor) -> Result<Rows<'_, T>>,
}

impl<T: Number> Kernel for TypedClassifier<T> {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        self.rule.outputs(inputs)
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let rows = (self.read)(&inputs[0])?;
        rows::expect_width(rows.width, self.forest.features())?;
        let width = self.rule.labels.len();
        let mut out = vec![0.0; rows.count * width];
        let mut classes = Vec::with_capacity(rows.count);
        let mut slots = out.chunks_exact_mut(width);
        let base: Vec<T> = self.rule.base.iter().map(|&base| T::from_f64(base)).collect();
        for part in rows.parts() {
            self.forest.score(part?, &[], |scores, touched| {
                if let Some(out) = slots.next() {
                    classes.push(self.rule.finish(scores, touched, &base, out));
                }
            })?;
        }
        Ok(smallvec![
            self.rule.labels.of(&classes)?,
            elements::tensor(&[rows.count, width], out)?
        ])
    }
}

impl Rule {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let count = rows::count(&inputs[0])?;
        Ok(vec![
            Fact::new(self.labels.element_type(), [count]),
            Fact::new(ElementType::F32, [count, self.labels.len().to_dim()]),
        ])
    }

    /// Writes the output value of each class to `out` and returns the class index. `touched[i]` is true if a
    /// leaf adds to score `i`.
    fn finish<T: Number>(
        &self,
        scores: &mut [T],
        touched: &mut [bool],
        base: &[T],
        out: &mut [f32],
    ) -> usize {
        if let Some(shared) = self.shared {
            return self.finish_two(shared, scores, touched, base, out);
        }
        for ((score, touched), &base) in scores.iter_mut().zip(touched.iter_mut()).zip(base) {
            *score += base;
            *touched = true;
        }
        let mut best: Option<usize> = None;
        for index in (0..scores.len()).filter(|&index| touched[index]) {
            if best.is_none_or(|best| scores[index] > scores[best]) {
                best = Some(index);
            }
        }
        for (out, score) in out.iter_mut().zip(scores) {
            *out = score.to_f32();
        }
        self.post.apply(out);
        best.unwrap_or(0)
    }

    /// Writes the output values like [`Self::finish`], for two classes that share one score.
    fn finish_two<T: Number>(
        &self,
        shared: SharedScore,
        scores: &[T],
        touched: &[bool],
        base: &[T],
        out: &mut [f32],
    ) -> usize {
        let mut score = scores[shared.class];
        for &base in base {
            score += base;
        }
        let pair = self.post.pair(score.to_f32(), shared.single);
        out.copy_from_slice(&pair);
        // If leaves only add to the second class, ONNX Runtime returns 0 for the first class instead of the
        // negated score.
        if touched[1] {
            out.copy_from_slice(&[0.0, score.to_f32()]);
            self.post.apply(out);
        }
        let threshold = match shared.single {
            Single::Probability => 0.5,
            Single::Margin => 0.0,
        };
        usize::from(score > T::from_f64(threshold))
    }
}
