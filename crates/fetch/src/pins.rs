//! The wheels from which the libraries are taken: names, sizes and hashes.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use regex_lite::Regex;
use serde::Deserialize;

use tensorserve_tensor::error::{Code, Error, Result};

/// The names of what can be fetched, each with the runtime and the device of its build.
const FETCHABLE: [(&str, &str, &str); 7] = [
    ("tensorflow", "tensorflow", "cpu"),
    ("tensorflow-gpu", "tensorflow", "gpu"),
    ("onnxruntime", "onnxruntime", "cpu"),
    ("litert", "litert", "cpu"),
    ("openvino", "openvino", "cpu"),
    (TORCH, "torch", "cpu"),
    ("executorch", "executorch", "cpu"),
];

/// The names of what can be fetched.
#[must_use]
pub fn names() -> [&'static str; FETCHABLE.len()] {
    FETCHABLE.map(|(name, ..)| name)
}

/// The runtime whose other builds are used from where pip installs them.
const TORCH: &str = "torch";

/// The file that the scripts of the source directory read, too.
const PINS: &str = include_str!("../../../scripts/runtimes.json");

#[derive(Deserialize)]
struct Pins {
    licences: Vec<String>,
    runtimes: BTreeMap<String, Runtime>,
}

#[derive(Clone, Deserialize)]
struct Runtime {
    library: String,
    maker: String,
    version: String,
    folder: String,
    needed: Vec<String>,
    libraries: Vec<String>,
    #[serde(default)]
    headers: Vec<String>,
    links: BTreeMap<String, String>,
    builds: Vec<RuntimeBuild>,
}

#[derive(Clone, Deserialize)]
struct RuntimeBuild {
    device: String,
    machine: String,
    unpacked: u64,
    wheels: Vec<Wheel>,
}

/// A Python package: a zip file.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct Wheel {
    /// The name of the file.
    pub(crate) file: String,
    /// In bytes.
    pub(crate) size: u64,
    /// In hexadecimal digits.
    pub(crate) sha256: String,
}

impl Wheel {
    /// The name of its project in a package index, normalized as PEP 503 defines.
    pub(crate) fn project(&self) -> String {
        let name = self.file.split('-').next().unwrap_or_default();
        name.to_ascii_lowercase().replace(['_', '.'], "-")
    }
}

/// A runtime for a device, to be fetched for this machine.
pub struct Pin {
    /// What messages call it.
    pub title: String,
    /// The name of its directory.
    pub(crate) folder: String,
    /// The runtime's folder in a wheel, and the name of the runtime in the stamp.
    pub runtime: String,
    /// The version of the runtime.
    pub version: String,
    pub(crate) wheels: Vec<Wheel>,
    /// Bytes of all files.
    pub unpacked: u64,
    /// Files that must be there, the library first.
    pub(crate) needed: Vec<String>,
    /// Links to make, with their targets.
    pub(crate) links: BTreeMap<String, String>,
    libraries: Regex,
    /// Files that are needed for a compilation only.
    headers: Option<Regex>,
    licences: Regex,
}

impl Pin {
    /// What the name `fetchable` stands for.
    ///
    /// # Errors
    /// If there is no build for this machine.
    pub fn new(fetchable: &str) -> Result<Self> {
        Pin::of(PINS, fetchable)
    }

    /// What the name `fetchable` stands for in a list of runtimes, which is JSON.
    pub(crate) fn of(pins: &str, fetchable: &str) -> Result<Self> {
        let pins: Pins = serde_json::from_str(pins).map_err(invalid)?;
        let found = FETCHABLE.iter().find(|(name, ..)| *name == fetchable);
        let Some((_, name, device)) = found else {
            return Err(Error::invalid(format!("{fetchable:?} cannot be fetched")));
        };
        let runtime = pins.runtimes.get(*name).cloned().ok_or_else(|| invalid(name))?;
        let Runtime { library, version, folder, .. } = &runtime;
        let is_wanted = |build: &&RuntimeBuild| build.device == *device && build.machine == ARCH;
        let Some(build) = runtime.builds.iter().find(is_wanted) else {
            let message = match fetchable {
                TORCH => format!(
                    "no build of {library} for {ARCH} is pinned here: install PyTorch with pip, and run \
                     `tensorserve fetch torch --from DIR` with the directory of the package"
                ),
                _ => format!(
                    "{} publishes no build of {library} {version} for {device} on {ARCH}: name a \
                     library that you have built with --{library} PATH",
                    runtime.maker
                ),
            };
            return Err(Error::new(Code::Unimplemented, message));
        };
        Ok(Pin {
            title: format!("{library} {version} ({device}, {ARCH})"),
            folder: format!("{folder}-{version}-{device}-{ARCH}"),
            runtime: folder.clone(),
            version: version.clone(),
            wheels: build.wheels.clone(),
            unpacked: build.unpacked,
            needed: runtime.needed.clone(),
            links: runtime.links.clone(),
            libraries: whole(&runtime.libraries, "").map_err(invalid)?,
            headers: match runtime.headers.is_empty() {
                true => None,
                false => Some(whole(&runtime.headers, "").map_err(invalid)?),
            },
            licences: whole(&pins.licences, "(?i)").map_err(invalid)?,
        })
    }

    /// The name in the tree for the file `name` of `wheel`; `None` if it is not unpacked.
    pub(crate) fn name_in_tree(&self, name: &str, wheel: &Wheel) -> Option<String> {
        if self.libraries.is_match(name) || self.is_header(name) {
            return Some(name.to_owned());
        }
        let project = wheel.file.split('-').next().unwrap_or_default();
        let last = name.rsplit('/').next().unwrap_or_default();
        self.licences.is_match(name).then(|| format!("licenses/{project}/{last}"))
    }

    /// Whether the file `name` in the tree is needed for a compilation only.
    pub(crate) fn is_header(&self, name: &str) -> bool {
        self.headers.as_ref().is_some_and(|headers| headers.is_match(name))
    }

    /// Bytes of all wheels.
    #[must_use]
    pub fn download(&self) -> u64 {
        self.wheels.iter().map(|wheel| wheel.size).sum()
    }
}

/// An expression that matches what one of `patterns` matches as a whole.
fn whole(patterns: &[String], flags: &str) -> Result<Regex, regex_lite::Error> {
    Regex::new(&format!("{flags}^(?:{})$", patterns.join("|")))
}

fn invalid(why: impl std::fmt::Display) -> Error {
    Error::internal(format!("the built-in list of runtimes is invalid: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_runtimes_are_pinned_for_both_machines() {
        let pins: Pins = serde_json::from_str(PINS).expect("valid");
        for (_, runtime, device) in FETCHABLE {
            let builds = &pins.runtimes[runtime].builds;
            let machines = builds.iter().filter(|build| build.device == device);
            let machines: Vec<&str> = machines.map(|build| build.machine.as_str()).collect();
            let expected: &[&str] = if device == "gpu" || runtime == TORCH {
                &["x86_64"]
            } else {
                &["x86_64", "aarch64"]
            };
            assert_eq!(machines, expected, "{runtime} {device}");
        }
        for build in pins.runtimes.values().flat_map(|runtime| &runtime.builds) {
            for wheel in &build.wheels {
                assert_eq!(wheel.sha256.len(), 64, "{}", wheel.file);
                assert!(
                    wheel.sha256.bytes().all(|byte| byte.is_ascii_hexdigit()),
                    "{}",
                    wheel.file
                );
                assert!(wheel.size > 1_000_000 && wheel.file.ends_with(".whl"), "{}", wheel.file);
            }
        }
    }

    #[test]
    fn only_libraries_and_licences_are_unpacked() {
        let pin = Pin::new("tensorflow").expect("pinned");
        let wheel = &pin.wheels[0];
        let unpacked = |name: &str| pin.name_in_tree(name, wheel);
        for library in [
            "tensorflow/libtensorflow_cc.so.2",
            "tensorflow/core/framework/types_pb2.py",
            "nvidia/cudnn/lib/libcudnn.so.9",
            "nvidia/cuda_nvcc/bin/ptxas",
        ] {
            assert_eq!(unpacked(library).as_deref(), Some(library));
        }
        for licence in [
            "tensorflow/THIRD_PARTY_NOTICES.txt",
            "nvidia_cudnn_cu12-9.dist-info/License.txt",
            "tensorflow_cpu-2.21.0.dist-info/licenses/LICENSE",
        ] {
            assert!(unpacked(licence).is_some_and(|name| name.starts_with("licenses/tensorflow")));
        }
        for other in [
            "tensorflow/python/__init__.py",
            "x/tensorflow/libtensorflow_cc.so.2",
            "tensorflow/libtensorflow_cc.so.2/../../x",
            "../LICENSE/x",
            "nvidia/cudnn/lib/../../../x.so",
        ] {
            assert_eq!(unpacked(other), None, "{other}");
        }
    }

    #[test]
    fn projects_have_normalized_names() {
        let wheel = |file: &str| Wheel { file: file.into(), size: 1, sha256: String::new() };
        assert_eq!(wheel("tensorflow_cpu-2.21.0-cp312.whl").project(), "tensorflow-cpu");
    }
}
