//! What a stage of a pipeline is here.

use super::folder::Invalid;
use super::table::SparkTable;
use tensorserve_tensor::error::Result;

/// A stage that is loaded: it adds columns to a table.
pub(super) trait PipelineStage: Send + Sync {
    /// Adds the columns that the stage makes.
    ///
    /// # Errors
    /// For a row with a value that the stage refuses.
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()>;
}

/// Rows with values that a stage cannot handle, each with the reason.
pub(super) type Rejected = Vec<(usize, String)>;

/// What becomes of the rows with values that a stage cannot handle: those at `rows`, each with the reason,
/// are refused or dropped.
pub(super) fn reject(
    table: &mut SparkTable<'_>,
    invalid: Invalid,
    column: &str,
    rows: Rejected,
) -> Result<()> {
    for (row, reason) in rows {
        if table.is_skipped(row) {
            continue;
        }
        if invalid != Invalid::Skip {
            return Err(table.refusal(row, column, &reason));
        }
        table.skip(row);
    }
    Ok(())
}
