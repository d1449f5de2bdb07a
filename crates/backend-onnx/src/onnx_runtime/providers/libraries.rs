//! The CUDA libraries that a provider needs: loads them from pip's directories, and names the missing ones.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use ort::util::preload_dylib;
use parking_lot::Mutex;

use super::{Accelerator, dynamic::needed, package::site_packages};

/// A library that a provider needs and that cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) name: String,
    /// How to install the library.
    pub(crate) remedy: String,
}

/// The libraries that one of ONNX Runtime's providers needs.
pub(crate) struct Libraries {
    /// The shared library of the provider.
    provider: PathBuf,
    accelerator: Accelerator,
    /// The library directories of Python packages.
    folders: Vec<PathBuf>,
}

impl Libraries {
    /// Returns the libraries of the provider next to ONNX Runtime's library.
    pub(crate) fn of(accelerator: Accelerator, library: &Path) -> Self {
        let provider = library.with_file_name(accelerator.file());
        Self {
            folders: site_packages(library).map_or(Vec::new(), |packages| folders(&packages)),
            provider,
            accelerator,
        }
    }

    /// Loads the libraries of Python packages, once per process. The provider then finds them by name,
    /// regardless of their directory.
    pub(crate) fn preload(&self) {
        static LOADED: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);
        if self.accelerator == Accelerator::OpenVino {
            // OpenVINO's package has its libraries next to the provider.
            return;
        }
        let mut loaded = LOADED.lock();
        let loaded = loaded.get_or_insert_default();
        for stem in ORDER {
            for path in self.folders.iter().flat_map(|folder| with_stem(folder, stem)) {
                if !loaded.contains(&path) && preload_dylib(path.as_os_str()).is_ok() {
                    tracing::debug!(path = %path.display(), "loaded a library for GPUs");
                    loaded.insert(path);
                }
            }
        }
    }

    /// Tries to load all libraries. Returns those that cannot be loaded, and how to install each of them.
    pub(crate) fn missing(&self) -> Vec<Missing> {
        let names = needed(&self.provider);
        let cuda = names.iter().find_map(|name| name.strip_prefix("libcudart.so."));
        let is_absent = |name: &&String| preload_dylib(name.as_str()).is_err();
        let missing = names.iter().filter(is_absent);
        missing.map(|name| self.describe(name, cuda)).collect()
    }

    /// Returns the libraries that the provider loads lazily, for certain operators, and that cannot be
    /// loaded.
    pub(crate) fn missing_later(&self) -> Vec<Missing> {
        let names = needed(&self.provider);
        let cuda = names.iter().find_map(|name| name.strip_prefix("libcudart.so."));
        let later: &[&str] = match (self.accelerator, cuda) {
            (Accelerator::Cuda, Some("13")) => &["libcudnn.so.9", "libcufft.so.12"],
            (Accelerator::Cuda, Some("12")) => &["libcudnn.so.9", "libcufft.so.11"],
            _ => &[],
        };
        let later = later.iter().filter(|name| preload_dylib(**name).is_err());
        later.map(|name| self.describe(name, cuda)).collect()
    }

    fn describe(&self, name: &str, cuda: Option<&str>) -> Missing {
        let remedy = remedy(name, cuda).unwrap_or_else(|| match self.accelerator {
            Accelerator::OpenVino => "pip install onnxruntime-openvino".to_owned(),
            Accelerator::Cuda | Accelerator::TensorRt => "a package of the system".to_owned(),
        });
        Missing {
            name: name.to_owned(),
            remedy,
        }
    }
}

/// Stems of the libraries in packages, in order of dependency.
const ORDER: &[&str] = &[
    "libcudart",
    "libnvJitLink",
    "libnvrtc",
    "libcublasLt",
    "libcublas",
    "libcurand",
    "libcufft",
    "libcudnn",
    "libnvinfer",
    "libnvonnxparser",
];

/// Returns the directories `nvidia/*/lib` and `tensorrt_libs`.
fn folders(site_packages: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(site_packages.join("nvidia"))
        .into_iter()
        .flatten()
        .flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path().join("lib")).collect();
    folders.sort();
    folders.push(site_packages.join("tensorrt_libs"));
    folders
}

/// Returns the files of a library in `folder`, such as `libcublas.so.13` for the stem `libcublas`.
fn with_stem(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            name.strip_prefix(stem)
                .is_some_and(|rest| rest.starts_with(".so."))
        })
        .collect();
    found.sort();
    found
}

/// Returns how to install a library, for a provider that was built for the CUDA version `cuda`.
fn remedy(name: &str, cuda: Option<&str>) -> Option<String> {
    if name.starts_with("libcuda.so") {
        return Some("the NVIDIA driver; in a container, its runtime brings it".to_owned());
    }
    let stem = name.split(".so").next()?;
    let package = match stem {
        "libcudart" => "nvidia-cuda-runtime",
        "libcublas" | "libcublasLt" => "nvidia-cublas",
        "libcufft" => "nvidia-cufft",
        "libcurand" => "nvidia-curand",
        "libnvrtc" => "nvidia-cuda-nvrtc",
        "libnvJitLink" => "nvidia-nvjitlink",
        "libcudnn" => return Some(format!("pip install nvidia-cudnn-cu{}", cuda.unwrap_or("13"))),
        "libnvinfer" | "libnvonnxparser" => {
            let major = name.rsplit('.').next().unwrap_or("10");
            return Some(format!(
                "pip install 'tensorrt-cu{}=={major}.*'",
                cuda.unwrap_or("13")
            ));
        }
        _ => return None,
    };
    // Since CUDA 13, package names have no version suffix.
    Some(match cuda {
        Some("12") => format!("pip install {package}-cu12"),
        _ => format!("pip install {package}"),
    })
}

/// Formats the missing libraries for a message.
pub(crate) fn missing_text(missing: &[Missing]) -> String {
    let each = missing
        .iter()
        .map(|missing| format!("{} ({})", missing.name, missing.remedy));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Checks that the remedy for a missing library names the package that contains it.
    #[test]
    fn each_library_has_a_package() {
        for (name, cuda, expected) in [
            ("libcudart.so.13", "13", "pip install nvidia-cuda-runtime"),
            ("libcudart.so.12", "12", "pip install nvidia-cuda-runtime-cu12"),
            ("libcublasLt.so.13", "13", "pip install nvidia-cublas"),
            ("libcudnn.so.9", "13", "pip install nvidia-cudnn-cu13"),
            ("libcudnn.so.9", "12", "pip install nvidia-cudnn-cu12"),
            ("libnvinfer.so.10", "13", "pip install 'tensorrt-cu13==10.*'"),
            (
                "libcuda.so.1",
                "13",
                "the NVIDIA driver; in a container, its runtime brings it",
            ),
        ] {
            assert_eq!(remedy(name, Some(cuda)).unwrap(), expected);
        }
        assert_eq!(remedy("libstdc++.so.6", Some("13")), None);
    }

    #[test]
    fn libraries_are_looked_for_where_pip_puts_them() {
        let packages = std::env::temp_dir().join(format!("nvidia-{}", std::process::id()));
        let (cuda, cudnn) = (
            packages.join("nvidia/cu13/lib"),
            packages.join("nvidia/cudnn/lib"),
        );
        fs::create_dir_all(&cuda).unwrap();
        fs::create_dir_all(&cudnn).unwrap();
        for name in ["libcublas.so.13", "libcublasLt.so.13", "libcudart_static.a"] {
            fs::write(cuda.join(name), "").unwrap();
        }
        let folders = folders(&packages);
        let found = with_stem(&folders[0], "libcublas");
        fs::remove_dir_all(&packages).unwrap();
        assert_eq!(folders, [cuda.clone(), cudnn, packages.join("tensorrt_libs")]);
        assert_eq!(found, [cuda.join("libcublas.so.13")]);
    }
}
