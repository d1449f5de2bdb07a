//! The program is killed while it is writing.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    time::{Duration, Instant},
};

use tensor_core::{Shape, Tensor};

use crate::support::{TestDir, vector};

/// Number of kills per format.
const ROUNDS: u32 = 15;

#[test]
fn a_killed_conversion_leaves_the_old_file_or_the_new_one() {
    let dir = TestDir::new();
    let numbers: Vec<u32> = (0..2 << 20).collect();
    let large = Tensor::from_vec(Shape::new(&[2048, 1024]).unwrap(), numbers).unwrap();
    dir.write("a.safetensors", &[], &[("0", &large)]);
    let mut kills = 0;
    for target in ["b.tbuf", "b.btf", "b.zt", "b.npz"] {
        let started = Instant::now();
        dir.good(&["convert", "a.safetensors", target]);
        let duration = started.elapsed();
        let new = fs::read(dir.path(target)).unwrap();
        dir.write(target, &[], &[("0", &vector())]);
        let old = fs::read(dir.path(target)).unwrap();
        assert_ne!(old, new);
        for round in 0..ROUNDS {
            let mut converting = dir.spawn(&["convert", "a.safetensors", target]);
            // The program is killed at times that are spread evenly over its duration and slightly beyond, in
            // shuffled order.
            let part = (round * 7 % ROUNDS) as f64 / f64::from(ROUNDS) * 1.2;
            std::thread::sleep(Duration::from_secs_f64(duration.as_secs_f64() * part));
            converting.kill().unwrap();
            kills += u32::from(converting.wait().unwrap().signal() == Some(9));
            let found = fs::read(dir.path(target)).unwrap();
            assert!(
                found == old || found == new,
                "{target}: neither, after {part} of the time"
            );
            fs::write(dir.path(target), &old).unwrap();
        }
        dir.good(&["convert", "a.safetensors", target]);
        assert_eq!(fs::read(dir.path(target)).unwrap(), new);
        // On systems with unnamed files, a killed process leaves nothing behind, unless it was killed between
        // giving the complete file a random name and renaming it to its final one.
        let entries = fs::read_dir(dir.path(""))
            .unwrap()
            .map(|entry| entry.unwrap().path());
        for left in entries.filter(|path| path.extension().is_some_and(|end| end == "partial")) {
            assert!(
                !cfg!(target_os = "linux") || fs::read(&left).unwrap() == new,
                "{left:?}"
            );
            fs::remove_file(left).unwrap();
        }
    }
    assert!(kills > ROUNDS, "only {kills} were killed before they were done");
}
