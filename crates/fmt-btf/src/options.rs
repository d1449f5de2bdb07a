use fmt_core::Limits;

/// How a file is written.
///
/// ```
/// use fmt_btf::{CooCode, WriteOptions};
/// let for_tfrt = WriteOptions { coo_code: CooCode::Tfrt, ..WriteOptions::default() };
/// assert_eq!(for_tfrt.limits.rank, 64);
/// ```
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Which number stands for the layout COO (B1).
    pub coo_code: CooCode,
    /// Refuse the unsigned dtypes, which TFRT has and the specification does not name (B2).
    pub strict_spec: bool,
    /// What readers are expected to take: a file that they would refuse is not written.
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

/// The number that stands for the layout COO: the specification and TFRT's code differ (B1).
///
/// ```
/// assert_eq!(fmt_btf::CooCode::default(), fmt_btf::CooCode::Specification);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CooCode {
    /// 2, which TFRT cannot read.
    #[default]
    Specification,
    /// 1, which TFRT reads.
    Tfrt,
}
