//! Runs one session from four threads at once. The arguments are ONNX Runtime's library, and a model with one
//! input of 64 numbers:
//!
//! ```sh
//! cargo run --package onnx-session --example threads -- libonnxruntime.so crates/oip-server/examples/models/digits/1/model.onnx
//! ```

use std::{error::Error, thread};

use onnx_session::SharedSession;
use ort::{
    session::{RunOptions, builder::SessionBuilder},
    value::Tensor,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(library), Some(model)) = (arguments.next(), arguments.next()) else {
        return Err("usage: threads LIBRARY MODEL".into());
    };
    let environment = ort::init_from(library)?.build()?;
    let session = SessionBuilder::new(&environment)?.commit_from_file(model)?;
    let session = SharedSession::new(session)?;
    let run = |brightness: u8| -> ort::Result<(Vec<i64>, Vec<i64>)> {
        let input = Tensor::from_array(([1, 64], vec![f32::from(brightness); 64]))?;
        let outputs = session.run(&[(&input).into()], &RunOptions::new()?)?;
        let (shape, labels) = outputs[0].try_extract_tensor::<i64>()?;
        Ok((shape.to_vec(), labels.to_vec()))
    };
    let answers: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|index| scope.spawn(move || run(index * 4))).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    for (index, answer) in answers.into_iter().enumerate() {
        let (shape, labels) = answer.map_err(|_| "a thread panicked")??;
        println!("thread {index}: {labels:?} of shape {shape:?}");
    }
    Ok(())
}
