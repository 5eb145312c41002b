//! The hashes of categories: CityHash64 of their text (version 1.0 of the algorithm, by Google under the
//! MIT licence, which CatBoost has kept), and CatBoost's combination of several.

const K0: u64 = 0xc3a5_c85c_97cb_3127;
const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;
const K3: u64 = 0xc949_d7c7_509e_6557;

/// The multiplier of `Hash128to64`.
const MIX: u64 = 0x9ddf_ea08_eb38_2d69;

/// The multiplier of CatBoost's `CalcHash`.
const COMBINE: u64 = 0x4906_ba49_4954_cb65;

/// The hash of a category: the low half of CityHash64.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn category(text: &[u8]) -> u32 {
    city64(text) as u32
}

/// The hash `a` with the value `b` added.
pub(super) fn combine(a: u64, b: u64) -> u64 {
    COMBINE.wrapping_mul(a.wrapping_add(COMBINE.wrapping_mul(b)))
}

/// The hash of a category as a number that [`combine`] adds.
#[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)]
pub(super) fn widened(category: u32) -> u64 {
    i64::from(category as i32) as u64
}

fn city64(s: &[u8]) -> u64 {
    let len = s.len() as u64;
    match s.len() {
        0..=16 => up_to_16(s),
        17..=32 => {
            let a = word(s, 0).wrapping_mul(K1);
            let b = word(s, 8);
            let c = word_from_end(s, 8).wrapping_mul(K2);
            let d = word_from_end(s, 16).wrapping_mul(K0);
            let sum = a.wrapping_sub(b).rotate_right(43).wrapping_add(c.rotate_right(30));
            let other = a.wrapping_add((b ^ K3).rotate_right(20)).wrapping_sub(c);
            mixed(sum.wrapping_add(d), other.wrapping_add(len))
        }
        33..=64 => up_to_64(s),
        _ => long(s),
    }
}

fn up_to_16(s: &[u8]) -> u64 {
    let len = s.len() as u64;
    match *s {
        [] => K2,
        [a, .., c] | [a @ c] if s.len() < 4 => {
            let b = s.get(s.len() / 2).copied().unwrap_or(0);
            let y = u64::from(a) + (u64::from(b) << 8);
            let z = len + (u64::from(c) << 2);
            shift_mix(y.wrapping_mul(K2) ^ z.wrapping_mul(K3)).wrapping_mul(K2)
        }
        _ if s.len() <= 8 => {
            let a = half(s, 0);
            mixed(len.wrapping_add(a << 3), half(s, s.len() - 4))
        }
        _ => {
            let (a, b) = (word(s, 0), word_from_end(s, 8));
            let rotated = b.wrapping_add(len).rotate_right(u32::try_from(len).unwrap_or(0));
            mixed(a, rotated) ^ b
        }
    }
}

fn up_to_64(s: &[u8]) -> u64 {
    let len = s.len() as u64;
    let mut z = word(s, 24);
    let mut a = word(s, 0).wrapping_add(len.wrapping_add(word_from_end(s, 16)).wrapping_mul(K0));
    let mut b = a.wrapping_add(z).rotate_right(52);
    let mut c = a.rotate_right(37);
    a = a.wrapping_add(word(s, 8));
    c = c.wrapping_add(a.rotate_right(7));
    a = a.wrapping_add(word(s, 16));
    let vf = a.wrapping_add(z);
    let vs = b.wrapping_add(a.rotate_right(31)).wrapping_add(c);
    a = word(s, 16).wrapping_add(word_from_end(s, 32));
    z = word_from_end(s, 8);
    b = a.wrapping_add(z).rotate_right(52);
    c = a.rotate_right(37);
    a = a.wrapping_add(word_from_end(s, 24));
    c = c.wrapping_add(a.rotate_right(7));
    a = a.wrapping_add(word_from_end(s, 16));
    let wf = a.wrapping_add(z);
    let ws = b.wrapping_add(a.rotate_right(31)).wrapping_add(c);
    let first = vf.wrapping_add(ws).wrapping_mul(K2);
    let r = shift_mix(first.wrapping_add(wf.wrapping_add(vs).wrapping_mul(K0)));
    shift_mix(r.wrapping_mul(K0).wrapping_add(vs)).wrapping_mul(K2)
}

/// The hash of more than 64 bytes: the end first, then blocks of 64 bytes from the start.
fn long(s: &[u8]) -> u64 {
    let len = s.len() as u64;
    let mut x = word(s, 0);
    let mut y = word_from_end(s, 16) ^ K1;
    let mut z = word_from_end(s, 56) ^ K0;
    let mut v = weak(s, s.len() - 64, len, y);
    let mut w = weak(s, s.len() - 32, len.wrapping_mul(K1), K0);
    z = z.wrapping_add(shift_mix(v.1).wrapping_mul(K1));
    x = z.wrapping_add(x).rotate_right(39).wrapping_mul(K1);
    y = y.rotate_right(33).wrapping_mul(K1);
    for at in (0..(s.len() - 1) & !63).step_by(64) {
        let sum = x.wrapping_add(y).wrapping_add(v.0).wrapping_add(word(s, at + 16));
        x = sum.rotate_right(37).wrapping_mul(K1);
        let sum = y.wrapping_add(v.1).wrapping_add(word(s, at + 48));
        y = sum.rotate_right(42).wrapping_mul(K1);
        x ^= w.1;
        y ^= v.0;
        z = (z ^ w.0).rotate_right(33);
        v = weak(s, at, v.1.wrapping_mul(K1), x.wrapping_add(w.0));
        w = weak(s, at + 32, z.wrapping_add(w.1), y);
        (z, x) = (x, z);
    }
    let first = mixed(v.0, w.0).wrapping_add(shift_mix(y).wrapping_mul(K1)).wrapping_add(z);
    mixed(first, mixed(v.1, w.1).wrapping_add(x))
}

/// `WeakHashLen32WithSeeds` of the 32 bytes at `at`.
fn weak(s: &[u8], at: usize, mut a: u64, mut b: u64) -> (u64, u64) {
    let z = word(s, at + 24);
    a = a.wrapping_add(word(s, at));
    b = b.wrapping_add(a).wrapping_add(z).rotate_right(21);
    let c = a;
    a = a.wrapping_add(word(s, at + 8)).wrapping_add(word(s, at + 16));
    b = b.wrapping_add(a.rotate_right(44));
    (a.wrapping_add(z), b.wrapping_add(c))
}

fn shift_mix(x: u64) -> u64 {
    x ^ (x >> 47)
}

/// `Hash128to64`.
fn mixed(low: u64, high: u64) -> u64 {
    let a = shift_mix((low ^ high).wrapping_mul(MIX));
    shift_mix((high ^ a).wrapping_mul(MIX)).wrapping_mul(MIX)
}

/// The little-endian number of 8 bytes at `at`; 0 if they are not there.
fn word(s: &[u8], at: usize) -> u64 {
    let bytes = s.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn word_from_end(s: &[u8], distance: usize) -> u64 {
    word(s, s.len().saturating_sub(distance))
}

/// The little-endian number of 4 bytes at `at`.
fn half(s: &[u8], at: usize) -> u64 {
    let bytes = s.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes that CatBoost 1.2.10 wrote into a model (`cat_features_hash`).
    #[test]
    fn hashes_of_texts() {
        for (text, hash) in [
            ("", 797_982_799),
            ("4", 4_216_280_702),
            ("35", 1_551_952_625),
            ("red", 3_052_168_893),
            ("x y", 302_692_663),
            ("näh", 2_583_174_217),
            ("green", 1_390_465_085),
            ("ab", 4_090_249_022),
            ("abcd", 345_588_365),
            ("abcdefgh", 4_270_775_063),
            ("abcdefghi", 3_019_552_977),
            ("abcdefghijklmnop", 2_150_978_241),
            ("abcdefghijklmnopq", 322_581_478),
            ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 3_405_059_654),
            ("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", 4_117_134_603),
            ("012345678901234567890123456789012345678901234567890123456789abcd", 650_312_652),
            ("ccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc", 3_321_052_681),
            (
                "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
                2_713_618_934,
            ),
        ] {
            assert_eq!(category(text.as_bytes()), hash, "{text}");
        }
    }
}
