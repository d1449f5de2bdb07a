//! `TreeEnsembleClassifier`: from the scores of a forest to labels and probabilities.

use std::sync::{Arc, OnceLock};

use flat_forest::{Aggregate, Forest, Number, Trees};
use tract_hir::internal::*;

use super::{
    super::{
        post::{PostTransform, Second},
        rows::{self, Labels, Rows},
    },
    read::{additions, doubles, trees},
};
use crate::{
    building::BuildContext,
    faults::Refusal,
    lowered::OnnxNode,
    ops::{Attributes, Fact, Kernel, elements, kernel},
};

pub(crate) fn classifier(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    let labels = Labels::read(attributes, "classlabels_int64s", "classlabels_strings")?;
    let classes = labels.len();
    if classes < 2 {
        bail!(Refusal("has a single class".to_owned()));
    }
    let base = doubles(attributes, "base_values")?;
    if !(base.is_empty() || base.len() == classes || (base.len() == 1 && classes == 2)) {
        bail!(Refusal(format!(
            "has {} base values for {classes} classes",
            base.len()
        )));
    }
    let trees = trees(attributes, "class", classes, Aggregate::Sum)?;
    let (scores, all_positive) = additions(&trees);
    Ok(kernel(Classifier {
        rule: Rule {
            labels,
            base,
            post: PostTransform::read(attributes)?,
            is_binary: classes == 2 && scores.iter().filter(|used| **used).count() == 1,
            all_positive,
        },
        trees,
        bound: Default::default(),
    }))
}

/// A classifier before its input's type is known.
#[derive(Debug)]
struct Classifier {
    trees: Trees,
    rule: Rule,
    /// The classifiers of FP32 and FP64, which all plans share.
    bound: [OnceLock<Arc<dyn Kernel>>; 2],
}

/// How scores become a class and probabilities.
#[derive(Clone, Debug)]
struct Rule {
    labels: Labels,
    base: Vec<f64>,
    post: PostTransform,
    /// Two classes of which leaves score one only.
    is_binary: bool,
    /// Whether leaves add nothing negative, so that scores are taken for probabilities.
    all_positive: bool,
}

impl Kernel for Classifier {
    fn name(&self) -> &'static str {
        "TreeEnsembleClassifier"
    }

    fn output_count(&self) -> usize {
        2
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        self.rule.outputs(inputs)
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        self.bound(inputs[0].datum_type()).run(inputs)
    }

    fn specialized(&self, inputs: &[Fact]) -> Option<Arc<dyn Kernel>> {
        Some(self.bound(inputs[0].datum_type))
    }
}

impl Classifier {
    fn bound(&self, datum_type: DatumType) -> Arc<dyn Kernel> {
        let [single, double] = &self.bound;
        let bound = match datum_type {
            DatumType::F64 => double.get_or_init(|| {
                Arc::new(Bound {
                    forest: self.trees.forest::<f64, f64>(),
                    rule: self.rule.clone(),
                    read: |tensor| Rows::read_double(tensor),
                })
            }),
            _ => single.get_or_init(|| {
                Arc::new(Bound {
                    forest: self.trees.forest::<f32, f32>(),
                    rule: self.rule.clone(),
                    read: |tensor| Rows::read(tensor),
                })
            }),
        };
        bound.clone()
    }
}

/// A classifier of one type of input.
#[derive(Debug)]
struct Bound<T: Number> {
    forest: Forest<T>,
    rule: Rule,
    read: fn(&Tensor) -> TractResult<Rows<'_, T>>,
}

impl<T: Number> Kernel for Bound<T> {
    fn name(&self) -> &'static str {
        "TreeEnsembleClassifier"
    }

    fn output_count(&self) -> usize {
        2
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        self.rule.outputs(inputs)
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
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
        Ok(tvec![
            self.rule.labels.of(&classes)?,
            elements::tensor(&[rows.count, width], out)?
        ])
    }
}

impl Rule {
    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let count = rows::count(&inputs[0])?;
        Ok(vec![
            Fact::new(self.labels.datum_type(), [count.clone()]),
            Fact::new(DatumType::F32, [count, self.labels.len().to_dim()]),
        ])
    }

    /// The class, and what is put out for each class, of scores and whether any leaf added to them.
    fn finish<T: Number>(
        &self,
        scores: &mut [T],
        touched: &mut [bool],
        base: &[T],
        out: &mut [f32],
    ) -> usize {
        if let [first, second] = scores {
            let has_second = add_base_to_two(first, second, touched, base);
            return self.finish_two(first.to_f32(), has_second.then(|| second.to_f32()), touched, out);
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

    fn finish_two(&self, first: f32, second: Option<f32>, touched: &[bool], out: &mut [f32]) -> usize {
        // The score of the second class, if leaves told two apart.
        let positive = match second {
            Some(second) if touched[1] => second,
            _ if touched[0] => first,
            _ => 0.0,
        };
        let (is_second, second_score) = match (self.is_binary, self.all_positive) {
            (true, true) => (positive > 0.5, Second::Rest),
            (true, false) => (positive > 0.0, Second::Opposite),
            (false, _) => (positive > 0.0, Second::None),
        };
        match second {
            Some(second) => {
                out.copy_from_slice(&[first, second]);
                self.post.apply(out);
            }
            None => self.post.apply_to_one(first, second_score, out),
        }
        usize::from(is_second)
    }
}

/// Adds base values to the scores of two classes as ONNX Runtime does, and tells whether the second one counts.
fn add_base_to_two<T: Number>(first: &mut T, second: &mut T, touched: &mut [bool], base: &[T]) -> bool {
    match *base {
        [base_first, base_second] => {
            if touched[1] {
                *second = *first;
                *second += base_second;
                *first = -*second;
            } else {
                *first += base_first;
                *second += base_second;
                touched.fill(true);
            }
            touched[1] = true;
            true
        }
        [base] => {
            *first += base;
            touched[0] = true;
            touched[1]
        }
        _ => touched[1],
    }
}
