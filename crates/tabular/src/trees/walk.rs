//! Walks that go on in parallel, as each step of one depends on the step before.

/// The number of walks that go on in parallel.
pub(super) const PARALLEL_WALKS: usize = 8;

/// How many steps walks go on after one of them may have arrived: to find out costs about as much as half a step.
const STEPS_AT_ONCE: usize = 3;

/// Trees up to this depth are taken to be about as deep everywhere: steps that stay at a leaf cost less than to
/// find out whether all have arrived.
const EVEN_DEPTH: u32 = 12;

/// The leaves that the first `count` walks reach from their `roots`, in at most `depth` steps; `child_of` is the node that a
/// walk, by its number, goes to from a node: from a leaf the leaf. The walks are those of a row through several trees, or of
/// several rows through a tree.
#[inline]
pub(super) fn leaves_of(
    depth: u32,
    roots: [usize; PARALLEL_WALKS],
    count: usize,
    child_of: impl Fn(usize, usize) -> usize,
) -> [usize; PARALLEL_WALKS] {
    let mut nodes = roots;
    if depth <= EVEN_DEPTH {
        for _ in 0..depth {
            for (walk, node) in nodes.iter_mut().enumerate() {
                *node = child_of(walk, *node);
            }
        }
        return nodes;
    }
    if count < PARALLEL_WALKS {
        for (walk, node) in nodes.iter_mut().take(count).enumerate() {
            *node = leaf_of(*node, |node| child_of(walk, node));
        }
        return nodes;
    }
    loop {
        for _ in 1..STEPS_AT_ONCE {
            for (walk, node) in nodes.iter_mut().enumerate() {
                *node = child_of(walk, *node);
            }
        }
        // Not a comparison of the arrays, for which the compiler calls a function.
        let mut moved = 0;
        for (walk, node) in nodes.iter_mut().enumerate() {
            let next = child_of(walk, *node);
            moved |= next ^ *node;
            *node = next;
        }
        if moved == 0 {
            return nodes;
        }
    }
}

/// The leaf that a walk reaches from `node`.
fn leaf_of(mut node: usize, child_of: impl Fn(usize) -> usize) -> usize {
    loop {
        let next = child_of(node);
        if next == node {
            return node;
        }
        node = next;
    }
}
