//! Reads the index of a TensorFlow checkpoint for the data files that a SavedModel needs and their
//! sizes, so that a copy in progress is detected before it is loaded.
//!
//! The index is a sorted string table in LevelDB's format (`lib/io/format.cc`): data blocks of
//! prefix-compressed keys, an index block that locates them, and a footer. The key "" has the number
//! of shards; every other key is a variable with its position in a shard.

use std::borrow::Cow;

use prost::Message;

use tensorserve_proto::tensorflow::{BundleEntryProto, BundleHeaderProto};

/// Size of the footer in bytes: block handles, padded, and a magic number.
const FOOTER: usize = 48;

/// Offset of the magic number in the footer.
const MAGIC_OFFSET: usize = 40;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;

/// The largest decompressed block in bytes, far above the 256 kB at which TensorFlow starts a new
/// one.
const MAX_BLOCK: usize = 64 << 20;

/// Size of what follows each block in bytes: its compression (one byte) and a checksum.
const TRAILER: usize = 5;

/// The values of the compression byte.
const UNCOMPRESSED: u8 = 0;
const SNAPPY: u8 = 1;

/// The most shards of a checkpoint; real ones have some thousands at most.
const MAX_SHARDS: usize = 100_000;

/// The minimum size in bytes of each shard `variables.data-NNNNN-of-MMMMM`.
///
/// `None` if the file is not a complete index; it may still be being written.
pub(crate) fn shard_sizes(index: &[u8]) -> Option<Vec<u64>> {
    let footer = index.get(index.len().checked_sub(FOOTER)?..)?;
    let magic = u64::from_le_bytes(footer.get(MAGIC_OFFSET..)?.try_into().ok()?);
    if magic != MAGIC {
        return None;
    }
    let mut handles = TableReader(footer);
    handles.handle()?; // The meta-index, which TensorFlow leaves empty.
    let mut sizes: Option<Vec<u64>> = None;
    for entry in entries(&block(index, handles.handle()?)?)? {
        let data = block(index, TableReader(&entry.value).handle()?)?;
        for entry in entries(&data)? {
            if entry.key.is_empty() {
                let header = BundleHeaderProto::decode(entry.value.as_slice()).ok()?;
                let shards = usize::try_from(header.num_shards).ok()?;
                sizes = Some(vec![0; (1..=MAX_SHARDS).contains(&shards).then_some(shards)?]);
                continue;
            }
            let variable = BundleEntryProto::decode(entry.value.as_slice()).ok()?;
            let end = u64::try_from(variable.offset.checked_add(variable.size)?).ok()?;
            let shard = usize::try_from(variable.shard_id).ok()?;
            let size = sizes.as_mut()?.get_mut(shard)?;
            *size = end.max(*size);
        }
    }
    sizes
}

/// The decompressed content of a block.
fn block(table: &[u8], (offset, size): (usize, usize)) -> Option<Cow<'_, [u8]>> {
    let end = offset.checked_add(size)?;
    table.get(end..end.checked_add(TRAILER)?)?;
    let content = table.get(offset..end)?;
    match *table.get(end)? {
        UNCOMPRESSED => Some(Cow::Borrowed(content)),
        SNAPPY if snap::raw::decompress_len(content).ok()? <= MAX_BLOCK => {
            let decompressed = snap::raw::Decoder::new().decompress_vec(content);
            decompressed.ok().map(Cow::Owned)
        }
        _ => None,
    }
}

struct TableEntry {
    key: Vec<u8>,
    value: Vec<u8>,
}

/// The entries of a block, which ends with the offsets of keys without a shared prefix ("restarts")
/// and their number.
fn entries(block: &[u8]) -> Option<Vec<TableEntry>> {
    let count_at = block.len().checked_sub(4)?;
    let restarts = u32::from_le_bytes(block.get(count_at..)?.try_into().ok()?);
    let restarts = usize::try_from(restarts).ok()?;
    let end = count_at.checked_sub(restarts.checked_mul(4)?)?;
    let mut reader = TableReader(block.get(..end)?);
    let mut entries: Vec<TableEntry> = Vec::new();
    while !reader.0.is_empty() {
        let (shared, unshared, value) = (reader.size()?, reader.size()?, reader.size()?);
        let previous = entries.last().map_or(&[][..], |e| &e.key);
        let mut key = previous.get(..shared)?.to_vec();
        key.extend_from_slice(reader.take(unshared)?);
        let value = reader.take(value)?.to_vec();
        entries.push(TableEntry { key, value });
    }
    Some(entries)
}

struct TableReader<'a>(&'a [u8]);

impl<'a> TableReader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    /// A size as a varint.
    fn size(&mut self) -> Option<usize> {
        let value = prost::encoding::decode_varint(&mut self.0).ok()?;
        usize::try_from(value).ok()
    }

    /// The handle of a block: its offset and size.
    fn handle(&mut self) -> Option<(usize, usize)> {
        Some((self.size()?, self.size()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(shared: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![shared, key.len() as u8, value.len() as u8];
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        bytes
    }

    fn table(entries: &[Vec<u8>]) -> Vec<u8> {
        let finish = |mut block: Vec<u8>| {
            block.extend_from_slice(&0u32.to_le_bytes()); // first restart
            block.extend_from_slice(&1u32.to_le_bytes()); // number of restarts
            let size = block.len() as u8;
            block.extend_from_slice(&[0; TRAILER]);
            (block, size)
        };
        let (mut file, size) = finish(entries.concat());
        let index_at = file.len() as u8;
        let (index, index_size) = finish(entry(0, b"z", &[0, size]));
        file.extend(index);
        let mut footer = vec![0, 0, index_at, index_size];
        footer.resize(40, 0);
        footer.extend_from_slice(&MAGIC.to_le_bytes());
        file.extend(footer);
        file
    }

    fn sample() -> Vec<u8> {
        let header = BundleHeaderProto { num_shards: 2 }.encode_to_vec();
        let variable =
            |shard_id, offset, size| BundleEntryProto { shard_id, offset, size }.encode_to_vec();
        table(&[
            entry(0, b"", &header),
            entry(0, b"kernel", &variable(0, 100, 28)),
            entry(3, b"b", &variable(1, 0, 7)),
        ])
    }

    #[test]
    fn sizes_are_the_ends_of_the_last_variables() {
        assert_eq!(shard_sizes(&sample()), Some(vec![128, 7]));
    }

    #[test]
    fn a_cut_or_damaged_index_is_no_index_and_never_a_panic() {
        let whole = sample();
        for end in 0..whole.len() {
            let _ = shard_sizes(&whole[..end]);
        }
        assert_eq!(shard_sizes(&whole[..whole.len() - 1]), None);
        for position in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[position] ^= 0xff;
            let _ = shard_sizes(&damaged);
        }
    }
}
