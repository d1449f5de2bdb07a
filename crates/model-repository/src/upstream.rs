//! The interface to what keeps a repository's directory a copy of another place.

/// Keeps a [`Repository`](crate::Repository)'s directory in sync with another place, such as an object store.
/// Readers of the directory do not know where its files come from.
///
/// Calls block, and may take as long as a download.
///
/// ```
/// use model_repository::Upstream;
///
/// /// A store that can never be reached.
/// struct Unplugged;
///
/// impl Upstream for Unplugged {
///     fn refresh(&self, _model: Option<&str>) {}
///
///     fn failure(&self, _model: &str) -> Option<String> {
///         Some("the network cable is not plugged in".to_owned())
///     }
/// }
/// ```
pub trait Upstream: Send + Sync {
    /// Updates the directory, whole or for one model. Called before each poll, and before a load that a
    /// client or pipeline requests. A model's directory must be replaced atomically. On failure the current
    /// files stay and are served.
    fn refresh(&self, model: Option<&str>);

    /// Returns why the directory of a model, if any, is not the model; `None` if it is. It becomes the reason
    /// why the model is unavailable.
    fn failure(&self, model: &str) -> Option<String>;
}
