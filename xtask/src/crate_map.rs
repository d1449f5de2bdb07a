//! Generates crates/README.md: all crates in groups, with the descriptions in their manifests.

use std::{collections::BTreeSet, fs, path::PathBuf};

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// The groups of crates, from the lowest layer to the programs.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Tensors and files",
        &[
            "tensor-core",
            "tensor-mmap",
            "fmt-core",
            "fmt-safetensors",
            "fmt-npy",
            "fmt-gguf",
            "fmt-torch",
            "fmt-onnx",
            "fmt-tbuf",
            "fmt-btf",
            "fmt-ztensor",
            "fmt-ztensor2",
            "fmt-zip",
            "fmt-zstd",
            "fmt-cbor",
            "tensor-files",
            "tensor-remote",
        ],
    ),
    (
        "The protocol",
        &[
            "oip-types",
            "oip-service",
            "oip-http",
            "oip-grpc",
            "oip-client",
            "oip-shm",
            "oip-listen",
        ],
    ),
    (
        "Models",
        &[
            "model-config",
            "model-repository",
            "model-store",
            "oip-engine",
            "oip-worker",
            "oip-text",
            "backend-onnx",
            "backend-forest",
            "backend-tensors",
            "backend-python",
            "flat-forest",
        ],
    ),
    (
        "The ONNX runtime",
        &[
            "onnx-operators",
            "onnx-graph",
            "onnx-gemm",
            "onnx-tensor",
            "onnx-kernels",
            "onnx-layers",
            "onnx-ml",
            "onnx-run",
            "onnx-session",
        ],
    ),
    (
        "Around the server",
        &[
            "oip-auth",
            "oip-capture",
            "oip-console",
            "oip-telemetry",
            "machine-memory",
            "caching-allocator",
        ],
    ),
    (
        "Programs and packages",
        &["oip-server", "tensor-cli", "tensorferry", "tensorferry-python"],
    ),
    ("Tests and benchmarks", &["attack-kit", "bench-kit", "fuzz"]),
];

/// Returns the path of the map and its expected content.
///
/// # Errors
/// Fails if a crate is in no group or in two, or if a group contains a crate that does not exist.
pub(crate) fn generate() -> Result<(PathBuf, String)> {
    let crates = workspace::root().join("crates");
    let mut left = BTreeSet::new();
    for entry in fs::read_dir(&crates)? {
        let path = entry?.path();
        if path.join("Cargo.toml").exists() {
            left.insert(
                path.file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
            );
        }
    }
    let mut map = String::from(
        "<!-- Made by `cargo xtask codegen` from the manifests. -->\n\n# Crates\n\n\
         [Architecture](../docs/ARCHITECTURE.md) says what each knows and must not know, [crates](../docs/crates.md) which \
         one to\ntake.\n",
    );
    for (group, names) in GROUPS {
        map += &format!("\n## {group}\n\n");
        for name in *names {
            ensure!(
                left.remove(*name),
                "xtask/src/crate_map.rs: crates/{name} does not exist, or is in two groups"
            );
            map += &format!("- [{name}]({name}): {}\n", description(name)?);
        }
    }
    ensure!(
        left.is_empty(),
        "xtask/src/crate_map.rs: no group has {left:?}; add each crate to one"
    );
    Ok((crates.join("README.md"), map))
}

/// Returns the description in a crate's manifest.
fn description(name: &str) -> Result<String> {
    let path = workspace::root().join("crates").join(name).join("Cargo.toml");
    let manifest = fs::read_to_string(&path)?;
    let value = manifest
        .lines()
        .find_map(|line| line.strip_prefix("description = \""));
    let value = value.and_then(|value| value.strip_suffix('"'));
    Ok(value
        .with_context(|| format!("{} has no description", workspace::display(&path)))?
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_has_a_line_for_each_crate() {
        let (path, map) = generate().expect("a map");
        assert!(map.contains("- [tensor-core](tensor-core): Dtypes, "));
        assert_eq!(fs::read_to_string(path).expect("crates/README.md"), map);
    }
}
