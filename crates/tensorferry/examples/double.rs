//! A complete server for a model in Rust: HTTP and gRPC, batches, metadata, errors, and a drain at Ctrl-C.
//!
//! ```sh
//! cargo run --package tensorferry --example double
//! curl http://127.0.0.1:8080/v2/models/double/infer \
//!     -d '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 3.5]}]}'
//! ```
use tensorferry::{
    CancelToken, DataType, Engine, IndependentRows, InferOutput, InferRequest, Model, ModelMetadata,
    RowIndependence, ServiceError, Tensor, TensorMetadata, serve,
};

struct Double(ModelMetadata);

impl Model for Double {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, mut request: InferRequest, _: &CancelToken) -> Result<Vec<InferOutput>, ServiceError> {
        let broken = |error: &dyn std::fmt::Display| ServiceError::internal(error.to_string());
        let x = request.take_input("x")?;
        let x = x.as_fixed().ok_or_else(|| broken(&"x has no fixed width"))?;
        let doubled = x.to_vec::<f32>().map_err(|error| broken(&error))?;
        let y = Tensor::from_vec(x.shape().clone(), doubled.iter().map(|x| 2.0 * x).collect());
        Ok(vec![InferOutput::new("y", y.map_err(|error| broken(&error))?)])
    }

    /// Requests of different clients may be one run.
    fn row_independence(&self) -> RowIndependence {
        RowIndependence::Proven(IndependentRows::default())
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
    server
        .until(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    Ok(())
}
