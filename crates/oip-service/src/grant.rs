//! The rights of a request's sender, for checks that need the request's content.

use std::{fmt, sync::Arc};

use oip_types::ServiceError;

/// The rights of a request's sender: an extension of the request, left there by what has checked its head, for the transport
/// to ask once it has read more. A request without one may do everything.
///
/// ```
/// use oip_service::{Grant, Rights};
/// use oip_types::{ErrorCode, ServiceError};
///
/// struct Only(&'static str);
///
/// impl Rights for Only {
///     fn check_model(&self, model: &str) -> Result<(), ServiceError> {
///         match model == self.0 {
///             true => Ok(()),
///             false => Err(ServiceError::new(ErrorCode::PermissionDenied, "another model")),
///         }
///     }
/// }
///
/// let grant = Grant::new(Only("iris"));
/// assert!(grant.check_model("iris").is_ok() && grant.check_model("m").is_err());
/// ```
#[derive(Clone)]
pub struct Grant(Arc<dyn Rights>);

/// The check behind a [`Grant`].
pub trait Rights: Send + Sync + 'static {
    /// Whether the request may be about this model.
    ///
    /// # Errors
    /// [`PermissionDenied`](oip_types::ErrorCode::PermissionDenied), with the reason.
    fn check_model(&self, model: &str) -> Result<(), ServiceError>;

    /// Counts another request on a stream whose head was checked long ago.
    ///
    /// # Errors
    /// [`Overloaded`](oip_types::ErrorCode::Overloaded) when there were too many.
    fn take_turn(&self) -> Result<(), ServiceError> {
        Ok(())
    }
}

impl Grant {
    /// Whatever these rights are.
    pub fn new(rights: impl Rights) -> Self {
        Self(Arc::new(rights))
    }

    /// Whether the request may be about this model.
    ///
    /// # Errors
    /// As [`Rights::check_model`].
    pub fn check_model(&self, model: &str) -> Result<(), ServiceError> {
        self.0.check_model(model)
    }

    /// Counts another request on a stream.
    ///
    /// # Errors
    /// As [`Rights::take_turn`].
    pub fn take_turn(&self) -> Result<(), ServiceError> {
        self.0.take_turn()
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grant")
    }
}
