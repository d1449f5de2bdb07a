//! Tests of the hardware that models run on, and of the machine's GPUs. Tests that need an ONNX Runtime
//! library are skipped unless `ORT_DYLIB_PATH` names one.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::support::{Server, TestResponse, command, failing};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

fn text(answer: &TestResponse) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

fn library() -> Option<OsString> {
    std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty())
}

/// Loads the model with `config` instead of its file's configuration.
fn load(server: &Server, config: &Value) -> (u16, String) {
    let body = json!({"parameters": {"config": config.to_string()}}).to_string();
    let answer = server.request("POST", "/v2/repository/models/digits/load", &[], body.as_bytes());
    (answer.status, text(&answer))
}

fn config(server: &Server) -> Value {
    server.get("/v2/models/digits/config").json()
}

#[test]
fn an_invalid_choice_of_gpus_is_a_usage_error() {
    let (code, line) = failing(&["--gpus", "first", "models"]);
    assert_eq!(code, 2);
    assert!(
        line.contains("'first' is not 'all', 'none' or GPU numbers such as '0,1'"),
        "{line}"
    );
}

/// Without ONNX Runtime, requiring a GPU fails the load with a reason. The model stays loaded with its file's
/// configuration, and metrics show no GPUs.
#[test]
fn a_demand_for_a_gpu_is_a_reason() {
    let mut server = Server::start(
        &examples().join("models"),
        &["--model-control-mode=explicit", "--load-model=digits"],
    );
    server.wait_until_loaded();
    let (status, answer) = load(
        &server,
        &json!({"instance_group": [{"kind": "KIND_GPU", "gpus": [0]}]}),
    );
    assert_eq!(status, 400, "{answer}");
    assert!(
        answer.contains("demands a GPU (KIND_GPU), which needs a library of ONNX Runtime"),
        "{answer}"
    );
    assert_eq!(server.get("/v2/models/digits/ready").status, 200);
    let shown = config(&server);
    assert_eq!(shown["instance_group"][0]["kind"], "KIND_CPU");
    assert!(
        shown["parameters"].get("execution_providers").is_none(),
        "{shown}"
    );
    let metrics = text(&server.get("/metrics"));
    assert!(!metrics.contains("nv_gpu_"), "{metrics}");
}

/// A preference that the built-in runtime cannot meet is a warning that names the model; a misspelled name is an
/// error.
#[test]
fn an_accelerator_without_a_library_is_a_warning_of_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("digits");
    std::fs::create_dir_all(model.join("1")).unwrap();
    std::fs::copy(
        examples().join("models/digits/1/model.onnx"),
        model.join("1/model.onnx"),
    )
    .unwrap();
    let check = |accelerator: &str| {
        let config = format!(
            "optimization {{ execution_accelerators {{ gpu_execution_accelerator [ {{ name: \"{accelerator}\" }} ] }} }}"
        );
        std::fs::write(model.join("config.pbtxt"), config).unwrap();
        let checked = std::process::Command::new(env!("CARGO_BIN_EXE_oip-server"))
            .args(["check", "--log=warn"])
            .arg(folder.path())
            .env_clear()
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            checked.status.success(),
            text(checked.stdout),
            text(checked.stderr),
        )
    };
    let (is_loaded, found, log) = check("cuda");
    assert!(is_loaded, "{found}");
    let warning = log
        .lines()
        .find(|line| line.contains("has no effect on the built-in runtime"));
    assert!(
        warning.is_some_and(|line| line.contains("model=\"digits\"")),
        "{log}"
    );
    let (is_loaded, found, _) = check("cudda");
    assert!(
        !is_loaded && found.contains("expected 'cuda' or 'tensorrt'; did you mean 'cuda'?"),
        "{found}"
    );
}

/// The log, the configuration and the metrics show what a model runs on, even if the model is isolated.
#[test]
fn what_a_model_runs_on_is_shown() {
    let Some(library) = library() else {
        return;
    };
    for arguments in [&[][..], &["--isolate-models"]] {
        let mut command = command(&examples().join("models"), arguments);
        command.args([
            "--model-control-mode=explicit",
            "--load-model=digits",
            "--gpus=none",
            "--onnxruntime",
        ]);
        let mut server = Server::spawn(command.arg(&library));
        server.wait_until_loaded();
        let shown = config(&server);
        assert_eq!(shown["runtime"], "onnxruntime");
        assert_eq!(
            shown["parameters"]["execution_providers"]["string_value"],
            "CPUExecutionProvider"
        );
        assert_eq!(shown["instance_group"][0]["kind"], "KIND_CPU");
        let metrics = text(&server.get("/metrics"));
        let expected = "oip_model_execution_provider{model=\"digits\",version=\"1\",provider=\"CPUExecutionProvider\",gpus=\"\"} 1";
        assert!(metrics.contains(expected), "{metrics}");
        // The GPU does not exist, or the library has no GPU provider: the load fails, and the previous
        // configuration is still served.
        let (status, answer) = load(
            &server,
            &json!({"instance_group": [{"kind": "KIND_GPU", "gpus": [7]}]}),
        );
        assert_eq!(status, 400, "{answer}");
        let accelerators = json!({"gpu_execution_accelerator": [{"name": "cudda"}]});
        let (status, answer) = load(
            &server,
            &json!({"optimization": {"execution_accelerators": accelerators}}),
        );
        assert!(
            status == 400 && answer.contains("did you mean 'cuda'?"),
            "{answer}"
        );
        assert_eq!(server.get("/v2/models/digits/ready").status, 200);
    }
}

/// Tests with a fake of NVIDIA's management library.
#[cfg(all(feature = "gpu", target_os = "linux"))]
mod with_nvml {
    use std::{fs, process::Command};

    use super::*;

    /// A fake NVML with the functions that the server calls, and two GPUs.
    const NVML: &str = r#"
#include <string.h>
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
static int devices[2] = {0, 1};
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &devices[index]; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { strncpy(name, "Card of the test", length); return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    strncpy(uuid, device == devices ? "GPU-aa" : "GPU-bb", length);
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, Rates *rates) { rates->gpu = 25; rates->memory = 1; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) { memory->total = 1000; memory->free = 600; memory->used = 400; return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *device, MemoryV2 *memory) { memory->total = 1000; memory->free = 600; memory->used = 400; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    if (device != devices) return 3;
    *milliwatts = 123500;
    return 0;
}
"#;

    /// Compiles the fake NVML; returns false without a C compiler.
    fn make_nvml(folder: &Path) -> bool {
        let source = folder.join("nvml.c");
        fs::write(&source, NVML).unwrap();
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(folder.join("libnvidia-ml.so.1"))
            .arg(&source)
            .status();
        if !made.is_ok_and(|status| status.success()) {
            return false;
        }
        fs::copy(folder.join("libnvidia-ml.so.1"), folder.join("libnvidia-ml.so")).unwrap();
        true
    }

    /// GPUs that NVML reports appear in the metrics under Triton's names; requiring another GPU fails the
    /// load with a reason. Needs an ONNX Runtime library with the CUDA execution provider.
    #[test]
    fn gpus_are_shown_as_triton_shows_them() {
        let folder = tempfile::tempdir().unwrap();
        let Some(library) = library().filter(|library| {
            let cuda = Path::new(library).with_file_name("libonnxruntime_providers_cuda.so");
            cuda.exists() && !Path::new("/dev/nvidiactl").exists()
        }) else {
            return;
        };
        if !make_nvml(folder.path()) {
            return;
        }
        let mut command = command(
            &examples().join("models"),
            &[
                "--model-control-mode=explicit",
                "--load-model=digits",
                "--onnxruntime",
            ],
        );
        command.arg(&library).env("LD_LIBRARY_PATH", folder.path());
        let mut server = Server::spawn(&mut command);
        server.wait_until_loaded();
        let metrics = text(&server.get("/metrics"));
        for expected in [
            "nv_gpu_utilization{gpu_uuid=\"GPU-aa\"} 0.25",
            "nv_gpu_memory_total_bytes{gpu_uuid=\"GPU-bb\"} 1000",
            "nv_gpu_memory_used_bytes{gpu_uuid=\"GPU-aa\"} 400",
            "nv_gpu_power_usage{gpu_uuid=\"GPU-aa\"} 123.5",
        ] {
            assert!(metrics.contains(expected), "{metrics}");
        }
        // A value that a GPU does not report is left out.
        assert!(!metrics.contains("nv_gpu_power_usage{gpu_uuid=\"GPU-bb\"}"));
        // The GPU was chosen by default, but CUDA was unusable, so the model runs on the CPU.
        assert_eq!(
            config(&server)["parameters"]["execution_providers"]["string_value"],
            "CPUExecutionProvider"
        );
        let (status, answer) = load(
            &server,
            &json!({"instance_group": [{"kind": "KIND_GPU", "gpus": [7]}]}),
        );
        assert_eq!(status, 400);
        assert!(
            answer.contains("demands GPU 7, and this machine has 0 (Card of the test), 1 (Card of the test)"),
            "{answer}"
        );
        let (status, answer) = load(
            &server,
            &json!({"instance_group": [{"kind": "KIND_GPU", "gpus": [1]}]}),
        );
        assert_eq!(status, 400);
        assert!(
            answer.contains("the accelerator 'cuda' cannot be used on GPU 1: libraries are missing: ")
                && answer.contains("libcuda.so.1 (the NVIDIA driver"),
            "{answer}"
        );
        assert_eq!(server.get("/v2/models/digits/ready").status, 200);
    }
}
