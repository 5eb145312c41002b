//! Huffman-coded strings (RFC 7541, 5.2 and appendix B).
//!
//! A string is decoded four bits at a time. No code is that short, so four bits complete one character at most.

use std::sync::LazyLock;

/// The lengths of the codes in bits, of all bytes and of the end of the string. The code is canonical: the codes
/// of one length are consecutive, in the order of their characters, and follow those of the shorter ones.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// The end of the string, which no string contains.
const END: usize = 256;

/// The inner nodes of the code's tree; its leaves are the 257 characters.
const NODES: usize = 256;

/// What four bits do in a state, which is an inner node of the tree.
#[derive(Clone, Copy, Default)]
struct HuffmanStep {
    next: u8,
    symbol: Option<u8>,
    is_invalid: bool,
}

struct HuffmanMachine {
    steps: Vec<[HuffmanStep; 16]>,
    /// Whether a string may end in this state: at the end of a character, or in up to seven bits of padding.
    may_end: Vec<bool>,
}

static MACHINE: LazyLock<HuffmanMachine> = LazyLock::new(HuffmanMachine::build);

impl HuffmanMachine {
    fn build() -> Self {
        let children = tree();
        let steps = (0..NODES).map(|node| {
            let mut of_node = [HuffmanStep::default(); 16];
            for (bits, step) in of_node.iter_mut().enumerate() {
                *step = walk(&children, node, bits);
            }
            of_node
        });
        let steps = steps.collect();
        let (mut may_end, mut node) = (vec![false; NODES], 0);
        for _ in 0..8 {
            if let Some(state) = may_end.get_mut(node) {
                *state = true;
            }
            node = children.get(node).map_or(0, |[_, one]| *one);
        }
        HuffmanMachine { steps, may_end }
    }
}

/// The two children of each inner node: another one, or `NODES` and a character.
fn tree() -> Vec<[usize; 2]> {
    let mut symbols: Vec<usize> = (0..LENGTHS.len()).collect();
    let length = |symbol: usize| LENGTHS.get(symbol).copied().unwrap_or(0);
    symbols.sort_by_key(|symbol| length(*symbol));
    let (mut children, mut code, mut before) = (vec![[0; 2]], 0_u32, 0);
    for symbol in symbols {
        let bits = length(symbol);
        code <<= bits - before;
        before = bits;
        let mut node = 0;
        for bit in (0..bits).rev() {
            let side = usize::from(code >> bit & 1 == 1);
            let next = children.len();
            let child = children.get_mut(node).and_then(|both| both.get_mut(side));
            let Some(child) = child else { break };
            if bit == 0 {
                *child = NODES + symbol;
            } else if *child == 0 {
                *child = next;
                children.push([0; 2]);
                node = next;
            } else {
                node = *child;
            }
        }
        code += 1;
    }
    children
}

/// What the four `bits` do in the state `node`.
fn walk(children: &[[usize; 2]], node: usize, bits: usize) -> HuffmanStep {
    let (mut node, mut symbol) = (node, None);
    for bit in (0..4).rev() {
        let both = children.get(node).copied().unwrap_or_default();
        let child = both.get(bits >> bit & 1).copied().unwrap_or(0);
        match child.checked_sub(NODES) {
            None => node = child,
            Some(END) => return HuffmanStep { is_invalid: true, ..HuffmanStep::default() },
            Some(character) => (node, symbol) = (0, u8::try_from(character).ok()),
        }
    }
    HuffmanStep { next: u8::try_from(node).unwrap_or(0), symbol, is_invalid: false }
}

/// Appends what `coded` says to `text`. Whether it is valid.
pub(super) fn decode(coded: &[u8], text: &mut Vec<u8>) -> bool {
    let machine = &*MACHINE;
    let mut state = 0;
    for bits in coded.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
        let of_state = machine.steps.get(usize::from(state));
        let Some(step) = of_state.and_then(|steps| steps.get(usize::from(bits))) else {
            return false;
        };
        if step.is_invalid {
            return false;
        }
        text.extend(step.symbol);
        state = step.next;
    }
    machine.may_end.get(usize::from(state)).copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::super::tests::hex;
    use super::*;

    fn decoded(coded: &[u8]) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        decode(coded, &mut text).then_some(text)
    }

    /// The examples of RFC 7541, C.4 and C.6.
    #[test]
    fn the_examples_of_the_standard_are_read() {
        let examples = [
            ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
            ("a8eb10649cbf", "no-cache"),
            ("25a849e95ba97d7f", "custom-key"),
            ("25a849e95bb8e8b4bf", "custom-value"),
            ("6402", "302"),
            ("aec3771a4b", "private"),
            ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com"),
        ];
        for (coded, text) in examples {
            assert_eq!(decoded(&hex(coded)).as_deref(), Some(text.as_bytes()));
        }
    }

    /// Every byte, as the canonical code writes it, one after another.
    #[test]
    fn every_byte_has_its_code() {
        let mut order: Vec<usize> = (0..LENGTHS.len()).collect();
        order.sort_by_key(|symbol| LENGTHS[*symbol]);
        let (mut codes, mut code, mut before) = (vec![0_u32; 257], 0, 0);
        for symbol in order {
            code <<= LENGTHS[symbol] - before;
            before = LENGTHS[symbol];
            codes[symbol] = code;
            code += 1;
        }
        assert_eq!(codes[END], 0x3fff_ffff, "the last code has ones only");
        for byte in 0..=255_u8 {
            let symbol = usize::from(byte);
            let mut bits: Vec<bool> =
                (0..LENGTHS[symbol]).rev().map(|bit| codes[symbol] >> bit & 1 == 1).collect();
            bits.resize(bits.len().next_multiple_of(8), true);
            let bytes = bits
                .chunks(8)
                .map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit)));
            assert_eq!(decoded(&bytes.collect::<Vec<u8>>()), Some(vec![byte]));
        }
    }

    #[test]
    fn what_is_no_code_is_refused() {
        assert_eq!(decoded(b""), Some(Vec::new()));
        // Eight bits of padding, padding with a zero, and the end of the string.
        for wrong in ["ff", "06", "a8eb10649cbe", "ffffffff", "fffffffc"] {
            assert_eq!(decoded(&hex(wrong)), None, "{wrong}");
        }
    }
}
