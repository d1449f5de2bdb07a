//! Tests repository polling.

use std::{
    fs,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use oip_engine::{Engine, EngineConfig, ModelControl};
use oip_service::InferenceService;
use oip_types::{ErrorCode, ModelState};

use crate::{
    control::until,
    pipelines::chain,
    support::{engine, infer, repository, request, write, y},
};

const INTERVAL: Duration = Duration::from_millis(50);

fn polling(root: &std::path::Path) -> Engine {
    let config = EngineConfig::default().with(|config| {
        config.control = ModelControl::Poll { interval: INTERVAL };
    });
    engine(root, config).0
}

fn answer(engine: &Engine, x: i32) -> Option<i32> {
    infer(engine, request("m", None, x))
        .ok()
        .map(|response| y(&response))
}

#[test]
fn models_come_change_and_go() {
    let folder = repository(&[("m/1/model.word", "adds 1")]);
    let root = folder.path();
    let engine = polling(root);
    assert_eq!(answer(&engine, 1), Some(2));

    write(root, "m/1/model.word", "adds 20");
    until("the new file is served", || answer(&engine, 1) == Some(21));
    write(root, "m/2/model.word", "adds 300");
    until("the new version is served", || answer(&engine, 1) == Some(301));
    write(
        root,
        "m/config.pbtxt",
        "version_policy { specific { versions: 1 } }",
    );
    until("the configuration holds", || answer(&engine, 1) == Some(21));
    write(root, "other/1/model.word", "echo");
    until("the new model is served", || {
        infer(&engine, request("other", None, 1)).is_ok()
    });
    fs::remove_dir_all(root.join("other")).unwrap();
    until("the old model is gone", || {
        infer(&engine, request("other", None, 1)).is_err_and(|error| error.code() == ErrorCode::NotFound)
    });
    until("it leaves no trace", || {
        engine.models().iter().all(|model| model.name == "m")
    });
    // An unreadable repository does not unload running models.
    fs::rename(root, root.with_extension("away")).unwrap();
    thread::sleep(INTERVAL * 5);
    assert_eq!(answer(&engine, 1), Some(21));
    fs::rename(root.with_extension("away"), root).unwrap();
}

/// A removed model leaves no entry in the index, not even for versions that were unloaded earlier.
#[test]
fn versions_that_were_unloaded_go_with_their_model() {
    let folder = repository(&[("m/1/model.word", "adds 1")]);
    let root = folder.path();
    let engine = polling(root);
    write(root, "m/2/model.word", "adds 300");
    until("the new version is served", || answer(&engine, 1) == Some(301));
    until("the first version is unloaded", || {
        engine
            .models()
            .iter()
            .any(|model| (model.version.as_deref(), model.state) == (Some("1"), ModelState::Unavailable))
    });
    fs::remove_dir_all(root.join("m")).unwrap();
    until("nothing is left", || engine.models().is_empty());
    let error = infer(&engine, request("m", None, 1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
}

#[test]
fn touched_files_are_not_loaded_again() {
    let folder = repository(&[("m/1/model.word", "adds 1")]);
    let root = folder.path();
    let engine = polling(root);
    let config = || {
        let model = oip_types::ModelRef::new("m", None).unwrap();
        engine.configuration().unwrap().model_config(model).unwrap()
    };
    let before = config();
    for _ in 0..3 {
        thread::sleep(INTERVAL * 3);
        write(root, "copy", "adds 1");
        fs::rename(root.join("copy"), root.join("m/1/model.word")).unwrap();
    }
    thread::sleep(INTERVAL * 6);
    assert!(Arc::ptr_eq(&before, &config()), "it was loaded again");
    write(root, "m/1/model.word", "adds 2");
    until("it is loaded again", || answer(&engine, 1) == Some(3));
}

/// A broken change is reported, the previous version continues, and the fix is loaded.
#[test]
fn a_broken_change_leaves_the_old_one_serving() {
    let folder = repository(&[("m/1/model.word", "adds 1")]);
    let engine = polling(folder.path());
    write(folder.path(), "m/1/model.word", "broken");
    until("the reason is told", || {
        engine.models()[0].reason.ends_with("it is broken")
    });
    assert_eq!(engine.models()[0].state, ModelState::Ready);
    assert_eq!(answer(&engine, 1), Some(2));
    assert!(engine.readiness().is_ready());
    write(folder.path(), "m/1/model.word", "adds 2");
    until("it is mended", || answer(&engine, 1) == Some(3));
    assert_eq!(engine.models()[0].reason, "");
}

/// A model is loaded only after its files have stopped changing.
#[test]
fn a_copy_that_goes_on_is_waited_for() {
    let folder = repository(&[("m/1/model.word", "adds 1")]);
    let root = folder.path();
    let config = EngineConfig::default().with(|config| {
        config.control = ModelControl::Poll {
            interval: INTERVAL * 4,
        };
    });
    let (engine, runs) = engine(root, config);
    // The file grows byte by byte, and each prefix would be a valid model.
    let mut word = "adds 10".to_owned();
    for _ in 0..40 {
        word.push('0');
        let (short, _) = word.split_at(word.len().min(11));
        write(
            root,
            "m/1/model.word",
            &format!("{short} {}", " ".repeat(word.len())),
        );
        thread::sleep(INTERVAL);
        let answered = answer(&engine, 1);
        assert_eq!(answered, Some(2), "half a model is served");
    }
    write(root, "m/1/model.word", "adds 5");
    let start = Instant::now();
    until("it is loaded when the copy is done", || {
        answer(&engine, 1) == Some(6)
    });
    assert!(start.elapsed() > INTERVAL * 2, "it was not seen twice");
    assert!(runs.load(Ordering::SeqCst) > 40);
}

/// Versions are added and removed under load, and no request fails.
#[test]
fn rolling_versions_fail_no_request() {
    let folder = repository(&[("m/1/model.word", "adds 1")]);
    let root = folder.path();
    let engine = polling(root);
    for version in 2..8 {
        write(
            root,
            &format!("m/{version}/model.word"),
            &format!("adds {version}"),
        );
        let start = Instant::now();
        loop {
            let response = infer(&engine, request("m", None, 0)).unwrap();
            if y(&response) == version {
                break;
            }
            assert_eq!(y(&response), version - 1);
            assert!(start.elapsed() < Duration::from_secs(20));
        }
        fs::remove_dir_all(root.join(format!("m/{}", version - 1))).unwrap();
    }
    // Removed versions are dropped at the next load.
    until("old versions are forgotten", || {
        engine.models().len() <= 3
            && engine
                .models()
                .last()
                .is_some_and(|last| last.state == ModelState::Ready)
    });
}

/// A sparse file is refused because of its size; reading it to detect changes would take hours.
#[test]
fn a_file_of_a_tebibyte_is_not_read() {
    let folder = repository(&[("m/1/model.word", "adds 1")]);
    let root = folder.path();
    let engine = polling(root);
    assert_eq!(answer(&engine, 1), Some(2));
    let hole = fs::File::create(root.join("m/1/new")).unwrap();
    hole.set_len(1 << 40).unwrap();
    fs::rename(root.join("m/1/new"), root.join("m/1/model.word")).unwrap();
    until("the file is refused", || {
        engine.models()[0]
            .reason
            .contains("model.word has 1099511627776 bytes, but only")
    });
    assert_eq!(answer(&engine, 1), Some(2), "what runs goes on");
}

/// A repository's directory may be replaced by another directory of the same name. Polling detects the
/// replacement like any other change.
#[test]
fn a_repository_may_be_replaced() {
    let folder = repository(&[("m/1/model.word", "adds 1")]);
    let root = folder.path();
    let engine = polling(root);
    assert_eq!(answer(&engine, 1), Some(2));
    let other = repository(&[("m/1/model.word", "adds 50")]);
    fs::remove_dir_all(root).unwrap();
    fs::rename(other.path(), root).unwrap();
    until("the other directory is served", || answer(&engine, 1) == Some(51));
}

/// A new directory that has no files yet does not make the server unready. Like `cp -r`, the test creates the
/// directory first and then its files.
#[test]
fn a_directory_that_is_still_empty_does_not_take_the_server_out_of_service() {
    let folder = repository(&[("m/1/model.word", "adds 1")]);
    let root = folder.path();
    let engine = polling(root);
    assert!(engine.readiness().is_ready());
    fs::create_dir_all(root.join("new/1")).unwrap();
    until("the directory is seen", || engine.models().len() == 2);
    let reason = "its directory has no files: it is being copied, or was left empty";
    assert_eq!(engine.models()[1].reason, reason);
    assert!(engine.readiness().is_ready(), "{:?}", engine.readiness());
    write(root, "new/1/model.word", "adds 1");
    until("it is loaded", || infer(&engine, request("new", None, 1)).is_ok());

    // A new model that is broken does not make the server unready either.
    write(root, "broken/1/model.word", "broken");
    until("the broken one is seen", || engine.models().len() == 3);
    until("it is told", || {
        engine.models()[0].state == ModelState::Unavailable
    });
    assert!(engine.readiness().is_ready(), "{:?}", engine.readiness());

    // An empty directory leaves no state once it is removed.
    fs::create_dir(root.join("left")).unwrap();
    until("the empty one is seen", || engine.models().len() == 4);
    fs::remove_dir(root.join("left")).unwrap();
    until("it is gone", || engine.models().len() == 3);
}

#[test]
fn what_was_there_at_start_is_waited_for_until_it_is_mended() {
    let folder = repository(&[("m/1/model.word", "broken"), ("n/1/model.word", "adds 1")]);
    let root = folder.path();
    fs::create_dir(root.join("empty")).unwrap();
    let engine = polling(root);
    assert!(format!("{:?}", engine.readiness()).contains("models not ready: m"));
    assert!(!format!("{:?}", engine.readiness()).contains("empty"));
    write(root, "m/1/model.word", "broken ");
    thread::sleep(INTERVAL * 6);
    assert!(!engine.readiness().is_ready());
    write(root, "m/1/model.word", "adds 1");
    until("it is mended", || engine.readiness().is_ready());
}

/// A model that was never ready does not affect readiness. A model that was ready once does, even if it was
/// added later.
#[test]
fn what_was_ready_once_counts_although_it_came_later() {
    let folder = repository(&[("m/1/model.word", "echo"), ("step/1/model.word", "echo")]);
    let root = folder.path();
    let engine = polling(root);
    write(root, "late/config.pbtxt", &chain(&["step"]));
    until("the pipeline answers", || {
        infer(&engine, request("late", None, 1)).is_ok()
    });
    assert!(engine.readiness().is_ready());
    fs::remove_dir_all(root.join("step")).unwrap();
    until("its step is gone", || !engine.readiness().is_ready());
}
