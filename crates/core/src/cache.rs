//! The response cache: outputs of runs, to answer equal requests with.
//!
//! An entry belongs to one loaded version, so that another version, and the same version loaded again,
//! never answers with it; its inputs are kept beside its outputs and compared in full, because clients
//! choose the bytes. Keys are a hash with a key that is random per process, so that clients cannot choose
//! requests that share a key either.
//!
//! The outputs of a run are cached before those that the client wants are selected: one entry serves every
//! selection.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};
use siphasher::sip128::{Hasher128, SipHasher13};
use smallvec::SmallVec;

use crate::metrics::CacheReading;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Buffer, Data, STRING_OVERHEAD, StringsBuilder, Tensor, aligned_vec};

/// The most bytes of an entry: hashing and comparing so much takes a few milliseconds of a thread that
/// other connections share.
const LARGEST_ENTRY: u64 = 4 << 20;

/// An entry takes at most this part of the cache.
const ENTRY_PART: u64 = 16;

/// Most parts of the cache with a lock of their own.
const MOST_SHARDS: u64 = 16;

/// The memory of an entry besides its tensors: its places in the cache's tables.
const ENTRY_OVERHEAD: u64 = 256;

/// The memory of a tensor besides its elements: what counts its references, and the allocator's part.
const TENSOR_OVERHEAD: u64 = 64 + size_of::<Tensor>() as u64;

/// The usual size of an entry, from which the cache plans its tables.
const USUAL_ENTRY: usize = 4096;

/// The responses of all models. They take at most a configured amount of memory.
pub(crate) struct ResponseCache {
    entries: Entries,
    /// The key of the hash.
    secret: (u64, u64),
    largest: u64,
    evictions: Arc<AtomicU64>,
    /// Loaded versions so far.
    versions: AtomicU64,
}

type Entries = Cache<u128, Arc<CachedRun>, Weigh, AsHashed, Evictions>;

/// A run of a signature.
struct CachedRun {
    /// The number of the loaded version.
    owner: u64,
    signature: usize,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    bytes: u64,
}

#[derive(Clone)]
struct Weigh;

impl Weighter<u128, Arc<CachedRun>> for Weigh {
    fn weight(&self, _: &u128, run: &Arc<CachedRun>) -> u64 {
        run.bytes
    }
}

/// Counts evictions, and frees what is evicted only after the cache's lock is released.
#[derive(Clone)]
struct Evictions(Arc<AtomicU64>);

impl Lifecycle<u128, Arc<CachedRun>> for Evictions {
    type RequestState = SmallVec<[Arc<CachedRun>; 4]>;

    fn on_evict(&self, state: &mut Self::RequestState, _: u128, run: Arc<CachedRun>) {
        self.0.fetch_add(1, Relaxed);
        state.push(run);
    }
}

/// Keys are hashes already.
#[derive(Clone, Default)]
struct AsHashed(u64);

impl BuildHasher for AsHashed {
    type Hasher = AsHashed;

    fn build_hasher(&self) -> AsHashed {
        AsHashed(0)
    }
}

impl Hasher for AsHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    #[allow(clippy::cast_possible_truncation)] // Half of it is enough to find a place.
    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }
}

impl ResponseCache {
    /// A cache of at most `bytes` bytes.
    ///
    /// # Errors
    /// Never in practice: the options of the cache are complete.
    pub(crate) fn new(bytes: usize) -> Result<Arc<Self>> {
        let limit = bytes as u64;
        let largest = (limit / ENTRY_PART).min(LARGEST_ENTRY);
        let shards = (limit / (4 * largest).max(1)).clamp(1, MOST_SHARDS);
        let options = OptionsBuilder::new()
            .weight_capacity(limit)
            .estimated_items_capacity(bytes / USUAL_ENTRY)
            .shards(usize::try_from(shards).unwrap_or(1))
            .build();
        let options = options
            .map_err(|e| Error::internal("the response cache cannot be made").with_source(e))?;
        let evictions = Arc::new(AtomicU64::new(0));
        let lifecycle = Evictions(Arc::clone(&evictions));
        Ok(Arc::new(ResponseCache {
            entries: Cache::with_options(options, Weigh, AsHashed::default(), lifecycle),
            secret: (RandomState::new().hash_one(0), RandomState::new().hash_one(1)),
            largest,
            evictions,
            versions: AtomicU64::new(0),
        }))
    }

    /// The part of a version that has just been loaded.
    pub(crate) fn of_version(self: &Arc<Self>) -> VersionCache {
        VersionCache { cache: Arc::clone(self), number: self.versions.fetch_add(1, Relaxed) }
    }

    /// What the metrics say of it.
    pub(crate) fn reading(&self) -> CacheReading {
        CacheReading {
            bytes: self.entries.weight(),
            limit: self.entries.capacity(),
            entries: self.entries.len() as u64,
            evictions: self.evictions.load(Relaxed),
        }
    }
}

/// The responses of one loaded version. They are removed with it.
pub(crate) struct VersionCache {
    cache: Arc<ResponseCache>,
    number: u64,
}

/// The key of a run's inputs.
#[derive(Clone, Copy)]
pub(crate) struct CacheKey {
    hash: u128,
    signature: usize,
}

impl VersionCache {
    /// The key of a run of a signature on `inputs`; `None` if they are too large to be cached.
    pub(crate) fn key(&self, signature: usize, inputs: &[Tensor]) -> Option<CacheKey> {
        if weight(inputs) > self.cache.largest {
            return None;
        }
        let (low, high) = self.cache.secret;
        let mut hasher = SipHasher13::new_with_keys(low, high);
        hasher.write_u64(self.number);
        hasher.write_u64(signature as u64);
        for input in inputs {
            hash(input, &mut hasher);
        }
        Some(CacheKey { hash: hasher.finish128().as_u128(), signature })
    }

    /// The outputs of an earlier run on equal inputs.
    pub(crate) fn get(&self, key: CacheKey, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
        let run = self.cache.entries.get(&key.hash)?;
        let is_meant = run.owner == self.number && run.signature == key.signature;
        let is_equal = is_meant
            && run.inputs.len() == inputs.len()
            && run.inputs.iter().zip(inputs).all(|(a, b)| is_equal(a, b));
        is_equal.then(|| run.outputs.clone())
    }

    /// Keeps the outputs of a run, unless they are too large.
    pub(crate) fn insert(&self, key: CacheKey, inputs: &[Tensor], outputs: &[Tensor]) {
        let bytes = ENTRY_OVERHEAD + weight(inputs) + weight(outputs);
        if bytes > self.cache.largest {
            return;
        }
        // Inputs are views of a request's body, or grew while they were read: what they keep in memory
        // is not known.
        let inputs = inputs.iter().map(copied).collect::<Result<_>>();
        let outputs = outputs.iter().map(kept).collect::<Result<_>>();
        let (Ok(inputs), Ok(outputs)) = (inputs, outputs) else {
            return;
        };
        let (owner, signature) = (self.number, key.signature);
        let run = CachedRun { owner, signature, inputs, outputs, bytes };
        self.cache.entries.insert(key.hash, Arc::new(run));
    }
}

impl Drop for VersionCache {
    fn drop(&mut self) {
        self.cache.entries.retain(|_, run| run.owner != self.number);
    }
}

/// The memory of copies of these tensors.
fn weight(tensors: &[Tensor]) -> u64 {
    let weights = tensors.iter().map(|tensor| {
        let strings = tensor.strings().map_or(0, |strings| strings.len() * STRING_OVERHEAD);
        TENSOR_OVERHEAD + (tensor.byte_len() + strings) as u64
    });
    weights.sum()
}

/// Adds everything about a tensor to a hash, so that different tensors add different bytes.
fn hash(tensor: &Tensor, hasher: &mut SipHasher13) {
    hasher.write_i32(tensor.dtype().number());
    let dims = tensor.shape().dims();
    hasher.write_u64(dims.len() as u64);
    for dim in dims {
        hasher.write_i64(*dim);
    }
    match tensor.data() {
        Data::Numeric(buffer) => hasher.write(buffer.as_slice()),
        Data::Strings(strings) => {
            for string in strings.optional() {
                hasher.write_u64(string.map_or(u64::MAX, |string| string.len() as u64));
                hasher.write(string.unwrap_or_default());
            }
        }
    }
}

/// Whether two tensors are equal in every byte.
fn is_equal(a: &Tensor, b: &Tensor) -> bool {
    if a.dtype() != b.dtype() || a.shape() != b.shape() {
        return false;
    }
    match (a.data(), b.data()) {
        (Data::Numeric(a), Data::Numeric(b)) => a.as_slice() == b.as_slice(),
        (Data::Strings(a), Data::Strings(b)) => a.len() == b.len() && a.optional().eq(b.optional()),
        (Data::Numeric(_), Data::Strings(_)) | (Data::Strings(_), Data::Numeric(_)) => false,
    }
}

/// The tensor to keep: itself, or a copy if it is a view of more, such as the outputs of a batch.
fn kept(tensor: &Tensor) -> Result<Tensor> {
    let is_whole = tensor.strings().is_none() && tensor.kept_len() == tensor.byte_len();
    if is_whole { Ok(tensor.clone()) } else { copied(tensor) }
}

/// A copy, in memory of its own.
fn copied(tensor: &Tensor) -> Result<Tensor> {
    let shape = tensor.shape().clone();
    match tensor.data() {
        Data::Numeric(buffer) => {
            let bytes = buffer.as_slice();
            let mut copy = aligned_vec::<u8>(bytes.len());
            copy.extend_from_slice(bytes);
            Tensor::numeric(tensor.dtype(), shape, Buffer::new(Arc::new(copy)))
        }
        Data::Strings(strings) => {
            let mut copy = StringsBuilder::with_capacity(strings.len(), strings.byte_len());
            strings.optional().for_each(|string| copy.push_optional(string));
            Tensor::from_strings(shape, copy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::Shape;

    fn floats(values: &[f32]) -> Tensor {
        let mut elements = aligned_vec(0);
        elements.extend_from_slice(values);
        Tensor::from_vec(Shape::vector(values.len()), elements).expect("a tensor")
    }

    fn texts(values: &[&str]) -> Tensor {
        let mut builder = StringsBuilder::default();
        values.iter().for_each(|value| builder.push(value.as_bytes()));
        Tensor::from_strings(Shape::vector(values.len()), builder).expect("a tensor")
    }

    fn keep(version: &VersionCache, inputs: &[Tensor], output: f32) {
        let key = version.key(0, inputs).expect("small");
        version.insert(key, inputs, &[floats(&[output])]);
    }

    fn find(version: &VersionCache, signature: usize, inputs: &[Tensor]) -> Option<f32> {
        let key = version.key(signature, inputs)?;
        Some(version.get(key, inputs)?[0].values::<f32>().expect("floats")[0])
    }

    #[test]
    fn equal_inputs_of_the_same_signature_and_version_have_the_same_outputs() {
        let cache = ResponseCache::new(1 << 20).expect("a cache");
        let (one, two) = (cache.of_version(), cache.of_version());
        keep(&one, &[floats(&[1.0, 2.0])], 3.0);
        assert_eq!(find(&one, 0, &[floats(&[1.0, 2.0])]), Some(3.0));
        assert_eq!(find(&one, 1, &[floats(&[1.0, 2.0])]), None, "another signature");
        assert_eq!(find(&two, 0, &[floats(&[1.0, 2.0])]), None, "another version");
        assert_eq!(find(&one, 0, &[floats(&[1.0, 2.5])]), None, "other values");
        assert_eq!(find(&one, 0, &[floats(&[1.0]), floats(&[2.0])]), None, "other tensors");
        let mut missing = StringsBuilder::default();
        missing.push_missing();
        let missing = Tensor::from_strings(Shape::vector(1), missing).expect("a tensor");
        keep(&one, &[texts(&[""])], 4.0);
        assert_eq!(find(&one, 0, std::slice::from_ref(&missing)), None, "no text");
        keep(&one, std::slice::from_ref(&missing), 5.0);
        assert_eq!(find(&one, 0, &[missing]), Some(5.0));
        assert_eq!(find(&one, 0, &[texts(&[""])]), Some(4.0));
        let column = Shape::new(&[2, 1]).expect("a shape");
        let reshaped = floats(&[1.0, 2.0]).reshaped(column).expect("as many");
        assert_eq!(find(&one, 0, &[reshaped]), None, "another shape");
        let bytes = floats(&[1.0, 2.0]).bytes().to_vec().into();
        let integers =
            Tensor::from_bytes(tensorserve_tensor::DType::Int32, Shape::vector(2), bytes);
        assert_eq!(find(&one, 0, &[integers.expect("8 bytes")]), None, "another type");
    }

    #[test]
    fn strings_are_told_apart_by_their_ends() {
        let cache = ResponseCache::new(1 << 20).expect("a cache");
        let version = cache.of_version();
        keep(&version, &[texts(&["ab", "c"])], 1.0);
        assert_eq!(find(&version, 0, &[texts(&["ab", "c"])]), Some(1.0));
        assert_eq!(find(&version, 0, &[texts(&["a", "bc"])]), None);
        assert_eq!(find(&version, 0, &[texts(&["ab", "d"])]), None);
    }

    #[test]
    fn inputs_are_compared_even_if_their_keys_are_equal() {
        let cache = ResponseCache::new(1 << 20).expect("a cache");
        let version = cache.of_version();
        let inputs = [floats(&[1.0])];
        let key = version.key(0, &inputs).expect("small");
        version.insert(key, &inputs, &[floats(&[5.0])]);
        assert!(version.get(key, &inputs).is_some());
        assert!(version.get(key, &[floats(&[2.0])]).is_none());
        assert!(version.get(CacheKey { signature: 1, ..key }, &inputs).is_none());
        let other = cache.of_version();
        assert!(other.get(key, &inputs).is_none());
    }

    #[test]
    fn keys_differ_between_processes() {
        let key = || {
            let version = ResponseCache::new(1 << 20).expect("a cache").of_version();
            version.key(0, &[floats(&[1.0])]).expect("small").hash
        };
        assert_ne!(key(), key());
    }

    #[test]
    fn the_responses_of_a_version_go_with_it() {
        let cache = ResponseCache::new(1 << 20).expect("a cache");
        let (one, two) = (cache.of_version(), cache.of_version());
        keep(&one, &[floats(&[1.0])], 1.0);
        keep(&two, &[floats(&[1.0])], 2.0);
        assert_eq!(cache.reading().entries, 2);
        drop(one);
        assert_eq!(cache.reading().entries, 1);
        assert_eq!(find(&two, 0, &[floats(&[1.0])]), Some(2.0));
        drop(two);
        let reading = cache.reading();
        assert_eq!((reading.entries, reading.bytes, reading.evictions), (0, 0, 0));
    }

    #[test]
    fn the_memory_is_bounded() {
        let cache = ResponseCache::new(1 << 20).expect("a cache");
        let version = cache.of_version();
        for number in 0..10_000u16 {
            keep(&version, &[floats(&[f32::from(number); 100])], 1.0);
            assert!(cache.reading().bytes <= 1 << 20);
        }
        let reading = cache.reading();
        assert!(reading.bytes > 1 << 19 && reading.evictions > 5000, "{reading:?}");
        assert_eq!(reading.entries + reading.evictions, 10_000);
        assert!(reading.bytes >= reading.entries * 400, "the inputs count: {reading:?}");
    }

    #[test]
    fn large_runs_are_not_kept() {
        let cache = ResponseCache::new(1 << 20).expect("a cache");
        let version = cache.of_version();
        let large = floats(&vec![1.0; 17 << 10]);
        assert!(version.key(0, std::slice::from_ref(&large)).is_none());
        let small = [floats(&[1.0])];
        let key = version.key(0, &small).expect("small");
        version.insert(key, &small, &[large]);
        assert_eq!(cache.reading().entries, 0);
        assert_eq!(cache.reading().evictions, 0);
    }

    #[test]
    fn only_what_is_kept_stays_in_memory() {
        let batch = floats(&vec![1.0; 4096]);
        let one = batch.slice_rows(7..8);
        assert_eq!(kept(&one).expect("small").kept_len(), 4);
        assert!(std::ptr::eq(kept(&batch).expect("whole").bytes(), batch.bytes()));
        let some = texts(&["a", "bc"]).slice_rows(1..2);
        let copy = kept(&some).expect("small");
        assert_eq!(copy.kept_len(), 2);
        assert!(is_equal(&copy, &some));
    }
}
