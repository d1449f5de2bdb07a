//! Defines which dependencies each crate may have, and which crates may use `unsafe`.

use std::{collections::BTreeSet, fs};

use anyhow::Result;
use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::workspace;

/// Checks dependencies, `unsafe` code, and which settings manifests inherit from the workspace.
pub(crate) fn check(broken: &mut Vec<String>) -> Result<()> {
    let manifest = workspace::root().join("Cargo.toml");
    let metadata = MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .other_options(["--offline".into()])
        .exec()?;
    let members: BTreeSet<&str> = metadata
        .packages
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    for package in &metadata.packages {
        let Some(rule) = CRATES.iter().find(|rule| rule.name == package.name.as_str()) else {
            broken.push(format!(
                "{}: has no row in the table of crates (xtask/src/dependencies.rs)",
                package.name
            ));
            continue;
        };
        // Tests and benchmarks may also depend on crates of higher layers.
        for dependency in package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind != DependencyKind::Development)
        {
            let name = dependency.name.as_str();
            if rule.never.contains(&name) {
                broken.push(format!("{}: must not know {name}", package.name));
            }
            if members.contains(name) && !rule.may_use.contains(&name) {
                broken.push(format!("{}: may not depend on {name}", package.name));
            }
        }
        let manifest = fs::read_to_string(&package.manifest_path)?;
        for line in manifest
            .lines()
            .filter(|line| line.contains("version = \"") && !line.starts_with("version"))
        {
            broken.push(format!("{}: gives a version of its own: {line}", package.name));
        }
        for inherited in ["edition.workspace = true", "[lints]\nworkspace = true"] {
            let own_lints =
                inherited.starts_with("[lints]") && MAY_USE_UNSAFE.contains(&package.name.as_str());
            if !own_lints && !manifest.contains(inherited) {
                broken.push(format!(
                    "{}: Cargo.toml lacks `{}`",
                    package.name,
                    inherited.replace('\n', " ")
                ));
            }
        }
    }
    Ok(())
}

/// A crate and its allowed dependencies.
struct Crate {
    name: &'static str,
    /// Crates of this workspace that the crate may depend on.
    may_use: &'static [&'static str],
    /// Packages that the crate must not depend on, in this workspace or outside.
    never: &'static [&'static str],
}

/// The crates that may use `unsafe`, and therefore cannot inherit the workspace's lints.
const MAY_USE_UNSAFE: &[&str] = &[
    "caching-allocator",
    "fmt-tbuf",
    "oip-server",
    "onnx-gemm",
    "onnx-session",
    "tensor-mmap",
    "tensorferry-python",
];

/// All crates, lowest layer first. The list in docs/ARCHITECTURE.md has the reasons. Equal rows are written
/// out, so that the rule of a crate is read and changed in one place.
const CRATES: &[Crate] = &[
    Crate {
        name: "tensor-core",
        may_use: &[],
        never: &["serde", "tokio", "axum", "tonic"],
    },
    Crate {
        name: "bench-kit",
        may_use: &[],
        never: &["tokio"],
    },
    Crate {
        name: "attack-kit",
        may_use: &[],
        never: &["axum", "tonic", "prost"],
    },
    Crate {
        name: "tree-eval",
        may_use: &[],
        never: &["tokio", "serde"],
    },
    Crate {
        name: "machine-memory",
        may_use: &[],
        never: &["tokio", "serde"],
    },
    Crate {
        name: "caching-allocator",
        may_use: &[],
        never: &["tokio", "serde", "tracing"],
    },
    Crate {
        name: "tensor-mmap",
        may_use: &[],
        never: &["tokio", "serde"],
    },
    Crate {
        name: "onnx-operators",
        may_use: &[],
        never: &["tokio", "serde", "prost", "ort"],
    },
    Crate {
        name: "fmt-core",
        may_use: &["tensor-core"],
        never: &["tokio", "serde", "flatbuffers", "ciborium", "zstd"],
    },
    Crate {
        name: "fmt-tbuf",
        may_use: &["tensor-core", "fmt-core"],
        never: &["tokio", "serde", "fmt-btf", "fmt-ztensor"],
    },
    Crate {
        name: "fmt-btf",
        may_use: &["tensor-core", "fmt-core"],
        never: &["tokio", "flatbuffers", "ciborium", "zstd"],
    },
    Crate {
        name: "fmt-safetensors",
        may_use: &["tensor-core", "fmt-core"],
        never: &["tokio", "flatbuffers", "ciborium", "zstd"],
    },
    Crate {
        name: "fmt-gguf",
        may_use: &["tensor-core", "fmt-core"],
        never: &["tokio", "flatbuffers", "ciborium", "zstd"],
    },
    Crate {
        name: "fmt-onnx",
        may_use: &["tensor-core", "fmt-core", "onnx-operators"],
        never: &["tokio", "serde", "prost", "ort"],
    },
    Crate {
        name: "fmt-zip",
        may_use: &["fmt-core"],
        never: &["tokio", "serde", "flatbuffers", "ciborium"],
    },
    Crate {
        name: "fmt-npy",
        may_use: &["tensor-core", "fmt-core", "fmt-zip"],
        never: &["tokio", "serde", "flatbuffers", "ciborium"],
    },
    Crate {
        name: "fmt-torch",
        may_use: &["tensor-core", "fmt-core", "fmt-zip"],
        never: &["tokio", "serde", "flatbuffers", "ciborium"],
    },
    Crate {
        name: "fmt-cbor",
        may_use: &["tensor-core", "fmt-core"],
        never: &["tokio", "serde", "zstd"],
    },
    Crate {
        name: "fmt-zstd",
        may_use: &["tensor-core", "fmt-core"],
        never: &["tokio", "serde", "ciborium"],
    },
    Crate {
        name: "fmt-ztensor",
        may_use: &["tensor-core", "fmt-core", "fmt-cbor", "fmt-zstd"],
        never: &["tokio", "fmt-btf", "fmt-tbuf", "fmt-ztensor2"],
    },
    Crate {
        name: "fmt-ztensor2",
        may_use: &["tensor-core", "fmt-core", "fmt-cbor", "fmt-zstd"],
        never: &["tokio", "fmt-btf", "fmt-tbuf", "fmt-ztensor"],
    },
    Crate {
        name: "tensor-files",
        may_use: &[
            "tensor-core",
            "fmt-core",
            "fmt-btf",
            "fmt-gguf",
            "fmt-npy",
            "fmt-onnx",
            "fmt-safetensors",
            "fmt-tbuf",
            "fmt-torch",
            "fmt-ztensor",
            "fmt-ztensor2",
        ],
        never: &["tokio"],
    },
    Crate {
        name: "tensor-remote",
        may_use: &["fmt-core"],
        never: &["axum", "tonic", "native-tls", "openssl"],
    },
    Crate {
        name: "model-store",
        may_use: &["fmt-core", "tensor-remote"],
        never: &["axum", "tonic", "native-tls", "openssl"],
    },
    Crate {
        name: "oip-types",
        may_use: &["tensor-core"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "model-config",
        may_use: &["tensor-core", "oip-types"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "oip-model",
        may_use: &["machine-memory", "tensor-core", "oip-types"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "oip-resources",
        may_use: &["tensor-core", "oip-types", "oip-model"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "oip-service",
        may_use: &["tensor-core", "oip-types", "oip-model", "oip-resources"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "model-repository",
        may_use: &[
            "tensor-core",
            "tensor-mmap",
            "oip-types",
            "model-config",
            "oip-model",
        ],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "oip-shm",
        may_use: &[
            "tensor-core",
            "tensor-mmap",
            "oip-types",
            "oip-resources",
            "oip-service",
        ],
        never: &["tokio", "axum", "tonic", "memmap2"],
    },
    Crate {
        name: "oip-console",
        may_use: &[],
        never: &["tonic", "prost"],
    },
    Crate {
        name: "oip-capture",
        may_use: &[
            "tensor-core",
            "fmt-core",
            "fmt-safetensors",
            "oip-types",
            "oip-model",
            "oip-service",
        ],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "oip-telemetry",
        may_use: &["tensor-core", "oip-types", "oip-resources", "oip-service"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "oip-auth",
        may_use: &["tensor-core", "oip-types", "oip-resources", "oip-service"],
        never: &["axum", "tonic", "hyper"],
    },
    Crate {
        name: "oip-listen",
        may_use: &[],
        never: &["axum", "tonic"],
    },
    Crate {
        name: "oip-http",
        may_use: &[
            "tensor-core",
            "oip-types",
            "oip-model",
            "oip-resources",
            "oip-service",
        ],
        never: &["tonic"],
    },
    Crate {
        name: "oip-grpc",
        may_use: &[
            "tensor-core",
            "oip-types",
            "oip-model",
            "oip-resources",
            "oip-service",
        ],
        never: &["axum"],
    },
    Crate {
        name: "oip-client",
        may_use: &["tensor-core", "tensor-mmap", "oip-types", "oip-grpc"],
        never: &["axum", "oip-service"],
    },
    Crate {
        name: "tensor-cli",
        may_use: &[
            "tensor-core",
            "fmt-core",
            "fmt-btf",
            "fmt-gguf",
            "fmt-npy",
            "fmt-safetensors",
            "fmt-tbuf",
            "fmt-ztensor",
            "tensor-files",
            "tensor-remote",
            "oip-types",
            "oip-capture",
            "oip-client",
        ],
        never: &["axum", "hyper", "tonic"],
    },
    Crate {
        name: "oip-engine",
        may_use: &[
            "tensor-core",
            "tensor-mmap",
            "oip-types",
            "model-config",
            "model-repository",
            "oip-model",
            "oip-resources",
            "oip-service",
            "oip-telemetry",
        ],
        never: &["axum", "tonic", "hyper"],
    },
    Crate {
        name: "onnx-session",
        may_use: &[],
        never: &["tokio"],
    },
    Crate {
        name: "onnx-gemm",
        may_use: &[],
        never: &["tokio", "serde", "ort"],
    },
    Crate {
        name: "onnx-tensor",
        may_use: &["onnx-gemm", "machine-memory"],
        never: &["tokio", "serde", "prost", "ort"],
    },
    Crate {
        name: "onnx-kernels",
        may_use: &["onnx-tensor", "tensor-core"],
        never: &["tokio", "serde", "prost", "ort"],
    },
    Crate {
        name: "onnx-layers",
        may_use: &["onnx-gemm", "onnx-kernels", "onnx-tensor", "tensor-core"],
        never: &["tokio", "serde", "prost", "ort"],
    },
    Crate {
        name: "onnx-ml",
        may_use: &["tree-eval", "onnx-tensor", "tensor-core"],
        never: &["tokio", "serde", "prost", "ort"],
    },
    Crate {
        name: "onnx-graph",
        may_use: &["onnx-operators", "tensor-core"],
        never: &["tokio", "serde", "ort"],
    },
    Crate {
        name: "onnx-run",
        may_use: &[
            "onnx-graph",
            "onnx-kernels",
            "onnx-layers",
            "onnx-ml",
            "onnx-operators",
            "onnx-tensor",
            "tensor-core",
        ],
        never: &["tokio", "serde", "axum", "tonic", "hyper", "ort"],
    },
    Crate {
        name: "backend-boosters",
        may_use: &["tree-eval", "tensor-core", "oip-types", "oip-model"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "backend-onnx",
        may_use: &[
            "onnx-graph",
            "onnx-run",
            "onnx-session",
            "onnx-tensor",
            "tensor-core",
            "oip-types",
            "oip-model",
            "oip-telemetry",
        ],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "backend-tensors",
        may_use: &[
            "tensor-core",
            "fmt-core",
            "tensor-files",
            "oip-types",
            "oip-model",
            "oip-resources",
        ],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "oip-text",
        may_use: &["tensor-core", "machine-memory", "oip-types", "oip-model"],
        never: &["tokio", "axum", "tonic", "hyper", "onig"],
    },
    Crate {
        name: "oip-worker",
        may_use: &["tensor-core", "oip-types", "oip-model", "oip-resources"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "backend-python",
        may_use: &["tensor-core", "oip-types", "oip-model", "oip-worker"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Crate {
        name: "oip-server",
        may_use: &[
            "tensor-core",
            "oip-types",
            "oip-model",
            "oip-resources",
            "oip-service",
            "oip-worker",
            "oip-auth",
            "oip-listen",
            "oip-shm",
            "oip-console",
            "oip-telemetry",
            "oip-capture",
            "oip-http",
            "oip-grpc",
            "oip-engine",
            // In the wheel, one program contains the server and the tool (feature `tool`).
            "tensor-cli",
            "tensor-mmap",
            "caching-allocator",
            "model-repository",
            "model-store",
            "backend-boosters",
            "backend-onnx",
            "backend-python",
            "backend-tensors",
            "oip-text",
        ],
        never: &[],
    },
    Crate {
        name: "tensorferry",
        may_use: &[
            "tensor-core",
            "oip-types",
            "oip-model",
            "oip-resources",
            "oip-service",
            "oip-listen",
            "oip-http",
            "oip-grpc",
            "oip-engine",
        ],
        never: &["axum", "hyper", "tonic"],
    },
    Crate {
        name: "tensorferry-python",
        may_use: &[
            "tensor-core",
            "tensor-mmap",
            "fmt-core",
            "tensor-files",
            "oip-types",
            "oip-client",
            "tensorferry",
        ],
        never: &["axum", "hyper", "tonic"],
    },
    Crate {
        name: "xtask",
        may_use: &[],
        never: &[],
    },
];
