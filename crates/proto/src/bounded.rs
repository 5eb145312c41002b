//! Decodes messages whose memory is in proportion to their bytes.
//!
//! Two bytes of a message can become a struct of hundreds, and they can come millions of times:
//! a message within its limit would then take all memory there is. So the fields that come in
//! any number are counted, with what each takes, before anything is made of them.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::{Code, Status};
use tonic_prost::{ProstCodec, ProstEncoder};

use super::serving::{
    ClassificationRequest, GetModelMetadataRequest, GetModelStatusRequest, MultiInferenceRequest,
    PredictRequest, RegressionRequest, ReloadConfigRequest,
};

/// How many times its own size a message may take. The most that a sensible one does is eight:
/// 64-bit integers of one digit; short strings of bytes take ten.
const GROWTH: usize = 16;

/// What any message may take.
const ALWAYS: usize = 1 << 20;

/// A field that comes in any number, or that holds such.
struct Field {
    number: u64,
    /// The memory that each takes in bytes, less than which is in the message itself.
    each: usize,
    kind: Kind,
}

enum Kind {
    /// A string or bytes.
    Text,
    /// Numbers, each of at least a byte; they may come packed.
    Numbers,
    /// A message with such fields.
    Message(&'static [Field]),
}

const fn text(number: u64, each: usize) -> Field {
    Field { number, each, kind: Kind::Text }
}

const fn numbers(number: u64, each: usize) -> Field {
    Field { number, each, kind: Kind::Numbers }
}

const fn message(number: u64, each: usize, fields: &'static [Field]) -> Field {
    Field { number, each, kind: Kind::Message(fields) }
}

/// A message that clients send.
pub trait Request: Message + Default {
    #[doc(hidden)]
    const FIELDS: Fields;
}

/// What of a message can come in any number.
pub struct Fields(&'static [Field]);

// The sizes are those of the generated structs, rounded up, with what a vector that grows or a
// node of a tree that is half empty adds; a test compares them.
const SHAPE: &[Field] = &[message(2, 48, &[])];
const TENSOR: &[Field] = &[
    message(2, 0, SHAPE),
    text(8, 32),
    numbers(7, 4),
    numbers(10, 8),
    numbers(13, 4),
    numbers(16, 4),
    numbers(17, 8),
];
const TENSORS: &[Field] = &[message(2, 0, TENSOR)];
const LISTS: &[Field] = &[message(1, 0, &[text(1, 32)]), message(3, 0, &[numbers(1, 8)])];
const FEATURES: &[Field] = &[message(1, 96, &[message(2, 0, LISTS)])];
const EXAMPLE: &[Field] = &[message(1, 0, FEATURES)];
const EXAMPLES: &[Field] = &[message(1, 32, EXAMPLE), message(2, 0, EXAMPLE)];
const INPUT: &[Field] = &[message(1, 0, EXAMPLES), message(2, 0, EXAMPLES)];
const ON_EXAMPLES: &[Field] = &[message(2, 0, INPUT)];
const TASKS: &[Field] = &[message(1, 128, &[]), message(2, 0, INPUT)];
const POLICY: &[Field] = &[message(102, 0, &[numbers(1, 8)])];
const MODEL: &[Field] = &[message(7, 0, POLICY), message(8, 64, &[])];
const MODELS: &[Field] = &[message(1, 0, &[message(1, 320, MODEL)])];

macro_rules! requests {
    ($($type:ty: $fields:expr;)*) => {
        $(impl Request for $type { const FIELDS: Fields = Fields($fields); })*
    };
}

requests! {
    PredictRequest: &[message(2, 1024, TENSORS), text(3, 24)];
    ClassificationRequest: ON_EXAMPLES;
    RegressionRequest: ON_EXAMPLES;
    MultiInferenceRequest: TASKS;
    GetModelMetadataRequest: &[text(2, 24)];
    GetModelStatusRequest: &[];
    ReloadConfigRequest: &[message(1, 0, MODELS), text(2, 24)];
}

/// Why a message was not decoded.
#[derive(Debug)]
pub enum Undecoded {
    /// It is none, or not of this type.
    Malformed(prost::DecodeError),
    /// It would take too much memory.
    TooLarge,
}

impl std::fmt::Display for Undecoded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Undecoded::Malformed(error) => error.fmt(f),
            Undecoded::TooLarge => f.write_str(
                "the message has far more fields than its size gives reason for, and would take \
                 too much memory",
            ),
        }
    }
}

/// Decodes a message.
///
/// # Errors
/// [`Undecoded`].
pub fn decode<T: Request>(bytes: Bytes) -> Result<T, Undecoded> {
    let mut scan = Scan { rest: &bytes };
    let needed = scan.message(T::FIELDS.0);
    if needed > bytes.len().saturating_mul(GROWTH).saturating_add(ALWAYS) {
        return Err(Undecoded::TooLarge);
    }
    T::decode(bytes).map_err(Undecoded::Malformed)
}

/// Walks a message. Where it is malformed the walk ends: decoding ends there too.
struct Scan<'a> {
    rest: &'a [u8],
}

impl<'a> Scan<'a> {
    /// The memory that the fields of a message take.
    fn message(&mut self, fields: &[Field]) -> usize {
        let mut needed: usize = 0;
        while let Some(key) = self.varint() {
            let field = fields.iter().find(|field| field.number == key >> 3);
            let payload = match key & 7 {
                0 => self.varint().map(|_| &[][..]),
                1 => self.take(8).map(|_| &[][..]),
                2 => self.delimited(),
                5 => self.take(4).map(|_| &[][..]),
                // Of a group, the fields count as if they were here.
                3 | 4 => continue,
                _ => None,
            };
            let Some(payload) = payload else {
                break;
            };
            let Some(Field { each, kind, .. }) = field else {
                continue;
            };
            let more = match kind {
                Kind::Text => *each,
                Kind::Numbers => each.saturating_mul(payload.len().max(1)),
                Kind::Message(fields) => Scan { rest: payload }.message(fields) + *each,
            };
            needed = needed.saturating_add(more);
        }
        needed
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (index, byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if *byte < 0x80 {
                self.rest = self.rest.get(index + 1..)?;
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn delimited(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.take(length)
    }
}

/// The codec of every call.
pub struct BoundedCodec<A, Q>(PhantomData<(A, Q)>);

impl<A, Q> Default for BoundedCodec<A, Q> {
    fn default() -> Self {
        BoundedCodec(PhantomData)
    }
}

impl<A: Message + Send + 'static, Q: Request + Send + 'static> Codec for BoundedCodec<A, Q> {
    type Encode = A;
    type Decode = Q;
    type Encoder = ProstEncoder<A>;
    type Decoder = BoundedDecoder<Q>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<A, Q>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(PhantomData)
    }
}

/// Decodes what clients send.
pub struct BoundedDecoder<Q>(PhantomData<Q>);

impl<Q: Request> Decoder for BoundedDecoder<Q> {
    type Item = Q;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Q>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        let decoded = decode(bytes).map_err(|error| {
            // As every gRPC server has it.
            let code = match error {
                Undecoded::Malformed(_) => Code::Internal,
                Undecoded::TooLarge => Code::ResourceExhausted,
            };
            Status::new(code, error.to_string())
        });
        decoded.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::{InferenceTask, ModelConfig};
    use crate::tensorflow::features::Entry;
    use crate::tensorflow::tensor_shape_proto::Dim;
    use crate::tensorflow::{BytesList, Example, Int64List, TensorProto};

    fn repeated(bytes: &[u8], times: usize) -> Bytes {
        bytes.repeat(times).into()
    }

    /// A field that holds `content`, two levels up to four bytes of length.
    fn holding(number: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut out);
        out.extend_from_slice(content);
        out
    }

    #[test]
    fn fields_that_cost_much_more_than_their_bytes_are_refused() {
        let too_large = |result: Option<Undecoded>| matches!(result, Some(Undecoded::TooLarge));
        let tasks = repeated(&[0x0a, 0], 1 << 18);
        assert!(too_large(decode::<MultiInferenceRequest>(tasks).err()));
        let names: Vec<u8> =
            (0..1_u32 << 16).flat_map(|n| holding(2, &holding(1, &n.to_be_bytes()))).collect();
        assert!(too_large(decode::<PredictRequest>(names.into()).err()));
        // In a group that nobody knows, and in a field that comes twice.
        let dims = holding(2, &repeated(&[0x12, 0], 1 << 17));
        let tensor = [&[0x9b, 0x06][..], &dims, &dims, &[0x9c, 0x06]].concat();
        let request = holding(2, &holding(2, &tensor));
        assert!(too_large(decode::<PredictRequest>(request.into()).err()));
        let models = holding(1, &holding(1, &repeated(&[0x0a, 0], 1 << 16)));
        assert!(too_large(decode::<ReloadConfigRequest>(models.into()).err()));
    }

    #[test]
    fn what_is_merely_large_is_decoded() {
        let strings = repeated(&[0x42, 1, b'a'], 1 << 18);
        let request = holding(2, &holding(2, &strings));
        let request = decode::<PredictRequest>(request.into()).expect("within bounds");
        assert_eq!(request.inputs[""].string_val.len(), 1 << 18);
        let ones = vec![1; 1 << 20];
        let request = holding(2, &holding(2, &holding(10, &ones)));
        let request = decode::<PredictRequest>(request.into()).expect("within bounds");
        assert_eq!(request.inputs[""].int64_val.len(), 1 << 20);
        let list = BytesList { value: vec![Bytes::from_static(b"a"); 1 << 18] }.encode_to_vec();
        let example = holding(1, &holding(1, &holding(2, &holding(1, &list))));
        let request = holding(2, &holding(1, &holding(1, &example)));
        assert!(decode::<ClassificationRequest>(request.into()).is_ok());
    }

    #[test]
    fn lengths_that_lie_are_malformed() {
        for bytes in [
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f][..],
            &[0x12, 0x7f, 0x0a],
            &[0x12],
            &[0xff; 20],
            &[0x12, 6, 0x12, 4, 0x42, 0xff, 0xff, 0x7f],
            &[0x0f],
        ] {
            let error = decode::<PredictRequest>(Bytes::copy_from_slice(bytes)).err();
            assert!(matches!(error, Some(Undecoded::Malformed(_))), "{bytes:x?}");
        }
    }

    #[test]
    fn each_weight_is_at_least_the_size_of_its_struct() {
        assert!(size_of::<Dim>() <= 48);
        assert!(size_of::<Bytes>() <= 32);
        assert!(size_of::<Entry>() <= 96);
        assert!(size_of::<Example>() <= 32);
        assert!(size_of::<InferenceTask>() <= 128);
        assert!(size_of::<ModelConfig>() <= 320);
        assert!(size_of::<TensorProto>() + size_of::<String>() <= 1024 / 2);
        assert!(Int64List::default().value.is_empty());
    }
}
