//! The content of the mirrored directory after each kind of change in the store.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use model_store::{Location, Mirror, MirrorOptions, Scope};

use crate::support::{Memory, URL, files, limited, mirror};

fn shown(folder: &Path) -> Vec<String> {
    files(folder)
        .into_iter()
        .map(|(path, content)| format!("{path}={content}"))
        .collect()
}

#[test]
fn a_repository_is_there_and_follows_its_store() {
    let memory = Memory::of(&[
        ("a/1/model.onnx", "a1"),
        ("a/config.pbtxt", "config"),
        ("b/1/model.onnx", "b1"),
        ("README.md", "not a model"),
        (".cache/x", "hidden"),
        // A web console created these directory markers.
        ("a/1", ""),
        ("b/", ""),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let mirror = mirror(&memory, cache.path());
    let folder = mirror.start(Scope::All).unwrap();
    assert!(folder.ends_with("models"));
    assert_eq!(
        shown(&folder),
        ["a/1/model.onnx=a1", "a/config.pbtxt=config", "b/1/model.onnx=b1"]
    );
    assert_eq!(memory.take_counts(), (1, 3));

    // Nothing has changed, so synchronisation lists the objects once and reads none.
    assert_eq!(mirror.sync(Scope::All).unwrap(), model_store::Report::default());
    assert_eq!(memory.take_counts(), (1, 0));

    let inode = |path: &str| fs::metadata(folder.join(path)).unwrap().ino();
    let before = inode("a/config.pbtxt");
    memory.put("a/2/model.onnx", "a2");
    memory.put("c/1/model.onnx", "c1");
    memory.remove("b/1/model.onnx");
    memory.remove("b/");
    let report = mirror.sync(Scope::All).unwrap();
    assert_eq!(
        (report.changed, report.removed),
        (vec!["a".to_owned(), "c".to_owned()], vec!["b".to_owned()])
    );
    assert_eq!(report.fetched, 4);
    assert_eq!(
        shown(&folder),
        [
            "a/1/model.onnx=a1",
            "a/2/model.onnx=a2",
            "a/config.pbtxt=config",
            "c/1/model.onnx=c1"
        ]
    );
    // The unchanged file keeps its inode, so a server does not see a change.
    assert_eq!(inode("a/config.pbtxt"), before);
}

#[test]
fn equal_objects_are_kept_once_and_objects_that_were_there_are_not_fetched_again() {
    let memory = Memory::of(&[("a/1/model.onnx", "same"), ("b/1/model.onnx", "same")]);
    let cache = tempfile::tempdir().unwrap();
    let folder = mirror(&memory, cache.path()).start(Scope::All).unwrap();
    let inode = |path: &str| fs::metadata(folder.join(path)).unwrap().ino();
    assert_eq!(inode("a/1/model.onnx"), inode("b/1/model.onnx"));
    assert_eq!(fs::read_dir(cache.path().join("objects")).unwrap().count(), 1);

    // A second process starts with the cached objects but without the view.
    fs::remove_dir_all(cache.path().join("views")).unwrap();
    memory.take_counts();
    let folder = mirror(&memory, cache.path()).start(Scope::All).unwrap();
    assert_eq!((files(&folder).len(), memory.take_counts()), (2, (1, 0)));
}

#[test]
fn one_model_and_one_file_are_told_from_a_repository() {
    let cache = tempfile::tempdir().unwrap();
    let memory = Memory::of(&[("model.onnx", "m"), ("data/weights", "w")]);
    let mirror = mirror(&memory, cache.path());
    let folder = mirror.start(Scope::All).unwrap();
    assert_eq!(shown(&folder), ["data/weights=w", "model.onnx=m"]);
    memory.put("model.onnx", "M");
    mirror.refresh(None);
    assert_eq!(shown(&folder), ["data/weights=w", "model.onnx=M"]);

    // A location cannot change its kind while it is served.
    memory.remove("model.onnx");
    let error = mirror.sync(Scope::All).unwrap_err().to_string();
    assert!(
        error.contains("was one model's directory and is now a directory of models; restart the server"),
        "{error}"
    );
    assert_eq!(shown(&folder), ["data/weights=w", "model.onnx=M"]);
}

#[test]
fn only_named_models_are_fetched_where_that_is_wanted() {
    let memory = Memory::of(&[
        ("a/1/model.onnx", "a"),
        ("b/1/model.onnx", "b"),
        ("c/1/model.onnx", "c"),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let mirror = mirror(&memory, cache.path());
    let folder = mirror.start(Scope::Named(&["b".to_owned()])).unwrap();
    assert_eq!(shown(&folder), ["b/1/model.onnx=b"]);
    assert!(folder.join("a").is_dir() && folder.join("c").is_dir());

    // A client's load request synchronises only its model; other models are not checked.
    memory.put("b/2/model.onnx", "new");
    memory.take_counts();
    mirror.refresh(Some("a"));
    assert_eq!(shown(&folder), ["a/1/model.onnx=a", "b/1/model.onnx=b"]);
    assert_eq!(memory.take_counts(), (1, 1));
    memory.remove("c/1/model.onnx");
    mirror.refresh(Some("c"));
    assert!(!folder.join("c").exists());
    for hostile in ["../a", "", "a/1", ".", "nowhere"] {
        mirror.refresh(Some(hostile));
    }
    assert_eq!(shown(&folder), ["a/1/model.onnx=a", "b/1/model.onnx=b"]);
}

#[test]
fn what_was_there_is_served_when_the_store_cannot_be_reached() {
    let memory = Memory::of(&[("a/1/model.onnx", "a")]);
    let cache = tempfile::tempdir().unwrap();
    memory.unplug(true);
    let error = mirror(&memory, cache.path())
        .start(Scope::All)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "s3://models: the list of objects cannot be read: no route to host"
    );

    memory.unplug(false);
    let first = mirror(&memory, cache.path()).start(Scope::All).unwrap();
    memory.unplug(true);
    let again = mirror(&memory, cache.path());
    assert_eq!(again.start(Scope::All).unwrap(), first);
    again.refresh(None);
    again.refresh(Some("a"));
    assert_eq!(shown(&first), ["a/1/model.onnx=a"]);
    assert_eq!(again.failure("a"), None);
    again.refresh(Some("unknown"));
    assert!(again.failure("unknown").unwrap().contains("no route to host"));
    memory.unplug(false);
    again.refresh(Some("unknown"));
    assert_eq!(again.failure("unknown"), None);
}

#[test]
fn a_first_synchronisation_that_was_not_whole_is_not_served_later() {
    let memory = Memory::of(&[("a/1/model.onnx", "a"), ("b/1/model.onnx", "bbbbbbbbbb")]);
    let cache = tempfile::tempdir().unwrap();
    let tight = limited(&memory, cache.path(), Some(5));
    let folder = tight.start(Scope::All).unwrap();
    assert_eq!(shown(&folder), ["a/1/model.onnx=a"]);
    let reason = tight.failure("b").unwrap();
    assert!(
        reason.starts_with("the model 'b' at s3://models needs 10 bytes, but the cache")
            && reason.contains("may hold 5"),
        "{reason}"
    );
    drop(tight);
    memory.unplug(true);
    assert!(mirror(&memory, cache.path()).start(Scope::All).is_err());
    memory.unplug(false);
    let roomy = mirror(&memory, cache.path());
    roomy.start(Scope::All).unwrap();
    assert_eq!((files(&folder).len(), roomy.failure("b")), (2, None));
}

#[test]
fn an_emptied_bucket_takes_no_model_out_of_service() {
    let memory = Memory::of(&[("a/1/model.onnx", "a")]);
    let cache = tempfile::tempdir().unwrap();
    let mirror = mirror(&memory, cache.path());
    let folder = mirror.start(Scope::All).unwrap();
    memory.remove("a/1/model.onnx");
    let error = mirror.sync(Scope::All).unwrap_err().to_string();
    assert_eq!(
        error,
        "there is nothing at s3://models: no object has this prefix"
    );
    assert_eq!(shown(&folder), ["a/1/model.onnx=a"]);
}

#[test]
fn two_processes_share_a_cache_and_a_view() {
    let memory = Memory::of(&[("a/1/model.onnx", "a")]);
    let cache = tempfile::tempdir().unwrap();
    let (one, two) = (mirror(&memory, cache.path()), mirror(&memory, cache.path()));
    let folder = one.start(Scope::All).unwrap();
    assert_eq!(two.start(Scope::All).unwrap(), folder);
    memory.put("a/1/model.onnx", "A");
    memory.take_counts();
    std::thread::scope(|scope| {
        for mirror in [&one, &two] {
            scope.spawn(move || mirror.refresh(None));
        }
    });
    assert_eq!(
        (shown(&folder), memory.take_counts()),
        (vec!["a/1/model.onnx=A".to_owned()], (2, 1))
    );
}

#[test]
fn models_of_other_urls_make_room_when_nobody_serves_them() {
    let cache = tempfile::tempdir().unwrap();
    let options = || MirrorOptions::new(cache.path()).with(|options| options.limit = Some(10));
    let open = |url: &str, content: &str| {
        let memory = Memory::of(&[("a/1/model.onnx", content)]);
        Mirror::with_store(&Location::parse(url).unwrap(), Box::new(memory), options()).unwrap()
    };
    let other = open("s3://other", "012345678");
    let folder = other.start(Scope::All).unwrap();
    let new = open(URL, "987654321");
    new.start(Scope::All).unwrap();
    // A model is not evicted while it is being served.
    assert!(
        new.failure("a").unwrap().contains("of which 9 are in use") && folder.join("a/1/model.onnx").exists()
    );
    drop(other);
    new.refresh(None);
    assert_eq!((new.failure("a"), folder.exists()), (None, false));
}
