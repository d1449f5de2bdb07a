//! Prints the token ids of texts. Each input line is JSON, a string or a pair of strings; each output line
//! has its ids.
//!
//! ```text
//! echo '"hello world"' | cargo run --example tokens -- tokenizer.json 512
//! ```

use std::{
    env, fs,
    io::{self, BufRead, Write},
};

use oip_text::{TextTokenizer, TokenizerLimits};

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Line {
    Text(String),
    Pair(String, String),
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args().skip(1);
    let path = arguments.next().ok_or("expected the path of a tokenizer.json")?;
    let max_length = arguments.next().map_or(Ok(512), |length| length.parse())?;
    let tokenizer = TextTokenizer::read(&fs::read(path)?, max_length, &TokenizerLimits::default())?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (index, line) in io::stdin().lock().lines().enumerate() {
        let tokens = match serde_json::from_str(&line?)? {
            Line::Text(text) => tokenizer.encode(index, text.as_bytes(), None)?,
            Line::Pair(text, pair) => tokenizer.encode(index, text.as_bytes(), Some(pair.as_bytes()))?,
        };
        writeln!(out, "{:?}", tokens.ids)?;
    }
    Ok(())
}
