//! Reads a model's files without OpenVINO: its inputs and outputs, and whether they can be served. What the library
//! would not check is refused here.
//!
//! Source: `src/frontends/ir` and `src/core/src/pass/serialize.cpp` of OpenVINO 2026.4, and the files that it writes.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::types;
use tensorserve_codec::xml::{self, XmlElement};
use tensorserve_platform::{ForeignFormats, files};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DType, DeclaredShape, Signature, TensorSpec};

/// Extensions of a model's file; its weights are in a file of the same name that ends with `.bin`.
pub(super) const EXTENSIONS: [&str; 1] = [".xml"];

/// The largest graph and the largest weights, in bytes.
const MAX_GRAPH_SIZE: u64 = 1 << 30;
const MAX_WEIGHTS_SIZE: u64 = 1 << 40;

/// Versions of the format: 10 since OpenVINO 2020, 11 since 2022.
const VERSIONS: [&str; 2] = ["10", "11"];

/// How much of a file is read to recognise it.
pub(super) const HEAD: usize = 4096;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// The most inputs or outputs.
const MAX_PORTS: usize = 1024;

/// Layers that keep a state from run to run.
const STATEFUL: [&str; 2] = ["ReadValue", "Assign"];

/// Layers that draw random numbers.
const RANDOM: [&str; 2] = ["RandomUniform", "Multinomial"];

/// A layer with a loop that ends when a condition holds.
const LOOP: &str = "Loop";

/// The beginning of the names of sets of operations that are OpenVINO's own.
const OPSET: &str = "opset";

/// Whether a file whose first bytes are these is a graph of OpenVINO.
pub(super) fn is_graph(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    text.contains("<net ") && text.contains("<layers>")
}

/// A model's files.
pub(super) struct IrFiles {
    path: PathBuf,
    /// The graph, without a byte order mark.
    text: String,
    /// The size of the file of the weights in bytes, 0 if there is none.
    weights_size: u64,
}

/// What the files declare.
#[derive(Debug)]
pub(super) struct IrModel {
    /// Sorted by alias.
    pub(super) inputs: Vec<IrPort>,
    pub(super) outputs: Vec<IrPort>,
    /// The program that wrote the files.
    pub(super) written_by: String,
    is_random: bool,
    has_loops: bool,
    /// The graph, in which each input and output has a name.
    pub(super) graph: String,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct IrPort {
    /// The name that clients use: the first of its tensor's names, else that of the layer.
    pub(super) alias: String,
    /// A name by which the library finds it.
    pub(super) tensor_name: String,
    pub(super) dtype: DType,
    /// The size of each dimension, -1 if it varies; `None` for an output of unknown rank.
    pub(super) sizes: Option<Vec<i64>>,
}

impl IrFiles {
    /// Reads the graph of the model at `path`, which is a file or a directory with one such file.
    ///
    /// # Errors
    /// [`Code::DataLoss`] if it is not a model of OpenVINO.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let path = files::find(path, &EXTENSIONS)?;
        let bytes = files::read(&path, MAX_GRAPH_SIZE)?;
        if !is_graph(bytes.get(..HEAD).unwrap_or(&bytes)) {
            let why = ForeignFormats::explain(&path)
                .unwrap_or_else(|| "it has no <net> with <layers>".to_owned());
            let name = path.display();
            return Err(Error::damaged(format!("{name} is not a model of OpenVINO: {why}")));
        }
        let named = |error: Error| about(&path, &error);
        let text = String::from_utf8(bytes);
        let mut text = text.map_err(|_| named(Error::damaged("it is not UTF-8")))?;
        if text.starts_with(BYTE_ORDER_MARK) {
            text.remove(0);
        }
        let weights_size = match files::size_within(folder_of(&path), &weights_of(&path)) {
            Ok(size) => size,
            // A graph without constants needs none.
            Err(error) if error.code() == Code::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(IrFiles { path, text, weights_size })
    }

    /// The bytes of the file of the weights; none if it does not exist.
    ///
    /// # Errors
    /// If they cannot be read; [`Code::DataLoss`] if they are fewer than when the graph was read, by which the
    /// constants were checked.
    pub(super) fn weights(&self) -> Result<Vec<u8>> {
        if self.weights_size == 0 {
            return Ok(Vec::new());
        }
        let file = weights_of(&self.path);
        let weights = files::read_within(folder_of(&self.path), &file, MAX_WEIGHTS_SIZE)?;
        if size_in_bytes(weights.len()) < self.weights_size {
            return Err(about(&file, &Error::damaged("it became shorter while it was read")));
        }
        Ok(weights)
    }

    /// Their size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        size_in_bytes(self.text.len()).saturating_add(self.weights_size)
    }

    /// What the files declare.
    ///
    /// # Errors
    /// [`Code::DataLoss`] if they are damaged, [`Code::Unimplemented`] if the model cannot be served; the message
    /// names the file.
    pub(super) fn model(&self) -> Result<IrModel> {
        read_model(&self.text, self.weights_size).map_err(|error| about(&self.path, &error))
    }
}

/// The file of the weights of the graph in `path`.
pub(super) fn weights_of(path: &Path) -> PathBuf {
    path.with_extension("bin")
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

fn size_in_bytes(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn about(path: &Path, error: &Error) -> Error {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let what = if error.code() == Code::DataLoss { " is damaged" } else { "" };
    Error::new(error.code(), format!("{name}{what}: {}", error.message()))
}

impl IrModel {
    /// The only signature.
    pub(super) fn signature(&self) -> Signature {
        let specs = |ports: &[IrPort]| ports.iter().map(IrPort::spec).collect();
        let mut signature = Signature::only(specs(&self.inputs), specs(&self.outputs));
        signature.read_only = true;
        signature.repeatable = !self.is_random;
        signature.is_bounded = !self.has_loops;
        // Its kernels trust the declared shapes, and few of them take tensors without elements.
        signature.exact_shapes = true;
        signature
    }
}

impl IrPort {
    fn spec(&self) -> TensorSpec {
        let sizes = self.sizes.as_deref().unwrap_or_default();
        let mut spec = TensorSpec::new(self.alias.clone(), self.dtype, sizes);
        spec.tensor_name.clone_from(&self.tensor_name);
        if self.sizes.is_none() {
            spec.shape = DeclaredShape::UnknownRank;
        }
        spec
    }
}

/// Reads the graph `text`, whose weights have this many bytes.
fn read_model(text: &str, weights_size: u64) -> Result<IrModel> {
    let document = xml::parse(text)?;
    let root = document.root();
    if root.name() != "net" {
        return Err(root.damaged("is not the <net> of a model"));
    }
    let version = root.required("version")?;
    if !VERSIONS.contains(&version) {
        return Err(Error::unsupported(format!(
            "version {version} of the format is not supported, as the library reads versions {}; convert the model \
             again with a present OpenVINO",
            VERSIONS.join(" and ")
        )));
    }
    let kinds = check_layers(root, weights_size)?;
    let (inputs, outputs, graph) = NamedPorts::of(root, text)?.in_text(text)?;
    Ok(IrModel {
        inputs,
        outputs,
        written_by: written_by(root),
        is_random: RANDOM.iter().any(|kind| kinds.contains(kind)),
        has_loops: kinds.contains(LOOP),
        graph,
    })
}

/// Refuses layers that cannot be served, and constants that are not in the weights. Returns the types of all layers,
/// those in the bodies of others too.
fn check_layers(root: XmlElement<'_>, weights_size: u64) -> Result<BTreeSet<&str>> {
    let mut kinds = BTreeSet::new();
    for layer in root.descendants().filter(|element| element.name() == "layer") {
        let kind = layer.required("type")?;
        kinds.insert(kind);
        if STATEFUL.contains(&kind) {
            return Err(Error::unsupported(format!(
                "layer {:?} ({kind}) keeps a state from request to request, which would mix those of several clients; \
                 convert the model without states",
                layer.attribute("name").unwrap_or_default()
            )));
        }
        let set = layer.attribute("version").unwrap_or(OPSET);
        if !set.starts_with(OPSET) {
            return Err(Error::unsupported(format!(
                "layer {:?} ({kind}) is an operation of the extension {set:?}, which is code of its own",
                layer.attribute("name").unwrap_or_default()
            )));
        }
        if kind == "Const" {
            check_constant(layer, weights_size)?;
        }
    }
    Ok(kinds)
}

fn check_constant(layer: XmlElement<'_>, weights_size: u64) -> Result<()> {
    let data = layer.required_child("data")?;
    let number = |name| {
        let text = data.required(name)?;
        text.trim()
            .parse::<usize>()
            .map_err(|_| data.damaged(format!("{name}={text:?} is no size")))
    };
    let (offset, size) = (number("offset")?, number("size")?);
    if offset.checked_add(size).is_none_or(|end| size_in_bytes(end) > weights_size) {
        return Err(data.damaged(format!(
            "the constant's {size} bytes at {offset} are not in the weights, which have {weights_size} bytes: the .bin file \
             is missing, incomplete or of another model"
        )));
    }
    let sizes = declared_sizes(data)?;
    let Some(width) = types::of_name(data.required("element_type")?).and_then(DType::size) else {
        return Ok(());
    };
    let count = sizes
        .unwrap_or_default()
        .iter()
        .try_fold(width, |count, size| count.checked_mul(usize::try_from(*size).ok()?));
    if count != Some(size) {
        return Err(data.damaged(format!("the constant's shape does not fit its {size} bytes")));
    }
    Ok(())
}

/// The sizes in the attribute `shape`, -1 where they vary; `None` for an unknown rank.
fn declared_sizes(data: XmlElement<'_>) -> Result<Option<Vec<i64>>> {
    let text = data.required("shape")?.trim();
    if text == "..." {
        return Ok(None);
    }
    let parts = text.split(',').map(str::trim).filter(|_| !text.is_empty());
    let size = |part: &str| match part.parse::<i64>() {
        Ok(size) => Some(size).filter(|size| *size >= -1),
        // `1..8`, `2..`: OpenVINO checks the limits.
        Err(_) => (part == "?" || part.contains("..")).then_some(-1),
    };
    let sizes: Option<Vec<i64>> = parts.map(size).collect();
    sizes.map(Some).ok_or_else(|| data.damaged(format!("shape={text:?} is no shape")))
}

/// `OpenVINO 2026.4.1`, if the file says so.
fn written_by(root: XmlElement<'_>) -> String {
    let infos = root.children_named("rt_info").flat_map(|info| info.descendants());
    // Files before 2026 have an element of their own for it.
    let value = infos.filter_map(|info| match info.name() {
        "info" => {
            info.attribute("value").filter(|_| info.attribute("name") == Some("OpenVINO Runtime"))
        }
        "Runtime_version" | "runtime_version" => info.attribute("value"),
        _ => None,
    });
    let version = value.map(|value| value.split('-').next().unwrap_or(value).trim()).next();
    version.map_or_else(String::new, |version| format!("OpenVINO {version}"))
}

/// The inputs and outputs, and the names that are missing in the text.
#[derive(Default)]
struct NamedPorts {
    inputs: Vec<IrPort>,
    outputs: Vec<IrPort>,
    /// Where in the text a name is inserted, and which.
    missing: Vec<(usize, String)>,
    /// The beginning of these names, which is not in the text.
    prefix: String,
}

/// The port of a layer from which a tensor comes.
struct TensorSource<'d> {
    port: XmlElement<'d>,
    names: Vec<String>,
}

/// The outermost layers by their ids, and the edges by the layers to which they lead. A `Result` has one.
struct GraphIndex<'d> {
    layers: HashMap<&'d str, XmlElement<'d>>,
    edge_to: HashMap<&'d str, XmlElement<'d>>,
}

impl<'d> GraphIndex<'d> {
    fn of(root: XmlElement<'d>, layers: XmlElement<'d>) -> Result<Self> {
        let mut index = GraphIndex { layers: HashMap::new(), edge_to: HashMap::new() };
        for layer in layers.children_named("layer") {
            let id = layer.required("id")?;
            if index.layers.insert(id, layer).is_some() {
                return Err(layer.damaged(format!("another layer has the id {id:?}, too")));
            }
        }
        let edges = root.child("edges").into_iter().flat_map(|edges| edges.children_named("edge"));
        for edge in edges {
            index.edge_to.insert(edge.required("to-layer")?, edge);
        }
        Ok(index)
    }
}

impl NamedPorts {
    fn of(root: XmlElement<'_>, text: &str) -> Result<Self> {
        let layers = root.required_child("layers")?;
        let graph = GraphIndex::of(root, layers)?;
        let mut found = NamedPorts::default();
        found.prefix.push_str("unnamed");
        while text.contains(&found.prefix) {
            found.prefix.push('_');
        }
        for layer in layers.children_named("layer") {
            match layer.required("type")? {
                "Parameter" => found.add_input(layer)?,
                "Result" => found.add_output(layer, &graph)?,
                _ => {}
            }
            if found.inputs.len().max(found.outputs.len()) > MAX_PORTS {
                let why = format!("more than {MAX_PORTS} inputs or outputs are not supported");
                return Err(Error::unsupported(why));
            }
        }
        if found.outputs.is_empty() {
            return Err(layers.damaged("there is no output (Result)"));
        }
        found.inputs.sort_by(|a, b| a.alias.cmp(&b.alias));
        found.outputs.sort_by(|a, b| a.alias.cmp(&b.alias));
        Ok(found)
    }

    fn add_input(&mut self, layer: XmlElement<'_>) -> Result<()> {
        let name = layer.required("name")?;
        let data = layer.required_child("data")?;
        let Some(sizes) = declared_sizes(data)? else {
            let why =
                format!("input {name:?} has no fixed rank, which OpenVINO does not take on CPUs");
            return Err(Error::unsupported(why));
        };
        let source = source_of(layer, None)?;
        let dtype = dtype_of(name, data.required("element_type")?)?;
        let (alias, tensor_name) = self.name(&source, name);
        self.inputs.push(IrPort { alias, tensor_name, dtype, sizes: Some(sizes) });
        Ok(())
    }

    fn add_output(&mut self, layer: XmlElement<'_>, graph: &GraphIndex<'_>) -> Result<()> {
        let (name, id) = (layer.required("name")?, layer.required("id")?);
        let edge = graph.edge_to.get(id);
        let edge = edge.ok_or_else(|| layer.damaged("no edge leads to this output"))?;
        let from = graph.layers.get(edge.required("from-layer")?);
        let from = from.ok_or_else(|| edge.damaged("comes from a layer that does not exist"))?;
        let mut source = source_of(*from, Some(edge.required("from-port")?))?;
        // An output may have names of its own.
        let own = layer.attribute("output_names").map(names_in).unwrap_or_default();
        if !own.is_empty() {
            source.names = own;
        }
        let port = layer.required_child("input")?.required_child("port")?;
        let dtype = dtype_of(name, port.required("precision")?)?;
        let size = |dim: XmlElement<'_>| {
            let text = dim.text().trim();
            text.parse::<i64>().map_err(|_| dim.damaged(format!("{text:?} is no size")))
        };
        let sizes = port.children_named("dim").map(size).collect::<Result<Vec<i64>>>()?;
        let (alias, tensor_name) = self.name(&source, name);
        // A scalar and a tensor of unknown rank are written alike.
        let sizes = Some(sizes).filter(|sizes| !sizes.is_empty());
        self.outputs.push(IrPort { alias, tensor_name, dtype, sizes });
        Ok(())
    }

    /// The name that clients use for the tensor of `source`, in or out of the layer `layer`; and one that the library
    /// knows.
    fn name(&mut self, source: &TensorSource<'_>, layer: &str) -> (String, String) {
        // As `get_any_name` of the library does.
        if let Some(first) = source.names.iter().min() {
            return (first.clone(), first.clone());
        }
        let place = source.port.range().start.saturating_add("<port".len());
        let known = self.missing.iter().find(|(known, _)| *known == place);
        let tensor_name = match known {
            Some((_, name)) => name.clone(),
            None => {
                let name = format!("{}{}", self.prefix, self.missing.len());
                self.missing.push((place, name.clone()));
                name
            }
        };
        (layer.to_owned(), tensor_name)
    }

    /// The inputs, the outputs, and the text with all names.
    fn in_text(self, text: &str) -> Result<(Vec<IrPort>, Vec<IrPort>, String)> {
        for (what, ports) in [("inputs", &self.inputs), ("outputs", &self.outputs)] {
            let mut aliases = BTreeSet::new();
            if let Some(twice) = ports.iter().find(|port| !aliases.insert(&port.alias)) {
                return Err(Error::unsupported(format!(
                    "two {what} have the name {:?}, by which clients could not tell them apart",
                    twice.alias
                )));
            }
        }
        let mut missing = self.missing;
        missing.sort();
        let (mut graph, mut done) = (String::with_capacity(text.len()), 0);
        for (place, name) in &missing {
            graph.push_str(text.get(done..*place).unwrap_or_default());
            graph.push_str(&format!(" names=\"{name}\""));
            done = *place;
        }
        graph.push_str(text.get(done..).unwrap_or_default());
        Ok((self.inputs, self.outputs, graph))
    }
}

/// The output port `id` of a layer, or its only one.
fn source_of<'d>(layer: XmlElement<'d>, id: Option<&str>) -> Result<TensorSource<'d>> {
    let mut ports = layer.required_child("output")?.children_named("port");
    let port = match id {
        None => ports.next(),
        Some(_) => ports.find(|port| port.attribute("id") == id),
    };
    let port = port.ok_or_else(|| layer.damaged("has no such output port"))?;
    let names = port.attribute("names").map(names_in).unwrap_or_default();
    Ok(TensorSource { port, names })
}

/// Names that are separated by commas; `\,` is a comma in a name.
fn names_in(text: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            ',' => names.push(String::new()),
            '\\' if letters.peek() == Some(&',') => {
                letters.next();
                names.iter_mut().last().into_iter().for_each(|name| name.push(','));
            }
            _ => names.iter_mut().last().into_iter().for_each(|name| name.push(letter)),
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

fn dtype_of(name: &str, text: &str) -> Result<DType> {
    types::of_name(text).ok_or_else(|| {
        Error::unsupported(format!("the type {text:?} of {name:?} is not supported"))
    })
}
