//! The hash of tensors: SHA-256 over their names, types, shapes and values, in one form for all protocols.
//! `docs/releases.md` says it byte for byte.

use ring::digest::{Context, Digest, SHA256};

use tensorserve_tensor::error::Result;
use tensorserve_tensor::{Data, Tensor, budget};

/// How much is hashed before the deadline is looked at: some 10 ms.
const STEP: usize = 8 << 20;

/// Strings between two looks at the deadline.
const STRINGS: usize = 1 << 16;

/// What a missing value has in place of its length.
const MISSING: u64 = u64::MAX;

/// Hashes tensors one after another. Whoever adds them puts them in the order of their names, by bytes.
pub(crate) struct TensorHash(Context);

impl Default for TensorHash {
    fn default() -> Self {
        TensorHash(Context::new(&SHA256))
    }
}

impl TensorHash {
    /// Adds a tensor.
    ///
    /// # Errors
    /// Those of [`budget::check`].
    pub(crate) fn add(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        self.bytes(name.as_bytes());
        self.bytes(tensor.dtype().python_name().as_bytes());
        let dims = tensor.shape().dims();
        self.number(dims.len() as u64);
        for dim in dims {
            self.0.update(&dim.to_le_bytes());
        }
        match tensor.data() {
            // As they are in memory: little-endian on every machine that is supported.
            Data::Numeric(buffer) => {
                for step in buffer.as_slice().chunks(STEP) {
                    budget::check()?;
                    self.0.update(step);
                }
            }
            Data::Strings(strings) => {
                for (index, string) in strings.optional().enumerate() {
                    if index % STRINGS == 0 {
                        budget::check()?;
                    }
                    match string {
                        Some(string) => self.bytes(string),
                        None => self.number(MISSING),
                    }
                }
            }
        }
        Ok(())
    }

    /// Bytes after their number.
    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    /// The hash of what was added.
    pub(crate) fn finish(self) -> Digest {
        self.0.finish()
    }
}

/// A hash as receipts have it: `sha256:` and 64 hexadecimal digits.
pub(crate) fn hash_text(hash: Digest) -> String {
    format!("sha256:{}", hexadecimal(hash))
}

/// A hash in hexadecimal digits.
pub(crate) fn hexadecimal(hash: Digest) -> String {
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{AlignedVec, DType, Shape, StringsBuilder};

    fn hash(tensors: &[(&str, &Tensor)]) -> String {
        let mut hash = TensorHash::default();
        for (name, tensor) in tensors {
            hash.add(name, tensor).expect("no deadline");
        }
        hexadecimal(hash.finish())
    }

    fn of_bytes(bytes: &[u8]) -> String {
        hexadecimal(ring::digest::digest(&SHA256, bytes))
    }

    fn floats(shape: &[i64], values: &[f32]) -> Tensor {
        let mut aligned = AlignedVec::<f32>::new(64);
        values.iter().for_each(|value| aligned.push(*value));
        Tensor::from_vec(Shape::new(shape).expect("a shape"), aligned).expect("a tensor")
    }

    fn strings(shape: &[i64], values: &[Option<&[u8]>]) -> Tensor {
        let mut builder = StringsBuilder::default();
        values.iter().for_each(|value| builder.push_optional(*value));
        Tensor::from_strings(Shape::new(shape).expect("a shape"), builder).expect("a tensor")
    }

    fn number(number: u64) -> [u8; 8] {
        number.to_le_bytes()
    }

    #[test]
    fn numbers_are_hashed_byte_for_byte() {
        let bytes = [
            &number(1)[..],
            b"x",
            &number(7),
            b"float32",
            &number(2),
            &number(1),
            &number(3),
            &1.0_f32.to_le_bytes(),
            &2.0_f32.to_le_bytes(),
            &5.0_f32.to_le_bytes(),
        ]
        .concat();
        let tensor = floats(&[1, 3], &[1.0, 2.0, 5.0]);
        assert_eq!(hash(&[("x", &tensor)]), of_bytes(&bytes));
        // One bit, the shape, the name and the type count.
        let others = [
            hash(&[("x", &floats(&[1, 3], &[1.0, 2.0, f32::from_bits(5.0_f32.to_bits() ^ 1)]))]),
            hash(&[("x", &floats(&[1, 3], &[1.0, 2.0, -5.0]))]),
            hash(&[("x", &floats(&[3], &[1.0, 2.0, 5.0]))]),
            hash(&[("y", &tensor)]),
            hash(&[]),
        ];
        assert!(!others.contains(&of_bytes(&bytes)), "{others:?}");
        let integers = Tensor::from_bytes(
            DType::Int32,
            Shape::new(&[1, 3]).expect("a shape"),
            bytes[bytes.len() - 12..].to_vec().into(),
        );
        assert_ne!(hash(&[("x", &integers.expect("a tensor"))]), of_bytes(&bytes));
    }

    #[test]
    fn scalars_and_tensors_without_elements_have_hashes() {
        let scalar =
            [&number(1)[..], b"x", &number(7), b"float32", &number(0), &2.5_f32.to_le_bytes()];
        assert_eq!(hash(&[("x", &floats(&[], &[2.5]))]), of_bytes(&scalar.concat()));
        let empty = [&number(1)[..], b"x", &number(7), b"float32", &number(2), &number(0)];
        let empty = [&empty.concat()[..], &number(4)].concat();
        assert_eq!(hash(&[("x", &floats(&[0, 4], &[]))]), of_bytes(&empty));
        assert_ne!(hash(&[("x", &floats(&[0, 3], &[]))]), of_bytes(&empty));
        // Nothing at all.
        let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hash(&[]), nothing);
    }

    #[test]
    fn strings_have_lengths_and_missing_values_are_not_empty() {
        let texts = strings(&[3], &[Some(b"ab"), Some(b""), None]);
        let bytes = [
            &number(1)[..],
            b"t",
            &number(6),
            b"string",
            &number(1),
            &number(3),
            &number(2),
            b"ab",
            &number(0),
            &number(u64::MAX),
        ]
        .concat();
        assert_eq!(hash(&[("t", &texts)]), of_bytes(&bytes));
        let moved = strings(&[3], &[Some(b"a"), Some(b"b"), None]);
        assert_ne!(hash(&[("t", &moved)]), of_bytes(&bytes));
        let empty = strings(&[3], &[Some(b"ab"), Some(b""), Some(b"")]);
        assert_ne!(hash(&[("t", &empty)]), of_bytes(&bytes));
        // A view of a batch is hashed as what it shows.
        let batch = strings(&[5], &[Some(b"z"), Some(b"ab"), Some(b""), None, Some(b"y")]);
        assert_eq!(hash(&[("t", &batch.slice_rows(1..4))]), of_bytes(&bytes));
    }

    #[test]
    fn a_batch_is_hashed_by_rows() {
        let batch = floats(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let own = floats(&[1, 2], &[3.0, 4.0]);
        assert_eq!(hash(&[("x", &batch.slice_rows(1..2))]), hash(&[("x", &own)]));
    }
}
