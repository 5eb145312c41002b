//! The readers of batch transform: `tensorserve_records`.

use std::fs::File;
use std::io::{Cursor, Read};

use tensorserve_records::compression::{Compression, decompress};
use tensorserve_records::npy_read::NpyRows;
use tensorserve_records::parquet_read::ParquetRows;
use tensorserve_records::range::open_at;
use tensorserve_records::split::{Chunk, Split, SplitOptions, Splitter};

use super::target::{selected, with_caught_panics, with_file};

const SPLITS: [Split; 6] =
    [Split::None, Split::Line, Split::Csv, Split::JsonLines, Split::TfRecord, Split::RecordIo];

/// The most bytes of a record.
const MAX_RECORD: usize = 1 << 16;

/// The most bytes of a row.
const MAX_ROW: usize = 1 << 20;

/// The most decompressed bytes, as compressed ones may stand for any number.
const MAX_DECOMPRESSED: u64 = 1 << 20;

/// A source that returns one to seven bytes at a time.
struct Ragged<R> {
    source: R,
    turn: usize,
}

impl<R: Read> Read for Ragged<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.turn = self.turn % 7 + 1;
        let length = self.turn.min(out.len());
        self.source.read(&mut out[..length])
    }
}

/// Chunks of records are the same whatever the source returns at once, and ranges of lines are the
/// whole. Compressed bytes and npy files are read or refused. The first byte selects format and
/// limits.
pub fn records(input: &[u8]) {
    let Some((first, object)) = selected(input) else { return };
    let options = SplitOptions {
        split: SPLITS[first % SPLITS.len()],
        max_record_bytes: if first & 64 == 0 { MAX_RECORD } else { 16 },
        keep_blank_lines: first & 128 != 0,
    };
    let (max_records, max_bytes) = if first & 32 == 0 { (3, 40) } else { (1000, 1 << 20) };
    let limits = (max_records, max_bytes);
    let (whole, error) = chunks(&mut Splitter::new(object, options), limits);
    let ragged = Ragged { source: object, turn: first };
    let (again, again_error) = chunks(&mut Splitter::new(ragged, options), limits);
    assert_eq!(error, again_error);
    assert_eq!(contents(&whole), contents(&again));
    let sizes = |chunks: &[Chunk]| chunks.iter().map(|one| one.records.len()).collect::<Vec<_>>();
    assert_eq!(sizes(&whole), sizes(&again));

    if matches!(options.split, Split::Line | Split::JsonLines) && error.is_none() {
        ranges(object, options, first, &contents(&whole));
    }
    for compression in [Compression::Gzip, Compression::Zstd] {
        let source = Box::new(Cursor::new(object.to_vec()));
        let reader = decompress(source, compression).expect("a decoder");
        chunks(&mut Splitter::new(reader.take(MAX_DECOMPRESSED), options), limits);
    }
    if let Ok(mut rows) = NpyRows::open(object) {
        // Rows may have no bytes, so a small file can have any number of them.
        for _ in 0..100 {
            if !matches!(rows.next_chunk(max_records, max_bytes), Ok(Some(_))) {
                break;
            }
        }
    }
}

/// A Parquet file, whose rows are read.
pub fn parquet(file: &[u8]) {
    with_file("rows.parquet", file, |path| {
        let file = File::open(path).expect("written");
        with_caught_panics(|| {
            let Ok(mut rows) = ParquetRows::open(file, None, MAX_ROW) else { return };
            for _ in 0..100 {
                if !matches!(rows.next_chunk(100, MAX_ROW), Ok(Some(_))) {
                    break;
                }
            }
        });
    });
}

fn ranges(object: &[u8], options: SplitOptions, seed: usize, whole: &[Vec<u8>]) {
    let length = object.len() as u64;
    let cut = seed as u64 * length / 256;
    let mut parts = Vec::new();
    for range in [0..cut, cut..length] {
        let source = &object[usize::try_from(open_at(range.start)).expect("inside")..];
        let mut splitter = Splitter::over_range(source, options, range).expect("lines");
        let (found, error) = chunks(&mut splitter, (100, 1000));
        assert_eq!(error, None);
        parts.extend(contents(&found));
    }
    assert_eq!(parts, whole);
}

fn chunks<R: Read>(
    splitter: &mut Splitter<R>,
    (max_records, max_bytes): (usize, usize),
) -> (Vec<Chunk>, Option<String>) {
    let mut all = Vec::new();
    loop {
        match splitter.next_chunk(max_records, max_bytes) {
            Ok(Some(chunk)) => all.push(chunk),
            Ok(None) => return (all, None),
            Err(error) => return (all, Some(error.message().to_owned())),
        }
    }
}

fn contents(chunks: &[Chunk]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for chunk in chunks {
        all.extend(chunk.records.iter().map(|record| chunk.content(record).to_vec()));
    }
    all
}
