//! Tests which models are found in a directory, and the messages about other files.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use model_repository::{Repositories, Repository};

use crate::support::{FoundVersion, backends, found, reason_of, repository};

/// Returns the model versions in the repository at `root`.
fn found_in(root: &Path) -> Vec<FoundVersion> {
    found(&Repository::open(root, &backends(), None).unwrap())
}

fn usable(model: &str, version: Option<&str>, content: &str) -> FoundVersion {
    FoundVersion {
        model: model.to_owned(),
        version: version.map(str::to_owned),
        content: Ok(content.to_owned()),
    }
}

#[test]
fn tritons_layout() {
    let folder = repository(&[
        ("digits/1/model.word", "one"),
        ("digits/10/model.word", "ten"),
        ("digits/9/model.word", "nine"),
        ("digits/config.pbtxt", "version_policy: { all { } }"),
        ("other/v1.5/model.word", "echo"),
        ("latest/2/model.word", "two"),
        ("latest/10/model.word", "ten"),
        (".git/1/model.word", "echo"),
        ("notes.txt", ""),
    ]);
    assert_eq!(
        found_in(folder.path()),
        [
            usable("digits", Some("1"), "one"),
            usable("digits", Some("9"), "nine"),
            usable("digits", Some("10"), "ten"),
            usable("latest", Some("10"), "ten"),
            usable("other", Some("v1.5"), "echo"),
        ]
    );
}

/// File names of a backend are tried in order of precedence. Errors name the file that exists.
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
    let contents = found_in(root).into_iter();
    let contents: Vec<_> = contents
        .filter_map(|found| found.content.ok().map(|content| (found.model, content)))
        .collect();
    let echo = |model: &str| (model.to_owned(), "echo".to_owned());
    assert_eq!(contents, [echo("both"), echo("text")]);
}

#[test]
fn kserves_layout() {
    let folder = repository(&[("model.word", "echo"), ("1/readme.txt", "")]);
    let configured = repository(&[
        ("model.word", "echo"),
        ("config.pbtxt", "name: \"pets\" max_batch_size: 2"),
    ]);
    assert_eq!(found_in(configured.path()), [usable("pets", None, "echo")]);
    let named = Repository::open(folder.path(), &backends(), Some("mine")).unwrap();
    assert_eq!(found(&named), [usable("mine", None, "echo")]);
    let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
    if !name.starts_with('.') {
        assert_eq!(found_in(folder.path()), [usable(&name, None, "echo")]);
    }
}

/// Checks the reported reason for each kind of directory without a usable model file.
#[test]
fn folders_without_a_model_say_why() {
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
        "it has no version directory with model.word or model.text in it (there is 'mine.word', which would \
         be the model as \
         '1/model.word')"
    );
    assert_eq!(
        reason_of(root, "empty"),
        "it has no version directory with model.word or model.text in it"
    );
    assert_eq!(
        reason_of(root, "no_file"),
        "its version '1' has no model.word or model.text"
    );
    assert!(reason_of(root, "flat").ends_with("move it into a version directory such as 1)"));
    assert_eq!(
        reason_of(root, "file_for_folder"),
        "it has no version directory with model.word or model.text in it"
    );
    assert_eq!(
        reason_of(root, "spaces"),
        "it has no version directory with model.word or model.text in it"
    );
    let good = found_in(root).into_iter().filter(|found| found.model == "good");
    assert_eq!(good.count(), 1);
}

/// The user may pass the directory of a single model as the repository.
#[test]
fn a_folder_of_versions_is_one_model() {
    let versions = [
        ("1/model.word", "one"),
        ("2/model.word", "two"),
        ("config.pbtxt", "name: \"pets\" version_policy { all { } }"),
    ];
    let folder = repository(&versions);
    let of = |name: &str| [usable(name, Some("1"), "one"), usable(name, Some("2"), "two")];
    assert_eq!(found_in(folder.path()), of("pets"));
    let named = Repository::open(folder.path(), &backends(), Some("mine")).unwrap();
    assert_eq!(found(&named), of("mine"));

    // A directory that has other possible models, or no numbered version, is a repository.
    for other in [("good/1/model.word", "echo"), ("empty/readme.txt", "")] {
        let folder = repository(&[("1/model.word", "echo"), other]);
        let opened = Repository::open(folder.path(), &backends(), None).unwrap();
        assert_eq!(opened.model_names().unwrap().len(), 2);
    }
    let folder = repository(&[("flat/model.word", "echo")]);
    assert!(reason_of(folder.path(), "flat").ends_with("move it into a version directory such as 1)"));
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

/// Symbolic links out of the repository are not followed; links within it are.
#[cfg(unix)]
#[test]
fn links_out_are_refused() {
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
        "its directory is a link that leads out of the repository (--repository-also allows directories \
         that links may lead to)"
    );
    for name in ["version_link", "file_link"] {
        assert_eq!(
            reason_of(root, name),
            "model.word is a link that leads out of the repository (--repository-also allows directories \
             that links may lead to)"
        );
    }
    assert!(reason_of(root, "dangling").starts_with("model.word cannot be opened"));
    let usable = found_in(root).into_iter().filter(|found| found.content.is_ok());
    assert_eq!(usable.count(), 2);
}

/// Only regular files are opened.
#[cfg(unix)]
#[test]
fn folders_and_pipes_are_no_models() {
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
            " is neither a directory nor, by its extension, a model's file: expected one of .text, .word",
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
        "it is a directory of models, such as 'm', and not a model: serve this directory itself"
    );
}

/// KServe's modelcars: the repository is a link into the file system of another container, whose target path
/// does not resolve in this container. For systems without namespaces, `src/root.rs` has a test with a
/// substitute.
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
        let contents = found_in(&link)
            .into_iter()
            .map(|found| (found.model, found.content));
        let adds = |model: &str| (model.to_owned(), Ok("adds 1".to_owned()));
        assert_eq!(contents.collect::<Vec<_>>(), [adds("m"), adds("n")]);
    }
    // The container ends when its standard input is closed.
    drop(container.stdin.take());
    container.wait().unwrap();
}

#[test]
fn a_file_is_a_repository_of_one_model() {
    let folder = repository(&[
        ("ten.word", "adds 10"),
        ("model.word", "adds 1"),
        ("config.pbtxt", "max_batch_size: nonsense"),
        ("elsewhere/readme", ""),
        ("notes.txt", "to do"),
    ]);
    let open = |name: &str, model: Option<&str>| {
        let repository = Repository::open(&folder.path().join(name), &backends(), model).unwrap();
        assert!(repository.misplaced_files().is_empty());
        repository
    };
    assert_eq!(found(&open("ten.word", None)), [usable("ten", None, "adds 10")]);
    assert_eq!(
        found(&open("ten.word", Some("x"))),
        [usable("x", None, "adds 10")]
    );
    symlink(
        folder.path().join("ten.word"),
        folder.path().join("elsewhere/linked.word"),
    )
    .unwrap();
    let linked = open("elsewhere/linked.word", None);
    assert_eq!(
        found(&linked),
        [usable("ten", None, "adds 10")],
        "the file has the name"
    );
    let error = Repository::open(&folder.path().join("notes.txt"), &backends(), None);
    assert!(error.err().unwrap().to_string().ends_with(
        "is neither a directory nor, by its extension, a model's file: expected one of .text, .word"
    ));
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

#[test]
fn a_model_in_two_repositories_is_in_neither() {
    let ours = repository(&[("a/1/model.word", "echo"), ("both/1/model.word", "echo")]);
    let theirs = repository(&[("b/1/model.word", "echo"), ("both/2/model.word", "echo")]);
    let open = |path: &Path| Repository::open(path, &backends(), None).unwrap();
    let repositories = Repositories::from(vec![
        open(ours.path()),
        open(theirs.path()).with_label("s3://theirs"),
    ]);
    assert_eq!(repositories.names().names, ["a", "b", "both"]);
    assert_eq!(repositories.only_model(), None);
    for name in ["a", "b"] {
        assert_eq!(repositories.model(name).unwrap().unwrap().name(), name);
    }
    assert!(repositories.model("c").unwrap().is_none());
    let reason = repositories.model("both").err().unwrap().to_string();
    let path = ours.path().display();
    assert_eq!(
        reason,
        format!("it is in two repositories, {path} and s3://theirs; rename or remove one of them")
    );

    // An unreadable repository may contain any model.
    fs::rename(theirs.path(), theirs.path().with_extension("moved")).unwrap();
    let unread = repositories.names().unread;
    assert_eq!((unread.len(), &*unread[0].0), (1, "s3://theirs"));
    assert!(repositories.model("a").unwrap().is_some());
    let reason = repositories.model("b").err().unwrap().to_string();
    assert!(
        reason.starts_with("the repository's directory cannot be opened"),
        "{reason}"
    );
    fs::rename(theirs.path().with_extension("moved"), theirs.path()).unwrap();
}

/// The files of a Hugging Face cache are links to blobs in a sibling directory.
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
    let reason = found(&refused).remove(0).content.unwrap_err();
    assert!(
        reason.contains("--repository-also allows directories"),
        "{reason}"
    );

    let repository = Repository::open_with_links(&snapshot, &backends(), None, &[at("blobs")]).unwrap();
    assert_eq!(repository.model_names().unwrap(), ["pets"]);
    let expected = usable("pets", None, "echo");
    assert_eq!(found(&repository), [expected]);

    let error = Repository::open_with_links(&snapshot, &backends(), None, &[at("none")]);
    let message = error.err().unwrap().to_string();
    assert_eq!(
        message,
        format!("the directory {} does not exist", at("none").display())
    );
    let error = Repository::open_with_links(&snapshot, &backends(), None, &[at("blobs/abc")]);
    let message = error.err().unwrap().to_string();
    assert_eq!(
        message,
        format!("{} is not a directory", at("blobs/abc").display())
    );
}
