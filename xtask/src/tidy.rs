//! The house rules that a machine can hold.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::{circles, crate_pages, images, layers, links, readmes, workspace, zoo};

/// The crates where `unsafe` is allowed, which therefore cannot inherit the workspace's lints.
const MAY_USE_UNSAFE: &[&str] = &[
    "fmt-tbuf",
    "oip-server",
    "onnx-gemm",
    "onnx-session",
    "tensor-mmap",
    "tensorferry-python",
];

/// What each crate may use of this workspace, and what it must not know of the world, lowest crates first. The table
/// in docs/ARCHITECTURE.md says why.
const ARROWS: &[Arrows] = &[
    Arrows {
        from: "tensor-core",
        to: &[],
        never: &["serde", "tokio", "axum", "tonic"],
    },
    Arrows {
        from: "bench-kit",
        to: &[],
        never: &["tokio"],
    },
    Arrows {
        from: "attack-kit",
        to: &[],
        never: &["axum", "tonic", "prost"],
    },
    Arrows {
        from: "flat-forest",
        to: &[],
        never: &["tokio", "serde"],
    },
    Arrows {
        from: "system-memory",
        to: &[],
        never: &["tokio", "serde"],
    },
    Arrows {
        from: "tensor-mmap",
        to: &[],
        never: &["tokio", "serde"],
    },
    Arrows {
        from: "onnx-operators",
        to: &[],
        never: &["tokio", "serde", "prost", "ort"],
    },
    Arrows {
        from: "fmt-core",
        to: &["tensor-core"],
        never: &["tokio", "serde", "flatbuffers", "ciborium", "zstd"],
    },
    Arrows {
        from: "fmt-tbuf",
        to: &["tensor-core", "fmt-core"],
        never: &["tokio", "serde", "fmt-btf", "fmt-ztensor"],
    },
    Arrows {
        from: "fmt-btf",
        to: &["tensor-core", "fmt-core"],
        never: &["tokio", "flatbuffers", "ciborium", "zstd"],
    },
    Arrows {
        from: "fmt-safetensors",
        to: &["tensor-core", "fmt-core"],
        never: &["tokio", "flatbuffers", "ciborium", "zstd"],
    },
    Arrows {
        from: "fmt-gguf",
        to: &["tensor-core", "fmt-core"],
        never: &["tokio", "flatbuffers", "ciborium", "zstd"],
    },
    Arrows {
        from: "fmt-onnx",
        to: &["tensor-core", "fmt-core", "onnx-operators"],
        never: &["tokio", "serde", "prost", "ort"],
    },
    Arrows {
        from: "fmt-zip",
        to: &["fmt-core"],
        never: &["tokio", "serde", "flatbuffers", "ciborium"],
    },
    Arrows {
        from: "fmt-npy",
        to: &["tensor-core", "fmt-core", "fmt-zip"],
        never: &["tokio", "serde", "flatbuffers", "ciborium"],
    },
    Arrows {
        from: "fmt-torch",
        to: &["tensor-core", "fmt-core", "fmt-zip"],
        never: &["tokio", "serde", "flatbuffers", "ciborium"],
    },
    Arrows {
        from: "fmt-cbor",
        to: &["tensor-core", "fmt-core"],
        never: &["tokio", "serde", "zstd"],
    },
    Arrows {
        from: "fmt-zstd",
        to: &["tensor-core", "fmt-core"],
        never: &["tokio", "serde", "ciborium"],
    },
    Arrows {
        from: "fmt-ztensor",
        to: &["tensor-core", "fmt-core", "fmt-cbor", "fmt-zstd"],
        never: &["tokio", "fmt-btf", "fmt-tbuf", "fmt-ztensor2"],
    },
    Arrows {
        from: "fmt-ztensor2",
        to: &["tensor-core", "fmt-core", "fmt-cbor", "fmt-zstd"],
        never: &["tokio", "fmt-btf", "fmt-tbuf", "fmt-ztensor"],
    },
    Arrows {
        from: "tensor-files",
        to: &[
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
    Arrows {
        from: "tensor-remote",
        to: &["fmt-core"],
        never: &["axum", "tonic", "native-tls", "openssl"],
    },
    Arrows {
        from: "model-store",
        to: &["fmt-core", "tensor-remote"],
        never: &["axum", "tonic", "native-tls", "openssl"],
    },
    Arrows {
        from: "oip-types",
        to: &["tensor-core"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Arrows {
        from: "model-config",
        to: &["tensor-core", "oip-types"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Arrows {
        from: "oip-service",
        to: &["system-memory", "tensor-core", "oip-types"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Arrows {
        from: "model-repository",
        to: &[
            "tensor-core",
            "tensor-mmap",
            "oip-types",
            "model-config",
            "oip-service",
        ],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Arrows {
        from: "oip-shm",
        to: &["tensor-core", "tensor-mmap", "oip-types", "oip-service"],
        never: &["tokio", "axum", "tonic", "memmap2"],
    },
    Arrows {
        from: "oip-console",
        to: &[],
        never: &["tonic", "prost"],
    },
    Arrows {
        from: "oip-capture",
        to: &[
            "tensor-core",
            "fmt-core",
            "fmt-safetensors",
            "oip-types",
            "oip-service",
        ],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Arrows {
        from: "oip-telemetry",
        to: &[],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Arrows {
        from: "oip-auth",
        to: &["tensor-core", "oip-types", "oip-service"],
        never: &["axum", "tonic", "hyper"],
    },
    Arrows {
        from: "oip-listen",
        to: &[],
        never: &["axum", "tonic"],
    },
    Arrows {
        from: "oip-http",
        to: &["tensor-core", "oip-types", "oip-service"],
        never: &["tonic"],
    },
    Arrows {
        from: "oip-grpc",
        to: &["tensor-core", "oip-types", "oip-service"],
        never: &["axum"],
    },
    Arrows {
        from: "oip-client",
        to: &["tensor-core", "tensor-mmap", "oip-types", "oip-grpc"],
        never: &["axum", "oip-service"],
    },
    Arrows {
        from: "tensor-cli",
        to: &[
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
    Arrows {
        from: "oip-engine",
        to: &[
            "tensor-core",
            "tensor-mmap",
            "oip-types",
            "model-config",
            "model-repository",
            "oip-service",
        ],
        never: &["axum", "tonic", "hyper"],
    },
    Arrows {
        from: "onnx-session",
        to: &[],
        never: &["tokio"],
    },
    Arrows {
        from: "onnx-gemm",
        to: &[],
        never: &["tokio", "serde", "ort"],
    },
    Arrows {
        from: "onnx-tensor",
        to: &["onnx-gemm", "system-memory"],
        never: &["tokio", "serde", "prost", "ort"],
    },
    Arrows {
        from: "onnx-kernels",
        to: &["onnx-gemm", "onnx-tensor", "tensor-core"],
        never: &["tokio", "serde", "prost", "ort"],
    },
    Arrows {
        from: "onnx-ml",
        to: &["flat-forest", "onnx-tensor", "tensor-core"],
        never: &["tokio", "serde", "prost", "ort"],
    },
    Arrows {
        from: "onnx-graph",
        to: &["onnx-operators", "tensor-core"],
        never: &["tokio", "serde", "ort"],
    },
    Arrows {
        from: "onnx-run",
        to: &[
            "onnx-graph",
            "onnx-kernels",
            "onnx-ml",
            "onnx-operators",
            "onnx-tensor",
            "tensor-core",
        ],
        never: &["tokio", "serde", "axum", "tonic", "hyper", "ort"],
    },
    Arrows {
        from: "backend-forest",
        to: &["flat-forest", "tensor-core", "oip-types", "oip-service"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Arrows {
        from: "backend-onnx",
        to: &[
            "onnx-graph",
            "onnx-run",
            "onnx-session",
            "onnx-tensor",
            "tensor-core",
            "oip-types",
            "oip-service",
        ],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Arrows {
        from: "backend-tensors",
        to: &[
            "tensor-core",
            "fmt-core",
            "tensor-files",
            "oip-types",
            "oip-service",
        ],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Arrows {
        from: "oip-text",
        to: &["tensor-core", "system-memory", "oip-types", "oip-service"],
        never: &["tokio", "axum", "tonic", "hyper", "onig"],
    },
    Arrows {
        from: "oip-worker",
        to: &["tensor-core", "oip-types", "oip-service"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Arrows {
        from: "backend-python",
        to: &["tensor-core", "oip-types", "oip-service", "oip-worker"],
        never: &["tokio", "axum", "tonic", "hyper"],
    },
    Arrows {
        from: "oip-server",
        to: &[
            "tensor-core",
            "oip-types",
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
            // For the wheel, where one program is both (feature `tool`).
            "tensor-cli",
            "tensor-mmap",
            "model-repository",
            "model-store",
            "backend-forest",
            "backend-onnx",
            "backend-python",
            "backend-tensors",
            "oip-text",
        ],
        never: &[],
    },
    Arrows {
        from: "tensorferry",
        to: &[
            "tensor-core",
            "oip-types",
            "oip-service",
            "oip-listen",
            "oip-http",
            "oip-grpc",
            "oip-engine",
        ],
        never: &["axum", "hyper", "tonic"],
    },
    Arrows {
        from: "tensorferry-python",
        to: &[
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
    Arrows {
        from: "xtask",
        to: &[],
        never: &[],
    },
];

struct Arrows {
    from: &'static str,
    to: &'static [&'static str],
    never: &'static [&'static str],
}

/// What may stand at the top of the repository, beside dotfiles.
const TOP_LEVEL: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "clippy.toml",
    "crates",
    "deny.toml",
    "docs",
    "proto",
    "rustfmt.toml",
    "schemas",
    "target",
    "xtask",
];

/// Lines before its tests above which a file is reported: it may hold two subjects.
const LARGE_FILE: usize = 500;

/// Checks all rules and prints the report.
pub(crate) fn run() -> Result<()> {
    let broken = broken_rules()?;
    for (path, lines) in large_files()? {
        println!(
            "large: {} has {lines} lines before its tests",
            workspace::display(&path)
        );
    }
    if broken.is_empty() {
        println!("the house is tidy");
        return Ok(());
    }
    bail!(
        "{} broken:\n  {}",
        if broken.len() == 1 {
            "a house rule is"
        } else {
            "house rules are"
        },
        broken.join("\n  ")
    )
}

fn broken_rules() -> Result<Vec<String>> {
    let mut broken = Vec::new();
    check_layout(&mut broken)?;
    check_arrows(&mut broken)?;
    check_sources(&mut broken)?;
    check_circles(&mut broken)?;
    broken.extend(layers::broken()?);
    check_documents(&mut broken)?;
    broken.extend(crate_pages::lacking()?);
    Ok(broken)
}

fn check_layout(broken: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(workspace::root())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && !TOP_LEVEL.contains(&name.as_str()) {
            broken.push(format!("{name}: not a part of the top level"));
        }
    }
    Ok(())
}

fn check_arrows(broken: &mut Vec<String>) -> Result<()> {
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
        let Some(rule) = ARROWS.iter().find(|rule| rule.from == package.name.as_str()) else {
            broken.push(format!(
                "{}: has no row in the table of arrows (xtask/src/tidy.rs)",
                package.name
            ));
            continue;
        };
        // Tests and benchmarks may look upwards.
        for dependency in package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind != DependencyKind::Development)
        {
            let name = dependency.name.as_str();
            if rule.never.contains(&name) {
                broken.push(format!("{}: must not know {name}", package.name));
            }
            if members.contains(name) && !rule.to.contains(&name) {
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

fn check_sources(broken: &mut Vec<String>) -> Result<()> {
    for path in sources()? {
        let text = fs::read_to_string(&path)?;
        let name = workspace::display(&path);
        if !says_what_it_is(&text) {
            broken.push(format!(
                "{name}: says in its first lines nothing about its subject"
            ));
        }
        if has_numeric_flags(&text) && !name.ends_with("xtask/src/tidy.rs") {
            broken.push(format!(
                "{name}: has flags of `open` as numbers; use rustix::fs::OFlags, since they differ between processors"
            ));
        }
        // Put together here, so that this file does not find itself.
        for unfinished in [
            concat!("todo", "!("),
            concat!("unimplemented", "!("),
            concat!("FIX", "ME"),
            concat!("#[ig", "nore"),
        ] {
            if text.contains(unfinished) {
                broken.push(format!("{name}: contains `{unfinished}`"));
            }
        }
    }
    Ok(())
}

/// No two files of a crate need each other.
fn check_circles(broken: &mut Vec<String>) -> Result<()> {
    let mut folders = vec![workspace::root().join("xtask")];
    for entry in fs::read_dir(workspace::root().join("crates"))? {
        folders.push(entry?.path());
    }
    folders.sort();
    for folder in folders {
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        for root in ["src/lib.rs", "src/main.rs"].map(|root| folder.join(root)) {
            if root.exists() {
                for circle in circles::of_crate(&root)? {
                    let circle = circle.replace(&format!("{}/", folder.display()), "");
                    broken.push(format!("{name}: files in a circle: {circle}"));
                }
            }
        }
    }
    Ok(())
}

/// Flags of `open` as numbers, which mean something else on other processors: `O_NOFOLLOW` of x86 is `O_DIRECT` on ARM.
fn has_numeric_flags(text: &str) -> bool {
    let mut lines = text.lines();
    lines.any(|line| {
        let is_constant = line.contains("const O_") && line.contains('=');
        let argument = line.split("custom_flags(").nth(1);
        let is_number =
            argument.is_some_and(|argument| argument.starts_with(|first: char| first.is_ascii_digit()));
        is_constant || is_number
    })
}

/// A file starts with its own documentation, or its first item has some.
fn says_what_it_is(text: &str) -> bool {
    let mut in_use = false;
    for line in text.lines() {
        if line.starts_with("//!") || line.starts_with("///") || line.starts_with("// Generated") {
            return true;
        }
        let skipped = line.is_empty()
            || line.starts_with("use ")
            || line.starts_with("pub use ")
            || line.starts_with("mod ");
        in_use = (in_use || line.starts_with("use ")) && !line.ends_with(';');
        if !skipped && !in_use && line != "};" {
            return false;
        }
    }
    false
}

fn check_documents(broken: &mut Vec<String>) -> Result<()> {
    let read = |name: &str| fs::read_to_string(workspace::root().join(name)).unwrap_or_default();
    let architecture = read("docs/ARCHITECTURE.md");
    let table = read("docs/crates.md");
    let mut crates = BTreeSet::from(["xtask".to_owned()]);
    for entry in fs::read_dir(workspace::root().join("crates"))? {
        crates.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    for (document, text) in [
        ("docs/crates.md", &table),
        ("docs/ARCHITECTURE.md", &architecture),
    ] {
        let rows = rows_of_crates(text);
        for name in &crates {
            let found = rows.iter().filter(|row| *row == name).count();
            if found != 1 {
                broken.push(format!(
                    "{document}: expected one row for the crate `{name}`, found {found}"
                ));
            }
        }
        for row in rows.iter().filter(|row| !crates.contains(**row)) {
            broken.push(format!("{document}: has a row for `{row}`, which is no crate"));
        }
    }
    for page in [
        "docs/ARCHITECTURE.md",
        "docs/decisions.md",
        "docs/threat-model.md",
    ] {
        check_files_named(page, &read(page), broken)?;
    }
    let promises = "docs/promises.md";
    check_files_named(promises, &read(promises), broken)?;
    check_functions(promises, &read(promises), broken);
    for path in pages()? {
        // Written by a test that failed while its output went into the page.
        if fs::read_to_string(&path)?.contains("rust_begin_unwind") {
            broken.push(format!(
                "{}: contains a panic's stack trace",
                workspace::display(&path)
            ));
        }
    }
    broken.extend(links::check(&pages()?)?);
    broken.extend(images::invented()?);
    let said = zoo::summary(&read("docs/measured/zoo.md"))?;
    // README breaks lines where it likes.
    let readme = read("README.md");
    let words: Vec<&str> = readme.split_whitespace().collect();
    if !words.join(" ").contains(&said) {
        broken.push(format!(
            "README.md: does not say \"{said}\", as docs/measured/zoo.md's figures are"
        ));
    }
    // The code of the page is a program that the tests compile.
    let example = read("crates/tensorferry/examples/echo.rs");
    let code = example.split_once("\n\n").map_or("", |(_, code)| code);
    if code.is_empty() || !table.contains(code) {
        broken.push("docs/crates.md: does not show crates/tensorferry/examples/echo.rs as it is".to_owned());
    }
    let front = readmes::example(&read("crates/tensorferry/src/lib.rs"));
    if front.is_empty() || !table.contains(&front) {
        broken.push(
            "docs/crates.md: does not show the example of crates/tensorferry/src/lib.rs as it is".to_owned(),
        );
    }
    for name in crates.iter().filter(|name| uses(code, name)) {
        if !table.contains(&format!("\n{name} = {{ path = ")) {
            broken.push(format!(
                "docs/crates.md: shows no dependency on {name}, which its code uses"
            ));
        }
    }
    let lines = readme.lines().count();
    if lines > 100 {
        broken.push(format!(
            "README.md: {lines} lines; at most 100, the rest belongs into docs/"
        ));
    }
    let lines = architecture.lines().count();
    if lines >= 300 {
        broken.push(format!(
            "docs/ARCHITECTURE.md: {lines} lines; it should be read in one sitting (below 300)"
        ));
    }
    Ok(())
}

/// Whether code imports from a crate or names something in it.
fn uses(code: &str, name: &str) -> bool {
    code.contains(&format!("{}::", name.replace('-', "_")))
}

/// A page names files that are there.
fn check_files_named(page: &str, text: &str, broken: &mut Vec<String>) -> Result<()> {
    let sources = sources()?;
    for name in quoted_files(text) {
        if !sources.iter().any(|source| source.ends_with(name)) {
            broken.push(format!("{page}: names `{name}`, which is no file"));
        }
    }
    Ok(())
}

/// Checks that each row of a page's tables names its tests: existing files with tests, and functions in them; a suite; or that it is
/// done by hand.
fn check_functions(page: &str, text: &str, broken: &mut Vec<String>) {
    for (promise, holder) in invariants(text) {
        let mut file: Option<(&str, String)> = None;
        let mut words = holder.split(|char: char| !char.is_alphanumeric());
        let mut is_held = words.any(|word| word == "read")
            || ["cargo xtask", "by hand", "not tested", "`ci`"]
                .iter()
                .any(|way| holder.contains(way));
        for name in holder.split('`').skip(1).step_by(2) {
            let is_name = |name: &str| {
                name.bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            };
            if name.ends_with(".rs") || name.ends_with(".py") {
                let folder = if name.starts_with("xtask/") { "" } else { "crates" };
                match fs::read_to_string(workspace::root().join(folder).join(name)) {
                    Ok(text) => {
                        is_held |= name.ends_with(".py") || has_tests(&text);
                        file = Some((name, text));
                    }
                    Err(_) => broken.push(format!("{page}: `{name}` is no file, for \"{promise}\"")),
                }
            } else if let Some((of, text)) = file.as_ref().filter(|_| is_name(name) && name != "ci") {
                let is_there = ["fn ", "def "]
                    .iter()
                    .any(|keyword| text.contains(&format!("{keyword}{name}(")));
                if !is_there && name != "tensor" {
                    broken.push(format!(
                        "{page}: {of} has no function `{name}`, for \"{promise}\""
                    ));
                }
            }
        }
        if !is_held {
            broken.push(format!("{page}: nothing tests \"{promise}\""));
        }
    }
}

/// Whether a Rust file has tests.
fn has_tests(text: &str) -> bool {
    ["#[test]", "#[tokio::test", "proptest!"]
        .iter()
        .any(|mark| text.contains(mark))
}

/// What stands in backticks and is called like a Rust file.
fn quoted_files(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|name| name.ends_with(".rs") && !name.contains(char::is_whitespace))
}

/// The first and the last column of the tables that name tests.
fn invariants(text: &str) -> Vec<(&str, &str)> {
    let mut rows = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        is_inside = line.ends_with("| tested by |") || is_inside && line.starts_with('|');
        if is_inside && !line.ends_with("| tested by |") && !line.starts_with("|---") {
            rows.push(line.trim_matches(['|', ' ']));
        }
    }
    let cells = rows.into_iter();
    cells
        .filter_map(|row| Some((row.split_once(" | ")?.0, row.rsplit_once(" | ")?.1)))
        .collect()
}

/// The names in the first column of a document's table of crates.
fn rows_of_crates(text: &str) -> Vec<&str> {
    let table = text.lines().skip_while(|line| !line.starts_with("| crate |"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next())
        .collect()
}

fn large_files() -> Result<Vec<(PathBuf, usize)>> {
    let mut large = Vec::new();
    for path in sources()? {
        let text = fs::read_to_string(&path)?;
        let lines = text.lines().take_while(|line| *line != "#[cfg(test)]").count();
        if lines > LARGE_FILE && !text.starts_with("// Generated") {
            large.push((path, lines));
        }
    }
    large.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
    Ok(large)
}

/// All Rust files of the workspace.
fn sources() -> Result<Vec<PathBuf>> {
    files(&["crates", "xtask"], "rs")
}

/// All Markdown files of the repository.
fn pages() -> Result<Vec<PathBuf>> {
    let mut pages = files(&["crates", "docs", "xtask"], "md")?;
    pages.push(workspace::root().join("README.md"));
    Ok(pages)
}

/// The files with an extension below some folders of the repository, in order.
fn files(folders: &[&str], extension: &str) -> Result<Vec<PathBuf>> {
    fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() && !path.ends_with("target") {
                collect(&path, extension, found)?;
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    for folder in folders {
        collect(&workspace::root().join(folder), extension, &mut found)?;
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_is_tidy() {
        assert_eq!(broken_rules().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn files_say_what_they_are() {
        assert!(says_what_it_is(
            "use a::{\n    b,\n    c,\n};\n\n/// A thing.\nstruct Thing;\n"
        ));
        assert!(says_what_it_is("//! A subject.\n"));
        assert!(!says_what_it_is("use a;\n\nstruct Thing;\n"));
        assert!(!says_what_it_is(""));
    }

    #[test]
    fn flags_of_open_are_names() {
        assert!(has_numeric_flags("    const O_NOFOLLOW: i32 = 0o400_000;\n"));
        assert!(has_numeric_flags("options.custom_flags(0x800)"));
        assert!(!has_numeric_flags(
            "options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed())"
        ));
    }

    #[test]
    fn files_that_pages_name_exist() {
        let mut broken = Vec::new();
        check_files_named("page.md", "`none.rs` and `xtask/src/tidy.rs`", &mut broken).unwrap();
        assert_eq!(broken, ["page.md: names `none.rs`, which is no file"]);
    }

    #[test]
    fn promises_name_functions_that_are_there() {
        let broken = |holder: &str| {
            let page =
                format!("| promise | where | tested by |\n|---|---|---|\n| it holds | `x` | {holder} |\n");
            let mut broken = Vec::new();
            check_functions("page.md", &page, &mut broken);
            broken
        };
        let none: [&str; 0] = [];
        assert_eq!(broken("`xtask/src/tidy.rs`: `the_house_is_tidy`, `uses`"), none);
        assert_eq!(
            broken("`xtask/browser/console.py`: `overview`; `cargo xtask browser`"),
            none
        );
        assert_eq!(broken("measured by hand"), none);
        assert_eq!(
            broken("`xtask/src/tidy.rs`: `the_house_is_clean`"),
            ["page.md: xtask/src/tidy.rs has no function `the_house_is_clean`, for \"it holds\""]
        );
        assert_eq!(
            broken("`xtask/src/clean.rs`, by hand"),
            ["page.md: `xtask/src/clean.rs` is no file, for \"it holds\""]
        );
        for untested in ["somebody", "`xtask/src/workspace.rs`"] {
            assert_eq!(broken(untested), ["page.md: nothing tests \"it holds\""]);
        }
    }

    #[test]
    fn every_row_of_a_crate_counts() {
        let text = "| crate | knows |\n|---|---|\n| `a` | `b` |\n| `c` | |\n| `a` | again |\n\n| `d` | elsewhere |\n";
        assert_eq!(rows_of_crates(text), ["a", "c", "a"]);
        assert!(rows_of_crates("| format | crate |\n").is_empty());
    }
}
