//! What receipts say: the digest of a version's files, and the hash of tensors.

pub(crate) mod digest;
pub(crate) mod hash;
