//! Objects that change, are truncated, or have names that try to escape from the directory.

use std::{fs, path::Path, sync::Arc};

use model_store::{CloudStore, Location, Mirror, MirrorOptions, Object, Scope, Store, StoreError};
use object_store::{ObjectStoreExt, memory::InMemory};

use crate::support::{Memory, URL, files, mirror, name};

/// Asserts that no partial download remains.
fn assert_no_partial(cache: &Path) {
    assert_eq!(fs::read_dir(cache.join("partial")).unwrap().count(), 0);
}

#[test]
fn an_object_that_changes_while_it_is_fetched_is_fetched_anew() {
    let large = |letter: u8| vec![letter; 40 << 20];
    let memory = Memory::default();
    memory.put("a/1/model.onnx", large(b'x'));
    memory.before_read(|memory| memory.put("a/1/model.onnx", vec![b'y'; 40 << 20]));
    let cache = tempfile::tempdir().unwrap();
    let folder = mirror(&memory, cache.path()).start(Scope::All).unwrap();
    assert!(fs::read(folder.join("a/1/model.onnx")).unwrap() == large(b'y'));
    assert_no_partial(cache.path());
}

#[test]
fn an_object_that_keeps_changing_is_that_models_failure() {
    let memory = Memory::of(&[("a/1/model.onnx", "a"), ("b/1/model.onnx", "b")]);
    fn change(memory: &Memory) {
        memory.put("b/1/model.onnx", "other");
        memory.before_read(change);
    }
    let cache = tempfile::tempdir().unwrap();
    let mirror = mirror(&memory, cache.path());
    memory.before_read(change);
    let folder = mirror.start(Scope::All).unwrap();
    assert_eq!(files(&folder).into_keys().collect::<Vec<_>>(), ["a/1/model.onnx"]);
    assert_eq!(
        mirror.failure("b").unwrap(),
        "b/1/model.onnx changed in its store while it was fetched; the next synchronisation fetches the new file"
    );
    assert_no_partial(cache.path());
}

#[test]
fn a_truncated_object_never_becomes_a_model() {
    let memory = Memory::of(&[("a/1/model.onnx", "good")]);
    let cache = tempfile::tempdir().unwrap();
    let mirror = mirror(&memory, cache.path());
    let folder = mirror.start(Scope::All).unwrap();
    memory.put("a/1/model.onnx", "better");
    memory.lack(2);
    let report = mirror.sync(Scope::All).unwrap();
    assert_eq!(
        report.failed,
        [(
            "a".to_owned(),
            "the store lists a/1/model.onnx with 6 bytes, but sent 4".to_owned()
        )]
    );
    // The previous copy is kept, and the model is not marked as failed.
    assert_eq!(
        (files(&folder)["a/1/model.onnx"].as_str(), mirror.failure("a")),
        ("good", None)
    );
    assert_no_partial(cache.path());
    memory.lack(0);
    mirror.refresh(None);
    assert_eq!(files(&folder)["a/1/model.onnx"], "better");
}

#[test]
fn an_object_that_is_a_folder_of_others_too_is_named() {
    let memory = Memory::of(&[("a/1", "file"), ("a/1/model.onnx", "x"), ("b/1/model.onnx", "b")]);
    let cache = tempfile::tempdir().unwrap();
    let mirror = mirror(&memory, cache.path());
    mirror.start(Scope::All).unwrap();
    assert_eq!(
        mirror.failure("a").unwrap(),
        "'a/1' is both an object and a directory of others; remove one of them"
    );
    assert_eq!(mirror.failure("b"), None);
}

#[test]
fn names_that_lead_elsewhere_are_refused_by_name() {
    for (key, why) in [
        (
            "../../etc/passwd",
            "'../../etc/passwd' cannot be a file here: its name has a part '..'",
        ),
        ("/etc/passwd", "its name begins with a slash"),
        ("a/..\\..\\x", "its name has a '\\\\'"),
        ("a/\0", "'a/\\0' cannot be a file here: its name has a '\\u{0}'"),
    ] {
        let memory = Memory::of(&[(key, "x"), ("good/1/model.onnx", "x")]);
        let cache = tempfile::tempdir().unwrap();
        let error = mirror(&memory, cache.path())
            .start(Scope::All)
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error}");
        assert!(!cache.path().join("views").join("etc").exists());
    }
}

/// A store whose digests do not match its bytes.
struct LyingStore(Memory);

impl Store for LyingStore {
    fn list(
        &self,
        within: Option<&str>,
        seen: Option<&str>,
    ) -> Result<Option<model_store::Listing>, StoreError> {
        let mut listing = self.0.list(within, seen)?.unwrap();
        listing.objects = listing
            .objects
            .into_iter()
            .map(|object| object.with_sha256(Some("0".repeat(64))))
            .collect();
        Ok(Some(listing))
    }

    fn open(&self, object: &Object) -> Result<Arc<dyn model_store::OpenObject>, StoreError> {
        self.0.open(object)
    }
}

#[test]
fn bytes_that_are_not_the_promised_ones_are_refused() {
    let memory = Memory::of(&[("a/1/model.onnx", "abc")]);
    let cache = tempfile::tempdir().unwrap();
    let location = Location::parse(URL).unwrap();
    let mirror = Mirror::with_store(
        &location,
        Box::new(LyingStore(memory)),
        MirrorOptions::new(cache.path()),
    )
    .unwrap();
    mirror.start(Scope::All).unwrap();
    let reason = mirror.failure("a").unwrap();
    assert!(
        reason.contains(&"0".repeat(64))
            && reason.ends_with(
                "but its bytes have ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
            ),
        "{reason}"
    );
    assert_no_partial(cache.path());
}

#[test]
fn a_store_of_the_crate_object_store_tells_changes() {
    let memory = Arc::new(InMemory::new());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let put = |key: &str, content: &'static str| {
        runtime.block_on(memory.put(&key.into(), content.into())).unwrap();
    };
    put("p/a/1/model.onnx", "one");
    put("other/a/1/model.onnx", "other");
    let store = CloudStore::new(memory.clone(), "p", "memory://p").unwrap();
    let listing = store.list(None, None).unwrap().unwrap();
    assert_eq!(
        (listing.objects.len(), &listing.objects[0].name),
        (1, &name("a/1/model.onnx"))
    );
    let open = store.open(&listing.objects[0]).unwrap();
    assert_eq!(open.read(0..3).unwrap(), "one");
    put("p/a/1/model.onnx", "two");
    assert!(matches!(open.read(0..3), Err(StoreError::Changed { .. })));
    assert!(store.list(Some("b"), None).unwrap().unwrap().objects.is_empty());

    // The URL of the location may name a single object.
    put("p/x.onnx", "x");
    let store = CloudStore::new(memory.clone(), "p/x.onnx", "memory://p/x.onnx").unwrap();
    let listing = store.list(None, None).unwrap().unwrap();
    assert!(listing.is_file && listing.objects[0].name == name("x.onnx"));
}
