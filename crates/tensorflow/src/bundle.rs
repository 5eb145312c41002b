//! Reads the index of a TensorFlow checkpoint, to know which data files a SavedModel needs and
//! how long each must be: a copy that is still under way is then seen before it is loaded.
//!
//! The index is a sorted string table in LevelDB's format (`lib/io/format.cc`): data blocks of
//! prefix-compressed keys, an index block that names them, a 48-byte footer. Key "" holds the
//! number of shards, every other key is a variable with its place in a shard.

use std::borrow::Cow;

use prost::Message;

use tensorserve_proto::tensorflow::{BundleEntryProto, BundleHeaderProto};

const FOOTER: usize = 48;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// Far above the 256 kB at which TensorFlow starts a new block.
const LARGEST_BLOCK: usize = 64 << 20;
/// After each block: a byte for its compression (1 is Snappy) and four of checksum.
const TRAILER: usize = 5;

/// The least number of bytes that each shard `variables.data-NNNNN-of-MMMMM` must have.
///
/// `None` if the file is no whole index: it may still be being written.
pub(super) fn shard_sizes(index: &[u8]) -> Option<Vec<u64>> {
    let footer = index.get(index.len().checked_sub(FOOTER)?..)?;
    let magic = u64::from_le_bytes(footer.get(40..)?.try_into().ok()?);
    if magic != MAGIC {
        return None;
    }
    let mut handles = Reader(footer);
    handles.handle()?; // The meta-index, which TensorFlow leaves empty.
    let mut sizes: Option<Vec<u64>> = None;
    for entry in entries(&block(index, handles.handle()?)?)? {
        let data = block(index, Reader(&entry.value).handle()?)?;
        for entry in entries(&data)? {
            if entry.key.is_empty() {
                let header = BundleHeaderProto::decode(entry.value.as_slice()).ok()?;
                // A real checkpoint has at most some thousands of shards.
                let shards = usize::try_from(header.num_shards).ok()?;
                sizes = Some(vec![0; (1..=100_000).contains(&shards).then_some(shards)?]);
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

/// The content of a block, which may be compressed.
fn block(table: &[u8], (offset, size): (usize, usize)) -> Option<Cow<'_, [u8]>> {
    let end = offset.checked_add(size)?;
    table.get(end..end.checked_add(TRAILER)?)?;
    let content = table.get(offset..end)?;
    match table.get(end)? {
        0 => Some(Cow::Borrowed(content)),
        1 if snap::raw::decompress_len(content).ok()? <= LARGEST_BLOCK => {
            let inflated = snap::raw::Decoder::new().decompress_vec(content);
            inflated.ok().map(Cow::Owned)
        }
        _ => None,
    }
}

struct Entry {
    key: Vec<u8>,
    value: Vec<u8>,
}

fn entries(block: &[u8]) -> Option<Vec<Entry>> {
    let restarts_at = block.len().checked_sub(4)?;
    let restarts = u32::from_le_bytes(block.get(restarts_at..)?.try_into().ok()?);
    let restarts = usize::try_from(restarts).ok()?;
    let end = restarts_at.checked_sub(restarts.checked_mul(4)?)?;
    let mut reader = Reader(block.get(..end)?);
    let mut entries: Vec<Entry> = Vec::new();
    while !reader.0.is_empty() {
        let (shared, unshared, value) = (reader.size()?, reader.size()?, reader.size()?);
        let previous = entries.last().map_or(&[][..], |e| &e.key);
        let mut key = previous.get(..shared)?.to_vec();
        key.extend_from_slice(reader.take(unshared)?);
        let value = reader.take(value)?.to_vec();
        entries.push(Entry { key, value });
    }
    Some(entries)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn size(&mut self) -> Option<usize> {
        let value = prost::encoding::decode_varint(&mut self.0).ok()?;
        usize::try_from(value).ok()
    }

    /// Where a block is: offset and size.
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
