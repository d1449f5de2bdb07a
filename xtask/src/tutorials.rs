//! Runs the tutorials of docs/tutorials unchanged: runs each block of a page in turn, and compares its output
//! with the text block after it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{
    cargo,
    served::{self, Running},
    venv, workspace,
};

/// Options of `tutorials`.
#[derive(Args)]
pub(crate) struct Options {
    /// The Python that creates virtual environments
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// Run only this page: scikit-learn, boosters, pytorch, huggingface, embeddings or tensorflow
    #[arg(long, value_name = "PAGE")]
    only: Option<String>,
    /// A directory with the programs oip-server and tensor, instead of building them
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
}

/// The versions with which the pages were last run. Packages that are not listed are installed in their
/// newest version.
const VERSIONS: &[(&str, &str)] = &[
    ("lightgbm", "4.7.0"),
    ("numpy", "2.4.6"),
    ("openai", "3.57.0"),
    ("onnx", "1.23.2"),
    ("onnxscript", "0.7.2"),
    ("scikit-learn", "1.9.1"),
    ("skl2onnx", "1.20.0"),
    ("tensorflow-cpu", "2.21.0"),
    ("tf2onnx", "1.17.0"),
    ("torch", "2.15.0"),
    ("transformers", "5.23.0"),
    ("xgboost-cpu", "3.2.0"),
];

/// The server's address in the pages.
const ADDRESS: &str = "127.0.0.1:8080";

/// Timeout until a server is ready. The timeout is long because a debug build of the server is slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the pages in CI that have an environment from an earlier run, since CI downloads nothing.
pub(crate) fn in_ci() -> Result<()> {
    let all = needs(&pages()?)?;
    for (page, _) in &all {
        let (of, requirements) = environment(page, &all).context("a page that was just listed")?;
        let requirements: Vec<&str> = requirements.iter().map(String::as_str).collect();
        if !venv::is_filled(&place_of_environment(of), &requirements) {
            println!(
                "   skipped: {page}, whose Python packages are not installed (cargo xtask tutorials --only {page} installs them)"
            );
            continue;
        }
        if fetches(page)? {
            println!(
                "   skipped: {page}, which fetches packages (cargo xtask tutorials --only {page} runs it)"
            );
            continue;
        }
        run(&Options {
            python: "python3".to_owned(),
            only: Some(page.clone()),
            programs: Some(cargo::programs_of_ci()?),
        })?;
    }
    Ok(())
}

/// Returns whether a page's commands download packages on every run.
fn fetches(page: &str) -> Result<bool> {
    let page = workspace::root().join(format!("docs/tutorials/{page}.md"));
    let blocks = blocks(&fs::read_to_string(page)?);
    let mut commands = blocks.iter().filter(|block| block.language == "sh");
    Ok(commands.any(|block| block.text.contains(INSTALL) && !block.installs()))
}

fn pages() -> Result<Vec<PathBuf>> {
    let mut pages: Vec<PathBuf> = fs::read_dir(workspace::root().join("docs/tutorials"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    pages.sort();
    Ok(pages)
}

fn needs(pages: &[PathBuf]) -> Result<Vec<Needs>> {
    let needs = pages
        .iter()
        .map(|page| Ok((name(page), requirements(&blocks(&fs::read_to_string(page)?)))));
    needs.collect()
}

/// Returns the directory of the Python environment for a page. Other pages may share it.
fn place_of_environment(page: &str) -> PathBuf {
    workspace::root().join(format!("target/tutorials/{page}-venv"))
}

/// Runs the pages. Returns an error if a command fails or its output differs from the page.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut pages = pages()?;
    let all = needs(&pages)?;
    if let Some(only) = &options.only {
        pages.retain(|page| page.file_stem().is_some_and(|stem| stem == only.as_str()));
        ensure!(!pages.is_empty(), "docs/tutorials has no page {only}");
    }
    let programs = match &options.programs {
        Some(programs) => fs::canonicalize(programs)?,
        None => {
            cargo::run(
                &["build", "--package", "oip-server", "--package", "tensor-cli"],
                &[],
            )?;
            workspace::built("debug")
        }
    };
    for page in pages {
        let start = Instant::now();
        let shown = workspace::display(&page);
        let environment = environment(&name(&page), &all).context("a page that was just listed")?;
        run_page(&page, environment, &options.python, &programs).with_context(|| shown.clone())?;
        println!(
            "{shown}: as it says, after {:.0} s",
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// A page's name, and the packages that it installs.
type Needs = (String, Vec<String>);

fn name(page: &Path) -> String {
    page.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Returns the environment for a page: among the pages that install everything this page needs, the one that
/// installs the most. Sharing saves space, since PyTorch alone takes gigabytes.
fn environment<'all>(page: &str, all: &'all [Needs]) -> Option<&'all Needs> {
    let (_, needed) = all.iter().find(|(name, _)| name == page)?;
    let has_all = |has: &[String]| needed.iter().all(|requirement| has.contains(requirement));
    let fitting = all.iter().filter(|(_, has)| has_all(has));
    fitting.max_by_key(|(_, has)| has.len())
}

fn run_page(page: &Path, (of, requirements): &Needs, python: &str, programs: &Path) -> Result<()> {
    let blocks = blocks(&fs::read_to_string(page)?);
    let requirements: Vec<&str> = requirements.iter().map(String::as_str).collect();
    let python = venv::environment(python, &place_of_environment(of), &requirements)?;
    let folder = workspace::root().join("target/tutorials").join(name(page));
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let page = Page {
        folder,
        address: served::free_address()?,
        path: std::env::join_paths(
            [
                programs.to_owned(),
                python.parent().unwrap_or(Path::new("")).to_owned(),
            ]
            .into_iter()
            .chain(std::env::split_paths(
                &std::env::var_os("PATH").unwrap_or_default(),
            )),
        )?,
    };

    let mut server = None;
    let mut blocks = blocks.iter().peekable();
    while let Some(block) = blocks.next() {
        let printed = match block.language.as_str() {
            "sh" if block.installs() => continue,
            "sh server" => {
                server = Some(page.serve(block)?);
                continue;
            }
            "sh" => page.run("bash", &["-euo", "pipefail", "-c"], block)?,
            "python" => page.run("python", &["-c"], block)?,
            _ => continue,
        };
        if let Some(expected) = blocks.peek().filter(|next| next.language == "text") {
            ensure!(
                printed.trim() == expected.text.trim(),
                "the block at line {} printed {printed:?}, the page says {:?}",
                block.line,
                expected.text
            );
        }
    }
    ensure!(server.is_some(), "no block starts a server (```sh server)");
    Ok(())
}

/// The environment and directory in which the blocks of a page run.
struct Page {
    folder: PathBuf,
    address: String,
    path: std::ffi::OsString,
}

impl Page {
    /// Runs a block to the end, and returns its output.
    fn run(&self, program: &str, arguments: &[&str], block: &Block) -> Result<String> {
        let output = self
            .command(program)
            .args(arguments)
            .arg(self.text(block))
            .output()?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "the block at line {} failed: {}\n{printed}{}",
            block.line,
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(printed)
    }

    /// Starts the server of a block, and waits until it is ready.
    fn serve(&self, block: &Block) -> Result<Running> {
        let text = format!("exec {}", self.text(block).trim());
        let mut command = self.command("bash");
        command.args(["-c", &text]).stdout(Stdio::null());
        let mut server = Running(command.spawn()?);
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = server.0.try_wait()? {
                bail!("the server of line {} ended: {status}", block.line);
            }
            if is_ready(&self.address).unwrap_or(false) {
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(100));
        }
        bail!(
            "the server of line {} is not ready after {PATIENCE:?}",
            block.line
        );
    }

    fn text(&self, block: &Block) -> String {
        block.text.replace(ADDRESS, &self.address)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.folder)
            .env("PATH", &self.path)
            .env("TENSOR_URL", format!("http://{}", self.address))
            .env("OIP_HTTP_ADDRESS", &self.address)
            .env("OIP_GRPC_ADDRESS", "127.0.0.1:0")
            .stdin(Stdio::null());
        command
    }
}

fn is_ready(address: &str) -> Result<bool> {
    Ok(served::ask(address, "GET", "/v2/health/ready", &[])?.starts_with("HTTP/1.1 200"))
}

/// A fenced block of a page.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// The language named after the opening fence.
    language: String,
    text: String,
    line: usize,
}

impl Block {
    /// Returns whether the block only installs packages, which the page's environment already contains.
    fn installs(&self) -> bool {
        let mut lines = self.text.lines();
        lines.all(|line| line.starts_with(INSTALL) && !line.contains(" --target "))
    }
}

/// Beginning of lines that install packages.
const INSTALL: &str = "pip install ";

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (index, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), is_open) {
            (Some(language), false) => blocks.push(Block {
                language: language.trim().to_owned(),
                text: String::new(),
                line: index + 1,
            }),
            (None, true) => {
                if let Some(block) = blocks.last_mut() {
                    block.text += line;
                    block.text.push('\n');
                }
                continue;
            }
            (None, false) => continue,
            (Some(_), true) => {}
        }
        is_open = !is_open;
    }
    blocks
}

/// Returns the packages that the page installs, with the versions with which it was last run. Ignores options
/// of pip, such as the index with CPU-only wheels, since they are for readers.
fn requirements(blocks: &[Block]) -> Vec<String> {
    let lines = blocks
        .iter()
        .filter(|block| block.language == "sh" && block.installs())
        .flat_map(|block| block.text.lines());
    let words = lines.filter_map(|line| line.strip_prefix(INSTALL));
    let names = words.flat_map(|words| words.split(" --").next().unwrap_or(words).split_whitespace());
    let pinned = names.map(|name| match VERSIONS.iter().find(|(known, _)| *known == name) {
        Some((_, version)) => format!("{name}=={version}"),
        None => name.to_owned(),
    });
    pinned.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_know_their_language_and_line() {
        let page = "# T\n\n```sh\npip install scikit-learn other\n```\ntext\n```sh server\noip-server m\n```\n```text\n1\n\n2\n```\n";
        let blocks = blocks(page);
        let languages: Vec<&str> = blocks.iter().map(|block| block.language.as_str()).collect();
        assert_eq!(languages, ["sh", "sh server", "text"]);
        assert_eq!((blocks[1].line, blocks[1].text.as_str()), (7, "oip-server m\n"));
        assert_eq!(blocks[2].text, "1\n\n2\n");
        assert_eq!(requirements(&blocks), ["scikit-learn==1.9.1", "other"]);
    }

    #[test]
    fn blocks_that_only_install_are_told_from_commands() {
        let page = "```sh\npip install torch --index-url https://example.org/cpu\npip install numpy\n```\n\
                    ```sh\npip install --no-deps --target packages some-model\ncp -r packages/model m\n```\n";
        let blocks = blocks(page);
        assert_eq!([blocks[0].installs(), blocks[1].installs()], [true, false]);
        assert_eq!(requirements(&blocks), ["torch==2.15.0", "numpy==2.4.6"]);
    }

    #[test]
    fn pages_share_an_environment_where_one_has_all() {
        let needs =
            |name: &str, has: &[&str]| (name.to_owned(), has.iter().map(|has| (*has).to_owned()).collect());
        let all = [needs("a", &["x"]), needs("b", &["y"]), needs("c", &["z", "x"])];
        let of = |page: &str| environment(page, &all).unwrap().0.as_str();
        assert_eq!([of("a"), of("b"), of("c")], ["c", "b", "c"]);
        assert!(environment("d", &all).is_none());
    }

    /// Each page must start a server and have output to compare; otherwise it would pass without checking
    /// anything.
    #[test]
    fn each_page_serves_and_checks() {
        let pages = fs::read_dir(workspace::root().join("docs/tutorials")).unwrap();
        let mut count = 0;
        for page in pages {
            let page = page.unwrap().path();
            let blocks = blocks(&fs::read_to_string(&page).unwrap());
            let of = |language: &str| blocks.iter().filter(|block| block.language == language).count();
            assert_eq!(of("sh server"), 1, "{}", page.display());
            assert!(of("text") > 0 && of("python") > 0, "{}", page.display());
            assert!(!requirements(&blocks).is_empty(), "{}", page.display());
            count += 1;
        }
        assert_eq!(count, 6);
    }
}
