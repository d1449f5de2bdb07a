//! The fields of Triton's model configuration. The table defines for each field whether it is implemented,
//! ignored or rejected. docs/models.md has the same table, and a test compares them.
//!
//! A field that this server does not implement is rejected if ignoring it would change responses. Otherwise
//! the field is accepted.

/// A field of a message.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) count: Count,
    pub(crate) effect: Effect,
}

/// The type of a field's value.
pub(crate) enum Kind {
    Bool,
    /// An integer, with its inclusive bounds.
    Int(i128, i128),
    Text,
    /// An enum, with the names and numbers of its values.
    Enum(&'static [(&'static str, u8)]),
    Message(&'static [Field]),
    /// Any content, because the field has no effect.
    Opaque,
}

/// How often a field may occur.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    One,
    Many,
    /// A map from strings or numbers to values of the field's kind.
    Map,
}

/// How a field is treated.
#[derive(Clone, Copy)]
pub(crate) enum Effect {
    /// Implemented as in Triton.
    Acts,
    /// Ignored, without effect on responses. The string describes the feature.
    Accepted(&'static str),
    /// Rejected unless the field has its default value. The string describes the feature.
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
/// A dimension; -1 stands for a free dimension.
const DIM: Kind = Int(-1, i64::MAX as i128);
/// Maximum number of instances. A larger number is treated as a mistake.
pub(crate) const MAX_INSTANCES: u64 = 1024;
const INSTANCES: Kind = Int(0, MAX_INSTANCES as i128);

/// The `ModelConfig` message.
pub(crate) const MODEL_CONFIG: &[Field] = &[
    field("name", Text, One, Acts),
    field("platform", Text, One, Acts),
    field("backend", Text, One, Acts),
    field("runtime", Text, One, Acts),
    field("version_policy", Message(VERSION_POLICY), One, Acts),
    field("max_batch_size", INT32, One, Acts),
    field("input", Message(INPUT), Many, Acts),
    field("output", Message(OUTPUT), Many, Acts),
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
    field("optimization", Message(OPTIMIZATION), One, Acts),
    field("dynamic_batching", Message(DYNAMIC_BATCHING), One, Acts),
    field(
        "sequence_batching",
        Opaque,
        One,
        Refused("requests that depend on earlier ones"),
    ),
    field("ensemble_scheduling", Message(ENSEMBLE), One, Acts),
    field("instance_group", Message(INSTANCE_GROUP), Many, Acts),
    field("default_model_filename", Text, One, Acts),
    field(
        "cc_model_filenames",
        Opaque,
        Map,
        Accepted("files for kinds of GPU"),
    ),
    field("metric_tags", Opaque, Map, Accepted("labels of metrics")),
    field("parameters", Message(PARAMETER), Map, Acts),
    field("model_warmup", Message(WARMUP), Many, Acts),
    field(
        "model_operations",
        Opaque,
        One,
        Refused("libraries of custom operators"),
    ),
    field("model_transaction_policy", Message(TRANSACTION_POLICY), One, Acts),
    field(
        "model_repository_agents",
        Opaque,
        One,
        Refused("checks and changes of files before loading"),
    ),
    field("response_cache", Message(RESPONSE_CACHE), One, Acts),
    field("model_metrics", Opaque, One, Accepted("buckets of histograms")),
];

const VERSION_POLICY: &[Field] = &[
    field(
        "latest",
        Message(&[field("num_versions", Int(1, u32::MAX as i128), One, Acts)]),
        One,
        Acts,
    ),
    field("all", Message(&[]), One, Acts),
    field(
        "specific",
        Message(&[field("versions", Int(0, i64::MAX as i128), Many, Acts)]),
        One,
        Acts,
    ),
];

const RESHAPE: &[Field] = &[field("shape", DIM, Many, Acts)];

const INPUT: &[Field] = &[
    field("name", Text, One, Acts),
    field("data_type", Enum(DATA_TYPES), One, Acts),
    field(
        "format",
        Enum(&[("FORMAT_NONE", 0), ("FORMAT_NHWC", 1), ("FORMAT_NCHW", 2)]),
        One,
        Acts,
    ),
    field("dims", DIM, Many, Acts),
    field("reshape", Message(RESHAPE), One, Acts),
    field("is_shape_tensor", Bool, One, Refused("only TensorRT has them")),
    field(
        "allow_ragged_batch",
        Bool,
        One,
        Refused(
            "rows of a batch have one shape; without batching each request has its own: max_batch_size: 0",
        ),
    ),
    field("optional", Bool, One, Acts),
    field(
        "is_non_linear_format_io",
        Bool,
        One,
        Refused("only TensorRT has it"),
    ),
];

const OUTPUT: &[Field] = &[
    field("name", Text, One, Acts),
    field("data_type", Enum(DATA_TYPES), One, Acts),
    field("dims", DIM, Many, Acts),
    field("reshape", Message(RESHAPE), One, Acts),
    field("label_filename", Text, One, Acts),
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
    field("preferred_batch_size", INT32, Many, Acts),
    field("max_queue_delay_microseconds", UINT64, One, Acts),
    field("preserve_ordering", Bool, One, Acts),
    field("priority_levels", UINT64, One, Acts),
    field("default_priority_level", UINT64, One, Acts),
    field("default_queue_policy", Message(QUEUE_POLICY), One, Acts),
    field("priority_queue_policy", Message(QUEUE_POLICY), Map, Acts),
];

const QUEUE_POLICY: &[Field] = &[
    field("timeout_action", Enum(&[("REJECT", 0), ("DELAY", 1)]), One, Acts),
    field("default_timeout_microseconds", UINT64, One, Acts),
    field("allow_timeout_override", Bool, One, Acts),
    field("max_queue_size", UINT32, One, Acts),
];

const ENSEMBLE: &[Field] = &[
    field("step", Message(ENSEMBLE_STEP), Many, Acts),
    field(
        "max_inflight_requests",
        UINT32,
        One,
        Accepted("how many requests a step may have waiting"),
    ),
];

const ENSEMBLE_STEP: &[Field] = &[
    field("model_name", Text, One, Acts),
    field("model_version", DIM, One, Acts),
    field("input_map", Text, Map, Acts),
    field("output_map", Text, Map, Acts),
    field(
        "model_namespace",
        Text,
        One,
        Accepted("repositories with models of the same name"),
    ),
];

const INSTANCE_GROUP: &[Field] = &[
    field("name", Text, One, Acts),
    field(
        "kind",
        Enum(&[
            ("KIND_AUTO", 0),
            ("KIND_GPU", 1),
            ("KIND_CPU", 2),
            ("KIND_MODEL", 3),
        ]),
        One,
        Acts,
    ),
    field("count", INSTANCES, One, Acts),
    field("rate_limiter", Opaque, One, Accepted("where instances run")),
    field("gpus", INT32, Many, Acts),
    field("secondary_devices", Opaque, Many, Accepted("where instances run")),
    field("profile", Opaque, Many, Accepted("where instances run")),
    field("passive", Opaque, One, Accepted("where instances run")),
    field("host_policy", Opaque, One, Accepted("where instances run")),
];

const OPTIMIZATION: &[Field] = &[
    field(
        "execution_accelerators",
        Message(EXECUTION_ACCELERATORS),
        One,
        Acts,
    ),
    field("cuda", Opaque, One, Accepted("CUDA graphs")),
    field(
        "graph",
        Opaque,
        One,
        Accepted("the graph is always optimized, as far as responses stay the same"),
    ),
    field("priority", Opaque, One, Accepted("how fast, not what")),
    field("input_pinned_memory", Opaque, One, Accepted("how fast, not what")),
    field(
        "output_pinned_memory",
        Opaque,
        One,
        Accepted("how fast, not what"),
    ),
    field(
        "gather_kernel_buffer_threshold",
        Opaque,
        One,
        Accepted("how fast, not what"),
    ),
    field("eager_batching", Opaque, One, Accepted("how fast, not what")),
];

const EXECUTION_ACCELERATORS: &[Field] = &[
    field("gpu_execution_accelerator", Message(ACCELERATOR), Many, Acts),
    field("cpu_execution_accelerator", Message(ACCELERATOR), Many, Acts),
];

const ACCELERATOR: &[Field] = &[
    field("name", Text, One, Acts),
    field("parameters", Text, Map, Acts),
];

const PARAMETER: &[Field] = &[field("string_value", Text, One, Acts)];

const WARMUP: &[Field] = &[
    field("name", Text, One, Acts),
    field("batch_size", INT32, One, Acts),
    field("inputs", Message(WARMUP_INPUT), Map, Acts),
    field("count", INT32, One, Acts),
];

const WARMUP_INPUT: &[Field] = &[
    field("data_type", Enum(DATA_TYPES), One, Acts),
    field("dims", DIM, Many, Acts),
    field("zero_data", Bool, One, Acts),
    field("random_data", Bool, One, Acts),
    field("input_data_file", Text, One, Acts),
];

const TRANSACTION_POLICY: &[Field] = &[field("decoupled", Bool, One, Acts)];

const RESPONSE_CACHE: &[Field] = &[field("enable", Bool, One, Acts)];

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// Visits all fields of a message recursively, with their paths.
    fn walk(path: &str, fields: &'static [Field], seen: &mut impl FnMut(String, &'static Field)) {
        for field in fields {
            let path = format!("{path}{}", field.name);
            seen(path.clone(), field);
            if let (Message(fields), Acts) = (&field.kind, field.effect) {
                walk(&format!("{path}."), fields, seen);
            }
        }
    }

    /// Joins the lines of wrapped paragraphs. Each row of a table stays on its own line.
    fn unwrapped(page: &str) -> String {
        let lines = page.lines().map(str::trim);
        let separated = |line: &str| match line.starts_with('|') {
            true => format!("\n{line}"),
            false => format!(" {line}"),
        };
        lines.map(separated).collect()
    }

    #[test]
    fn tables_on_one_line_are_no_tables() {
        assert_eq!(
            unwrapped("a\nb\n\n| c |\n| d |"),
            unwrapped("a b\n\n| c |\n| d |")
        );
        assert_ne!(unwrapped("| c |\n| d |"), unwrapped("| c | | d |"));
    }

    /// docs/models.md lists which fields are implemented, accepted and rejected. If this test fails, copy its
    /// output into that page.
    #[test]
    fn the_page_on_models_lists_what_becomes_of_each_field() {
        let (mut acts, mut accepted, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        walk("", MODEL_CONFIG, &mut |path, field| match field.effect {
            // The page lists the fields of a message rather than the message.
            Acts if matches!(field.kind, Message(fields) if !fields.is_empty()) => {}
            Acts => acts.push(path),
            Accepted(what) => accepted.push((path, what)),
            Refused(what) => refused.push((path, what)),
        });
        let mut page = String::from("**Acted on:** ");
        let acts: Vec<String> = acts.iter().map(|path| format!("`{path}`")).collect();
        let _ = writeln!(
            page,
            "{}.\n\n| accepted, without effect | what it is about |\n|---|---|",
            acts.join(", ")
        );
        for (path, what) in accepted {
            let _ = writeln!(page, "| `{path}` | {what} |");
        }
        page.push_str("\n| refused | what it is about |\n|---|---|\n");
        for (path, what) in refused {
            let _ = writeln!(page, "| `{path}` | {what} |");
        }
        let written = unwrapped(include_str!("../../../docs/models.md"));
        assert!(
            written.contains(&unwrapped(&page)),
            "docs/models.md does not have this:\n\n{page}"
        );
    }
}
