//! Looks up ONNX's schema of an operator.

use std::{collections::HashMap, sync::LazyLock};

use crate::{schema::Schema, schemas::SCHEMAS};

/// The schemas of all operators, by domain and name.
static BY_NAME: LazyLock<HashMap<(&str, &str), &Schema>> = LazyLock::new(|| {
    let named = |schema: &'static Schema| ((schema.domain, schema.name), schema);
    SCHEMAS.iter().map(named).collect()
});

/// Returns the schema of an operator of ONNX's own sets; `None` for other operators.
#[must_use]
pub fn schema_of(domain: &str, name: &str) -> Option<&'static Schema> {
    BY_NAME.get(&(domain, name)).copied()
}

#[cfg(test)]
mod tests {
    use super::SCHEMAS;

    #[test]
    fn schemas_are_sorted() {
        assert!(SCHEMAS.is_sorted_by(|a, b| (a.domain, a.name) < (b.domain, b.name)));
    }
}
