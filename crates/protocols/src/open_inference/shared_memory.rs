//! The system shared memory extension: regions of POSIX shared memory that clients on this machine
//! register, and name in requests in place of data.
//!
//! The operator enables it, because clients then name objects of this machine. A region is read and
//! written through its descriptor: the bytes are copied once, so that a client that changes or shrinks
//! its region later harms nobody.
//!
//! Source: Triton's `extension_shared_memory.md`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::raw;
use tensorserve_os::shared_memory;
use tensorserve_tensor::Tensor;
use tensorserve_tensor::budget::{self, reserved_vec};
use tensorserve_tensor::error::{Code, Error, Result};

/// The most regions at a time.
const MOST_REGIONS: usize = 1024;

/// The most bytes of the name of a region.
const LONGEST_NAME: usize = 255;

/// The regions of a server.
pub struct Regions {
    enabled: bool,
    regions: Mutex<BTreeMap<String, Arc<Region>>>,
}

/// A registered region.
pub(super) struct Region {
    pub(super) name: String,
    /// The name of the shared memory object.
    pub(super) key: String,
    /// Where the region begins in the object.
    pub(super) offset: u64,
    pub(super) byte_size: u64,
    file: File,
}

/// A part of a region that a request names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedRange {
    pub(super) region: String,
    /// From the start of the region.
    pub(super) offset: u64,
    pub(super) byte_size: u64,
}

/// A part of a region that an output is written to.
pub(super) struct SharedOutput {
    region: Arc<Region>,
    pub(super) range: SharedRange,
}

impl Regions {
    /// No regions yet; clients may register some if this is `enabled`.
    #[must_use]
    pub fn new(enabled: bool) -> Self {
        Regions { enabled, regions: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Region>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_enabled(&self) -> Result<()> {
        match self.enabled {
            true => Ok(()),
            false => Err(Error::new(
                Code::FailedPrecondition,
                "shared memory is not enabled: set shared_memory on the server",
            )),
        }
    }

    /// Registers a region of the object `key`.
    ///
    /// # Errors
    /// If shared memory is not enabled, the name is taken, there are too many regions, or the object is
    /// smaller than the region.
    pub(super) fn register(
        &self,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<()> {
        self.check_enabled()?;
        if name.is_empty() || name.len() > LONGEST_NAME {
            let message = format!("the name of a region must have 1 to {LONGEST_NAME} bytes");
            return Err(Error::invalid(message));
        }
        let unable = || format!("Unable to open shared memory region: '{key}'");
        let file = shared_memory::open(key).map_err(|error| {
            let is_name = error.kind() != ErrorKind::InvalidInput;
            let why = if is_name { "" } else { ": it is not the name of an object" };
            Error::invalid(format!("{}{why}", unable())).with_source(error)
        })?;
        let size =
            file.metadata().map_err(|error| Error::invalid(unable()).with_source(error))?.len();
        let end = offset.checked_add(byte_size);
        if byte_size == 0 || end.is_none_or(|end| end > size) {
            return Err(Error::invalid(format!(
                "failed to register shared memory region '{name}': invalid args: {byte_size} bytes from \
                 {offset} on are not within the {size} bytes of {key:?}"
            )));
        }
        let mut regions = self.lock();
        if regions.contains_key(name) {
            let message = format!("shared memory region '{name}' already in manager");
            return Err(Error::new(Code::AlreadyExists, message));
        }
        if regions.len() >= MOST_REGIONS {
            let message = format!("there are already {MOST_REGIONS} regions; unregister some");
            return Err(Error::new(Code::ResourceExhausted, message));
        }
        let (name, key) = (name.to_owned(), key.to_owned());
        let region = Region { name: name.clone(), key, offset, byte_size, file };
        regions.insert(name, Arc::new(region));
        Ok(())
    }

    /// Forgets a region, or all without a name. Nothing changes if there is none.
    ///
    /// # Errors
    /// If shared memory is not enabled and a region is named.
    pub(super) fn unregister(&self, name: &str) -> Result<()> {
        if name.is_empty() {
            self.lock().clear();
            return Ok(());
        }
        self.check_enabled()?;
        self.lock().remove(name);
        Ok(())
    }

    /// The region `name`, or all without a name.
    ///
    /// # Errors
    /// If there is no such region.
    pub(super) fn status(&self, name: &str) -> Result<Vec<Arc<Region>>> {
        if name.is_empty() {
            return Ok(self.lock().values().cloned().collect());
        }
        Ok(vec![self.find(name)?])
    }

    fn find(&self, name: &str) -> Result<Arc<Region>> {
        self.check_enabled()?;
        let found = self.lock().get(name).cloned();
        found.ok_or_else(|| {
            Error::not_found(format!("Unable to find shared memory region: '{name}'"))
        })
    }

    /// The bytes of a range, for the input `input`.
    ///
    /// # Errors
    /// If there is no such range.
    pub(super) fn read(&self, input: &str, range: &SharedRange) -> Result<Bytes> {
        let region = self.find(&range.region)?;
        let at = region.check(range).map_err(|error| error.context(format!("input {input:?}")))?;
        let size = usize::try_from(range.byte_size).unwrap_or(usize::MAX);
        let mut bytes = reserved_vec::<u8>(size)?;
        bytes.resize(size, 0);
        region.file.read_exact_at(&mut bytes, at).map_err(|error| region.shrunk(error))?;
        Ok(Bytes::from_owner(bytes))
    }

    /// The range that an output is written to.
    ///
    /// # Errors
    /// If there is no such range.
    pub(super) fn output(&self, output: &str, range: SharedRange) -> Result<SharedOutput> {
        let region = self.find(&range.region)?;
        region.check(&range).map_err(|error| error.context(format!("output {output:?}")))?;
        Ok(SharedOutput { region, range })
    }
}

impl Region {
    /// Where a range begins in the object.
    fn check(&self, range: &SharedRange) -> Result<u64> {
        let end = range.offset.checked_add(range.byte_size);
        if end.is_none_or(|end| end > self.byte_size) {
            return Err(Error::invalid(format!(
                "Invalid offset + byte size for shared memory region: '{}' has {} bytes",
                self.name, self.byte_size
            )));
        }
        self.offset.checked_add(range.offset).ok_or_else(|| Error::internal("an offset overflows"))
    }

    /// The error for an object that has become smaller than the region.
    fn shrunk(&self, error: std::io::Error) -> Error {
        let message = format!("shared memory region '{}' is smaller than registered", self.name);
        Error::invalid(message).with_source(error)
    }
}

impl SharedOutput {
    /// Writes an output, and returns the number of its bytes.
    ///
    /// # Errors
    /// If it does not fit.
    pub(super) fn write(&self, name: &str, tensor: &Tensor) -> Result<u64> {
        let size = raw::len(tensor);
        let needed = u64::try_from(size).unwrap_or(u64::MAX);
        let given = self.range.byte_size;
        if needed > given {
            return Err(Error::invalid(format!(
                "shared memory size specified with the request for output '{name}' ({given} bytes) \
                 should be at least {needed} bytes to hold the results"
            )));
        }
        let at = self.region.check(&self.range)?;
        // A write beyond the end of an object would make it larger.
        let end = self.region.file.metadata().map_or(0, |metadata| metadata.len());
        if at.checked_add(needed).is_none_or(|last| last > end) {
            return Err(self.region.shrunk(ErrorKind::UnexpectedEof.into()));
        }
        let written = if tensor.strings().is_some() {
            let mut bytes = Vec::new();
            budget::grow(&mut bytes, size)?;
            raw::append(tensor, &mut bytes)?;
            self.region.file.write_all_at(&bytes, at)
        } else {
            self.region.file.write_all_at(tensor.bytes(), at)
        };
        written.map_err(|error| self.region.shrunk(error))?;
        Ok(needed)
    }
}
