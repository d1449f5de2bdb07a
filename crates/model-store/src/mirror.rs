//! Synchronises a local directory with a remote location.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::{Mutex, MutexGuard};
use tensor_remote::RemoteOptions;

use crate::{
    cache::Cache,
    cloud::CloudStore,
    download::fetch_all,
    error::StoreError,
    hub::HubStore,
    location::{Location, LocationKind},
    mirror_options::{LeftOut, MirrorOptions, Report, Scope},
    name::ObjectName,
    progress::Progress,
    store::{Listing, Object, Store},
    view::{Shape, View, ViewState, below, fingerprint},
    web::WebStore,
};

/// A local directory that mirrors a location, for a server that serves directories.
///
/// ```
/// use std::sync::Arc;
/// use model_store::{CloudStore, Location, Mirror, MirrorOptions, Scope};
/// use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Arc::new(InMemory::new());
/// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// runtime.block_on(memory.put(&Path::from("iris/1/model.onnx"), "content".into()))?;
///
/// let cache = tempfile::tempdir()?;
/// let location = Location::parse("s3://models")?;
/// let store = CloudStore::new(memory, "", "s3://models")?;
/// let mirror = Mirror::with_store(&location, Box::new(store), MirrorOptions::new(cache.path()))?;
/// let folder = mirror.start(Scope::All)?;
/// assert_eq!(std::fs::read_to_string(folder.join("iris/1/model.onnx"))?, "content");
/// # Ok(())
/// # }
/// ```
pub struct Mirror {
    url: String,
    store: Box<dyn Store>,
    cache: Cache,
    view: View,
    is_model_file: Box<dyn Fn(&str) -> bool + Send + Sync>,
    is_left_out: Box<LeftOut>,
    /// State of the last synchronisation. The mutex is locked while a synchronisation runs.
    known: Mutex<MirrorState>,
    /// The error of each model that has no content. The mutex is locked only briefly, so that clients can
    /// read errors during a synchronisation.
    failures: Mutex<BTreeMap<String, String>>,
}

#[derive(Default)]
struct MirrorState {
    /// The kind of location. It cannot change once the process serves the location.
    shape: Option<Shape>,
    /// The version of the last listing whose objects the view contains completely.
    seen: Option<String>,
}

/// Maximum number of recorded failures.
const MOST_FAILURES: usize = 10_000;
/// Name of the only entry of a single-model location.
const WHOLE: &str = "";

impl Mirror {
    /// Creates a mirror of a location in a cache. Makes no request.
    ///
    /// # Errors
    /// When the cache is unusable or the store's settings are invalid.
    pub fn open(location: &Location, options: MirrorOptions) -> Result<Self, StoreError> {
        let url = location.to_string();
        let mut remote = RemoteOptions::default().with_plain_http(false);
        if let Some(path) = &options.authorities {
            remote = remote
                .with_authorities(path)
                .map_err(|error| StoreError::Settings {
                    url: url.clone(),
                    why: format!("{}: {error}", path.display()),
                })?;
        }
        let store: Box<dyn Store> = match &location.kind {
            LocationKind::Cloud {
                cloud,
                bucket,
                prefix,
            } => Box::new(CloudStore::of(*cloud, bucket, prefix, &url, &remote)?),
            LocationKind::Hub { location } => Box::new(HubStore::new(location, &remote)?),
            LocationKind::Web { url } => Box::new(WebStore::new(url, &remote)),
        };
        Self::with_store(location, store, options)
    }

    /// Creates a mirror with a custom store.
    ///
    /// # Errors
    /// When the cache is unusable.
    pub fn with_store(
        location: &Location,
        store: Box<dyn Store>,
        options: MirrorOptions,
    ) -> Result<Self, StoreError> {
        let cache = Cache::open(&options.cache, options.limit)?;
        let view = View::open(&cache, location)?;
        Ok(Self {
            url: location.to_string(),
            store,
            cache,
            view,
            is_model_file: options.is_model_file,
            is_left_out: options.is_left_out,
            known: Mutex::default(),
            failures: Mutex::default(),
        })
    }

    /// Synchronises for the first time and returns the path to serve: a directory of models, a model's
    /// directory, or a file. If the store is unreachable and an earlier complete copy exists, returns the
    /// path of the copy and logs a warning.
    ///
    /// # Errors
    /// The errors of [`Self::sync`], unless the store is unreachable and an earlier complete copy exists.
    pub fn start(&self, scope: Scope<'_>) -> Result<PathBuf, StoreError> {
        let start = Instant::now();
        tracing::info!(url = self.url, cache = %self.cache.folder().display(), "looking at the model repository");
        match self.sync(scope) {
            Ok(report) => {
                self.warn_of(&report);
                tracing::info!(
                    url = self.url,
                    changed = report.changed.len(),
                    failed = report.failed.len(),
                    bytes = report.fetched,
                    milliseconds = start.elapsed().as_millis() as u64,
                    "fetched the model repository"
                );
            }
            Err(error) if error.is_of_store() => {
                let Some(state) = self.view.state().filter(|state| state.is_complete) else {
                    return Err(error);
                };
                self.known().shape = Some(state.shape);
                let age = now().saturating_sub(state.checked);
                tracing::warn!(
                    url = self.url,
                    reason = %error,
                    seconds_ago = age,
                    "the model repository cannot be reached; serving the models of the last synchronisation"
                );
            }
            Err(error) => return Err(error),
        }
        match self.view.state() {
            Some(state) => Ok(self.view.served(&state)),
            None => Err(StoreError::Empty {
                url: self.url.clone(),
            }),
        }
    }

    /// Synchronises while models are served; errors are logged, and existing content is kept.
    pub fn refresh(&self, model: Option<&str>) {
        let scope = model.map_or(Scope::All, Scope::One);
        let is_name =
            |name: &str| ObjectName::parse(name).is_ok_and(|name| name.is_top() && !name.is_hidden());
        if model.is_some_and(|name| !is_name(name)) {
            return;
        }
        match self.sync(scope) {
            Ok(report) => {
                self.warn_of(&report);
                if !report.changed.is_empty() || !report.removed.is_empty() {
                    let (changed, removed) = (report.changed.len(), report.removed.len());
                    let bytes = report.fetched;
                    tracing::info!(
                        url = self.url,
                        changed,
                        removed,
                        bytes,
                        "the model repository has changed"
                    );
                }
            }
            Err(error) => {
                let reason = error.to_string();
                tracing::warn!(
                    url = self.url,
                    model,
                    reason,
                    "the model repository cannot be read; the loaded models stay"
                );
                if let Some(model) = model
                    && self.known().shape == Some(Shape::Repository)
                    && !self.view.is_whole(Shape::Repository, model)
                {
                    self.note_failure(model, reason);
                }
            }
        }
    }

    /// Returns the error of a model that has no content, because its last synchronisation failed and there
    /// was no earlier copy.
    #[must_use]
    pub fn failure(&self, model: &str) -> Option<String> {
        self.failures().get(model).cloned()
    }

    /// Synchronises the directory with the location. Each model changes atomically, and a model that fails
    /// does not affect the others.
    ///
    /// # Errors
    /// When the store cannot be listed or is empty, or when a single-model location cannot be fetched and has
    /// no copy.
    pub fn sync(&self, scope: Scope<'_>) -> Result<Report, StoreError> {
        let mut known = self.known();
        let _writing = self.view.lock()?;
        let mut report = Report::default();
        match self.sync_once(&mut known, scope, &mut report) {
            // An object changed after it was listed, so the pass is repeated once with a fresh list.
            Ok(true) => {}
            Err(error) if error.is_race() => {}
            Ok(false) => return Ok(report),
            Err(error) => return Err(error),
        }
        known.seen = None;
        let fetched = report.fetched;
        report = Report::default();
        self.sync_once(&mut known, scope, &mut report)?;
        report.fetched += fetched;
        Ok(report)
    }

    /// Lists the location and synchronises the directory once; returns true if an object changed while it was
    /// fetched.
    fn sync_once(
        &self,
        known: &mut MirrorState,
        scope: Scope<'_>,
        report: &mut Report,
    ) -> Result<bool, StoreError> {
        let within = match scope {
            Scope::One(name) if known.shape == Some(Shape::Repository) => Some(name),
            _ => None,
        };
        let seen = known.seen.as_deref().filter(|_| within.is_none());
        let Some(mut listing) = self.store.list(within, seen)? else {
            return self.note_state(known).map(|()| false);
        };
        if let Some(name) = within {
            listing.objects.retain(|object| object.name.first() == name);
        } else if listing.objects.is_empty() {
            return Err(StoreError::Empty {
                url: self.url.clone(),
            });
        }
        let shape = match within {
            Some(_) => Shape::Repository,
            None => self.shape(&listing),
        };
        match known.shape {
            Some(before) if before != shape => {
                return Err(StoreError::Layout {
                    url: self.url.clone(),
                    before: before.words(),
                    now: shape.words(),
                });
            }
            _ => known.shape = Some(shape),
        }
        match shape {
            Shape::Model => self.leave_out(&mut listing.objects, None),
            Shape::File => self.leave_out_around(&mut listing.objects)?,
            Shape::Repository => {}
        }
        let entries = entries(shape, &listing.objects);
        if shape == Shape::Repository {
            self.view.make_repository()?;
            self.remove_gone(within, &entries, report)?;
        }
        let mut is_race = false;
        for (entry, objects) in entries {
            let is_wanted = match scope {
                Scope::Named(names) if shape == Shape::Repository => names.iter().any(|name| name == entry),
                _ => true,
            };
            is_race |= self.sync_entry(shape, entry, objects, is_wanted, report)?;
        }
        if within.is_none() {
            let has_all = report.failed.is_empty();
            known.seen = listing.version.take().filter(|_| has_all);
            self.note_listing(shape, &listing, has_all)?;
        }
        Ok(is_race)
    }

    /// Records in the view's state that the view was built from `listing`. `has_all` is whether all of the
    /// listing's objects were fetched.
    fn note_listing(&self, shape: Shape, listing: &Listing, has_all: bool) -> Result<(), StoreError> {
        let before = self.view.state().filter(|state| state.shape == shape);
        let file = listing.objects.first().filter(|_| shape == Shape::File);
        self.view.set_state(&ViewState {
            url: self.url.clone(),
            shape,
            file: file.map(|object| object.name.to_string()),
            is_complete: has_all || before.is_some_and(|before| before.is_complete),
            checked: now(),
        })
    }

    /// Removes the objects of a model's directory that the mirror leaves out. The names are below `label`, if
    /// the location names the first object.
    fn leave_out(&self, objects: &mut Vec<Object>, label: Option<&str>) {
        let below = |object: &Object| {
            let name = object.name.as_str();
            let inner = label.and_then(|label| name.strip_prefix(label)?.strip_prefix('/'));
            inner.unwrap_or(name).to_owned()
        };
        let names: BTreeSet<String> = objects.iter().map(below).collect();
        let is_there = |name: &str| names.contains(name);
        let named = label.and_then(|_| objects.first()).map(below);
        objects.retain(|object| !(self.is_left_out)(&below(object), named.as_deref(), &is_there));
    }

    /// Removes the objects of the directory of a named file that the mirror leaves out. A file that is then
    /// alone is an entry itself.
    fn leave_out_around(&self, objects: &mut Vec<Object>) -> Result<(), StoreError> {
        if objects.len() > 1 {
            let label = objects[0].name.first().to_owned();
            self.leave_out(objects, Some(&label));
        }
        if let [only] = &mut objects[..] {
            let name = only.name.as_str();
            let name = name.rsplit('/').next().unwrap_or(name).to_owned();
            only.name = ObjectName::parse(&name).map_err(|why| StoreError::Name {
                name,
                why: why.to_string(),
            })?;
        }
        Ok(())
    }

    /// Synchronises an entry of the view; returns true if an object changed while it was fetched. If the
    /// entry is not wanted, its earlier copy is kept.
    fn sync_entry(
        &self,
        shape: Shape,
        entry: &str,
        objects: Vec<&Object>,
        is_wanted: bool,
        report: &mut Report,
    ) -> Result<bool, StoreError> {
        let fingerprint = fingerprint(objects.iter().copied());
        let has_versions = objects.iter().all(|object| !object.etag.is_empty());
        if has_versions && self.view.is_made_of(shape, entry, &fingerprint) {
            self.failures().remove(entry);
            return Ok(false);
        }
        if !is_wanted {
            // An earlier copy of the model is kept if there is one. The copy is synchronised when the
            // model is loaded.
            self.view.make_place(entry)?;
            return Ok(false);
        }
        let Err(error) = self.fetch_entry(shape, entry, objects, &fingerprint, report) else {
            self.failures().remove(entry);
            report.changed.push(entry.to_owned());
            return Ok(false);
        };
        let is_whole = self.view.is_whole(shape, entry);
        if shape != Shape::Repository && !is_whole {
            return Err(error);
        }
        if !is_whole {
            self.view.make_place(entry)?;
            self.note_failure(entry, error.to_string());
        }
        report.failed.push((entry.to_owned(), error.to_string()));
        Ok(error.is_race())
    }

    fn remove_gone(
        &self,
        within: Option<&str>,
        entries: &BTreeMap<&str, Vec<&Object>>,
        report: &mut Report,
    ) -> Result<(), StoreError> {
        let is_looked_at = |name: &str| within.is_none_or(|within| within == name);
        for name in self.view.names() {
            if is_looked_at(&name) && !entries.contains_key(name.as_str()) {
                self.view.remove(&name)?;
                report.removed.push(name);
            }
        }
        self.failures()
            .retain(|name, _| !is_looked_at(name) || entries.contains_key(name.as_str()));
        Ok(())
    }

    /// Determines the kind of a location from its list of objects.
    fn shape(&self, listing: &Listing) -> Shape {
        if listing.is_file {
            return Shape::File;
        }
        let mut tops = listing
            .objects
            .iter()
            .filter(|object| object.name.is_top() && object.size > 0);
        match tops.any(|object| (self.is_model_file)(object.name.as_str())) {
            true => Shape::Model,
            false => Shape::Repository,
        }
    }

    /// Fetches the missing objects of an entry, builds the entry and installs it in the view.
    fn fetch_entry(
        &self,
        shape: Shape,
        entry: &str,
        mut objects: Vec<&Object>,
        fingerprint: &str,
        report: &mut Report,
    ) -> Result<(), StoreError> {
        drop_marks(&mut objects)?;
        let what = match entry {
            WHOLE => self.url.clone(),
            entry => format!("the model '{}' at {}", entry.escape_debug(), self.url),
        };
        // Tries again, because another process may evict an object before the entry links to it.
        for _ in 0..3 {
            let found: Vec<_> = objects
                .iter()
                .map(|object| self.cache.find(&self.url, object))
                .collect();
            let missing: Vec<&Object> = objects
                .iter()
                .zip(&found)
                .filter_map(|(object, found)| found.is_none().then_some(*object))
                .collect();
            let mut fetched = self.fetch_missing(entry, &what, &missing, report)?.into_iter();
            let parts: Vec<_> = objects
                .iter()
                .zip(found)
                .filter_map(|(object, found)| {
                    let sha256 = found.or_else(|| fetched.next())?;
                    Some((*object, below(shape, &object.name), sha256))
                })
                .collect();
            if let Some(built) = self.view.build(&self.cache, &parts)? {
                return self.view.install(shape, entry, &built, fingerprint);
            }
        }
        Err(StoreError::Unavailable {
            url: self.url.clone(),
            what,
            why: "its files are evicted as fast as they are fetched; another process needs the space"
                .to_owned(),
        })
    }

    /// Fetches objects that the cache lacks, and returns their digests. `what` names the entry in errors.
    fn fetch_missing(
        &self,
        entry: &str,
        what: &str,
        missing: &[&Object],
        report: &mut Report,
    ) -> Result<Vec<String>, StoreError> {
        let needed = missing
            .iter()
            .fold(0_u64, |sum, object| sum.saturating_add(object.size));
        self.cache.make_room(what, needed)?;
        if needed > 0 {
            tracing::info!(
                url = self.url,
                model = entry,
                files = missing.len(),
                bytes = needed,
                "fetching"
            );
        }
        let progress = Progress::new(&self.url, entry, needed);
        let fetched = fetch_all(&*self.store, &self.cache, &self.url, missing, &|bytes| {
            progress.add(bytes);
        });
        report.fetched += progress.done();
        fetched
    }

    /// Records the current time in the view's state as the last time at which the view matched the store.
    fn note_state(&self, known: &MirrorState) -> Result<(), StoreError> {
        if let Some(state) = self.view.state().filter(|state| Some(state.shape) == known.shape) {
            self.view.set_state(&ViewState {
                checked: now(),
                ..state
            })?;
        }
        Ok(())
    }

    fn warn_of(&self, report: &Report) {
        for (model, reason) in &report.failed {
            tracing::warn!(
                url = self.url,
                model,
                reason,
                "a model cannot be fetched; the cached one stays"
            );
        }
    }

    fn note_failure(&self, model: &str, reason: String) {
        let mut failures = self.failures();
        if failures.len() < MOST_FAILURES || failures.contains_key(model) {
            failures.insert(model.to_owned(), reason);
        }
    }

    fn known(&self) -> MutexGuard<'_, MirrorState> {
        self.known.lock()
    }

    fn failures(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.failures.lock()
    }
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// Drops empty objects that represent directories, which web consoles of stores create.
fn drop_marks<'o>(objects: &mut Vec<&'o Object>) -> Result<(), StoreError> {
    objects.sort_by(|a, b| a.name.cmp(&b.name));
    let mut folders: BTreeSet<&'o str> = BTreeSet::new();
    for object in objects.iter().copied() {
        let name = object.name.as_str();
        folders.extend(name.match_indices('/').map(|(at, _)| &name[..at]));
    }
    let is_mark = |object: &&Object| folders.contains(object.name.as_str());
    if let Some(object) = objects.iter().find(|object| is_mark(object) && object.size > 0) {
        return Err(StoreError::Conflict {
            name: object.name.to_string(),
        });
    }
    objects.retain(|object| !is_mark(object));
    Ok(())
}

/// Groups objects by the entry of the view to which they belong.
fn entries(shape: Shape, objects: &[Object]) -> BTreeMap<&str, Vec<&Object>> {
    let mut entries: BTreeMap<&str, Vec<&Object>> = BTreeMap::new();
    for object in objects {
        let entry = match shape {
            // Files next to the model directories of a repository are not models.
            Shape::Repository if object.name.is_top() => continue,
            Shape::Repository | Shape::File => object.name.first(),
            Shape::Model => WHOLE,
        };
        entries.entry(entry).or_default().push(object);
    }
    entries
}

/// Returns the time in seconds since 1970.
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}
