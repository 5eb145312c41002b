//! The operations that the source text of a TorchScript module names. The text is read before libtorch loads
//! the module, because libtorch runs some of it (`__setstate__`) meanwhile.

use std::collections::BTreeMap;

use super::archive::Archive;
use tensorserve_platform::{ExternalOp, OpNode, OpPolicy};
use tensorserve_tensor::error::{Code, Error, Result};

/// The operation by which messages and `allow_ops` call a package of AOTInductor as a whole.
pub(crate) const NATIVE_CODE: &str = "AOTInductor";

/// Each external operation of libtorch's registry, and what it does. All of the namespaces in
/// [`EXTERNAL_NAMESPACES`] are, too.
const EXTERNAL_OPS: [(&str, &str); 5] = [
    ("aten::from_file", "maps a file into memory"),
    ("aten::save", "writes a file"),
    ("prim::rpc_async", "calls a function on another machine"),
    ("prim::rpc_remote", "calls a function on another machine"),
    ("prim::rpc_sync", "calls a function on another machine"),
];

/// Namespaces of operations that communicate with other processes.
const EXTERNAL_NAMESPACES: [&str; 6] =
    ["c10d", "_c10d_functional", "_c10d_functional_autograd", "dist_c10d", "dist_rpc", "symm_mem"];

/// The largest source file of a module, and all of them together, in bytes.
const LARGEST_SOURCE: usize = 64 << 20;
const LARGEST_SOURCES: usize = 256 << 20;

/// The names in the source text of a module.
#[derive(Debug, Default)]
pub(crate) struct SourceNames {
    /// Each operation that is called, with the first file that calls it.
    calls: BTreeMap<String, String>,
    /// Each word of the text, with the first file that has it.
    words: BTreeMap<String, String>,
}

impl SourceNames {
    /// Reads the source files of a module.
    ///
    /// # Errors
    /// If they are damaged, or too large.
    pub(crate) fn read(archive: &Archive) -> Result<Self> {
        let mut sources = SourceNames::default();
        let mut total = 0;
        for name in
            archive.names().filter(|name| name.starts_with("code/") && name.ends_with(".py"))
        {
            let text = archive.read(name, LARGEST_SOURCE)?;
            total += text.len();
            if total > LARGEST_SOURCES {
                let message = format!("the source text has more than {LARGEST_SOURCES} bytes");
                return Err(Error::new(Code::ResourceExhausted, message));
            }
            sources.add(&text, name);
        }
        Ok(sources)
    }

    /// Reads one source file.
    pub(crate) fn add(&mut self, text: &[u8], file: &str) {
        // The names before the current word, as in `ops.prim.rpc_sync`.
        let mut path: Vec<&str> = Vec::new();
        for token in Tokens(text) {
            match token {
                Token::Word(word) => {
                    if !self.words.contains_key(word) {
                        self.words.insert(word.to_owned(), file.to_owned());
                    }
                    match path.last() {
                        Some(&".") => {}
                        _ => path.clear(),
                    }
                    path.push(word);
                }
                Token::Other(b'.') if path.last().is_some_and(|last| *last != ".") => {
                    path.push(".")
                }
                Token::Other(b'(') => {
                    if let Some(op) = operation(&path) {
                        self.calls.entry(op).or_insert_with(|| file.to_owned());
                    }
                    path.clear();
                }
                Token::Other(_) => path.clear(),
            }
            // Longer paths are no operations.
            path.truncate(16);
        }
    }

    /// Whether the text has the words of a loop.
    pub(crate) fn has_loops(&self) -> bool {
        ["for", "while"].iter().any(|word| self.words.contains_key(*word))
    }

    /// The external operations that are called and that `policy` reports.
    ///
    /// # Errors
    /// [`Code::FailedPrecondition`] for an operation that `policy` refuses. Any word of the text that is
    /// its name counts, whatever it stands for there.
    pub(crate) fn check(&self, policy: &OpPolicy) -> Result<Vec<ExternalOp>> {
        if policy.refuses_any() {
            self.refuse(policy)?;
        }
        let mut external = Vec::new();
        for (op, file) in &self.calls {
            if let Some(access) = access(op).filter(|_| policy.reports(op)) {
                let node = OpNode { name: file.clone(), function: None };
                external.push(ExternalOp { op: op.clone(), access, node });
            }
        }
        Ok(external)
    }

    fn refuse(&self, policy: &OpPolicy) -> Result<()> {
        let mut calls = self.calls.iter();
        if let Some((op, file)) = calls.find(|(op, _)| policy.refuses(op, access(op).is_some())) {
            return Err(refused(op, access(op), file));
        }
        let known = EXTERNAL_OPS.iter().map(|(op, _)| *op);
        let named = policy.deny.iter().map(String::as_str);
        for op in known.chain(named).filter(|op| policy.refuses(op, access(op).is_some())) {
            let word = op.rsplit(':').next().unwrap_or(op);
            if let Some(file) = self.words.get(word) {
                return Err(refused(op, access(op), file));
            }
        }
        for namespace in EXTERNAL_NAMESPACES {
            let op = format!("{namespace}::*");
            if let Some(file) = self.words.get(namespace).filter(|_| policy.refuses(&op, true)) {
                return Err(refused(&op, access(&op), file));
            }
        }
        Ok(())
    }
}

/// The external operation that a package of AOTInductor as a whole is, if `policy` reports it.
///
/// # Errors
/// [`Code::FailedPrecondition`] if `policy` refuses any operation: those of machine code are not known.
pub(crate) fn check_package(library: &str, policy: &OpPolicy) -> Result<Vec<ExternalOp>> {
    const ACCESS: &str = "is machine code, whose operations are not known";
    let is_allowed = !policy.reports(NATIVE_CODE);
    if policy.refuses_any() && !is_allowed {
        return Err(Error::new(
            Code::FailedPrecondition,
            format!(
                "the package of AOTInductor {ACCESS}, and deny_ops is set: to serve it all the same, add \
                 {NATIVE_CODE} to allow_ops"
            ),
        ));
    }
    if is_allowed {
        return Ok(Vec::new());
    }
    let node = OpNode { name: library.to_owned(), function: None };
    Ok(vec![ExternalOp { op: NATIVE_CODE.to_owned(), access: ACCESS, node }])
}

fn refused(op: &str, access: Option<&str>, file: &str) -> Error {
    let what = access.map_or(String::new(), |access| format!(", which {access}"));
    Error::new(
        Code::FailedPrecondition,
        format!("the program has the operation {op}{what} ({file}); deny_ops refuses it"),
    )
}

/// What an operation does outside of a model; `None` if nothing.
fn access(op: &str) -> Option<&'static str> {
    let namespace = op.split(':').next().unwrap_or_default();
    if EXTERNAL_NAMESPACES.contains(&namespace) {
        return Some("communicates with other processes");
    }
    EXTERNAL_OPS.iter().find(|(known, _)| *known == op).map(|(_, access)| *access)
}

/// The operation that a call of this name is: `torch.save` is `aten::save`, and `ops.prim.rpc_sync`
/// `prim::rpc_sync`.
fn operation(path: &[&str]) -> Option<String> {
    match path {
        ["torch", ".", name] => Some(format!("aten::{name}")),
        ["ops", ".", namespace, ".", name]
        | ["torch", ".", "classes", ".", namespace, ".", name] => {
            Some(format!("{namespace}::{name}"))
        }
        _ => None,
    }
}

/// A word or another byte of a source text; white space is left out.
enum Token<'a> {
    Word(&'a str),
    Other(u8),
}

struct Tokens<'a>(&'a [u8]);

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let start = self.0.iter().position(|byte| !byte.is_ascii_whitespace())?;
        let rest = self.0.get(start..)?;
        let is_of_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let length = rest.iter().position(|byte| !is_of_word(byte)).unwrap_or(rest.len());
        if length == 0 {
            let (&byte, rest) = rest.split_first()?;
            self.0 = rest;
            return Some(Token::Other(byte));
        }
        let (word, rest) = rest.split_at(length);
        self.0 = rest;
        std::str::from_utf8(word).ok().map(Token::Word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(text: &str) -> SourceNames {
        let mut sources = SourceNames::default();
        sources.add(text.as_bytes(), "code/m.py");
        sources
    }

    fn policy(deny: &[&str], allow: &[&str]) -> OpPolicy {
        let list = |entries: &[&str]| entries.iter().map(|&entry| entry.to_owned()).collect();
        OpPolicy { deny: list(deny), allow: list(allow) }
    }

    #[test]
    fn words_of_loops_are_found() {
        assert!(sources("while n:\n  x = 1").has_loops());
        assert!(sources("for _0 in range(n):\n  x = 1").has_loops());
        assert!(!sources("format = torch.forward(while_)\nfor2 = x.for_each(y)").has_loops());
    }

    const SAVES: &str = "def forward(self: __torch__.M,\n    x: Tensor) -> Tensor:\n  \
                         torch . save\n(x, \"/tmp/x\")\n  return torch.add(x, 1)";

    #[test]
    fn calls_are_operations_and_functions_of_modules_are_not() {
        let read = sources(
            "a = torch.linear(x, w)\nb = __torch__.torch.nn.functional.relu(a)\n\
             c = ops.prim.data(b)\nd = (self.torch).forward(b)\ne = torch.classes.dist_c10d.Store()",
        );
        let calls: Vec<&str> = read.calls.keys().map(String::as_str).collect();
        assert_eq!(calls, ["aten::linear", "dist_c10d::Store", "prim::data"]);
    }

    #[test]
    fn external_operations_are_reported_and_refused() {
        let read = sources(SAVES);
        let external = read.check(&OpPolicy::default()).expect("allowed");
        let shown: Vec<String> = external.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["aten::save writes a file (node \"code/m.py\")"]);
        for deny in ["external", "aten::save", "aten::add"] {
            let error = read.check(&policy(&[deny], &[])).expect_err(deny);
            assert!(error.message().contains("deny_ops refuses it"), "{error}");
        }
        assert!(read.check(&policy(&["external"], &["aten::save"])).expect("allowed").is_empty());
        assert!(read.check(&policy(&["aten::mul"], &[])).is_ok());
    }

    #[test]
    fn a_comment_in_a_call_does_not_hide_its_operation() {
        let read = sources("torch.# here\nsave(x)\nops.c10d # x\n.send(x)");
        assert!(read.check(&policy(&["external"], &[])).is_err());
        assert!(read.check(&policy(&["external"], &["aten::save"])).is_err(), "c10d");
    }

    #[test]
    fn packages_are_refused_by_any_denial() {
        assert_eq!(check_package("m.so", &OpPolicy::default()).expect("allowed").len(), 1);
        let error = check_package("m.so", &policy(&["aten::save"], &[])).expect_err("unknown");
        assert!(error.message().contains("add AOTInductor to allow_ops"), "{error}");
        assert!(check_package("m.so", &policy(&["external"], &["AOTInductor"])).is_ok());
    }
}
