//! What runs that have ended in the middle left in the folder: parts of files, and files that no index names. They would take the room
//! of others for ever.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, TryLockError},
    io,
    path::Path,
    time::Duration,
};

use crate::index::{ANSWER, INDEX, Line, PART, REQUEST};

/// What is younger may be of a run on another machine, whose locks some file systems do not show.
const LEAST_AGE: Duration = Duration::from_secs(60);

/// Removes what nobody will finish or name, and gives the bytes of what is left.
pub(crate) fn clear(folder: &Path) -> io::Result<u64> {
    let mut used = 0;
    let mut runs = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // Another server has it no longer.
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
            tracing::debug!(file = %entry.path().display(), "removed what a recording that was cut off left");
            continue;
        }
        used += metadata.len();
    }
    Ok(used)
}

/// A file that belongs to a run.
struct PartOf<'a> {
    run: &'a str,
    /// The exchange that it is a file of, unless it is not finished.
    exchange: Option<&'a str>,
}

/// Reads the name of a file that a recorder makes.
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

/// Another run of a recorder in the folder.
enum Run {
    /// It goes on, or nobody can say.
    Lives,
    /// It has ended, and its index has these exchanges.
    Ended(BTreeSet<String>),
}

impl Run {
    fn look(folder: &Path, run: &str) -> Self {
        let path = folder.join(format!("{}{run}{}", INDEX.0, INDEX.1));
        let index = match File::open(&path) {
            Ok(index) => index,
            // Without an index nothing of it is named.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::Ended(BTreeSet::new()),
            Err(_) => return Self::Lives,
        };
        // The run holds a lock as long as it lives.
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

    /// Whether a file is left of it that nobody names.
    fn has_left(&self, part: &PartOf<'_>) -> bool {
        match self {
            Self::Lives => false,
            Self::Ended(exchanges) => part.exchange.is_none_or(|exchange| !exchanges.contains(exchange)),
        }
    }
}
