//! `tensor infer`: one request, from files and into files.

use std::io::Write;

use crate::{
    client::{check_outputs, inputs, options::Infer, outputs, unless_interrupted},
    failure::Outcome,
};

pub(crate) fn run(options: &Infer, out: &mut impl Write) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(unless_interrupted(infer(options, out)))?
}

async fn infer(options: &Infer, out: &mut impl Write) -> Outcome {
    let (server, targets) = (&options.server, &options.targets);
    let model = server.model()?;
    let client = server.client().build()?;
    let metadata = client.model_metadata(model).await?;
    let wanted = match server.outputs.is_empty() {
        true => outputs::named(targets),
        false => server.outputs.clone(),
    };
    check_outputs(&metadata, &wanted)?;
    outputs::check(targets, &metadata, &wanted)?;
    let request = server.request(inputs::read(server, &metadata)?, &wanted)?;
    let response = client.infer(&request).await?;
    match targets.is_empty() {
        true => outputs::print(&response, out),
        false => outputs::write(targets, &response),
    }
}
