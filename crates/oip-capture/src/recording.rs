//! Reads the exchanges that a recorder has written.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use fmt_safetensors::SafetensorsReader;
use oip_types::{InferRequest, check_name};

use crate::{
    error::CaptureError,
    file::read_request,
    index::{ANSWER, INDEX, Line, REQUEST},
};

/// A directory of recorded exchanges.
#[derive(Debug)]
pub struct Recording {
    folder: PathBuf,
    entries: Vec<Entry>,
}

/// A recorded request and its response.
#[derive(Clone, Debug)]
pub struct Entry(Line);

impl Entry {
    /// Returns the exchange's name. The response is in the file with that name and the suffix
    /// `.answer.safetensors`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the model that the request was for.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.0.model
    }

    /// Returns the version of the model that responded; `None` for models without versions.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.0.version.as_deref()
    }

    /// Returns when the response was complete, in UTC.
    #[must_use]
    pub fn time(&self) -> &str {
        &self.0.time
    }
}

impl Recording {
    /// Reads the indexes of all runs in a directory, ordered by time. Ignores an incomplete last line.
    ///
    /// # Errors
    /// When there is no index, or an index is damaged.
    pub fn open(folder: &Path) -> Result<Self, CaptureError> {
        let io = || CaptureError::io(folder);
        let mut indexes = Vec::new();
        for entry in fs::read_dir(folder).map_err(io())? {
            let name = entry.map_err(io())?.file_name().to_string_lossy().into_owned();
            if name.starts_with(INDEX.0) && name.ends_with(INDEX.1) {
                indexes.push(name);
            }
        }
        if indexes.is_empty() {
            return Err(CaptureError::NoIndex {
                path: folder.to_owned(),
            });
        }
        indexes.sort();
        let mut entries = Vec::new();
        for name in indexes {
            let path = folder.join(name);
            let text = fs::read(&path).map_err(CaptureError::io(&path))?;
            // A crash may have truncated the last line.
            let whole = text
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1);
            for (number, line) in text[..whole].split(|byte| *byte == b'\n').enumerate() {
                if line.is_empty() {
                    continue;
                }
                let damaged = |why: String| CaptureError::Line {
                    path: path.clone(),
                    line: number + 1,
                    why,
                };
                let line: Line = serde_json::from_slice(line).map_err(|error| damaged(error.to_string()))?;
                // The name becomes a part of a path.
                check_name("name", &line.name).map_err(|error| damaged(error.to_string()))?;
                entries.push(Entry(line));
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            entries,
        })
    }

    /// Returns all exchanges, ordered by time.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the path of an exchange's response.
    #[must_use]
    pub fn answer_path(&self, entry: &Entry) -> PathBuf {
        self.folder.join(format!("{}{ANSWER}", entry.name()))
    }

    /// Reads an exchange's request.
    ///
    /// # Errors
    /// When the request's file is missing or damaged.
    pub fn request(&self, entry: &Entry) -> Result<InferRequest, CaptureError> {
        let path = self.folder.join(format!("{}{REQUEST}", entry.name()));
        // Recorders write only regular files, so links and pipes are refused.
        let kind = fs::symlink_metadata(&path).map_err(CaptureError::io(&path))?;
        if !kind.is_file() {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            return Err(CaptureError::io(&path)(error));
        }
        let read = SafetensorsReader::from_path(&path).and_then(|reader| read_request(&reader));
        match read {
            Ok(Ok(request)) => Ok(request),
            Ok(Err(why)) => Err(CaptureError::NoRequest { path, why }),
            Err(source) => Err(CaptureError::Tensors { path, source }),
        }
    }
}
