//! Where the elements of an array lie that is stored by columns.

/// The places of elements, in the order of rows.
pub struct Places {
    /// Size of each dimension, how far apart its elements lie, and where in it we are.
    dims: Vec<(usize, usize, usize)>,
    next: usize,
    left: usize,
}

impl Places {
    /// Those of an array of so many elements in all, stored by columns ("Fortran order"): the
    /// product of `sizes` is `count`.
    pub fn by_columns(sizes: impl Iterator<Item = usize>, count: usize) -> Self {
        let mut stride = 1;
        let dims = sizes.map(|size| {
            let this = (size, stride, 0);
            stride *= size;
            this
        });
        Places { dims: dims.collect(), next: 0, left: count }
    }

    /// Those of an array stored by rows: one after the other.
    pub fn by_rows(count: usize) -> Self {
        Places { dims: vec![(count, 1, 0)], next: 0, left: count }
    }
}

impl Iterator for Places {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let this = self.next;
        for (size, stride, at) in self.dims.iter_mut().rev() {
            *at += 1;
            self.next += *stride;
            if *at < *size {
                break;
            }
            self.next -= *size * *stride;
            *at = 0;
        }
        Some(this)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}
