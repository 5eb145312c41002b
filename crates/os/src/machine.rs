//! The memory of the machine, of the container and of processes, as Linux tells of it.

use std::fs;

/// Files that hold the limit of a container's memory, where it has one: control groups, version 2
/// and 1.
const LIMITS: [&str; 2] =
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// The memory that this process can have, in bytes: the container's limit or what there is.
#[must_use]
pub fn memory() -> Option<u64> {
    let limits = LIMITS.iter().filter_map(|path| number(path));
    limits.chain(kilobytes("/proc/meminfo", "MemTotal:")).min()
}

/// The bytes of memory that can still be had, on this machine and in this container.
#[must_use]
pub fn free_memory() -> u64 {
    let machine = kilobytes("/proc/meminfo", "MemAvailable:").unwrap_or(u64::MAX);
    machine.min(free_in_container().unwrap_or(u64::MAX))
}

/// What is left of the control group's limit, if there is one. Files that are only cached make
/// room when they must.
fn free_in_container() -> Option<u64> {
    let limit = number("/sys/fs/cgroup/memory.max")?;
    let used = number("/sys/fs/cgroup/memory.current")?;
    let parts = fs::read_to_string("/sys/fs/cgroup/memory.stat").unwrap_or_default();
    let cached = parts.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let cached = cached.and_then(|cached| cached.trim().parse().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// The bytes of memory that a process holds: this one, or the one of that number.
#[must_use]
pub fn resident_memory(process: Option<u32>) -> Option<u64> {
    let process = process.map_or("self".to_owned(), |number| number.to_string());
    kilobytes(&format!("/proc/{process}/status"), "VmRSS:")
}

/// The number that a file of the kernel's holds.
fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The bytes that the line `name` of a file of the kernel's says.
fn kilobytes(path: &str, name: &str) -> Option<u64> {
    in_bytes(&fs::read_to_string(path).ok()?, name)
}

/// The same of its text, which counts in kB.
fn in_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_in_bytes() {
        let total = |text| in_bytes(text, "MemTotal:");
        assert_eq!(total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert!(memory().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn what_a_process_holds_is_part_of_what_there_is() {
        let own = resident_memory(None).expect("known");
        assert!(own > 1 << 20 && own < memory().expect("known"), "{own}");
        // No process has this number.
        assert_eq!(resident_memory(Some(u32::MAX)), None);
    }
}
