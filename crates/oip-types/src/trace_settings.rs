use std::collections::BTreeMap;

/// Settings of traces by name, each with its values: most have one, levels may have several. Among changes, one without values goes
/// back to what it was at the start.
pub type TraceSettings = BTreeMap<String, Vec<String>>;
