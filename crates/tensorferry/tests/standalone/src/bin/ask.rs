//! Asks servers for the double of three numbers: `ask http://127.0.0.1:8080 grpc://127.0.0.1:9000`.

use oip_client::{InferRequest, ModelRef, Tensor, builder};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let x = Tensor::from_slice([3], &[1.0f32, -2.0, 3.5])?;
    let request = InferRequest::new(ModelRef::new("double", None)?).with_input("x", x);
    for url in std::env::args().skip(1) {
        let response = builder(url).build()?.infer(&request).await?;
        println!("{:?}", response.get::<f32>("y")?.into_vec());
    }
    Ok(())
}
