//! The operations of TensorFlow that reach outside a model: that read or write files, use the network,
//! call Python or end the process.

use std::collections::BTreeMap;
use std::path::Path;

use tensorserve_platform::{ExternalOp, OpNode, OpPolicy};
use tensorserve_proto::tensorflow::attr_value::Value;
use tensorserve_proto::tensorflow::collection_def::Kind;
use tensorserve_proto::tensorflow::{MetaGraphDef, NodeDef};
use tensorserve_savedmodel::{FILE, Graph, PlacedNode, TEXT_FILE, tensor_names};
use tensorserve_tensor::error::{Code, Error, Result};

/// When an operation reaches outside.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// If a signature or the initialization needs it. Every SavedModel has these operations in its
    /// saver, which only reads the variables of the model.
    OutsideSaver,
    /// If this attribute is a text that begins with one of these.
    Begins(&'static str, &'static [&'static str]),
    /// If this attribute is a text that is not empty, and begins with none of these.
    BeginsOtherwise(&'static str, &'static [&'static str]),
    /// If this attribute is a list with a text.
    Lists(&'static str),
}

use When::{Always, Begins, BeginsOtherwise, Lists, OutsideSaver};

/// Each external operation, what it does, and when. Sorted by name.
///
/// Operations of TensorFlow's registry that were considered and are not here:
/// * `InitializeTableFromTextFile(V2)`, which fills a lookup table from an asset of the model, as most
///   models with a vocabulary do;
/// * operations on a reader, iterator, summary writer or RPC client: they need one, and the operation
///   that creates it is here;
/// * `Print`, and `PrintV2` to the standard streams and the log;
/// * collective, NCCL and TPU operations: they connect the machines of a TensorFlow cluster, and this
///   server is in none.
const EXTERNAL_OPS: &[(&str, &str, When)] = &[
    ("Abort", "ends the process", Always),
    ("CSVDataset", "reads files", Always),
    ("CSVDatasetV2", "reads files", Always),
    ("CacheDataset", "writes and reads the files of a cache", Always),
    ("CacheDatasetV2", "writes and reads the files of a cache", Always),
    ("CalibrationStatisticsSaver", "writes a file", Always),
    ("CreateSummaryDbWriter", "writes a database file", Always),
    ("CreateSummaryFileWriter", "writes files", Always),
    ("DTensorRestoreV2", "reads a checkpoint", Always),
    ("DataServiceDataset", "connects to a data service", Always),
    ("DataServiceDatasetV2", "connects to a data service", Always),
    ("DataServiceDatasetV3", "connects to a data service", Always),
    ("DataServiceDatasetV4", "connects to a data service", Always),
    ("DatasetFromGraph", "runs a graph that is data, whose operations are not checked", Always),
    ("DatasetToTFRecord", "writes a file", Always),
    ("DebugIdentity", "sends tensors to files or URLs", Lists("debug_urls")),
    ("DebugIdentityV2", "sends tensors to files or URLs", Lists("debug_urls")),
    ("DebugIdentityV3", "sends tensors to files or URLs", Lists("debug_urls")),
    ("DebugNanCount", "sends tensors to files or URLs", Lists("debug_urls")),
    ("DebugNumericSummary", "sends tensors to files or URLs", Lists("debug_urls")),
    ("DebugNumericSummaryV2", "sends tensors to files or URLs", Lists("debug_urls")),
    (
        "DecodeProtoV2",
        "reads a file of message types",
        BeginsOtherwise("descriptor_source", &["local://", "bytes://"]),
    ),
    ("DistributedSave", "connects to a data service, which writes files", Always),
    ("DumpTensor", "writes files", Always),
    ("EagerPyFunc", "calls Python", Always),
    (
        "EncodeProto",
        "reads a file of message types",
        BeginsOtherwise("descriptor_source", &["local://", "bytes://"]),
    ),
    ("ExperimentalCSVDataset", "reads files", Always),
    ("ExperimentalDatasetToTFRecord", "writes a file", Always),
    ("ExperimentalLMDBDataset", "reads database files", Always),
    ("ExperimentalMatchingFilesDataset", "lists directories", Always),
    ("ExperimentalSqlDataset", "reads a database", Always),
    ("FileSystemSetConfiguration", "changes how the process accesses files", Always),
    ("FixedLengthRecordDataset", "reads files", Always),
    ("FixedLengthRecordDatasetV2", "reads files", Always),
    ("FixedLengthRecordReader", "reads files", Always),
    ("FixedLengthRecordReaderV2", "reads files", Always),
    ("FixedUnigramCandidateSampler", "reads a file", BeginsOtherwise("vocab_file", &[])),
    ("GenerateVocabRemapping", "reads files", Always),
    ("ImmutableConst", "maps a file into memory", Always),
    ("LMDBDataset", "reads database files", Always),
    ("LMDBReader", "reads database files", Always),
    ("ListSnapshotChunksDataset", "lists directories", Always),
    ("LoadAndRemapMatrix", "reads a checkpoint", Always),
    ("LoadDataset", "reads files", Always),
    ("MatchingFiles", "lists directories", Always),
    ("MatchingFilesDataset", "lists directories", Always),
    ("MergeV2Checkpoints", "writes and deletes the files of checkpoints", OutsideSaver),
    ("MlirPassthroughOp", "runs a graph that is data, whose operations are not checked", Always),
    ("PrintV2", "writes a file", Begins("output_stream", &["file://"])),
    ("PyFunc", "calls Python", Always),
    ("PyFuncStateless", "calls Python", Always),
    ("ReadFile", "reads a file", Always),
    ("RecordInput", "reads files", Always),
    ("Recv", "receives tensors from another device or machine", Always),
    ("RegisterDataset", "connects to a data service", Always),
    ("RegisterDatasetV2", "connects to a data service", Always),
    ("RemoteCall", "runs a function on another device or machine", Always),
    ("Restore", "reads a checkpoint", OutsideSaver),
    ("RestoreSlice", "reads a checkpoint", OutsideSaver),
    ("RestoreV2", "reads a checkpoint", OutsideSaver),
    ("RpcClient", "connects to a server", Always),
    ("RpcServer", "listens on a port", Always),
    ("Save", "writes a checkpoint", OutsideSaver),
    ("SaveDataset", "writes files", Always),
    ("SaveDatasetV2", "writes files", Always),
    ("SaveSlices", "writes a checkpoint", OutsideSaver),
    ("SaveV2", "writes a checkpoint", OutsideSaver),
    ("Send", "sends tensors to another device or machine", Always),
    ("Skipgram", "reads a file", Always),
    ("SnapshotChunkDataset", "reads files", Always),
    ("SnapshotDataset", "writes and reads the files of a snapshot", Always),
    ("SnapshotDatasetReader", "reads files", Always),
    ("SnapshotDatasetV2", "writes and reads the files of a snapshot", Always),
    ("SqlDataset", "reads a database", Always),
    ("TFRecordDataset", "reads files", Always),
    ("TFRecordDatasetV2", "reads files", Always),
    ("TFRecordReader", "reads files", Always),
    ("TFRecordReaderV2", "reads files", Always),
    ("TextLineDataset", "reads files", Always),
    ("TextLineReader", "reads files", Always),
    ("TextLineReaderV2", "reads files", Always),
    ("WholeFileReader", "reads files", Always),
    ("WholeFileReaderV2", "reads files", Always),
    ("WriteFile", "writes a file", Always),
    ("_HostRecv", "receives tensors from another device or machine", Always),
    ("_HostSend", "sends tensors to another device or machine", Always),
    ("_Recv", "receives tensors from another device or machine", Always),
    ("_Send", "sends tensors to another device or machine", Always),
];

/// The external operations of a model that `policy` reports, each with its first node. All nodes of the
/// graph and of its functions count, whether or not a signature needs them: the runtime may evaluate
/// constant parts of a graph when it loads it.
///
/// # Errors
/// [`Code::FailedPrecondition`] if `policy` refuses an operation; it names the operation and its node.
pub(super) fn check(meta: &MetaGraphDef, policy: &OpPolicy) -> Result<Vec<ExternalOp>> {
    let Some(definition) = &meta.graph_def else {
        return Ok(Vec::new());
    };
    let graph = Graph::new(definition);
    let needed = graph.nodes_of(entry_names(meta).into_iter());
    let others = graph.all_nodes().filter(|placed| !is_saver_op(&placed.node.op));
    let mut found: BTreeMap<&str, ExternalOp> = BTreeMap::new();
    for placed in needed.into_iter().chain(others) {
        let op = placed.node.op.as_str();
        let access = access_of(placed.node);
        if policy.refuses(op, access.is_some()) {
            return Err(refused(placed, access));
        }
        if let Some(access) = access.filter(|_| policy.reports(op)) {
            let first = || ExternalOp { op: op.to_owned(), access, node: place(placed) };
            found.entry(op).or_insert_with(first);
        }
    }
    Ok(found.into_values().collect())
}

/// The names of the tensors and nodes that requests and the initialization of the model run.
fn entry_names(meta: &MetaGraphDef) -> Vec<&str> {
    let outputs = meta.signature_def.values().flat_map(|signature| signature.outputs.values());
    let mut names: Vec<&str> = outputs.flat_map(tensor_names).collect();
    for key in ["saved_model_main_op", "legacy_init_op"] {
        let kind = meta.collection_def.get(key).and_then(|collection| collection.kind.as_ref());
        if let Some(Kind::NodeList(nodes)) = kind {
            names.extend(nodes.value.iter().map(String::as_str));
        }
    }
    names
}

fn rule(op: &str) -> Option<&'static (&'static str, &'static str, When)> {
    let at = EXTERNAL_OPS.binary_search_by_key(&op, |(name, ..)| name).ok()?;
    EXTERNAL_OPS.get(at)
}

fn is_saver_op(op: &str) -> bool {
    matches!(rule(op), Some((_, _, OutsideSaver)))
}

/// What the operation of `node` does outside the model, if anything.
fn access_of(node: &NodeDef) -> Option<&'static str> {
    let (_, access, when) = rule(&node.op)?;
    let is_external = match *when {
        Always | OutsideSaver => true,
        Begins(name, starts) => matches_text(node, name, |text| begins(text, starts)),
        BeginsOtherwise(name, starts) => {
            matches_text(node, name, |text| !text.is_empty() && !begins(text, starts))
        }
        Lists(name) => matches_text(node, name, |text| !text.is_empty()),
    };
    is_external.then_some(access)
}

fn begins(text: &[u8], starts: &[&str]) -> bool {
    starts.iter().any(|start| text.starts_with(start.as_bytes()))
}

/// Whether the attribute `name`, or one of its list, is a text that `is_external` accepts. Without the
/// attribute its default counts, with which none of these operations is external. A placeholder, whose
/// value the caller of a function sets, may be any text.
fn matches_text(node: &NodeDef, name: &str, is_external: impl Fn(&[u8]) -> bool) -> bool {
    match node.attr.get(name).map(|attr| &attr.value) {
        None => false,
        Some(Some(Value::S(text))) => is_external(text),
        Some(Some(Value::List(list))) => list.s.iter().any(|text| is_external(text)),
        Some(
            Some(
                Value::Func(_)
                | Value::Type(_)
                | Value::Shape(_)
                | Value::I(_)
                | Value::F(_)
                | Value::B(_)
                | Value::Tensor(_)
                | Value::Placeholder(_),
            )
            | None,
        ) => true,
    }
}

fn place(placed: PlacedNode) -> OpNode {
    OpNode { name: placed.node.name.clone(), function: placed.function.map(str::to_owned) }
}

fn refused(placed: PlacedNode, access: Option<&str>) -> Error {
    let (op, node) = (&placed.node.op, place(placed));
    let access = access.map_or(String::new(), |access| format!(", which {access}"));
    let message = format!(
        "the model has the operation {op} ({node}){access}, and deny_ops refuses it; to serve the model \
         nevertheless, add {op} to allow_ops"
    );
    Error::new(Code::FailedPrecondition, message)
}

/// The error that operations of a SavedModel whose main file is a text cannot be refused: the runtime reads
/// it, and runs its initialization, before they are known.
pub(super) fn unchecked(folder: &Path) -> Error {
    let path = folder.display();
    Error::new(
        Code::Unimplemented,
        format!(
            "{path}: operations are refused (deny_ops), which needs a {FILE}; make one of {TEXT_FILE} with \
             `python3 -c 'import sys; from google.protobuf import text_format; from \
             tensorflow.core.protobuf.saved_model_pb2 import SavedModel; name = sys.argv[1]; model = \
             text_format.Parse(open(name).read(), SavedModel()); open(name[:-3], \"wb\").write(model.SerializeToString())' \
             {path}/{TEXT_FILE}`"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::tests::node;
    use tensorserve_proto::tensorflow::attr_value::ListValue;
    use tensorserve_proto::tensorflow::{
        AttrValue, CollectionDef, FunctionDef, FunctionDefLibrary, GraphDef, NameAttrList, OpDef,
        SignatureDef, TensorInfo, collection_def, tensor_info,
    };

    fn with(mut node: NodeDef, attr: &str, value: Option<Value>) -> NodeDef {
        node.attr.insert(attr.into(), AttrValue { value });
        node
    }

    fn call(name: &str, function: &str) -> NodeDef {
        let function =
            Value::Func(NameAttrList { name: function.into(), ..NameAttrList::default() });
        with(node(name, "StatefulPartitionedCall", &[]), "f", Some(function))
    }

    fn function(name: &str, node_def: Vec<NodeDef>) -> FunctionDef {
        FunctionDef {
            signature: Some(OpDef { name: name.into(), ..OpDef::default() }),
            node_def,
            ..FunctionDef::default()
        }
    }

    /// A model with a signature whose output is the tensor `y:0`.
    fn model(node: Vec<NodeDef>, function: Vec<FunctionDef>) -> MetaGraphDef {
        let encoding = Some(tensor_info::Encoding::Name("y:0".into()));
        let output = TensorInfo { encoding, ..TensorInfo::default() };
        let signature =
            SignatureDef { outputs: [("y".into(), output)].into(), ..SignatureDef::default() };
        let library = Some(FunctionDefLibrary { function });
        MetaGraphDef {
            graph_def: Some(GraphDef { node, library }),
            signature_def: [("serving_default".into(), signature)].into(),
            ..MetaGraphDef::default()
        }
    }

    fn found(meta: &MetaGraphDef) -> Vec<String> {
        let ops = check(meta, &OpPolicy::default()).expect("nothing is refused");
        ops.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_table_is_sorted() {
        assert!(EXTERNAL_OPS.is_sorted_by(|(a, ..), (b, ..)| a < b));
    }

    #[test]
    fn operations_of_the_graph_and_of_nested_functions_are_found() {
        let meta = model(
            vec![call("y", "outer"), node("unused", "WriteFile", &[])],
            vec![
                function("outer", vec![call("c", "inner")]),
                function("inner", vec![node("read", "ReadFile", &[]), node("a", "Add", &[])]),
                function("never_called", vec![node("list", "MatchingFiles", &[])]),
            ],
        );
        let want = [
            "MatchingFiles lists directories (node \"list\" of function \"never_called\")",
            "ReadFile reads a file (node \"read\" of function \"inner\")",
            "WriteFile writes a file (node \"unused\")",
        ];
        assert_eq!(found(&meta), want);
    }

    #[test]
    fn the_saver_that_every_model_has_is_not_external() {
        let save = |name: &str| {
            let body = vec![node("w", "SaveV2", &[]), node("m", "MergeV2Checkpoints", &[])];
            function(name, body)
        };
        let saver = || vec![call("save", "traced_save"), node("restore", "RestoreV2", &[])];
        let graph = |y: NodeDef| [saver(), vec![y]].concat();
        let ordinary = model(graph(node("y", "Identity", &[])), vec![save("traced_save")]);
        assert_eq!(found(&ordinary), [""; 0]);
        let reads = model(graph(node("y", "Identity", &["restore"])), vec![save("traced_save")]);
        assert_eq!(found(&reads), ["RestoreV2 reads a checkpoint (node \"restore\")"]);
        let writes = model(graph(call("y", "own")), vec![save("traced_save"), save("own")]);
        let want = [
            "MergeV2Checkpoints writes and deletes the files of checkpoints (node \"m\" of function \"own\")",
            "SaveV2 writes a checkpoint (node \"w\" of function \"own\")",
        ];
        assert_eq!(found(&writes), want);
    }

    #[test]
    fn the_initialization_counts() {
        let mut meta = model(vec![node("y", "Add", &[]), node("init", "SaveV2", &[])], Vec::new());
        assert_eq!(found(&meta), [""; 0]);
        let nodes = collection_def::NodeList { value: vec!["init".into()] };
        let main = CollectionDef { kind: Some(Kind::NodeList(nodes)) };
        meta.collection_def.insert("saved_model_main_op".into(), main);
        assert_eq!(found(&meta), ["SaveV2 writes a checkpoint (node \"init\")"]);
    }

    #[test]
    fn an_attribute_decides() {
        let is_external = |op: &str, attr: &str, value: Option<Value>| {
            access_of(&with(node("n", op, &[]), attr, value)).is_some()
        };
        let text = |text: &'static str| Some(Value::S(text.into()));
        let texts = |text: &'static str| {
            Some(Value::List(ListValue { s: vec![text.into()], ..ListValue::default() }))
        };
        assert!(access_of(&node("n", "PrintV2", &[])).is_none());
        for (value, want) in [(text("stderr"), false), (text("file:///tmp/x"), true), (None, true)]
        {
            assert_eq!(is_external("PrintV2", "output_stream", value.clone()), want, "{value:?}");
        }
        for (value, want) in [
            (text(""), false),
            (text("local://"), false),
            (text("bytes://abc"), false),
            (text("/etc/types"), true),
        ] {
            assert_eq!(is_external("DecodeProtoV2", "descriptor_source", value.clone()), want);
        }
        for (value, want) in [(texts(""), false), (texts("grpc://host:1"), true)] {
            assert_eq!(is_external("DebugIdentity", "debug_urls", value.clone()), want);
        }
        assert!(!is_external("FixedUnigramCandidateSampler", "vocab_file", text("")));
        assert!(is_external("FixedUnigramCandidateSampler", "vocab_file", text("words")));
    }

    #[test]
    fn a_refusal_names_the_operation_the_node_and_the_remedy() {
        let meta =
            model(vec![call("y", "f")], vec![function("f", vec![node("r", "ReadFile", &[])])]);
        let deny = |op: &str| OpPolicy { deny: vec![op.into()], ..OpPolicy::default() };
        for policy in [deny("external"), deny("ReadFile")] {
            let error = check(&meta, &policy).expect_err("refused");
            assert_eq!(error.code(), Code::FailedPrecondition);
            let part = "ReadFile (node \"r\" of function \"f\"), which reads a file";
            assert!(
                error.message().contains(part) && error.message().contains("allow_ops"),
                "{error}"
            );
        }
        let error = check(&meta, &deny("StatefulPartitionedCall")).expect_err("any operation");
        assert!(error.message().contains("StatefulPartitionedCall (node \"y\")"), "{error}");
        assert!(check(&meta, &deny("WriteFile")).is_ok());
        let allowed = OpPolicy { allow: vec!["ReadFile".into()], ..deny("external") };
        assert_eq!(check(&meta, &allowed).expect("allowed"), []);
    }
}
