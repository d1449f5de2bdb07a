//! Settings of the trace extension.

use std::collections::BTreeMap;

/// Trace settings by name, each with its values: most settings have one value, levels may have several. In an
/// update, a setting without values is reset to its initial value.
pub type TraceSettings = BTreeMap<String, Vec<String>>;
