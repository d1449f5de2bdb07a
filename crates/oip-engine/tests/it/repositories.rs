//! Tests repositories in service: the versions in a directory, and several repositories.

use std::{fs, os::unix::fs::symlink, path::Path, sync::Arc, time::Duration};

use oip_engine::{Engine, EngineConfig, ModelControl, Repositories, Repository};
use oip_model::Backend;
use oip_service::InferenceService;
use oip_types::{ModelRef, ModelState};

use crate::{
    control::until,
    support::{WordBackend, engine, infer, repository, request, write, y},
};

fn backends() -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(WordBackend::default())]
}

/// Returns the name, version and, if unavailable, the reason of each model in the repository at `root`.
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

/// If the repository is the directory of a single model, the model has the name in its configuration, or the
/// name that the program passes.
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
}

/// Changes to the files of a loaded model have no effect.
#[test]
fn a_loaded_model_needs_its_files_no_more() {
    let folder = repository(&[("m/1/model.word", "echo")]);
    let (engine, _) = engine(folder.path(), EngineConfig::default());
    write(folder.path(), "m/1/model.word", "");
    fs::remove_dir_all(folder.path().join("m")).unwrap();
    assert!(infer(&engine, request("m", None, 1)).is_ok());
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
    // A model file that is replaced is loaded again.
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
        "is neither a directory nor, by its extension, a model's file: expected one of .text, .word"
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

/// Several repositories act as one. A model that is in two of them is not served until one of them removes
/// it.
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

    // An unreadable repository removes no models, and the other repositories are still polled.
    fs::rename(theirs.path(), theirs.path().with_extension("moved")).unwrap();
    write(ours.path(), "late/1/model.word", "echo");
    until("the new model is served", || {
        infer(&engine, request("late", None, 1)).is_ok()
    });
    infer(&engine, request("b", None, 1)).unwrap();
    engine.stop(std::time::Instant::now() + Duration::from_secs(5));
    fs::rename(theirs.path().with_extension("moved"), theirs.path()).unwrap();
}

/// If a model appears in a second repository at run time, the error is reported and the model continues to
/// run. Once the conflict is resolved, the error is cleared.
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
