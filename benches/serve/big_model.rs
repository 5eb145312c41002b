//! Writes a SavedModel with variables of any size: a table whose rows are looked up. It is written
//! here, byte by byte, because a file of 100 MB does not belong in a repository.

use std::fs;
use std::path::Path;

/// Numbers in a row of the table.
const COLUMNS: u64 = 64;
const FLOAT: u64 = 1;
const INT32: u64 = 3;
const STRING: u64 = 7;

/// Writes the model to the directory `folder`, with about `bytes` bytes of variables.
pub fn write(folder: &Path, bytes: usize) {
    let rows = bytes as u64 / (4 * COLUMNS);
    let variables = folder.join("variables");
    fs::create_dir_all(&variables).expect("directory");
    let data: Vec<u8> = (0..rows * COLUMNS).flat_map(|i| (i as f32).to_le_bytes()).collect();
    fs::write(variables.join("variables.index"), index(rows, &data)).expect("index");
    fs::write(variables.join("variables.data-00000-of-00001"), data).expect("data");
    fs::write(folder.join("saved_model.pb"), saved_model(rows)).expect("graph");
}

/// A protobuf message under construction.
#[derive(Clone, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn fixed(mut self, field: u64, value: u32) -> Self {
        self.varint(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u64, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn message(self, field: u64, message: Message) -> Self {
        self.bytes(field, message.0)
    }
}

fn new() -> Message {
    Message::default()
}

/// `TensorShapeProto`; -1 is an open dimension.
fn shape(dims: &[i64]) -> Message {
    dims.iter().fold(new(), |shape, &dim| shape.message(2, new().number(1, dim as u64)))
}

/// `NodeDef`.
fn node(name: &str, op: &str, inputs: &[&str], attributes: &[(&str, Message)]) -> Message {
    let node = new().bytes(1, name).bytes(2, op);
    let node = inputs.iter().fold(node, |node, input| node.bytes(3, input));
    attributes.iter().fold(node, |node, (name, value)| {
        node.message(5, new().bytes(1, name).message(2, value.clone()))
    })
}

/// An attribute that is a type.
fn dtype(number: u64) -> Message {
    new().number(6, number)
}

/// A constant of one string.
fn text(name: &str, value: &str) -> Message {
    let tensor = new().number(1, STRING).message(2, shape(&[1])).bytes(8, value);
    node(name, "Const", &[], &[("dtype", dtype(STRING)), ("value", new().message(8, tensor))])
}

fn graph(rows: u64) -> Message {
    let table = new().message(7, shape(&[rows as i64, COLUMNS as i64]));
    let open = new().message(7, shape(&[-1]));
    let scalar = new().message(7, shape(&[]));
    let restored = new().message(1, new().number(6, FLOAT));
    let file = [("dtype", dtype(STRING)), ("shape", scalar)];
    let variable =
        [("dtype", dtype(FLOAT)), ("shape", table), ("shared_name", new().bytes(2, "table"))];
    let gather = [("dtype", dtype(FLOAT)), ("Tindices", dtype(INT32))];
    let restore = ["save/Const", "save/names", "save/slices"];
    let nodes = [
        node("ids", "Placeholder", &[], &[("dtype", dtype(INT32)), ("shape", open)]),
        node("table", "VarHandleOp", &[], &variable),
        node("rows", "ResourceGather", &["table", "ids"], &gather),
        node("save/Const", "Placeholder", &[], &file),
        text("save/names", "table"),
        text("save/slices", ""),
        node("save/RestoreV2", "RestoreV2", &restore, &[("dtypes", restored)]),
        node(
            "save/Assign",
            "AssignVariableOp",
            &["table", "save/RestoreV2"],
            &[("dtype", dtype(FLOAT))],
        ),
        node("save/restore_all", "NoOp", &["^save/Assign"], &[]),
    ];
    let graph = nodes.into_iter().fold(new(), |graph, node| graph.message(1, node));
    graph.message(4, new().number(1, 1000))
}

fn saved_model(rows: u64) -> Vec<u8> {
    let named = |name: &str, number, dims: &[i64]| {
        let info = new().bytes(1, name).number(2, number).message(3, shape(dims));
        new().bytes(1, name.trim_end_matches(":0")).message(2, info)
    };
    let signature = new()
        .message(1, named("ids:0", INT32, &[-1]))
        .message(2, named("rows:0", FLOAT, &[-1, COLUMNS as i64]))
        .bytes(3, "tensorflow/serving/predict");
    let saver = new().bytes(1, "save/Const:0").bytes(3, "save/restore_all").number(7, 2);
    let meta = new()
        .message(1, new().bytes(4, "serve"))
        .message(2, graph(rows))
        .message(3, saver)
        .message(5, new().bytes(1, "serving_default").message(2, signature));
    new().number(1, 1).message(2, meta).0
}

/// The index of the variables: a table in LevelDB's format.
fn index(rows: u64, data: &[u8]) -> Vec<u8> {
    let header = new().number(1, 1).message(3, new().number(1, 1));
    let entry = new()
        .number(1, FLOAT)
        .message(2, shape(&[rows as i64, COLUMNS as i64]))
        .number(5, data.len() as u64)
        .fixed(6, masked_crc(data));
    let mut file = Vec::new();
    let values = block(&mut file, &[("", header), ("table", entry)]);
    let meta = block(&mut file, &[]);
    let index = block(&mut file, &[("u", values)]);
    let mut footer = [meta.0, index.0].concat();
    footer.resize(40, 0);
    footer.extend(0xdb47_7524_8b80_fb57u64.to_le_bytes());
    file.extend(footer);
    file
}

/// Adds a block of entries to `file`, and returns where it is.
fn block(file: &mut Vec<u8>, entries: &[(&str, Message)]) -> Message {
    let mut block = new();
    for (key, value) in entries {
        for length in [0, key.len(), value.0.len()] {
            block.varint(length as u64);
        }
        block.0.extend_from_slice(key.as_bytes());
        block.0.extend_from_slice(&value.0);
    }
    block.0.extend(0u32.to_le_bytes());
    block.0.extend(1u32.to_le_bytes());
    let mut place = new();
    place.varint(file.len() as u64);
    place.varint(block.0.len() as u64);
    block.0.push(0); // Not compressed.
    let crc = masked_crc(&block.0);
    file.extend(block.0);
    file.extend(crc.to_le_bytes());
    place
}

/// CRC-32C, as TensorFlow stores it.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}
