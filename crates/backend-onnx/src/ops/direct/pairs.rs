//! Functions of two numbers, element by element.

use std::sync::Arc;

use tract_hir::internal::*;

use super::{compute::Compute, fill::broadcast};
use crate::{
    faults::ensure_input,
    ops::{binary::computed, elementwise::has_zero},
    size,
};

#[derive(Clone, Copy, Debug)]
enum Function {
    Add,
    Div,
    Mul,
    Sub,
}

#[derive(Debug)]
pub(super) struct Pair(Function);

impl Pair {
    pub(super) fn of(name: &str) -> Self {
        Self(match name {
            "Add" => Function::Add,
            "Div" => Function::Div,
            "Mul" => Function::Mul,
            _ => Function::Sub,
        })
    }
}

impl Compute for Pair {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let [a, b] = &**inputs else {
            return Ok(None);
        };
        if a.datum_type() != b.datum_type() {
            return Ok(None);
        }
        let datum_type = a.datum_type();
        if !matches!(
            datum_type,
            DatumType::F32 | DatumType::F64 | DatumType::I32 | DatumType::I64
        ) || (matches!(self.0, Function::Div) && !datum_type.is_float())
        {
            return Ok(None);
        }
        let shape = broadcast(&[a.shape(), b.shape()])?;
        size::admit_shape(datum_type, &shape)?;
        ensure_input!(
            !matches!(self.0, Function::Div) || !has_zero(b),
            "an integer would be divided by zero"
        );
        let b = inputs.remove(1).into_tvalue();
        let a = inputs.remove(0).into_tvalue();
        macro_rules! real {
            ($T:ty) => {
                match self.0 {
                    Function::Add => computed::<$T, true>(a, &b, &shape, |a, b| a + b),
                    Function::Div => computed::<$T, true>(a, &b, &shape, |a, b| a / b),
                    Function::Mul => computed::<$T, true>(a, &b, &shape, |a, b| a * b),
                    Function::Sub => computed::<$T, true>(a, &b, &shape, |a, b| a - b),
                }
            };
        }
        macro_rules! whole {
            ($T:ty) => {
                match self.0 {
                    Function::Add => computed::<$T, false>(a, &b, &shape, <$T>::wrapping_add),
                    Function::Mul => computed::<$T, false>(a, &b, &shape, <$T>::wrapping_mul),
                    Function::Div => computed::<$T, false>(a, &b, &shape, <$T>::wrapping_div),
                    _ => computed::<$T, false>(a, &b, &shape, <$T>::wrapping_sub),
                }
            };
        }
        let made = match datum_type {
            DatumType::F32 => real!(f32),
            DatumType::F64 => real!(f64),
            DatumType::I32 => whole!(i32),
            _ => whole!(i64),
        }?;
        Ok(Some(tvec![Arc::new(made)]))
    }
}
