//! What a target is, and how it is run.

use std::fs;
use std::path::Path;

use memchr::memmem;
use tempfile::TempDir;
use tensorserve_tensor::budget::MemoryBudget;

use super::memory::{MemoryLimit, excess_of, peak_of};

/// The memory that decoders may reserve for a request.
const REQUEST_BUDGET: usize = 32 << 20;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name: also that of its file in `fuzz_targets/`, and of its folder in `corpus/`.
    pub name: &'static str,
    /// Decodes any bytes. Panics if what must hold does not.
    pub run: fn(&[u8]),
    /// The most memory that it may take.
    pub memory: MemoryLimit,
}

/// What a request may take besides twice what it has reserved.
const UNRESERVED: usize = 64 << 10;

impl Target {
    /// Runs the target on `input`, within the budget of a request.
    ///
    /// # Panics
    /// If what must hold does not, or it took too much memory.
    pub fn check(&self, input: &[u8]) {
        let budget = MemoryBudget::new(REQUEST_BUDGET).request().expect("memory for one request");
        let mut excess = 0;
        let peak = peak_of(|| excess = excess_of(|| budget.enter(|| (self.run)(input))));
        let most = self.memory.of(input.len());
        let (name, length) = (self.name, input.len());
        assert!(
            peak <= most,
            "{name} took {peak} bytes of memory for an input of {length}; at most {most} are allowed"
        );
        assert!(
            !self.memory.reserves || excess <= UNRESERVED,
            "{name} took {excess} bytes beyond twice those that it had reserved, for an input of {length}"
        );
    }
}

thread_local! {
    /// A folder for files that a decoder reads. libFuzzer does not end threads, so `scripts/fuzz.py`
    /// puts it into a folder that it removes.
    static FOLDER: TempDir = TempDir::new().expect("a temporary folder");
}

/// Calls `function` with the path of a folder of this thread.
pub fn with_folder<T>(function: impl FnOnce(&Path) -> T) -> T {
    FOLDER.with(|folder| function(folder.path()))
}

/// Writes `content` to the file `name` in a folder of this thread, and calls `function` with its path.
pub fn with_file<T>(name: &str, content: &[u8], function: impl FnOnce(&Path) -> T) -> T {
    with_folder(|folder| {
        let path = folder.join(name);
        fs::write(&path, content).expect("written");
        function(&path)
    })
}

/// Splits an input into its first byte, which selects a variant, and the rest.
pub fn selected(input: &[u8]) -> Option<(usize, &[u8])> {
    let (first, rest) = input.split_first()?;
    Some((usize::from(*first), rest))
}

/// Splits an input at the first `separator`; without one, all is before it.
pub fn split<'i>(input: &'i [u8], separator: &[u8]) -> (&'i [u8], &'i [u8]) {
    match memmem::find(input, separator) {
        Some(at) => (&input[..at], &input[at + separator.len()..]),
        None => (input, &[]),
    }
}
