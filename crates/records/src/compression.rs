//! Compressed objects.

use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;
use tensorserve_tensor::error::{Error, Result};
use zstd::stream::read::Decoder as ZstdDecoder;

/// How many compressed bytes are read at once.
const BLOCK: usize = 256 << 10;

/// The largest window of zstd, as a power of two: what `zstd -d` accepts by default. Larger ones
/// (`--long=28` and more) let a few bytes claim gigabytes of memory.
const MAX_WINDOW_LOG: u32 = 27;

/// How an object is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// As the suffix of the object's name says.
    #[default]
    Auto,
    /// Not at all.
    None,
    /// Gzip, of one or more members.
    Gzip,
    /// Zstandard, of one or more frames.
    Zstd,
}

impl Compression {
    /// The compression of the object with this name; never [`Compression::Auto`]. The suffixes are
    /// `.gz`, `.gzip`, `.zst` and `.zstd`, in either case.
    #[must_use]
    pub fn of_name(self, name: &str) -> Compression {
        if self != Compression::Auto {
            return self;
        }
        let file = name.rsplit('/').next().unwrap_or(name);
        let suffix = file.rsplit_once('.').map_or("", |(_, suffix)| suffix);
        match suffix.to_ascii_lowercase().as_str() {
            "gz" | "gzip" => Compression::Gzip,
            "zst" | "zstd" => Compression::Zstd,
            _ => Compression::None,
        }
    }

    /// The name of an object without the suffix of its compression.
    #[must_use]
    pub fn uncompressed_name(name: &str) -> &str {
        match Compression::Auto.of_name(name) {
            Compression::None | Compression::Auto => name,
            Compression::Gzip | Compression::Zstd => {
                name.rsplit_once('.').map_or(name, |(uncompressed, _)| uncompressed)
            }
        }
    }

    /// The compression with this name, as [`fmt::Display`] writes it, in either case.
    ///
    /// # Errors
    /// [`Error::invalid`] for another name.
    pub fn parse(name: &str) -> Result<Compression> {
        let all = [Compression::Auto, Compression::None, Compression::Gzip, Compression::Zstd];
        let found = all.into_iter().find(|one| one.to_string().eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            Error::invalid(format!("compression {name:?} is unknown: use auto, none, gzip or zstd"))
        })
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::Auto => "auto",
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        })
    }
}

/// The decompressed content of `source`. [`Compression::Auto`] needs the object's name, so it must
/// be resolved with [`Compression::of_name`] first.
///
/// A truncated stream fails with [`ErrorKind::UnexpectedEof`], a damaged one with
/// [`ErrorKind::InvalidData`], when reading gets there. An empty source is an empty object.
///
/// # Errors
/// [`Error::invalid`] for [`Compression::Auto`].
pub fn decompress(
    source: Box<dyn Read + Send>,
    compression: Compression,
) -> Result<Box<dyn Read + Send>> {
    let (decoder, name) = match compression {
        Compression::Auto => {
            return Err(Error::invalid(
                "the compression of an object cannot be told without its name: name it",
            ));
        }
        Compression::None => return Ok(source),
        Compression::Gzip => (Decoder::NewGzip(packed(source)), "gzip"),
        Compression::Zstd => (Decoder::NewZstd(packed(source)), "zstd"),
    };
    Ok(Box::new(Decompressor { decoder, name, produced: 0 }))
}

fn packed(source: Box<dyn Read + Send>) -> Packed {
    Packed { source: BufReader::with_capacity(BLOCK, source), failed: false }
}

/// A compressed source. It remembers whether it failed itself, so that its errors are not taken for
/// damage, and goes on after interruptions, which the decoders do not expect everywhere.
struct Packed {
    source: BufReader<Box<dyn Read + Send>>,
    failed: bool,
}

impl Packed {
    fn noted<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        self.failed |= result.is_err();
        result
    }

    fn is_empty(&mut self) -> io::Result<bool> {
        self.fill_buf().map(<[u8]>::is_empty)
    }
}

impl Read for Packed {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let buffered = self.fill_buf()?;
        let count = buffered.len().min(out.len());
        if let (Some(from), Some(to)) = (buffered.get(..count), out.get_mut(..count)) {
            to.copy_from_slice(from);
        }
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Packed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        loop {
            match self.source.fill_buf().map(|_| ()) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break self.noted(result)?,
            }
        }
        Ok(self.source.buffer())
    }

    fn consume(&mut self, count: usize) {
        self.source.consume(count);
    }
}

enum Decoder {
    /// Nothing has been read yet: making a decoder reads the header.
    NewGzip(Packed),
    NewZstd(Packed),
    Gzip(Box<MultiGzDecoder<Packed>>),
    Zstd(Box<ZstdDecoder<'static, Packed>>),
    /// Nothing is left, or nothing can be read after an error.
    Ended,
}

impl Decoder {
    /// The decoder of a stream that has a first byte.
    fn opened(self) -> io::Result<Decoder> {
        match self {
            Decoder::NewGzip(mut packed) => {
                if packed.is_empty()? {
                    return Ok(Decoder::Ended);
                }
                Ok(Decoder::Gzip(Box::new(MultiGzDecoder::new(packed))))
            }
            Decoder::NewZstd(mut packed) => {
                if packed.is_empty()? {
                    return Ok(Decoder::Ended);
                }
                let mut decoder = ZstdDecoder::with_buffer(packed)?;
                decoder.window_log_max(MAX_WINDOW_LOG)?;
                Ok(Decoder::Zstd(Box::new(decoder)))
            }
            Decoder::Gzip(_) | Decoder::Zstd(_) | Decoder::Ended => Ok(self),
        }
    }

    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoder::Gzip(decoder) => decoder.read(out),
            Decoder::Zstd(decoder) => decoder.read(out),
            Decoder::NewGzip(_) | Decoder::NewZstd(_) | Decoder::Ended => Ok(0),
        }
    }

    /// Whether the compressed source itself failed.
    fn source_failed(&self) -> bool {
        match self {
            Decoder::Gzip(decoder) => decoder.get_ref().failed,
            Decoder::Zstd(decoder) => decoder.get_ref().failed,
            Decoder::NewGzip(packed) | Decoder::NewZstd(packed) => packed.failed,
            Decoder::Ended => false,
        }
    }
}

/// Says in errors which stream is damaged, and where.
struct Decompressor {
    decoder: Decoder,
    name: &'static str,
    /// Decompressed bytes so far.
    produced: u64,
}

impl Decompressor {
    fn damage(&self, error: &io::Error) -> io::Error {
        let (name, produced) = (self.name, self.produced);
        if error.kind() == ErrorKind::UnexpectedEof {
            let text =
                format!("the {name} stream is truncated after {produced} decompressed bytes");
            return io::Error::new(ErrorKind::UnexpectedEof, text);
        }
        let text =
            format!("the {name} stream is damaged after {produced} decompressed bytes: {error}");
        io::Error::new(ErrorKind::InvalidData, text)
    }
}

impl Read for Decompressor {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if matches!(self.decoder, Decoder::NewGzip(_) | Decoder::NewZstd(_)) {
            // The only errors are those of the source, and of memory.
            self.decoder = std::mem::replace(&mut self.decoder, Decoder::Ended).opened()?;
        }
        match self.decoder.read(out) {
            Ok(count) => {
                self.produced = self.produced.saturating_add(count as u64);
                Ok(count)
            }
            Err(error) if self.decoder.source_failed() => Err(error),
            Err(error) => Err(self.damage(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(content: &[u8]) -> Vec<u8> {
        zstd::encode_all(content, 1).unwrap()
    }

    fn unpack(stream: Vec<u8>, compression: Compression) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        let mut reader = decompress(Box::new(Cursor::new(stream)), compression).unwrap();
        reader.read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn the_name_tells_the_compression() {
        let of = |name| Compression::Auto.of_name(name);
        assert_eq!(of("a/b.csv.gz"), Compression::Gzip);
        assert_eq!(of("B.GZIP"), Compression::Gzip);
        assert_eq!(of("x.zst"), Compression::Zstd);
        assert_eq!(of("x.zstd"), Compression::Zstd);
        assert_eq!(of("x.csv"), Compression::None);
        assert_eq!(of("folder.gz/x"), Compression::None);
        assert_eq!(of("gz"), Compression::None);
        assert_eq!(Compression::None.of_name("x.gz"), Compression::None);
    }

    #[test]
    fn names_are_parsed() {
        for one in [Compression::Auto, Compression::None, Compression::Gzip, Compression::Zstd] {
            assert_eq!(Compression::parse(&one.to_string()).unwrap(), one);
        }
        assert_eq!(Compression::parse("GZIP").unwrap(), Compression::Gzip);
        let error = Compression::parse("bzip2").unwrap_err();
        assert!(error.message().contains("auto, none, gzip or zstd"), "{error}");
    }

    #[test]
    fn several_members_and_frames_are_one_object() {
        let packed = [gzip(b"one\n"), gzip(b""), gzip(b"two\n")].concat();
        assert_eq!(unpack(packed, Compression::Gzip).unwrap(), b"one\ntwo\n");
        let packed = [zstd(b"one\n"), zstd(b""), zstd(b"two\n")].concat();
        assert_eq!(unpack(packed, Compression::Zstd).unwrap(), b"one\ntwo\n");
        assert_eq!(unpack(b"as is".to_vec(), Compression::None).unwrap(), b"as is");
        for compression in [Compression::Gzip, Compression::Zstd] {
            assert_eq!(unpack(Vec::new(), compression).unwrap(), b"");
        }
    }

    #[test]
    fn every_truncation_is_an_error() {
        let content: Vec<u8> = (0..20_000u32).flat_map(|n| (n * n).to_le_bytes()).collect();
        for (packed, compression) in
            [(gzip(&content), Compression::Gzip), (zstd(&content), Compression::Zstd)]
        {
            for length in (1..packed.len()).step_by(97).chain([packed.len() - 1]) {
                let unpacked = unpack(packed[..length].to_vec(), compression);
                let error = unpacked.expect_err(&format!("{compression} of {length} bytes"));
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
                let text = error.to_string();
                assert!(text.contains(&format!("the {compression} stream is truncated")), "{text}");
            }
        }
    }

    #[test]
    fn damage_is_named() {
        for (mut packed, compression) in [
            (gzip(&[7; 1000]), Compression::Gzip),
            (b"not compressed at all".to_vec(), Compression::Gzip),
            (b"not compressed at all".to_vec(), Compression::Zstd),
        ] {
            let checksum = packed.len() - 6;
            packed[checksum] ^= 1;
            let error = unpack(packed, compression).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().contains(&format!("the {compression} stream is damaged")));
        }
    }

    #[test]
    fn errors_of_the_source_pass_through() {
        struct Failing;
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::new(ErrorKind::ConnectionReset, "the store hung up"))
            }
        }
        for compression in [Compression::Gzip, Compression::Zstd] {
            let packed = if compression == Compression::Gzip { gzip(b"abc") } else { zstd(b"abc") };
            let head = Cursor::new(packed[..5].to_vec());
            let sources: [Box<dyn Read + Send>; 2] =
                [Box::new(Failing), Box::new(head.chain(Failing))];
            for source in sources {
                let mut reader = decompress(source, compression).unwrap();
                let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, is_gzip: bool) {
            let compression = if is_gzip { Compression::Gzip } else { Compression::Zstd };
            let _ = unpack(bytes, compression);
        }

        #[test]
        fn what_is_packed_is_unpacked(content: Vec<u8>) {
            prop_assert_eq!(&unpack(gzip(&content), Compression::Gzip).unwrap(), &content);
            prop_assert_eq!(&unpack(zstd(&content), Compression::Zstd).unwrap(), &content);
        }
    }
}
