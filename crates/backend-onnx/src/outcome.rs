//! What the errors of operators are to those who load a model or send a request.

use oip_service::CancelToken;
use oip_types::{ErrorCode, ServiceError};
use onnx_graph::Signature;
use onnx_kernels::prelude::*;
use tensor_core::Quoted;

use crate::{
    dtype,
    faults::{BadInput, Limit, Misfit, NoRoom, OutOfTime, Refusal, Unsupported},
    lower,
    runtime_limit::RuntimeLimit,
};

/// Why a run ended early.
pub(crate) fn ended(cancel: &CancelToken) -> ServiceError {
    match cancel.is_expired() {
        true => ServiceError::new(
            ErrorCode::DeadlineExceeded,
            "the deadline passed while the model ran",
        ),
        false => ServiceError::new(
            ErrorCode::Cancelled,
            "the request was cancelled while the model ran",
        ),
    }
}

/// A run's error, as the client's fault where it is.
pub(crate) fn failed(error: Error) -> ServiceError {
    let reason = error.chain().find_map(|cause| cause.downcast_ref::<BadInput>());
    if let Some(&misfit) = error.chain().find_map(|cause| cause.downcast_ref::<Misfit>()) {
        return ServiceError::invalid(misfit.to_string()).caused_by(misfit);
    }
    let room = error.chain().find_map(|cause| cause.downcast_ref::<NoRoom>());
    let answer = match (reason, room) {
        (Some(BadInput(reason)), _) => {
            ServiceError::invalid(format!("the model cannot take these values: {reason}"))
        }
        (None, Some(NoRoom(reason))) => ServiceError::new(ErrorCode::Overloaded, reason),
        (None, None) => ServiceError::internal("the model failed"),
    };
    answer.caused_by(into_cause(error))
}

/// Why something is not computed, if the model or this runtime is to blame.
pub(crate) fn refusal(error: &Error) -> Option<String> {
    error.chain().find_map(|cause| {
        let refusal = cause.downcast_ref::<Refusal>().map(ToString::to_string);
        let limit = || cause.downcast_ref::<Limit>().map(ToString::to_string);
        let unsupported = || cause.downcast_ref::<Unsupported>().map(ToString::to_string);
        refusal.or_else(limit).or_else(unsupported)
    })
}

/// Says which node cannot be computed, and whether another runtime may be able to.
pub(crate) fn unprepared(error: Error, labels: &[String]) -> ServiceError {
    let chain = format!("{error:#}");
    let label = label(&chain, labels).unwrap_or("an operator");
    if let Some(&misfit) = error.chain().find_map(|cause| cause.downcast_ref::<Misfit>()) {
        return ServiceError::invalid(format!("{label}: {misfit}")).caused_by(misfit);
    }
    if let Some(BadInput(reason)) = error.chain().find_map(|cause| cause.downcast_ref::<BadInput>()) {
        return ServiceError::invalid(format!("{label}: {reason}"));
    }
    let refusal = error.chain().find_map(|cause| cause.downcast_ref::<Refusal>());
    let unsupported = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Unsupported>());
    if let (None, Some(reason)) = (refusal, unsupported) {
        let limit = match reason {
            Unsupported::Here(_) => RuntimeLimit::Unsupported,
            Unsupported::Anywhere(_) => RuntimeLimit::Everybodys,
        };
        return ServiceError::invalid(format!("{label}: {reason}")).caused_by(limit);
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
    let answer = ServiceError::invalid(format!("{label}: {reason}"));
    match refusal.is_some() {
        true => answer.caused_by(into_cause(error)),
        false => answer.caused_by(RuntimeLimit::Unexplained(into_cause(error))),
    }
}

/// The innermost cause in a few words.
pub(crate) fn root(error: &(dyn std::error::Error + 'static)) -> String {
    const LONGEST: usize = 160;
    let causes = std::iter::successors(Some(error), |error| error.source());
    // That it is a limit of the runtime says nothing about what it is.
    let causes = causes.filter(|cause| !cause.is::<RuntimeLimit>());
    let mut text = causes.last().map_or_else(String::new, ToString::to_string);
    let line = text.find('\n').unwrap_or(text.len());
    let end = text.floor_char_boundary(line.min(LONGEST));
    if end < text.len() {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Refuses inputs and outputs of types that nothing computes, such as BF16.
pub(crate) fn refuse_bf16(signature: &Signature) -> Result<(), ServiceError> {
    let mut ports = signature.inputs.iter().chain(&signature.outputs);
    match ports.find(|port| dtype::computed(dtype::of(port.element_type)).is_none()) {
        None => Ok(()),
        Some(port) => Err(ServiceError::invalid(format!(
            "{} is {}, which the built-in runtime does not compute",
            Quoted(&port.name),
            dtype::of(port.element_type)
        ))
        .caused_by(RuntimeLimit::Unsupported)),
    }
}

/// How to call the node that is named in a text; the innermost is named last.
pub(crate) fn label<'l>(text: &str, labels: &'l [String]) -> Option<&'l str> {
    let (_, number) = text.rsplit_once(lower::NODE)?;
    let number: usize = number.split('~').next()?.parse().ok()?;
    labels.get(number).map(String::as_str)
}

fn into_cause(error: Error) -> Box<dyn std::error::Error + Send + Sync> {
    error.into()
}
