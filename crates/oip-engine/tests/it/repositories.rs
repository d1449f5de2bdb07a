//! Tests of repository contents, and of the messages about other files.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use oip_engine::{Engine, EngineConfig, ModelControl, Repositories, Repository};
use oip_service::{Backend, InferenceService};
use oip_types::{ModelRef, ModelState};

use crate::{
    control::until,
    support::{WordBackend, engine, infer, repository, request, write, y},
};

fn backends() -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(WordBackend::default())]
}

/// Returns the model, the version and, if it is unavailable, the reason of each entry of a directory.
fn found(root: &Path) -> Vec<(String, Option<String>, Option<String>)> {
    let (engine, _) = engine(root, EngineConfig::default());
    let models = engine.models().into_iter();
    models
        .map(|model| {
            let reason = (model.state == ModelState::Unavailable).then_some(model.reason);
            (model.name, model.version, reason)
        })
        .collect()
}

fn reason_of(root: &Path, name: &str) -> String {
    let model = found(root).into_iter().find(|model| model.0 == name);
    model
        .and_then(|model| model.2)
        .unwrap_or_else(|| panic!("{name} is not unavailable"))
}

#[test]
fn tritons_layout() {
    let folder = repository(&[
        ("digits/1/model.word", "echo"),
        ("digits/10/model.word", "echo"),
        ("digits/9/model.word", "echo"),
        ("digits/config.pbtxt", "version_policy: { all { } }"),
        ("other/v1.5/model.word", "echo"),
        (".git/1/model.word", "echo"),
        ("notes.txt", ""),
    ]);
    let version = |version: &str| Some(version.to_owned());
    assert_eq!(
        found(folder.path()),
        [
            ("digits".to_owned(), version("1"), None),
            ("digits".to_owned(), version("9"), None),
            ("digits".to_owned(), version("10"), None),
            ("other".to_owned(), version("v1.5"), None),
        ]
    );
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    assert_eq!(
        infer(&engine, request("digits", None, 1))
            .unwrap()
            .model_version
            .as_deref(),
        Some("10")
    );
    assert_eq!(
        infer(&engine, request("digits", Some("9"), 1))
            .unwrap()
            .model_version
            .as_deref(),
        Some("9")
    );
    let metadata = engine
        .model_metadata(ModelRef::new("digits", Some("1")).unwrap())
        .unwrap();
    assert_eq!(
        (&*metadata.name, &metadata.versions[..]),
        ("digits", &["1".to_owned(), "9".to_owned(), "10".to_owned()][..])
    );
    let error = infer(&engine, request("digits", Some("11"), 1)).unwrap_err();
    assert_eq!(error.to_string(), "model 'digits' version '11' does not exist");
}

/// The file names of a backend in order of precedence; errors name the file that exists.
#[test]
fn a_backend_may_have_several_file_names() {
    let folder = repository(&[
        ("both/1/model.text", "broken"),
        ("both/1/model.word", "echo"),
        ("text/1/model.text", "echo"),
        ("folder/1/model.text/x", ""),
    ]);
    let root = folder.path();
    assert_eq!(reason_of(root, "folder"), "model.text is not a regular file");
    assert_eq!(found(root).iter().filter(|model| model.2.is_none()).count(), 2);
}

#[test]
fn kserves_layout() {
    let folder = repository(&[("model.word", "echo"), ("1/readme.txt", "")]);
    let configured = repository(&[
        ("model.word", "echo"),
        ("config.pbtxt", "name: \"pets\" max_batch_size: 2"),
    ]);
    let version = found(configured.path());
    assert_eq!(version, [("pets".to_owned(), None, None)]);
    let named = Repository::open(folder.path(), &backends(), Some("mine")).unwrap();
    assert_eq!(named.model_names().unwrap(), ["mine"]);
    let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
    if !name.starts_with('.') {
        assert_eq!(found(folder.path()), [(name.clone(), None, None)]);
    }
    let engine = oip_engine::Engine::start(named, EngineConfig::default());
    engine.wait_until_loaded();
    let response = infer(&engine, request("mine", None, 5)).unwrap();
    assert_eq!(
        (response.model_name.as_str(), response.model_version),
        ("mine", None)
    );
    assert!(infer(&engine, request("mine", Some("1"), 5)).is_err());
}

/// MR-06: other files and directories in place of a model.
#[test]
fn mr_06_folders_without_a_model_say_why() {
    let folder = repository(&[
        ("empty/readme.txt", ""),
        ("no_file/1/readme.txt", ""),
        ("flat/model.word", "echo"),
        ("file_for_folder/1", "echo"),
        ("spaces/1 2/model.word", "echo"),
        ("good/1/model.word", "echo"),
        ("good/2/readme.txt", ""),
        ("named/1/mine.word", "echo"),
        ("loose/mine.word", "echo"),
        ("foreign/1/weights.pt", ""),
        ("foreign_folder/1/model.savedmodel/saved_model.pb", ""),
    ]);
    let root = folder.path();
    assert_eq!(
        reason_of(root, "foreign"),
        "its version '1' has no model.word or model.text (there is '1/weights.pt', a file of PyTorch: export the model to ONNX)"
    );
    assert!(reason_of(root, "foreign_folder").contains("'1/model.savedmodel', a file of TensorFlow"));
    assert_eq!(
        reason_of(root, "named"),
        "its version '1' has no model.word or model.text (there is '1/mine.word', which would be the model as '1/model.word', \
         or with default_model_filename: \"mine.word\" in its configuration)"
    );
    assert_eq!(
        reason_of(root, "loose"),
        "it has no version folder with model.word or model.text in it (there is 'mine.word', which would be the model as \
         '1/model.word')"
    );
    assert_eq!(
        reason_of(root, "empty"),
        "it has no version folder with model.word or model.text in it"
    );
    assert_eq!(
        reason_of(root, "no_file"),
        "its version '1' has no model.word or model.text"
    );
    assert!(reason_of(root, "flat").ends_with("move it into a version folder such as 1)"));
    assert_eq!(
        reason_of(root, "file_for_folder"),
        "it has no version folder with model.word or model.text in it"
    );
    assert_eq!(
        reason_of(root, "spaces"),
        "it has no version folder with model.word or model.text in it"
    );
    assert_eq!(found(root).iter().filter(|model| model.0 == "good").count(), 1);
}

/// The directory of a single model, given as the repository.
#[test]
fn a_folder_of_versions_is_one_model() {
    let versions = [
        ("1/model.word", "echo"),
        ("2/model.word", "echo"),
        ("config.pbtxt", "name: \"pets\" version_policy { all { } }"),
    ];
    let folder = repository(&versions);
    let expected = ["1", "2"].map(|version| ("pets".to_owned(), Some(version.to_owned()), None));
    assert_eq!(found(folder.path()), expected);
    let named = Repository::open(folder.path(), &backends(), Some("mine")).unwrap();
    let engine = oip_engine::Engine::start(named, EngineConfig::default());
    engine.wait_until_loaded();
    let response = infer(&engine, request("mine", Some("2"), 5)).unwrap();
    assert_eq!(
        (response.model_name.as_str(), response.model_version.as_deref()),
        ("mine", Some("2"))
    );

    // With anything else that may be a model it is a repository, and also without a version number.
    for other in [("good/1/model.word", "echo"), ("empty/readme.txt", "")] {
        let folder = repository(&[("1/model.word", "echo"), other]);
        let opened = Repository::open(folder.path(), &backends(), None).unwrap();
        assert_eq!(opened.model_names().unwrap().len(), 2);
    }
    let folder = repository(&[("flat/model.word", "echo")]);
    assert!(reason_of(folder.path(), "flat").ends_with("move it into a version folder such as 1)"));
}

#[test]
fn files_of_other_frameworks_are_named() {
    let folder = repository(&[("net.pt", ""), ("mine.word", ""), ("notes.md", "")]);
    let opened = Repository::open(folder.path(), &backends(), None).unwrap();
    assert_eq!(opened.misplaced_files(), ["mine.word"]);
    let passed_over = opened.passed_over().into_iter();
    let passed_over: Vec<_> = passed_over.map(|passed| (passed.file, passed.advice)).collect();
    assert_eq!(
        passed_over,
        [
            (
                "mine.word".to_owned(),
                "to serve it, move it to mine/1/model.word".to_owned()
            ),
            (
                "net.pt".to_owned(),
                "a file of PyTorch: export the model to ONNX".to_owned()
            ),
        ]
    );
    let file = folder.path().join("net.pt");
    let error = Repository::open(&file, &backends(), None).map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} is a file of PyTorch, which is not served: export the model to ONNX",
            file.display()
        )
    );
}

/// MR-03: symbolic links out of the repository are not followed; those within it are.
#[cfg(unix)]
#[test]
fn mr_03_links_out_are_refused() {
    let outside = repository(&[("1/model.word", "secret")]);
    let folder = repository(&[("good/1/model.word", "echo")]);
    let root = folder.path();
    symlink(outside.path(), root.join("model_link")).unwrap();
    fs::create_dir(root.join("version_link")).unwrap();
    symlink(outside.path().join("1"), root.join("version_link/1")).unwrap();
    fs::create_dir_all(root.join("file_link/1")).unwrap();
    symlink(
        outside.path().join("1/model.word"),
        root.join("file_link/1/model.word"),
    )
    .unwrap();
    fs::create_dir_all(root.join("dangling/1")).unwrap();
    symlink("nowhere", root.join("dangling/1/model.word")).unwrap();
    symlink("good", root.join("alias")).unwrap();

    assert_eq!(
        reason_of(root, "model_link"),
        "its folder is a link that leads out of the repository (--repository-also names folders that links may reach)"
    );
    for name in ["version_link", "file_link"] {
        assert_eq!(
            reason_of(root, name),
            "model.word is a link that leads out of the repository (--repository-also names folders that links may reach)"
        );
    }
    assert!(reason_of(root, "dangling").starts_with("model.word cannot be opened"));
    assert_eq!(found(root).iter().filter(|model| model.2.is_none()).count(), 2);
}

/// FS-07: only regular files are opened.
#[cfg(unix)]
#[test]
fn fs_07_folders_and_pipes_are_no_models() {
    let folder = repository(&[("folder/1/model.word/x", ""), ("pipe/1/readme.txt", "")]);
    let pipe = folder.path().join("pipe/1/model.word");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    for name in ["folder", "pipe"] {
        assert_eq!(reason_of(folder.path(), name), "model.word is not a regular file");
    }
}

#[test]
fn a_missing_repository_is_an_error_that_names_it() {
    let pointer = "version https://git-lfs.github.com/spec/v1\nsize 7\n";
    let folder = repository(&[("file", "some text"), ("empty.bin", ""), ("lfs.bin", pointer)]);
    let place = folder.path().display();
    for (path, message) in [
        (
            "nowhere",
            &format!("there is no file or directory {place}/nowhere")[..],
        ),
        (
            "flie",
            &format!("there is no file or directory {place}/flie; did you mean {place}/file?"),
        ),
        (
            "file",
            " is neither a folder nor, by its extension, a model's file: expected one of .text, .word",
        ),
        ("empty.bin", " is an empty file: copy or download it again"),
        (
            "lfs.bin",
            " is a pointer of Git LFS to a file of 7 bytes: run `git lfs pull` where it was cloned, or download the file itself",
        ),
    ] {
        let error = Repository::open(&folder.path().join(path), &backends(), None)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(path) && error.ends_with(message), "{error}");
    }
}

#[test]
fn a_folder_of_models_is_named_where_a_model_is_expected() {
    let folder = repository(&[("shop/m/1/model.word", "echo"), ("shop/README.md", "")]);
    assert_eq!(
        reason_of(folder.path(), "shop"),
        "it is no model but a folder of models, of which 'm' is one: serve this folder itself"
    );
}

/// MR-11: changes to the files of a loaded model have no effect.
#[test]
fn mr_11_a_loaded_model_needs_its_files_no_more() {
    let folder = repository(&[("m/1/model.word", "echo")]);
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    write(folder.path(), "m/1/model.word", "");
    fs::remove_dir_all(folder.path().join("m")).unwrap();
    assert!(infer(&engine, request("m", None, 1)).is_ok());
}

/// KServe's modelcars: the repository is a link into the file system of another container, whose target does
/// not resolve here. On systems without namespaces, `load/root.rs` has a test with a substitute.
#[cfg(target_os = "linux")]
#[test]
fn a_repository_in_another_mount_namespace() {
    let place = tempfile::tempdir().unwrap();
    let script = r#"
        mount -t tmpfs none "$0" && mkdir -p "$0/models/m/1" "$0/models/n/1" && printf 'adds 1' > "$0/models/m/1/model.word" &&
        ln -s ../../m/1/model.word "$0/models/n/1/model.word" && echo ready && read -r end"#;
    let mut container = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(place.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let stdout = container.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut said).unwrap();
    if said == "ready\n" {
        assert!(
            !place.path().join("models").exists(),
            "it is only in the container"
        );
        let inside = format!("/proc/{}/root{}/models", container.id(), place.path().display());
        let links = tempfile::tempdir().unwrap();
        let link = links.path().join("models");
        symlink(inside, &link).unwrap();
        let (engine, _) = engine(&link, EngineConfig::default());
        for model in ["m", "n"] {
            assert_eq!(y(&infer(&engine, request(model, None, 1)).unwrap()), 2, "{model}");
        }
    }
    // It ends when its standard input is closed.
    drop(container.stdin.take());
    container.wait().unwrap();
}

#[test]
fn a_file_is_a_repository_of_one_model() {
    let folder = repository(&[
        ("ten.word", "adds 10"),
        ("model.word", "adds 1"),
        ("config.pbtxt", "max_batch_size: nonsense"),
        ("unreadable/1/model.word", "fails to load"),
    ]);
    let open = |name: &str, model: Option<&str>| {
        let repository = Repository::open(&folder.path().join(name), &backends(), model).unwrap();
        assert!(repository.misplaced_files().is_empty());
        let engine = Engine::start(repository, EngineConfig::default());
        engine.wait_until_loaded();
        engine
    };
    assert_eq!(
        y(&infer(&open("ten.word", None), request("ten", None, 1)).unwrap()),
        11
    );
    assert_eq!(
        y(&infer(&open("ten.word", Some("x")), request("x", None, 1)).unwrap()),
        11
    );
    symlink(
        folder.path().join("ten.word"),
        folder.path().join("unreadable/linked.word"),
    )
    .unwrap();
    let engine = open("unreadable/linked.word", None);
    assert_eq!(
        y(&infer(&engine, request("ten", None, 1)).unwrap()),
        11,
        "the file has the name"
    );
    // After it is replaced, it is loaded again.
    let engine = engine_polling(&folder.path().join("ten.word"));
    write(folder.path(), "ten.word", "adds 20");
    until("the new file is served", || {
        y(&infer(&engine, request("ten", None, 1)).unwrap()) == 21
    });
    write(folder.path(), "notes.txt", "to do");
    let error = Repository::open(&folder.path().join("notes.txt"), &backends(), None)
        .err()
        .unwrap();
    assert!(error.to_string().ends_with(
        "is neither a folder nor, by its extension, a model's file: expected one of .text, .word"
    ));
}

fn engine_polling(path: &Path) -> Engine {
    let config = EngineConfig::default().with(|config| {
        config.control = ModelControl::Poll {
            interval: Duration::from_millis(10),
        };
    });
    let engine = Engine::start(Repository::open(path, &backends(), None).unwrap(), config);
    engine.wait_until_loaded();
    engine
}

#[test]
fn files_that_would_be_models_elsewhere_are_told() {
    let folder = repository(&[
        ("ten.word", "adds 10"),
        ("a.txt", ""),
        (".b.word", ""),
        ("m/1/model.word", "adds 1"),
    ]);
    let repository = Repository::open(folder.path(), &backends(), None).unwrap();
    assert_eq!(repository.misplaced_files(), ["ten.word"]);
}

/// Several repositories act as one. A model in two of them is not served until one of them removes it.
#[test]
fn several_repositories_are_served_together() {
    let ours = repository(&[("a/1/model.word", "echo"), ("both/1/model.word", "echo")]);
    let theirs = repository(&[
        ("b/1/model.word", "echo"),
        ("both/2/model.word", "echo"),
        ("lost.word", ""),
    ]);
    let single = repository(&[("c.word", "echo")]);
    let open = |path: &Path| Repository::open(path, &backends(), None).unwrap();
    let repositories = Repositories::from(vec![
        open(ours.path()),
        open(theirs.path()).with_label("s3://theirs"),
        open(&single.path().join("c.word")),
    ]);
    assert_eq!(repositories.passed_over()[0].file, "lost.word");
    assert_eq!(repositories.only_model(), None);
    let config = EngineConfig::default().with(|config| {
        config.control = ModelControl::Poll {
            interval: Duration::from_millis(20),
        };
    });
    let engine = Engine::start(repositories, config);
    engine.wait_until_loaded();
    let models = engine.models();
    let names: Vec<_> = models.iter().map(|model| &*model.name).collect();
    assert_eq!(names, ["a", "b", "both", "c"]);
    for name in ["a", "b", "c"] {
        infer(&engine, request(name, None, 1)).unwrap();
    }
    let both = models.iter().find(|model| model.name == "both").unwrap();
    let ours_path = ours.path().display();
    assert_eq!(
        both.reason,
        format!("it is in two repositories, {ours_path} and s3://theirs; rename or remove one of them")
    );
    fs::remove_dir_all(ours.path().join("both")).unwrap();
    until("the model is in one repository", || {
        infer(&engine, request("both", None, 1)).is_ok()
    });

    // An unreadable repository removes no models, and the others are still polled.
    fs::rename(theirs.path(), theirs.path().with_extension("moved")).unwrap();
    write(ours.path(), "late/1/model.word", "echo");
    until("the new model is served", || {
        infer(&engine, request("late", None, 1)).is_ok()
    });
    infer(&engine, request("b", None, 1)).unwrap();
    engine.stop(std::time::Instant::now() + Duration::from_secs(5));
    fs::rename(theirs.path().with_extension("moved"), theirs.path()).unwrap();
}

/// A model that appears in a second repository at run time is reported with the reason and continues to run;
/// once fixed, the report is cleared.
#[test]
fn a_second_model_of_a_name_is_shown_without_a_restart() {
    let (ours, theirs) = (
        repository(&[("a/1/model.word", "echo")]),
        repository(&[("b/1/model.word", "echo")]),
    );
    let open = |path: &Path| Repository::open(path, &backends(), None).unwrap();
    let config = EngineConfig::default().with(|config| {
        config.control = ModelControl::Poll {
            interval: Duration::from_millis(20),
        };
    });
    let engine = Engine::start(
        Repositories::from(vec![open(ours.path()), open(theirs.path())]),
        config,
    );
    engine.wait_until_loaded();
    let reason = |name: &str| {
        let models = engine.models();
        let model = models.into_iter().find(|model| model.name == name);
        model.map(|model| (model.state, model.reason))
    };
    let is_twice =
        |name: &str| reason(name).is_some_and(|(_, reason)| reason.contains("it is in two repositories, "));
    write(theirs.path(), "a/1/model.word", "adds 5");
    write(ours.path(), "new/1/model.word", "echo");
    write(theirs.path(), "new/1/model.word", "echo");
    until("both are shown", || is_twice("a") && is_twice("new"));
    let (state, told) = reason("a").unwrap();
    assert_eq!(state, ModelState::Ready);
    assert!(
        told.starts_with("the files in the repository now cannot be loaded"),
        "{told}"
    );
    assert_eq!(reason("new").unwrap().0, ModelState::Unavailable);
    assert_eq!(y(&infer(&engine, request("a", None, 1)).unwrap()), 1);
    assert_eq!(reason("b").unwrap(), (ModelState::Ready, String::new()));

    fs::remove_dir_all(theirs.path().join("a")).unwrap();
    fs::remove_dir_all(ours.path().join("new")).unwrap();
    until("both are right again", || {
        ["a", "new"].map(reason) == ["a", "new"].map(|_| Some((ModelState::Ready, String::new())))
    });
    assert_eq!(y(&infer(&engine, request("a", None, 1)).unwrap()), 1);
    infer(&engine, request("new", None, 1)).unwrap();
    engine.stop(std::time::Instant::now() + Duration::from_secs(5));
}

/// A Hugging Face cache: its files are links to blobs in a sibling directory.
#[test]
fn links_may_lead_to_folders_that_are_named() {
    let hub = repository(&[
        ("blobs/abc", "echo"),
        ("blobs/config", "name: \"pets\""),
        ("snapshots/1/readme", ""),
    ]);
    let at = |name: &str| hub.path().join(name);
    symlink("../../blobs/abc", at("snapshots/1/model.word")).unwrap();
    symlink("../../blobs/config", at("snapshots/1/config.pbtxt")).unwrap();
    let snapshot = at("snapshots/1");
    let refused = Repository::open(&snapshot, &backends(), Some("m")).unwrap();
    let engine = Engine::start(refused, EngineConfig::default());
    engine.wait_until_loaded();
    let reason = engine.models().remove(0).reason;
    assert!(reason.contains("--repository-also names folders"), "{reason}");

    let repository = Repository::open_with_links(&snapshot, &backends(), None, &[at("blobs")]).unwrap();
    assert_eq!(repository.model_names().unwrap(), ["pets"]);
    let engine = Engine::start(repository, EngineConfig::default());
    engine.wait_until_loaded();
    infer(&engine, request("pets", None, 1)).unwrap();

    let error = Repository::open_with_links(&snapshot, &backends(), None, &[at("none")]);
    let message = error.err().unwrap().to_string();
    assert_eq!(
        message,
        format!("the folder {} does not exist", at("none").display())
    );
    let error = Repository::open_with_links(&snapshot, &backends(), None, &[at("blobs/abc")]);
    let message = error.err().unwrap().to_string();
    assert_eq!(message, format!("{} is not a folder", at("blobs/abc").display()));
}
