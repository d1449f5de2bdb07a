//! Lists the crates that are linked into a program, with their versions, licences and checksums.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use serde_json::{Value, json};

use crate::workspace;

/// The crates that are linked into a set of programs for one target.
pub(crate) struct Components {
    metadata: Metadata,
    roots: Vec<PackageId>,
    /// Each crate with its dependencies.
    graph: BTreeMap<PackageId, BTreeSet<PackageId>>,
    checksums: BTreeMap<(String, String), String>,
}

/// Returns the version of this workspace.
pub(crate) fn version() -> Result<String> {
    let manifest = fs::read_to_string(workspace::root().join("Cargo.toml"))?;
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix("version = \""));
    let version = line.and_then(|line| line.strip_suffix('"'));
    Ok(version.context("Cargo.toml has no version")?.to_owned())
}

/// Returns all crates that are linked into the programs of `packages`, without dev and build dependencies.
pub(crate) fn of(packages: &[&str], target: &str) -> Result<Components> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace::root().join("Cargo.toml"))
        // The build has already downloaded all crates, so no network is needed.
        .other_options([
            "--filter-platform".into(),
            target.into(),
            "--locked".into(),
            "--offline".into(),
        ])
        .exec()?;
    let resolve = metadata.resolve.as_ref().context("cargo resolved nothing")?;
    let nodes: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let is_root = |package: &&Package| packages.contains(&package.name.as_str());
    let roots: Vec<PackageId> = metadata
        .workspace_packages()
        .into_iter()
        .filter(is_root)
        .map(|package| package.id.clone())
        .collect();
    let mut graph = BTreeMap::new();
    let mut left = roots.clone();
    while let Some(id) = left.pop() {
        if graph.contains_key(&id) {
            continue;
        }
        let node = nodes.get(&id).context("cargo's graph lacks a crate")?;
        let is_linked = |kinds: &[cargo_metadata::DepKindInfo]| {
            kinds.iter().any(|info| info.kind == DependencyKind::Normal)
        };
        let needs: BTreeSet<PackageId> = node
            .deps
            .iter()
            .filter(|needed| is_linked(&needed.dep_kinds))
            .map(|needed| needed.pkg.clone())
            .collect();
        left.extend(needs.iter().cloned());
        graph.insert(id, needs);
    }
    let checksums = checksums(&fs::read_to_string(workspace::root().join("Cargo.lock"))?);
    Ok(Components {
        metadata,
        roots,
        graph,
        checksums,
    })
}

impl Components {
    fn packages(&self) -> impl Iterator<Item = &Package> {
        self.graph.keys().map(|id| &self.metadata[id])
    }

    /// Returns the crates from outside the workspace.
    fn foreign(&self) -> impl Iterator<Item = &Package> {
        self.packages().filter(|package| package.source.is_some())
    }

    /// Returns the text of all licences, which must accompany the programs. Each text occurs once, after the
    /// names of the crates under this licence.
    pub(crate) fn licences(&self) -> Result<String> {
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut list = String::new();
        for package in self.foreign() {
            let name = format!("{} {}", package.name, package.version);
            let licence = package.license.as_deref().unwrap_or("see its text");
            list += &format!("{name}: {licence}\n");
            let folder = package
                .manifest_path
                .parent()
                .context("a crate without a directory")?;
            for text in texts_in(folder.as_std_path())? {
                let of = texts.entry(text).or_default();
                if !of.contains(&name) {
                    of.push(name.clone());
                }
            }
        }
        let mut page =
            format!("The programs contain these crates, under these licences.\n\n{list}\nTheir texts:\n");
        for (text, names) in &texts {
            page += &format!(
                "\n{}\n{}\n\n{}\n",
                "=".repeat(100),
                names.join(", "),
                text.trim_end()
            );
        }
        Ok(page)
    }

    /// Returns a `CycloneDX` 1.5 bill of materials.
    pub(crate) fn sbom(&self) -> Result<String> {
        let reference = |package: &Package| format!("pkg:cargo/{}@{}", package.name, package.version);
        let components: Vec<Value> = self
            .packages()
            .map(|package| {
                let key = (package.name.to_string(), package.version.to_string());
                let mut component = json!({
                    "type": if self.roots.contains(&package.id) { "application" } else { "library" },
                    "bom-ref": reference(package),
                    "name": package.name.as_str(),
                    "version": package.version.to_string(),
                    "purl": reference(package),
                });
                if let Some(licence) = &package.license {
                    // Older manifests have a slash instead of OR, which Cargo used to permit.
                    component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
                }
                if let Some(sum) = self.checksums.get(&key) {
                    component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
                }
                component
            })
            .collect();
        let dependencies: Vec<Value> = self
            .graph
            .iter()
            .map(|(id, needs)| {
                let needs: Vec<String> = needs.iter().map(|id| reference(&self.metadata[id])).collect();
                json!({"ref": reference(&self.metadata[id]), "dependsOn": needs})
            })
            .collect();
        let version = version()?;
        let bill = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {"component": {"type": "application", "name": "tensorferry", "version": version}},
            "components": components,
            "dependencies": dependencies,
        });
        Ok(format!("{bill:#}\n"))
    }
}

/// Returns the licence and notice texts in a crate's directory.
fn texts_in(folder: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"]
            .iter()
            .any(|start| name.starts_with(start));
        if is_licence && entry.file_type()?.is_file() {
            texts.push(String::from_utf8_lossy(&fs::read(entry.path())?).replace("\r\n", "\n"));
        }
    }
    texts.sort();
    Ok(texts)
}

/// Returns the checksums in a lock file, keyed by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut checksums = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let start = format!("{name} = \"");
            let line = package.lines().find_map(|line| line.strip_prefix(&start));
            line.and_then(|line| line.strip_suffix('"')).map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(sum)) = (field("name"), field("version"), field("checksum")) {
            checksums.insert((name, version), sum);
        }
    }
    checksums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"ff\"\n\n[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        let sums = checksums(lock);
        assert_eq!(sums.len(), 1);
        assert_eq!(sums[&("a".to_owned(), "1.0.0".to_owned())], "ff");
    }

    /// The list contains every linked crate, and no test dependencies.
    #[cfg(target_os = "linux")]
    #[test]
    fn programs_are_made_of_what_they_link() {
        let components = of(
            &["oip-server"],
            &format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
        )
        .unwrap();
        let names: BTreeSet<&str> = components
            .packages()
            .map(|package| package.name.as_str())
            .collect();
        assert!(
            names.contains("oip-engine") && names.contains("tokio"),
            "{names:?}"
        );
        assert!(
            !names.contains("rcgen") && !names.contains("tonic-prost-build"),
            "{names:?}"
        );
        let bill: Value = serde_json::from_str(&components.sbom().unwrap()).unwrap();
        // Some crates are linked in two versions.
        let count = components.packages().count();
        assert_eq!(bill["components"].as_array().unwrap().len(), count);
    }
}
