//! Execution providers: those that a model's configuration requests, those that the library has, and the
//! reasons why one is unusable.

mod accelerator;
mod advice;
mod dynamic;
mod gpus;
mod libraries;
mod options;
mod package;
mod plan;

pub use self::gpus::{Gpu, GpuChoice, GpuChoiceError, Gpus};
pub(crate) use self::plan::{check_accelerators, demands_gpu, names_accelerators};
pub(super) use self::{
    accelerator::{Accelerator, ConfiguredAccelerator},
    advice::{advice, is_out_of_memory},
    libraries::{Libraries, missing_text},
    package::Package,
    plan::{Plan, plan},
};
