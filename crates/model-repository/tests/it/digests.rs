//! Tests a repository with a list of trusted files.

use std::path::Path;

use model_repository::{Repository, RequiredDigests};

use crate::support::{backends, found, repository, write};

fn sha256(content: &str) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns the reason why the only model of a repository with a digest list cannot be used; empty if it can.
fn reason(root: &Path, list: &str) -> String {
    let digests = RequiredDigests::parse("list", list).unwrap();
    let repository = Repository::open(root, &backends(), None).unwrap();
    let found = found(&repository.with_required_digests(digests)).remove(0);
    found.content.err().unwrap_or_default()
}

#[test]
fn listed_files_are_loaded_by_their_names_in_the_repository() {
    let (echo, config) = ("echo", "instance_group { count: 1 }");
    let folder = repository(&[("m/1/model.word", echo), ("m/config.pbtxt", config)]);
    let listed = |path: &str, content: &str| format!("{}  {path}\n", sha256(content));
    let both = listed("m/1/model.word", echo) + &listed("./m/config.pbtxt", config);
    assert_eq!(reason(folder.path(), &both), "");
    assert_eq!(
        reason(folder.path(), &listed("m/1/model.word", echo)),
        format!(
            "config.pbtxt has the SHA-256 {}, but list does not list m/config.pbtxt, so it is not used",
            sha256(config)
        )
    );
    write(folder.path(), "m/1/model.word", "echo ");
    assert_eq!(
        reason(folder.path(), &both),
        format!(
            "model.word has the SHA-256 {}, but list demands {} for m/1/model.word",
            sha256("echo "),
            sha256(echo)
        )
    );
}

/// A symbolic link is listed by its own name, as `sha256sum` prints it, regardless of its target.
#[test]
fn links_and_single_models_are_listed_as_they_are_named() {
    let folder = repository(&[("blobs/abc", "echo")]);
    let root = folder.path().join("models");
    std::fs::create_dir_all(&root).unwrap();
    std::fs::rename(folder.path().join("blobs"), root.join(".blobs")).unwrap();
    std::fs::create_dir_all(root.join("m/1")).unwrap();
    std::os::unix::fs::symlink("../../.blobs/abc", root.join("m/1/model.word")).unwrap();
    let line = |path: &str| format!("{}  {path}\n", sha256("echo"));
    assert_eq!(reason(&root, &line("m/1/model.word")), "");

    let folder = repository(&[("one/model.word", "echo")]);
    let single = folder.path().join("one");
    assert_eq!(reason(&single, &line("model.word")), "");
    assert_eq!(reason(&single.join("model.word"), &line("model.word")), "");
    assert!(reason(&single, &line("other")).contains("does not list model.word"));
}
