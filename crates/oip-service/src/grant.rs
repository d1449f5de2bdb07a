//! The rights of a request's sender, for checks that need the request's content.

use std::{fmt, sync::Arc};

use oip_types::ServiceError;

/// The rights of a request's sender. The code that authorizes a request's head stores the grant as an
/// extension of the request, and the transport checks the grant once it has read the body. A request without
/// a grant is not restricted.
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

/// The check that a [`Grant`] runs.
pub trait Rights: Send + Sync + 'static {
    /// Checks that the sender may use `model`.
    ///
    /// # Errors
    /// [`PermissionDenied`](oip_types::ErrorCode::PermissionDenied), with the reason.
    fn check_model(&self, model: &str) -> Result<(), ServiceError>;

    /// Counts another request on a stream whose head is already authorized.
    ///
    /// # Errors
    /// [`Overloaded`](oip_types::ErrorCode::Overloaded) when the sender exceeds its request rate.
    fn take_turn(&self) -> Result<(), ServiceError> {
        Ok(())
    }
}

impl Grant {
    /// Creates a grant with these rights.
    pub fn new(rights: impl Rights) -> Self {
        Self(Arc::new(rights))
    }

    /// Checks that the sender may use `model`.
    ///
    /// # Errors
    /// See [`Rights::check_model`].
    pub fn check_model(&self, model: &str) -> Result<(), ServiceError> {
        self.0.check_model(model)
    }

    /// Counts another request on a stream.
    ///
    /// # Errors
    /// See [`Rights::take_turn`].
    pub fn take_turn(&self) -> Result<(), ServiceError> {
        self.0.take_turn()
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grant")
    }
}
