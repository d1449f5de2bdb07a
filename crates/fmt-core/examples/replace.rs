//! Replaces a file atomically: readers see either the old content or the new one, even after a crash.
//!
//! ```sh
//! echo hello | cargo run --package fmt-core --example replace -- greeting.txt
//! ```

use std::{io, path::Path};

use fmt_core::AtomicFile;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    let mut file = AtomicFile::create(Path::new(&path))?;
    io::copy(&mut io::stdin().lock(), &mut file)?;
    // Dropping `file` before this call leaves the old file unchanged.
    file.persist()?;
    Ok(())
}
