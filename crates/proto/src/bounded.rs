//! Decodes requests only if their decoded size is in proportion to their bytes.
//!
//! Two bytes on the wire can decode to a struct of hundreds, and a message within its size limit
//! can hold millions of them, enough to exhaust the memory. So a scan of the wire format first adds
//! up the decoded size of all repeated fields, before any of them is allocated.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::{Code, Status};
use tonic_prost::{ProstCodec, ProstEncoder};

use tensorserve_tensor::budget;
use tensorserve_tensor::error::Error;

use super::inference;
use super::serving::{
    ClassificationRequest, GetModelMetadataRequest, GetModelStatusRequest, MultiInferenceRequest,
    PredictRequest, RegressionRequest, ReloadConfigRequest,
};

/// The most bytes of decoded fields per byte of the message. Real requests reach 8 (64-bit integers
/// that are encoded in one byte) and 10 (short byte strings).
const MAX_GROWTH: usize = 16;

/// Bytes of decoded fields that every message may have.
const FREE_BYTES: usize = 1 << 20;

/// A repeated field, or a field whose message has repeated fields.
struct FieldCost {
    number: u64,
    /// Decoded size of one element in bytes, without what it holds.
    element_size: usize,
    kind: FieldKind,
}

enum FieldKind {
    /// A string or bytes.
    Text,
    /// Numbers, of at least one byte each on the wire; packed or not.
    Numbers,
    /// A message with such fields.
    Message(&'static [FieldCost]),
}

const fn text(number: u64, element_size: usize) -> FieldCost {
    FieldCost { number, element_size, kind: FieldKind::Text }
}

const fn numbers(number: u64, element_size: usize) -> FieldCost {
    FieldCost { number, element_size, kind: FieldKind::Numbers }
}

const fn message(number: u64, element_size: usize, fields: &'static [FieldCost]) -> FieldCost {
    FieldCost { number, element_size, kind: FieldKind::Message(fields) }
}

/// A request message, with the repeated fields whose decoded size is bounded.
pub trait BoundedRequest: Message + Default {
    #[doc(hidden)]
    const FIELDS: RepeatedFields;
}

/// The fields of a message that are repeated, or hold repeated fields.
pub struct RepeatedFields(&'static [FieldCost]);

// The element sizes are those of the generated structs, rounded up, and include the spare capacity
// of a vector that grows or of a tree node that is half empty. A test compares them.
const SHAPE: &[FieldCost] = &[message(2, 48, &[])];
const TENSOR: &[FieldCost] = &[
    message(2, 0, SHAPE),
    text(8, 32),
    numbers(7, 4),
    numbers(10, 8),
    numbers(13, 4),
    numbers(16, 4),
    numbers(17, 8),
];
const TENSORS: &[FieldCost] = &[message(2, 0, TENSOR)];
const LISTS: &[FieldCost] = &[message(1, 0, &[text(1, 32)]), message(3, 0, &[numbers(1, 8)])];
const FEATURES: &[FieldCost] = &[message(1, 96, &[message(2, 0, LISTS)])];
const EXAMPLE: &[FieldCost] = &[message(1, 0, FEATURES)];
const EXAMPLES: &[FieldCost] = &[message(1, 32, EXAMPLE), message(2, 0, EXAMPLE)];
const INPUT: &[FieldCost] = &[message(1, 0, EXAMPLES), message(2, 0, EXAMPLES)];
const ON_EXAMPLES: &[FieldCost] = &[message(2, 0, INPUT)];
const TASKS: &[FieldCost] = &[message(1, 128, &[]), message(2, 0, INPUT)];
const POLICY: &[FieldCost] = &[message(102, 0, &[numbers(1, 8)])];
const MODEL: &[FieldCost] = &[message(7, 0, POLICY), message(8, 64, &[])];
const MODELS: &[FieldCost] = &[message(1, 0, &[message(1, 320, MODEL)])];

const PARAMETERS: &[FieldCost] = &[];
const CONTENTS: &[FieldCost] = &[
    numbers(1, 1),
    numbers(2, 4),
    numbers(3, 8),
    numbers(4, 4),
    numbers(5, 8),
    numbers(6, 4),
    numbers(7, 8),
    text(8, 32),
];
const INFER_INPUT: &[FieldCost] =
    &[numbers(3, 8), message(4, 128, PARAMETERS), message(5, 0, CONTENTS)];
const INFER_OUTPUT: &[FieldCost] = &[message(2, 128, PARAMETERS)];
const CHANGE: &[FieldCost] = &[message(3, 128, &[])];

macro_rules! requests {
    ($($type:ty: $fields:expr;)*) => {
        $(impl BoundedRequest for $type { const FIELDS: RepeatedFields = RepeatedFields($fields); })*
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
    inference::ServerLiveRequest: &[];
    inference::ServerReadyRequest: &[];
    inference::ModelReadyRequest: &[];
    inference::ServerMetadataRequest: &[];
    inference::ModelMetadataRequest: &[];
    inference::ModelInferRequest: &[
        message(4, 128, PARAMETERS),
        message(5, 640, INFER_INPUT),
        message(6, 192, INFER_OUTPUT),
        text(7, 32),
    ];
    inference::ModelConfigRequest: &[];
    inference::ModelStatisticsRequest: &[];
    inference::RepositoryIndexRequest: &[];
    inference::RepositoryModelLoadRequest: CHANGE;
    inference::RepositoryModelUnloadRequest: CHANGE;
    inference::SystemSharedMemoryStatusRequest: &[];
    inference::SystemSharedMemoryRegisterRequest: &[];
    inference::SystemSharedMemoryUnregisterRequest: &[];
    inference::CudaSharedMemoryStatusRequest: &[];
    inference::CudaSharedMemoryUnregisterRequest: &[];
    inference::TraceSettingRequest: &[message(1, 128, &[message(2, 0, &[text(1, 48)])])];
    inference::LogSettingsRequest: &[message(1, 128, &[])];
}

/// Why a message was not decoded.
#[derive(Debug)]
pub enum BoundedDecodeError {
    /// The bytes are not a message of this type.
    Malformed(prost::DecodeError),
    /// The decoded message would need too much memory for its size.
    TooLarge,
    /// The decoded message would need more memory than the request can get.
    Refused(Error),
}

impl std::fmt::Display for BoundedDecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BoundedDecodeError::Malformed(error) => error.fmt(f),
            BoundedDecodeError::Refused(error) => error.fmt(f),
            BoundedDecodeError::TooLarge => f.write_str(
                "the message has too many fields for its size; decoding it would need too much \
                 memory",
            ),
        }
    }
}

/// Decodes a request.
///
/// # Errors
/// [`BoundedDecodeError`].
pub fn decode<T: BoundedRequest>(bytes: Bytes) -> Result<T, BoundedDecodeError> {
    let mut scanner = WireScanner { rest: &bytes };
    let decoded_size = scanner.decoded_size(T::FIELDS.0);
    if decoded_size > bytes.len().saturating_mul(MAX_GROWTH).saturating_add(FREE_BYTES) {
        return Err(BoundedDecodeError::TooLarge);
    }
    budget::reserve(decoded_size).map_err(BoundedDecodeError::Refused)?;
    T::decode(bytes).map_err(BoundedDecodeError::Malformed)
}

/// Decodes the message of a gRPC call.
///
/// # Errors
/// A status of the code that gRPC servers use for the failure.
pub fn decode_message<T: BoundedRequest>(bytes: Bytes) -> Result<T, Status> {
    decode(bytes).map_err(|error| {
        let code = match error {
            BoundedDecodeError::Malformed(_) => Code::Internal,
            BoundedDecodeError::TooLarge | BoundedDecodeError::Refused(_) => {
                Code::ResourceExhausted
            }
        };
        Status::new(code, error.to_string())
    })
}

/// The wire types of protobuf's encoding: the low three bits of a field's key.
mod wire_type {
    pub(super) const VARINT: u64 = 0;
    pub(super) const FIXED_64: u64 = 1;
    pub(super) const LENGTH_DELIMITED: u64 = 2;
    pub(super) const START_GROUP: u64 = 3;
    pub(super) const END_GROUP: u64 = 4;
    pub(super) const FIXED_32: u64 = 5;
}

/// The most bytes of a varint: ten times seven bits hold 64.
const MAX_VARINT_BYTES: usize = 10;

/// Reads a message's wire format. It stops where the message is malformed; decoding fails there.
struct WireScanner<'a> {
    rest: &'a [u8],
}

impl<'a> WireScanner<'a> {
    /// The decoded size of the fields of a message, in bytes.
    fn decoded_size(&mut self, fields: &[FieldCost]) -> usize {
        let mut total: usize = 0;
        while let Some(key) = self.varint() {
            let field = fields.iter().find(|field| field.number == key >> 3);
            let payload = match key & 7 {
                wire_type::VARINT => self.varint().map(|_| &[][..]),
                wire_type::FIXED_64 => self.take(8).map(|_| &[][..]),
                wire_type::LENGTH_DELIMITED => self.delimited(),
                wire_type::FIXED_32 => self.take(4).map(|_| &[][..]),
                // The fields of a group count as fields of the message around it.
                wire_type::START_GROUP | wire_type::END_GROUP => continue,
                _ => None,
            };
            let Some(payload) = payload else {
                break;
            };
            let Some(FieldCost { element_size, kind, .. }) = field else {
                continue;
            };
            let size = match kind {
                FieldKind::Text => *element_size,
                FieldKind::Numbers => element_size.saturating_mul(payload.len().max(1)),
                FieldKind::Message(fields) => {
                    WireScanner { rest: payload }.decoded_size(fields) + *element_size
                }
            };
            total = total.saturating_add(size);
        }
        total
    }

    /// Whether the rest is a message whose known fields are all length-delimited.
    fn is_message(&mut self, fields: &[FieldCost]) -> bool {
        while !self.rest.is_empty() {
            let Some(key) = self.varint() else {
                return false;
            };
            let field = fields.iter().find(|field| field.number == key >> 3);
            let is_valid = match key & 7 {
                wire_type::LENGTH_DELIMITED => self.delimited().is_some_and(|payload| {
                    let Some(FieldCost { kind: FieldKind::Message(fields), .. }) = field else {
                        return true;
                    };
                    WireScanner { rest: payload }.is_message(fields)
                }),
                wire_type::VARINT => field.is_none() && self.varint().is_some(),
                wire_type::FIXED_64 => field.is_none() && self.take(8).is_some(),
                wire_type::FIXED_32 => field.is_none() && self.take(4).is_some(),
                _ => false,
            };
            if !is_valid || key >> 3 == 0 {
                return false;
            }
        }
        true
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (index, byte) in self.rest.iter().take(MAX_VARINT_BYTES).enumerate() {
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

/// Whether `bytes` are a `tf.Example` on the wire. Nothing is allocated.
#[must_use]
pub fn is_example(bytes: &[u8]) -> bool {
    WireScanner { rest: bytes }.is_message(EXAMPLE)
}

/// The gRPC codec of every method: responses of type `T`, bounded requests of type `U`.
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        BoundedCodec(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: BoundedRequest + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(PhantomData)
    }
}

/// Decodes requests for tonic.
pub struct BoundedDecoder<U>(PhantomData<U>);

impl<U: BoundedRequest> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        decode_message(buffer.copy_to_bytes(buffer.remaining())).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
    use crate::serving::{InferenceTask, ModelConfig};
    use crate::tensorflow::features::Entry;
    use crate::tensorflow::tensor_shape_proto::Dim;
    use crate::tensorflow::{
        BytesList, Example, Feature, Features, Int64List, TensorProto, feature,
    };

    fn repeated(bytes: &[u8], times: usize) -> Bytes {
        bytes.repeat(times).into()
    }

    /// A length-delimited field.
    fn holding(number: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut out);
        out.extend_from_slice(content);
        out
    }

    #[test]
    fn examples_are_recognized_without_decoding_them() {
        let list = BytesList { value: vec![Bytes::from_static(b"a")] };
        let feature = Feature { kind: Some(feature::Kind::BytesList(list)) };
        let entry = Entry { key: Some(Bytes::from_static(b"x")), value: Some(feature) };
        let example = Example { features: Some(Features { feature: vec![entry] }) };
        assert!(is_example(&example.encode_to_vec()));
        assert!(is_example(b""));
        for other in
            [&b"{\"instances\": []}"[..], b"1,2,3\n", b"\x93NUMPY", b"\x0a\xff", b"\x08\x01"]
        {
            assert!(!is_example(other), "{other:?}");
        }
    }

    #[test]
    fn fields_that_cost_much_more_than_their_bytes_are_refused() {
        let too_large =
            |error: Option<BoundedDecodeError>| matches!(error, Some(BoundedDecodeError::TooLarge));
        let tasks = repeated(&[0x0a, 0], 1 << 18);
        assert!(too_large(decode::<MultiInferenceRequest>(tasks).err()));
        let names: Vec<u8> =
            (0..1_u32 << 16).flat_map(|n| holding(2, &holding(1, &n.to_be_bytes()))).collect();
        assert!(too_large(decode::<PredictRequest>(names.into()).err()));
        // In a group with an unknown number, and in a field that comes twice.
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
            assert!(matches!(error, Some(BoundedDecodeError::Malformed(_))), "{bytes:x?}");
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
        // A vector that grows has up to twice the capacity that it needs.
        assert!(2 * size_of::<InferInputTensor>() <= 640);
        assert!(2 * size_of::<InferRequestedOutputTensor>() <= 192);
        assert!(2 * (size_of::<String>() + size_of::<inference::InferParameter>()) <= 128);
        let change = size_of::<String>() + size_of::<inference::ModelRepositoryParameter>();
        assert!(2 * change <= 128);
        assert!(size_of::<TensorProto>() + size_of::<String>() <= 1024 / 2);
        assert!(Int64List::default().value.is_empty());
    }
}
