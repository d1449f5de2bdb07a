//! The protocol's extensions, as capabilities that a service may offer.
//!
//! [`InferenceService`] has a method for each that gives `None` unless the service says otherwise. Transports ask it
//! for every request, answer what is not offered with [`not_offered`], and advertise just what is: [`offered`].

use std::sync::Arc;

use oip_types::{
    ErrorCode, LoadOptions, LogSettings, ModelConfig, ModelIndexEntry, ModelRef, ModelState, ModelStatistics,
    Parameters, ReadSharedMemory, ServiceError, SharedMemoryRegion, SharedMemorySlice, UnloadOptions,
};

use crate::{BoxFuture, InferenceService};

/// What a transport answers to calls of an extension that the service does not offer: one text, whatever the transport.
///
/// `extension` is Triton's name for it, as server metadata would list it.
#[must_use]
pub fn not_offered(extension: &str) -> ServiceError {
    let message = format!("the extension '{extension}' is not offered by this server");
    ServiceError::new(ErrorCode::Unimplemented, message)
}

/// The entries of the repository's index, or those of models that are ready.
///
/// # Errors
/// [`Unimplemented`](ErrorCode::Unimplemented) when the extension is not offered.
pub fn index(
    service: &dyn InferenceService,
    is_ready_only: bool,
) -> Result<Vec<ModelIndexEntry>, ServiceError> {
    let mut index = repository(service)?.index();
    index.retain(|entry| !is_ready_only || entry.state == Some(ModelState::Ready));
    Ok(index)
}

/// Loads a model as a request's parameters say.
///
/// # Errors
/// [`Unimplemented`](ErrorCode::Unimplemented) when the extension is not offered; what [`ModelRef::new`],
/// [`LoadOptions::read`] and [`ModelRepository::load`] say.
pub async fn load(
    service: &dyn InferenceService,
    model: &str,
    parameters: Parameters,
) -> Result<(), ServiceError> {
    let repository = repository(service)?;
    let model = ModelRef::new(model, None)?;
    let options = LoadOptions::read(parameters).map_err(|error| error.within(model))?;
    repository.load(model, options).await
}

/// Unloads a model as a request's parameters say.
///
/// # Errors
/// As [`load`].
pub async fn unload(
    service: &dyn InferenceService,
    model: &str,
    parameters: Parameters,
) -> Result<(), ServiceError> {
    let repository = repository(service)?;
    let model = ModelRef::new(model, None)?;
    let options = UnloadOptions::read(parameters).map_err(|error| error.within(model))?;
    repository.unload(model, options).await
}

/// Refuses the name of a repository: there is one, and it has none. The text is Triton's.
///
/// # Errors
/// [`Unimplemented`](ErrorCode::Unimplemented) when the name is not empty.
pub fn check_repository_name(name: &str) -> Result<(), ServiceError> {
    if name.is_empty() {
        return Ok(());
    }
    let message = "'repository_name' specification is not supported";
    Err(ServiceError::new(ErrorCode::Unimplemented, message))
}

/// Makes a region of shared memory known.
///
/// # Errors
/// [`Unimplemented`](ErrorCode::Unimplemented) when the extension is not offered; what [`check_region_name`] and
/// [`SystemSharedMemory::register`] say.
pub fn register_region(
    service: &dyn InferenceService,
    region: SharedMemoryRegion,
) -> Result<(), ServiceError> {
    let memory = shared_memory(service)?;
    check_region_name(&region.name)?;
    memory.register(region)
}

/// Refuses a region without a name: where a name may be left out, that stands for all regions.
///
/// # Errors
/// [`InvalidArgument`](ErrorCode::InvalidArgument) when the name is empty.
pub fn check_region_name(name: &str) -> Result<(), ServiceError> {
    if name.is_empty() {
        return Err(ServiceError::invalid("shared memory region '' must have a name"));
    }
    Ok(())
}

macro_rules! offers {
    ($($offer:ident -> $capability:ident as $name:literal;)*) => {$(
        #[doc = concat!("The extension `", $name, "`, where it must be there.")]
        ///
        /// # Errors
        /// [`Unimplemented`](ErrorCode::Unimplemented) when it is not offered.
        pub fn $offer(service: &dyn InferenceService) -> Result<&dyn $capability, ServiceError> {
            service.$offer().ok_or_else(|| not_offered($name))
        }
    )*};
}

offers! {
    repository -> ModelRepository as "model_repository";
    configuration -> ModelConfiguration as "model_configuration";
    statistics -> Statistics as "statistics";
    logging -> Logging as "logging";
    shared_memory -> SystemSharedMemory as "system_shared_memory";
}

/// The names of the extensions that a service offers, as Triton spells them and as server metadata lists them.
///
/// They are those that every transport has (`binary_tensor_data`, `parameters`), those the service offers as a
/// capability, and those it lists itself in its [`ServerMetadata`](oip_types::ServerMetadata).
#[must_use]
pub fn offered(service: &dyn InferenceService) -> Vec<String> {
    let by_capability = [
        ("binary_tensor_data", true),
        ("parameters", true),
        ("classification", service.classification().is_some()),
        ("logging", service.logging().is_some()),
        ("model_configuration", service.configuration().is_some()),
        ("model_repository", service.repository().is_some()),
        (
            "model_repository(unload_dependents)",
            service.repository().is_some(),
        ),
        ("schedule_policy", service.has_schedule_policy()),
        ("statistics", service.statistics().is_some()),
        ("system_shared_memory", service.shared_memory().is_some()),
    ];
    let by_capability = by_capability.into_iter().filter(|(_, is_offered)| *is_offered);
    let mut names: Vec<String> = by_capability.map(|(name, _)| name.to_owned()).collect();
    for name in service.server_metadata().extensions {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The model repository extension: what there is, and loading and unloading it.
pub trait ModelRepository: Send + Sync {
    /// All models of the repository and how they are, by name and then version.
    fn index(&self) -> Vec<ModelIndexEntry>;

    /// Loads a model, or loads it again when the repository has changed, and waits for the end of it. The versions
    /// that run go on running until the new ones are ready.
    ///
    /// # Errors
    /// [`NotFound`](oip_types::ErrorCode::NotFound) when the repository has no such model;
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when it cannot be loaded, and why;
    /// [`Unavailable`](oip_types::ErrorCode::Unavailable) when loading by request is not allowed.
    fn load(&self, model: ModelRef<'_>, options: LoadOptions) -> BoxFuture<'_, Result<(), ServiceError>>;

    /// Unloads a model. New requests to it fail at once; those it has are still answered.
    ///
    /// # Errors
    /// [`NotFound`](oip_types::ErrorCode::NotFound) when the repository has no such model;
    /// [`Unavailable`](oip_types::ErrorCode::Unavailable) when unloading by request is not allowed.
    fn unload(&self, model: ModelRef<'_>, options: UnloadOptions) -> BoxFuture<'_, Result<(), ServiceError>>;
}

/// The model configuration extension.
pub trait ModelConfiguration: Send + Sync {
    /// How a model is configured; without a version, the one that the service would choose.
    ///
    /// # Errors
    /// As [`InferenceService::model_metadata`].
    fn model_config(&self, model: ModelRef<'_>) -> Result<Arc<ModelConfig>, ServiceError>;
}

/// The statistics extension.
pub trait Statistics: Send + Sync {
    /// What happened since the models were loaded: of all models, of all versions of one, or of one version.
    ///
    /// # Errors
    /// [`NotFound`](oip_types::ErrorCode::NotFound) when there is no such model or version.
    fn model_statistics(&self, model: Option<ModelRef<'_>>) -> Result<Vec<ModelStatistics>, ServiceError>;
}

/// The classification extension. Finding the highest values is the transports' business, see [`answer`](crate::answer).
pub trait Classification: Send + Sync {
    /// What is known about the classes of an output.
    fn classes(&self, model: ModelRef<'_>, output: &str) -> Classes;
}

/// What is known about the classes of an output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Whether the first dimension counts rows that are classified on their own.
    pub is_batched: bool,
    /// The names of the classes, as far as they have some.
    pub labels: Arc<[String]>,
}

/// The logging extension.
pub trait Logging: Send + Sync {
    /// The settings as they are.
    fn log_settings(&self) -> LogSettings;

    /// Changes some settings, all or none, and gives them as they are then.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) for settings that are not known, cannot be changed,
    /// or do not take the value.
    fn change_log_settings(&self, changes: LogSettings) -> Result<LogSettings, ServiceError>;
}

/// The system shared memory extension: clients on the same machine leave tensors in memory that they share.
///
/// Errors never name regions, keys or places that the client did not name itself.
pub trait SystemSharedMemory: ReadSharedMemory + Send + Sync {
    /// Makes a region known under its name.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when the name is taken, or the memory is not there, too
    /// small, or not a client's to share.
    fn register(&self, region: SharedMemoryRegion) -> Result<(), ServiceError>;

    /// Forgets a region, or all of them. A name that is not known is fine.
    fn unregister(&self, name: Option<&str>);

    /// A region, or all of them by name.
    ///
    /// # Errors
    /// [`NotFound`](oip_types::ErrorCode::NotFound) when there is no region of that name.
    fn status(&self, name: Option<&str>) -> Result<Vec<SharedMemoryRegion>, ServiceError>;

    /// Writes bytes into a slice.
    ///
    /// # Errors
    /// [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) when there is no such region, the slice is not within
    /// it, or the bytes are more than it has.
    fn write(&self, slice: &SharedMemorySlice, bytes: &[u8]) -> Result<(), ServiceError>;
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use futures_executor::block_on;
    use oip_types::ParameterValue;

    use super::*;
    use crate::testing::TestService;

    fn refusal<T>(result: Result<T, ServiceError>) -> (ErrorCode, String) {
        match result {
            Ok(_) => panic!("it is offered"),
            Err(error) => (error.code(), error.message().to_owned()),
        }
    }

    #[test]
    fn what_is_not_offered_is_said_alike() {
        let plain = TestService::plain();
        let message = |name: &str| {
            let message = format!("the extension '{name}' is not offered by this server");
            (ErrorCode::Unimplemented, message)
        };
        // Before anything else is looked at: what is not offered cannot be called in the right way.
        let load = block_on(load(&plain, "..", Parameters::new()));
        assert_eq!(refusal(load), message("model_repository"));
        let unload = block_on(unload(&plain, "..", Parameters::new()));
        assert_eq!(refusal(unload), message("model_repository"));
        assert_eq!(refusal(index(&plain, false)), message("model_repository"));
        assert_eq!(refusal(configuration(&plain)), message("model_configuration"));
        assert_eq!(refusal(statistics(&plain)), message("statistics"));
        assert_eq!(refusal(logging(&plain)), message("logging"));
        assert_eq!(refusal(shared_memory(&plain)), message("system_shared_memory"));
    }

    #[test]
    fn the_index_can_be_of_ready_models_only() {
        let names = |is_ready_only| {
            let index = index(&TestService::default(), is_ready_only).unwrap();
            let names = index.into_iter().map(|entry| (entry.name, entry.version));
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(true), [("matrix".to_owned(), Some("2".to_owned()))]);
        assert_eq!(names(false).len(), 4);
    }

    #[test]
    fn loading_is_refused_with_the_model_named() {
        let service = TestService::default();
        let file = Parameters::from([("file:1/m".to_owned(), ParameterValue::String(String::new()))]);
        let (code, message) = refusal(block_on(load(&service, "nan", file)));
        assert_eq!(code, ErrorCode::InvalidArgument);
        assert!(
            message.starts_with("model 'nan': parameter 'file:1/m': "),
            "{message}"
        );
        let (code, _) = refusal(block_on(unload(&service, "../m", Parameters::new())));
        assert_eq!(code, ErrorCode::InvalidArgument);
        assert_eq!(
            refusal(check_repository_name("r")),
            (
                ErrorCode::Unimplemented,
                "'repository_name' specification is not supported".to_owned()
            )
        );
        assert!(check_repository_name("").is_ok());
    }
}
