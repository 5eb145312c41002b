//! The walk of a row through several trees at once, which all evaluators of trees share.

/// The number of trees that are walked in parallel.
pub(crate) const LANES: usize = 8;

/// Trees up to this depth are taken to be about as deep everywhere: steps that stay at a leaf cost less than to
/// find out whether all have arrived.
const EVEN_DEPTH: u32 = 12;

/// The depth of trees that is not known.
#[cfg(feature = "h2o")]
pub(crate) const UNKNOWN_DEPTH: u32 = u32::MAX;

/// The leaves that a row reaches from `roots`, of which there are at most [`LANES`], in at most `depth` steps;
/// `child_of` is the child of a node that the row goes to, and of a leaf the leaf. That many trees are walked in
/// parallel, as each step depends on the one before.
#[inline]
pub(crate) fn leaves_of(
    depth: u32,
    roots: impl ExactSizeIterator<Item = u32>,
    child_of: impl Fn(usize) -> usize,
) -> [usize; LANES] {
    let count = roots.len();
    let mut lanes = [0; LANES];
    lanes.iter_mut().zip(roots).for_each(|(node, root)| *node = root as usize);
    if depth <= EVEN_DEPTH {
        for _ in 0..depth {
            for node in &mut lanes {
                *node = child_of(*node);
            }
        }
        return lanes;
    }
    if count < LANES {
        for node in lanes.iter_mut().take(count) {
            *node = leaf_of(*node, &child_of);
        }
        return lanes;
    }
    loop {
        // Not a comparison of the arrays, for which the compiler calls a function.
        let mut moved = 0;
        for node in &mut lanes {
            let next = child_of(*node);
            moved |= next ^ *node;
            *node = next;
        }
        if moved == 0 {
            return lanes;
        }
    }
}

/// The leaf that a row reaches from `node`.
fn leaf_of(mut node: usize, child_of: &impl Fn(usize) -> usize) -> usize {
    loop {
        let next = child_of(node);
        if next == node {
            return node;
        }
        node = next;
    }
}
