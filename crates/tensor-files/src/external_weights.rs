//! ONNX models with weights in external files.

use std::{
    path::{Component, Path},
    sync::Arc,
};

use fmt_core::{ByteSource, Error, ErrorKind, FileSource, ReadOptions, TensorReader};
use fmt_onnx::OnnxReader;

/// Opens a model with its external files, if they are in its directory or below.
pub(crate) fn open_onnx(
    source: Arc<dyn ByteSource>,
    path: &Path,
    options: &ReadOptions,
) -> Result<Box<dyn TensorReader>, Error> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let beside = |name: &str| open_beside(folder, Path::new(name));
    Ok(Box::new(OnnxReader::open_with(source, options, &beside)?))
}

/// Opens the external file `name` of a model in `folder`. The model chooses the name, and this process may
/// have more rights than the model's author, so links must not lead out of the directory.
fn open_beside(folder: &Path, name: &Path) -> Result<Arc<dyn ByteSource>, Error> {
    let is_below = |component| matches!(component, Component::Normal(_) | Component::CurDir);
    let outside = || {
        let error = Error::new(
            ErrorKind::Unsupported,
            "the file is outside of the model's directory",
        );
        error.expected("a file in the model's directory or below")
    };
    if name.as_os_str().is_empty() || !name.components().all(is_below) {
        return Err(outside());
    }
    let real = |path: &Path| {
        path.canonicalize()
            .map_err(|error| Error::io("it cannot be opened", error))
    };
    let (folder, file) = (real(folder)?, real(&folder.join(name))?);
    if !file.starts_with(&folder) {
        return Err(outside());
    }
    Ok(Arc::new(FileSource::open(&file)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;

    use super::*;

    #[test]
    fn files_outside_of_the_folder_are_not_opened() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("model");
        fs::create_dir_all(folder.join("parts")).unwrap();
        fs::write(folder.join("parts/data"), "abc").unwrap();
        fs::write(place.path().join("secret"), "abc").unwrap();
        let open = |name: &str| open_beside(&folder, Path::new(name)).map(|file| file.len());
        assert_eq!(open("parts/data").unwrap(), 3);
        assert_eq!(open("./parts/data").unwrap(), 3);
        let secret = place.path().join("secret");
        for outside in ["../secret", "parts/../../secret", secret.to_str().unwrap(), ""] {
            assert_eq!(
                open(outside).unwrap_err().kind(),
                ErrorKind::Unsupported,
                "{outside}"
            );
        }
        assert_eq!(open("none").unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(open("parts").unwrap_err().kind(), ErrorKind::NotAFile);
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&secret, folder.join("link")).unwrap();
            assert_eq!(open("link").unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }
}
