//! Whether libtensorflow can use a GPU, and why not. TensorFlow itself runs models on the CPU then, and
//! says nothing.
//!
//! The driver is only asked for its version here, which does not initialize CUDA: the process that load
//! probes are forked from starts later, and CUDA does not survive a fork.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tensorserve_platform::Gpus;
use tensorserve_platform::library::install_commands;

use crate::ffi;

/// The major version of CUDA that all [`crate::TESTED`] versions are built with, and the first driver
/// that supports it.
const CUDA: i32 = 12;
const FIRST_DRIVER: &str = "525.60";

/// The CUDA libraries that TensorFlow opens by name, without which it uses no GPU, each with the names
/// of its versions in the tested wheels.
const CUDA_LIBRARIES: [&[&str]; 7] = [
    &["libcudart.so.12"],
    &["libcublas.so.12"],
    &["libcublasLt.so.12"],
    &["libcufft.so.11"],
    &["libcusolver.so.11"],
    &["libcusparse.so.12"],
    &["libcudnn.so.9", "libcudnn.so.8"],
];

/// Where the facts come from.
pub(super) struct GpuSearch<'a> {
    /// libtensorflow is built with CUDA.
    pub(super) has_cuda: bool,
    /// `CUDA_VISIBLE_DEVICES`.
    pub(super) visible: Option<&'a str>,
    /// The file of libtensorflow.
    pub(super) library: &'a Path,
    /// The root of the file system.
    pub(super) root: &'a Path,
    /// Asks the driver for the version of CUDA that it supports, such as 12040 for 12.4.
    pub(super) driver: &'a dyn Fn() -> Result<i32, String>,
    /// Whether the system's loader finds a library.
    pub(super) is_installed: &'a dyn Fn(&str) -> bool,
}

impl<'a> GpuSearch<'a> {
    /// The search on this machine, for the libtensorflow in the file `library`.
    pub(super) fn new(has_cuda: bool, visible: Option<&'a str>, library: &'a Path) -> Self {
        GpuSearch {
            has_cuda,
            visible,
            library,
            root: Path::new("/"),
            driver: &ffi::cuda_of_driver,
            is_installed: &ffi::is_installed,
        }
    }

    /// The GPUs, or why there are none.
    pub(super) fn run(&self) -> Gpus {
        if !self.has_cuda {
            return Gpus::NotSupported;
        }
        match self.obstacle() {
            Some(why) => Gpus::Unavailable(why),
            None => Gpus::Available(self.names()),
        }
    }

    /// What prevents the use of GPUs: the first thing that has to be changed.
    fn obstacle(&self) -> Option<String> {
        // The driver of Windows, which the Linux in it uses, has no files of its own here.
        let is_windows = self.root.join("dev/dxg").exists();
        if !is_windows && let Some(why) = self.missing_driver().or_else(|| self.closed_device()) {
            return Some(why);
        }
        self.hidden().or_else(|| self.unusable_driver()).or_else(|| self.missing_libraries())
    }

    fn missing_driver(&self) -> Option<String> {
        if self.root.join("proc/driver/nvidia/version").exists() {
            return None;
        }
        let nothing = "no NVIDIA driver is loaded (there is no /proc/driver/nvidia/version)";
        let has_card = self.has_nvidia_card();
        let remedy = if has_card {
            "this machine has an NVIDIA device: install its driver"
        } else {
            "this machine has no NVIDIA device, or hides it"
        };
        Some(format!("{nothing}; {remedy}"))
    }

    /// Whether a PCI device is of NVIDIA (vendor 0x10de).
    fn has_nvidia_card(&self) -> bool {
        let devices = fs::read_dir(self.root.join("sys/bus/pci/devices")).into_iter().flatten();
        let mut vendors = devices.flatten().map(|device| device.path().join("vendor"));
        vendors.any(|vendor| fs::read_to_string(vendor).is_ok_and(|id| id.trim() == "0x10de"))
    }

    /// The first device file of the driver that this process cannot open.
    fn closed_device(&self) -> Option<String> {
        let mut devices = vec![self.root.join("dev/nvidiactl")];
        let numbered = self.numbered_devices();
        match numbered.first() {
            Some(first) => devices.push(first.clone()),
            None => devices.push(self.root.join("dev/nvidia0")),
        }
        for device in devices {
            let opened = File::options().read(true).write(true).open(&device);
            let Err(error) = opened else {
                continue;
            };
            let name = Path::new("/").join(device.strip_prefix(self.root).unwrap_or(&device));
            let name = name.display();
            if error.kind() == ErrorKind::PermissionDenied {
                let owner = fs::metadata(&device).map_or(String::new(), |found| {
                    let (mode, group) = (found.mode() & 0o777, found.gid());
                    format!(" (mode {mode:o}, group {group})")
                });
                let remedy = "add the user to its group";
                return Some(format!("no permission to open {name}{owner}: {remedy}"));
            }
            return Some(format!(
                "the NVIDIA driver is loaded, but {name} cannot be opened ({error}): give the \
                 container access to the GPUs (docker run --gpus all)"
            ));
        }
        None
    }

    /// `/dev/nvidia0` and so on, sorted.
    fn numbered_devices(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.join("dev")).into_iter().flatten().flatten();
        let mut devices: Vec<PathBuf> = entries
            .filter(|entry| {
                let name = entry.file_name();
                let number = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
                number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
            })
            .map(|entry| entry.path())
            .collect();
        devices.sort();
        devices
    }

    /// CUDA ends the list of visible devices at the first entry that is none.
    fn hidden(&self) -> Option<String> {
        let visible = self.visible?;
        let first = visible.split(',').next().unwrap_or_default().trim();
        let count = self.numbered_devices().len();
        let is_device = match first.parse::<usize>() {
            Ok(number) => count == 0 || number < count,
            Err(_) => first.starts_with("GPU-") || first.starts_with("MIG-"),
        };
        (!is_device).then(|| format!("CUDA_VISIBLE_DEVICES={visible:?} hides all GPUs"))
    }

    fn unusable_driver(&self) -> Option<String> {
        let supported = match (self.driver)() {
            Ok(version) => version,
            Err(why) => {
                return Some(format!(
                    "the library of the NVIDIA driver cannot be used: {why}; in a container, set \
                     NVIDIA_DRIVER_CAPABILITIES=compute,utility"
                ));
            }
        };
        if supported >= CUDA * 1000 {
            return None;
        }
        let driver = self.driver_version().unwrap_or_else(|| "of this machine".to_owned());
        let (major, minor) = (supported / 1000, supported % 1000 / 10);
        Some(format!(
            "the NVIDIA driver {driver} is too old: it supports CUDA {major}.{minor}, and libtensorflow \
             needs CUDA {CUDA}; install driver {FIRST_DRIVER} or later"
        ))
    }

    /// The version of the driver, such as 535.104.05.
    fn driver_version(&self) -> Option<String> {
        let text = fs::read_to_string(self.root.join("proc/driver/nvidia/version")).ok()?;
        let mut words = text.split_whitespace().filter(|word| word.contains('.'));
        words.find(|word| word.bytes().all(|b| b.is_ascii_digit() || b == b'.')).map(str::to_owned)
    }

    /// CUDA libraries that are neither in the packages beside libtensorflow nor installed.
    fn missing_libraries(&self) -> Option<String> {
        let folders = cuda_folders(self.library);
        let is_here = |name: &str| folders.iter().any(|folder| folder.join(name).exists());
        let is_found = |names: &[&str]| names.iter().any(|n| is_here(n) || (self.is_installed)(n));
        let missing = CUDA_LIBRARIES.iter().filter(|names| !is_found(names));
        let missing: Vec<&str> = missing.filter_map(|names| names.first().copied()).collect();
        (!missing.is_empty()).then(|| {
            format!(
                "CUDA libraries are missing: {}; install them with {}",
                missing.join(", "),
                install_commands("tensorflow-gpu", "gpu")
            )
        })
    }

    /// The names of the GPUs that the driver lists.
    fn names(&self) -> Vec<String> {
        let gpus = fs::read_dir(self.root.join("proc/driver/nvidia/gpus")).into_iter().flatten();
        let mut files: Vec<PathBuf> =
            gpus.flatten().map(|gpu| gpu.path().join("information")).collect();
        files.sort();
        let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
        texts.filter_map(|text| model_of(&text)).collect()
    }
}

/// The library directories of NVIDIA's Python packages beside that of TensorFlow.
pub(super) fn cuda_folders(library: &Path) -> Vec<PathBuf> {
    let site = library.parent().and_then(Path::parent);
    let packages = site.map(|site| fs::read_dir(site.join("nvidia")));
    let packages = packages.into_iter().flatten().flatten().flatten();
    packages.map(|package| package.path().join("lib")).collect()
}

fn model_of(information: &str) -> Option<String> {
    let mut lines = information.lines();
    lines.find_map(|line| Some(line.strip_prefix("Model:")?.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A machine with a GPU, a driver and the CUDA libraries, in a directory.
    struct Machine {
        root: tempfile::TempDir,
        visible: Option<&'static str>,
        driver: Result<i32, String>,
    }

    const LIBRARY: &str = "site/tensorflow/libtensorflow_cc.so.2";

    impl Machine {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("temporary directory");
            let machine = Machine { root, visible: None, driver: Ok(12_040) };
            machine.write("dev/nvidiactl", "");
            machine.write("dev/nvidia0", "");
            machine.write("dev/nvidia-uvm", "");
            let module = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n";
            machine.write("proc/driver/nvidia/version", module);
            let information = "Model: \t\t NVIDIA L4\nIRQ:   \t\t 97\n";
            machine.write("proc/driver/nvidia/gpus/0000:00:03.0/information", information);
            for name in CUDA_LIBRARIES.iter().filter_map(|names| names.last()) {
                machine.write(&format!("site/nvidia/cuda/lib/{name}"), "");
            }
            machine
        }

        fn path(&self, path: &str) -> PathBuf {
            self.root.path().join(path)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().expect("parent")).expect("directory");
            fs::write(path, text).expect("written");
        }

        fn without(self, path: &str) -> Self {
            let path = self.path(path);
            let removed =
                if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            removed.expect("removed");
            self
        }

        fn gpus(&self) -> Gpus {
            let driver = || self.driver.clone();
            GpuSearch {
                has_cuda: true,
                visible: self.visible,
                library: &self.path(LIBRARY),
                root: self.root.path(),
                driver: &driver,
                is_installed: &|_| false,
            }
            .run()
        }

        #[track_caller]
        fn assert_unavailable(&self, parts: &[&str]) {
            let Gpus::Unavailable(why) = self.gpus() else {
                panic!("{:?}", self.gpus());
            };
            parts.iter().for_each(|part| assert!(why.contains(part), "{part:?} is not in: {why}"));
        }
    }

    #[test]
    fn a_machine_with_all_of_it_has_its_gpus() {
        assert_eq!(Machine::new().gpus(), Gpus::Available(vec!["NVIDIA L4".to_owned()]));
        for visible in ["0", "0,1", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-1"] {
            let machine = Machine { visible: Some(visible), ..Machine::new() };
            assert!(matches!(machine.gpus(), Gpus::Available(_)), "{visible}");
        }
        let search = GpuSearch::new(false, None, Path::new("/x"));
        assert_eq!(search.run(), Gpus::NotSupported);
    }

    #[test]
    fn what_is_missing_is_named() {
        let no_driver = Machine::new().without("proc/driver");
        no_driver.assert_unavailable(&["no NVIDIA driver is loaded", "has no NVIDIA device"]);
        no_driver.write("sys/bus/pci/devices/0000:00:03.0/vendor", "0x10de\n");
        no_driver.assert_unavailable(&["no NVIDIA driver is loaded", "install its driver"]);
        let in_container = Machine::new().without("dev/nvidiactl");
        in_container.assert_unavailable(&["/dev/nvidiactl cannot be opened", "--gpus all"]);
        let no_gpu = Machine::new().without("dev/nvidia0");
        no_gpu.assert_unavailable(&["/dev/nvidia0 cannot be opened"]);
        let old = Machine { driver: Ok(11_040), ..Machine::new() };
        old.assert_unavailable(&["535.104.05 is too old", "CUDA 11.4", "CUDA 12", "525.60"]);
        let no_libcuda =
            Machine { driver: Err("libcuda.so.1: no such file".into()), ..Machine::new() };
        no_libcuda.assert_unavailable(&["libcuda.so.1: no such file", "compute,utility"]);
        let no_cudnn = Machine::new().without("site/nvidia/cuda/lib/libcudnn.so.8");
        no_cudnn.assert_unavailable(&["missing: libcudnn.so.9;", "fetch tensorflow-gpu"]);
        Machine::new().without("site/nvidia").assert_unavailable(&["libcudart.so.12, libcublas"]);
    }

    #[test]
    fn hidden_gpus_are_told_with_the_variable() {
        for visible in ["", "-1", "NoDevFiles", "1", "-1,0", " ,0"] {
            let machine = Machine { visible: Some(visible), ..Machine::new() };
            machine.assert_unavailable(&[&format!("CUDA_VISIBLE_DEVICES={visible:?}")]);
        }
    }

    #[test]
    fn a_device_without_permission_is_named() {
        let machine = Machine::new();
        let device = machine.path("dev/nvidiactl");
        fs::set_permissions(&device, fs::Permissions::from_mode(0o000)).expect("permissions");
        // Root may open everything.
        if File::open(&device).is_err() {
            machine.assert_unavailable(&["no permission to open /dev/nvidiactl (mode 0,"]);
        }
    }

    #[test]
    fn the_driver_of_windows_has_no_device_files() {
        let machine = Machine::new().without("proc/driver").without("dev/nvidiactl");
        machine.write("dev/dxg", "");
        assert_eq!(machine.gpus(), Gpus::Available(Vec::new()));
    }
}
