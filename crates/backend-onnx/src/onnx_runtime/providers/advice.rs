//! Explains common CUDA errors, whose messages do not say what to do.

/// Explains a provider's error and says what to do, if it is a common one.
pub(crate) fn advice(message: &str) -> Option<&'static str> {
    let lower = message.to_ascii_lowercase();
    let cases: &[(&[&str], &str)] = &[
        (
            &[
                "driver version is insufficient",
                "cuda failure 35:",
                "cuda error 35",
            ],
            "the NVIDIA driver is too old for the version of CUDA that this library was built for, or there is none: update the driver, \
             or install an onnxruntime-gpu for an older CUDA",
        ),
        (
            OUT_OF_MEMORY,
            "the GPU is out of memory; other models or programs use it (nvidia-smi lists them)",
        ),
        (
            &["no cuda-capable device", "cuda failure 100:"],
            "no GPU is visible to this process: look at CUDA_VISIBLE_DEVICES, and at the GPUs of the container",
        ),
        (
            &["invalid device ordinal", "cuda failure 101:", "invalid device id"],
            "no GPU has this number",
        ),
        (
            &["no kernel image", "cuda failure 209:"],
            "this library was not built for this GPU",
        ),
    ];
    let case = cases.iter().find(|(phrases, _)| contains_any(&lower, phrases));
    case.map(|(_, advice)| *advice)
}

/// Phrases of the messages of CUDA, cuBLAS and cuDNN for a failed allocation, in lower case.
const OUT_OF_MEMORY: &[&str] = &[
    "cuda failure 2:",
    "out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
];

fn contains_any(text: &str, phrases: &[&str]) -> bool {
    phrases.iter().any(|phrase| text.contains(phrase))
}

/// Returns whether an error of a run or a load says that the GPU is out of memory.
pub(crate) fn is_out_of_memory(message: &str) -> bool {
    contains_any(&message.to_ascii_lowercase(), OUT_OF_MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the advice for a driver that is too old, GPU memory that other programs use, and a missing GPU.
    #[test]
    fn errors_of_cuda_are_explained() {
        for (message, expected) in [
            (
                "CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version ; GPU=0 ; hostname=h ; \
                 file=/onnxruntime_src/cuda_execution_provider.cc ; line=280 ; expr=cudaSetDevice(info_.device_id);",
                "the NVIDIA driver is too old",
            ),
            (
                "CUDA failure 2: out of memory ; GPU=0 ; hostname=h ; expr=cudaMalloc((void**)&p, size);",
                "the GPU is out of memory",
            ),
            (
                "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; expr=cublasCreate(&cublas_handle_);",
                "the GPU is out of memory",
            ),
            (
                "CUDA failure 100: no CUDA-capable device is detected ; GPU=-1",
                "no GPU is visible",
            ),
            (
                "CUDA failure 101: invalid device ordinal ; GPU=7",
                "no GPU has this number",
            ),
            (
                "CUDA failure 209: no kernel image is available for execution on the device",
                "this library was not built for this GPU",
            ),
        ] {
            assert!(
                advice(message).is_some_and(|found| found.starts_with(expected)),
                "{message}"
            );
        }
        assert_eq!(advice("Status Message: Integer division by zero"), None);
    }
}
