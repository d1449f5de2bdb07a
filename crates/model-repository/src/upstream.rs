//! The interface for programs that keep a repository's directory in sync with a remote source.

/// Keeps a [`Repository`](crate::Repository)'s directory in sync with a remote source, such as an object
/// store. Readers of the directory do not know where its files come from.
///
/// Calls block, possibly for as long as a download takes.
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
    /// Updates the directory, entirely or for one model. The engine calls this method before each poll, and
    /// before a load that a client or pipeline requests. A model's directory must be replaced atomically. On
    /// failure, the current files stay in place and continue to be served.
    fn refresh(&self, model: Option<&str>);

    /// Returns the reason why the directory of `model` is out of date or missing; `None` if it is up to date.
    /// Clients see this reason if the model is unavailable.
    fn failure(&self, model: &str) -> Option<String>;
}
