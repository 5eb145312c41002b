//! What a target is, and how it is run.

use std::cell::Cell;
use std::path::Path;
use std::sync::Once;
use std::{fs, panic};

use memchr::memmem;
use tempfile::TempDir;
use tensorserve_tensor::budget::MemoryBudget;

use super::memory::{MemoryRule, MemoryUse, use_of};

/// The memory that decoders may reserve for a request.
const REQUEST_BUDGET: usize = 32 << 20;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name: also that of its file in `fuzz_targets/`, and of its folder in `corpus/`.
    pub name: &'static str,
    /// Decodes any bytes. Panics if what must hold does not.
    pub run: fn(&[u8]),
    /// What its memory is compared with.
    pub memory: MemoryRule,
}

impl Target {
    /// Runs the target on `input`, within the budget of a request.
    ///
    /// # Panics
    /// If what must hold does not, or it took too much memory.
    #[allow(dead_code, reason = "fuzz_targets call it, and the test of the corpora does not")]
    pub fn check(&self, input: &[u8]) {
        let MemoryUse { taken, allowed } = self.measure(input);
        let (name, length) = (self.name, input.len());
        assert!(
            taken <= allowed,
            "{name} took {taken} bytes of memory for an input of {length} when it was allowed {allowed}"
        );
    }

    /// The memory that the target takes for `input`, within the budget of a request.
    ///
    /// # Panics
    /// If what must hold does not.
    pub fn measure(&self, input: &[u8]) -> MemoryUse {
        let budget = MemoryBudget::new(REQUEST_BUDGET).request().expect("memory for one request");
        use_of(self.memory, input.len(), || budget.enter(|| (self.run)(input)))
    }
}

thread_local! {
    /// A folder for files that a decoder reads. libFuzzer does not end threads, so `scripts/fuzz.py`
    /// puts it into a folder that it removes.
    static FOLDER: TempDir = TempDir::new().expect("a temporary folder");
}

thread_local! {
    /// Whether the decoder that is called catches the panics of a library.
    static CATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Calls `function`, which catches the panics of a library: libFuzzer would end at one.
pub fn with_caught_panics<T>(function: impl FnOnce() -> T) -> T {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let other = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !CATCHES.get() {
                other(info);
            }
        }));
    });
    CATCHES.set(true);
    let result = function();
    CATCHES.set(false);
    result
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
