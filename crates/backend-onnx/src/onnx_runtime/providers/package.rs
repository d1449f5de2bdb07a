//! Finds the Python package of an ONNX Runtime library. `onnxruntime`, `onnxruntime-gpu` and others install
//! into the same directory of site-packages, so the last installed package has overwritten some or all files
//! of the others.

use std::{
    fmt, fs,
    io::Read,
    path::{Path, PathBuf},
};

/// The Python package of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// Name of the package, such as `onnxruntime-gpu`.
    pub(crate) name: String,
    pub(crate) version: String,
    /// The CUDA version that the library was built for.
    pub(crate) cuda: Option<String>,
    /// Other packages in the same directory, with their versions.
    pub(crate) others: Vec<String>,
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// Returns the package directory of a library: `.../site-packages` for
/// `.../site-packages/onnxruntime/capi/libonnxruntime.so`.
pub(crate) fn site_packages(library: &Path) -> Option<PathBuf> {
    let capi = library.parent()?;
    let package = capi.parent()?;
    let is_one = capi.ends_with("capi") && package.ends_with("onnxruntime");
    is_one.then(|| package.parent().map(Path::to_owned))?
}

impl Package {
    /// Finds the package whose files are next to a library; `None` if the library is not from a package.
    pub(crate) fn of(library: &Path) -> Option<Self> {
        let site_packages = site_packages(library)?;
        let info = read(&library.parent()?.join("build_and_package_info.py"))?;
        let field = |name: &str| {
            let mut lines = info.lines().filter_map(|line| line.split_once('='));
            let (_, value) = lines.find(|(key, _)| key.trim() == name)?;
            Some(value.trim().trim_matches(['\'', '"']).to_owned())
        };
        let (name, version) = (field("package_name")?, field("__version__")?);
        let others = installed(&site_packages);
        Some(Self {
            others: others
                .into_iter()
                .filter(|(other, _)| *other != name)
                .map(|(other, version)| format!("{other} {version}"))
                .collect(),
            cuda: field("cuda_version").filter(|version| !version.is_empty()),
            name,
            version,
        })
    }

    /// Returns a message with the remedy if packages have overwritten each other.
    pub(crate) fn mixture(&self) -> Option<String> {
        if self.others.is_empty() {
            return None;
        }
        Some(format!(
            "{} and {self} are installed into one directory, where {} was the last; pip uninstall {} {} and install the one that you \
             want",
            self.others.join(", "),
            self.name,
            self.others
                .iter()
                .filter_map(|other| other.split(' ').next())
                .collect::<Vec<_>>()
                .join(" "),
            self.name,
        ))
    }

    /// Returns whether a library's file name has the version of a different package.
    pub(crate) fn is_not_of(&self, library: &Path) -> bool {
        let name = library
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let version = name.strip_prefix("libonnxruntime.so.").unwrap_or_default();
        version.split('.').count() == 3 && version != self.version
    }
}

/// Lists the ONNX Runtime packages of a directory, by their `onnxruntime_gpu-1.31.1.dist-info` directories.
fn installed(site_packages: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(site_packages).into_iter().flatten().flatten();
    let mut found: Vec<(String, String)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (package, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
            let package = package.replace('_', "-");
            // The list omits `onnxruntime-extensions`, which has its own directory.
            let known = [
                "onnxruntime",
                "onnxruntime-gpu",
                "onnxruntime-openvino",
                "onnxruntime-directml",
            ];
            known
                .contains(&package.as_str())
                .then(|| (package, version.to_owned()))
        })
        .collect();
    found.sort();
    found
}

fn read(path: &Path) -> Option<String> {
    /// Maximum number of bytes to read; the file has only three lines.
    const MOST: u64 = 64 << 10;
    let mut text = String::new();
    fs::File::open(path)
        .ok()?
        .take(MOST)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn environment(name: &str, installed: &[&str], info: &str) -> (PathBuf, PathBuf) {
        let folder = std::env::temp_dir().join(format!("packages-{name}-{}", std::process::id()));
        let capi = folder.join("onnxruntime/capi");
        fs::create_dir_all(&capi).unwrap();
        for package in installed {
            fs::create_dir_all(folder.join(format!("{package}.dist-info"))).unwrap();
        }
        fs::write(capi.join("build_and_package_info.py"), info).unwrap();
        (folder, capi)
    }

    #[test]
    fn two_packages_in_one_directory_are_told_apart() {
        let info = "package_name = 'onnxruntime-gpu'\n__version__ = '1.31.1'\ncuda_version = '13.0'\n";
        let installed = [
            "onnxruntime-1.32.0",
            "onnxruntime_gpu-1.31.1",
            "onnxruntime_extensions-0.14.0",
        ];
        let (folder, capi) = environment("two", &installed, info);
        let package = Package::of(&capi.join("libonnxruntime.so.1.32.0"));
        fs::remove_dir_all(folder).unwrap();
        let package = package.unwrap();
        assert_eq!(
            (package.to_string().as_str(), package.cuda.as_deref()),
            ("onnxruntime-gpu 1.31.1", Some("13.0"))
        );
        assert_eq!(
            package.mixture().unwrap(),
            "onnxruntime 1.32.0 and onnxruntime-gpu 1.31.1 are installed into one directory, where onnxruntime-gpu was the last; pip \
             uninstall onnxruntime onnxruntime-gpu and install the one that you want"
        );
        assert!(package.is_not_of(&capi.join("libonnxruntime.so.1.32.0")));
        assert!(!package.is_not_of(&capi.join("libonnxruntime.so.1.31.1")));
        assert!(!package.is_not_of(Path::new("/usr/lib/libonnxruntime.so")));
    }

    #[test]
    fn one_package_is_no_mixture() {
        let info = "package_name = 'onnxruntime'\n__version__ = '1.32.0'\n";
        let (folder, capi) = environment("one", &["onnxruntime-1.32.0"], info);
        let package = Package::of(&capi.join("libonnxruntime.so.1.32.0"));
        let elsewhere = Package::of(&folder.join("libonnxruntime.so"));
        fs::remove_dir_all(folder).unwrap();
        let package = package.unwrap();
        assert_eq!((package.mixture(), package.cuda), (None, None));
        assert_eq!(elsewhere, None);
    }
}
