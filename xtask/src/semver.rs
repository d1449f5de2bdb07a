//! Compares the public interfaces with those of a commit or tag. Nothing is released yet, so there is no
//! other baseline.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use cargo_metadata::{MetadataCommand, TargetKind};
use clap::Args;

use crate::{tools, workspace};

/// Options of `semver`.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(value_name = "COMMIT")]
    baseline: String,
}

/// A library: its package name and the file name of its documentation.
struct Library {
    package: String,
    document: String,
}

/// Features whose items may change at any time.
const EXEMPT: &[&str] = &["testing", "count-allocations"];

/// Compares the public interfaces of all libraries between the baseline commit and the working tree. Runs
/// rustdoc for all libraries in one target directory, so that dependencies are compiled once rather than per
/// library and revision.
pub(crate) fn run(options: &Options) -> Result<()> {
    tools::SEMVER.ensure_installed()?;
    let folder = workspace::target().join("semver");
    let tree = folder.join("tree");
    git(&["worktree", "prune"])?;
    if tree.exists() {
        git(&["worktree", "remove", "--force", path(&tree)?])?;
    }
    git(&[
        "worktree",
        "add",
        "--force",
        "--detach",
        path(&tree)?,
        &options.baseline,
    ])?;
    let before = document(&tree, &folder, "before");
    git(&["worktree", "remove", "--force", path(&tree)?])?;
    let before = before.context("the baseline")?;
    let after = document(&workspace::root(), &folder, "after")?;

    let mut broken = Vec::new();
    for library in &after {
        let (name, document) = (&library.package, format!("{}.json", library.document));
        if !before.iter().any(|known| known.package == *name) {
            println!("{name}: new");
            continue;
        }
        if let Some(changes) = breaking_changes(&folder, &document)? {
            println!("{name}:\n{changes}");
            broken.push(name.as_str());
        }
    }
    for library in &before {
        if !after.iter().any(|known| known.package == library.package) {
            println!("{}: gone", library.package);
            broken.push(&library.package);
        }
    }
    println!("{} libraries compared with {}", after.len(), options.baseline);
    ensure!(
        broken.is_empty(),
        "callers written for {} would not compile with {}",
        options.baseline,
        broken.join(", ")
    );
    Ok(())
}

/// Compares the documentation of two states of a library; `document` is the file name in both. Returns the
/// tool's report if the library has breaking changes.
fn breaking_changes(folder: &Path, document: &str) -> Result<Option<String>> {
    let (before, after) = (
        folder.join("before").join(document),
        folder.join("after").join(document),
    );
    let arguments = [
        "--baseline-rustdoc",
        path(&before)?,
        "--current-rustdoc",
        path(&after)?,
    ];
    // The tool reports every breaking change as major, whatever the version number.
    let output = tools::SEMVER
        .command()
        .args(["check-release", "--release-type", "minor"])
        .args(arguments)
        .output()?;
    if output.status.success() {
        return Ok(None);
    }
    let [said, complaints] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    Ok(Some(format!("{said}{complaints}")))
}

/// Returns the published libraries of the workspace at `root`, and their features, each as `PACKAGE/FEATURE`.
fn published_libraries(root: &Path) -> Result<(Vec<Library>, BTreeSet<String>)> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()?;
    let (mut libraries, mut features) = (Vec::new(), BTreeSet::new());
    for package in &metadata.packages {
        let is_published = package
            .publish
            .as_ref()
            .is_none_or(|registries| !registries.is_empty());
        let library = package
            .targets
            .iter()
            .find(|target| target.kind.contains(&TargetKind::Lib));
        if let (true, Some(library)) = (is_published, library) {
            let public = package
                .features
                .keys()
                .filter(|name| !EXEMPT.contains(&name.as_str()));
            features.extend(public.map(|feature| format!("{}/{feature}", package.name)));
            libraries.push(Library {
                package: package.name.to_string(),
                document: library.name.replace('-', "_"),
            });
        }
    }
    Ok((libraries, features))
}

/// Writes the documentation of a state's libraries as JSON. Returns the libraries.
fn document(root: &Path, folder: &Path, state: &str) -> Result<Vec<Library>> {
    let (libraries, features) = published_libraries(root)?;
    // The baseline and the working tree are built in the same directory. The stamp prevents cargo from
    // treating the artifacts of the other state as up to date.
    let stamp = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let flags = format!(
        "--cap-lints=allow --document-private-items --document-hidden-items -Zunstable-options --output-format=json \
         --cfg=written_{stamp}"
    );
    let build = folder.join("build");
    let packages = || {
        libraries
            .iter()
            .flat_map(|library| ["--package", library.package.as_str()])
    };
    // The compiled libraries must also be removed, because the other state's sources may have older
    // timestamps.
    let cleaned = Command::new(env!("CARGO"))
        .args(["clean", "--quiet", "--target-dir"])
        .arg(&build)
        .args(packages())
        .current_dir(root)
        .status()
        .context("starting cargo")?;
    ensure!(cleaned.success(), "`cargo clean` failed in {}", root.display());
    let status = Command::new(env!("CARGO"))
        .args(["doc", "--no-deps", "--lib", "--locked"])
        .args(packages())
        .args(["--features", &Vec::from_iter(features).join(",")])
        .arg("--target-dir")
        .arg(&build)
        .env("RUSTDOCFLAGS", flags)
        .env_remove("RUSTFLAGS")
        // rustdoc's JSON format is not stable yet.
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(root)
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "`cargo doc` failed in {}", root.display());
    let kept = folder.join(state);
    fs::create_dir_all(&kept)?;
    for library in &libraries {
        let name = format!("{}.json", library.document);
        fs::copy(build.join("doc").join(&name), kept.join(&name))
            .with_context(|| format!("the documentation of {}", library.package))?;
    }
    Ok(libraries)
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not UTF-8")
}

fn git(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("git");
    let status = command.args(arguments).current_dir(workspace::root()).status()?;
    ensure!(status.success(), "`git {}` failed", arguments.join(" "));
    Ok(())
}
