//! The protocol's optional extensions, implemented once for all transports.
//!
//! [`InferenceService`] has a method for each extension, which returns `None` unless the service offers the
//! extension. Transports call this method for every request. They refuse calls to an extension that is not
//! offered with [`not_offered`], and advertise only what is [`offered`].

use oip_types::{
    CONNECTION_REGION, ErrorCode, LoadOptions, ModelIndexEntry, ModelRef, ModelState, Parameters,
    ServiceError, SharedMemoryRegion, UnloadOptions,
};

use crate::{InferenceService, Logging, ModelConfiguration, ModelRepository, Statistics, SystemSharedMemory};

/// Returns the error for calls to an extension that the service does not offer; the message is the same for
/// all transports.
///
/// `extension` is Triton's name for the extension, as listed in the server metadata.
#[must_use]
pub fn not_offered(extension: &str) -> ServiceError {
    let message = format!("the extension '{extension}' is not offered by this server");
    ServiceError::new(ErrorCode::Unimplemented, message)
}

/// Returns the entries of the repository's index, or only those of ready models.
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

/// Loads a model with the parameters of a request.
///
/// # Errors
/// [`Unimplemented`](ErrorCode::Unimplemented) when the extension is not offered; the errors of
/// [`ModelRef::new`], [`LoadOptions::read`] and [`ModelRepository::load`].
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

/// Unloads a model with the parameters of a request.
///
/// # Errors
/// See [`load`].
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

/// Rejects every repository name: there is only one repository, and it is unnamed. The message is the same as
/// Triton's.
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

/// Registers a region of shared memory.
///
/// # Errors
/// [`Unimplemented`](ErrorCode::Unimplemented) when the extension is not offered; the errors of
/// [`check_region_name`] and [`SystemSharedMemory::register`].
pub fn register_region(
    service: &dyn InferenceService,
    region: SharedMemoryRegion,
) -> Result<(), ServiceError> {
    let memory = shared_memory(service)?;
    check_region_name(&region.name)?;
    memory.register(region)
}

/// Refuses an empty region name, because in other calls an empty name means all regions. Also refuses the
/// name of the connection's own region, which is reserved.
///
/// # Errors
/// [`InvalidArgument`](ErrorCode::InvalidArgument) when the name is empty or reserved for the connection's
/// own region.
pub fn check_region_name(name: &str) -> Result<(), ServiceError> {
    if name.is_empty() {
        return Err(ServiceError::invalid("shared memory region '' must have a name"));
    }
    if name == CONNECTION_REGION {
        let message =
            format!("the name '{CONNECTION_REGION}' stands for a connection's own shared memory region");
        return Err(ServiceError::invalid(message));
    }
    Ok(())
}

macro_rules! offers {
    ($($offer:ident -> $capability:ident as $name:literal;)*) => {$(
        #[doc = concat!("The extension `", $name, "`, where it must be there.")]
        ///
        /// # Errors
        /// [`Unimplemented`](ErrorCode::Unimplemented) when the extension is not offered.
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

/// Returns the names of the extensions that a service offers, in Triton's spelling, as listed in the server
/// metadata.
///
/// The list contains the extensions of every transport (`binary_tensor_data`, `parameters`), the capabilities
/// of the service, and the extensions that the service lists in its
/// [`ServerMetadata`](oip_types::ServerMetadata).
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
        // The arguments are not checked first: a call to an extension that is not offered always fails with
        // this message.
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
