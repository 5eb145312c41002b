//! The receipt of a request's inference: what its answer says beside its outputs. It is made where the inference ends,
//! and sent where the answer is, whatever protocol is in between.

use super::{CURRENT, RequestBudget};

impl RequestBudget {
    /// Sets the receipt. The first one stays.
    pub fn set_receipt(&self, receipt: String) {
        let _ = self.0.receipt.set(receipt);
    }

    /// The receipt, if there is one.
    #[must_use]
    pub fn receipt(&self) -> Option<&str> {
        self.0.receipt.get().map(String::as_str)
    }
}

/// Sets the receipt of the request that this thread works for.
pub fn set_receipt(receipt: String) {
    CURRENT.with_borrow(|current| {
        if let Some(budget) = current {
            budget.set_receipt(receipt);
        }
    });
}

/// The receipt of the request that this thread works for, if there is one.
#[must_use]
pub fn receipt() -> Option<String> {
    CURRENT.with_borrow(|current| Some(current.as_ref()?.receipt()?.to_owned()))
}
