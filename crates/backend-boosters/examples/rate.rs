//! Measures rows per second of a model file, for requests of 1 and 1,000 rows: `cargo run --release -p
//! backend-boosters --example rate -- FILE...`

#![allow(clippy::print_stdout, reason = "a program")]

use std::{
    error::Error,
    path::PathBuf,
    time::{Duration, Instant},
};

use backend_boosters::BoostersBackend;
use oip_model::{Backend, CancelToken, LoadContext, ModelSource};
use oip_types::{InferRequest, ModelRef};
use tensor_core::{Shape, Tensor};

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let source = ModelSource::new("model", "1", path.clone(), std::fs::read(&path)?.into());
        let start = Instant::now();
        let model = BoostersBackend::new().load(&source, &LoadContext::default())?;
        println!("{}: loaded in {:.1?}", path.display(), start.elapsed());
        let width = model.metadata().inputs[0].shape.dims()[1].unwrap_or(1);
        for count in [1u64, 1000] {
            // Deterministic numbers from -2 to 2.
            let values = (0..count * width)
                .map(|index| (index.wrapping_mul(2_654_435_761) % 4001) as f32 / 1000.0 - 2.0);
            let rows = Tensor::from_vec(Shape::new(&[count, width])?, values.collect())?;
            let request = InferRequest::new(ModelRef::new("model", None)?).with_input("input-0", rows);
            let mut best = Duration::MAX;
            for _ in 0..2000 / count.min(100) {
                let request = request.clone();
                let start = Instant::now();
                model.infer(request, &CancelToken::new(None))?;
                best = best.min(start.elapsed());
            }
            println!(
                "  {count} rows: {best:.2?}, {:.0} rows/s",
                count as f64 / best.as_secs_f64()
            );
        }
    }
    Ok(())
}
