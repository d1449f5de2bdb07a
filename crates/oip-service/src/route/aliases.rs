//! Request paths of hosting platforms, served as aliases of protocol paths.

use http::{
    Request, Uri,
    uri::{Parts, PathAndQuery},
};

use super::paths::path_segment;

/// Aliases of paths and their target paths. The list is usually empty, so most requests are not compared.
///
/// ```
/// use http::Request;
/// use oip_service::route::Aliases;
///
/// let aliases = Aliases::new(Some("digits"), &|_variable| None);
/// let mut request = Request::post("/invocations").body(()).unwrap();
/// aliases.apply(&mut request);
/// assert_eq!(request.uri().path(), "/v2/models/digits/infer");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Aliases(Vec<(String, PathAndQuery)>);

impl Aliases {
    /// Creates the aliases: Vertex AI's if its environment variables are set and, for a server with one
    /// model, `SageMaker`'s. Vertex AI's alias for predictions also needs a server with one model.
    /// `environment` returns the value of a variable.
    ///
    /// `/invocations` accepts V2 requests, as in Triton. Vertex AI's predictions use V1.
    #[must_use]
    pub fn new(only_model: Option<&str>, environment: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut aliases = Self::default();
        let route = |name: &str| environment(name).filter(|path| path.starts_with('/'));
        if let Some(path) = route("AIP_HEALTH_ROUTE") {
            aliases.add(path, "/v2/health/ready");
        }
        if let Some(model) = only_model {
            let model = path_segment(model);
            aliases.add("/invocations".to_owned(), &format!("/v2/models/{model}/infer"));
            if let Some(path) = route("AIP_PREDICT_ROUTE") {
                aliases.add(path, &format!("/v1/models/{model}:predict"));
            }
        }
        aliases
    }

    fn add(&mut self, path: String, meant: &str) {
        if let Ok(meant) = PathAndQuery::try_from(meant)
            && path != meant.path()
        {
            self.0.push((path, meant));
        }
    }

    /// Replaces the path of a request with its target, if the path is an alias.
    pub fn apply<B>(&self, request: &mut Request<B>) {
        let path = request.uri().path();
        let Some((_, meant)) = self.0.iter().find(|(alias, _)| alias == path) else {
            return;
        };
        let mut parts = Parts::from(request.uri().clone());
        parts.path_and_query = Some(meant.clone());
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_reach_the_only_model() {
        let vertex = |name: &str| match name {
            "AIP_HEALTH_ROUTE" => Some("/health".to_owned()),
            "AIP_PREDICT_ROUTE" => Some("/v1/endpoints/1/deployedModels/2:predict".to_owned()),
            _ => None,
        };
        let meant = |aliases: &Aliases, target: &str| {
            let mut request = Request::get(target).body(()).unwrap();
            aliases.apply(&mut request);
            request.uri().to_string()
        };
        let aliases = Aliases::new(Some("a/ä"), &vertex);
        for (target, expected) in [
            ("/invocations", "/v2/models/a%2F%C3%A4/infer"),
            ("/health", "/v2/health/ready"),
            (
                "/v1/endpoints/1/deployedModels/2:predict",
                "/v1/models/a%2F%C3%A4:predict",
            ),
            ("http://host:1/health", "http://host:1/v2/health/ready"),
            ("/v2/models", "/v2/models"),
            ("/healthy", "/healthy"),
        ] {
            assert_eq!(meant(&aliases, target), expected);
        }
        let several = Aliases::new(None, &vertex);
        assert_eq!(meant(&several, "/invocations"), "/invocations");
        assert_eq!(meant(&several, "/health"), "/v2/health/ready");
        let none = Aliases::new(Some("m"), &|_| None);
        assert_eq!(meant(&none, "/health"), "/health");
    }
}
