//! Memory of the machine, of the container and of processes, and the CPU time of this one and of its threads, as Linux reports them.

use std::fs;
use std::time::Duration;

use crate::cgroup;

/// The memory available to this process, in bytes: the limit of its control groups (a container, a systemd
/// unit) or the machine's memory, whichever is less. `None` if neither is known.
#[must_use]
pub fn memory() -> Option<u64> {
    cgroup::memory_limit().into_iter().chain(read_field("/proc/meminfo", "MemTotal:")).min()
}

/// The memory that can still be allocated on this machine and in this container or unit, in bytes;
/// `u64::MAX` if it is unknown.
#[must_use]
pub fn free_memory() -> u64 {
    let machine = read_field("/proc/meminfo", "MemAvailable:").unwrap_or(u64::MAX);
    machine.min(cgroup::free_memory().unwrap_or(u64::MAX))
}

/// The resident memory of a process in bytes: of this one, or of the one with the given ID.
#[must_use]
pub fn resident_memory(pid: Option<u32>) -> Option<u64> {
    let pid = pid.map_or("self".to_owned(), |pid| pid.to_string());
    read_field(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// The private memory that this process has allocated, in bytes, whether used or not.
#[must_use]
pub fn private_memory() -> Option<u64> {
    read_field("/proc/self/status", "VmData:")
}

/// The CPU time that this process has used, in seconds.
#[must_use]
pub fn cpu_time() -> Option<f64> {
    parse_cpu_time(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// The CPU time in the text of a process's `stat`, in seconds.
/// The time that this thread was ready to run and had no CPU, because other threads had them. `None` where the system
/// does not count it.
#[must_use]
pub fn thread_cpu_wait() -> Option<Duration> {
    // Nanoseconds on a CPU, nanoseconds in the queue of one, and turns.
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').nth(1)?.parse().ok().map(Duration::from_nanos)
}

fn parse_cpu_time(stat: &str) -> Option<f64> {
    // The fields after the process name, which may itself contain blanks and brackets.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    // User and system time; Linux counts both in hundredths of a second for user space.
    Some((ticks(11)? + ticks(12)?) / 100.0)
}

/// The field `name` of a kernel file, in bytes.
fn read_field(path: &str, name: &str) -> Option<u64> {
    parse_field(&fs::read_to_string(path).ok()?, name)
}

/// The field `name` of a kernel file's text, which is in kB there, in bytes.
fn parse_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_in_bytes() {
        let total = |text| parse_field(text, "MemTotal:");
        assert_eq!(total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert!(memory().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn the_name_of_a_process_does_not_hide_its_cpu_time() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 1 0 99\n";
        assert_eq!(parse_cpu_time(stat), Some(3.0));
        assert_eq!(parse_cpu_time("7 (a) S 1"), None);
        assert!(cpu_time().is_some());
        assert!(!cfg!(target_os = "linux") || thread_cpu_wait().is_some());
    }

    #[test]
    fn what_a_process_holds_is_part_of_what_there_is() {
        let own = resident_memory(None).expect("known");
        assert!(own > 1 << 20 && own < memory().expect("known"), "{own}");
        // No process has this ID.
        assert_eq!(resident_memory(Some(u32::MAX)), None);
    }
}
