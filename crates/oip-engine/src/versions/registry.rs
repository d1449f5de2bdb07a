//! The models of an engine, their versions and states. Selects the version that answers a request.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use arc_swap::ArcSwap;
use model_repository::VersionKey;
use oip_model::{BoxFuture, ResponseStream, Responses, StreamedResponse};
use oip_service::{Readiness, RequestContext};
use oip_types::{ErrorCode, InferRequest, InferResponse, ModelMetadata, ModelRef, ServiceError};
use parking_lot::Mutex;
use tensor_core::QuotedName;

use crate::{
    generation::Generation,
    pipeline::{Pipeline, StepError, StepModels},
    run::model_calls::Callees,
    versions::{
        call_order::CallOrder,
        entry::{Entry, LoadCost, State, Versions},
        served_version::ServedVersion,
        status::ModelStatus,
    },
};

/// Models, their versions and states.
///
/// The registry contains only models that the engine has tried to load or is about to load, so requests for
/// unknown names leave no state behind.
///
/// Requests find their version in snapshots, without a lock. A snapshot holds references to its versions, so
/// a version found by a request does not end before the request has its own reference.
#[derive(Default)]
pub(crate) struct Registry {
    models: ArcSwap<Models>,
    /// Locked while a change is made, so that no change is lost.
    changing: Mutex<()>,
    call_order: CallOrder,
}

/// Models by name. Each model has its own snapshot, so that a change to one model among thousands copies only
/// that model's versions.
type Models = BTreeMap<Arc<str>, Arc<ArcSwap<Versions>>>;

impl Registry {
    /// Adds models that will be loaded at start.
    pub(crate) fn expect(&self, names: &[String]) {
        let _changing = self.changing.lock();
        let mut models = Models::clone(&self.models.load());
        for name in names {
            let entry = Entry::new(State::Loading, "it is being loaded", true);
            let versions = Versions::from([(None, entry)]);
            let added = || Arc::new(ArcSwap::from_pointee(versions));
            models.entry(name.as_str().into()).or_insert_with(added);
        }
        self.models.store(Arc::new(models));
    }

    /// Marks versions as loading. Removes failed versions, and unloaded ones for which `is_there` is false.
    /// Ready versions stay ready.
    pub(crate) fn start_loading(
        &self,
        name: &str,
        versions: &[Option<&str>],
        is_waited_for: bool,
        is_there: impl Fn(&str) -> bool,
    ) {
        // The directory is checked before the lock is taken: a slow file system must not delay other models.
        let gone: BTreeSet<VersionKey> = self
            .versions(name)
            .iter()
            .filter(|(_, entry)| matches!(entry.state, State::Unloaded))
            .filter_map(|(version, _)| version.clone())
            .filter(|version| !is_there(version.as_str()))
            .collect();
        self.change(name, |entries| {
            entries.retain(|version, entry| match (&entry.state, version) {
                (State::Ready(_), _) => {
                    // The reason from an earlier attempt no longer applies.
                    entry.reason.clear();
                    true
                }
                (State::Unloading { .. }, _) => true,
                (State::Unloaded, Some(version)) => !gone.contains(version),
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
        });
    }

    /// Records the result of a load. On success the new version serves requests from now on; on failure the
    /// old one stays in service. Returns the replaced version.
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
        self.change(name, |entries| {
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
        })
    }

    /// Records that a model as a whole cannot be loaded. Its ready versions stay in service.
    pub(crate) fn fail(&self, name: &str, reason: &str, is_waited_for: bool) {
        self.change(name, |entries| {
            entries.retain(|_, entry| !matches!(entry.state, State::Loading | State::Failed));
            let mut is_ready = false;
            for entry in entries.values_mut().filter(|entry| entry.served().is_some()) {
                entry.reason = outdated(reason);
                is_ready = true;
            }
            if !is_ready {
                entries.insert(None, Entry::new(State::Failed, reason, is_waited_for));
            }
        });
    }

    /// Returns whether a version of a model is being loaded.
    pub(crate) fn is_loading(&self, name: &str) -> bool {
        let versions = self.versions(name);
        versions
            .values()
            .any(|entry| matches!(entry.state, State::Loading))
    }

    /// Returns whether `reason` is recorded as the reason why the model cannot be loaded.
    pub(crate) fn shows(&self, name: &str, reason: &str) -> bool {
        let versions = self.versions(name);
        versions.values().any(|entry| match &entry.state {
            State::Failed => entry.reason == reason,
            State::Ready(_) => entry.reason == outdated(reason),
            State::Loading | State::Unloading { .. } | State::Unloaded => false,
        })
    }

    /// Takes all versions except those in `keep` out of service, and returns them; the caller ends them.
    /// Removes failed versions. With `forget`, also removes unloaded versions, and each ending version once
    /// it has ended.
    #[must_use]
    pub(crate) fn retire(
        &self,
        name: &str,
        keep: &[Option<&str>],
        forget: bool,
    ) -> Vec<(Option<String>, Arc<ServedVersion>)> {
        self.change(name, |entries| {
            let is_kept =
                |version: &Option<VersionKey>| keep.contains(&version.as_ref().map(VersionKey::as_str));
            entries.retain(|version, entry| {
                is_kept(version)
                    || match &entry.state {
                        State::Loading | State::Failed => false,
                        State::Unloaded => !forget,
                        State::Ready(_) | State::Unloading { .. } => true,
                    }
            });
            let mut retired = Vec::new();
            for (version, entry) in entries.iter_mut().filter(|(version, _)| !is_kept(version)) {
                if let State::Unloading {
                    forget: is_forgotten, ..
                } = &mut entry.state
                {
                    *is_forgotten |= forget;
                }
                if let Some(served) = entry.served().cloned() {
                    let generation = served.load_generation();
                    let state = State::Unloading { generation, forget };
                    *entry = Entry::new(state, "it is being unloaded", false);
                    retired.push((
                        version.as_ref().map(|version| version.as_str().to_owned()),
                        served,
                    ));
                }
            }
            retired
        })
    }

    /// Records that a retired version has ended, unless the same version was loaded again meanwhile.
    pub(crate) fn unloaded(&self, name: &str, version: Option<&str>, ended: Generation) {
        self.change(name, |entries| {
            let key = version.map(VersionKey::new);
            match entries.get(&key).map(|entry| &entry.state) {
                Some(State::Unloading { generation, forget }) if *generation == ended => match forget {
                    true => drop(entries.remove(&key)),
                    false => drop(entries.insert(key, Entry::new(State::Unloaded, "unloaded", false))),
                },
                _ => {}
            }
        });
    }

    /// Finds the version for a request: the version named in `model`, or else the highest ready one.
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

    /// Runs a request on the version that it names.
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

    /// Runs a request that may get any number of responses.
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

    /// Admits a model's request to another model, unless the call could deadlock. Pipelines hold no instance
    /// while they wait, so only their steps are recorded.
    fn admit(&self, served: &ServedVersion, cx: &RequestContext) -> Result<(), ServiceError> {
        if let Some(caller) = cx.caller() {
            let versions = self.versions(caller);
            versions
                .values()
                .filter_map(Entry::served)
                .for_each(|caller| caller.note_asks_others());
        }
        match cx.caller().filter(|_| served.pipeline().is_none()) {
            None => Ok(()),
            Some(caller) => self.call_order.admit(caller, &served.metadata().name),
        }
    }

    /// Runs a request. Holds `served` until the response arrives, so that the version does not end earlier.
    async fn infer_one(
        &self,
        served: &ServedVersion,
        request: InferRequest,
        cx: RequestContext,
    ) -> Result<InferResponse, ServiceError> {
        let metadata = served.metadata();
        let within_model =
            |error: ServiceError| error.within(format_args!("model {}", QuotedName(&metadata.name)));
        let mut response = response_of(served, &request);
        let answer = served.infer(request, &cx, self);
        response.outputs = answer.await.map_err(within_model)?;
        Ok(response)
    }

    /// Finds a version like [`Registry::find`], but also returns versions that are temporarily unavailable.
    pub(crate) fn locate(&self, model: ModelRef<'_>) -> Result<Arc<ServedVersion>, ServiceError> {
        let not_found = || ServiceError::new(ErrorCode::NotFound, format!("{model} does not exist"));
        let models = self.models.load();
        let versions = models.get(model.name()).ok_or_else(not_found)?.load();
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
            State::Loading | State::Unloading { .. } | State::Failed => fail(ErrorCode::Unavailable),
            // Retrying does not help, so the error code is "not found".
            State::Unloaded => fail(ErrorCode::NotFound),
        }
    }

    /// Returns whether a version is in service and available.
    pub(crate) fn is_ready(&self, name: &str, version: Option<&str>) -> bool {
        let versions = self.versions(name);
        let served = versions
            .get(&version.map(VersionKey::new))
            .and_then(Entry::served);
        served.is_some_and(|served| served.unavailable().is_none())
    }

    /// Returns the versions of a model that accept requests, oldest first.
    pub(crate) fn ready_versions(&self, name: &str) -> Vec<String> {
        let versions = self.versions(name);
        let ready = versions.iter().filter(|(_, entry)| entry.served().is_some());
        ready
            .filter_map(|(version, _)| version.as_ref().map(|version| version.as_str().to_owned()))
            .collect()
    }

    /// Returns whether a model is in the registry.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.models.load().contains_key(name)
    }

    /// Returns whether the server's readiness waits for a model.
    pub(crate) fn is_waited_for(&self, name: &str) -> bool {
        self.versions(name).values().any(|entry| entry.is_waited_for)
    }

    /// Returns whether a model has a version in service.
    pub(crate) fn has_ready(&self, name: &str) -> bool {
        let versions = self.versions(name);
        versions.values().any(|entry| entry.served().is_some())
    }

    /// Returns the readiness of the server. With `strict`, failed models make the server unready.
    pub(crate) fn readiness(&self, strict: bool) -> Readiness {
        let models = self.models.load();
        let is_missing = |entry: &Entry| match &entry.state {
            State::Ready(served) => entry.is_waited_for && strict && served.unavailable().is_some(),
            State::Unloading { .. } | State::Unloaded => false,
            State::Loading => entry.is_waited_for,
            State::Failed => entry.is_waited_for && strict,
        };
        let names = models
            .iter()
            .filter(|(_, versions)| versions.load().values().any(is_missing));
        let names: Vec<&str> = names.map(|(name, _)| &**name).collect();
        match &names[..] {
            [] => Readiness::Ready,
            names => Readiness::NotReady(format!("models not ready: {}", names.join(", "))),
        }
    }

    /// Returns the status of all versions of all models.
    pub(crate) fn statuses(&self) -> Vec<ModelStatus> {
        let mut statuses = Vec::new();
        for (name, versions) in self.models.load().iter() {
            for (version, entry) in versions.load().iter() {
                let (state, reason) = entry.status();
                let served = entry.served();
                statuses.push(ModelStatus {
                    name: name.to_string(),
                    version: version.as_ref().map(|version| version.as_str().to_owned()),
                    state,
                    reason,
                    metadata: served.map(|served| served.metadata().clone()),
                    joining: served.and_then(|served| served.joining().cloned()),
                    placement: served.and_then(|served| served.placement().cloned()),
                    load_time: entry.cost.map(|cost| cost.time),
                    load_memory: entry.cost.and_then(|cost| cost.memory),
                });
            }
        }
        statuses
    }

    /// Returns whether a pipeline contains a model, directly or through another pipeline.
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
        let mut all = Vec::new();
        for versions in self.models.load().values() {
            all.extend(versions.load().values().filter_map(Entry::served).cloned());
        }
        all
    }

    /// Returns the versions of a model; empty for an unknown model.
    fn versions(&self, name: &str) -> Arc<Versions> {
        let models = self.models.load();
        models
            .get(name)
            .map_or_else(Arc::default, |versions| versions.load_full())
    }

    /// Replaces a model's versions with changed ones. A model left without versions is removed from the
    /// registry.
    fn change<T>(&self, name: &str, change: impl FnOnce(&mut Versions) -> T) -> T {
        let _changing = self.changing.lock();
        let models = self.models.load();
        let known = models.get(name);
        let mut versions = known.map_or_else(Versions::new, |known| Versions::clone(&known.load()));
        let result = change(&mut versions);
        match known {
            Some(known) if !versions.is_empty() => known.store(Arc::new(versions)),
            None if versions.is_empty() => {}
            _ => {
                let mut models = Models::clone(&models);
                if versions.is_empty() {
                    models.remove(name);
                } else {
                    models.insert(name.into(), Arc::new(ArcSwap::from_pointee(versions)));
                }
                self.models.store(Arc::new(models));
            }
        }
        result
    }
}

/// Runs the steps of pipelines on the versions in service.
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

/// Answers requests from one model to another.
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
const DECOUPLED: &str = "it is decoupled, so it returns any number of responses to a request, which this \
                         call does not support: use \
                         ModelStreamInfer (gRPC) or generate_stream (HTTP)";

/// Creates a response without outputs.
fn response_of(served: &ServedVersion, request: &InferRequest) -> InferResponse {
    InferResponse::new(served.metadata().name.clone(), Vec::new())
        .with_version(served.version().map(str::to_owned))
        .with_id(request.id.clone())
}

/// Returns the stream of responses. The stream holds `served`, so that the version does not end before the
/// responses are sent.
fn answer_several(
    served: Arc<ServedVersion>,
    request: InferRequest,
    cx: &RequestContext,
) -> Result<ResponseStream, ServiceError> {
    let head = response_of(&served, &request);
    let name = head.model_name.clone();
    let within_model = move |error: ServiceError| error.within(format_args!("model {}", QuotedName(&name)));
    let several = served.infer_several(request, cx);
    let several = several.unwrap_or_else(|| Err(ServiceError::internal("a pipeline gives one response")));
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

/// Returns the reason recorded for a version that still runs although its replacement failed.
fn outdated(reason: &str) -> String {
    format!("the files in the repository now cannot be loaded, so the earlier ones keep running: {reason}")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use oip_types::ModelState;

    use super::*;

    /// Models are added, changed and removed concurrently: each change starts from the result of the previous
    /// one.
    #[test]
    fn no_change_is_lost() {
        const MODELS: usize = 200;
        let registry = Registry::default();
        thread::scope(|scope| {
            for thread in 0..4 {
                let registry = &registry;
                scope.spawn(move || {
                    for model in (thread..MODELS).step_by(4) {
                        let name = format!("m{model}");
                        registry.start_loading(&name, &[Some("1"), Some("2")], false, |_| true);
                        registry.fail(&name, "it is broken", false);
                        if model % 2 == 0 {
                            assert!(registry.retire(&name, &[], false).is_empty());
                        }
                    }
                });
            }
        });
        let statuses = registry.statuses();
        assert_eq!(statuses.len(), MODELS / 2);
        for status in statuses {
            assert_eq!(
                (status.version, status.state, &*status.reason),
                (None, ModelState::Unavailable, "it is broken")
            );
        }
        assert!(!registry.knows("m0") && registry.knows("m1"));
    }
}
