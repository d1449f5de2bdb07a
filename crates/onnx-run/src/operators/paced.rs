//! Tests that every operator ends soon after cancellation, however large its inputs are.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::match_same_arms, reason = "an arm for each kind of operator")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use onnx_graph::proto::{
    AttributeProto, GraphProto, NodeProto, TensorProto, TensorShapeProto, ValueInfoProto, type_proto,
};
use onnx_operators::{Operator, Outputs};
use onnx_tensor::prelude::*;

use crate::operators::node::{Direct, Stop};
use crate::operators::registry::rows;
use crate::{
    RunErrorKind, Session,
    made_up::{constant, model, node},
};
use onnx_tensor::{
    cancelling::{Cancellation, Counter, is_cancelled, while_counted},
    elements::tensor,
    node::{Attribute, Node},
    room::Room,
};

/// Number of elements of each large value.
const COUNT: usize = 1 << 20;

/// Number of steps within which an operator must check for cancellation, on average over its run. A step is an
/// element that is read or written, or more where a case says so.
const WORK: usize = 1 << 18;

/// Multiplications of a step, at most.
const PRODUCTS: usize = 16;

/// Operators that need not check for cancellation.
const EXEMPT: &[(&str, &str)] = &[
    ("Constant", "is taken over before a run"),
    ("Flatten", "gives its input another shape"),
    ("Identity", "gives its input"),
    ("If", "is walked over by the steps"),
    ("Optional", "is walked over by the steps"),
    ("OptionalGetElement", "is walked over by the steps"),
    ("OptionalHasElement", "is walked over by the steps"),
    ("Ranked", "gives its input"),
    ("Reshape", "gives its input another shape"),
    ("SameShape", "gives its input"),
    ("SequenceAt", "is walked over by the steps"),
    ("SequenceConstruct", "is walked over by the steps"),
    ("SequenceEmpty", "is walked over by the steps"),
    ("SequenceErase", "is walked over by the steps"),
    ("SequenceInsert", "is walked over by the steps"),
    ("SequenceLength", "is walked over by the steps"),
    ("Shape", "gives a number for each dimension"),
    ("Size", "gives one number"),
    ("Squeeze", "gives its input another shape"),
    ("Unsqueeze", "gives its input another shape"),
];

/// A node that is ready to run, and its inputs.
pub(super) struct Ready {
    pub(super) direct: Direct,
    pub(super) inputs: ShortVec<Arc<Tensor>>,
}

/// A node and its inputs, for one test run.
pub(super) struct Case {
    row: &'static Operator,
    attributes: Vec<Attribute>,
    inputs: Vec<Option<Tensor>>,
    opset: i64,
    /// Number of outputs, where an operator has optional ones.
    outputs: usize,
    work: Option<usize>,
}

impl Case {
    fn int(mut self, name: &str, i: i64) -> Self {
        self.attributes.push(Attribute {
            name: name.to_owned(),
            i,
            ..Attribute::default()
        });
        self
    }

    fn ints(mut self, name: &str, ints: &[i64]) -> Self {
        let ints = ints.to_vec();
        self.attributes.push(Attribute {
            name: name.to_owned(),
            ints,
            ..Attribute::default()
        });
        self
    }

    fn floats(mut self, name: &str, floats: &[f32]) -> Self {
        let floats = floats.to_vec();
        self.attributes.push(Attribute {
            name: name.to_owned(),
            floats,
            ..Attribute::default()
        });
        self
    }

    fn text(mut self, name: &str, text: &str) -> Self {
        let s = text.as_bytes().to_vec();
        self.attributes.push(Attribute {
            name: name.to_owned(),
            s,
            ..Attribute::default()
        });
        self
    }

    fn texts(mut self, name: &str, texts: &[&str]) -> Self {
        let strings = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        self.attributes.push(Attribute {
            name: name.to_owned(),
            strings,
            ..Attribute::default()
        });
        self
    }

    fn tensor(mut self, name: &str, value: Tensor) -> Self {
        self.attributes.push(Attribute {
            name: name.to_owned(),
            t: Some(Arc::new(value)),
            ..Attribute::default()
        });
        self
    }

    fn opset(mut self, opset: i64) -> Self {
        self.opset = opset;
        self
    }

    /// Prepares the node to run.
    pub(super) fn ready(self) -> Result<Ready> {
        let outputs = match self.row.outputs {
            Outputs::Exactly(count) => count,
            Outputs::Optional => self.outputs,
            Outputs::AsNamed => 2,
        };
        let names = self.inputs.iter().enumerate();
        let node = Node {
            input: names
                .map(|(at, input)| {
                    if input.is_some() {
                        format!("i{at}")
                    } else {
                        String::new()
                    }
                })
                .collect(),
            output: (0..outputs).map(|at| format!("o{at}")).collect(),
            name: self.row.name.to_owned(),
            op_type: self.row.full_name(),
            domain: self.row.domain.to_owned(),
            opset: if self.row.domain.is_empty() { self.opset } else { 1 },
            attribute: self.attributes,
        };
        let inputs: ShortVec<Arc<Tensor>> = self.inputs.into_iter().flatten().map(Arc::new).collect();
        let direct = Direct::new(&node, &vec![None; inputs.len()])?;
        Ok(Ready { direct, inputs })
    }

    fn outputs(mut self, outputs: usize) -> Self {
        self.outputs = outputs;
        self
    }

    /// Sets the work of the run, where it is more than to pass once over inputs and outputs.
    fn work(mut self, work: usize) -> Self {
        self.work = Some(work);
        self
    }

    /// Sets the number of multiplications of the run, of which several make a step.
    fn products(self, products: usize) -> Self {
        self.work(products / PRODUCTS)
    }

    /// Runs the node to its end, and again until it is cancelled at its first check and after half of its
    /// checks. Returns a message if it checks too rarely, or does not end as cancelled.
    fn fault(self) -> Option<String> {
        let work = self.work;
        let Ready { direct, inputs } = match self.ready() {
            Ok(ready) => ready,
            Err(error) => return Some(format!("cannot be made: {error:#}")),
        };
        let run = |most| {
            // Copies the inputs, since a run may overwrite those without other references.
            let mut inputs = inputs.iter().map(|input| Arc::new((**input).clone())).collect();
            while_counted(most, || direct.run(&mut inputs, &mut Room::new()))
        };
        let (made, checks) = run(u64::MAX);
        let made = match made {
            Ok(made) => made,
            Err(Stop::Failed(error)) => return Some(format!("failed: {error:#}")),
            Err(Stop::Refused(error)) => return Some(format!("was refused: {error:#}")),
        };
        let values = || inputs.iter().chain(&made);
        let work = work.unwrap_or_else(|| values().map(|value| value.len()).sum());
        if work < COUNT {
            return Some(format!("is a case of {work} steps only"));
        }
        let least = (work / WORK) as u64;
        if checks < least {
            return Some(format!("makes {checks} checks in {work} steps, expected {least}"));
        }
        for most in [0, checks / 2] {
            match run(most) {
                (Err(Stop::Failed(error)), found) if is_cancelled(&error) && found == most + 1 => {}
                (Err(Stop::Failed(error)), found) if is_cancelled(&error) => {
                    return Some(format!("makes {found} checks, cancelled at {}", most + 1));
                }
                (Err(Stop::Failed(error) | Stop::Refused(error)), _) => {
                    return Some(format!("failed when cancelled: {error:#}"));
                }
                (Ok(_), _) => return Some(format!("ran to its end, cancelled after {most} checks")),
            }
        }
        None
    }
}

fn floats(shape: &[usize]) -> Option<Tensor> {
    tensor(shape, vec![0.5f32; shape.iter().product()]).ok()
}

fn of<T: Element>(shape: &[usize], element: T) -> Option<Tensor> {
    tensor(shape, vec![element; shape.iter().product()]).ok()
}

fn numbers(numbers: &[i64]) -> Option<Tensor> {
    tensor(&[numbers.len()], numbers.to_vec()).ok()
}

/// Builds a case for an operator, by its name and domain.
pub(super) fn case(operator: &'static Operator) -> Option<Case> {
    let given = |inputs: Vec<Option<Tensor>>| Case {
        row: operator,
        attributes: vec![],
        inputs,
        opset: 22,
        outputs: 1,
        work: None,
    };
    let row = || floats(&[COUNT]);
    let image = || floats(&[1, 4, 512, 512]);
    let square = || floats(&[1024, 1024]);
    let one = || of(&[], 0.5f32);
    let text = || of(&[COUNT / 8], "a b".to_owned());
    let bytes = || of(&[COUNT], 3u8);
    let index = || of(&[1024, 1024], 1i64);
    Some(match (operator.domain, operator.name) {
        (
            "",
            "Abs"
            | "Acos"
            | "Acosh"
            | "Asin"
            | "Asinh"
            | "Atan"
            | "Atanh"
            | "Ceil"
            | "Celu"
            | "Cos"
            | "Cosh"
            | "Elu"
            | "Erf"
            | "Exp"
            | "Floor"
            | "Gelu"
            | "HardSigmoid"
            | "HardSwish"
            | "Hardmax"
            | "IsInf"
            | "IsNaN"
            | "LeakyRelu"
            | "Log"
            | "LogSoftmax"
            | "Mean"
            | "Mish"
            | "Neg"
            | "NonZero"
            | "Reciprocal"
            | "Relu"
            | "Round"
            | "Selu"
            | "Shrink"
            | "Sigmoid"
            | "Sign"
            | "Sin"
            | "Sinh"
            | "Softmax"
            | "Softplus"
            | "Softsign"
            | "Sqrt"
            | "Tan"
            | "Tanh"
            | "ThresholdedRelu"
            | "DynamicQuantizeLinear"
            | "Clip"
            | "LpNormalization",
        ) => given(vec![row()]),
        (
            "",
            "Add" | "Div" | "Max" | "Min" | "Mul" | "Sub" | "Sum" | "Pow" | "Mod" | "PRelu" | "Equal"
            | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual",
        ) => given(vec![row(), row()]),
        ("", "And" | "Or" | "Xor") => given(vec![of(&[COUNT], true), of(&[COUNT], true)]),
        ("", "Not") => given(vec![of(&[COUNT], true)]),
        ("", "BitShift") => given(vec![bytes(), bytes()]).text("direction", "LEFT"),
        ("", "BitwiseAnd" | "BitwiseOr" | "BitwiseXor") => given(vec![bytes(), bytes()]),
        ("", "BitwiseNot") => given(vec![bytes()]),
        (
            "",
            "ReduceL1" | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceMax" | "ReduceMean"
            | "ReduceMin" | "ReduceProd" | "ReduceSum" | "ReduceSumSquare",
        ) => given(vec![of(&[COUNT], 3i32)]),
        ("", "ArgMax" | "ArgMin") => given(vec![square()]),
        ("", "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" | "MeanVarianceNormalization") => {
            given(vec![image()])
        }
        ("", "AveragePool" | "MaxPool" | "LpPool") => given(vec![image()]).ints("kernel_shape", &[2, 2]),
        ("", "MaxUnpool") => given(vec![image(), of(&[1, 4, 512, 512], 1i64)]).ints("kernel_shape", &[1, 1]),
        ("", "AffineGrid") => given(vec![floats(&[1, 2, 3]), numbers(&[1, 1, 1024, 1024])]),
        ("", "Attention") => given(vec![floats(&[1, 1, 1024, 8]); 3])
            .opset(23)
            .products(1 << 24),
        ("", "BatchNormalization") => {
            given([vec![floats(&[1, 4, 1024, 1024])], vec![floats(&[4]); 4]].concat())
        }
        ("", "Bernoulli") => given(vec![row()]),
        ("", "BlackmanWindow" | "HammingWindow" | "HannWindow") => given(vec![of(&[], COUNT as i64)]),
        ("", "Cast") => given(vec![row()]).int("to", 7),
        ("", "CastLike") => given(vec![row(), of(&[], 1i64)]),
        ("", "Col2Im") => given(vec![
            floats(&[1, 4, 512 * 512]),
            numbers(&[1024, 1024]),
            numbers(&[2, 2]),
        ])
        .ints("strides", &[2, 2]),
        ("", "Compress") => given(vec![row(), of(&[COUNT], true)]),
        ("", "Concat") => given(vec![row(), row()]).int("axis", 0),
        ("", "ConstantOfShape") => given(vec![numbers(&[1 << 20])]),
        ("", "Conv") => given(vec![image(), floats(&[4, 4, 3, 3])]).products(36 * COUNT),
        ("", "ConvInteger") => given(vec![of(&[1, 4, 512, 512], 3u8), of(&[4, 4, 3, 3], 3u8)]),
        ("", "QLinearConv") => given(vec![
            of(&[1, 4, 512, 512], 3u8),
            one(),
            of(&[], 0u8),
            of(&[4, 4, 3, 3], 3u8),
            one(),
            of(&[], 0u8),
            one(),
            of(&[], 0u8),
        ]),
        ("", "ConvTranspose") => given(vec![image(), floats(&[4, 4, 2, 2])]),
        ("", "Dropout") => given(vec![row()]).outputs(2),
        ("", "CumSum") => given(vec![row(), of(&[], 0i64)]),
        ("", "DFT") => given(vec![floats(&[1, COUNT, 1]), None, of(&[], 1i64)]).opset(20),
        ("", "DepthToSpace" | "SpaceToDepth") => given(vec![image()]).int("blocksize", 2),
        ("", "DequantizeLinear") => given(vec![bytes(), one()]),
        ("", "QuantizeLinear") => given(vec![row(), one()]),
        ("", "Det") => given(vec![floats(&[COUNT / 4, 2, 2])]),
        ("", "Einsum") => given(vec![floats(&[256, 256]); 2])
            .text("equation", "ab,bc->ac")
            .products(1 << 24),
        ("", "Expand") => given(vec![one(), numbers(&[COUNT as i64])]),
        ("", "EyeLike") => given(vec![square()]),
        ("", "GRU") => given(vec![
            floats(&[1 << 13, 1, 8]),
            floats(&[1, 48, 8]),
            floats(&[1, 48, 16]),
        ])
        .int("hidden_size", 16)
        .products(2 * 8192 * 48 * 24),
        ("", "LSTM") => given(vec![
            floats(&[1 << 13, 1, 8]),
            floats(&[1, 64, 8]),
            floats(&[1, 64, 16]),
        ])
        .int("hidden_size", 16)
        .products(2 * 8192 * 64 * 24),
        ("", "RNN") => given(vec![
            floats(&[1024, 1, 64]),
            floats(&[1, 64, 64]),
            floats(&[1, 64, 64]),
        ])
        .int("hidden_size", 64)
        .products(2 * 1024 * 64 * 128),
        ("", "Gather") => given(vec![row(), of(&[COUNT], 1i64)]),
        ("", "GatherElements") => given(vec![square(), index()]),
        ("", "GatherND") => given(vec![row(), of(&[COUNT, 1], 1i64)]),
        ("", "Scatter") => given(vec![square(), index(), square()]).opset(10),
        ("", "ScatterElements") => given(vec![square(), index(), square()]),
        ("", "ScatterND") => given(vec![row(), of(&[COUNT, 1], 1i64), row()]),
        ("", "Gemm" | "MatMul") => given(vec![floats(&[256, 256]); 2]).products(1 << 24),
        ("", "MatMulInteger") => given(vec![of(&[256, 256], 3u8), of(&[256, 256], 3u8)]).products(1 << 24),
        ("", "QLinearMatMul") => given(vec![
            of(&[256, 256], 3u8),
            one(),
            of(&[], 0u8),
            of(&[256, 256], 3u8),
            one(),
            of(&[], 0u8),
            one(),
            of(&[], 0u8),
        ])
        .products(1 << 24),
        ("", "GridSample") => given(vec![floats(&[1, 1, 8, 8]), floats(&[1, 512, 512, 2])]).work(COUNT),
        ("", "GroupNormalization") => given(vec![image(), floats(&[4]), floats(&[4])]).int("num_groups", 2),
        ("", "InstanceNormalization") => given(vec![image(), floats(&[4]), floats(&[4])]),
        ("", "LayerNormalization") => given(vec![square(), floats(&[1024])]),
        ("", "RMSNormalization") => given(vec![square(), floats(&[1024])]).opset(23),
        ("", "LRN") => given(vec![image()]).int("size", 3),
        ("", "MelWeightMatrix") => given(vec![
            of(&[], 1024i64),
            of(&[], 16384i64),
            of(&[], 16384i64),
            of(&[], 1.0f32),
            of(&[], 8000.0f32),
        ]),
        ("", "NonMaxSuppression") => {
            given(vec![floats(&[1, 512, 4]), floats(&[1, 8, 512]), of(&[], 512i64)]).work(512 * 512 / 2 * 8)
        }
        ("", "OneHot") => given(vec![of(&[COUNT], 1i64), of(&[], 2i64), floats(&[2])]),
        ("", "Pad") => given(vec![row(), numbers(&[1, 1])]),
        ("", "RandomNormal" | "RandomUniform") => given(vec![]).ints("shape", &[COUNT as i64]),
        ("", "RandomNormalLike" | "RandomUniformLike") => given(vec![row()]),
        ("", "Range") => given(vec![of(&[], 0i64), of(&[], COUNT as i64), of(&[], 1i64)]),
        ("", "RegexFullMatch") => given(vec![text()]).text("pattern", "a.*").work(COUNT),
        ("", "Resize") => given(vec![
            of(&[512, 512], 3u8),
            None,
            floats(&[2]).map(|_| tensor(&[2], vec![2.0f32, 2.0]).unwrap()),
        ])
        .text("mode", "linear"),
        ("", "Upsample") => given(vec![square(), tensor(&[2], vec![2.0f32, 2.0]).ok()]).opset(9),
        ("", "ReverseSequence") => given(vec![square(), of(&[1024], 1024i64)]),
        ("", "RoiAlign") => given(vec![
            floats(&[1, 4, 16, 16]),
            floats(&[1024, 4]),
            of(&[1024], 0i64),
        ])
        .int("output_height", 16)
        .int("output_width", 16)
        .int("sampling_ratio", 2),
        ("", "RotaryEmbedding") => given(vec![
            floats(&[1, 1, COUNT / 8, 8]),
            floats(&[1, COUNT / 8, 4]),
            floats(&[1, COUNT / 8, 4]),
        ])
        .opset(23),
        ("com.microsoft", "RotaryEmbedding") => given(vec![
            floats(&[1, 1, COUNT / 8, 8]),
            of(&[1], 0i64),
            floats(&[COUNT / 8, 4]),
            floats(&[COUNT / 8, 4]),
        ]),
        ("", "STFT") => given(vec![
            floats(&[1, 1 << 16, 1]),
            of(&[], 16i64),
            None,
            of(&[], 256i64),
        ]),
        ("", "Slice") => given(vec![
            row(),
            numbers(&[1]),
            numbers(&[COUNT as i64]),
            numbers(&[0]),
            numbers(&[1]),
        ]),
        ("", "Split") => given(vec![row()]).int("num_outputs", 2),
        ("", "StringConcat") => given(vec![text(), text()]).work(COUNT),
        ("", "StringNormalizer") => given(vec![text()])
            .text("case_change_action", "LOWER")
            .work(COUNT),
        ("", "StringSplit") => given(vec![text()]).work(COUNT),
        ("", "TfIdfVectorizer") => given(vec![of(&[COUNT], 3i64)])
            .text("mode", "TF")
            .int("min_gram_length", 1)
            .int("max_gram_length", 1)
            .int("max_skip_count", 0)
            .ints("pool_int64s", &[3])
            .ints("ngram_counts", &[0])
            .ints("ngram_indexes", &[0]),
        ("", "Tile") => given(vec![row(), numbers(&[2])]),
        ("", "TopK") => given(vec![row(), numbers(&[COUNT as i64])]).work(12 * COUNT),
        ("", "Transpose") => given(vec![square()]).ints("perm", &[1, 0]),
        ("", "Trilu") => given(vec![square()]),
        ("", "Unique") => given(vec![row()]).work(12 * COUNT),
        ("", "Where") => given(vec![of(&[COUNT], true), row(), row()]),
        ("ai.onnx.ml", "ArrayFeatureExtractor") => given(vec![square(), of(&[1024], 1i64)]),
        ("ai.onnx.ml", "Binarizer" | "Normalizer") => given(vec![square()]),
        ("ai.onnx.ml", "FeatureVectorizer") => given(vec![square()]).ints("inputdimensions", &[1024]),
        ("ai.onnx.ml", "Imputer") => given(vec![square()]).floats("imputed_value_floats", &[1.0]),
        ("ai.onnx.ml", "LabelEncoder") => given(vec![of(&[COUNT], 3i64)])
            .ints("keys_int64s", &[3])
            .ints("values_int64s", &[4]),
        ("ai.onnx.ml", "LinearClassifier") => given(vec![floats(&[COUNT, 1])])
            .floats("coefficients", &[1.0, 2.0])
            .floats("intercepts", &[0.0, 0.0])
            .ints("classlabels_ints", &[0, 1]),
        ("ai.onnx.ml", "LinearRegressor") => given(vec![floats(&[COUNT, 1])])
            .floats("coefficients", &[1.0])
            .floats("intercepts", &[0.0])
            .int("targets", 1),
        ("ai.onnx.ml", "OneHotEncoder") => given(vec![of(&[COUNT], 3i64)]).ints("cats_int64s", &[3]),
        ("ai.onnx.ml", "Scaler") => given(vec![square()])
            .floats("offset", &[1.0])
            .floats("scale", &[2.0]),
        ("ai.onnx.ml", "SVMClassifier") => given(vec![floats(&[COUNT, 1])])
            .floats("coefficients", &[1.0, -1.0])
            .floats("rho", &[0.0])
            .floats("support_vectors", &[1.0, 2.0])
            .ints("vectors_per_class", &[1, 1])
            .ints("classlabels_ints", &[0, 1])
            .text("kernel_type", "LINEAR")
            .floats("kernel_params", &[1.0, 0.0, 1.0]),
        ("ai.onnx.ml", "SVMRegressor") => given(vec![floats(&[COUNT, 1])])
            .floats("coefficients", &[1.0])
            .floats("rho", &[0.0])
            .floats("support_vectors", &[1.0])
            .int("n_supports", 1)
            .text("kernel_type", "LINEAR")
            .floats("kernel_params", &[1.0, 0.0, 1.0]),
        ("ai.onnx.ml", "TreeEnsemble") => given(vec![floats(&[COUNT / 2, 1])])
            .int("n_targets", 1)
            .ints("tree_roots", &[0])
            .ints("nodes_featureids", &[0])
            .tensor("nodes_modes", Tensor::vector(&[0u8]))
            .tensor("nodes_splits", Tensor::vector(&[0.5f32]))
            .ints("nodes_trueleafs", &[1])
            .ints("nodes_truenodeids", &[0])
            .ints("nodes_falseleafs", &[1])
            .ints("nodes_falsenodeids", &[0])
            .ints("leaf_targetids", &[0])
            .tensor("leaf_weights", Tensor::vector(&[1.0f32])),
        ("ai.onnx.ml", "TreeEnsembleRegressor") => given(vec![floats(&[COUNT / 2, 1])])
            .int("n_targets", 1)
            .ints("nodes_treeids", &[0])
            .ints("nodes_nodeids", &[0])
            .ints("nodes_featureids", &[0])
            .texts("nodes_modes", &["LEAF"])
            .floats("nodes_values", &[0.0])
            .ints("nodes_truenodeids", &[0])
            .ints("nodes_falsenodeids", &[0])
            .ints("target_treeids", &[0])
            .ints("target_nodeids", &[0])
            .ints("target_ids", &[0])
            .floats("target_weights", &[1.0]),
        ("ai.onnx.ml", "TreeEnsembleClassifier") => given(vec![floats(&[COUNT / 2, 1])])
            .ints("nodes_treeids", &[0])
            .ints("nodes_nodeids", &[0])
            .ints("nodes_featureids", &[0])
            .texts("nodes_modes", &["LEAF"])
            .floats("nodes_values", &[0.0])
            .ints("nodes_truenodeids", &[0])
            .ints("nodes_falsenodeids", &[0])
            .ints("class_treeids", &[0])
            .ints("class_nodeids", &[0])
            .ints("class_ids", &[0])
            .floats("class_weights", &[1.0])
            .ints("classlabels_int64s", &[0, 1]),
        ("com.microsoft", "DynamicQuantizeLSTM") => given(vec![
            floats(&[1 << 13, 1, 8]),
            of(&[1, 8, 64], 3u8),
            of(&[1, 16, 64], 3u8),
            None,
            None,
            None,
            None,
            None,
            floats(&[1]),
            of(&[1], 0u8),
            floats(&[1]),
            of(&[1], 0u8),
        ])
        .int("hidden_size", 16)
        .products(2 * 8192 * 64 * 24),
        ("com.microsoft", "GroupQueryAttention") => given(vec![
            floats(&[1, 1024, 8]),
            floats(&[1, 1024, 8]),
            floats(&[1, 1024, 8]),
            None,
            None,
            of(&[1], 1023i32),
            of(&[], 1024i32),
        ])
        .int("num_heads", 1)
        .int("kv_num_heads", 1)
        .products(1 << 24),
        ("com.microsoft", "QLinearAdd" | "QLinearMul") => given(vec![
            bytes(),
            one(),
            of(&[], 0u8),
            bytes(),
            one(),
            of(&[], 0u8),
            one(),
            of(&[], 0u8),
        ]),
        ("com.microsoft", "MoE") => given(vec![
            floats(&[2048, 64]),
            floats(&[2048, 2]),
            floats(&[2, 64, 64]),
            None,
            floats(&[2, 64, 64]),
        ])
        .products(1 << 24),
        ("com.microsoft", "QMoE") => given(vec![
            floats(&[2048, 64]),
            floats(&[2048, 2]),
            of(&[2, 64, 32], 3u8),
            floats(&[2, 64]),
            None,
            of(&[2, 64, 32], 3u8),
            floats(&[2, 64]),
        ])
        .products(1 << 24),
        ("com.microsoft", "MatMulNBits") => given(vec![
            floats(&[256, 256]),
            of(&[256, 16, 8], 3u8),
            floats(&[256 * 16]),
        ])
        .int("K", 256)
        .int("N", 256)
        .int("bits", 4)
        .int("block_size", 16)
        .products(1 << 24),
        (domain, "GatherBlockQuantized") => {
            let blocks = if domain.is_empty() || domain == "com.microsoft" {
                16
            } else {
                8
            };
            given(vec![
                of(&[256, 128], 3u8),
                of(&[1 << 13], 1i64),
                floats(&[256, blocks]),
            ])
            .int("bits", 4)
            .int("block_size", 16)
            .int("gather_axis", 0)
            .int("quantize_axis", 1)
        }
        ("com.microsoft", "Tokenizer") => given(vec![text()])
            .texts("separators", &[" "])
            .text("pad_value", "#")
            .int("mark", 0)
            .int("mincharnum", 1)
            .work(2 * COUNT),
        (_, "AttentionMask") => given(vec![of(&[1024, 1024], 1i32), floats(&[1024, 1, 1, 1024])]),
        ("", "TensorScatter") => given(vec![
            floats(&[1, 1, COUNT / 8, 8]),
            floats(&[1, 1, COUNT / 8, 8]),
            numbers(&[0]),
        ])
        .opset(24)
        // Writes half of what the run reads, over the input.
        .work(2 * COUNT),
        ("com.microsoft", "MatMulBnb4") => given(vec![
            floats(&[256, 256]),
            of(&[256 * 128], 3u8),
            floats(&[256 * 16]),
        ])
        .int("K", 256)
        .int("N", 256)
        .int("quant_type", 1)
        .int("block_size", 16)
        .products(1 << 24),
        ("", "DeformConv") => given(vec![
            floats(&[1, 1, 512, 512]),
            floats(&[1, 1, 1, 1]),
            floats(&[1, 2, 512, 512]),
        ])
        .opset(19),
        ("", "CenterCropPad") => given(vec![square(), numbers(&[1024, 1000])]).opset(18),
        ("", "NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss") => {
            given(vec![floats(&[COUNT / 2, 2]), of(&[COUNT / 2], 1i64)])
        }
        ("com.microsoft", "LinearAttention") => given(vec![floats(&[1, 4096, 16]); 3])
            .text("update_rule", "linear")
            .int("q_num_heads", 1)
            .int("kv_num_heads", 1)
            .work(4096 * 16 * 16 * 2),
        ("com.microsoft", "CausalConvWithState") => {
            given(vec![floats(&[1, 4, COUNT / 4]), floats(&[4, 1, 4])])
        }
        (_, "CachedRows") => given(vec![
            floats(&[1, 1, COUNT / 8, 8]),
            of(&[], COUNT as i64 / 8 - 1),
            floats(&[1, 1, 1, 8]),
            of(&[1, 1, COUNT / 8], 0i64),
        ]),
        // Half of the mask is written.
        (_, "CausalMask") => given(vec![floats(&[1, 1, 1024, 1024])]).work(COUNT),
        (_, "CoarseSigmoid" | "CoarseTanh") => given(vec![row()]),
        (_, "Requantize") => given(vec![row(), one(), of(&[], 0u8)]),
        (_, "SplitHeads") => given(vec![floats(&[1, 4096, 1024])]).int("num_heads", 8),
        (_, "TransposeLast") => given(vec![floats(&[1, 1, 1024, 1024])]),
        _ => return None,
    })
}

/// A graph around an operator that the steps compute, and the shape of its input `x`.
struct Graph {
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    shape: Vec<usize>,
}

fn attribute(name: &str, value: AttributeProto) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        ..value
    }
}

fn number(name: &str, i: i64) -> AttributeProto {
    let value = AttributeProto {
        i,
        r#type: 2,
        ..AttributeProto::default()
    };
    attribute(name, value)
}

fn body(graph: GraphProto) -> AttributeProto {
    let value = AttributeProto {
        g: Some(graph),
        r#type: 5,
        ..AttributeProto::default()
    };
    attribute("body", value)
}

/// Builds a graph for an operator that the steps compute.
fn graph(operator: &Operator) -> Option<Graph> {
    let x = |shape: &[usize], nodes: Vec<NodeProto>| Graph {
        nodes,
        constants: vec![],
        shape: shape.to_vec(),
    };
    let with = |op_type: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>| NodeProto {
        attribute,
        ..node(op_type, inputs, output)
    };
    Some(match operator.name {
        "ConcatFromSequence" => x(
            &[COUNT],
            vec![
                node("SequenceConstruct", &["x", "x"], "s"),
                with(
                    "ConcatFromSequence",
                    &["s"],
                    "y",
                    vec![number("axis", 1), number("new_axis", 1)],
                ),
            ],
        ),
        "SplitToSequence" => Graph {
            constants: vec![integer("at", 7)],
            ..x(
                &[2048, 1024],
                vec![
                    with("SplitToSequence", &["x"], "s", vec![number("axis", 1)]),
                    node("SequenceAt", &["s", "at"], "y"),
                ],
            )
        },
        "Scan" => {
            let row = model(vec![node("Identity", &["row"], "made")], &[-1], &[-1], vec![]).graph;
            let mut row = row.unwrap();
            "row".clone_into(&mut row.input[0].name);
            "made".clone_into(&mut row.output[0].name);
            let axes = AttributeProto {
                ints: vec![1],
                r#type: 7,
                ..AttributeProto::default()
            };
            let axes = attribute("scan_output_axes", axes);
            let scan = vec![number("num_scan_inputs", 1), body(row), axes];
            x(&[2, COUNT], vec![with("Scan", &["x"], "y", scan)])
        }
        "Loop" => {
            let nodes = vec![
                node("Identity", &["go"], "goes"),
                node("Identity", &["x"], "made"),
            ];
            let mut rows = model(nodes, &[-1], &[-1], vec![]).graph.unwrap();
            let port = |port: &ValueInfoProto, name: &str, element_type: i32, is_scalar: bool| {
                let mut port = port.clone();
                name.clone_into(&mut port.name);
                if let Some(type_proto::Value::TensorType(tensor)) =
                    port.r#type.as_mut().and_then(|found| found.value.as_mut())
                {
                    tensor.elem_type = element_type;
                    if is_scalar {
                        tensor.shape = Some(TensorShapeProto::default());
                    }
                }
                port
            };
            let (input, output) = (rows.input[0].clone(), rows.output[0].clone());
            rows.input = vec![port(&input, "i", 7, true), port(&input, "go", 9, true)];
            rows.output = vec![port(&input, "goes", 9, true), port(&output, "made", 1, false)];
            Graph {
                constants: vec![integer("count", 2)],
                ..x(
                    &[COUNT],
                    vec![with("Loop", &["count", ""], "y", vec![body(rows)])],
                )
            }
        }
        _ => return None,
    })
}

fn integer(name: &str, number: i64) -> TensorProto {
    TensorProto {
        data_type: 7,
        raw_data: number.to_le_bytes().to_vec().into(),
        ..constant(name, &[])
    }
}

impl Graph {
    /// Runs the graph like [`Case::fault`]. It copies its input twice; the checks between steps are few.
    fn fault(self) -> Option<String> {
        const LEAST: u64 = 6 * (COUNT / WORK) as u64;
        let dims = vec![-1; self.shape.len()];
        let session = Session::prepare(&model(self.nodes, &dims, &[-1, -1], self.constants), |_| Ok(()));
        let session = match session {
            Ok(session) => session.with_threads(1),
            Err(error) => return Some(format!("cannot be made: {error}")),
        };
        let run = |most: u64| {
            let token = Arc::new(Counter::new(most));
            let cancellation: Arc<dyn Cancellation> = token.clone();
            let made = session.run_until([Tensor::zero::<f32>(&self.shape).unwrap()], &cancellation);
            (made.map_err(|error| error.kind()), token.checks())
        };
        match run(u64::MAX) {
            (Ok(_), checks) if checks >= LEAST => {}
            (made, checks) => {
                let made = made.map(|_| ());
                return Some(format!("makes {checks} checks, expected {LEAST}: {made:?}"));
            }
        }
        match run(LEAST - 1) {
            (Err(RunErrorKind::Cancelled), LEAST) => None,
            (made, checks) => {
                let made = made.map(|_| ());
                Some(format!("makes {checks} checks, cancelled at {LEAST}: {made:?}"))
            }
        }
    }
}

#[test]
fn every_operator_checks_for_cancellation_all_the_way() {
    let rows: Vec<&'static Operator> = rows().collect();
    let fault = |row: &'static Operator| {
        let is_exempt = EXEMPT.iter().any(|(name, _)| *name == row.name);
        if let Some(graph) = graph(row) {
            return graph.fault();
        }
        match case(row) {
            None if is_exempt => None,
            None => Some("no case".to_owned()),
            Some(_) if is_exempt => Some("exempt, and a case".to_owned()),
            Some(case) => case.fault(),
        }
    };
    let next = AtomicUsize::new(0);
    let work = || {
        let mut faults = Vec::new();
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            faults.extend(fault(row).map(|fault| format!("{}: {fault}", row.name)));
        }
        faults
    };
    let faults: Vec<String> = thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(
        faults.is_empty(),
        "{} of {}:\n{}",
        faults.len(),
        rows.len(),
        faults.join("\n")
    );
}
