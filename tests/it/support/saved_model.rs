//! Writes small SavedModels without TensorFlow, so that tests can have graphs of any operations.
//!
//! The functions return encoded messages of TensorFlow's `.proto` files; the server's own types lack
//! the fields that only libtensorflow reads.

use std::fs;
use std::path::Path;

/// Numbers of TensorFlow's `DataType`.
pub const FLOAT: u64 = 1;
pub const INT32: u64 = 3;
pub const STRING: u64 = 7;
pub const INT64: u64 = 9;

/// A graph with its signatures.
#[derive(Default)]
pub struct SavedModel {
    pub nodes: Vec<Vec<u8>>,
    pub functions: Vec<Vec<u8>>,
    /// Their names, and the messages of [`signature`].
    pub signatures: Vec<(&'static str, Vec<u8>)>,
}

impl SavedModel {
    /// Writes `saved_model.pb` into the directory `folder`, which it creates.
    pub fn write(&self, folder: &Path) {
        let library: Vec<u8> = self.functions.iter().flat_map(|f| bytes(1, f)).collect();
        let versions = number(1, 1500);
        let graph = [
            self.nodes.iter().flat_map(|node| bytes(1, node)).collect(),
            bytes(2, &library),
            bytes(4, &versions),
        ];
        let info = [bytes(4, b"serve"), bytes(5, b"2.21.0")].concat();
        let mut meta = [bytes(1, &info), bytes(2, &graph.concat())].concat();
        for (name, signature) in &self.signatures {
            meta.extend(bytes(5, &entry(name, signature)));
        }
        fs::create_dir_all(folder).expect("a directory");
        let model = [number(1, 1), bytes(2, &meta)].concat();
        fs::write(folder.join("saved_model.pb"), model).expect("written");
    }
}

/// A `NodeDef`.
pub fn node(name: &str, op: &str, inputs: &[&str], attrs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut node = [bytes(1, name.as_bytes()), bytes(2, op.as_bytes())].concat();
    inputs.iter().for_each(|input| node.extend(bytes(3, input.as_bytes())));
    attrs.iter().for_each(|(name, value)| node.extend(bytes(5, &entry(name, value))));
    node
}

/// A `Placeholder` of this type and shape; -1 is a dimension of any size.
pub fn placeholder(name: &str, dtype: u64, dims: &[i64]) -> Vec<u8> {
    node(name, "Placeholder", &[], &[("dtype", a_type(dtype)), ("shape", a_shape(dims))])
}

/// A call of `function`, which maps a string to a string.
pub fn call(name: &str, function: &str, input: &str) -> Vec<u8> {
    let strings = bytes(1, &bytes(6, &varint(STRING)));
    let function = bytes(10, &bytes(1, function.as_bytes()));
    let attrs = [("Tin", strings.clone()), ("Tout", strings), ("f", function)];
    node(name, "StatefulPartitionedCall", &[input], &attrs)
}

/// A `FunctionDef` of these nodes, which maps the string `x` to the string at `result`.
pub fn function(name: &str, nodes: &[Vec<u8>], result: &str) -> Vec<u8> {
    let argument = |name: &[u8]| [bytes(1, name), number(3, STRING)].concat();
    let signature =
        [bytes(1, name.as_bytes()), bytes(2, &argument(b"x")), bytes(3, &argument(b"y"))].concat();
    let mut function = bytes(1, &signature);
    nodes.iter().for_each(|node| function.extend(bytes(3, node)));
    function.extend(bytes(4, &entry("y", result.as_bytes())));
    function
}

/// An `AttrValue` that is a type.
pub fn a_type(dtype: u64) -> Vec<u8> {
    number(6, dtype)
}

/// An `AttrValue` that is a list of one type.
pub fn a_list_of_type(dtype: u64) -> Vec<u8> {
    bytes(1, &bytes(6, &varint(dtype)))
}

/// An `AttrValue` that is a shape.
pub fn a_shape(dims: &[i64]) -> Vec<u8> {
    bytes(7, &shape(dims))
}

/// An `AttrValue` that is a tensor of floats.
pub fn a_float_tensor(dims: &[i64], values: &[f32]) -> Vec<u8> {
    let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    bytes(8, &[number(1, FLOAT), bytes(2, &shape(dims)), bytes(5, &packed)].concat())
}

/// An `AttrValue` that is a vector of 32-bit integers.
pub fn an_int_tensor(values: &[u8]) -> Vec<u8> {
    let (shape, packed) = (shape(&[values.len() as i64]), values.to_vec());
    bytes(8, &[number(1, INT32), bytes(2, &shape), bytes(7, &packed)].concat())
}

/// A `SignatureDef` of these inputs and outputs, whose values are `TensorInfo`s.
pub fn signature(inputs: &[(&str, Vec<u8>)], outputs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut signature = Vec::new();
    inputs.iter().for_each(|(alias, info)| signature.extend(bytes(1, &entry(alias, info))));
    outputs.iter().for_each(|(alias, info)| signature.extend(bytes(2, &entry(alias, info))));
    signature.extend(bytes(3, b"tensorflow/serving/predict"));
    signature
}

/// The `TensorInfo` of one tensor.
pub fn tensor(name: &str, dtype: u64, dims: &[i64]) -> Vec<u8> {
    [bytes(1, name.as_bytes()), number(2, dtype), bytes(3, &shape(dims))].concat()
}

/// The `TensorInfo` of a sparse tensor: the names of its values, indices and dense shape.
pub fn sparse(names: [&str; 3], dtype: u64, dims: &[i64]) -> Vec<u8> {
    let [values, indices, dense_shape] = names.map(str::as_bytes);
    let coo = [bytes(1, values), bytes(2, indices), bytes(3, dense_shape)].concat();
    [bytes(4, &coo), number(2, dtype), bytes(3, &shape(dims))].concat()
}

/// The `TensorInfo` of a ragged tensor, with the tensors of its values and row splits.
pub fn ragged(names: [&str; 2], dtype: u64) -> Vec<u8> {
    // `TypeSpecProto` of the class `RAGGED_TENSOR_SPEC`.
    let spec = number(1, 3);
    let [values, splits] = names;
    let components = [tensor(values, dtype, &[-1]), tensor(splits, INT64, &[-1])];
    let composite = [bytes(1, &spec), bytes(2, &components[0]), bytes(2, &components[1])].concat();
    [bytes(5, &composite), number(2, dtype), bytes(3, &shape(&[-1, -1]))].concat()
}

fn shape(dims: &[i64]) -> Vec<u8> {
    dims.iter().flat_map(|&size| bytes(2, &number(1, size.cast_unsigned()))).collect()
}

/// An entry of a map.
fn entry(key: &str, value: &[u8]) -> Vec<u8> {
    [bytes(1, key.as_bytes()), bytes(2, value)].concat()
}

fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut encoded = Vec::new();
    while value >= 0x80 {
        encoded.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    encoded.push(value as u8);
    encoded
}
