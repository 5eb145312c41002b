//! What two versions of a model take and give differently, by their signatures.

use tensorserve_tensor::{DType, Signature, TensorSpec};

/// What the new version takes and gives differently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignatureChanges {
    /// What clients of the old version may miss.
    pub lost: Vec<String>,
    /// What the old version does not have, and no client of it needs.
    pub added: Vec<String>,
}

impl SignatureChanges {
    /// Of the signatures of two versions.
    #[must_use]
    pub fn between(old: &[Signature], new: &[Signature]) -> Self {
        let mut changes = SignatureChanges::default();
        for signature in old {
            let name = &signature.name;
            let Some(other) = new.iter().find(|other| other.name == *name) else {
                changes.lost.push(format!("signature {name:?} is missing"));
                continue;
            };
            let place = format!("signature {name:?}: input");
            changes.compare(&place, &signature.inputs, &other.inputs);
            // Clients of the old version do not send inputs that are new.
            changes.lost.extend(added(&place, &signature.inputs, &other.inputs));
            let place = format!("signature {name:?}: output");
            changes.compare(&place, &signature.outputs, &other.outputs);
            changes.added.extend(added(&place, &signature.outputs, &other.outputs));
        }
        for signature in new.iter().filter(|it| old.iter().all(|other| other.name != it.name)) {
            changes.added.push(format!("signature {:?} is new", signature.name));
        }
        changes
    }

    /// Notes inputs or outputs that are missing or are declared in another way.
    fn compare(&mut self, place: &str, old: &[TensorSpec], new: &[TensorSpec]) {
        for spec in old {
            let what = format!("{place} {:?}", spec.alias);
            let Some(found) = new.iter().find(|other| other.alias == spec.alias) else {
                self.lost.push(format!("{what} is missing"));
                continue;
            };
            let dtype = |spec: &TensorSpec| spec.dtype().map_or("another type", DType::name);
            if found.dtype_number != spec.dtype_number {
                let (is, was) = (dtype(found), dtype(spec));
                self.lost.push(format!("{what} has the type {is} instead of {was}"));
            }
            if found.shape.sizes() != spec.shape.sizes() {
                let (is, was) = (&found.shape, &spec.shape);
                self.lost.push(format!("{what} has the shape {is} instead of {was}"));
            }
        }
    }
}

/// Inputs or outputs that the old version does not have.
fn added(place: &str, old: &[TensorSpec], new: &[TensorSpec]) -> Vec<String> {
    let is_new = |spec: &&TensorSpec| old.iter().all(|other| other.alias != spec.alias);
    new.iter().filter(is_new).map(|spec| format!("{place} {:?} is new", spec.alias)).collect()
}
