//! Lists a server's models and the inputs of each.
//!
//! ```sh
//! cargo run --package oip-client --example ask -- http://127.0.0.1:8080     # or grpc://127.0.0.1:9000
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use oip_client::ModelRef;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("which server?")?;
    let client = oip_client::builder(url).build()?;
    for model in client.repository_index(true).await? {
        let metadata = client.model_metadata(ModelRef::new(&model.name, None)?).await?;
        let inputs: Vec<String> = metadata.inputs.iter().map(ToString::to_string).collect();
        println!("{} takes {}", model.name, inputs.join(", "));
    }
    Ok(())
}
