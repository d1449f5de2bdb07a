//! The actions that requests ask for, and the access rights that they need.

macro_rules! actions {
    ($($api:ident: $($action:ident)+;)+) => {
        /// The action that a request asks for. The enum is exhaustive: a transport that does not handle a new
        /// action fails to compile.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the tables of paths and gRPC methods say what each is")]
        pub enum Action {
            $($($action,)+)+
        }

        impl Action {
            /// Returns the API that the action belongs to.
            #[must_use]
            pub fn api(self) -> Api {
                match self {
                    $($(Self::$action)|+ => Api::$api,)+
                }
            }
        }
    };
}

// Each API with its actions. Names with V1 belong to the V1 protocol and OpenAI's API, names with Tei to
// text-embeddings-inference. Registering memory for the client's own connection counts as inference: the
// registration has no lasting effect and serves only inference.
actions! {
    Health: ServerLive ServerReady ModelReady ModelReadyV1 GrpcHealth;
    Metadata: ServerMetadata Models ModelsV1 ModelMetadata ModelExample ApiDescription GrpcReflection;
    ModelConfig: ModelConfig;
    Inference: Infer StreamInfer PredictV1 Generate GenerateStream ConnectionMemoryRegister
        Embeddings Rerank TeiEmbed TeiRerank TeiPredict;
    Repository: RepositoryIndex RepositoryLoad RepositoryUnload;
    Statistics: ModelStatistics AllStatistics;
    Logging: LogSettings ConsoleLog;
    Trace: TraceSettings;
    SharedMemory: SystemMemoryStatus SystemMemoryRegister SystemMemoryUnregister
        CudaMemoryStatus CudaMemoryRegister CudaMemoryUnregister;
    Metrics: Metrics;
    Page: Page;
    Unknown: Unknown;
}

/// A group of actions that access rights refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Api {
    /// Liveness and readiness of the server and its models.
    Health,
    /// Metadata of the server and its models.
    Metadata,
    /// Model configurations.
    ModelConfig,
    /// Running models.
    Inference,
    /// The model list; loading and unloading.
    Repository,
    /// Statistics of models.
    Statistics,
    /// Log settings and recent lines of the log.
    Logging,
    /// The trace extension, which is not supported.
    Trace,
    /// Shared memory regions.
    SharedMemory,
    /// Prometheus metrics.
    Metrics,
    /// Static files of the console and the API description. These files are public and reveal nothing about
    /// the server: browsers send no token when they open a page.
    Page,
    /// An unknown path.
    Unknown,
}

impl Action {
    /// Returns whether the action runs a model.
    #[must_use]
    pub fn is_inference(self) -> bool {
        self.api() == Api::Inference && self != Self::ConnectionMemoryRegister
    }

    /// Returns a name for the state that the action changes. Over HTTP only POST changes settings; over gRPC
    /// only the message shows whether they change.
    pub(super) fn change(self, is_post: bool) -> Option<&'static str> {
        match self {
            Self::RepositoryLoad => Some("load"),
            Self::RepositoryUnload => Some("unload"),
            Self::SystemMemoryRegister | Self::CudaMemoryRegister => Some("register shared memory"),
            Self::SystemMemoryUnregister | Self::CudaMemoryUnregister => Some("unregister shared memory"),
            Self::LogSettings if is_post => Some("log settings"),
            Self::TraceSettings if is_post => Some("trace settings"),
            _ => None,
        }
    }
}

impl Api {
    /// Every API that can be granted or restricted.
    pub const ALL: [Self; 10] = [
        Self::Health,
        Self::Metadata,
        Self::ModelConfig,
        Self::Inference,
        Self::Repository,
        Self::Statistics,
        Self::Logging,
        Self::Trace,
        Self::SharedMemory,
        Self::Metrics,
    ];

    /// Returns the API's name, spelled as in Triton if Triton has this API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Metadata => "metadata",
            Self::ModelConfig => "model-config",
            Self::Inference => "inference",
            Self::Repository => "model-repository",
            Self::Statistics => "statistics",
            Self::Logging => "logging",
            Self::Trace => "trace",
            Self::SharedMemory => "shared-memory",
            Self::Metrics => "metrics",
            Self::Page => "page",
            Self::Unknown => "unknown",
        }
    }
}
