//! The manifests of docs/deploy, built by kustomize, and its chart, rendered by helm, checked against the schemas of Kubernetes, and
//! of KServe where its definitions are at hand.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{python, workspace};

/// What to check them against.
#[derive(Args)]
pub(crate) struct Options {
    /// The Python that the virtual environment is made with
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// The program that runs kustomize
    #[arg(long, default_value = "kubectl", value_name = "PROGRAM")]
    kubectl: PathBuf,
    /// The program that renders the chart; without it, Go with Debian's packages does
    #[arg(long, default_value = "helm", value_name = "PROGRAM")]
    helm: PathBuf,
    /// The version of Kubernetes whose schemas count
    #[arg(long, default_value = "1.32", value_name = "VERSION")]
    kubernetes: String,
    /// A folder with KServe's custom resource definitions; without it its manifests are only read
    #[arg(long, value_name = "FOLDER")]
    definitions: Option<PathBuf>,
}

const REQUIREMENTS: &[&str] = &[
    "kubernetes-validate==1.37.0",
    "jsonschema==4.26.0",
    "PyYAML==6.0.3",
];

/// Each folder, and kinds that it must have.
const FOLDERS: [(&str, &[&str]); 2] = [
    (
        "docs/deploy/kubernetes",
        &[
            "Deployment",
            "Service",
            "HorizontalPodAutoscaler",
            "PodDisruptionBudget",
            "NetworkPolicy",
        ],
    ),
    (
        "docs/deploy/kserve",
        &["ClusterServingRuntime", "InferenceService"],
    ),
];

/// The chart, and kinds that it must have.
const CHART: (&str, &[&str]) = (
    "docs/deploy/helm",
    &[
        "Deployment",
        "Service",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "PodMonitor",
    ],
);

/// A misspelled member, which must be found for the rest to mean anything.
const WRONG: &str = "
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: wrong}
spec: {maxUnavailble: 1}
";

/// Validates all manifests; fails when one does not fit.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = workspace::root();
    let python = python::environment(&options.python, &root.join("target/deploy-venv"), REQUIREMENTS)?;
    let refused = validate(options, &python, WRONG.as_bytes(), &[])?;
    ensure!(
        !refused,
        "a manifest that is wrong was taken: nothing was checked"
    );
    let mut fit = true;
    for (folder, kinds) in FOLDERS {
        let built = Command::new(&options.kubectl)
            .arg("kustomize")
            .arg(root.join(folder))
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("starting {}", options.kubectl.display()))?;
        ensure!(built.status.success(), "{folder} cannot be built");
        fit &= validate(options, &python, &built.stdout, kinds)?;
    }
    let (chart, kinds) = CHART;
    let rendered = Command::new(&python)
        .arg(root.join("xtask/deploy/chart.py"))
        .arg(root.join(chart))
        .arg("--helm")
        .arg(&options.helm)
        .stderr(Stdio::inherit())
        .output()
        .context("starting the script")?;
    ensure!(rendered.status.success(), "the chart is not as it should be");
    fit &= validate(options, &python, &rendered.stdout, kinds)?;
    ensure!(fit, "some manifests do not fit");
    Ok(())
}

/// Whether manifests fit, and all of some kinds are there.
fn validate(options: &Options, python: &Path, manifests: &[u8], kinds: &[&str]) -> Result<bool> {
    let mut script = Command::new(python);
    script
        .arg(workspace::root().join("xtask/deploy/validate.py"))
        .args(["--kubernetes", &options.kubernetes])
        .stdin(Stdio::piped());
    if let Some(definitions) = &options.definitions {
        script.arg("--definitions").arg(definitions);
    }
    for kind in kinds {
        script.args(["--expect", kind]);
    }
    let mut script = script.spawn().context("starting the script")?;
    let mut input = script.stdin.take().context("the script takes no input")?;
    input.write_all(manifests)?;
    drop(input);
    Ok(script.wait()?.success())
}
