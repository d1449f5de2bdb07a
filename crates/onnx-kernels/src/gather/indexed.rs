//! Gather and scatter by element indices: `GatherElements`, `GatherND`, `ScatterElements`, `ScatterND`.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::{
    gather::{
        coordinates::{advance, coordinates},
        gather_elements::gathered,
    },
    least_work::{BYTES, ELEMENTS},
};
use tensor_core::QuotedName;

use onnx_tensor::{
    axis,
    elements::elements,
    node::Attributes,
    operator::{Fact, Kernel, kernel},
    split::{self, LINE},
};
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{Limit, Refusal, Unsupported, ensure_input},
    input_check::within,
    node::Node,
    operator::Compute,
};

type BuildResult = Result<Box<dyn Compute>>;

/// Builds the operator `GatherElements` or `GatherND`.
pub fn taken(node: &Node) -> BuildResult {
    Ok(kernel(Gather(Naming::of(node)?)))
}

/// Builds the operator `ScatterElements` (formerly `Scatter`) or `ScatterND`.
pub fn scatter(node: &Node) -> BuildResult {
    let join = match Attributes(node).text("reduction", "none") {
        "none" => Join::Replace,
        "add" => Join::Add,
        "mul" => Join::Multiply,
        "min" => Join::Least,
        "max" => Join::Greatest,
        other => bail!(Refusal(format!(
            "the reduction {} is not one of ONNX's",
            QuotedName(other)
        ))),
    };
    Ok(kernel(Scatter {
        naming: Naming::of(node)?,
        join,
    }))
}

/// How indices address elements.
#[derive(Clone, Copy, Debug)]
enum Naming {
    /// Each index is a position on this axis; negative ones count from the end. The element's other
    /// coordinates equal those of the index within the tensor of indices.
    Elements { axis: i64 },
    /// The last axis of the indices contains the coordinates of elements, after `shared` batch axes.
    Coordinates { shared: usize },
}

/// The elements that indices address.
struct Selection {
    /// The index of the first element of each block.
    places: Vec<usize>,
    /// Number of contiguous elements in a block.
    block: usize,
}

impl Naming {
    fn of(node: &Node) -> Result<Self> {
        let attributes = Attributes(node);
        if node.op_type.ends_with("ND") {
            let shared = usize::try_from(attributes.int("batch_dims", 0));
            let shared = shared.map_err(|_| Refusal("has negative batch_dims".to_owned()))?;
            return Ok(Self::Coordinates { shared });
        }
        Ok(Self::Elements {
            axis: attributes.int("axis", 0),
        })
    }

    /// Returns the shape of the tensor of all addressed elements.
    fn shape<D: Size>(self, data: &[D], indices: &[D]) -> Result<ShortVec<D>> {
        match self {
            Self::Elements { axis } => {
                axis::axis(axis, data.len())?;
                if indices.len() != data.len() {
                    bail!(Refusal(format!(
                        "has indices of {} dimensions for data of {}",
                        indices.len(),
                        data.len()
                    )));
                }
                Ok(indices.into())
            }
            Self::Coordinates { shared } => {
                let Some((depth, places)) = indices.split_last() else {
                    bail!(Refusal("has coordinates without dimensions".to_owned()));
                };
                let Some(depth) = depth.to_usize() else {
                    bail!(Limit(
                        "coordinates whose number is free are not supported".to_owned()
                    ));
                };
                if shared + depth > data.len() || shared > places.len() {
                    bail!(Refusal(format!(
                        "has coordinates of {depth} numbers, after {shared} dimensions, for data of {}",
                        data.len()
                    )));
                }
                Ok(places.iter().chain(&data[shared + depth..]).cloned().collect())
            }
        }
    }

    fn named(self, data: &[usize], indices: &Tensor) -> Result<Selection> {
        let given = indices.shape();
        // Checks that there is enough memory for the indices as `i64` and for the offsets.
        onnx_tensor::size::admit_now(indices.len() as u64 * 16)?;
        let indices = indices.cast_to::<i64>()?;
        let indices = elements::<i64>(&indices)?;
        let steps: ShortVec<usize> = (0..data.len())
            .map(|axis| data[axis + 1..].iter().product())
            .collect();
        let mut pace = Pace::default();
        match self {
            Self::Elements { axis } => {
                let axis = expect_elements(given, data, axis)?;
                let mut places = vec![0; indices.len()];
                let last = given.len() - 1;
                // The indices determine the coordinate along `axis`. If that is not the last axis, the
                // coordinate along the last axis increases by 1 per index.
                let step = if axis == last { 0 } else { 1 };
                let (line, work) = (given[last].max(1), [indices.len() as u64 * COST, ELEMENTS]);
                split::lines(&mut places, line, work, |first, places, pace| {
                    let mut at = coordinates(first, &given[..last]);
                    let rows = indices[first * line..].chunks_exact(line);
                    for (row, places) in rows.zip(places.chunks_exact_mut(line)) {
                        let axes = (0..last).filter(|&other| other != axis);
                        let mut base: usize = axes.map(|other| at[other] * steps[other]).sum();
                        for (row, places) in row.chunks(PART).zip(places.chunks_mut(PART)) {
                            pace.spend(row.len() as u64)?;
                            for (&index, place) in row.iter().zip(places) {
                                *place = base + within(index, data[axis])? as usize * steps[axis];
                                base += step;
                            }
                        }
                        advance(&mut at, &given[..last]);
                    }
                    Ok(())
                })?;
                Ok(Selection { places, block: 1 })
            }
            Self::Coordinates { shared } => {
                let (&depth, outer) = given.split_last().context("no coordinates")?;
                ensure_input!(
                    outer.get(..shared) == data.get(..shared) && shared + depth <= data.len(),
                    "indices of {given:?} for data of {data:?}, expected the same first {shared} dimensions and coordinates in others"
                );
                // Checks the size of the offsets. The check of the indices does not limit the number of
                // offsets, since coordinates of length 0 take no memory.
                onnx_tensor::size::admit_shape(ElementType::U64, outer)?;
                let count: usize = outer.iter().product();
                let mut places = Vec::with_capacity(count);
                let mut at: ShortVec<usize> = outer.iter().map(|_| 0).collect();
                for number in 0..count {
                    pace.spend(1 + depth as u64)?;
                    let coordinates = &indices[number * depth..][..depth];
                    let mut base: usize = at
                        .iter()
                        .zip(&steps)
                        .take(shared)
                        .map(|(at, step)| at * step)
                        .sum();
                    for (axis, &index) in (shared..).zip(coordinates) {
                        base += within(index, data[axis])? as usize * steps[axis];
                    }
                    places.push(base);
                    advance(&mut at, outer);
                }
                let block = data[shared + depth..].iter().product();
                Ok(Selection { places, block })
            }
        }
    }
}

/// Checks the shape of element indices, and returns the axis that they index.
fn expect_elements(given: &[usize], data: &[usize], axis: i64) -> Result<usize> {
    let axis = axis::axis(axis, data.len())?;
    let mut others = given.iter().zip(data).enumerate();
    ensure_input!(
        given.len() == data.len() && others.all(|(at, (given, dim))| at == axis || given <= dim),
        "indices of {given:?} for data of {data:?}, expected as many dimensions, none larger but that of axis {axis}"
    );
    Ok(axis)
}

#[derive(Debug)]
struct Gather(Naming);

impl Kernel for Gather {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [data, indices] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let shape = self.0.shape(&data.shape, &indices.shape)?;
        Ok(vec![Fact::new(data.element_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let [data, indices] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let shape = self.0.shape(data.shape(), indices.shape())?;
        if shape.contains(&0) {
            return Ok(smallvec![Tensor::zero_of(data.element_type(), &shape)?]);
        }
        onnx_tensor::size::admit_shape(data.element_type(), &shape)?;
        if let (Naming::Elements { axis }, true) = (self.0, data.element_type().is_copy()) {
            let axis = expect_elements(indices.shape(), data.shape(), axis)?;
            onnx_tensor::size::admit_now(indices.len() as u64 * 8)?;
            let taken = with_unit!(data.element_type(), U => gathered::<U>(data, indices, axis));
            return Ok(smallvec![taken?]);
        }
        let named = self.0.named(data.shape(), indices)?;
        let taken = with_unit!(data.element_type(), U => blocks::<U>(data, &named, &shape));
        Ok(smallvec![taken?])
    }
}

/// Cost per element, relative to a loop that reads and writes one element.
const COST: u64 = 4;

/// Copies blocks one after another.
fn blocks<U: Unit>(tensor: &Tensor, named: &Selection, shape: &[usize]) -> Result<Tensor> {
    let data = tensor.as_units::<U>()?;
    let named_blocks = named.places.iter().map(|&place| &data[place..][..named.block]);
    onnx_tensor::size::admit_contents(named_blocks.flatten().map(|element| (element, 1)))?;
    let mut made = Tensor::zero_of(tensor.element_type(), shape)?;
    let units = made.as_units_mut::<U>()?;
    match named.block {
        1 => {
            let work = [units.len() as u64 * COST, ELEMENTS];
            split::lines(units, LINE, work, |first, units, pace| {
                let places = &named.places[first * LINE..][..units.len()];
                pace.pairs(places, units, |places, units| {
                    let pairs = units.iter_mut().zip(places);
                    pairs.for_each(|(unit, &place)| unit.clone_from(&data[place]));
                })
            })?;
        }
        block => {
            let work = [size_of_val(units) as u64, BYTES];
            split::lines(units, block, work, |first, units, pace| {
                let mut lines = units.chunks_exact_mut(block).zip(&named.places[first..]);
                lines.try_for_each(|(units, &place)| {
                    let from = &data[place..][..block];
                    pace.pairs(from, units, |from, units| units.clone_from_slice(from))
                })
            })?;
        }
    }
    Ok(made)
}

/// How updates are combined with the element that they address (`reduction`).
#[derive(Clone, Copy, Debug)]
enum Join {
    Replace,
    Add,
    Multiply,
    Least,
    Greatest,
}

#[derive(Debug)]
struct Scatter {
    naming: Naming,
    join: Join,
}

impl Kernel for Scatter {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [data, indices, updates] = inputs else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        let named = self.naming.shape(&data.shape, &indices.shape)?;
        if updates.rank() != named.len() {
            bail!(Refusal(format!(
                "has updates of {} dimensions, expected {}",
                updates.rank(),
                named.len()
            )));
        }
        if data.element_type == ElementType::String && !matches!(self.join, Join::Replace) {
            bail!(Unsupported::Anywhere("has no reduction of BYTES".to_owned()));
        }
        Ok(vec![data.with(common(data.element_type, updates.element_type)?)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let [data, indices, updates] = inputs else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        let element_type = common(data.element_type(), updates.element_type())?;
        let named = self.naming.named(data.shape(), indices)?;
        let (given, shape) = (updates.shape(), data.shape());
        let fits = self.naming.shape(shape, indices.shape())?;
        ensure_input!(
            given == &*fits,
            "updates of {given:?} for indices of {:?} and data of {shape:?}",
            indices.shape()
        );
        let scattered = match self.join {
            Join::Replace => with_unit!(element_type, U => replaced::<U>(data, &named, updates)),
            join => with_number!(element_type, T => joined::<T>(join, data, &named, updates)),
        };
        Ok(smallvec![scattered?])
    }
}

/// Returns the common type of data and updates.
fn common(data: ElementType, updates: ElementType) -> Result<ElementType> {
    match (data, updates) {
        (data, updates) if data == updates => Ok(data),
        _ => bail!(Refusal(format!(
            "has data of {data:?} and updates of {updates:?}, expected the same type"
        ))),
    }
}

fn replaced<U: Unit>(data: &Tensor, named: &Selection, updates: &Tensor) -> Result<Tensor> {
    let mut replaced = data.copied()?;
    put(
        replaced.as_units_mut::<U>()?,
        named,
        updates.as_units::<U>()?,
        U::clone_from,
    )?;
    Ok(replaced)
}

fn joined<T: Number>(join: Join, data: &Tensor, named: &Selection, updates: &Tensor) -> Result<Tensor> {
    let mut joined = data.copied()?;
    let (places, updates) = (joined.as_slice_mut::<T>()?, updates.as_slice::<T>()?);
    // Each reduction has its own loop, since a call per element would take longer than the arithmetic.
    match join {
        Join::Replace => put(places, named, updates, T::clone_from),
        Join::Add => put(places, named, updates, |place, &update| {
            *place = place.plus(update);
        }),
        Join::Multiply => put(places, named, updates, |place, &update| {
            *place = place.times(update);
        }),
        Join::Least => put(places, named, updates, |place, &update| {
            *place = place.least(update);
        }),
        Join::Greatest => put(places, named, updates, |place, &update| {
            *place = place.greatest(update);
        }),
    }?;
    Ok(joined)
}

/// Combines each update with the element that it addresses, in row-major order.
#[inline(always)]
fn put<T>(joined: &mut [T], named: &Selection, updates: &[T], join: impl Fn(&mut T, &T)) -> Result<()> {
    let mut pace = Pace::default();
    match named.block {
        1 => {
            for (places, updates) in named.places.chunks(PART).zip(updates.chunks(PART)) {
                pace.spend(places.len() as u64)?;
                for (&place, update) in places.iter().zip(updates) {
                    join(&mut joined[place], update);
                }
            }
        }
        block => {
            for (&place, updates) in named.places.iter().zip(updates.chunks_exact(block.max(1))) {
                let places = joined[place..][..block].chunks_mut(PART);
                for (places, updates) in places.zip(updates.chunks(PART)) {
                    pace.spend(places.len() as u64)?;
                    for (place, update) in places.iter_mut().zip(updates) {
                        join(place, update);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Numbers with NumPy's arithmetic: integers wrap, and minimum and maximum propagate NaN.
trait Number: Element + Copy {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            fn least(self, other: Self) -> Self {
                self.min(other)
            }

            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn plus(self, other: Self) -> Self {
                self + other
            }

            fn times(self, other: Self) -> Self {
                self * other
            }

            fn least(self, other: Self) -> Self {
                if other < self || other.is_nan() { other } else { self }
            }

            fn greatest(self, other: Self) -> Self {
                if other > self || other.is_nan() { other } else { self }
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, i8, i16, i32, i64);
floats!(f16, f32, f64);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::elements::tensor;
    use onnx_tensor::faults::BadInput;

    const JOINS: [Join; 5] = [
        Join::Replace,
        Join::Add,
        Join::Multiply,
        Join::Least,
        Join::Greatest,
    ];

    fn run<T: Element>(
        (axis, join): (i64, Join),
        data: (&[usize], Vec<T>),
        indices: Vec<i64>,
        updates: (&[usize], Vec<T>),
    ) -> Result<Tensor> {
        let naming = Naming::Elements { axis };
        let inputs = [
            Arc::new(tensor(data.0, data.1)?),
            Arc::new(tensor(updates.0, indices)?),
            Arc::new(tensor(updates.0, updates.1)?),
        ];
        Ok(Scatter { naming, join }.run(&inputs)?.swap_remove(0))
    }

    #[test]
    fn numbers_are_scattered_one_by_one() {
        for (shape, given) in [
            (&[4, 3, 5][..], &[4, 3, 5][..]),
            (&[4, 3, 5], &[2, 2, 3]),
            (&[6], &[9]),
            (&[3, 7], &[3, 0]),
        ] {
            let count = |shape: &[usize]| shape.iter().product::<usize>();
            for axis in 0..shape.len() {
                if given
                    .iter()
                    .zip(shape)
                    .enumerate()
                    .any(|(at, (given, dim))| at != axis && given > dim)
                {
                    continue;
                }
                // Some of the indices occur twice, and some are negative.
                let dim = shape[axis] as i64;
                let indices: Vec<i64> = (0..count(given) as i64)
                    .map(|at| at * 7 % (2 * dim) - dim)
                    .collect();
                for join in JOINS {
                    let data: Vec<i64> = (0..count(shape) as i64).collect();
                    let updates: Vec<i64> = (0..count(given) as i64).map(|at| 5 - at).collect();
                    let mut wanted = data.clone();
                    for (at, (&index, &update)) in indices.iter().zip(&updates).enumerate() {
                        let (mut rest, mut place, mut stride) = (at, 0, 1);
                        for (other, &size) in shape.iter().enumerate().rev() {
                            let along = match other == axis {
                                true => index.rem_euclid(dim) as usize,
                                false => rest % given[other],
                            };
                            place += along * stride;
                            stride *= size;
                            rest /= given[other];
                        }
                        let number = &mut wanted[place];
                        *number = match join {
                            Join::Replace => update,
                            Join::Add => number.wrapping_add(update),
                            Join::Multiply => number.wrapping_mul(update),
                            Join::Least => update.min(*number),
                            Join::Greatest => update.max(*number),
                        };
                    }
                    for axis in [axis as i64, axis as i64 - shape.len() as i64] {
                        let (data, updates) = ((shape, data.clone()), (given, updates.clone()));
                        let found = run((axis, join), data, indices.clone(), updates).unwrap();
                        let found = elements::<i64>(&found).unwrap();
                        assert_eq!(found, wanted, "{shape:?} {given:?} {axis} {join:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn integers_wrap_and_nan_stays() {
        let sum = run((0, Join::Add), (&[1], vec![i64::MAX]), vec![0], (&[1], vec![1]));
        assert_eq!(elements::<i64>(&sum.unwrap()).unwrap(), [i64::MIN]);
        for join in [Join::Least, Join::Greatest] {
            for (data, updates) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
                let found = run((0, join), (&[1], vec![data]), vec![0], (&[1], vec![updates])).unwrap();
                assert!(elements::<f32>(&found).unwrap()[0].is_nan());
            }
        }
    }

    fn is_the_inputs_fault(error: &Error) -> bool {
        error.chain().any(<dyn std::error::Error>::is::<BadInput>)
    }

    #[test]
    fn places_that_are_not_there_are_the_inputs_fault() {
        for index in [2, -3, i64::MAX, i64::MIN] {
            let op = (0, Join::Replace);
            let error = run(op, (&[2], vec![0.0f32; 2]), vec![index], (&[1], vec![1.0])).unwrap_err();
            assert!(is_the_inputs_fault(&error), "{error:?}");
        }
        let taken = |shape: &[usize], indices: &[i64]| {
            let data = Arc::new(Tensor::zero::<f32>(shape).unwrap());
            let indices = Arc::new(tensor(&[indices.len()], indices.to_vec()).unwrap());
            Gather(Naming::Coordinates { shared: 0 }).run(&[data, indices])
        };
        assert!(taken(&[2, 3], &[1, 2]).is_ok());
        for (shape, indices) in [(&[2, 3][..], &[1, 3][..]), (&[2, 3], &[-3, 0]), (&[0], &[0])] {
            assert!(
                is_the_inputs_fault(&taken(shape, indices).unwrap_err()),
                "{shape:?} {indices:?}"
            );
        }
    }

    fn numbers(shape: &[usize]) -> Arc<Tensor> {
        let count: usize = shape.iter().product();
        Arc::new(tensor(shape, (0..count as i64).collect()).unwrap())
    }

    #[test]
    fn coordinates_name_blocks_and_count_from_the_end_too() {
        let indices = |shape: &[usize], indices: Vec<i64>| Arc::new(tensor(shape, indices).unwrap());
        let taken = |shared, data: &[usize], places: Arc<Tensor>| {
            let taken = Gather(Naming::Coordinates { shared })
                .run(&[numbers(data), places])
                .unwrap();
            (
                taken[0].shape().to_vec(),
                elements::<i64>(&taken[0]).unwrap().to_vec(),
            )
        };
        assert_eq!(
            taken(0, &[2, 3], indices(&[2, 2], vec![0, -1, -1, 0])),
            (vec![2], vec![2, 3])
        );
        assert_eq!(
            taken(0, &[2, 3], indices(&[1, 1], vec![-1])),
            (vec![1, 3], vec![3, 4, 5])
        );
        assert_eq!(
            taken(0, &[2, 3], indices(&[0], vec![])),
            (vec![2, 3], vec![0, 1, 2, 3, 4, 5])
        );
        assert_eq!(
            taken(1, &[2, 3], indices(&[2, 1, 1], vec![2, -2])),
            (vec![2, 1], vec![2, 4])
        );
        assert_eq!(taken(0, &[2, 3], indices(&[0, 1], vec![])), (vec![0, 3], vec![]));

        let scattered = |join, updates: Vec<i64>| {
            let scatter = Scatter {
                naming: Naming::Coordinates { shared: 0 },
                join,
            };
            let updates = indices(&[2, 2], updates);
            let made = scatter
                .run(&[numbers(&[3, 2]), indices(&[2, 1], vec![-1, 0]), updates])
                .unwrap();
            elements::<i64>(&made[0]).unwrap().to_vec()
        };
        assert_eq!(scattered(Join::Replace, vec![7, 8, 9, 10]), [9, 10, 2, 3, 7, 8]);
        assert_eq!(scattered(Join::Add, vec![7, 8, 9, 10]), [9, 11, 2, 3, 11, 13]);
    }
}
