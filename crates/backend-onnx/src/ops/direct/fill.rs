//! Elements repeated, chosen and compared.

use std::sync::Arc;

use tract_hir::internal::*;

use super::{
    compute::{Compute, integers},
    moves::empty,
};
use crate::{
    cancelling::Pace,
    faults::ensure_input,
    ops::{
        axis::axis,
        elements::{Element, elements, filled},
    },
    size,
};

/// The shape that all of these are repeated to.
pub(super) fn broadcast(shapes: &[&[usize]]) -> TractResult<TVec<usize>> {
    let shape = tract_core::broadcast::multi_broadcast(shapes);
    ensure_input!(shape.is_ok(), "the shapes {shapes:?} do not fit together");
    shape
}

/// How far apart in a value are the elements that follow each other along the axes of a shape it is repeated to: 0 where they are the
/// same one.
fn steps(from: &[usize], shape: &[usize]) -> TVec<usize> {
    let mut steps: TVec<usize> = tvec![0; shape.len()];
    let mut step = 1;
    for (at, &size) in from.iter().rev().enumerate() {
        if size != 1 {
            steps[shape.len() - 1 - at] = step;
        }
        step *= size;
    }
    steps
}

/// Calls with the places of values' elements where each line of a shape begins, and the number of the line.
fn lines<const N: usize>(
    steps: &[TVec<usize>; N],
    shape: &[usize],
    mut line: impl FnMut([usize; N], usize) -> TractResult<()>,
) -> TractResult<()> {
    let outer = shape.len().saturating_sub(1);
    let count: usize = shape[..outer].iter().product();
    let mut place: TVec<usize> = tvec![0; outer];
    let mut at = [0; N];
    for number in 0..count {
        line(at, number)?;
        for axis in (0..outer).rev() {
            place[axis] += 1;
            (0..N).for_each(|value| at[value] += steps[value][axis]);
            if place[axis] < shape[axis] {
                break;
            }
            (0..N).for_each(|value| at[value] -= steps[value][axis] * shape[axis]);
            place[axis] = 0;
        }
    }
    Ok(())
}

/// A value repeated to a shape.
fn repeated(from: &Tensor, shape: &[usize]) -> TractResult<Tensor> {
    let mut made = empty(from.datum_type(), shape)?;
    if made.len() == 0 {
        return Ok(made);
    }
    let size = from.datum_type().size_of();
    let steps = steps(from.shape(), shape);
    let width = shape.last().copied().unwrap_or(1);
    let step = steps.last().copied().unwrap_or(0);
    let (given, mut pace) = (from.as_bytes(), Pace::default());
    let made_bytes = made.as_bytes_mut();
    lines(&[steps], shape, |[at], number| {
        pace.spend(width as u64 / 4 + 1)?;
        let to = &mut made_bytes[number * width * size..][..width * size];
        match step {
            0 => {
                let one = &given[at * size..][..size];
                to.chunks_exact_mut(size).for_each(|to| to.copy_from_slice(one));
            }
            _ => to.copy_from_slice(&given[at * size..][..width * size]),
        }
        Ok(())
    })?;
    Ok(made)
}

#[derive(Debug)]
pub(super) struct Expand;

impl Compute for Expand {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let [input, wanted] = &**inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        if !input.datum_type().is_copy() {
            return Ok(None);
        }
        let wanted = sizes(&integers(wanted)?)?;
        let shape = broadcast(&[input.shape(), &wanted])?;
        Ok(Some(tvec![match shape[..] == *input.shape() {
            true => input.clone(),
            false => Arc::new(repeated(input, &shape)?),
        }]))
    }
}

/// Numbers of a request as sizes.
fn sizes(numbers: &[i64]) -> TractResult<TVec<usize>> {
    let sizes: Option<TVec<usize>> = numbers
        .iter()
        .map(|&number| usize::try_from(number).ok())
        .collect();
    ensure_input!(sizes.is_some(), "dimensions {numbers:?} are wanted");
    Ok(sizes.unwrap_or_default())
}

#[derive(Debug)]
pub(super) struct ConstantOfShape(pub(super) Arc<Tensor>);

impl Compute for ConstantOfShape {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        if !self.0.datum_type().is_copy() || self.0.len() != 1 {
            return Ok(None);
        }
        let shape = sizes(&integers(&inputs[0])?)?;
        let one = (*self.0).clone().into_shape(&[])?;
        Ok(Some(tvec![Arc::new(repeated(&one, &shape)?)]))
    }
}

#[derive(Debug)]
pub(super) struct Where;

impl Compute for Where {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let [condition, yes, no] = &**inputs else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        let datum_type = yes.datum_type();
        if !datum_type.is_copy() || no.datum_type() != datum_type || condition.datum_type() != DatumType::Bool
        {
            return Ok(None);
        }
        let shape = broadcast(&[condition.shape(), yes.shape(), no.shape()])?;
        let mut made = empty(datum_type, &shape)?;
        if made.len() == 0 {
            return Ok(Some(tvec![Arc::new(made)]));
        }
        let size = datum_type.size_of();
        let all = [condition, yes, no].map(|value| steps(value.shape(), &shape));
        let last = all.each_ref().map(|steps| steps.last().copied().unwrap_or(0));
        let width = shape.last().copied().unwrap_or(1);
        let conditions = elements::<bool>(condition)?;
        let (yes, no, mut pace) = (yes.as_bytes(), no.as_bytes(), Pace::default());
        let made_bytes = made.as_bytes_mut();
        lines(&all, &shape, |[at, at_yes, at_no], number| {
            pace.spend(width as u64 + 1)?;
            let to = &mut made_bytes[number * width * size..][..width * size];
            macro_rules! chosen {
                ($size:literal) => {{
                    let (yes, no) = (yes.as_chunks::<$size>().0, no.as_chunks::<$size>().0);
                    for (place, to) in to.as_chunks_mut::<$size>().0.iter_mut().enumerate() {
                        *to = match conditions[at + place * last[0]] {
                            true => yes[at_yes + place * last[1]],
                            false => no[at_no + place * last[2]],
                        };
                    }
                }};
            }
            match size {
                1 => chosen!(1),
                2 => chosen!(2),
                4 => chosen!(4),
                8 => chosen!(8),
                _ => {
                    for (place, to) in to.chunks_exact_mut(size).enumerate() {
                        let from = match conditions[at + place * last[0]] {
                            true => &yes[(at_yes + place * last[1]) * size..],
                            false => &no[(at_no + place * last[2]) * size..],
                        };
                        to.copy_from_slice(&from[..size]);
                    }
                }
            }
            Ok(())
        })?;
        Ok(Some(tvec![Arc::new(made)]))
    }
}

/// A comparison of numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Compare {
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

impl Compare {
    pub(super) fn of(name: &str) -> Self {
        match name {
            "Equal" => Self::Equal,
            "Greater" => Self::Greater,
            "GreaterOrEqual" => Self::GreaterOrEqual,
            "Less" => Self::Less,
            _ => Self::LessOrEqual,
        }
    }

    fn compared<T: Element + PartialOrd>(self, a: &Tensor, b: &Tensor) -> TractResult<Tensor> {
        let shape = broadcast(&[a.shape(), b.shape()])?;
        size::admit_shape(DatumType::Bool, &shape)?;
        let all = [a, b].map(|value| steps(value.shape(), &shape));
        let last = all.each_ref().map(|steps| steps.last().copied().unwrap_or(0));
        let width = shape.last().copied().unwrap_or(1);
        let (a, b) = (elements::<T>(a)?, elements::<T>(b)?);
        let mut pace = Pace::default();
        filled(&shape, |made: &mut [bool]| {
            if made.is_empty() {
                return Ok(());
            }
            lines(&all, &shape, |[at_a, at_b], number| {
                pace.spend(width as u64 + 1)?;
                let to = &mut made[number * width..][..width];
                macro_rules! each {
                    ($op:tt) => {
                        for (place, to) in to.iter_mut().enumerate() {
                            *to = a[at_a + place * last[0]] $op b[at_b + place * last[1]];
                        }
                    };
                }
                match self {
                    Self::Equal => each!(==),
                    Self::Greater => each!(>),
                    Self::GreaterOrEqual => each!(>=),
                    Self::Less => each!(<),
                    Self::LessOrEqual => each!(<=),
                }
                Ok(())
            })
        })
    }
}

impl Compute for Compare {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let [a, b] = &**inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        if a.datum_type() != b.datum_type() {
            return Ok(None);
        }
        let made = match a.datum_type() {
            DatumType::F32 => self.compared::<f32>(a, b),
            DatumType::F64 => self.compared::<f64>(a, b),
            DatumType::I64 => self.compared::<i64>(a, b),
            DatumType::I32 => self.compared::<i32>(a, b),
            DatumType::Bool if matches!(self, Self::Equal) => self.compared::<bool>(a, b),
            _ => return Ok(None),
        }?;
        Ok(Some(tvec![Arc::new(made)]))
    }
}

/// `Split` into parts of given sizes, or of equal ones.
#[derive(Debug)]
pub(super) struct Split {
    pub(super) axis: i64,
    pub(super) sizes: Option<Vec<i64>>,
    /// How many parts there are where no sizes are given; the last one may be smaller if `rounds_up`.
    pub(super) count: usize,
    pub(super) rounds_up: bool,
}

impl Compute for Split {
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>> {
        let input = &inputs[0];
        if !input.datum_type().is_copy() {
            return Ok(None);
        }
        let axis = axis(self.axis, input.rank())?;
        let shape = input.shape();
        let whole = shape[axis];
        let given = match (inputs.get(1), &self.sizes) {
            (Some(sizes), _) => Some(integers(sizes)?),
            (None, given) => given.clone(),
        };
        let parts: TVec<usize> = match given {
            Some(given) => sizes(&given)?,
            None => {
                ensure_input!(
                    self.rounds_up || whole.is_multiple_of(self.count.max(1)),
                    "{whole} elements along axis {axis} are to be cut into {} equal parts",
                    self.count
                );
                let each = whole.div_ceil(self.count.max(1));
                let mut left = whole;
                (0..self.count)
                    .map(|_| {
                        let part = each.min(left);
                        left -= part;
                        part
                    })
                    .collect()
            }
        };
        let all = parts.iter().try_fold(0usize, |all, &part| all.checked_add(part));
        ensure_input!(
            all == Some(whole) && parts.len() == self.count,
            "parts {parts:?} of {whole} elements along axis {axis} for {} outputs",
            self.count
        );
        let inner = shape[axis + 1..].iter().product::<usize>() * input.datum_type().size_of();
        let mut made: TVec<Arc<Tensor>> = tvec![];
        let mut begin = 0;
        for part in parts {
            let mut of_part: TVec<usize> = shape.into();
            of_part[axis] = part;
            let mut tensor = empty(input.datum_type(), &of_part)?;
            if tensor.len() > 0 {
                let width = part * inner;
                let rows = input.as_bytes().chunks_exact(whole * inner);
                for (from, to) in rows.zip(tensor.as_bytes_mut().chunks_exact_mut(width)) {
                    to.copy_from_slice(&from[begin * inner..][..width]);
                }
            }
            begin += part;
            made.push(Arc::new(tensor));
        }
        Ok(Some(made))
    }
}
