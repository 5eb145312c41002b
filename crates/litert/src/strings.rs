//! String tensors, as LiteRT keeps them in memory: the number of strings, where each begins and the last one
//! ends, as 32-bit integers, and the bytes.

use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{AlignedVec, Strings, StringsBuilder};

/// The size of an integer.
const WORD: usize = 4;

/// Appends `strings` to `memory`.
///
/// # Errors
/// If they have more than 2 GiB together.
pub(super) fn pack(strings: &Strings, memory: &mut AlignedVec<u8>) -> Result<()> {
    let header = (strings.len().saturating_add(2)).saturating_mul(WORD);
    let bytes: usize = strings.iter().map(<[u8]>::len).sum();
    let total = header.saturating_add(bytes);
    if i32::try_from(total).is_err() {
        return Err(Error::oversized("the strings of an input have more than 2 GiB"));
    }
    let word = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
    memory.reserve(total);
    memory.extend_from_slice(&word(strings.len()));
    let mut end = header;
    memory.extend_from_slice(&word(end));
    for string in strings.iter() {
        end += string.len();
        memory.extend_from_slice(&word(end));
    }
    strings.iter().for_each(|string| memory.extend_from_slice(string));
    Ok(())
}

/// The `count` strings in `bytes`.
///
/// # Errors
/// If there are not as many.
pub(super) fn unpack(bytes: &[u8], count: usize) -> Result<StringsBuilder> {
    let damaged = || Error::internal("LiteRT returned a damaged string tensor");
    if count == 0 {
        return Ok(StringsBuilder::default());
    }
    let word = |at: usize| {
        let word = bytes.get(at.checked_mul(WORD)?..)?.first_chunk()?;
        usize::try_from(i32::from_le_bytes(*word)).ok()
    };
    if word(0) != Some(count) {
        return Err(damaged());
    }
    let mut strings = StringsBuilder::with_capacity(count, bytes.len());
    for index in 0..count {
        let range = word(index + 1).zip(word(index + 2));
        let string = range.and_then(|(start, end)| bytes.get(start..end));
        strings.push(string.ok_or_else(damaged)?);
    }
    Ok(strings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::aligned_vec;

    #[test]
    fn strings_survive() {
        let mut some = StringsBuilder::default();
        for text in ["a", "", "\u{e4}rger", "0123456789"] {
            some.push(text.as_bytes());
        }
        let some = Strings::new(some);
        let mut memory = aligned_vec(0);
        pack(&some, &mut memory).expect("small");
        let again = Strings::new(unpack(&memory, 4).expect("as packed"));
        assert!(some.iter().eq(again.iter()));
        for end in 0..memory.len() {
            assert!(unpack(&memory[..end], 4).is_err(), "{end} bytes");
        }
        assert!(unpack(&memory, 3).is_err());
        for at in 0..memory.len() {
            let mut flipped = memory.to_vec();
            flipped[at] ^= 0x80;
            let _ = unpack(&flipped, 4);
        }
        assert_eq!(unpack(&[], 0).expect("none").len(), 0);
    }
}
