//! Converts a tensor file, and prints the tensors of the new file: `convert model.safetensors model.zt`.

use std::path::PathBuf;

use tensor_files::{ConvertOptions, convert, format_of_path, open};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let (from, to) = paths.next().zip(paths.next()).ok_or("usage: convert FROM TO")?;
    let reader = open(&from, &Default::default())?;
    let format = format_of_path(&to).ok_or("no format has this extension")?;
    convert(&*reader, format, &to, &ConvertOptions::default())?;

    let copy = open(&to, &Default::default())?;
    for entry in copy.entries() {
        println!("{} {} {}", copy.format(), entry.name, copy.get(&entry.name)?);
    }
    Ok(())
}
