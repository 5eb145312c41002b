//! What the machine has.

use std::fs;

/// Files that hold the limit of a container's memory, where it has one: control groups, version 2
/// and 1.
const LIMITS: [&str; 2] =
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// The memory that this process can have, in bytes: the container's limit or what there is.
#[must_use]
pub fn memory() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let limits = LIMITS.iter().filter_map(|path| read(path)?.trim().parse().ok());
    limits.chain(read("/proc/meminfo").as_deref().and_then(total)).min()
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_in_bytes() {
        assert_eq!(total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert!(memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
