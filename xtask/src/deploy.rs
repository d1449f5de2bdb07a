//! Checks the manifests of docs/deploy, built by kustomize, and the chart, rendered by helm, against the
//! schemas of Kubernetes and, where available, of KServe, KEDA and Prometheus' operator. Reports which kinds
//! were not checked.

use std::{
    collections::BTreeSet,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{venv, workspace};

/// Options of `deploy`.
#[derive(Args)]
pub(crate) struct Options {
    /// The Python that creates the virtual environment
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,
    /// The program that runs kustomize
    #[arg(long, default_value = "kubectl", value_name = "PROGRAM")]
    kubectl: PathBuf,
    /// The program that renders the chart; without it, helm runs as a Python library
    #[arg(long, default_value = "helm", value_name = "PROGRAM")]
    helm: PathBuf,
    /// The Kubernetes version whose schemas are used
    #[arg(long, default_value = "1.32", value_name = "VERSION")]
    kubernetes: String,
    /// A directory with custom resource definitions of KServe, KEDA and Prometheus' operator. Manifests
    /// without a definition are only parsed. May be given several times, or with commas
    #[arg(long, env = "XTASK_DEFINITIONS", value_name = "FOLDER", value_delimiter = ',')]
    definitions: Vec<PathBuf>,
}

const REQUIREMENTS: &[&str] = &[
    // Helm 4.2.3 as a Python library.
    "helm-python-sdk==0.2.2",
    "kubernetes-validate==1.37.0",
    "jsonschema==4.26.0",
    "PyYAML==6.0.3",
];

/// Directories with manifests, and the kinds that each must contain.
const FOLDERS: [(&str, &[&str]); 3] = [
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
        "docs/deploy/keda",
        // A ScaledObject replaces the HorizontalPodAutoscaler, so the latter must be absent.
        &[
            "Deployment",
            "Service",
            "ScaledObject",
            "!HorizontalPodAutoscaler",
            "PodDisruptionBudget",
            "NetworkPolicy",
        ],
    ),
    (
        "docs/deploy/kserve",
        &["ClusterServingRuntime", "InferenceService"],
    ),
];

/// The chart, and the kinds that it must contain.
const CHART: (&str, &[&str]) = (
    "docs/deploy/helm",
    &[
        "Deployment",
        "Service",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "PodMonitor",
        "ScaledObject",
    ],
);

/// A manifest with a misspelled field, which the check must reject.
const WRONG: &str = "
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: wrong}
spec: {maxUnavailble: 1}
";

/// Validates all manifests, and fails if one is invalid.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = workspace::root();
    let python = venv::environment(&options.python, &root.join("target/deploy-venv"), REQUIREMENTS)?;
    let mut unchecked = BTreeSet::new();
    let refused = validate(options, &python, WRONG.as_bytes(), &[], &mut unchecked)?;
    ensure!(!refused, "an invalid manifest was accepted: nothing was checked");
    let mut fit = true;
    for (folder, kinds) in FOLDERS {
        let built = Command::new(&options.kubectl)
            .arg("kustomize")
            .arg(root.join(folder))
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("starting {}", options.kubectl.display()))?;
        ensure!(built.status.success(), "{folder} cannot be built");
        fit &= validate(options, &python, &built.stdout, kinds, &mut unchecked)?;
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
    ensure!(rendered.status.success(), "the chart failed some checks");
    fit &= validate(options, &python, &rendered.stdout, kinds, &mut unchecked)?;
    ensure!(fit, "some manifests do not fit");
    if !unchecked.is_empty() {
        let kinds: Vec<&str> = unchecked.iter().map(String::as_str).collect();
        println!(
            "\n==> NOT CHECKED: {}\n    They were read, and anything may be wrong in them: their definitions are not part of \
             Kubernetes.\n    --definitions FOLDER,... or XTASK_DEFINITIONS names directories with them: \
             config/crd of \
             github.com/kserve/kserve and of\n    github.com/kedacore/keda, example/prometheus-operator-crd of \
             github.com/prometheus-operator/prometheus-operator.",
            kinds.join(", ")
        );
    }
    Ok(())
}

/// The script prints a manifest's kind, followed by this text, if it has no schema for the kind.
const UNCHECKED: &str = ": NOT CHECKED";

/// Validates manifests, checks that the given kinds are present, and collects the kinds that could not be
/// checked.
fn validate(
    options: &Options,
    python: &Path,
    manifests: &[u8],
    kinds: &[&str],
    unchecked: &mut BTreeSet<String>,
) -> Result<bool> {
    let mut script = Command::new(python);
    script
        .arg(workspace::root().join("xtask/deploy/validate.py"))
        .args(["--kubernetes", &options.kubernetes])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    for folder in &options.definitions {
        script.arg("--definitions").arg(folder);
    }
    for kind in kinds {
        script.args(["--expect", kind]);
    }
    let mut script = script.spawn().context("starting the script")?;
    let mut input = script.stdin.take().context("the script takes no input")?;
    input.write_all(manifests)?;
    drop(input);
    let output = script.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let kinds = text
        .lines()
        .filter_map(|line| line.strip_suffix(UNCHECKED)?.split(' ').next());
    unchecked.extend(kinds.map(str::to_owned));
    Ok(output.status.success())
}
