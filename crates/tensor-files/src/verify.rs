use fmt_core::{Error, ErrorKind, Lint, TensorReader, Verification};

/// The result of verifying a file.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// For each tensor in the file's order its name, and what its bytes were found to be. Tensors that are not supported
    /// are errors of the kind [`ErrorKind::Unsupported`].
    pub tensors: Vec<(String, Result<Verification, Error>)>,
    /// Findings that are legal but odd.
    pub lints: Vec<Lint>,
}

impl Report {
    /// Whether every tensor that is supported can be read and fits its checksum.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let mut verdicts = self.tensors.iter().map(|(_, verdict)| verdict);
        verdicts.all(|verdict| !matches!(verdict, Err(error) if error.kind() != ErrorKind::Unsupported))
    }
}

/// Reads all of a file, checks it against its checksums, and reports what is odd. Its structure was proven when it was
/// opened.
///
/// # Errors
/// When the file cannot be read; what is wrong with a tensor is in the report.
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
