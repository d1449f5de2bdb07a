//! A node with large inputs for each operator, for tests of all kernels. Each arm is a complete case, even
//! where neighbours are alike.

#![allow(clippy::match_same_arms, reason = "an arm for each kind of operator")]

use std::sync::Arc;

use onnx_operators::{Operator, Outputs};
use onnx_tensor::prelude::*;

use crate::operators::node::Direct;
use onnx_tensor::{
    elements::tensor,
    node::{Attribute, Node},
};

/// Number of elements of each large value.
pub(super) const COUNT: usize = 1 << 20;

/// Number of multiplications that count as one step.
const PRODUCTS: usize = 16;

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
    /// Number of outputs, if the operator has optional ones.
    outputs: usize,
    /// Number of steps of the run, if it is not one per element that is read or written.
    pub(super) work: Option<usize>,
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

    /// Sets the number of steps of the run, if it is not one pass over the inputs and outputs.
    fn work(mut self, work: usize) -> Self {
        self.work = Some(work);
        self
    }

    /// Sets the number of multiplications of the run; [`PRODUCTS`] of them count as one step.
    fn products(self, products: usize) -> Self {
        self.work(products / PRODUCTS)
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

/// Builds further cases of an operator, for kernels that its [`case`] does not reach.
pub(super) fn more_cases(operator: &'static Operator) -> Vec<Case> {
    let depthwise = |image: &[usize], weights: &[usize]| Case {
        row: operator,
        attributes: vec![],
        inputs: vec![floats(image), floats(weights)],
        opset: 22,
        outputs: 1,
        work: None,
    };
    match (operator.domain, operator.name) {
        // Images of many lines, and of one long line.
        ("", "Conv") => [
            depthwise(&[1, 4, 512, 512], &[4, 1, 3, 3]),
            depthwise(&[1, 4, 512 * 512], &[4, 1, 9]),
        ]
        .map(|case| case.int("group", 4))
        .into(),
        _ => vec![],
    }
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
        ) => given(vec![of(&[COUNT], 3i32), numbers(&[0])]).opset(18),
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
        // The run copies the second input over the first one in place, so it reads and writes `COUNT`
        // elements each.
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
        // Only the shape of the input is read, and only half of the mask is written.
        (_, "CausalMask") => given(vec![floats(&[1, 1, 1024, 1024])]).work(COUNT),
        (_, "ChannelsLastAveragePool" | "ChannelsLastMaxPool") => {
            given(vec![floats(&[1, 512, 512, 4])]).ints("kernel_shape", &[2, 2])
        }
        (_, "ChannelsLastConv") => {
            given(vec![floats(&[1, 512, 512, 4]), floats(&[4, 4, 3, 3])]).products(36 * COUNT)
        }
        (_, "ChannelsLastGlobalAveragePool") => given(vec![floats(&[1, 512, 512, 4])]),
        (_, "CoarseSigmoid" | "CoarseTanh") => given(vec![row()]),
        (_, "DequantizedMatMul") => given(vec![
            of(&[256, 256], 3u8),
            one(),
            of(&[], 0u8),
            of(&[256, 256], 3u8),
            one(),
            of(&[], 0u8),
        ])
        .products(1 << 24),
        (_, "FusedAttention") => given(vec![floats(&[512, 64]), floats(&[64, 512]), floats(&[512, 64])])
            .opset(13)
            .products(512 * 512 * 128),
        (_, "Requantize") => given(vec![row(), one(), of(&[], 0u8)]),
        (_, "SplitHeads") => given(vec![floats(&[1, 4096, 1024])]).int("num_heads", 8),
        (_, "TransposeLast") => given(vec![floats(&[1, 1, 1024, 1024])]),
        _ => return None,
    })
}
