//! Path parameters for handlers.

use axum::extract::{RawPathParams, rejection::RawPathParamsRejection};
use oip_types::{ModelRef, ServiceError};

/// Percent-decoded path parameters.
pub(crate) type PathParams = Result<RawPathParams, RawPathParamsRejection>;

/// Path parameters that are valid UTF-8.
pub(crate) struct Params(RawPathParams);

impl Params {
    pub(crate) fn new(path: PathParams) -> Result<Self, ServiceError> {
        path.map(Self)
            .map_err(|_| ServiceError::invalid("the path is not UTF-8"))
    }

    /// Returns a parameter's value; empty if the path lacks it.
    pub(crate) fn get(&self, wanted: &str) -> &str {
        let found = self.0.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, value)| value).unwrap_or_default()
    }
}

/// Reads model and version from the path.
pub(crate) fn with_model<T>(
    path: PathParams,
    use_model: impl FnOnce(ModelRef<'_>) -> Result<T, ServiceError>,
) -> Result<T, ServiceError> {
    let params = Params::new(path)?;
    use_model(ModelRef::new(params.get("model"), Some(params.get("version")))?)
}
