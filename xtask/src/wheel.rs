//! `cargo xtask wheel`: builds the Python package as a wheel that includes the programs.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{
    cargo, components, dist,
    elf::{self, Glibc},
    venv::{self, run},
    workspace,
};

/// Options of `wheel`.
#[derive(Args)]
pub(crate) struct Options {
    /// The Python that creates virtual environments
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    pub(crate) python: String,
    /// Build the extension module and the programs without optimisation, which is faster during development
    #[arg(long)]
    pub(crate) debug: bool,
    /// Build for this target and for every Linux with glibc 2.17 or newer, with the C compiler of the package
    /// ziglang [default: this machine and its own glibc]
    #[arg(long, value_name = "TRIPLE", value_parser = TARGETS)]
    pub(crate) target: Option<String>,
}

impl Options {
    /// Returns whether the wheel is for other machines, so that it must not contain paths of this machine.
    fn is_for_others(&self) -> bool {
        self.target.is_some() && !self.debug
    }
}

/// The crate with the package's sources.
pub(crate) const PACKAGE: &str = "crates/tensorferry-python";
/// The program in the wheel. It also runs as `tensor`, most of whose code the server contains anyway.
const PROGRAM: &str = "oip-server";
/// The script that is installed as `tensor`. If the program is not next to the path by which the script was
/// started, the script resolves symbolic links in that path.
const TENSOR: &str = r#"#!/bin/sh
folder=${0%/*}
[ -x "$folder/oip-server" ] || folder=$(dirname -- "$(readlink -f -- "$0")")
exec "$folder/oip-server" --tensor "$@"
"#;
/// Packages that build the wheel and add the programs.
const BUILD_REQUIREMENTS: &[&str] = &["maturin>=1.9,<2", "wheel>=0.45"];
/// Additional packages for wheels that run on older systems or another architecture: a compiler that can link
/// with any version of glibc.
const ZIG_REQUIREMENTS: &[&str] = &["cargo-zigbuild>=0.24,<0.25", "ziglang>=0.17,<0.18"];
/// The supported targets.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];
/// The glibc version to link with, which is the oldest one that Rust's standard library supports.
const OLDEST_GLIBC: Glibc = Glibc(2, 17);
/// The system's unwinder, and the functions that Rust's standard library calls in it.
const UNWINDER: &str = "libgcc_s.so.1";
const UNWINDING: [&str; 14] = [
    "Backtrace",
    "DeleteException",
    "FindEnclosingFunction",
    "GetCFA",
    "GetDataRelBase",
    "GetIP",
    "GetIPInfo",
    "GetLanguageSpecificData",
    "GetRegionStart",
    "GetTextRelBase",
    "RaiseException",
    "Resume",
    "SetGR",
    "SetIP",
];
/// Maximum size of a wheel in bytes.
const MOST_BYTES: u64 = 25_000_000;

/// Builds the wheel with the programs in it, and prints its path.
pub(crate) fn wheel(options: &Options) -> Result<()> {
    let wheel = build(options)?;
    let size = fs::metadata(&wheel)?.len();
    println!("{} ({:.1} MB)", workspace::display(&wheel), size as f64 / 1e6);
    Ok(())
}

/// The tools and options for building a wheel.
struct Build<'b> {
    options: &'b Options,
    /// The Python of the environment that contains the tools.
    python: PathBuf,
    /// The directory for output files.
    folder: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl<'b> Build<'b> {
    fn prepare(options: &'b Options) -> Result<Self> {
        let mut folder = workspace::root().join("target/python");
        let mut environment = Vec::new();
        if options.is_for_others() {
            // These are the flags for archives. With these flags cargo would rebuild everything, because
            // other builds use different flags. Therefore a wheel for this machine does not use them.
            environment.push(("CARGO_ENCODED_RUSTFLAGS", dist::without_paths()));
        }
        let Some(target) = &options.target else {
            let python = venv::environment(&options.python, &folder.join("build"), BUILD_REQUIREMENTS)?;
            return Ok(Self {
                options,
                python,
                folder,
                environment,
            });
        };
        ensure!(
            cargo::has_target(target)?,
            "{target} needs its standard library (rustup target add {target})"
        );
        let requirements = [BUILD_REQUIREMENTS, ZIG_REQUIREMENTS].concat();
        let python = venv::environment(&options.python, &folder.join("build-zig"), &requirements)?;
        // Cargo finds its subcommands by PATH.
        let programs = python.with_file_name("");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&path)))?;
        let path = path.into_string().ok().context("PATH is not UTF-8")?;
        environment.push(("PATH", path));
        let python_path = python.to_str().context("the directory's name is not UTF-8")?;
        environment.push(("CARGO_ZIGBUILD_PYTHON_PATH", python_path.to_owned()));
        folder.push(target);
        Ok(Self {
            options,
            python,
            folder,
            environment,
        })
    }

    /// Returns the profile and its directory. They differ for debug builds: cargo's profile is `dev`, its
    /// directory `debug`.
    fn profile(&self) -> (&'static str, &'static str) {
        match self.options.debug {
            true => ("dev", "debug"),
            false => ("release", "release"),
        }
    }

    /// Builds the program in the wheel, and returns its path.
    fn program(&self) -> Result<PathBuf> {
        let (profile, built_in) = self.profile();
        let program = ["--profile", profile, "--package", PROGRAM, "--features", "tool"];
        let environment: Vec<(&str, &str)> = self
            .environment
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let Some(target) = &self.options.target else {
            cargo::run(&[&["build"][..], &program].concat(), &environment)?;
            return Ok(workspace::built(built_in).join(PROGRAM));
        };
        let with_glibc = format!("{target}.{OLDEST_GLIBC}");
        let zigbuild = ["zigbuild", "--target", &with_glibc];
        cargo::run(&[&zigbuild[..], &program].concat(), &environment)?;
        Ok(workspace::target().join(target).join(built_in).join(PROGRAM))
    }

    /// Builds a wheel that contains the extension module but no programs, and returns its path.
    fn module(&self) -> Result<PathBuf> {
        let bare = fresh(&self.folder.join("bare"))?;
        let mut maturin = Command::new(self.python.with_file_name("maturin"));
        maturin
            .args(["build", "--interpreter"])
            .arg(&self.python)
            .args(["--profile", self.profile().0])
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(target) = &self.options.target {
            let Glibc(major, minor) = OLDEST_GLIBC;
            maturin
                .args(["--zig", "--target", target, "--compatibility"])
                .arg(format!("manylinux_{major}_{minor}"));
        }
        maturin
            .arg("--manifest-path")
            .arg(workspace::root().join(PACKAGE).join("Cargo.toml"))
            .arg("--out")
            .arg(&bare);
        if let Some(target) = &self.options.target {
            let mut link = OsString::from("link-arg=");
            link.push(self.unwinder(target)?);
            maturin.args(["--", "-C"]).arg(link);
        }
        run(&mut maturin)?;
        only_entry(&bare)
    }

    /// Creates a library that replaces the system's `libgcc_s.so.1` while the module is linked.
    ///
    /// zig links its own unwinder into its output. But when a program exits, Python ends other threads with
    /// `pthread_exit`. The system's unwinder then also walks the module's functions, and calls functions of
    /// the module's unwinder with data that only that unwinder can read.
    fn unwinder(&self, target: &str) -> Result<PathBuf> {
        let source = self.folder.join("unwinder.c");
        let functions = UNWINDING.map(|name| format!("void _Unwind_{name}(void) {{}}\n"));
        fs::write(&source, functions.concat()).with_context(|| format!("writing {}", source.display()))?;
        let library = self.folder.join(UNWINDER);
        let architecture = target.split('-').next().unwrap_or_default();
        run(Command::new(&self.python)
            .args(["-m", "ziglang", "cc", "-shared", "-nostdlib", "-target"])
            .arg(format!("{architecture}-linux-gnu.{OLDEST_GLIBC}"))
            .arg(format!("-Wl,-soname,{UNWINDER}"))
            .arg(&source)
            .arg("-o")
            .arg(&library))?;
        Ok(library)
    }

    /// Runs the Python package `wheel` with these arguments.
    fn tool(&self, arguments: &[&Path]) -> Result<()> {
        run(Command::new(&self.python).args(["-m", "wheel"]).args(arguments))
    }
}

pub(crate) fn build(options: &Options) -> Result<PathBuf> {
    let build = Build::prepare(options)?;
    let program = build.program()?;
    let bare = build.module()?;
    let target = match &options.target {
        Some(target) => target.clone(),
        None => cargo::host()?,
    };

    let unpacked = fresh(&build.folder.join("unpacked"))?;
    build.tool(&[Path::new("unpack"), &bare, Path::new("--dest"), &unpacked])?;
    let tree = only_entry(&unpacked)?;
    let name = tree
        .file_name()
        .and_then(|name| name.to_str())
        .context("the wheel has no name")?;
    let scripts = tree.join(format!("{name}.data/scripts"));
    fs::create_dir_all(&scripts)?;
    // The programs need no stripping, since the build profile strips symbols.
    let server = scripts.join(PROGRAM);
    fs::copy(&program, &server).with_context(|| format!("copying {}", program.display()))?;
    let tensor = scripts.join("tensor");
    fs::write(&tensor, TENSOR)?;
    fs::set_permissions(&tensor, fs::metadata(&server)?.permissions())?;
    add_licences(&tree, name, &target)?;
    if options.is_for_others() {
        for file in files(&tree)? {
            dist::check_paths(&file)?;
        }
    }
    let wheels = fresh(&build.folder.join("wheels"))?;
    build.tool(&[Path::new("pack"), &tree, Path::new("--dest-dir"), &wheels])?;
    let mut wheel = only_entry(&wheels)?;
    if let Err(error) = check_glibc(&tree, &wheel) {
        ensure!(options.target.is_none(), error);
        wheel = with_tag_of_programs(&build, &tree, &wheel)?;
        check_glibc(&tree, &wheel)?;
    }
    if options.target.is_some() {
        check_unwinder(&tree)?;
        dist::try_server(&target, &server)?;
    }
    if !options.debug {
        check_size(&wheel)?;
    }
    Ok(wheel)
}

/// Checks that no file in a wheel needs a newer glibc than the wheel's name states.
fn check_glibc(tree: &Path, wheel: &Path) -> Result<()> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    let Some(promised) = Glibc::of_wheel(&name) else {
        // The name states no glibc version: the wheel is for another system, or only for this machine.
        return Ok(());
    };
    for file in files(tree)? {
        if let Some(needed) = elf::oldest_glibc(&file)? {
            ensure!(
                needed <= promised,
                "{name} is for glibc {promised} and newer, but {} in it needs {needed}: build it with --target",
                file.strip_prefix(tree).unwrap_or(&file).display()
            );
        }
    }
    Ok(())
}

/// Checks that the extension module uses the system's unwinder. If a thread runs Python code when the
/// interpreter exits, the C library unwinds the thread with `libgcc_s.so.1`. The thread crashes in frames of
/// a module that has its own unwinder.
fn check_unwinder(tree: &Path) -> Result<()> {
    let is_module = |file: &PathBuf| file.extension().is_some_and(|end| end == "so");
    let modules: Vec<PathBuf> = files(tree)?.into_iter().filter(is_module).collect();
    ensure!(!modules.is_empty(), "{} has no extension module", tree.display());
    for module in modules {
        let libraries = elf::libraries(&module)?.unwrap_or_default();
        ensure!(
            libraries.iter().any(|name| name == UNWINDER),
            "{} needs {}, and should need {UNWINDER}: with an unwinder of its own, programs crash that end while a thread is in Python \
             code; link it with a stub of that library",
            module.strip_prefix(tree).unwrap_or(&module).display(),
            if libraries.is_empty() {
                "no library".to_owned()
            } else {
                libraries.join(", ")
            }
        );
    }
    Ok(())
}

/// Renames the wheel according to the glibc that its content needs: maturin considers only the module, but
/// the program may need a newer glibc.
fn with_tag_of_programs(build: &Build<'_>, tree: &Path, wheel: &Path) -> Result<PathBuf> {
    let mut needed = OLDEST_GLIBC;
    for file in files(tree)? {
        needed = needed.max(elf::oldest_glibc(&file)?.unwrap_or(needed));
    }
    let Glibc(major, minor) = needed;
    let tag = format!(
        "--platform-tag=manylinux_{major}_{minor}_{}",
        std::env::consts::ARCH
    );
    build.tool(&[Path::new("tags"), Path::new("--remove"), Path::new(&tag), wheel])?;
    only_entry(wheel.parent().unwrap_or(wheel))
}

/// Checks the size of the wheel, since registries store it and images download it.
fn check_size(wheel: &Path) -> Result<()> {
    let size = fs::metadata(wheel)?.len();
    ensure!(
        size <= MOST_BYTES,
        "{} has {:.1} MB, and may have {:.1}: find what grew (`cargo bloat --release --crates -p {PROGRAM} --features tool`), optimize it for \
         size in the profile `release` of Cargo.toml or leave it out with a feature, or raise MOST_BYTES in xtask/src/wheel.rs with a \
         reason in docs/package.md",
        workspace::display(wheel),
        size as f64 / 1e6,
        MOST_BYTES as f64 / 1e6
    );
    Ok(())
}

/// Returns all files below a directory.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        match path.is_dir() {
            true => found.extend(files(&path)?),
            false => found.push(path),
        }
    }
    Ok(found)
}

/// Adds to the wheel its own licences, those of its dependencies, and one bill of materials for the programs
/// and the module. maturin's bill covers only the module, and contains paths of this machine.
fn add_licences(tree: &Path, name: &str, target: &str) -> Result<()> {
    let info = tree.join(format!("{name}.dist-info"));
    let components = components::of(&[PROGRAM, "tensor-cli", "tensorferry-python"], target)?;
    let bills = fresh(&info.join("sboms"))?;
    fs::write(bills.join("tensorferry.cdx.json"), components.sbom()?)?;

    let own = |file: &str| fs::read_to_string(workspace::root().join(file));
    let licences = [
        ("LICENSE-APACHE", own("LICENSE-APACHE")?),
        ("LICENSE-MIT", own("LICENSE-MIT")?),
        ("THIRD-PARTY-LICENSES.txt", components.licences()?),
    ];
    let folder = fresh(&info.join("licenses"))?;
    let file = info.join("METADATA");
    let mut metadata = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    for (name, text) in licences {
        fs::write(folder.join(name), text)?;
        metadata = with_licence_file(&metadata, name);
    }
    fs::write(file, metadata)?;
    Ok(())
}

/// Returns a wheel's metadata with `name` as an additional licence file in the header.
fn with_licence_file(metadata: &str, name: &str) -> String {
    // The package's description, if any, follows an empty line.
    let end = metadata.find("\n\n").unwrap_or_else(|| metadata.trim_end().len());
    let (head, text) = metadata.split_at(end);
    format!("{head}\nLicense-File: {name}{text}")
}

/// Creates an empty directory at `folder`, and removes an existing one first.
fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

fn only_entry(folder: &Path) -> Result<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    let [entry] = &entries[..] else {
        bail!(
            "expected one entry in {}, found {}",
            folder.display(),
            entries.len()
        );
    };
    Ok(entry.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_named_in_the_head_of_the_metadata() {
        let metadata = "Metadata-Version: 2.4\nName: x\nLicense-File: LICENSE\n\n# x\n\ntext\n";
        assert_eq!(
            with_licence_file(metadata, "THIRD-PARTY-LICENSES.txt"),
            "Metadata-Version: 2.4\nName: x\nLicense-File: LICENSE\nLicense-File: THIRD-PARTY-LICENSES.txt\n\n# x\n\ntext\n"
        );
        assert_eq!(with_licence_file("Name: x\n", "y"), "Name: x\nLicense-File: y\n");
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn wheels_are_named_for_the_newest_glibc_in_them() {
        let tree = tempfile::tempdir().unwrap();
        let scripts = tree.path().join("x.data/scripts");
        fs::create_dir_all(&scripts).unwrap();
        fs::write(scripts.join("tensor"), TENSOR).unwrap();
        fs::copy(std::env::current_exe().unwrap(), scripts.join("program")).unwrap();
        let check = |tag: &str| check_glibc(tree.path(), Path::new(&format!("x-1-cp311-abi3-{tag}.whl")));
        check("manylinux_2_99_x86_64").unwrap();
        check("linux_x86_64").unwrap();
        let error = check("manylinux_2_99_x86_64.manylinux_2_1_x86_64")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("for glibc 2.1 and newer, but x.data/scripts/program in it needs 2."),
            "{error}"
        );
    }

    #[test]
    fn modules_use_the_unwinder_of_python() {
        let tree = tempfile::tempdir().unwrap();
        let error = check_unwinder(tree.path()).unwrap_err().to_string();
        assert!(error.ends_with("has no extension module"), "{error}");
        let module = tree.path().join("_native.abi3.so");
        let mut content = elf::tests::file();
        fs::write(&module, &content).unwrap();
        check_unwinder(tree.path()).unwrap();
        let name = UNWINDER.as_bytes();
        let at = content
            .windows(name.len())
            .position(|found| found == name)
            .unwrap();
        content[at] = b'x';
        fs::write(&module, content).unwrap();
        let error = check_unwinder(tree.path()).unwrap_err().to_string();
        let expected = "_native.abi3.so needs libc.so.6, xibgcc_s.so.1, and should need libgcc_s.so.1: ";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn wheels_that_are_too_large_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("x.whl");
        let file = fs::File::create(&wheel).unwrap();
        file.set_len(MOST_BYTES).unwrap();
        check_size(&wheel).unwrap();
        file.set_len(MOST_BYTES + 1_000_000).unwrap();
        let error = check_size(&wheel).unwrap_err().to_string();
        assert!(
            error.contains("has 26.0 MB, and may have 25.0: find what grew")
                && error.contains("raise MOST_BYTES in xtask/src/wheel.rs"),
            "{error}"
        );
    }
}
