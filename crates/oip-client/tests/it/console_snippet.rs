//! The Rust request that the console shows next to its form (`oip-console/page/snippets.js`), with a tensor
//! of each kind. It compiles here; `cargo xtask browser` checks that the page generates exactly these lines.

#[allow(clippy::useless_vec, reason = "the lines stand as the page writes them")]
#[rustfmt::skip]
async fn call(token: &str) -> Result<oip_types::InferResponse, Box<dyn std::error::Error>> {
    // Begin of the code from the console.
    // oip-client, oip-types, tensor-core, tokio
    let client = oip_client::builder("http://127.0.0.1:8080").header("authorization", format!("Bearer {token}")).build()?;
    let model = oip_types::ModelRef::new("any", Some("1"))?;
    let request = oip_types::InferRequest::new(model)
        .with_input("bool", tensor_core::Tensor::from_vec::<bool>(tensor_core::Shape::new(&[2])?, vec![true, false])?)
        .with_input("uint8", tensor_core::Tensor::from_vec::<u8>(tensor_core::Shape::new(&[1,2])?, vec![0, 255])?)
        .with_input("uint64", tensor_core::Tensor::from_vec::<u64>(tensor_core::Shape::new(&[1])?, vec![18446744073709551615])?)
        .with_input("int8", tensor_core::Tensor::from_vec::<i8>(tensor_core::Shape::new(&[1])?, vec![-128])?)
        .with_input("int64", tensor_core::Tensor::from_vec::<i64>(tensor_core::Shape::new(&[1])?, vec![-9007199254740991])?)
        .with_input("fp16", tensor_core::Tensor::from_vec::<tensor_core::f16>(tensor_core::Shape::new(&[2])?, vec![1.0, 0.5].into_iter().map(tensor_core::f16::from_f32).collect())?)
        .with_input("bf16", tensor_core::Tensor::from_vec::<tensor_core::bf16>(tensor_core::Shape::new(&[1])?, vec![-2.0].into_iter().map(tensor_core::bf16::from_f32).collect())?)
        .with_input("fp32", tensor_core::Tensor::from_vec::<f32>(tensor_core::Shape::new(&[2,2])?, vec![0.0, 0.1, f32::NAN, f32::NEG_INFINITY])?)
        .with_input("fp64", tensor_core::Tensor::from_vec::<f64>(tensor_core::Shape::new(&[2])?, vec![1e-300, 1e+21])?)
        .with_input("scalar", tensor_core::Tensor::from_vec::<i32>(tensor_core::Shape::new(&[])?, vec![7])?)
        .with_input("text \"x\"", oip_types::BytesTensor::from_elements(tensor_core::Shape::new(&[3])?, vec!["true", "it's", "\u{c}\u{0001}\n\"\\ü"])?);
    let response = client.infer(&request).await?;
    // End of the code from the console.
    Ok(response)
}

#[test]
fn what_the_console_shows_compiles() {
    drop(call("token"));
}
