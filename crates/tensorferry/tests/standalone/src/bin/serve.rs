//! Serves the model `double` over HTTP and gRPC on free ports until Ctrl-C, and prints the URLs.

use tensorferry::{
    Call, DataType, Engine, Model, ModelMetadata, Outcome, ServiceError, TensorMetadata, serve,
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
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
    let metadata = ModelMetadata::new("double", "example", tensor("x"), tensor("y"));
    let engine = Engine::builder().model(Double(metadata)).build()?;
    let free = "127.0.0.1:0".parse()?;
    let server = serve(engine).http(free).grpc(free).start().await?;
    println!("{server}");
    tokio::signal::ctrl_c().await?;
    server.drain().await;
    Ok(())
}
