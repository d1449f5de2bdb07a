//! Removes leftovers of crashed runs: partial files, and files that no index lists. Such files would
//! otherwise count towards the limit forever.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, TryLockError},
    io,
    path::Path,
    time::Duration,
};

use crate::index::{ANSWER, INDEX, Line, PART, REQUEST};

/// Minimum age of a leftover. Newer files may belong to a run on another machine, whose locks some network
/// file systems hide.
const LEAST_AGE: Duration = Duration::from_secs(60);

/// Removes leftovers and returns the size of the files that remain in the directory.
pub(crate) fn clear(folder: &Path) -> io::Result<u64> {
    let mut used = 0;
    let mut runs = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // Another server has just removed the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let age = metadata.modified().ok().and_then(|time| time.elapsed().ok());
        let is_old = age.is_some_and(|age| age >= LEAST_AGE);
        let name = entry.file_name();
        let is_left_over = is_old
            && name.to_str().and_then(part_of).is_some_and(|part| {
                let run = runs
                    .entry(part.run.to_owned())
                    .or_insert_with(|| Run::look(folder, part.run));
                run.has_left(&part)
            });
        if is_left_over && fs::remove_file(entry.path()).is_ok() {
            tracing::debug!(file = %entry.path().display(), "removed leftovers of an interrupted recording");
            continue;
        }
        used += metadata.len();
    }
    Ok(used)
}

/// A file that belongs to a run.
struct PartOf<'a> {
    run: &'a str,
    /// The exchange that the file belongs to, unless the file is unfinished.
    exchange: Option<&'a str>,
}

/// Parses the name of a recorder's file.
fn part_of(name: &str) -> Option<PartOf<'_>> {
    let is_run = |run: &str| !run.is_empty() && run.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    if let Some(rest) = name.strip_prefix(PART) {
        let run = rest.rsplit_once('-').map_or("", |(run, _)| run);
        return is_run(run).then_some(PartOf { run, exchange: None });
    }
    let exchange = name.strip_suffix(REQUEST).or_else(|| name.strip_suffix(ANSWER))?;
    let (run, _) = exchange.rsplit_once('-')?;
    let exchange = Some(exchange);
    is_run(run).then_some(PartOf { run, exchange })
}

/// The state of another run that has files in the directory.
enum Run {
    /// The run is alive, or its state is unknown.
    Lives,
    /// The run has ended; its index lists these exchanges.
    Ended(BTreeSet<String>),
}

impl Run {
    fn look(folder: &Path, run: &str) -> Self {
        let path = folder.join(format!("{}{run}{}", INDEX.0, INDEX.1));
        let index = match File::open(&path) {
            Ok(index) => index,
            // Without an index, none of the run's files is listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::Ended(BTreeSet::new()),
            Err(_) => return Self::Lives,
        };
        // A live run holds a lock on its index.
        match index.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return Self::Lives,
        }
        match fs::read(&path) {
            Ok(text) => {
                let lines = text.split(|byte| *byte == b'\n');
                let lines = lines.filter_map(|line| serde_json::from_slice::<Line>(line).ok());
                Self::Ended(lines.map(|line| line.name).collect())
            }
            Err(_) => Self::Lives,
        }
    }

    /// Returns whether the file `part` is a leftover of this run.
    fn has_left(&self, part: &PartOf<'_>) -> bool {
        match self {
            Self::Lives => false,
            Self::Ended(exchanges) => part.exchange.is_none_or(|exchange| !exchanges.contains(exchange)),
        }
    }
}
