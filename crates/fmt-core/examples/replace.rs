//! Replaces a file as a whole: readers see the old content or the new one, never a part, whatever happens in between.
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
    // Dropped before this, it leaves the old file as it was.
    file.persist()?;
    Ok(())
}
