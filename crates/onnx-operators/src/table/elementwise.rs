//! Rows of the operator table for elementwise operators, which broadcast their inputs.

use crate::{
    operator::{Operator, inner, op},
    types::Types,
};

/// The integer types that `Pow` supports.
const POWERS: Types = Types::I32.and(Types::I64);
/// The attribute that makes binary operators broadcast in operator sets before 7.
const LEGACY: &[&str] = &["broadcast"];
const ALPHA: &[&str] = &["alpha"];

pub(super) const ROWS: &[Operator] = &[
    op("Abs").of(Types::NUMBERS).elementwise(),
    op("Acos").of(Types::FLOATS).in_fp32().elementwise(),
    op("Acosh").since(9).of(Types::FLOATS).in_fp32().elementwise(),
    op("Add").takes(LEGACY).of(Types::NUMBERS).elementwise(),
    op("And").takes(LEGACY).of(Types::BOOL).elementwise(),
    op("Asin").of(Types::FLOATS).in_fp32().elementwise(),
    op("Asinh").since(9).of(Types::FLOATS).in_fp32().elementwise(),
    op("Atan").of(Types::FLOATS).in_fp32().elementwise(),
    op("Atanh").since(9).of(Types::FLOATS).in_fp32().elementwise(),
    op("BitShift").since(11).takes(&["direction"]).elementwise(),
    op("BitwiseAnd").since(18).of(Types::INTEGERS).elementwise(),
    op("BitwiseNot").since(18).of(Types::INTEGERS).elementwise(),
    op("BitwiseOr").since(18).of(Types::INTEGERS).elementwise(),
    op("BitwiseXor").since(18).of(Types::INTEGERS).elementwise(),
    op("Cast").takes(&["saturate", "to"]).of(Types::ALL).elementwise(),
    op("CastLike").since(15).takes(&["saturate"]),
    op("Ceil").of(Types::FLOATS).in_fp32().elementwise(),
    op("Celu")
        .since(12)
        .takes(ALPHA)
        .of(Types::FLOATS)
        .in_fp32()
        .elementwise(),
    op("Clip").takes(&["max", "min"]).of(Types::NUMBERS).in_fp32(),
    op("Cos").of(Types::FLOATS).in_fp32().elementwise(),
    op("Cosh").since(9).of(Types::FLOATS).in_fp32().elementwise(),
    op("Div").takes(LEGACY).of(Types::NUMBERS).elementwise(),
    op("Elu").takes(ALPHA).of(Types::FLOATS).in_fp32().elementwise(),
    op("Equal").takes(LEGACY).of(Types::ALL).elementwise(),
    op("Erf").since(9).of(Types::SHORT_FLOATS).in_fp32().elementwise(),
    op("Exp").of(Types::FLOATS).in_fp32().elementwise(),
    op("Floor").of(Types::FLOATS).in_fp32().elementwise(),
    op("Gelu")
        .since(20)
        .takes(&["approximate"])
        .of(Types::SHORT_FLOATS)
        .in_fp32()
        .elementwise(),
    op("Greater").takes(LEGACY).of(Types::NUMBERS).elementwise(),
    op("GreaterOrEqual").since(12).of(Types::NUMBERS).elementwise(),
    op("HardSigmoid")
        .takes(&["alpha", "beta"])
        .of(Types::FLOATS)
        .in_fp32()
        .elementwise(),
    op("HardSwish")
        .since(14)
        .of(Types::FLOATS)
        .in_fp32()
        .elementwise(),
    op("IsInf")
        .since(10)
        .takes(&["detect_negative", "detect_positive"])
        .of(Types::FLOATS)
        .elementwise(),
    op("IsNaN").since(9).of(Types::FLOATS).elementwise(),
    op("LeakyRelu")
        .takes(ALPHA)
        .of(Types::FLOATS)
        .in_fp32()
        .elementwise(),
    op("Less").takes(LEGACY).of(Types::NUMBERS).elementwise(),
    op("LessOrEqual").since(12).of(Types::NUMBERS).elementwise(),
    op("Log").of(Types::FLOATS).in_fp32().elementwise(),
    op("Max").of(Types::NUMBERS).in_fp32().elementwise(),
    op("Mean").of(Types::FLOATS).in_fp32().elementwise(),
    op("Min").of(Types::NUMBERS).in_fp32().elementwise(),
    op("Mish").since(18).of(Types::FLOATS).in_fp32().elementwise(),
    op("Mod").since(10).takes(&["fmod"]).elementwise(),
    op("Mul").takes(LEGACY).of(Types::NUMBERS).elementwise(),
    op("Neg").of(Types::FLOATS.and(Types::SIGNED)).elementwise(),
    op("Not").of(Types::BOOL).elementwise(),
    op("Or").takes(LEGACY).of(Types::BOOL).elementwise(),
    op("PRelu").of(Types::NUMBERS).in_fp32(),
    op("Pow")
        .takes(LEGACY)
        .of(Types::FLOATS.and(POWERS))
        .in_fp32()
        .elementwise(),
    op("Reciprocal").of(Types::FLOATS).in_fp32().elementwise(),
    op("Relu")
        .of(Types::FLOATS.and(Types::SIGNED))
        .in_fp32()
        .elementwise(),
    op("Round").since(11).of(Types::FLOATS).in_fp32().elementwise(),
    op("Selu")
        .takes(&["alpha", "gamma"])
        .of(Types::FLOATS)
        .in_fp32()
        .elementwise(),
    op("Shrink")
        .since(9)
        .takes(&["bias", "lambd"])
        .of(Types::NUMBERS)
        .in_fp32()
        .elementwise(),
    op("Sigmoid").of(Types::FLOATS).in_fp32().elementwise(),
    op("Sign").since(9).of(Types::NUMBERS).in_fp32().elementwise(),
    op("Sin").of(Types::FLOATS).in_fp32().elementwise(),
    op("Sinh").since(9).of(Types::FLOATS).in_fp32().elementwise(),
    op("Softplus").of(Types::FLOATS).in_fp32().elementwise(),
    op("Softsign").of(Types::FLOATS).in_fp32().elementwise(),
    op("Sqrt").of(Types::FLOATS).in_fp32().elementwise(),
    op("Sub").takes(LEGACY).of(Types::NUMBERS).elementwise(),
    op("Sum").of(Types::FLOATS).in_fp32().elementwise(),
    op("Tan").of(Types::FLOATS).in_fp32().elementwise(),
    op("Tanh").of(Types::FLOATS).in_fp32().elementwise(),
    op("ThresholdedRelu")
        .since(10)
        .takes(ALPHA)
        .of(Types::FLOATS)
        .in_fp32()
        .elementwise(),
    op("Xor").takes(LEGACY).of(Types::BOOL).elementwise(),
    inner("CoarseSigmoid"),
    inner("CoarseTanh"),
];
