//! Settings that are an amount of memory: a size, or a part of the machine's memory.

use super::check::Check;
use super::groups::ServerSettings;
use super::units::Amount;
use tensorserve_os::machine;

/// The least memory for requests: one small request.
const LEAST_REQUEST_MEMORY: usize = 1 << 20;

/// The memory for requests on a machine whose memory is unknown.
const FALLBACK_REQUEST_MEMORY: usize = 1 << 30;

impl Check {
    /// The bytes of an amount.
    pub(super) fn memory_amount(&mut self, setting: &str, amount: Option<Amount>) -> Option<u64> {
        let percent = match amount? {
            Amount::Bytes(size) => return u64::try_from(size).ok(),
            Amount::Percent(percent) => u64::from(percent),
        };
        let Some(memory) = machine::memory() else {
            let why = "the size of this machine's memory is unknown; write a size, such as 8GiB";
            self.wrong(setting, why);
            return None;
        };
        Some(memory / 100 * percent)
    }

    /// The memory that all requests may use together.
    pub(super) fn max_request_memory(&mut self, server: &ServerSettings) -> usize {
        if server.max_request_memory.is_none() && machine::memory().is_none() {
            return FALLBACK_REQUEST_MEMORY;
        }
        let amount = Some(server.max_request_memory());
        let bytes = self.memory_amount("max_request_memory", amount).unwrap_or(0);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes < LEAST_REQUEST_MEMORY {
            self.wrong("max_request_memory", "must be at least 1MiB");
        }
        bytes.max(LEAST_REQUEST_MEMORY)
    }
}
