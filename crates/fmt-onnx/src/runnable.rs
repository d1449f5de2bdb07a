//! Predicts from a model's operators whether Tensorferry's server can run it.

use std::fmt::Write as _;

use onnx_operators::{IR_VERSIONS, ML_VERSIONS, NEWEST, ONNX_VERSIONS, operator};

use crate::Summary;

/// Maximum number of unsupported operators that a verdict names.
const NAMED: usize = 10;

/// Describes whether the server can run the model, without loading it.
pub(crate) fn verdict(summary: &Summary) -> String {
    let mut hindrances = Vec::new();
    if !i64::try_from(summary.ir_version).is_ok_and(|version| IR_VERSIONS.contains(&version)) {
        hindrances.push(format!("format version {}", summary.ir_version));
    }
    for (set, versions) in [("ai.onnx", ONNX_VERSIONS), ("ai.onnx.ml", ML_VERSIONS)] {
        let version = version_of(summary, set).unwrap_or(0);
        if version > *versions.end() {
            hindrances.push(format!("{set} {version}"));
        }
    }
    let missing = summary.operators.keys().filter(|(domain, name)| {
        let set = if domain.is_empty() { "ai.onnx" } else { domain };
        let version = version_of(summary, set).unwrap_or(1);
        !operator(domain, name).is_some_and(|row| row.domain != NEWEST && row.is_built_in(version))
    });
    let missing: Vec<_> = missing.collect();
    for (domain, name) in missing.iter().take(NAMED) {
        let slash = if domain.is_empty() { "" } else { "/" };
        hindrances.push(format!("{domain}{slash}{name}"));
    }
    if hindrances.is_empty() {
        return "all operators are supported; their conditions are checked when the model is loaded"
            .to_owned();
    }
    let mut text = format!("not by itself, for {}", hindrances.join(", "));
    if missing.len() > NAMED {
        let _ = write!(text, " and {} more", missing.len() - NAMED);
    }
    text + "; on ONNX Runtime if that has them"
}

/// Returns the version of an operator set that the file imports.
fn version_of(summary: &Summary, set: &str) -> Option<i64> {
    let version = summary.opsets.get(set)?;
    Some(i64::try_from(*version).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn versions_are_those_of_the_page() {
        let page = include_str!("../../../docs/onnx.md");
        let versions = format!(
            "IR version {} to {}, operator sets 1 to {} of ONNX and 1 to {} of `ai.onnx.ml`",
            IR_VERSIONS.start(),
            IR_VERSIONS.end(),
            ONNX_VERSIONS.end(),
            ML_VERSIONS.end()
        );
        assert!(page.contains(&versions), "{versions}");
    }

    /// Checks that the verdict does not list fused operators as missing, since the server rewrites them.
    #[test]
    fn fused_operators_stand_in_no_way() {
        let mut summary = Summary {
            ir_version: 8,
            opsets: [("ai.onnx".to_owned(), 13), ("com.microsoft".to_owned(), 1)].into(),
            ..Summary::default()
        };
        for (domain, name) in [
            ("com.microsoft", "FusedConv"),
            ("com.microsoft", "SkipLayerNormalization"),
            ("", "SimplifiedLayerNormalization"),
            // ONNX added `LayerNormalization` in a later operator set than that of the model.
            ("", "LayerNormalization"),
        ] {
            summary.operators.insert((domain.to_owned(), name.to_owned()), 1);
            let text = verdict(&summary);
            assert!(text.starts_with("all operators"), "{name}: {text}");
        }
        let inner = ("tensorferry".to_owned(), "Ranked".to_owned());
        summary.operators.insert(inner, 1);
        assert!(verdict(&summary).starts_with("not by itself"));
    }

    #[test]
    fn what_stands_in_the_way_is_named() {
        let mut summary = Summary {
            ir_version: 8,
            opsets: [("ai.onnx".to_owned(), 17)].into(),
            ..Summary::default()
        };
        let mut add = |domain: &str, name: &str| {
            summary.operators.insert((domain.to_owned(), name.to_owned()), 1);
            verdict(&summary)
        };
        assert!(add("", "Conv").starts_with("all operators"));
        let text = add("com.microsoft", "BiasSplitGelu");
        assert!(
            text.contains("not by itself, for com.microsoft/BiasSplitGelu;"),
            "{text}"
        );
        for number in 0..20 {
            add("", &format!("Op{number:02}"));
        }
        assert!(verdict(&summary).contains("and 11 more"));
        summary.operators.clear();
        summary.opsets.insert("ai.onnx".to_owned(), 99);
        assert!(verdict(&summary).contains("ai.onnx 99"));
    }
}
