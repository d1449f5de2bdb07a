//! The order of modules within a crate, where a crate has one.

use anyhow::Result;

use crate::{circles, workspace};

/// A module of a crate, and the modules above it or next to it, which it must not know.
struct Layer {
    of: &'static str,
    module: &'static str,
    unknown: &'static [&'static str],
}

const LAYERS: &[Layer] = &[
    Layer {
        of: "oip-engine",
        module: "batching",
        unknown: &["run", "pipeline", "versions", "load", "engine"],
    },
    // The two ways to answer a request.
    Layer {
        of: "oip-engine",
        module: "run",
        unknown: &["pipeline", "versions", "load", "engine"],
    },
    Layer {
        of: "oip-engine",
        module: "pipeline",
        unknown: &["run", "versions", "load", "engine"],
    },
    Layer {
        of: "oip-engine",
        module: "versions",
        unknown: &["load", "engine"],
    },
    Layer {
        of: "oip-engine",
        module: "load",
        unknown: &["engine"],
    },
];

/// Returns the uses that are against the order.
pub(crate) fn broken() -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for Layer { of, module, unknown } in LAYERS {
        let folder = workspace::root().join("crates").join(of);
        for other in *unknown {
            let uses = circles::uses(&folder.join("src/lib.rs"), module, other)?;
            let uses = uses
                .into_iter()
                .map(|line| line.replace(&format!("{}/", folder.display()), ""));
            broken.extend(uses.map(|line| format!("{of}: `{module}` must not know `{other}`: {line}")));
        }
    }
    Ok(broken)
}
