//! Element offsets of arrays in row-major and column-major order.

/// Iterates over the storage offsets of an array's elements, in row-major order of the elements.
/// Offsets count elements, not bytes.
pub struct Places {
    dims: Vec<Dimension>,
    next: usize,
    remaining: usize,
}

struct Dimension {
    size: usize,
    /// Distance of neighbours along this dimension.
    stride: usize,
    /// The coordinate of the next element.
    coordinate: usize,
}

impl Places {
    /// The offsets in an array that is stored in column-major ("Fortran") order. `count`, its number
    /// of elements, must be the product of `sizes`.
    pub fn by_columns(sizes: impl Iterator<Item = usize>, count: usize) -> Self {
        let mut stride = 1;
        let dims = sizes.map(|size| {
            let dimension = Dimension { size, stride, coordinate: 0 };
            stride *= size;
            dimension
        });
        Places { dims: dims.collect(), next: 0, remaining: count }
    }

    /// The offsets in an array that is stored in row-major order: 0, 1, 2, …
    pub fn by_rows(count: usize) -> Self {
        let dims = vec![Dimension { size: count, stride: 1, coordinate: 0 }];
        Places { dims, next: 0, remaining: count }
    }
}

impl Iterator for Places {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.remaining = self.remaining.checked_sub(1)?;
        let offset = self.next;
        for dimension in self.dims.iter_mut().rev() {
            dimension.coordinate += 1;
            self.next += dimension.stride;
            if dimension.coordinate < dimension.size {
                break;
            }
            self.next -= dimension.size * dimension.stride;
            dimension.coordinate = 0;
        }
        Some(offset)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}
