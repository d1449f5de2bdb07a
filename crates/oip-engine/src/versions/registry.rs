//! The models of an engine: their versions and states, and the version that a request finds.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use model_repository::VersionKey;
use oip_service::{BoxFuture, Readiness, RequestContext, ResponseStream, Responses, StreamedResponse};
use oip_types::{
    ErrorCode, InferRequest, InferResponse, Joining, ModelMetadata, ModelRef, ModelState, Placement,
    ServiceError,
};
use tensor_core::Quoted;

use crate::{
    generation::Generation,
    pipeline::{Pipeline, StepError, StepModels},
    run::others::Callees,
    versions::{call_order::CallOrder, served_version::ServedVersion},
};

/// Models, their versions and states.
///
/// Models without a load attempt are not in it, so requests for unknown names leave no trace.
#[derive(Default)]
pub(crate) struct Registry {
    models: Mutex<BTreeMap<String, Versions>>,
    call_order: CallOrder,
}

/// Versions from oldest to newest; a model without versions has one entry, `None`.
type Versions = BTreeMap<Option<VersionKey>, Entry>;

struct Entry {
    state: State,
    /// Why it is not ready, or why the last attempt to replace it failed.
    reason: String,
    cost: Option<LoadCost>,
    /// Whether the server waits for it to become ready.
    is_waited_for: bool,
}

enum State {
    Loading,
    Ready(Arc<ServedVersion>),
    Unloading,
    Unloaded,
    Failed,
}

impl Entry {
    fn new(state: State, reason: impl Into<String>, is_waited_for: bool) -> Self {
        Self {
            state,
            reason: reason.into(),
            cost: None,
            is_waited_for,
        }
    }

    /// Returns the state and its reason.
    fn status(&self) -> (ModelState, String) {
        match &self.state {
            State::Loading => (ModelState::Loading, String::new()),
            State::Ready(served) => match served.unavailable() {
                None => (ModelState::Ready, self.reason.clone()),
                Some(reason) => (ModelState::Unavailable, reason),
            },
            State::Unloading => (ModelState::Unloading, String::new()),
            State::Unloaded | State::Failed => (ModelState::Unavailable, self.reason.clone()),
        }
    }

    fn served(&self) -> Option<&Arc<ServedVersion>> {
        match &self.state {
            State::Ready(served) => Some(served),
            _ => None,
        }
    }
}

/// A model version and its state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelStatus {
    /// Name of the model.
    pub name: String,
    /// Version; `None` for a model without versions.
    pub version: Option<String>,
    /// State.
    pub state: ModelState,
    /// Why it is not ready, or why it could not be replaced by the repository's current content; otherwise
    /// empty.
    pub reason: String,
    /// Metadata, once ready.
    pub metadata: Option<Arc<ModelMetadata>>,
    /// Whether requests are joined, once ready; `None` for pipelines, whose steps join requests.
    pub joining: Option<Joining>,
    /// Devices and providers, once ready, if the backend reports them.
    pub placement: Option<Placement>,
    /// Duration of the load.
    pub load_time: Option<Duration>,
    /// Approximate memory in bytes: growth of the process and its children during the load, split evenly
    /// among concurrent loads. `None` where the system does not report it, for pipelines, and for models of
    /// the embedding program.
    pub load_memory: Option<u64>,
}

/// Time and memory of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadCost {
    pub(crate) time: Duration,
    /// As in [`ModelStatus`].
    pub(crate) memory: Option<u64>,
}

impl ModelStatus {
    /// Creates the status of a version that is not loaded.
    #[must_use]
    pub fn new(name: &str, version: Option<&str>, state: ModelState, reason: &str) -> Self {
        let (name, version) = (name.to_owned(), version.map(str::to_owned));
        Self {
            name,
            version,
            state,
            reason: reason.to_owned(),
            metadata: None,
            joining: None,
            placement: None,
            load_time: None,
            load_memory: None,
        }
    }

    /// Sets the metadata.
    #[must_use]
    pub fn with_metadata(self, metadata: Arc<ModelMetadata>) -> Self {
        Self {
            metadata: Some(metadata),
            ..self
        }
    }

    /// Sets whether requests are joined.
    #[must_use]
    pub fn with_joining(self, joining: Joining) -> Self {
        Self {
            joining: Some(joining),
            ..self
        }
    }

    /// Sets the placement.
    #[must_use]
    pub fn with_placement(self, placement: Placement) -> Self {
        Self {
            placement: Some(placement),
            ..self
        }
    }

    /// Sets the duration of the load.
    #[must_use]
    pub fn with_load_time(self, load_time: Duration) -> Self {
        Self {
            load_time: Some(load_time),
            ..self
        }
    }

    /// Sets the memory.
    #[must_use]
    pub fn with_load_memory(self, load_memory: u64) -> Self {
        Self {
            load_memory: Some(load_memory),
            ..self
        }
    }
}

impl Registry {
    /// Adds a model that is about to be looked up.
    pub(crate) fn expect(&self, name: &str) {
        let entry = Entry::new(State::Loading, "it is being loaded", true);
        self.lock()
            .entry(name.to_owned())
            .or_default()
            .insert(None, entry);
    }

    /// Marks versions as loading, and removes failed ones and unloaded ones that are not in `there`. Ready
    /// versions stay ready.
    pub(crate) fn start_loading(
        &self,
        name: &str,
        versions: &[Option<&str>],
        is_waited_for: bool,
        is_there: impl Fn(&str) -> bool,
    ) {
        let mut models = self.lock();
        let entries = models.entry(name.to_owned()).or_default();
        entries.retain(|version, entry| match (&entry.state, version) {
            (State::Ready(_), _) => {
                // The reason of an earlier attempt no longer applies.
                entry.reason.clear();
                true
            }
            (State::Unloading, _) => true,
            (State::Unloaded, Some(version)) => is_there(version.as_str()),
            (State::Unloaded | State::Failed | State::Loading, _) => false,
        });
        for version in versions {
            let entry = entries.entry(version.map(VersionKey::new));
            let loading = || Entry::new(State::Loading, "it is being loaded", is_waited_for);
            let entry = entry.or_insert_with(loading);
            if entry.served().is_none() {
                *entry = loading();
            }
        }
    }

    /// Records the result of a load: the new version serves from now on, or the old one stays. Returns the
    /// version that was replaced.
    #[must_use]
    pub(crate) fn finish_loading(
        &self,
        name: &str,
        version: Option<&str>,
        result: Result<Arc<ServedVersion>, String>,
        cost: LoadCost,
        is_waited_for: bool,
    ) -> Option<Arc<ServedVersion>> {
        if result.is_ok() {
            self.call_order.forget(name);
        }
        let mut models = self.lock();
        let entries = models.entry(name.to_owned()).or_default();
        let before = entries.get_mut(&version.map(VersionKey::new));
        let is_waited_for = is_waited_for || before.as_ref().is_some_and(|entry| entry.is_waited_for);
        let (state, reason) = match (result, before) {
            (Ok(served), _) => (State::Ready(served), String::new()),
            (Err(reason), Some(entry)) if entry.served().is_some() => {
                entry.reason = outdated(&reason);
                return None;
            }
            (Err(reason), _) => (State::Failed, reason),
        };
        let entry = Entry {
            cost: Some(cost),
            ..Entry::new(state, reason, is_waited_for)
        };
        let before = entries.insert(version.map(VersionKey::new), entry);
        before.and_then(|entry| entry.served().cloned())
    }

    /// Records that a whole model cannot be loaded. Ready versions stay.
    pub(crate) fn fail(&self, name: &str, reason: &str, is_waited_for: bool) {
        let mut models = self.lock();
        let entries = models.entry(name.to_owned()).or_default();
        entries.retain(|_, entry| !matches!(entry.state, State::Loading | State::Failed));
        let mut is_ready = false;
        for entry in entries.values_mut().filter(|entry| entry.served().is_some()) {
            entry.reason = outdated(reason);
            is_ready = true;
        }
        if !is_ready {
            entries.insert(None, Entry::new(State::Failed, reason, is_waited_for));
        }
    }

    /// Returns whether a version of a model is being loaded.
    pub(crate) fn is_loading(&self, name: &str) -> bool {
        let models = self.lock();
        let mut entries = models.get(name).into_iter().flat_map(BTreeMap::values);
        entries.any(|entry| matches!(entry.state, State::Loading))
    }

    /// Returns whether a model is recorded with this reason for not being loadable.
    pub(crate) fn shows(&self, name: &str, reason: &str) -> bool {
        let models = self.lock();
        let mut entries = models.get(name).into_iter().flat_map(BTreeMap::values);
        entries.any(|entry| match &entry.state {
            State::Failed => entry.reason == reason,
            State::Ready(_) => entry.reason == outdated(reason),
            State::Loading | State::Unloading | State::Unloaded => false,
        })
    }

    /// Takes all versions but those in `keep` out of service, and returns them to be ended. Removes failed
    /// ones.
    #[must_use]
    pub(crate) fn retire(
        &self,
        name: &str,
        keep: &[Option<&str>],
    ) -> Vec<(Option<String>, Arc<ServedVersion>)> {
        let mut models = self.lock();
        let Some(entries) = models.get_mut(name) else {
            return Vec::new();
        };
        let is_kept = |version: &Option<VersionKey>| keep.contains(&version.as_ref().map(VersionKey::as_str));
        entries.retain(|version, entry| {
            is_kept(version) || !matches!(entry.state, State::Loading | State::Failed)
        });
        let mut retired = Vec::new();
        for (version, entry) in entries.iter_mut().filter(|(version, _)| !is_kept(version)) {
            if let Some(served) = entry.served().cloned() {
                *entry = Entry::new(State::Unloading, "it is being unloaded", false);
                retired.push((
                    version.as_ref().map(|version| version.as_str().to_owned()),
                    served,
                ));
            }
        }
        if entries.is_empty() {
            models.remove(name);
        }
        retired
    }

    /// Records that a retired version has ended; with `forget`, removes it.
    pub(crate) fn unloaded(&self, name: &str, version: Option<&str>, forget: bool) {
        let mut models = self.lock();
        let Some(entries) = models.get_mut(name) else {
            return;
        };
        let key = version.map(VersionKey::new);
        // It may have been loaded again meanwhile.
        if let Some(entry) = entries
            .get_mut(&key)
            .filter(|entry| matches!(entry.state, State::Unloading))
        {
            *entry = Entry::new(State::Unloaded, "unloaded", false);
            if forget {
                entries.remove(&key);
            }
        }
        if entries.is_empty() {
            models.remove(name);
        }
    }

    /// Finds the version for requests to `model`: the named one, or the highest ready one.
    pub(crate) fn find(&self, model: ModelRef<'_>) -> Result<Arc<ServedVersion>, ServiceError> {
        let served = self.locate(model)?;
        match served.unavailable() {
            None => Ok(served),
            Some(reason) => {
                let message = format!("{model} is not ready: {reason}");
                Err(ServiceError::new(ErrorCode::Unavailable, message))
            }
        }
    }

    /// Runs a request on its version.
    pub(crate) fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        Box::pin(async move {
            let served = self.find(request.model())?;
            self.admit(&served, &cx)?;
            if served.is_decoupled() {
                return Err(ServiceError::new(ErrorCode::Unimplemented, DECOUPLED).within(request.model()));
            }
            self.infer_one(&served, request, cx).await
        })
    }

    /// Runs a request with any number of responses.
    pub(crate) fn infer_stream(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Responses, ServiceError>> {
        Box::pin(async move {
            let served = self.find(request.model())?;
            self.admit(&served, &cx)?;
            if !served.is_decoupled() {
                return self.infer_one(&served, request, cx).await.map(Responses::One);
            }
            answer_several(served, request, &cx).map(Responses::Several)
        })
    }

    /// Admits a request made by a model, unless it could deadlock by waiting for itself. Pipelines do not
    /// wait; steps do.
    fn admit(&self, served: &ServedVersion, cx: &RequestContext) -> Result<(), ServiceError> {
        if let Some(caller) = cx.caller() {
            let models = self.lock();
            let entries = models.get(caller).into_iter().flat_map(BTreeMap::values);
            entries
                .filter_map(Entry::served)
                .for_each(|caller| caller.note_asks_others());
        }
        match cx.caller().filter(|_| served.pipeline().is_none()) {
            None => Ok(()),
            Some(caller) => self.call_order.admit(caller, &served.metadata().name),
        }
    }

    /// Holds `served` until the response is there, so that it is not ended before.
    async fn infer_one(
        &self,
        served: &ServedVersion,
        request: InferRequest,
        cx: RequestContext,
    ) -> Result<InferResponse, ServiceError> {
        let metadata = served.metadata();
        let within_model =
            |error: ServiceError| error.within(format_args!("model {}", Quoted(&metadata.name)));
        let mut response = response_of(served, &request);
        let answer = served.infer(request, &cx, self);
        response.outputs = answer.await.map_err(within_model)?;
        Ok(response)
    }

    /// Like [`Registry::find`], but also returns versions that are temporarily unavailable.
    pub(crate) fn locate(&self, model: ModelRef<'_>) -> Result<Arc<ServedVersion>, ServiceError> {
        let models = self.lock();
        let not_found = || ServiceError::new(ErrorCode::NotFound, format!("{model} does not exist"));
        let versions = models.get(model.name()).ok_or_else(not_found)?;
        let entry = match model.version() {
            Some(version) => versions.get(&Some(VersionKey::new(version))),
            None => {
                let ready = versions.values().rev().find(|entry| entry.served().is_some());
                ready.or_else(|| versions.values().next_back())
            }
        };
        let entry = entry.ok_or_else(not_found)?;
        let fail = |code| {
            let reason = &entry.reason;
            Err(ServiceError::new(code, format!("{model} is not ready: {reason}")))
        };
        match &entry.state {
            State::Ready(served) => Ok(served.clone()),
            State::Loading | State::Unloading | State::Failed => fail(ErrorCode::Unavailable),
            // Retrying does not help, so it counts as not found.
            State::Unloaded => fail(ErrorCode::NotFound),
        }
    }

    /// Returns whether a version is in service and available.
    pub(crate) fn is_ready(&self, name: &str, version: Option<&str>) -> bool {
        let served = {
            let models = self.lock();
            let versions = models.get(name);
            let entry = versions.and_then(|versions| versions.get(&version.map(VersionKey::new)));
            entry.and_then(Entry::served).cloned()
        };
        served.is_some_and(|served| served.unavailable().is_none())
    }

    /// Returns the versions of a model that can be requested, oldest first.
    pub(crate) fn ready_versions(&self, name: &str) -> Vec<String> {
        let models = self.lock();
        let versions = models.get(name).into_iter().flatten();
        let ready = versions.filter(|(_, entry)| entry.served().is_some());
        ready
            .filter_map(|(version, _)| version.as_ref().map(|version| version.as_str().to_owned()))
            .collect()
    }

    /// Returns whether a model is in the registry.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    /// Returns whether the server waits for a model to become ready.
    pub(crate) fn is_waited_for(&self, name: &str) -> bool {
        let models = self.lock();
        let mut entries = models.get(name).into_iter().flat_map(BTreeMap::values);
        entries.any(|entry| entry.is_waited_for)
    }

    /// Returns whether a model has a version in service.
    pub(crate) fn has_ready(&self, name: &str) -> bool {
        let models = self.lock();
        models
            .get(name)
            .is_some_and(|versions| versions.values().any(|entry| entry.served().is_some()))
    }

    /// Returns the readiness of the server. With `strict`, failed models make it unready.
    pub(crate) fn readiness(&self, strict: bool) -> Readiness {
        let models = self.lock();
        let is_missing = |entry: &Entry| match &entry.state {
            State::Ready(served) => entry.is_waited_for && strict && served.unavailable().is_some(),
            State::Unloading | State::Unloaded => false,
            State::Loading => entry.is_waited_for,
            State::Failed => entry.is_waited_for && strict,
        };
        let names = models
            .iter()
            .filter(|(_, versions)| versions.values().any(is_missing));
        let names: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
        match &names[..] {
            [] => Readiness::Ready,
            names => Readiness::NotReady(format!("models not ready: {}", names.join(", "))),
        }
    }

    /// Returns the status of all versions of all models.
    pub(crate) fn statuses(&self) -> Vec<ModelStatus> {
        let models = self.lock();
        let entries = models
            .iter()
            .flat_map(|(name, versions)| versions.iter().map(move |entry| (name, entry)));
        entries
            .map(|(name, (version, entry))| {
                let (state, reason) = entry.status();
                ModelStatus {
                    name: name.clone(),
                    version: version.as_ref().map(|version| version.as_str().to_owned()),
                    state,
                    reason,
                    metadata: entry.served().map(|served| served.metadata().clone()),
                    joining: entry.served().and_then(|served| served.joining().cloned()),
                    placement: entry.served().and_then(|served| served.placement().cloned()),
                    load_time: entry.cost.map(|cost| cost.time),
                    load_memory: entry.cost.and_then(|cost| cost.memory),
                }
            })
            .collect()
    }

    /// Returns whether a pipeline contains a model, directly or by another pipeline.
    fn runs(&self, pipeline: &str, model: &str) -> bool {
        let all = self.served();
        let (mut seen, mut next) = (BTreeSet::from([pipeline]), vec![pipeline]);
        while let Some(name) = next.pop() {
            let versions = all.iter().filter(|served| served.metadata().name == name);
            for step in versions
                .filter_map(|served| served.pipeline())
                .flat_map(Pipeline::models)
            {
                if step == model {
                    return true;
                }
                if seen.insert(step) {
                    next.push(step);
                }
            }
        }
        false
    }

    /// Returns all versions in service.
    pub(crate) fn served(&self) -> Vec<Arc<ServedVersion>> {
        let models = self.lock();
        let entries = models.values().flat_map(BTreeMap::values);
        entries.filter_map(|entry| entry.served().cloned()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Versions>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Steps of pipelines run on the versions in service.
impl StepModels for Registry {
    fn step_metadata(&self, model: ModelRef<'_>, pipeline: &str) -> Result<Arc<ModelMetadata>, StepError> {
        let served = self.locate(model)?;
        if served.is_decoupled() {
            return Err(StepError::IsDecoupled);
        }
        if let Some(inner) = served.pipeline() {
            if self.runs(model.name(), pipeline) {
                return Err(StepError::RunsThePipeline);
            }
            if let Some(reason) = inner.unavailable() {
                let model = model.to_string();
                return Err(StepError::NotReady { model, reason });
            }
        }
        Ok(served.metadata().clone())
    }

    fn step_generation(&self, model: ModelRef<'_>) -> Option<Generation> {
        self.locate(model).ok().map(|served| served.generation())
    }

    fn step_asks_others(&self, model: ModelRef<'_>) -> bool {
        self.locate(model).is_ok_and(|served| served.asks_others(self))
    }

    fn infer_step(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        self.infer(request, cx)
    }
}

/// Requests between models.
impl Callees for Registry {
    fn answer_call(
        self: Arc<Self>,
        request: InferRequest,
        cx: RequestContext,
        takes_several: bool,
    ) -> BoxFuture<'static, Result<Responses, ServiceError>> {
        Box::pin(async move {
            match takes_several {
                true => self.infer_stream(request, cx).await,
                false => self.infer(request, cx).await.map(Responses::One),
            }
        })
    }
}

/// Error for a client that expects one response from a decoupled model.
const DECOUPLED: &str = "it is decoupled, so it gives any number of answers to a request, which this call does not support: use \
                         ModelStreamInfer (gRPC) or generate_stream (HTTP)";

/// Creates a response without outputs.
fn response_of(served: &ServedVersion, request: &InferRequest) -> InferResponse {
    InferResponse::new(served.metadata().name.clone(), Vec::new())
        .with_version(served.version().map(str::to_owned))
        .with_id(request.id.clone())
}

/// The responses hold the version, so that it is not ended before they were sent.
fn answer_several(
    served: Arc<ServedVersion>,
    request: InferRequest,
    cx: &RequestContext,
) -> Result<ResponseStream, ServiceError> {
    let head = response_of(&served, &request);
    let name = head.model_name.clone();
    let within_model = move |error: ServiceError| error.within(format_args!("model {}", Quoted(&name)));
    let several = served.infer_several(request, cx);
    let several = several.unwrap_or_else(|| Err(ServiceError::internal("a pipeline gives one answer")));
    let mut held = (several.map_err(&within_model)?, served);
    Ok(ResponseStream::new(move |cx| {
        let (several, _served) = &mut held;
        several.poll_next(cx).map(|next| {
            let next = next?.map_err(&within_model);
            Some(next.map(|part| {
                let mut response = head.clone();
                response.outputs = part.outputs;
                StreamedResponse {
                    response,
                    is_last: part.is_last,
                }
            }))
        })
    }))
}

/// The reason recorded for a version that still runs although its replacement failed.
fn outdated(reason: &str) -> String {
    format!("the files in the repository now cannot be loaded, so the earlier ones keep running: {reason}")
}
