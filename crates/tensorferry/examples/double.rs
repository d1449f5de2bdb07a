//! A complete server for a model in Rust: HTTP and gRPC, batches, metadata, errors, and a drain on Ctrl-C.
//!
//! ```sh
//! cargo run --package tensorferry --example double
//! curl http://127.0.0.1:8080/v2/models/double/infer \
//!     -d '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 3.5]}]}'
//! ```
use tensorferry::{
    Call, Capabilities, DataType, Engine, IndependentRows, Model, ModelMetadata, Outcome, RowIndependence,
    ServiceError, TensorMetadata, serve,
};

struct Double(ModelMetadata);

impl Model for Double {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
        let x = call.request.take::<f32>("x")?;
        Ok(Outcome::output("y", x.map(|x| 2.0 * x)))
    }

    /// Requests of different clients may be batched into one run.
    fn capabilities(&self) -> Capabilities {
        let rows = RowIndependence::Proven(IndependentRows::default());
        Capabilities::default().with(|capabilities| capabilities.row_independence = rows)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
    let metadata = ModelMetadata::new("double", "example", tensor("x"), tensor("y"));
    let engine = Engine::builder().model(Double(metadata)).build()?;
    let server = serve(engine)
        .http("127.0.0.1:8080".parse()?)
        .grpc("127.0.0.1:9000".parse()?);
    server.until(tokio::signal::ctrl_c()).await?;
    Ok(())
}
