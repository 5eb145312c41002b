//! The hazard of a Cox regression: the cumulative one of the baseline at the end time, times that of the
//! row relative to the baseline.

use super::builder::PmmlBuilder;
use super::context::ModelContext;
use super::field::MISSING;
use super::row::PmmlRow;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct BaselineHazard {
    /// The slot of the end time.
    end_time: u32,
    /// The slot of the stratum, if there are several.
    stratum: Option<u32>,
    strata: Box<[BaselineStratum]>,
}

struct BaselineStratum {
    /// The value of the stratum; missing if there are none.
    value: f64,
    max_time: f64,
    /// Times in ascending order, and the cumulative hazard from each on.
    cells: Box<[(f64, f64)]>,
}

impl BaselineHazard {
    /// The cumulative hazard of the baseline at the end time of the row; missing behind the last time
    /// that is known.
    #[allow(clippy::float_cmp)] // Categories.
    pub(super) fn at(&self, row: &PmmlRow) -> f64 {
        let time = row.get(self.end_time);
        let stratum = match self.stratum {
            None => self.strata.first(),
            Some(slot) => self.strata.iter().find(|one| one.value == row.get(slot)),
        };
        let Some(stratum) = stratum.filter(|one| time <= one.max_time) else {
            return MISSING;
        };
        let count = stratum.cells.partition_point(|(from, _)| *from <= time);
        match count.checked_sub(1).and_then(|index| stratum.cells.get(index)) {
            Some((_, hazard)) => *hazard,
            None => 0.0,
        }
    }

    pub(super) fn read(
        builder: &mut PmmlBuilder,
        element: XmlElement,
        context: &ModelContext,
    ) -> Result<Self> {
        let end_time = context.scope.field(element, "endTimeVariable")?.slot;
        let tables = element.required_child("BaseCumHazardTables")?;
        let mut strata = Vec::new();
        let mut stratum = None;
        if element.attribute("baselineStrataVariable").is_some() {
            let field = context.scope.field(element, "baselineStrataVariable")?;
            stratum = Some(field.slot);
            for one in tables.children_named("BaselineStratum") {
                let text = one.required("value")?;
                let value = builder.strings.constant(one, field.data_type, text)?;
                strata.push(read_stratum(one, value)?);
            }
        } else {
            strata.push(read_stratum(tables, MISSING)?);
        }
        Ok(BaselineHazard { end_time, stratum, strata: strata.into() })
    }
}

fn read_stratum(element: XmlElement, value: f64) -> Result<BaselineStratum> {
    let mut cells = Vec::new();
    for cell in element.children_named("BaselineCell") {
        cells.push((cell.required_number("time")?, cell.required_number("cumHazard")?));
    }
    cells.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let max_time = element.number_or("maxTime", cells.last().map_or(MISSING, |(time, _)| *time))?;
    Ok(BaselineStratum { value, max_time, cells: cells.into() })
}
