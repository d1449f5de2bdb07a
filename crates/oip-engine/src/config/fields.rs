//! The fields of Triton's model configuration, and what becomes of each. docs/models.md shows this as a table, and a test
//! holds both against each other.
//!
//! A field that is not acted on is refused where ignoring it would change answers, and else accepted.

/// A field of a message.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) count: Count,
    pub(crate) effect: Effect,
}

/// What kind of value a field has.
pub(crate) enum Kind {
    Bool,
    /// A whole number within bounds, both included.
    Int(i128, i128),
    Text,
    /// Names and their numbers.
    Enum(&'static [(&'static str, u8)]),
    Message(&'static [Field]),
    /// Anything: what is in it has no effect.
    Opaque,
}

/// How often a field may stand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    One,
    Many,
    /// From texts, or from numbers, to values.
    Map,
}

/// What becomes of a field.
#[derive(Clone, Copy)]
pub(crate) enum Effect {
    /// It does what it does in Triton; the note says what is particular.
    Acts(&'static str),
    /// Nothing comes of it, and no answer is another for that.
    Accepted(&'static str),
    /// A model that sets it, to anything but the default, is not loaded.
    Refused(&'static str),
}

use Count::{Many, Map, One};
use Effect::{Accepted, Acts, Refused};
use Kind::{Bool, Enum, Int, Message, Opaque, Text};

const fn field(name: &'static str, kind: Kind, count: Count, effect: Effect) -> Field {
    Field {
        name,
        kind,
        count,
        effect,
    }
}

const INT32: Kind = Int(0, i32::MAX as i128);
const UINT32: Kind = Int(0, u32::MAX as i128);
const UINT64: Kind = Int(0, u64::MAX as i128);
/// A dimension: -1 where it is free.
const DIM: Kind = Int(-1, i64::MAX as i128);
/// More threads than this for one model are a mistake.
const INSTANCES: Kind = Int(0, 1024);

/// `ModelConfig`.
pub(crate) const MODEL_CONFIG: &[Field] = &[
    field(
        "name",
        Text,
        One,
        Acts("must be the name of the folder, or absent"),
    ),
    field("platform", Text, One, Acts("chooses the backend")),
    field("backend", Text, One, Acts("chooses the backend")),
    field("runtime", Text, One, Acts("handed to the backend")),
    field(
        "version_policy",
        Message(VERSION_POLICY),
        One,
        Acts("one of these; absent: `latest` with 1"),
    ),
    field(
        "max_batch_size",
        INT32,
        One,
        Acts("absent: derived; 0: no batches"),
    ),
    field(
        "input",
        Message(INPUT),
        Many,
        Acts("checked against the model; what is absent is derived"),
    ),
    field(
        "output",
        Message(OUTPUT),
        Many,
        Acts("likewise; outputs that are not listed are not offered"),
    ),
    field(
        "batch_input",
        Opaque,
        Many,
        Refused("inputs that the batcher makes up"),
    ),
    field(
        "batch_output",
        Opaque,
        Many,
        Refused("outputs that are scattered by the batcher"),
    ),
    field("optimization", Opaque, One, Accepted("how fast, not what")),
    field(
        "dynamic_batching",
        Message(DYNAMIC_BATCHING),
        One,
        Acts("absent: on for models that take batches"),
    ),
    field(
        "sequence_batching",
        Opaque,
        One,
        Refused("requests that depend on earlier ones"),
    ),
    field(
        "ensemble_scheduling",
        Message(ENSEMBLE),
        One,
        Refused("pipelines of models"),
    ),
    field(
        "instance_group",
        Message(INSTANCE_GROUP),
        Many,
        Acts("absent: `--instances`"),
    ),
    field(
        "default_model_filename",
        Text,
        One,
        Acts("a name in the version's folder, no path"),
    ),
    field(
        "cc_model_filenames",
        Opaque,
        Map,
        Accepted("files for kinds of GPU"),
    ),
    field("metric_tags", Opaque, Map, Accepted("labels of metrics")),
    field(
        "parameters",
        Message(PARAMETER),
        Map,
        Acts("handed to the backend"),
    ),
    field(
        "model_warmup",
        Message(WARMUP),
        Many,
        Acts("run before the model is ready; if one fails, it is not"),
    ),
    field(
        "model_operations",
        Opaque,
        One,
        Refused("libraries of custom operators"),
    ),
    field(
        "model_transaction_policy",
        Message(TRANSACTION_POLICY),
        One,
        Acts(""),
    ),
    field(
        "model_repository_agents",
        Opaque,
        One,
        Refused("checks and changes of files before loading"),
    ),
    field(
        "response_cache",
        Message(RESPONSE_CACHE),
        One,
        Accepted("answers are computed every time"),
    ),
    field("model_metrics", Opaque, One, Accepted("buckets of histograms")),
];

const VERSION_POLICY: &[Field] = &[
    field(
        "latest",
        Message(&[field(
            "num_versions",
            Int(1, u32::MAX as i128),
            One,
            Acts("absent: 1"),
        )]),
        One,
        Acts("the highest versions"),
    ),
    field("all", Message(&[]), One, Acts("every version")),
    field(
        "specific",
        Message(&[field("versions", Int(0, i64::MAX as i128), Many, Acts(""))]),
        One,
        Acts("those that are named"),
    ),
];

const INPUT: &[Field] = &[
    field("name", Text, One, Acts("")),
    field("data_type", Enum(DATA_TYPES), One, Acts("must be the model's")),
    field(
        "format",
        Enum(&[("FORMAT_NONE", 0), ("FORMAT_NHWC", 1), ("FORMAT_NCHW", 2)]),
        One,
        Acts("shown to clients"),
    ),
    field(
        "dims",
        DIM,
        Many,
        Acts("without the batch dimension; may fix what the model leaves free"),
    ),
    field(
        "reshape",
        Opaque,
        One,
        Refused("another shape for clients than for the model"),
    ),
    field("is_shape_tensor", Bool, One, Refused("only TensorRT has them")),
    field(
        "allow_ragged_batch",
        Bool,
        One,
        Refused("batches of rows of different shapes"),
    ),
    field(
        "optional",
        Bool,
        One,
        Acts("only of inputs that the model itself can do without"),
    ),
    field(
        "is_non_linear_format_io",
        Bool,
        One,
        Refused("only TensorRT has it"),
    ),
];

const OUTPUT: &[Field] = &[
    field("name", Text, One, Acts("")),
    field("data_type", Enum(DATA_TYPES), One, Acts("must be the model's")),
    field("dims", DIM, Many, Acts("as for inputs")),
    field(
        "reshape",
        Opaque,
        One,
        Refused("another shape for clients than for the model"),
    ),
    field(
        "label_filename",
        Text,
        One,
        Acts("labels for the classification extension, one a line; a name in the model's folder"),
    ),
    field("is_shape_tensor", Bool, One, Refused("only TensorRT has them")),
    field(
        "is_non_linear_format_io",
        Bool,
        One,
        Refused("only TensorRT has it"),
    ),
];

const DATA_TYPES: &[(&str, u8)] = &[
    ("TYPE_BOOL", 1),
    ("TYPE_UINT8", 2),
    ("TYPE_UINT16", 3),
    ("TYPE_UINT32", 4),
    ("TYPE_UINT64", 5),
    ("TYPE_INT8", 6),
    ("TYPE_INT16", 7),
    ("TYPE_INT32", 8),
    ("TYPE_INT64", 9),
    ("TYPE_FP16", 10),
    ("TYPE_FP32", 11),
    ("TYPE_FP64", 12),
    ("TYPE_STRING", 13),
    ("TYPE_BF16", 14),
];

const DYNAMIC_BATCHING: &[Field] = &[
    field("preferred_batch_size", INT32, Many, Acts("")),
    field("max_queue_delay_microseconds", UINT64, One, Acts("")),
    field("preserve_ordering", Bool, One, Acts("")),
    field("priority_levels", UINT64, One, Acts("")),
    field("default_priority_level", UINT64, One, Acts("")),
    field("default_queue_policy", Message(QUEUE_POLICY), One, Acts("")),
    field("priority_queue_policy", Message(QUEUE_POLICY), Map, Acts("")),
];

const QUEUE_POLICY: &[Field] = &[
    field(
        "timeout_action",
        Enum(&[("REJECT", 0), ("DELAY", 1)]),
        One,
        Acts(""),
    ),
    field("default_timeout_microseconds", UINT64, One, Acts("")),
    field("allow_timeout_override", Bool, One, Acts("")),
    field("max_queue_size", UINT32, One, Acts("")),
];

const ENSEMBLE: &[Field] = &[
    field("step", Message(ENSEMBLE_STEP), Many, Acts("")),
    field("max_inflight_requests", UINT32, One, Accepted("")),
];

const ENSEMBLE_STEP: &[Field] = &[
    field("model_name", Text, One, Acts("")),
    field("model_version", DIM, One, Acts("")),
    field("input_map", Text, Map, Acts("")),
    field("output_map", Text, Map, Acts("")),
    field("model_namespace", Text, One, Accepted("")),
];

const INSTANCE_GROUP: &[Field] = &[
    field("name", Text, One, Acts("")),
    field(
        "kind",
        Enum(&[
            ("KIND_AUTO", 0),
            ("KIND_GPU", 1),
            ("KIND_CPU", 2),
            ("KIND_MODEL", 3),
        ]),
        One,
        Acts("every model runs on the CPU; other kinds are warned of"),
    ),
    field(
        "count",
        INSTANCES,
        One,
        Acts("threads that run the model, over all groups; 0: `--instances`"),
    ),
    field("rate_limiter", Opaque, One, Accepted("")),
    field("gpus", Opaque, Many, Accepted("")),
    field("secondary_devices", Opaque, Many, Accepted("")),
    field("profile", Opaque, Many, Accepted("")),
    field("passive", Opaque, One, Accepted("")),
    field("host_policy", Opaque, One, Accepted("")),
];

const PARAMETER: &[Field] = &[field("string_value", Text, One, Acts(""))];

const WARMUP: &[Field] = &[
    field("name", Text, One, Acts("for messages")),
    field("batch_size", INT32, One, Acts("absent: 1")),
    field("inputs", Message(WARMUP_INPUT), Map, Acts("")),
    field("count", INT32, One, Acts("absent: 1")),
];

const WARMUP_INPUT: &[Field] = &[
    field("data_type", Enum(DATA_TYPES), One, Acts("")),
    field("dims", DIM, Many, Acts("without the batch dimension, none free")),
    field("zero_data", Bool, One, Acts("zeros, empty texts")),
    field("random_data", Bool, One, Acts("values from 0 to 1, short texts")),
    field(
        "input_data_file",
        Text,
        One,
        Acts("raw bytes; a name in the folder `warmup` of the model's folder"),
    ),
];

const TRANSACTION_POLICY: &[Field] = &[field(
    "decoupled",
    Bool,
    One,
    Refused("several answers to one request"),
)];

const RESPONSE_CACHE: &[Field] = &[field("enable", Bool, One, Acts(""))];
