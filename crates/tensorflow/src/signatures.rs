//! The signatures of a SavedModel: as they are declared, with what their operations show.

use super::registry::{OpRegistry, are_bounded, are_repeatable, need_exact_shapes};
use super::rows::{self, GraphFindings};
use tensorserve_platform::LoadOptions;
use tensorserve_proto::tensorflow::MetaGraphDef;
use tensorserve_savedmodel::{Graph, declared_signature};
use tensorserve_tensor::{ImageEncoding, RowDependence, Signature};

/// Operations that decode image files.
const IMAGE_DECODERS: [&str; 7] = [
    "DecodeImage",
    "DecodeJpeg",
    "DecodePng",
    "DecodeGif",
    "DecodeBmp",
    "DecodeWebP",
    "DecodeAndCropJpeg",
];

/// The signatures of a graph, sorted by name. Without `registry`, which comes from the library, none
/// is read-only.
pub(super) fn of_graph(
    meta: &MetaGraphDef,
    options: &LoadOptions,
    registry: Option<&OpRegistry>,
) -> Vec<Signature> {
    let graph = meta.graph_def.as_ref().map(Graph::new);
    let mut signatures = Vec::with_capacity(meta.signature_def.len());
    for (name, definition) in &meta.signature_def {
        let mut signature = declared_signature(name, definition);
        let findings = match (&meta.graph_def, registry) {
            (Some(graph), Some(registry)) => rows::findings(&signature, graph, registry),
            _ => GraphFindings::only(RowDependence::NoGraph),
        };
        if let Some(graph) = &graph {
            analyze(&mut signature, graph, &findings, registry);
        }
        signature.rows = findings.rows;
        if let Some(images) = options.images {
            signature.images = images;
        }
        signatures.push(signature);
    }
    signatures
}

/// Sets what a signature's operations show.
fn analyze(
    signature: &mut Signature,
    graph: &Graph,
    findings: &GraphFindings,
    registry: Option<&OpRegistry>,
) {
    let outputs = || signature.outputs.iter().map(|spec| spec.tensor_name.as_str());
    let mut nodes = graph.nodes_of(outputs());
    let operations = graph.operations(nodes.iter().copied());
    nodes.retain(|placed| !findings.is_counted_loop(placed.node));
    let uncounted = graph.operations(nodes);
    let is_recursive = graph.is_recursive(outputs());
    signature.read_only = registry.is_some_and(|ops| ops.contains_only_stateless(&operations));
    signature.repeatable = signature.read_only && are_repeatable(&operations);
    signature.exact_shapes = need_exact_shapes(&operations);
    signature.is_bounded = !is_recursive && are_bounded(&uncounted);
    let decodes_images = operations.iter().any(|op| IMAGE_DECODERS.contains(op));
    signature.takes_images = signature.inputs.len() == 1 && decodes_images;
    if operations.contains("DecodeBase64") {
        signature.images = ImageEncoding::Base64Url;
    }
}
