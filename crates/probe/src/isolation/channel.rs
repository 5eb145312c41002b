//! Frames between the server and the process of an isolated model, over a socket and an anonymous file
//! in memory that both sides have open.
//!
//! A frame is a prefix of 16 bytes (its kind, the size of the header, the size and the location of the
//! body), a header (three numbers, a text, and dtype, dimensions and size of each tensor) and a body: the
//! memory of the tensors as it is, each at a multiple of the alignment of tensors. Strings are their
//! ends, then their bytes. A large body is in the memory file.
//!
//! The file is read and written, not mapped: the process of a faulty model can then neither end the
//! server by truncating it nor change a tensor that the server reads.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tensorserve_tensor::{
    ALIGNMENT, Buffer, DType, Data, Shape, StringsBuilder, Tensor, aligned_vec,
};

const PREFIX: usize = 16;
/// The largest body inside a frame, in bytes.
const MAX_BODY_IN_FRAME: usize = 64 << 10;
/// The largest header in bytes.
const MAX_HEADER: usize = 64 << 20;
/// The size in bytes to which the memory file may grow and stay.
const MAX_IDLE_MEMORY: u64 = 64 << 20;
/// The bit of the body's size that marks a body in the memory file.
const IN_MEMORY: u64 = 1 << 63;
/// The bit of a string's end that marks a missing value.
const MISSING: u64 = 1 << 63;

/// A message: what `kind`, `numbers` and `text` mean is up to the sides.
#[derive(Debug, Default)]
pub(crate) struct ChannelFrame {
    pub(crate) kind: u32,
    pub(crate) numbers: [u64; 3],
    pub(crate) text: String,
    pub(crate) tensors: Vec<Tensor>,
}

/// One end of a connection that carries one frame at a time.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) socket: UnixStream,
    pub(crate) memory: File,
}

impl Channel {
    /// Two connected ends.
    ///
    /// # Errors
    /// Those of the operating system: no descriptors, no memory.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (ours, theirs) = UnixStream::pair()?;
        let memory = tensorserve_os::memory_file()?;
        let shared = memory.try_clone()?;
        Ok((Channel { socket: ours, memory }, Channel { socket: theirs, memory: shared }))
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// If the other side has ended; no memory.
    pub(crate) fn send(&self, frame: &ChannelFrame) -> io::Result<()> {
        let mut bytes = vec![0; PREFIX];
        for number in frame.numbers {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        put_size(&mut bytes, frame.text.len());
        bytes.extend_from_slice(frame.text.as_bytes());
        put_size(&mut bytes, frame.tensors.len());
        let mut body = 0;
        for tensor in &frame.tensors {
            put_description(&mut bytes, tensor);
            body = aligned(body) + packed_len(tensor);
        }
        let header = bytes.len() - PREFIX;
        if header > MAX_HEADER {
            return Err(invalid("the header of a message is too large"));
        }
        let is_in_memory = body > MAX_BODY_IN_FRAME;
        if is_in_memory {
            self.write_memory(&frame.tensors)?;
        } else {
            put_body(&mut bytes, &frame.tensors);
        }
        let size = body as u64 | if is_in_memory { IN_MEMORY } else { 0 };
        let prefix = [&frame.kind.to_ne_bytes()[..], &(header as u32).to_ne_bytes()].concat();
        let prefix = [prefix, size.to_ne_bytes().to_vec()].concat();
        if let Some(start) = bytes.get_mut(..PREFIX) {
            start.copy_from_slice(&prefix);
        }
        (&self.socket).write_all(&bytes)
    }

    /// Waits for a frame.
    ///
    /// # Errors
    /// If the other side has ended, or sends what is not a frame; after the time limit of the socket.
    pub(crate) fn receive(&self) -> io::Result<ChannelFrame> {
        let mut prefix = [0; PREFIX];
        (&self.socket).read_exact(&mut prefix)?;
        let mut fields = FrameReader { bytes: &prefix };
        let (kind, header) = (fields.u32()?, fields.u32()? as usize);
        let size = fields.u64()?;
        let length = usize::try_from(size & !IN_MEMORY).map_err(|_| cut_short())?;
        let is_in_memory = size & IN_MEMORY != 0;
        if header > MAX_HEADER || (!is_in_memory && length > MAX_BODY_IN_FRAME) {
            return Err(invalid("a message has an invalid prefix"));
        }
        let mut bytes = vec![0; header];
        (&self.socket).read_exact(&mut bytes)?;
        // The size comes from the other side, which may be wrong; the file's length does not.
        if is_in_memory && self.memory.metadata()?.len() < length as u64 {
            return Err(cut_short());
        }
        let mut body = aligned_vec::<u8>(length);
        body.resize(length, 0);
        if is_in_memory {
            self.memory.read_exact_at(&mut body, 0)?;
        } else {
            (&self.socket).read_exact(&mut body)?;
        }
        decode(kind, &bytes, Buffer::new(Arc::new(body)))
    }

    /// Returns the memory of large frames to the system. Neither side may be reading or writing.
    pub(crate) fn shrink(&self, frame: &ChannelFrame) {
        let was_large = frame.tensors.iter().any(|t| t.byte_len() as u64 > MAX_IDLE_MEMORY / 4);
        if was_large && self.memory.metadata().is_ok_and(|file| file.len() > MAX_IDLE_MEMORY) {
            let _ = self.memory.set_len(0);
        }
    }

    fn write_memory(&self, tensors: &[Tensor]) -> io::Result<()> {
        let mut at = 0;
        for tensor in tensors {
            at = aligned(at);
            match tensor.data() {
                Data::Numeric(buffer) => self.memory.write_all_at(buffer.as_slice(), at as u64)?,
                Data::Strings(_) => {
                    let mut packed = Vec::with_capacity(packed_len(tensor));
                    pack(&mut packed, tensor);
                    self.memory.write_all_at(&packed, at as u64)?;
                }
            }
            at += packed_len(tensor);
        }
        Ok(())
    }
}

fn aligned(at: usize) -> usize {
    at.next_multiple_of(ALIGNMENT)
}

/// The size of a tensor in a body, in bytes.
fn packed_len(tensor: &Tensor) -> usize {
    match tensor.data() {
        Data::Numeric(buffer) => buffer.as_slice().len(),
        Data::Strings(strings) => strings.len() * size_of::<u64>() + strings.byte_len(),
    }
}

fn put_size(bytes: &mut Vec<u8>, size: usize) {
    bytes.extend_from_slice(&(size as u64).to_ne_bytes());
}

fn put_description(bytes: &mut Vec<u8>, tensor: &Tensor) {
    let dims = tensor.shape().dims();
    put_size(bytes, packed_len(tensor));
    put_size(bytes, dims.len());
    bytes.extend_from_slice(&tensor.dtype().number().to_ne_bytes());
    for dim in dims {
        bytes.extend_from_slice(&dim.to_ne_bytes());
    }
}

fn put_body(bytes: &mut Vec<u8>, tensors: &[Tensor]) {
    let start = bytes.len();
    for tensor in tensors {
        bytes.resize(start + aligned(bytes.len() - start), 0);
        pack(bytes, tensor);
    }
}

fn pack(bytes: &mut Vec<u8>, tensor: &Tensor) {
    match tensor.data() {
        Data::Numeric(buffer) => bytes.extend_from_slice(buffer.as_slice()),
        Data::Strings(strings) => {
            let mut end = 0;
            for string in strings.optional() {
                end += string.map_or(0, <[u8]>::len);
                let flag = if string.is_none() { MISSING } else { 0 };
                bytes.extend_from_slice(&(end as u64 | flag).to_ne_bytes());
            }
            strings.iter().for_each(|string| bytes.extend_from_slice(string));
        }
    }
}

fn decode(kind: u32, header: &[u8], body: Buffer) -> io::Result<ChannelFrame> {
    let mut fields = FrameReader { bytes: header };
    let numbers = [fields.u64()?, fields.u64()?, fields.u64()?];
    let length = fields.size()?;
    let text = String::from_utf8_lossy(fields.take(length)?).into_owned();
    let mut tensors = Vec::new();
    let mut at = 0_usize;
    for _ in 0..fields.size()? {
        let (length, rank) = (fields.size()?, fields.size()?);
        let dtype = i32::from_ne_bytes(fields.u32()?.to_ne_bytes());
        let dtype = DType::from_number(dtype).ok_or_else(|| invalid("an unknown dtype"))?;
        let mut dims = Vec::new();
        for _ in 0..rank {
            dims.push(i64::from_ne_bytes(fields.u64()?.to_ne_bytes()));
        }
        let start = aligned(at);
        at = start.checked_add(length).ok_or_else(cut_short)?;
        let shape = Shape::new(&dims).map_err(io::Error::other)?;
        tensors.push(unpack(dtype, shape, body.slice(start..at))?);
    }
    Ok(ChannelFrame { kind, numbers, text, tensors })
}

fn unpack(dtype: DType, shape: Shape, data: Buffer) -> io::Result<Tensor> {
    if dtype != DType::String {
        return Tensor::numeric(dtype, shape, data).map_err(io::Error::other);
    }
    let count = shape.elements().map_err(io::Error::other)?;
    let mut ends = FrameReader { bytes: data.as_slice() };
    let length = count.checked_mul(size_of::<u64>()).ok_or_else(cut_short)?;
    let mut strings = FrameReader { bytes: data.as_slice() };
    strings.take(length)?;
    let mut values = StringsBuilder::with_capacity(count, strings.bytes.len());
    let mut start = 0;
    for _ in 0..count {
        let end = ends.u64()?;
        if end & MISSING != 0 {
            values.push_missing();
            continue;
        }
        let end = usize::try_from(end).map_err(|_| cut_short())?;
        values.push(strings.take(end.checked_sub(start).ok_or_else(cut_short)?)?);
        start = end;
    }
    Tensor::from_strings(shape, values).map_err(io::Error::other)
}

/// The rest of the bytes to decode.
struct FrameReader<'b> {
    bytes: &'b [u8],
}

impl<'b> FrameReader<'b> {
    fn take(&mut self, length: usize) -> io::Result<&'b [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or_else(cut_short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.take(4)?.try_into().map(u32::from_ne_bytes).map_err(|_| cut_short())
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.take(8)?.try_into().map(u64::from_ne_bytes).map_err(|_| cut_short())
    }

    fn size(&mut self) -> io::Result<usize> {
        usize::try_from(self.u64()?).map_err(|_| cut_short())
    }
}

fn cut_short() -> io::Error {
    invalid("a message is incomplete")
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(shape: &[i64], values: &[&[u8]]) -> Tensor {
        let mut builder = StringsBuilder::default();
        values.iter().for_each(|value| builder.push(value));
        Tensor::from_strings(Shape::new(shape).expect("a shape"), builder).expect("a tensor")
    }

    fn exchanged(tensors: Vec<Tensor>) -> Vec<Tensor> {
        let (here, there) = Channel::pair().expect("a channel");
        let frame =
            ChannelFrame { kind: 7, numbers: [1, 2, u64::MAX], text: "é\n".to_owned(), tensors };
        here.send(&frame).expect("sent");
        let received = there.receive().expect("received");
        assert_eq!((received.kind, received.numbers), (7, frame.numbers));
        assert_eq!(received.text, frame.text);
        for (sent, received) in frame.tensors.iter().zip(&received.tensors) {
            assert_eq!(sent.dtype(), received.dtype());
            assert_eq!(sent.shape(), received.shape());
            assert_eq!(sent.bytes(), received.bytes());
            let lists =
                [sent, received].map(|t| t.strings().map(|s| s.optional().collect::<Vec<_>>()));
            assert_eq!(lists[0], lists[1]);
            if !received.bytes().is_empty() {
                assert_eq!(received.bytes().as_ptr() as usize % ALIGNMENT, 0);
            }
        }
        assert_eq!(frame.tensors.len(), received.tensors.len());
        received.tensors
    }

    #[test]
    fn tensors_of_every_dtype_and_size_arrive_unchanged() {
        for count in [0_usize, 1, 3, 40_000] {
            let mut missing = StringsBuilder::default();
            missing.push(b"a");
            missing.push_missing();
            missing.push(b"b");
            let missing = Tensor::from_strings(Shape::vector(3), missing).expect("a tensor");
            let mut tensors =
                vec![strings(&[2, 1], &[b"", b"\xff\0x"]), strings(&[0], &[]), missing];
            for dtype in DType::ALL {
                let Some(size) = dtype.size() else { continue };
                let mut data = aligned_vec::<u8>(0);
                (0..count * size).for_each(|i| data.push(i as u8));
                let shape = Shape::vector(count);
                let buffer = Buffer::new(Arc::new(data));
                tensors.push(Tensor::numeric(dtype, shape, buffer).expect("a tensor"));
            }
            let long = vec![b'x'; count];
            tensors.push(strings(&[3], &[&long, b"", &long]));
            exchanged(tensors);
        }
        exchanged(Vec::new());
    }

    #[test]
    fn what_is_not_a_frame_is_an_error() {
        let (here, there) = Channel::pair().expect("a channel");
        let mut prefix = [0; PREFIX];
        // A body in the memory file, which is empty.
        prefix[8..].copy_from_slice(&(IN_MEMORY | 1 << 40).to_ne_bytes());
        (&here.socket).write_all(&prefix).expect("written");
        let error = there.receive().expect_err("refused");
        assert_eq!(error.to_string(), "a message is incomplete");
        let header = [0_u8; 3 * 8 + 8];
        let sizes = [header.as_slice(), &u64::MAX.to_ne_bytes()].concat();
        assert!(decode(0, &sizes, Buffer::new(Arc::new(aligned_vec::<u8>(0)))).is_err());
        drop(here);
        let error = there.receive().expect_err("ended");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
