//! Maps errors of operators to errors of loading and running.

use onnx_graph::{Error as FileError, ErrorKind, Signature};
use onnx_tensor::prelude::*;
use tensor_core::QuotedName;

use crate::{RunError, RunErrorKind, computed, invalid_node::invalid, lower};
use onnx_tensor::faults::{BadInput, Limit, Misfit, NoRoom, OutOfTime, Refusal, Unsupported};

/// Converts the error of a run. Its kind is `InvalidInput` if the values or sizes of an input caused it.
pub(crate) fn failed(error: Error) -> RunError {
    let reason = error.chain().find_map(|cause| cause.downcast_ref::<BadInput>());
    if let Some(&misfit) = error.chain().find_map(|cause| cause.downcast_ref::<Misfit>()) {
        return RunError::new(RunErrorKind::InvalidInput, misfit.to_string()).caused_by(misfit);
    }
    let room = error.chain().find_map(|cause| cause.downcast_ref::<NoRoom>());
    let failed = match (reason, room) {
        (Some(BadInput(reason)), _) => RunError::values(reason),
        (None, Some(NoRoom(reason))) => RunError::new(RunErrorKind::NoMemory, reason.as_str()),
        (None, None) => RunError::new(RunErrorKind::Failed, "the model failed"),
    };
    failed.caused_by(error)
}

/// Returns the reason if the error comes from the model or from a limit of this runtime.
pub(crate) fn refusal(error: &Error) -> Option<String> {
    error.chain().find_map(|cause| {
        let refusal = cause.downcast_ref::<Refusal>().map(ToString::to_string);
        let limit = || cause.downcast_ref::<Limit>().map(ToString::to_string);
        let unsupported = || cause.downcast_ref::<Unsupported>().map(ToString::to_string);
        refusal.or_else(limit).or_else(unsupported)
    })
}

/// Creates the error for a model that cannot be prepared. It names the node, and its kind indicates whether
/// another runtime may support the model.
pub(crate) fn unprepared(error: Error, labels: &[String]) -> FileError {
    let mut causes = error.chain();
    let is_invalid = causes.any(<dyn std::error::Error + 'static>::is::<Refusal>);
    let refused = refused(error, labels);
    if !is_invalid {
        return refused;
    }
    let error = invalid(&refused);
    match refused.into_source() {
        Some(source) => error.caused_by(source),
        None => error,
    }
}

/// Creates the error for a node that does not accept its inputs, before or during a run.
pub(crate) fn refused(error: Error, labels: &[String]) -> FileError {
    let chain = format!("{error:#}");
    let label = label(&chain, labels).unwrap_or("an operator");
    if let Some(&misfit) = error.chain().find_map(|cause| cause.downcast_ref::<Misfit>()) {
        return FileError::invalid(format!("{label}: {misfit}")).caused_by(misfit);
    }
    if let Some(BadInput(reason)) = error.chain().find_map(|cause| cause.downcast_ref::<BadInput>()) {
        return FileError::invalid(format!("{label}: {reason}"));
    }
    let refusal = error.chain().find_map(|cause| cause.downcast_ref::<Refusal>());
    let unsupported = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Unsupported>());
    if let (None, Some(reason)) = (refusal, unsupported) {
        let kind = match reason {
            Unsupported::Here(_) => ErrorKind::Unsupported,
            Unsupported::Anywhere(_) => ErrorKind::UnsupportedAnywhere,
        };
        return FileError::new(kind, format!("{label}: {reason}"));
    }
    let limit = error.chain().find_map(|cause| cause.downcast_ref::<Limit>());
    let out_of_time = error.chain().find_map(|cause| cause.downcast_ref::<OutOfTime>());
    let room = error.chain().find_map(|cause| cause.downcast_ref::<NoRoom>());
    let reason = match (refusal, limit) {
        (Some(Refusal(reason)), _) | (None, Some(Limit(reason))) => reason.clone(),
        (None, None) => match (out_of_time, room) {
            (Some(out_of_time), _) => out_of_time.to_string(),
            (None, Some(room)) => room.to_string(),
            (None, None) => format!("is used in a way that is not supported: {}", root(&*error)),
        },
    };
    let kind = match refusal {
        Some(_) => ErrorKind::Invalid,
        None => ErrorKind::Unsupported,
    };
    FileError::new(kind, format!("{label}: {reason}")).caused_by(error)
}

/// Returns the first line of the innermost cause, truncated.
fn root(error: &(dyn std::error::Error + 'static)) -> String {
    const LONGEST: usize = 160;
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut text = causes.last().map_or_else(String::new, ToString::to_string);
    let line = text.find('\n').unwrap_or(text.len());
    let end = text.floor_char_boundary(line.min(LONGEST));
    if end < text.len() {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Refuses inputs and outputs of unsupported types, such as BF16.
pub(crate) fn refuse_types(signature: &Signature) -> Result<(), FileError> {
    let inputs = signature.inputs.iter().map(|port| ("input", port));
    let outputs = signature.outputs.iter().map(|port| ("output", port));
    let mut ports = inputs.chain(outputs);
    match ports.find(|(_, port)| computed(port.element_type).is_none()) {
        None => Ok(()),
        Some((role, port)) => Err(FileError::new(
            ErrorKind::Unsupported,
            format!(
                "the {role} {} is {}, which the built-in runtime does not support",
                QuotedName(&port.name),
                port.element_type
            ),
        )),
    }
}

/// Returns the label of the innermost node that is named in `text`.
pub(crate) fn label<'l>(text: &str, labels: &'l [String]) -> Option<&'l str> {
    let (_, number) = text.rsplit_once(lower::NODE)?;
    let number: usize = number.split('~').next()?.parse().ok()?;
    labels.get(number).map(String::as_str)
}
