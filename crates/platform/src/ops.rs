//! External operations: those of a model that read or write files, use the network, call Python or
//! end the process, and the settings that refuse models for their operations.

use std::fmt;

/// Operations that a model may or may not have. An entry is the name of an operation, or
/// [`OpPolicy::EXTERNAL`] for all external operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpPolicy {
    /// A model with one of these operations is refused.
    pub deny: Vec<String>,
    /// Operations that are neither refused nor reported. They take precedence over `deny`.
    pub allow: Vec<String>,
}

impl OpPolicy {
    /// The entry for all external operations.
    pub const EXTERNAL: &str = "external";

    /// Whether a model with the operation `op` is refused.
    #[must_use]
    pub fn refuses(&self, op: &str, is_external: bool) -> bool {
        names(&self.deny, op, is_external) && !names(&self.allow, op, is_external)
    }

    /// Whether a model may be refused for its operations.
    #[must_use]
    pub fn refuses_any(&self) -> bool {
        !self.deny.is_empty()
    }

    /// Whether the external operation `op` is reported.
    #[must_use]
    pub fn reports(&self, op: &str) -> bool {
        !names(&self.allow, op, true)
    }

    /// Whether an entry can name something: an operation's name begins with a capital letter, or with
    /// an underscore if TensorFlow uses it internally; one of PyTorch has a namespace, `aten::save`.
    #[must_use]
    pub fn is_entry(entry: &str) -> bool {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_.>".contains(c);
        if let Some((namespace, name)) = entry.split_once("::") {
            let is_word = |word: &str| !word.is_empty() && word.chars().all(is_part);
            return is_word(namespace) && is_word(name);
        }
        entry == OpPolicy::EXTERNAL
            || (entry.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
                && entry.chars().all(is_part))
    }
}

fn names(entries: &[String], op: &str, is_external: bool) -> bool {
    entries.iter().any(|entry| entry == op || (is_external && entry == OpPolicy::EXTERNAL))
}

/// An external operation that a model has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalOp {
    /// Its name, for example `ReadFile`.
    pub op: String,
    /// What it does, as a predicate: `reads a file`.
    pub access: &'static str,
    /// The first node with it.
    pub node: OpNode,
}

/// Where a graph has an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpNode {
    /// The node's name.
    pub name: String,
    /// The function whose body contains the node; `None` for the graph itself.
    pub function: Option<String>,
}

impl fmt::Display for OpNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {:?}", self.name)?;
        match &self.function {
            Some(function) => write!(f, " of function {function:?}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ExternalOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.op, self.access, self.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(deny: &[&str], allow: &[&str]) -> OpPolicy {
        let list = |entries: &[&str]| entries.iter().map(|&entry| entry.to_owned()).collect();
        OpPolicy { deny: list(deny), allow: list(allow) }
    }

    #[test]
    fn nothing_is_refused_by_default_and_external_operations_are_reported() {
        let policy = OpPolicy::default();
        assert!(!policy.refuses("ReadFile", true));
        assert!(policy.reports("ReadFile"));
    }

    #[test]
    fn a_name_refuses_any_operation_and_external_all_external_ones() {
        let by_name = policy(&["MatMul"], &[]);
        assert!(by_name.refuses("MatMul", false) && !by_name.refuses("ReadFile", true));
        let external = policy(&["external"], &["ReadFile"]);
        assert!(external.refuses("WriteFile", true) && !external.refuses("MatMul", false));
        assert!(!external.refuses("ReadFile", true), "allow_ops takes precedence");
        assert!(external.reports("WriteFile") && !external.reports("ReadFile"));
        assert!(!policy(&["ReadFile"], &["external"]).refuses("ReadFile", true));
    }

    #[test]
    fn an_entry_is_external_or_looks_like_an_operation() {
        for entry in ["external", "ReadFile", "_Send", "Addons>Image", "aten::save"] {
            assert!(OpPolicy::is_entry(entry), "{entry}");
        }
        for entry in ["", "readfile", "External ops", "aten::", "Read-File"] {
            assert!(!OpPolicy::is_entry(entry), "{entry}");
        }
    }
}
