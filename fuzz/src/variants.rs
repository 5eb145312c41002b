//! Variants of an input that ask for much memory with few bytes, whatever its format: counts and sizes become
//! huge, small parts are many, brackets are nested deep.

/// The length of an input in which a part is repeated.
const REPEATED: usize = 48 << 10;

/// How deep brackets are nested.
const NESTED: usize = 20_000;

/// Numbers in bytes that a decoder may take for a count: of 32 and 64 bits in both orders, and of 7 bits a byte.
const BINARY_COUNTS: [&[u8]; 9] = [
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\x7f\xff\xff\xff",
    b"\x00\x00\x00\x10",
    b"\x10\x00\x00\x00",
    b"\x00\x00\x10\x00",
    b"\x00\x00\x00\x00\x01\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\x3f",
];

/// Numbers in text.
const TEXT_COUNTS: [&[u8]; 6] =
    [b"1000000000", b"30000000", b"2147483647", b"9223372036854775807", b"1048576", b"1e9"];

/// What opens a part, as text and in pickles, UBJSON and protocol buffers.
const OPENINGS: [&[u8]; 8] =
    [b"[", b"{\"a\":", b"<a>", b"(", b"]", b"[[", b"{", b"\x0a\xff\xff\x03"];

/// Takes places and choices in turn: a variant is the same at every run.
struct Turns(usize);

impl Turns {
    fn below(&mut self, end: usize) -> usize {
        // The multiplier and the increment of Knuth's MMIX.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }

    fn one<'o>(&mut self, of: &[&'o [u8]]) -> &'o [u8] {
        of[self.below(of.len())]
    }
}

/// `count` variants of `input`.
pub fn of(input: &[u8], count: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut turns = Turns(input.len());
    (0..count).map(move |number| match number % 5 {
        0 => with_binary_count(input, &mut turns),
        1 => with_text_count(input, &mut turns),
        2 => with_repeated_part(input, &mut turns),
        3 => with_repeated_bytes(input, &mut turns),
        _ => with_openings(input, &mut turns),
    })
}

/// `input` with `new` in place of the bytes from `start` to `end`.
fn replaced(input: &[u8], start: usize, end: usize, new: &[u8]) -> Vec<u8> {
    let end = end.clamp(start, input.len());
    [&input[..start], new, &input[end..]].concat()
}

fn with_binary_count(input: &[u8], turns: &mut Turns) -> Vec<u8> {
    let (at, new) = (turns.below(input.len()), turns.one(&BINARY_COUNTS));
    replaced(input, at, at + new.len(), new)
}

/// One of the numbers in the text becomes another one.
fn with_text_count(input: &[u8], turns: &mut Turns) -> Vec<u8> {
    let new = turns.one(&TEXT_COUNTS);
    let from = turns.below(input.len());
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let Some(start) = (from..input.len()).chain(0..from).find(|at| is_digit(&input[*at])) else {
        return with_binary_count(input, turns);
    };
    let length = input[start..].iter().take_while(|byte| is_digit(byte)).count();
    replaced(input, start, start + length, new)
}

/// What is between two equal separators is there many times.
fn with_repeated_part(input: &[u8], turns: &mut Turns) -> Vec<u8> {
    let separator = turns.one(&[b",", b"\n", b" ", b";", b"<", b"{", b"["])[0];
    let places: Vec<usize> = (0..input.len()).filter(|at| input[*at] == separator).collect();
    if places.len() < 2 {
        return with_repeated_bytes(input, turns);
    }
    let first = turns.below(places.len() - 1);
    let last = (first + 1 + turns.below(3)).min(places.len() - 1);
    repeated(input, places[first], places[last])
}

fn with_repeated_bytes(input: &[u8], turns: &mut Turns) -> Vec<u8> {
    let start = turns.below(input.len());
    let length = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32][turns.below(10)];
    repeated(input, start, (start + length).min(input.len()))
}

fn repeated(input: &[u8], start: usize, end: usize) -> Vec<u8> {
    let part = &input[start.min(end)..end];
    let times = REPEATED / part.len().max(1);
    replaced(input, start.min(end), end, &part.repeat(times))
}

fn with_openings(input: &[u8], turns: &mut Turns) -> Vec<u8> {
    let (at, opening) = (turns.below(input.len() + 1), turns.one(&OPENINGS));
    replaced(input, at, at, &opening.repeat(NESTED))
}
