//! The white space of arrays, and what is between their elements.

/// The white space of arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonLayout {
    /// No white space.
    Compact,
    /// A space after each comma (RapidJSON's single-line arrays).
    Line,
    /// One element per line, indented by four spaces per level.
    Pretty,
}

/// Spaces per level of indentation in [`JsonLayout::Pretty`].
const INDENTATION: usize = 4;

/// What precedes each element of one row, or of several rows that are arrays beside each other.
#[derive(Clone, Copy)]
pub(super) struct Separators {
    pub(super) layout: JsonLayout,
    depth: usize,
    /// There are elements in front.
    any: bool,
    /// The elements of a row, and how many of them are left.
    row: usize,
    left: usize,
}

impl Separators {
    /// Those of elements of one row.
    pub(super) fn of_row(layout: JsonLayout, depth: usize, any: bool) -> Self {
        Separators { layout, depth, any, row: usize::MAX, left: usize::MAX }
    }

    /// Those of whole rows of `row` elements, which are not on lines of their own.
    pub(super) fn of_rows(layout: JsonLayout, row: usize, any: bool) -> Self {
        Separators { layout, depth: 0, any, row, left: 0 }
    }

    /// Whether there are elements in front of the next one, and whether it is the first one of its row.
    #[inline(always)]
    fn next(&mut self) -> (bool, bool) {
        let is_first = self.left == 0;
        self.left = if is_first { self.row } else { self.left } - 1;
        (std::mem::replace(&mut self.any, true), is_first)
    }

    /// Writes what precedes the next element.
    #[inline(always)]
    pub(super) fn write_next(&mut self, out: &mut Vec<u8>) {
        let (any, is_first) = self.next();
        if any && is_first {
            out.extend_from_slice(if self.layout == JsonLayout::Line { b"], [" } else { b"],[" });
        } else {
            separate(any, self.layout, self.depth, out);
        }
    }

    /// What precedes the next element on the same line, in the first of these bytes.
    #[inline(always)]
    pub(super) fn next_on_line(&mut self) -> ([u8; 4], usize) {
        let has_space = self.layout == JsonLayout::Line;
        match self.next() {
            (false, _) => (*b"    ", 0),
            (true, false) => (*b",   ", 1 + usize::from(has_space)),
            (true, true) if has_space => (*b"], [", 4),
            (true, true) => (*b"],[ ", 3),
        }
    }
}

/// The most bytes of a bracket, or of a separator before a value at this depth.
pub(super) const fn separator_len(depth: usize) -> usize {
    INDENTATION * depth + 4
}

/// Writes what precedes an element: with `comma` the separator, and the line break.
#[inline(always)]
pub(super) fn separate(comma: bool, layout: JsonLayout, depth: usize, out: &mut Vec<u8>) {
    match (layout, comma) {
        (JsonLayout::Line, true) => out.extend_from_slice(b", "),
        (JsonLayout::Compact, true) => out.push(b','),
        (JsonLayout::Line | JsonLayout::Compact, false) => {}
        (JsonLayout::Pretty, _) => {
            if comma {
                out.push(b',');
            }
            new_line(depth, out);
        }
    }
}

/// Closes an array; `any` is whether it has elements.
#[inline]
pub(super) fn end(any: bool, layout: JsonLayout, depth: usize, out: &mut Vec<u8>) {
    if any && layout == JsonLayout::Pretty {
        new_line(depth, out);
    }
    out.push(b']');
}

/// Appends a line break and the indentation inside `depth` arrays and objects.
pub fn new_line(depth: usize, out: &mut Vec<u8>) {
    out.push(b'\n');
    out.resize(out.len() + INDENTATION * depth, b' ');
}
