//! `PolynomialExpansion`: all products of elements, up to a degree.

use super::super::folder::StageFolder;
use super::super::schema::{Schema, Wanted};
use super::super::stage::PipelineStage;
use super::super::table::{SparkColumn, SparkTable, Vectors};
use super::super::unsupported;
use tensorserve_tensor::error::Result;

/// The most products.
const MAX_PRODUCTS: usize = 1 << 16;

/// A product: another one, or 1, multiplied by an element.
struct PolynomialTerm {
    factor: Option<usize>,
    element: usize,
}

struct PolynomialExpansion {
    input: usize,
    output: usize,
    products: Vec<PolynomialTerm>,
}

pub(in super::super) fn polynomial(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let input = schema.read(folder.column("inputCol")?, Wanted::Vector(None))?;
    let width = schema.known_size(input)?;
    let products = products(width, folder.size("degree", 2)?).ok_or_else(|| {
        unsupported(format!("a PolynomialExpansion of more than {MAX_PRODUCTS} products"))
    })?;
    let output = schema.make_vector(folder.column("outputCol")?, products.len())?;
    Ok(Box::new(PolynomialExpansion { input, output, products }))
}

/// The products of `width` elements up to `degree`, in Spark's order: by the power of the last element,
/// then by that of the one before it. In each, the last element comes first.
fn products(width: usize, degree: usize) -> Option<Vec<PolynomialTerm>> {
    // Exponents are counted up, the first element fastest.
    let mut exponents = vec![0usize; width];
    let mut places = std::collections::HashMap::new();
    let mut products = Vec::new();
    'next: loop {
        let mut sum: usize = exponents.iter().sum();
        for element in 0..width {
            if sum < degree {
                *exponents.get_mut(element)? += 1;
                let lowest = exponents.iter().position(|power| *power > 0)?;
                let mut factor = exponents.clone();
                *factor.get_mut(lowest)? -= 1;
                let place = products.len();
                products
                    .push(PolynomialTerm { factor: places.get(&factor).copied(), element: lowest });
                places.insert(exponents.clone(), place);
                if products.len() > MAX_PRODUCTS || products.len() * width > 1 << 24 {
                    return None;
                }
                continue 'next;
            }
            sum -= std::mem::take(exponents.get_mut(element)?);
        }
        return Some(products);
    }
}

impl PipelineStage for PolynomialExpansion {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let vectors = table.vectors(self.input)?;
        let count = self.products.len();
        let mut all: Vec<f64> = Vec::with_capacity(count * table.rows);
        vectors.for_dense_rows(table.rows, |_, row| {
            let start = all.len();
            for product in &self.products {
                let element = row.get(product.element).copied().unwrap_or(0.0);
                let factor = product.factor.map(|at| all.get(start + at).copied().unwrap_or(0.0));
                all.push(match factor {
                    None => element,
                    // A product with 0 stays 0, also with NaN.
                    Some(0.0) => 0.0,
                    Some(factor) => factor * element,
                });
            }
            Ok(())
        })?;
        table.put(self.output, SparkColumn::Vectors(Vectors::dense(count, all)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_in_the_order_of_spark() {
        let products = products(2, 2).expect("few");
        let names: Vec<(Option<usize>, usize)> =
            products.iter().map(|product| (product.factor, product.element)).collect();
        // x, x², y, y·x, y².
        assert_eq!(names, [(None, 0), (Some(0), 0), (None, 1), (Some(2), 0), (Some(2), 1)]);
        assert!(super::products(1000, 3).is_none());
        assert_eq!(super::products(3, 3).expect("few").len(), 19);
    }
}
