//! The names that most operators import.

pub use std::sync::Arc;

pub use anyhow::{Context, Error, Result, bail, ensure, format_err};
pub use bytes::Bytes;
pub use half::f16;
pub use smallvec::{SmallVec, smallvec};

pub use crate::{
    Dim, Element, ElementType, ShortVec, Size, Symbol, Tensor, ToDim, Unit, broadcast, with_number, with_unit,
};
