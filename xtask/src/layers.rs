//! Defines the order of the modules in crates that have layers, and finds uses that violate it.

use anyhow::Result;

use crate::{circles, workspace};

/// A module of a crate, and the modules in the same or a higher layer, which it must not use.
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
    // The modules of these two entries respond to requests independently of each other.
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

/// Returns the uses that violate the order.
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
