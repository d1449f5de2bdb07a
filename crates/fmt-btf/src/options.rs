//! Options of the writer.

use fmt_core::Limits;

/// Options for writing a file.
///
/// ```
/// use fmt_btf::{CooCode, WriteOptions};
/// let for_tfrt = WriteOptions { coo_code: CooCode::Tfrt, ..WriteOptions::default() };
/// assert_eq!(for_tfrt.limits.rank, 64);
/// ```
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// The code to write for the COO layout of sparse tensors (B1).
    pub coo_code: CooCode,
    /// Whether to refuse the unsigned dtypes, which TFRT has but the specification does not name (B2).
    pub strict_spec: bool,
    /// The limits of the readers for which the file is meant. Files beyond these limits are not written.
    pub limits: Limits,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            coo_code: CooCode::Specification,
            strict_spec: false,
            limits: Limits::default(),
        }
    }
}

/// The code for the COO layout, which differs between the specification and TFRT (B1).
///
/// ```
/// assert_eq!(fmt_btf::CooCode::default(), fmt_btf::CooCode::Specification);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CooCode {
    /// Code 2, which TFRT cannot read.
    #[default]
    Specification,
    /// Code 1, which TFRT reads.
    Tfrt,
}
