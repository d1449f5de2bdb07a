//! Builds release archives: stripped programs, completions, man pages, docs/, licences, a bill of materials,
//! and checksums. Before packing, each server must respond to a request.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use sha2::{Digest, Sha256};

use crate::{
    cargo, components,
    elf::{self, Glibc},
    profile, served, workspace,
};

/// Options of `dist`.
#[derive(Args)]
pub(crate) struct Options {
    /// A target to build for; can be repeated [default: all Linux targets that this machine can build]
    #[arg(long = "target", value_name = "TRIPLE")]
    targets: Vec<String>,
    /// Package programs that are already built, for one target, rather than building them
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// The profile of an earlier run (FOLDER/ARCHIVE.profdata), for the same programs once more
    #[arg(long, value_name = "FILE", conflicts_with = "programs")]
    profile: Option<PathBuf>,
    /// The directory for the archives
    #[arg(long, default_value = "target/dist", value_name = "FOLDER")]
    folder: PathBuf,
}

/// A release target.
struct Target {
    triple: &'static str,
    /// The C compiler.
    compiler: &'static str,
    /// The linker. `musl-gcc` does not support static PIE and links programs that crash at start. With musl,
    /// the host's compiler can link instead, since Rust provides everything else.
    linker: &'static str,
    strip: &'static str,
    /// Whether the linker is Rust's own, which can merge identical functions.
    folds: bool,
    /// The command of the emulator, if the architecture differs from the host's, and the package that
    /// contains it.
    emulator: &'static [&'static str],
}

/// Cargo profile of archives and images.
const PROFILE: &str = "dist";

const TARGETS: &[Target] = &[
    Target {
        triple: "x86_64-unknown-linux-gnu",
        compiler: "cc",
        linker: "cc",
        strip: "strip",
        folds: true,
        emulator: &[],
    },
    Target {
        triple: "x86_64-unknown-linux-musl",
        compiler: "musl-gcc",
        linker: "cc",
        strip: "strip",
        folds: false,
        emulator: &[],
    },
    Target {
        triple: "aarch64-unknown-linux-gnu",
        compiler: "aarch64-linux-gnu-gcc",
        linker: "aarch64-linux-gnu-gcc",
        strip: "aarch64-linux-gnu-strip",
        folds: false,
        emulator: &["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"],
    },
];

/// The packages and programs in an archive.
const PROGRAMS: [(&str, &str); 2] = [("oip-server", "oip-server"), ("tensor-cli", "tensor")];

/// The oldest glibc that each program runs with, as stated in START.md.
const GLIBC: [(&str, Glibc); 2] = [("oip-server", Glibc(2, 35)), ("tensor", Glibc(2, 34))];

/// Files of the repository's root that are included in addition to docs/.
const PAGES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// The page of the book that becomes the archive's first page, and its name in the archive.
const START: (&str, &str) = ("docs/archive.md", "START.md");

/// Placeholder for the archive's name in [`START`].
const ANY_NAME: &str = "tensorferry-VERSION-TARGET";

/// A note that is added after the title of README.md in an archive.
const README_IN_ARCHIVE: &str = "\
**In an archive, [START.md](START.md) is the first page.** This is the repository's: commands here that begin with `cargo`, and paths that
begin with `crates/`, are for a clone of the sources.
";

/// The directory where man looks for the pages of programs in `bin`.
const MAN: &str = "man/man1";

const SHELLS: [(&str, &str); 3] = [("bash", "bash"), ("zsh", "zsh"), ("fish", "fish")];

/// Builds the archives and their checksums.
pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen = chosen(options)?;
    let folder = workspace::root().join(&options.folder);
    fs::create_dir_all(&folder)?;
    let mut archives = Vec::new();
    for target in chosen {
        let built = match &options.programs {
            Some(programs) => Built {
                programs: programs.clone(),
                profile: None,
            },
            None => build(target, &PROGRAMS, options.profile.as_deref())?,
        };
        let archive = pack(target, &built.programs, &folder)?;
        if let Some(profile) = built.profile {
            let copy = folder
                .join(archive_name(target)?)
                .with_added_extension("profdata");
            fs::copy(&profile, &copy).with_context(|| workspace::display(&profile))?;
        }
        archives.push(archive);
    }
    let mut sums = String::new();
    for archive in &archives {
        let name = archive.file_name().unwrap_or_default().to_string_lossy();
        sums += &format!("{}  {name}\n", digest(&fs::read(archive)?));
        let size = fs::metadata(archive)?.len();
        println!("{} ({:.1} MB)", workspace::display(archive), size as f64 / 1e6);
    }
    let sums_file = folder.join("SHA256SUMS");
    fs::write(&sums_file, sums)?;
    println!("{}", workspace::display(&sums_file));
    Ok(())
}

/// Returns the requested targets, or all targets that can be built on this machine. Prints what is missing to
/// build the other targets.
fn chosen(options: &Options) -> Result<Vec<&'static Target>> {
    let is_wanted = |target: &Target| {
        options.targets.is_empty() || options.targets.iter().any(|wanted| wanted == target.triple)
    };
    let known: Vec<&str> = TARGETS.iter().map(|target| target.triple).collect();
    if let Some(unknown) = options
        .targets
        .iter()
        .find(|wanted| !known.contains(&wanted.as_str()))
    {
        anyhow::bail!(
            "no releases are made for {unknown}, only for {}",
            known.join(", ")
        );
    }
    let mut chosen = Vec::new();
    for target in TARGETS.iter().filter(|target| is_wanted(target)) {
        match (missing(target)?, options.programs.is_some()) {
            (None, _) | (Some(_), true) => chosen.push(target),
            (Some(missing), false) if options.targets.is_empty() => {
                println!("skipped: {} needs {missing}", target.triple);
            }
            (Some(missing), false) => anyhow::bail!("{} needs {missing}", target.triple),
        }
    }
    ensure!(!chosen.is_empty(), "no target can be built on this machine");
    ensure!(
        (options.programs.is_none() && options.profile.is_none()) || chosen.len() == 1,
        "--programs and --profile need one --target"
    );
    Ok(chosen)
}

fn missing(target: &Target) -> Result<Option<String>> {
    if !cargo::has_target(target.triple)? {
        return Ok(Some(format!(
            "its standard library (rustup target add {})",
            target.triple
        )));
    }
    let has_compiler = Command::new(target.compiler).arg("--version").output().is_ok();
    Ok((!has_compiler).then(|| format!("the C compiler {}", target.compiler)))
}

/// Builds the server for a target triple, and returns the path of the program.
pub(crate) fn server(triple: &str) -> Result<PathBuf> {
    let options = Options {
        targets: vec![triple.to_owned()],
        programs: None,
        profile: None,
        folder: PathBuf::new(),
    };
    let target = chosen(&options)?;
    let target = target.first().context("no target")?;
    Ok(build(target, &PROGRAMS[..1], None)?.programs.join(PROGRAMS[0].1))
}

/// Returns the emulator for programs of a target.
pub(crate) fn emulator(triple: &str) -> Result<&'static str> {
    let target = TARGETS.iter().find(|target| target.triple == triple);
    let emulator = target.and_then(|target| target.emulator.first());
    emulator
        .copied()
        .with_context(|| format!("no emulator is known for {triple}"))
}

/// Programs that were built for a target.
struct Built {
    /// Their directory.
    programs: PathBuf,
    /// The profile by which they were optimized.
    profile: Option<PathBuf>,
}

/// Builds programs for a target. If they run on this machine, and `profile` is `None`, first records a profile.
fn build(target: &Target, programs: &[(&str, &str)], profile: Option<&Path>) -> Result<Built> {
    let profile = match profile {
        Some(profile) => Some(fs::canonicalize(profile).with_context(|| profile.display().to_string())?),
        None => recorded_profile(target, programs)?,
    };
    let flag = profile
        .as_ref()
        .map(|profile| format!("-Cprofile-use={}", profile.display()));
    Ok(Built {
        programs: compile(target, programs, flag.as_deref())?,
        profile,
    })
}

/// Builds programs that count what they run, and returns the profile of the server when it serves requests.
fn recorded_profile(target: &Target, programs: &[(&str, &str)]) -> Result<Option<PathBuf>> {
    let reason = if !target.triple.starts_with(std::env::consts::ARCH) {
        "its programs do not run on this machine"
    } else if !profile::is_possible()? {
        "the tools for profiles are missing (rustup component add llvm-tools)"
    } else {
        let counting = compile(target, programs, Some("-Cprofile-generate"))?.join(PROGRAMS[0].1);
        let folder = workspace::target().join(target.triple).join("profile");
        return profile::record(&counting, &folder).map(Some);
    };
    println!("{}: optimized without a profile: {reason}", target.triple);
    Ok(None)
}

/// Compiles programs with an additional flag of the compiler, and returns their directory.
fn compile(target: &Target, programs: &[(&str, &str)], flag: Option<&str>) -> Result<PathBuf> {
    let mut arguments = vec![
        "build",
        "--profile",
        PROFILE,
        "--locked",
        "--target",
        target.triple,
    ];
    for (package, _) in programs {
        arguments.extend(["--package", package]);
    }
    let name = target.triple.replace('-', "_");
    let compiler = format!("CC_{name}");
    let linker = format!("CARGO_TARGET_{}_LINKER", name.to_uppercase());
    let mut flags = without_paths();
    if target.folds {
        flags.push_str("\x1f-Clink-arg=-Wl,--icf=safe");
    }
    let mut environment = vec![
        (compiler, target.compiler.to_owned()),
        (linker, target.linker.to_owned()),
    ];
    if let Some(flag) = flag {
        flags.push('\x1f');
        flags.push_str(flag);
        let wrapper = profile::environment()?;
        environment.extend(wrapper.map(|(name, value)| (name.to_owned(), value)));
    }
    environment.push(("CARGO_ENCODED_RUSTFLAGS".to_owned(), flags));
    let environment: Vec<(&str, &str)> = environment
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    cargo::run(&arguments, &environment)?;
    Ok(workspace::target().join(target.triple).join(PROFILE))
}

/// Returns the directories of this machine that contain sources: the repository and cargo's registry.
fn own_folders() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    [Some(workspace::root()), home].into_iter().flatten().collect()
}

/// Returns compiler flags that remove this machine's directories from source locations, because panic
/// messages contain them.
pub(crate) fn without_paths() -> String {
    let names = ["tensorferry", "cargo"];
    let flags = own_folders().into_iter().zip(names);
    let flags = flags.map(|(folder, name)| format!("--remap-path-prefix={}={name}", folder.display()));
    // In `CARGO_ENCODED_RUSTFLAGS`, this character separates the flags, which may contain spaces.
    flags.collect::<Vec<_>>().join("\x1f")
}

/// Rejects a program that contains directories of the build machine.
pub(crate) fn check_paths(program: &Path) -> Result<()> {
    let bytes = fs::read(program)?;
    for folder in own_folders() {
        let name = folder.display().to_string();
        let is_named = bytes.windows(name.len()).any(|window| window == name.as_bytes());
        ensure!(!is_named, "{} names {name}", program.display());
    }
    Ok(())
}

/// Rejects a program that needs a newer glibc than START.md states.
fn check_glibc(program: &str, packed: &Path) -> Result<()> {
    let needed = elf::oldest_glibc(packed)?;
    let stated = GLIBC.iter().find(|(name, _)| *name == program);
    let stated = stated
        .with_context(|| format!("{} does not say what {program} needs", START.1))?
        .1;
    if let Some(needed) = needed {
        ensure!(
            needed <= stated,
            "{program} needs glibc {needed}, and {} says {stated}",
            START.1
        );
    }
    Ok(())
}

fn archive_name(target: &Target) -> Result<String> {
    Ok(format!(
        "tensorferry-{}-{}",
        components::version()?,
        target.triple
    ))
}

/// Builds one archive, and returns its path.
fn pack(target: &Target, programs: &Path, folder: &Path) -> Result<PathBuf> {
    let name = archive_name(target)?;
    let tree = folder.join(&name);
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    for part in ["bin", "completions", MAN] {
        fs::create_dir_all(tree.join(part))?;
    }
    for (_, program) in PROGRAMS {
        let packed = tree.join("bin").join(program);
        let built = programs.join(program);
        fs::copy(&built, &packed).with_context(|| format!("copying {}", built.display()))?;
        call(Command::new(target.strip).arg(&packed))?;
        let size = fs::metadata(&packed)?.len();
        println!("{}: {program} has {:.1} MB", target.triple, size as f64 / 1e6);
        check_glibc(program, &packed)?;
        describe(program, &runnable(target, &packed, program)?, &tree)?;
    }
    // Programs that were built on another machine are not checked, because the directories of that machine
    // are not known.
    let programs_here = workspace::target().join(target.triple).join(PROFILE);
    if programs == programs_here {
        for (_, program) in PROGRAMS {
            check_paths(&tree.join("bin").join(program))?;
        }
    }
    try_out(target, &tree.join("bin").join(PROGRAMS[0].1))?;
    for (page, content) in pages(&name)? {
        let packed = tree.join(page);
        fs::create_dir_all(packed.parent().unwrap_or(&tree))?;
        fs::write(packed, content)?;
    }
    let packages: Vec<&str> = PROGRAMS.iter().map(|(package, _)| *package).collect();
    let components = components::of(&packages, target.triple)?;
    fs::write(tree.join("THIRD-PARTY-LICENSES.txt"), components.licences()?)?;
    fs::write(tree.join("sbom.cdx.json"), components.sbom()?)?;

    let archive = folder.join(format!("{name}.tar.gz"));
    // Files are sorted and have a fixed time, so that archives are reproducible.
    call(
        Command::new("tar")
            .args([
                "--create",
                "--use-compress-program=gzip -n",
                "--sort=name",
                "--owner=0",
                "--group=0",
            ])
            .args(["--numeric-owner", "--mtime=@0", "--file"])
            .arg(&archive)
            .arg("--directory")
            .arg(folder)
            .arg(&name),
    )?;
    fs::remove_dir_all(&tree)?;
    Ok(archive)
}

/// Returns the pages of an archive with their paths. Links are adjusted.
fn pages(name: &str) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    fn collect(folder: &Path, pages: &mut Vec<(PathBuf, Vec<u8>)>) -> Result<()> {
        for entry in fs::read_dir(workspace::root().join(folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            match entry.file_type()?.is_dir() {
                true => collect(&path, pages)?,
                false => pages.push((path, fs::read(entry.path())?)),
            }
        }
        Ok(())
    }
    let mut pages = Vec::new();
    for page in PAGES {
        let mut content = fs::read_to_string(workspace::root().join(page))?;
        if page == "README.md" {
            let title_end = content.find("\n\n").context("README.md has no title")?;
            content.insert_str(title_end + 2, &format!("{README_IN_ARCHIVE}\n"));
        }
        pages.push((PathBuf::from(page), content.into_bytes()));
    }
    collect(Path::new("docs"), &mut pages)?;
    let (page, start) = START;
    let text = fs::read_to_string(workspace::root().join(page))?;
    let text = text.replace("](", "](docs/").replace(ANY_NAME, name);
    pages.push((PathBuf::from(start), text.into_bytes()));
    pages.sort();
    Ok(pages)
}

/// Returns the command that starts a target's program on this machine. Returns `None` if the program needs an
/// emulator that is missing.
fn starter(target: &Target, program: &Path) -> Option<Vec<OsString>> {
    let mut command = Vec::new();
    if !target.triple.starts_with(std::env::consts::ARCH) {
        let emulator = target.emulator.first()?;
        Command::new(emulator).arg("--version").output().ok()?;
        command.extend(target.emulator.iter().map(OsString::from));
    }
    command.push(program.into());
    Some(command)
}

/// Starts a target's server and sends it a request.
pub(crate) fn try_server(triple: &str, server: &Path) -> Result<()> {
    let target = TARGETS.iter().find(|target| target.triple == triple);
    try_out(target.with_context(|| format!("{triple} is not known"))?, server)
}

/// Starts the server of `target` and sends it a request.
fn try_out(target: &Target, server: &Path) -> Result<()> {
    let Some(command) = starter(target, server) else {
        let emulator = target.emulator.first().unwrap_or(&"an emulator");
        println!(
            "{}: not run, {emulator} is not installed (Debian: qemu-user-static)",
            target.triple
        );
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let taken = served::first_answer(&command, folder.path())
        .with_context(|| format!("the server for {}", target.triple))?;
    let by = match command.len() {
        1 => String::new(),
        _ => format!(", under {}", target.emulator[0]),
    };
    println!(
        "{}: from start to first response {:.2} s{by}",
        target.triple,
        taken.as_secs_f64()
    );
    Ok(())
}

/// Returns a command that prints a program's help: the target's program, or the host's, built from the same
/// sources.
fn runnable(target: &Target, packed: &Path, program: &str) -> Result<Vec<OsString>> {
    if let Some(command) = starter(target, packed) {
        return Ok(command);
    }
    let mut arguments = vec!["build"];
    for (package, _) in PROGRAMS {
        arguments.extend(["--package", package]);
    }
    cargo::run(&arguments, &[])?;
    Ok(vec![workspace::built("debug").join(program).into()])
}

/// Writes a program's completions and man pages.
fn describe(program: &str, command: &[OsString], tree: &Path) -> Result<()> {
    let start = || {
        let mut start = Command::new(&command[0]);
        start.args(&command[1..]);
        start
    };
    for (shell, extension) in SHELLS {
        let output = start().args(["completions", shell]).output()?;
        ensure!(
            output.status.success() && !output.stdout.is_empty(),
            "{program} completions {shell}: {}",
            output.status
        );
        let file = tree.join("completions").join(format!("{program}.{extension}"));
        fs::write(file, output.stdout)?;
    }
    call(start().arg("man").arg(tree.join(MAN)))
}

fn call(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("starting {program}"))?;
    ensure!(status.success(), "{program} failed: {status}");
    Ok(())
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::links;

    /// All links lead to files in the unpacked archive.
    #[test]
    fn links_of_packed_pages_lead_to_packed_pages() {
        let name = "tensorferry-1.2.3-x86_64-unknown-linux-musl";
        let pages = pages(name).unwrap();
        let packed: BTreeSet<&Path> = pages.iter().map(|(path, _)| path.as_path()).collect();
        let mut count = 0;
        for (path, content) in &pages {
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let text = std::str::from_utf8(content).unwrap();
            for link in links::links(text) {
                if link.contains("://") || link.starts_with('#') || link.starts_with("mailto:") {
                    continue;
                }
                let target = links::resolve(path, link);
                assert!(
                    packed.contains(target.as_path()),
                    "{}: {link} leads to {}, which is not packed",
                    path.display(),
                    target.display()
                );
                count += 1;
            }
        }
        assert!(count > 100, "{count} links were found");
        let start = pages.iter().find(|(path, _)| path == Path::new(START.1));
        let start = String::from_utf8(start.unwrap().1.clone()).unwrap();
        for (program, glibc) in GLIBC {
            let needs = format!("glibc {glibc} for `{program}`");
            assert!(start.contains(&needs), "{needs}");
        }
        assert!(!start.contains(ANY_NAME), "{start}");
        for said in [
            &format!("tar -xzf {name}.tar.gz"),
            "PATH",
            "completions",
            MAN,
            "oip-server init",
            "check",
            "oip-server iris.onnx",
            "scikit-learn",
        ] {
            assert!(start.contains(said), "{said}");
        }
    }
}
