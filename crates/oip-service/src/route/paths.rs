//! The table of HTTP paths, used to parse paths and to build routers.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::Action;

/// An HTTP path with parameters in braces.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PathPattern {
    /// Each segment is a literal or a parameter. A parameter such as `{model}` or `{model}:predict` matches
    /// one segment, possibly empty, whose decoded value ends with the text after the brace.
    pub pattern: &'static str,
    /// The action of a request to the path.
    pub action: Action,
    /// Whether the path must not end in a slash.
    pub is_exact: bool,
}

/// The names in a path, percent-decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) model: Option<Box<str>>,
    pub(super) version: Option<Box<str>>,
    pub(super) region: Option<Box<str>>,
    pub(super) repository: Option<Box<str>>,
    /// Whether invalid UTF-8 was replaced in one of the names.
    pub(super) is_not_utf8: bool,
}

impl Params {
    pub(super) const NONE: Self = Self {
        model: None,
        version: None,
        region: None,
        repository: None,
        is_not_utf8: false,
    };
}

const fn path(pattern: &'static str, action: Action) -> PathPattern {
    PathPattern {
        pattern,
        action,
        is_exact: false,
    }
}

const fn exact(pattern: &'static str, action: Action) -> PathPattern {
    PathPattern {
        is_exact: true,
        ..path(pattern, action)
    }
}

/// Every path of the protocol, its extensions and the server's pages. The first match counts, so a path with
/// a parameter comes after those with a literal at that position. The first path of an action is its name in
/// metrics.
#[rustfmt::skip]
pub const PATHS: &[PathPattern] = &[
    path("/v2/models/{model}/infer", Action::Infer),
    path("/v2/models/{model}/versions/{version}/infer", Action::Infer),
    path("/v2/health/live", Action::ServerLive),
    path("/v2/health/ready", Action::ServerReady),
    // Paths that platforms prescribe: the Kubernetes convention, and SageMaker.
    path("/livez", Action::ServerLive),
    path("/readyz", Action::ServerReady),
    path("/ping", Action::ServerReady),
    path("/metrics", Action::Metrics),
    path("/v1/models", Action::ModelsV1),
    path("/v1/models/{model}:predict", Action::PredictV1),
    path("/v1/models/{model}", Action::ModelReadyV1),
    path("/v1/models/{model}/versions/{version}:predict", Action::PredictV1),
    path("/v1/models/{model}/versions/{version}", Action::ModelReadyV1),
    path("/v1/embeddings", Action::Embeddings),
    path("/v1/rerank", Action::Rerank),
    path("/embed", Action::TeiEmbed),
    path("/rerank", Action::TeiRerank),
    path("/predict", Action::TeiPredict),
    path("/v2", Action::ServerMetadata),
    path("/v2/models", Action::Models),
    // A model with the name `stats` cannot be reached by this path; Triton behaves the same.
    path("/v2/models/stats", Action::AllStatistics),
    path("/v2/models/{model}", Action::ModelMetadata),
    path("/v2/models/{model}/versions/{version}", Action::ModelMetadata),
    path("/v2/models/{model}/ready", Action::ModelReady),
    path("/v2/models/{model}/versions/{version}/ready", Action::ModelReady),
    path("/v2/models/{model}/generate", Action::Generate),
    path("/v2/models/{model}/versions/{version}/generate", Action::Generate),
    path("/v2/models/{model}/generate_stream", Action::GenerateStream),
    path("/v2/models/{model}/versions/{version}/generate_stream", Action::GenerateStream),
    path("/v2/models/{model}/config", Action::ModelConfig),
    path("/v2/models/{model}/versions/{version}/config", Action::ModelConfig),
    path("/v2/models/{model}/example", Action::ModelExample),
    path("/v2/models/{model}/versions/{version}/example", Action::ModelExample),
    path("/v2/models/{model}/stats", Action::ModelStatistics),
    path("/v2/models/{model}/versions/{version}/stats", Action::ModelStatistics),
    path("/v2/repository/index", Action::RepositoryIndex),
    path("/v2/repository/{repository}/index", Action::RepositoryIndex),
    path("/v2/repository/models/{model}/load", Action::RepositoryLoad),
    path("/v2/repository/models/{model}/unload", Action::RepositoryUnload),
    path("/v2/repository/{repository}/models/{model}/load", Action::RepositoryLoad),
    path("/v2/repository/{repository}/models/{model}/unload", Action::RepositoryUnload),
    path("/v2/logging", Action::LogSettings),
    path("/v2/trace/setting", Action::TraceSettings),
    path("/v2/models/{model}/trace/setting", Action::TraceSettings),
    path("/v2/systemsharedmemory/status", Action::SystemMemoryStatus),
    path("/v2/systemsharedmemory/region/{region}/status", Action::SystemMemoryStatus),
    path("/v2/systemsharedmemory/region/{region}/register", Action::SystemMemoryRegister),
    path("/v2/systemsharedmemory/region/{region}/unregister", Action::SystemMemoryUnregister),
    path("/v2/systemsharedmemory/unregister", Action::SystemMemoryUnregister),
    path("/v2/cudasharedmemory/status", Action::CudaMemoryStatus),
    path("/v2/cudasharedmemory/region/{region}/status", Action::CudaMemoryStatus),
    path("/v2/cudasharedmemory/region/{region}/register", Action::CudaMemoryRegister),
    path("/v2/cudasharedmemory/region/{region}/unregister", Action::CudaMemoryUnregister),
    path("/v2/cudasharedmemory/unregister", Action::CudaMemoryUnregister),
    exact("/v2/connectionsharedmemory/register", Action::ConnectionMemoryRegister),
    path("/openapi.json", Action::ApiDescription),
    path("/docs", Action::Page),
    exact("/", Action::Page),
    exact("/console/log", Action::ConsoleLog),
    exact("/console/{file}.js", Action::Page),
    exact("/console/{file}.css", Action::Page),
    exact("/console/{file}.svg", Action::Page),
];

/// The number of segments of the longest path.
const MOST_SEGMENTS: usize = 6;

/// Finds the pattern of a path, and its parameters.
pub(super) fn find(path: &str) -> Option<(&'static PathPattern, Params)> {
    let path = path.strip_prefix('/')?;
    let (path, ends_in_slash) = match path.strip_suffix('/') {
        Some(path) => (path, true),
        None => (path, false),
    };
    let (mut segments, mut count) = ([""; MOST_SEGMENTS], 0);
    for segment in path.split('/') {
        *segments.get_mut(count)? = segment;
        count += 1;
    }
    let segments = &segments[..count];
    let found = PATHS
        .iter()
        .find(|known| !(known.is_exact && ends_in_slash) && known.matches(segments))?;
    Some((found, found.params(segments)))
}

impl PathPattern {
    /// Returns the pattern's name in metrics: all patterns of an action have the name of the first one.
    pub(super) fn name(&self) -> &'static str {
        match self.action {
            Action::SystemMemoryStatus | Action::SystemMemoryRegister | Action::SystemMemoryUnregister => {
                "/v2/systemsharedmemory"
            }
            Action::CudaMemoryStatus | Action::CudaMemoryRegister | Action::CudaMemoryUnregister => {
                "/v2/cudasharedmemory"
            }
            Action::ConnectionMemoryRegister => "/v2/connectionsharedmemory",
            Action::Page | Action::ConsoleLog if self.pattern.starts_with("/console/") => "/console",
            Action::Page => self.pattern,
            action => {
                let first = PATHS.iter().find(|path| path.action == action);
                first.map_or(self.pattern, |path| path.pattern)
            }
        }
    }

    fn segments(&self) -> impl Iterator<Item = Segment> {
        self.pattern.split('/').skip(1).map(|segment| {
            match segment.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
                Some((param, suffix)) => Segment::Param { param, suffix },
                None => Segment::Word(segment),
            }
        })
    }

    fn matches(&self, segments: &[&str]) -> bool {
        let mut expected = self.segments();
        let are_equal = segments.iter().all(|segment| match expected.next() {
            Some(Segment::Word(word)) => word == *segment,
            Some(Segment::Param { suffix: "", .. }) => true,
            Some(Segment::Param { suffix, .. }) => decoded(segment).0.ends_with(suffix),
            None => false,
        });
        are_equal && expected.next().is_none()
    }

    fn params(&self, segments: &[&str]) -> Params {
        let mut params = Params::NONE;
        for (expected, segment) in self.segments().zip(segments) {
            let Segment::Param { param, suffix } = expected else {
                continue;
            };
            let (value, is_utf8) = decoded(segment);
            let value = value.strip_suffix(suffix).unwrap_or(&value).into();
            params.is_not_utf8 |= !is_utf8;
            match param {
                "model" => params.model = Some(value),
                "version" => params.version = Some(value),
                "region" => params.region = Some(value),
                "repository" => params.repository = Some(value),
                _ => {}
            }
        }
        params
    }
}

/// A segment of a pattern.
enum Segment {
    Word(&'static str),
    Param {
        param: &'static str,
        suffix: &'static str,
    },
}

/// Percent-decodes a segment. Returns whether it is UTF-8; invalid bytes are replaced.
fn decoded(segment: &str) -> (Cow<'_, str>, bool) {
    match percent_decode_str(segment).decode_utf8() {
        Ok(value) => (value, true),
        Err(_) => (percent_decode_str(segment).decode_utf8_lossy(), false),
    }
}

/// Characters that are not percent-encoded in paths.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Percent-encodes a name as a segment of a URL's path. The result needs no quotes in a shell.
///
/// ```
/// assert_eq!(oip_service::route::path_segment("a b;$(x)/ü"), "a%20b%3B%24%28x%29%2F%C3%BC");
/// ```
#[must_use]
pub fn path_segment(name: &str) -> String {
    utf8_percent_encode(name, PLAIN).to_string()
}
