//! Receipts: which version made an answer, of which inputs and outputs.
//!
//! A receipt is a dictionary of structured fields (RFC 9651), so that it is a header as it is. Hashes are of tensors and
//! not of payloads ([`TensorHash`]): they are the same over every protocol. Inputs are hashed where a request is decoded,
//! outputs where its response is encoded, on the same threads. Only versions with a digest have receipts.

use std::borrow::Cow;
use std::fmt::Write;

use ring::digest::Digest;

use crate::receipt::hash::{TensorHash, hash_text};
use crate::repository::ModelHandle;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Signature, Tensor, TensorSpec};

/// What is known of an inference before it runs.
pub(super) struct ReceiptDraft {
    inputs: Digest,
    /// The outputs that each run is asked for, by number; empty for all.
    filters: Vec<Vec<usize>>,
}

/// The inputs of a run, or its outputs.
pub(super) struct ReceiptTensors<'t> {
    /// The number of its signature.
    pub(super) signature: usize,
    pub(super) tensors: &'t [Tensor],
}

impl ReceiptDraft {
    /// Hashes the inputs of all runs of a request. `filters` are the outputs that each is asked for, by number; empty
    /// for all.
    ///
    /// # Errors
    /// If the request is of no use any more.
    pub(super) fn of(
        version: &ModelHandle,
        inputs: &[ReceiptTensors<'_>],
        filters: Vec<Vec<usize>>,
    ) -> Result<Self> {
        let mut all = NamedTensors::of(inputs.len());
        for run in inputs {
            let signature = version.signatures().get(run.signature).ok_or_else(unnamed)?;
            all.add(signature, signature.inputs.iter(), run.tensors)?;
        }
        Ok(ReceiptDraft { inputs: all.hash()?, filters })
    }

    /// The receipt of the response to the request, with the outputs of all runs.
    ///
    /// # Errors
    /// If the request is of no use any more, or the model returned other outputs than its signature has.
    pub(super) fn receipt(
        &self,
        version: &ModelHandle,
        outputs: &[ReceiptTensors<'_>],
    ) -> Result<String> {
        let mut all = NamedTensors::of(outputs.len());
        for (run, filter) in outputs.iter().zip(&self.filters) {
            let signature = version.signatures().get(run.signature).ok_or_else(unnamed)?;
            let chosen = filter.iter().filter_map(|at| signature.outputs.get(*at));
            match filter.is_empty() {
                true => all.add(signature, signature.outputs.iter(), run.tensors)?,
                false => all.add(signature, chosen, run.tensors)?,
            }
        }
        let (inputs, outputs_hash) = (hash_text(self.inputs), hash_text(all.hash()?));
        let digest = version.digest().unwrap_or_default();
        let mut receipt =
            format!("model={}, version=\"{}\"", text(version.model()), version.version());
        if let [run] = outputs
            && let Some(signature) = version.signatures().get(run.signature)
        {
            let _ = write!(receipt, ", signature={}", text(&signature.name));
        }
        let _ = write!(receipt, ", digest={digest}, input={inputs}, output={outputs_hash}");
        Ok(receipt)
    }
}

fn unnamed() -> Error {
    Error::internal("a tensor has no name for a receipt")
}

/// The tensors of all runs of an inference with their names.
struct NamedTensors<'t> {
    /// There are several runs: the names of their signatures come first.
    are_of_several: bool,
    all: Vec<(Cow<'t, str>, &'t Tensor)>,
}

impl<'t> NamedTensors<'t> {
    fn of(runs: usize) -> Self {
        NamedTensors { are_of_several: runs > 1, all: Vec::new() }
    }

    fn add(
        &mut self,
        signature: &Signature,
        mut specs: impl Iterator<Item = &'t TensorSpec>,
        tensors: &'t [Tensor],
    ) -> Result<()> {
        for tensor in tensors {
            let alias = specs.next().ok_or_else(unnamed)?.alias.as_str();
            let name = match self.are_of_several {
                true => Cow::Owned(format!("{}/{alias}", signature.name)),
                false => Cow::Borrowed(alias),
            };
            self.all.push((name, tensor));
        }
        Ok(())
    }

    fn hash(mut self) -> Result<Digest> {
        self.all.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut hash = TensorHash::default();
        for (name, tensor) in self.all {
            hash.add(&name, tensor)?;
        }
        Ok(hash.finish())
    }
}

/// A text as a structured field: a string, or a display string if it is not printable ASCII.
fn text(text: &str) -> String {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte);
    let mut field = String::with_capacity(text.len() + 2);
    if text.bytes().all(is_plain) {
        field.push('"');
        for letter in text.chars() {
            if matches!(letter, '"' | '\\') {
                field.push('\\');
            }
            field.push(letter);
        }
    } else {
        field.push_str("%\"");
        for byte in text.bytes() {
            match byte {
                b'%' | b'"' => drop(write!(field, "%{byte:02x}")),
                plain if is_plain(plain) => field.push(char::from(plain)),
                other => drop(write!(field, "%{other:02x}")),
            }
        }
    }
    field.push('"');
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_strings_of_structured_fields() {
        assert_eq!(text("half_plus_two"), "\"half_plus_two\"");
        assert_eq!(text("a\"b\\c d~"), "\"a\\\"b\\\\c d~\"");
        // RFC 9651, section 3.3.8.
        assert_eq!(text("This is intended for display to üsers."), {
            "%\"This is intended for display to %c3%bcsers.\""
        });
        assert_eq!(text("é\"%\n"), "%\"%c3%a9%22%25%0a\"");
        assert_eq!(text(""), "\"\"");
    }
}
