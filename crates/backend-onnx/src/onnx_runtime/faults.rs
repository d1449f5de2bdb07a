//! Classifies errors of ONNX Runtime's runs as errors of the client or of the server, and shortens their
//! messages.

use oip_model::CancelToken;
use oip_types::{ByteSize, ErrorCode, ServiceError};
use onnx_tensor::size::{MAX_BYTES, gib};

use super::{library, providers::is_out_of_memory, traps::Guards};
use crate::cancelled_runs::ended;

/// Converts the error of a run. The result is a client error if the library's message says that shapes or
/// values are wrong. `gpu` is the GPU that the model runs on.
pub(super) fn failed(
    error: ort::Error,
    guards: &Guards,
    cancel: &CancelToken,
    gpu: Option<u32>,
) -> ServiceError {
    if cancel.is_cancelled() {
        return ended(cancel);
    }
    let full = gpu.and_then(|gpu| full_gpu(error.message(), gpu));
    full.unwrap_or_else(|| answer(error.code(), error.message(), guards))
        .caused_by(error)
}

/// Returns the error for a run that ran out of GPU memory. The request may succeed later, when other programs
/// use less of that memory.
fn full_gpu(message: &str, gpu: u32) -> Option<ServiceError> {
    let text = match unallocated(message) {
        Some(bytes) => format!("GPU {gpu} has not enough free memory for a value of {bytes} bytes"),
        None if is_out_of_memory(message) => format!("GPU {gpu} has not enough free memory for this request"),
        None => return None,
    };
    Some(ServiceError::new(ErrorCode::Overloaded, text))
}

fn answer(code: ort::ErrorCode, message: &str, guards: &Guards) -> ServiceError {
    if let Some(reason) = guards.reason(message) {
        return ServiceError::invalid(format!("{CANNOT_TAKE}: {reason}"));
    }
    let limit = match library::memory() {
        0 => MAX_BYTES,
        memory => memory.min(MAX_BYTES),
    };
    match unallocated(message) {
        Some(bytes) if bytes > limit => {
            return ServiceError::invalid(format!(
                "{CANNOT_TAKE}: with these shapes a value between two operators takes {}, which is beyond the limit of {:#}",
                gib(bytes),
                ByteSize(limit >> 20 << 20)
            ));
        }
        Some(bytes) => {
            return ServiceError::new(
                ErrorCode::Overloaded,
                format!("not enough memory for a value of {bytes} bytes"),
            );
        }
        None if message.contains("bad_alloc") => {
            return ServiceError::new(ErrorCode::Overloaded, "not enough memory for a value");
        }
        None => {}
    }
    // The message contains the operator's name in the rewritten graph, so only the reason after that name is
    // kept.
    let reason = message
        .rsplit_once("Status Message: ")
        .map_or(message, |(_, reason)| reason);
    let words = words(reason);
    if code == ort::ErrorCode::InvalidArgument || blames_values(&words) {
        return ServiceError::invalid(format!("{CANNOT_TAKE}: {words}"));
    }
    ServiceError::internal(match words.is_empty() {
        true => "the model failed".to_owned(),
        false => format!("the model failed: {words}"),
    })
}

const CANNOT_TAKE: &str = "the model cannot take these values";

/// Returns the size of the failed allocation, if the message reports one.
fn unallocated(message: &str) -> Option<u64> {
    let phrases = [
        "Failed to allocate memory for requested buffer of size ",
        // The message when the memory limit of all sessions is reached.
        " is smaller than requested bytes of ",
    ];
    let (_, size) = phrases.iter().find_map(|phrase| message.split_once(phrase))?;
    let digits = size.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Returns whether the library's message says that shapes or values are wrong. Internal errors of the library
/// have the same error code, so the function searches for phrases that its kernels use in such messages;
/// `cargo xtask zoo --extremes` collects them.
fn blames_values(words: &str) -> bool {
    const PHRASES: &[&str] = &[
        " by zero",
        " is zero",
        "is not a number",
        "broadcast",
        "cannot ",
        "computation range",
        "different from",
        "does not match",
        "exceed",
        "fewer than",
        "greater than",
        "inconsistent",
        "invalid",
        "is nan",
        "larger than",
        "less than",
        "mismatch",
        "must ",
        "not divisible",
        "not equal",
        "not match",
        "not positive",
        "not supported between",
        "only supports",
        "out of bound",
        "out of data bounds",
        "out of range",
        "overflow",
        "shall be",
        "should ",
        "smaller than",
        "too many",
        "unable to infer",
        "unexpected mode",
        "unexpected shape",
        "valid range",
        "was false",
        "wrong shape",
        "zero effective",
    ];
    let words = words.to_lowercase();
    PHRASES.iter().any(|phrase| words.contains(phrase))
}

/// Removes source locations, function signatures and paths from the library's message.
pub(super) fn words(message: &str) -> String {
    const LONGEST: usize = 400;
    let text = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = text.as_str();
    // Extracts the reason from a nested error: `[ONNXRuntimeError] : 1 : FAIL : tensor.cc:58 Compute why`.
    if let Some((_, inner)) = text.rsplit_once("[ONNXRuntimeError] : ") {
        text = inner.splitn(3, " : ").nth(2).unwrap_or(inner);
    }
    if let Some((place, rest)) = text.split_once(' ')
        && is_place(place)
    {
        text = match place.starts_with('/') {
            true => after_signature(rest),
            // Skips a function name without a signature.
            false => rest.split_once(' ').map_or(rest, |(_, rest)| rest),
        };
    }
    // Skips a failed condition in C++; the text after the condition explains it.
    if let Some((_, meaning)) = text.split_once(" was false. ")
        && !meaning.is_empty()
    {
        text = meaning;
    }
    if let "stoi" | "stol" | "stoll" | "stoul" | "stoull" | "stof" | "stod" | "stold" = text {
        return "a string is not a number".to_owned();
    }
    let is_path = |word: &str| word.starts_with('/') && word.len() > 1 || is_place(word);
    let kept = text.split(' ').filter(|word| !is_path(word));
    let mut kept = kept.collect::<Vec<_>>().join(" ");
    let end = kept.floor_char_boundary(LONGEST);
    kept.truncate(end);
    kept
}

/// Returns whether a word is a source location, such as `slice.h:179`.
fn is_place(word: &str) -> bool {
    let is_line = |(file, line): (&str, &str)| {
        let is_source = [".cc", ".h", ".hpp", ".cpp"]
            .iter()
            .any(|ending| file.ends_with(ending));
        is_source && !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit())
    };
    word.rsplit_once(':').is_some_and(is_line)
}

/// Skips the rest of a C++ function signature: parameters, `const`, and template arguments.
fn after_signature(text: &str) -> &str {
    let mut depth = 0i32;
    let end = text.char_indices().find_map(|(index, character)| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => return None,
        }
        (depth == 0 && character == ')').then_some(index + 1)
    });
    let mut rest = end.and_then(|end| text.get(end..)).unwrap_or(text).trim_start();
    rest = rest.strip_prefix("const ").unwrap_or(rest);
    if let Some(with) = rest.strip_prefix("[with ")
        && let Some((_, after)) = with.split_once("] ")
    {
        rest = after;
    }
    rest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[track_caller]
    fn is_answered(code: ort::ErrorCode, message: &str, expected: ErrorCode, text: &str) {
        let error = answer(code, message, &Guards::default());
        assert_eq!(error.code(), expected, "{error}");
        assert_eq!(error.message(), text);
    }

    #[test]
    fn shapes_and_values_that_the_library_refuses_are_the_clients_fault() {
        let invalid = |message: &str, text: &str| {
            let text = format!("the model cannot take these values: {text}");
            is_answered(
                ort::ErrorCode::GenericFailure,
                message,
                ErrorCode::InvalidArgument,
                &text,
            );
        };
        invalid(
            "Non-zero status code returned while running Add node. Name:'y' Status Message: \
             /onnxruntime_src/onnxruntime/core/providers/cpu/math/element_wise_ops.h:563 void \
             onnxruntime::BroadcastIterator::Init(ptrdiff_t, ptrdiff_t) axis == 1 || axis == largest was false. Attempting to \
             broadcast an axis by a dimension other than 1. 3 by 4\n",
            "Attempting to broadcast an axis by a dimension other than 1. 3 by 4",
        );
        invalid(
            "Non-zero status code returned while running TopK node. Name:'' Status Message: k argument [9] should not be greater \
             than specified axis dim value [3]",
            "k argument [9] should not be greater than specified axis dim value [3]",
        );
        invalid(
            "Status Message: slice.h:179 FillVectorsFromInput Starts and ends shape mismatch",
            "Starts and ends shape mismatch",
        );
        invalid(
            "Status Message: /onnxruntime_src/onnxruntime/core/common/safeint.h:17 static void \
             SafeIntExceptionHandler<onnxruntime::OnnxRuntimeException>::SafeIntOnOverflow() Integer overflow\n",
            "Integer overflow",
        );
        invalid("Status Message: stoll", "a string is not a number");
        invalid(
            "Status Message: /onnxruntime_src/onnxruntime/core/framework/op_kernel.cc:81 virtual OrtValue* \
             onnxruntime::OpKernelContext::OutputMLValue(int, const onnxruntime::TensorShape&) [ONNXRuntimeError] : 1 : FAIL : \
             tensor.cc:58 CalculateTensorStorageSize Tensor storage size overflow",
            "Tensor storage size overflow",
        );
        invalid(
            "Status Message: element_wise_ops.cc:900 Compute Integer division by zero",
            "Integer division by zero",
        );
    }

    #[test]
    fn the_librarys_words_are_in_the_answer_without_paths() {
        is_answered(
            ort::ErrorCode::GenericFailure,
            "Status Message: /home/build/onnxruntime/core/x.cc:3 void f(int) the device is gone, see /var/log/device.txt now",
            ErrorCode::Internal,
            "the model failed: the device is gone, see now",
        );
        is_answered(
            ort::ErrorCode::GenericFailure,
            "Status Message: ",
            ErrorCode::Internal,
            "the model failed",
        );
    }

    /// Checks the error for a request that needs more memory than the GPU has free.
    #[test]
    fn a_full_gpu_is_not_the_models_fault() {
        for (message, expected) in [
            (
                "Non-zero status code returned while running Conv node. Name:'c' Status Message: bfc_arena.cc:376 void* \
                 onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) Failed to allocate memory for \
                 requested buffer of size 99999999999999",
                "GPU 1 has not enough free memory for a value of 99999999999999 bytes",
            ),
            (
                "Status Message: Available memory of 0 is smaller than requested bytes of 256",
                "GPU 1 has not enough free memory for a value of 256 bytes",
            ),
            (
                "CUDA failure 2: out of memory ; GPU=1 ; hostname=h ; expr=cudaMalloc(&p, size);",
                "GPU 1 has not enough free memory for this request",
            ),
        ] {
            let error = full_gpu(message, 1).unwrap();
            assert_eq!((error.code(), error.message()), (ErrorCode::Overloaded, expected));
        }
        assert!(full_gpu("Status Message: Integer division by zero", 1).is_none());
    }

    #[test]
    fn memory_that_is_not_there_is_not_the_models_fault() {
        let message = |bytes: u64| {
            format!("Status Message: x Failed to allocate memory for requested buffer of size {bytes}\n")
        };
        let found = |bytes| {
            answer(
                ort::ErrorCode::GenericFailure,
                &message(bytes),
                &Guards::default(),
            )
            .code()
        };
        assert_eq!(found(1 << 30), ErrorCode::Overloaded);
        assert_eq!(found(1 << 40), ErrorCode::InvalidArgument);
        for message in [
            "Status Message: std::bad_alloc",
            "Status Message: x Available memory of 0 is smaller than requested bytes of 256",
        ] {
            let error = answer(ort::ErrorCode::GenericFailure, message, &Guards::default());
            assert_eq!(error.code(), ErrorCode::Overloaded);
        }
    }
}
