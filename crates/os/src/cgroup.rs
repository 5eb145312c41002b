//! Memory of the control groups that this process is in, of versions 1 and 2.
//!
//! A container, a systemd unit (`MemoryMax=`) and a batch job are control groups. Which one this process is
//! in is in `/proc/self/cgroup`, and where its files are in `/proc/self/mountinfo`. The limit of each group
//! around it counts, too.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The files of a group, which differ between the versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    /// The field of `memory.stat` with the cached files that the kernel drops first.
    cached: &'static str,
}

const VERSION_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: "total_inactive_file ",
};

const VERSION_2: GroupFiles =
    GroupFiles { limit: "memory.max", used: "memory.current", cached: "inactive_file " };

/// A group that this process is in, by the folder of its files.
#[derive(Debug, PartialEq, Eq)]
struct ControlGroup {
    folder: PathBuf,
    files: GroupFiles,
}

/// The least limit of the groups that this process is in, in bytes; `None` without one.
pub(crate) fn memory_limit() -> Option<u64> {
    limit_of(&own_groups(Path::new("/")))
}

/// The least unused part of the limits of the groups that this process is in, in bytes; `None` without a
/// limit. Cached files count as unused, because the kernel drops them under pressure.
pub(crate) fn free_memory() -> Option<u64> {
    free_in(&own_groups(Path::new("/")))
}

fn limit_of(groups: &[ControlGroup]) -> Option<u64> {
    groups.iter().filter_map(ControlGroup::limit).min()
}

fn free_in(groups: &[ControlGroup]) -> Option<u64> {
    groups.iter().filter_map(ControlGroup::free).min()
}

impl ControlGroup {
    /// Its limit, which version 1 always has: that of a group without one is larger than any memory.
    fn limit(&self) -> Option<u64> {
        self.number(self.files.limit)
    }

    fn free(&self) -> Option<u64> {
        let (limit, used) = (self.limit()?, self.number(self.files.used)?);
        let stat = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix(self.files.cached));
        let cached = cached.and_then(|cached| cached.trim().parse().ok()).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    }

    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }
}

/// The groups with memory limits that this process is in, each before those around it. `root` is `/`.
fn own_groups(root: &Path) -> Vec<ControlGroup> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (own, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mut groups = Vec::new();
    for mount in mounts.lines().filter_map(GroupMount::parse) {
        let path = own.lines().find_map(|line| mount.path_of(line)).unwrap_or("/");
        groups.extend(mount.groups(root, path));
    }
    groups
}

/// A place where the files of groups are.
struct GroupMount<'m> {
    /// The path of the group at its top.
    top: &'m str,
    place: &'m str,
    files: GroupFiles,
}

impl<'m> GroupMount<'m> {
    /// The mount in a line of `/proc/self/mountinfo`, if it is one of groups with memory limits.
    fn parse(line: &'m str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (top, place) = (fields.next()?, fields.next()?);
        let mut fields = system.split(' ');
        let (kind, options) = (fields.next()?, fields.nth(1).unwrap_or_default());
        let files = match kind {
            "cgroup2" => VERSION_2,
            "cgroup" if options.split(',').any(|option| option == "memory") => VERSION_1,
            _ => return None,
        };
        Some(GroupMount { top, place, files })
    }

    /// The path of the group in a line of `/proc/self/cgroup`, if it is of this hierarchy:
    /// `0::/path`, and `4:memory:/path` of version 1.
    fn path_of<'l>(&self, line: &'l str) -> Option<&'l str> {
        let (number, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_own = match self.files == VERSION_2 {
            true => number == "0" && controllers.is_empty(),
            false => controllers.split(',').any(|controller| controller == "memory"),
        };
        is_own.then_some(path)
    }

    /// The group at `path` and those around it, as far as this mount shows them.
    fn groups(&self, root: &Path, path: &str) -> Vec<ControlGroup> {
        let place = root.join(self.place.trim_start_matches('/'));
        let below = Path::new(path).strip_prefix(self.top);
        // A container may see the path that its group has outside, while its own group is at the top; and
        // a group outside of the top has a path with `..`.
        let below = below.ok().filter(|below| {
            below.components().all(|part| matches!(part, Component::Normal(_)))
                && place.join(below).is_dir()
        });
        let own = below.unwrap_or(Path::new(""));
        let folders = own.ancestors().map(|folder| place.join(folder));
        folders.map(|folder| ControlGroup { folder, files: self.files }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION_2_MOUNT: &str =
        "31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    /// A file system with these files.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        limit_of(&own_groups(system(files).path()))
    }

    #[test]
    fn the_limit_of_a_systemd_unit_is_seen() {
        let unit = "sys/fs/cgroup/system.slice/tensorserve.service";
        let of = |slice: &str| {
            let limit_file = format!("{unit}/memory.max");
            limit(&[
                ("proc/self/mountinfo", VERSION_2_MOUNT),
                ("proc/self/cgroup", "0::/system.slice/tensorserve.service\n"),
                (limit_file.as_str(), "1073741824\n"),
                ("sys/fs/cgroup/system.slice/memory.max", slice),
            ])
        };
        assert_eq!(of("max\n"), Some(1 << 30));
        // The limits of the groups around it count, too.
        assert_eq!(of("536870912\n"), Some(1 << 29));
    }

    #[test]
    fn the_limit_of_version_1_is_seen_at_its_path() {
        let mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let files = [
            ("proc/self/mountinfo", mounts),
            ("proc/self/cgroup", "4:memory:/jobs/7\n1:cpu:/\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "268435456\n"),
        ];
        assert_eq!(limit(&files), Some(256 << 20));
    }

    #[test]
    fn a_container_s_own_group_is_at_the_top_of_its_mount() {
        // Version 2 with a namespace, and version 1, whose mount starts at the group.
        let namespace = [
            ("proc/self/mountinfo", VERSION_2_MOUNT),
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "1000\n"),
        ];
        assert_eq!(limit(&namespace), Some(1000));
        let mount = "35 31 0:32 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        for path in ["5:memory:/docker/1f", "5:memory:/docker/elsewhere", "5:memory:/../other"] {
            let container = [
                ("proc/self/mountinfo", mount),
                ("proc/self/cgroup", path),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n"),
            ];
            assert_eq!(limit(&container), Some(2000), "{path}");
        }
    }

    #[test]
    fn what_is_unused_is_that_of_the_fullest_group() {
        let root = system(&[
            ("proc/self/mountinfo", VERSION_2_MOUNT),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "1000\n"),
            ("sys/fs/cgroup/a/memory.current", "900\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 500\ninactive_file 300\n"),
            ("sys/fs/cgroup/a/b/memory.max", "800\n"),
            ("sys/fs/cgroup/a/b/memory.current", "100\n"),
        ]);
        assert_eq!(free_in(&own_groups(root.path())), Some(400));
    }

    #[test]
    fn without_groups_there_is_no_limit() {
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&[("proc/self/mountinfo", "garbage"), ("proc/self/cgroup", "::")]), None);
    }
}
