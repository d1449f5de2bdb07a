//! Tests that exchanges are written to files and read back, and that errors in either direction are reported.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use fmt_core::TensorReader;
use futures_executor::block_on;
use oip_capture::{CapturingService, Entry, Recorder, RecorderConfig, Recording};
use oip_service::{InferenceService, RequestContext, testing::TestService};
use oip_types::{BytesTensor, InferOutput, InferRequest, InferResponse, ModelRef, ParameterValue};
use tensor_core::{Shape, Tensor};

const PATIENCE: Duration = Duration::from_secs(60);

fn folder() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("a/captured");
    (parent, folder)
}

fn request(model: &str) -> InferRequest {
    let strings = BytesTensor::from_elements(Shape::new(&[2, 1]).unwrap(), ["", "a string"]).unwrap();
    let mut request = InferRequest::new(ModelRef::new(model, Some("3")).unwrap())
        .with_input(
            "x",
            Tensor::from_vec(Shape::new(&[2, 3]).unwrap(), (0..6).collect::<Vec<i64>>()).unwrap(),
        )
        .with_input("words", strings)
        .with_input(
            "none",
            Tensor::from_vec(Shape::new(&[0, 4]).unwrap(), Vec::<f32>::new()).unwrap(),
        )
        .with_output("y");
    request.id = Some("an id".to_owned());
    request.parameters = [
        ("truth", ParameterValue::Bool(true)),
        ("low", ParameterValue::Int64(-5)),
        ("high", ParameterValue::Uint64(u64::MAX)),
        ("half", ParameterValue::Double(0.5)),
        ("whole", ParameterValue::Double(2.0)),
        ("most", ParameterValue::Double(f64::INFINITY)),
        ("least", ParameterValue::Double(f64::NEG_INFINITY)),
        ("text", ParameterValue::String("5".to_owned())),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    request
}

fn response(model: &str) -> InferResponse {
    InferResponse::new(
        model.to_owned(),
        vec![InferOutput::new(
            "y",
            Tensor::from_vec(Shape::vector(4), vec![0.5_f32; 4]).unwrap(),
        )],
    )
    .with_version(Some("3".to_owned()))
}

#[test]
fn what_is_recorded_is_read_as_it_was() {
    let (_parent, folder) = folder();
    for run in 0..2 {
        let recorder = Recorder::start(RecorderConfig::new(&folder)).unwrap();
        for model in ["a", "b"] {
            recorder.record(request(model), response(model));
        }
        recorder.finish(PATIENCE);
        assert_eq!((recorder.recorded(), recorder.dropped()), (2, 0), "run {run}");
        // Waits, because runs are identified by their start time in milliseconds.
        std::thread::sleep(Duration::from_millis(5));
    }
    let recording = Recording::open(&folder).unwrap();
    let models: Vec<_> = recording.entries().iter().map(Entry::model).collect();
    assert_eq!(models, ["a", "b", "a", "b"]);
    for entry in recording.entries() {
        assert_eq!(recording.request(entry).unwrap(), request(entry.model()));
        assert_eq!(entry.version(), Some("3"));
        let answer = fmt_safetensors::SafetensorsReader::from_path(recording.answer_path(entry)).unwrap();
        assert_eq!(answer.get("y").unwrap().to_vec::<f32>().unwrap(), [0.5; 4]);
    }
    #[cfg(unix)]
    for path in fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .chain([folder.clone()])
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} is for its owner", path.display());
    }
}

#[test]
fn a_service_records_what_is_wanted_and_answers_as_ever() {
    let (_parent, folder) = folder();
    let config = RecorderConfig::new(&folder).with(|config| config.models = vec!["ech*".to_owned()]);
    let recorder = Recorder::start(config).unwrap();
    let inner = Arc::new(TestService::default());
    let service = CapturingService::new(inner.clone(), recorder.clone());
    assert_eq!(service.server_metadata(), inner.server_metadata());
    assert!(recorder.wants("echo") && !recorder.wants("other"));
    let missing = InferRequest::new(ModelRef::new("echo-none", None).unwrap());
    let failure = block_on(service.infer(missing.clone(), RequestContext::new(None))).unwrap_err();
    let expected = block_on(inner.infer(missing, RequestContext::new(None))).unwrap_err();
    assert_eq!(failure.to_string(), expected.to_string());
    recorder.finish(PATIENCE);
    assert_eq!((recorder.recorded(), recorder.dropped()), (0, 0));
    let none = Recorder::start(RecorderConfig::new(folder.join("x")).with(|config| config.rate = 0.0));
    let none = none.unwrap();
    assert!((0..1000).all(|_| !none.wants("echo")));
}

#[test]
fn the_folder_stays_within_its_limit_and_memory_too() {
    let (_parent, folder) = folder();
    let size = |folder: &Path| -> u64 {
        let entries = fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum()
    };
    let recorder = Recorder::start(RecorderConfig::new(&folder)).unwrap();
    recorder.record(request("m"), response("m"));
    recorder.finish(PATIENCE);
    let one = size(&folder);
    let limit = 3 * one + one / 2;
    let config = RecorderConfig::new(&folder).with(|config| config.limit = limit);
    let recorder = Recorder::start(config).unwrap();
    for _ in 0..10 {
        recorder.record(request("m"), response("m"));
    }
    recorder.finish(PATIENCE);
    // Files from before this run count towards the limit.
    assert_eq!((recorder.recorded(), recorder.dropped()), (2, 8));
    assert!(size(&folder) <= limit && !recorder.wants("m"));
    assert_eq!(Recording::open(&folder).unwrap().entries().len(), 3);

    let config = RecorderConfig::new(folder.join("y")).with(|config| config.waiting = 1000);
    let recorder = Recorder::start(config).unwrap();
    recorder.record(request("m"), response("m"));
    assert_eq!(recorder.dropped(), 1);
}

#[test]
fn what_a_crash_leaves_behind_is_passed_over_and_damage_is_told() {
    let (_parent, folder) = folder();
    let recorder = Recorder::start(RecorderConfig::new(&folder)).unwrap();
    recorder.record(request("m"), response("m"));
    recorder.finish(PATIENCE);
    drop(recorder);
    let index = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .unwrap();
    let append = |text: &str| {
        let mut file = fs::OpenOptions::new().append(true).open(&index).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    fs::write(folder.join(".part-1-1-x"), "half").unwrap();
    append("{\"name\": \"cut");
    assert_eq!(Recording::open(&folder).unwrap().entries().len(), 1);
    append("\"\n");
    let told = |folder: &Path| Recording::open(folder).unwrap_err().to_string();
    assert!(told(&folder).contains(".jsonl, line 2: "), "{}", told(&folder));
    let good = fs::read_to_string(&index)
        .unwrap()
        .lines()
        .next()
        .unwrap()
        .to_owned();
    let name = serde_json::from_str::<serde_json::Value>(&good).unwrap()["name"]
        .as_str()
        .unwrap()
        .to_owned();
    fs::write(&index, good.replace(&name, "../x") + "\n").unwrap();
    assert!(
        told(&folder).contains("line 1: name '../x' must not"),
        "{}",
        told(&folder)
    );
    fs::write(&index, good + "\n").unwrap();
    let recording = Recording::open(&folder).unwrap();
    let file = folder.join(format!("{name}.request.safetensors"));
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let error = recording
        .request(&recording.entries()[0])
        .unwrap_err()
        .to_string();
    assert!(error.starts_with(&file.display().to_string()), "{error}");
    fs::write(
        &file,
        fs::read(recording.answer_path(&recording.entries()[0])).unwrap(),
    )
    .unwrap();
    // The file of the request contains a response, so it has no inputs.
    assert!(
        recording
            .request(&recording.entries()[0])
            .unwrap()
            .inputs
            .is_empty()
    );
    fs::remove_file(&file).unwrap();
    assert!(recording.request(&recording.entries()[0]).is_err());

    let empty = tempfile::tempdir().unwrap();
    assert!(told(empty.path()).ends_with("has no index of captured requests (index-*.jsonl)"));
    fs::write(empty.path().join("file"), "").unwrap();
    let error = Recorder::start(RecorderConfig::new(empty.path().join("file"))).unwrap_err();
    assert!(error.to_string().contains("file: "), "{error}");
}

#[test]
fn recorders_that_start_at_once_have_indexes_of_their_own() {
    let (_parent, folder) = folder();
    let recorders: Vec<_> = (0..20)
        .map(|_| Recorder::start(RecorderConfig::new(&folder)).unwrap())
        .collect();
    for recorder in &recorders {
        recorder.record(request("m"), response("m"));
        recorder.finish(PATIENCE);
    }
    assert_eq!(Recording::open(&folder).unwrap().entries().len(), recorders.len());
}

/// A killed recorder leaves partial files and unlisted files; the next recorder removes them. Files of a live
/// run are kept.
#[test]
fn leftovers_of_a_crash_do_not_count_for_ever() {
    let (_parent, folder) = folder();
    let recorder = Recorder::start(RecorderConfig::new(&folder)).unwrap();
    recorder.record(request("m"), response("m"));
    recorder.finish(PATIENCE);
    let files = || -> Vec<String> {
        let entries = fs::read_dir(&folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let mut all = files();
    let index = all.iter().find(|name| name.starts_with("index-")).unwrap();
    let run = index
        .strip_prefix("index-")
        .unwrap()
        .strip_suffix(".jsonl")
        .unwrap()
        .to_owned();
    let big = "x".repeat(1 << 20);
    let of_this_run = [
        format!(".part-{run}-abc"),
        format!("{run}-00000002.request.safetensors"),
    ];
    let of_another = [
        "0000000000001-1-00000001.request.safetensors",
        ".part-0000000000001-1-abc",
    ];
    for name in of_this_run.iter().map(String::as_str).chain(of_another) {
        fs::write(folder.join(name), &big).unwrap();
        let file = fs::File::options().write(true).open(folder.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600))
            .unwrap();
    }
    // Unrelated files are not touched.
    fs::write(folder.join("notes.txt"), "").unwrap();
    let limited = || RecorderConfig::new(&folder).with(|config| config.limit = 64 << 10);
    // The first recorder continues: its files are not touched, and count towards the limit.
    let second = Recorder::start(limited()).unwrap();
    second.record(request("m"), response("m"));
    second.finish(PATIENCE);
    assert_eq!((second.recorded(), second.dropped()), (0, 1));
    let now = files();
    assert!(of_this_run.iter().all(|name| now.contains(name)), "{now:?}");
    assert!(
        !of_another.iter().any(|name| now.contains(&(*name).to_owned())),
        "{now:?}"
    );
    // Drop the recorders before their directory.
    drop((recorder, second));
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let third = Recorder::start(limited()).unwrap();
        third.record(request("m"), response("m"));
        third.finish(PATIENCE);
        if third.recorded() == 1 {
            break;
        }
        assert!(std::time::Instant::now() < end, "there is never room");
        std::thread::sleep(Duration::from_millis(10));
    }
    let now = files();
    assert!(!of_this_run.iter().any(|name| now.contains(name)), "{now:?}");
    all.push("notes.txt".to_owned());
    assert!(all.iter().all(|name| now.contains(name)), "{now:?}");
    assert_eq!(Recording::open(&folder).unwrap().entries().len(), 2);
}

#[test]
fn one_large_exchange_does_not_end_the_recording() {
    let (_parent, folder) = folder();
    let config = RecorderConfig::new(&folder).with(|config| config.limit = 200_000);
    let recorder = Recorder::start(config).unwrap();
    let large = || {
        let values = vec![0_f32; 100_000];
        request("m").with_input("large", Tensor::from_vec(Shape::vector(100_000), values).unwrap())
    };
    recorder.record(large(), response("m"));
    recorder.record(request("m"), response("m"));
    recorder.record(large(), response("m"));
    recorder.record(request("m"), response("m"));
    recorder.finish(PATIENCE);
    assert_eq!((recorder.recorded(), recorder.dropped()), (2, 2));
    assert!(recorder.wants("m"));
    assert_eq!(Recording::open(&folder).unwrap().entries().len(), 2);
}

#[test]
fn numbers_that_json_does_not_have_are_read_again() {
    let (_parent, folder) = folder();
    let recorder = Recorder::start(RecorderConfig::new(&folder)).unwrap();
    let mut odd = request("m");
    odd.parameters
        .insert("odd".to_owned(), ParameterValue::Double(f64::NAN));
    recorder.record(odd, response("m"));
    recorder.finish(PATIENCE);
    let recording = Recording::open(&folder).unwrap();
    let read = recording.request(&recording.entries()[0]).unwrap();
    let Some(ParameterValue::Double(odd)) = read.parameters.get("odd") else {
        panic!("{:?}", read.parameters)
    };
    assert!(odd.is_nan());
}
