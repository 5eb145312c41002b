//! The plan of a job: its inputs, listed once and divided into entries.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use tensorserve_store::objects::ObjectInfo;
use tensorserve_tensor::error::{Code, Error, Result};

/// Small objects are grouped until they have this many bytes together.
const GROUP_BYTES: u64 = 4 << 20;

/// The most objects in a group that is not made of batches.
const GROUP_OBJECTS: usize = 64;

/// The most batches in an entry of objects that are records.
const GROUP_BATCHES: usize = 8;

/// An input object, as it was listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedObject {
    /// Its key below the input.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its version: the ETag, or what stands for it.
    pub tag: String,
}

impl PlannedObject {
    /// An object that is planned by itself.
    #[must_use]
    pub fn of(object: &ObjectInfo) -> Self {
        let ObjectInfo { key, size, tag } = object.clone();
        PlannedObject { key, size, tag }
    }
}

/// A range of an object that is processed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRange {
    /// Its number in the object, from 0.
    pub part: usize,
    /// The number of ranges of the object.
    pub parts: usize,
    /// Its first byte.
    pub start: u64,
    /// The byte behind it.
    pub end: u64,
}

/// What is read, run, published and marked as done as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number, from 0.
    pub entry: usize,
    /// Its objects; one, if it has a range.
    pub objects: Vec<PlannedObject>,
    /// The range of its object; `None` for whole objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<PlannedRange>,
}

/// How inputs become entries.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// Objects are records, and this many make a batch.
    pub objects_per_batch: Option<usize>,
    /// The most bytes of such objects in an entry, which is in memory as a whole; more, if one object has
    /// more.
    pub max_entry_bytes: u64,
    /// Larger objects are divided into ranges of this many bytes; `None` for never.
    pub range_bytes: Option<u64>,
}

/// All entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The entries, in order of the keys.
    pub entries: Vec<Entry>,
}

impl Entry {
    /// The bytes of its inputs.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self.range {
            Some(range) => range.end - range.start,
            None => self.objects.iter().map(|object| object.size).sum(),
        }
    }

    /// The objects that begin in it: none in the later ranges of an object.
    #[must_use]
    pub fn beginning_objects(&self) -> usize {
        match self.range {
            Some(range) if range.part > 0 => 0,
            _ => self.objects.len(),
        }
    }
}

impl Plan {
    /// A plan for these objects, which are in order.
    #[must_use]
    pub fn new(objects: Vec<ObjectInfo>, options: PlanOptions) -> Self {
        let mut plan = Plan::default();
        // An entry that is interrupted is run again: those of small objects are no larger than ranges.
        let group_bytes = options.range_bytes.unwrap_or(u64::MAX).min(GROUP_BYTES);
        let mut group: Vec<PlannedObject> = Vec::new();
        let mut bytes = 0;
        for ObjectInfo { key, size, tag } in objects {
            let object = PlannedObject { key, size, tag };
            if let Some(range_bytes) = options.range_bytes.filter(|most| size > *most) {
                plan.push(std::mem::take(&mut group));
                bytes = 0;
                plan.push_ranges(&object, range_bytes);
                continue;
            }
            let is_full = match options.objects_per_batch {
                Some(batch) => {
                    group.len() >= batch.saturating_mul(GROUP_BATCHES)
                        || (!group.is_empty() && bytes + size > options.max_entry_bytes)
                }
                None => group.len() >= GROUP_OBJECTS || bytes + size > group_bytes,
            };
            if is_full {
                plan.push(std::mem::take(&mut group));
                bytes = 0;
            }
            bytes += size;
            group.push(object);
        }
        plan.push(group);
        plan
    }

    fn push(&mut self, objects: Vec<PlannedObject>) {
        if !objects.is_empty() {
            self.entries.push(Entry { entry: self.entries.len(), objects, range: None });
        }
    }

    fn push_ranges(&mut self, object: &PlannedObject, range_bytes: u64) {
        let range_bytes = range_bytes.max(1);
        let count = object.size.div_ceil(range_bytes);
        let parts = usize::try_from(count).unwrap_or(usize::MAX);
        for part in 0..parts {
            let start = range_bytes * u64::try_from(part).unwrap_or(u64::MAX);
            let end = object.size.min(start.saturating_add(range_bytes));
            let range = Some(PlannedRange { part, parts, start, end });
            let entry = self.entries.len();
            self.entries.push(Entry { entry, objects: vec![object.clone()], range });
        }
    }

    /// The bytes of all inputs.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(Entry::bytes).sum()
    }

    /// The number of input objects.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.entries.iter().map(Entry::beginning_objects).sum()
    }

    /// The number of entries that are ranges of objects.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.entries.iter().filter(|entry| entry.range.is_some()).count()
    }

    /// The entries of all parts of the object that `entry` is a range of.
    pub fn parts_of(&self, entry: &Entry) -> impl Iterator<Item = &Entry> {
        let first = entry.range.map_or(entry.entry, |range| entry.entry - range.part);
        let count = entry.range.map_or(1, |range| range.parts);
        self.entries.iter().skip(first).take(count)
    }

    /// The plan as text: a line of JSON for each entry.
    ///
    /// # Errors
    /// Never in practice.
    pub fn to_lines(&self) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        for entry in &self.entries {
            serde_json::to_writer(&mut text, entry)
                .map_err(|e| Error::internal("the plan cannot be written").with_source(e))?;
            text.push(b'\n');
        }
        Ok(text)
    }

    /// Reads what [`Plan::to_lines`] has written.
    ///
    /// # Errors
    /// If the text is damaged.
    pub fn of_lines(text: &[u8]) -> Result<Self> {
        let mut entries = Vec::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            let damaged = |why: &str| {
                let line = index + 1;
                Error::new(Code::DataLoss, format!("the plan is damaged at line {line}: {why}"))
            };
            let entry: Entry = serde_json::from_slice(line).map_err(|e| damaged(&e.to_string()))?;
            if entry.entry != entries.len() || entry.objects.is_empty() {
                return Err(damaged("an entry is missing"));
            }
            entries.push(entry);
        }
        let plan = Plan { entries };
        plan.check_ranges()?;
        Ok(plan)
    }

    fn check_ranges(&self) -> Result<()> {
        for entry in &self.entries {
            let Some(range) = entry.range else {
                continue;
            };
            let fits = range.part < range.parts
                && range.part <= entry.entry
                && range.start < range.end
                && entry.entry - range.part + range.parts <= self.entries.len();
            if !fits {
                let number = entry.entry;
                let message = format!("the plan is damaged: entry {number} has a wrong range");
                return Err(Error::new(Code::DataLoss, message));
            }
        }
        Ok(())
    }

    /// The entries of shard `index` of `count`: the largest first, each to the shard with the fewest
    /// bytes so far. All machines compute the same.
    #[must_use]
    pub fn shard(&self, index: usize, count: usize) -> Vec<usize> {
        let mut order: Vec<&Entry> = self.entries.iter().collect();
        order.sort_by_key(|entry| (Reverse(entry.bytes()), entry.entry));
        let mut loads: BinaryHeap<Reverse<(u64, usize)>> =
            (0..count.max(1)).map(|shard| Reverse((0, shard))).collect();
        let mut own = Vec::new();
        for entry in order {
            let Some(Reverse((load, shard))) = loads.pop() else {
                break;
            };
            if shard == index {
                own.push(entry.entry);
            }
            // An empty object costs something, too.
            loads.push(Reverse((load + entry.bytes() + 1, shard)));
        }
        own.sort_unstable();
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(sizes: &[u64]) -> Vec<ObjectInfo> {
        let named = |(index, size): (usize, &u64)| ObjectInfo {
            key: format!("{index:03}"),
            size: *size,
            tag: "t".to_owned(),
        };
        sizes.iter().enumerate().map(named).collect()
    }

    #[test]
    fn small_objects_share_entries_and_large_ones_are_divided() {
        let range_bytes = Some(10 << 20);
        let options = PlanOptions { objects_per_batch: None, max_entry_bytes: 0, range_bytes };
        let plan = Plan::new(objects(&[1, 2, 25 << 20, 3, 3 << 20, 2 << 20]), options);
        let shape: Vec<(usize, u64)> =
            plan.entries.iter().map(|entry| (entry.objects.len(), entry.bytes())).collect();
        let mib = |n: u64| n << 20;
        assert_eq!(
            shape,
            [(2, 3), (1, mib(10)), (1, mib(10)), (1, mib(5)), (2, mib(3) + 3), (1, mib(2))]
        );
        assert_eq!(plan.objects(), 6);
        assert_eq!(plan.parts_of(&plan.entries[2]).map(|e| e.entry).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(Plan::of_lines(&plan.to_lines().expect("text")).expect("a plan"), plan);
    }

    #[test]
    fn objects_that_are_records_make_batches() {
        let max_entry_bytes = 27 << 20;
        let options =
            PlanOptions { objects_per_batch: Some(3), max_entry_bytes, range_bytes: None };
        let counts = |sizes: &[u64]| {
            let plan = Plan::new(objects(sizes), options);
            plan.entries.iter().map(|entry| entry.objects.len()).collect::<Vec<_>>()
        };
        assert_eq!(counts(&[9 << 20; 8]), [3, 3, 2]);
        assert_eq!(counts(&[30 << 20, 1, 30 << 20]), [1, 1, 1]);
        assert_eq!(counts(&[1; 50]), [24, 24, 2]);
    }

    #[test]
    fn every_entry_belongs_to_one_shard_and_shards_are_even() {
        // As large as the smallest object: entries of one.
        let options =
            PlanOptions { objects_per_batch: Some(1), max_entry_bytes: 0, range_bytes: None };
        let sizes: Vec<u64> = (0..97).map(|n| n * n % 41 * 1000).collect();
        let plan = Plan::new(objects(&sizes), options);
        let mut seen = vec![0; 97];
        let mut loads = Vec::new();
        for shard in 0..4 {
            let own = plan.shard(shard, 4);
            loads.push(own.iter().map(|&n| plan.entries[n].bytes()).sum::<u64>());
            own.iter().for_each(|&n| seen[n] += 1);
        }
        assert_eq!(seen, [1; 97]);
        let (least, most) = (loads.iter().min().expect("4"), loads.iter().max().expect("4"));
        assert!(most - least <= 40_000, "{loads:?}");
    }

    #[test]
    fn damaged_plans_are_refused() {
        for damaged in [
            "{",
            "{\"entry\":1,\"objects\":[{\"key\":\"a\",\"size\":1,\"tag\":\"\"}]}",
            "{\"entry\":0,\"objects\":[]}",
            "{\"entry\":0,\"objects\":[{\"key\":\"a\",\"size\":1,\"tag\":\"\"}],\
             \"range\":{\"part\":0,\"parts\":2,\"start\":0,\"end\":1}}",
        ] {
            assert!(Plan::of_lines(damaged.as_bytes()).is_err(), "{damaged}");
        }
    }
}
