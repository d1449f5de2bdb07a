//! Verifies all tensors of a file.

use fmt_core::{Error, ErrorKind, Lint, TensorReader, Verification};

/// The result of verifying a file.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// The name of each tensor in the file's order, and the result of verifying it. Unsupported tensors are
    /// errors of the kind [`ErrorKind::Unsupported`].
    pub tensors: Vec<(String, Result<Verification, Error>)>,
    /// Findings that are valid but suspicious.
    pub lints: Vec<Lint>,
}

impl Report {
    /// Returns whether every supported tensor can be read and matches its checksum.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let mut verdicts = self.tensors.iter().map(|(_, verdict)| verdict);
        verdicts.all(|verdict| !matches!(verdict, Err(error) if error.kind() != ErrorKind::Unsupported))
    }
}

/// Reads a whole file, verifies its checksums, and reports suspicious findings. Its structure was validated
/// when it was opened.
///
/// # Errors
/// When the file cannot be read; defects of a tensor are in the report.
pub fn verify(reader: &dyn TensorReader) -> Result<Report, Error> {
    let mut tensors = Vec::with_capacity(reader.entries().len());
    for (index, entry) in reader.entries().iter().enumerate() {
        let verdict = reader.verify(index);
        if let Err(error) = &verdict
            && matches!(error.kind(), ErrorKind::Io | ErrorKind::Changed)
        {
            return verdict.map(|_| Report {
                tensors,
                lints: Vec::new(),
            });
        }
        tensors.push((entry.name.clone(), verdict));
    }
    Ok(Report {
        tensors,
        lints: reader.lints()?,
    })
}
