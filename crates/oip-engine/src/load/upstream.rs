//! The interface to what keeps a repository's folder a copy of another place.

/// Keeps the folder of a [`Repository`](crate::Repository) as models are somewhere else: in an object store, for one. The
/// engine serves the folder and knows nothing of where its files come from.
///
/// Calls block, and may take as long as fetching models does. They come from the thread that polls, and from those that load.
///
/// ```
/// use oip_engine::Upstream;
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
    /// Brings the folder up to date: all of it, or what concerns one model. Called before each poll, and before a model is
    /// loaded because a client or a pipeline wants that. A model's folder must change all at once. If this fails, what is
    /// there stays, and is served.
    fn refresh(&self, model: Option<&str>);

    /// Why what stands in the folder for a model, if anything does, is not the model; `None` if it is. This becomes the reason
    /// why the model is not available.
    fn failure(&self, model: &str) -> Option<String>;
}
