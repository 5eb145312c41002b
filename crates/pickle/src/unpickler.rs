//! The virtual machine that executes pickles: a stack, a memo, and about seventy opcodes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::opcode;
use super::reader::{
    self, INVALID_NUMBER, OpcodeError, OpcodeResult, PickleReader, damaged, text, unsupported,
};
use super::{PickleId, PickleNode, PickleObject};
use tensorserve_tensor::error::{Code, Error, Result};

/// The most nodes, of 32 bytes each.
const MAX_NODES: usize = 1 << 25;

/// The longest name of a class or a function, with its module.
const MAX_NAME_BYTES: usize = 1024;

/// The highest protocol that is supported.
const HIGHEST_PROTOCOL: u8 = 5;

/// The reason for a node that is not in the arena.
const MISSING_NODE: &str = "a value does not exist";

/// The reason for popping from an empty stack.
const EMPTY_STACK: &str = "the stack is empty";

/// Executes the pickle in `bytes`. Returns all nodes, and the pickled one.
pub(super) fn run(bytes: Bytes) -> Result<(Vec<PickleNode>, PickleId)> {
    let mut unpickler = Unpickler {
        copy_budget: bytes.len().saturating_add(MAX_NAME_BYTES * 64),
        reader: PickleReader::new(bytes),
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        names: HashSet::new(),
        is_nested: false,
    };
    let root = unpickler.run()?;
    Ok((unpickler.nodes, root))
}

pub(super) struct Unpickler {
    pub(super) reader: PickleReader,
    pub(super) nodes: Vec<PickleNode>,
    pub(super) stack: Vec<PickleId>,
    /// The height of the stack at each open mark.
    pub(super) marks: Vec<usize>,
    pub(super) memo: HashMap<u64, PickleId>,
    /// The names of classes and functions, each stored once.
    names: HashSet<Arc<str>>,
    /// How many bytes or values may still be copied. In a valid pickle each part is copied at most
    /// once.
    copy_budget: usize,
    /// Whether this executes the plain pickle of an array of objects within a joblib file.
    pub(super) is_nested: bool,
}

impl Unpickler {
    /// Executes opcodes up to `STOP`, and returns the top of the stack.
    pub(super) fn run(&mut self) -> Result<PickleId> {
        loop {
            let position = self.reader.position();
            let opcode = self.reader.byte().map_err(|_| {
                let message = format!("the pickle ends at byte {position} without STOP");
                Error::damaged(message)
            })?;
            match self.execute(opcode) {
                Ok(false) => {}
                Ok(true) => {
                    return self.pop().map_err(|error| describe(&error, opcode, position));
                }
                Err(error) => return Err(describe(&error, opcode, position)),
            }
        }
    }

    /// Executes one opcode; returns whether it was the last.
    fn execute(&mut self, opcode: u8) -> OpcodeResult<bool> {
        match opcode {
            opcode::STOP => return Ok(true),
            opcode::PROTO => self.protocol()?,
            // The length of a frame matters only for reading from a network.
            opcode::FRAME => drop(self.reader.array::<8>()?),
            opcode::MARK => self.marks.push(self.stack.len()),
            opcode::POP => self.pop_value_or_mark()?,
            opcode::POP_MARK => drop(self.pop_to_mark()?),
            opcode::DUP => self.stack.push(self.top()?),
            opcode::GET | opcode::BINGET | opcode::LONG_BINGET => self.get(opcode)?,
            opcode::PUT | opcode::BINPUT | opcode::LONG_BINPUT | opcode::MEMOIZE => {
                self.put(opcode)?;
            }
            opcode::APPEND | opcode::APPENDS | opcode::ADDITEMS => self.append(opcode)?,
            opcode::SETITEM | opcode::SETITEMS => self.set_items(opcode)?,
            opcode::GLOBAL => {
                let name = self.global_name()?;
                self.push(PickleNode::Global(name))?;
            }
            opcode::STACK_GLOBAL => {
                let name = self.stack_global_name()?;
                self.push(PickleNode::Global(name))?;
            }
            opcode::REDUCE | opcode::INST | opcode::OBJ | opcode::NEWOBJ | opcode::NEWOBJ_EX => {
                self.call(opcode)?;
            }
            opcode::BUILD => self.build()?,
            // All bytes are read-only here.
            opcode::READONLY_BUFFER => {}
            _ => {
                let node = self.new_value(opcode)?;
                self.push(node)?;
            }
        }
        Ok(false)
    }

    fn protocol(&mut self) -> OpcodeResult<()> {
        match self.reader.byte()? {
            0..=HIGHEST_PROTOCOL => Ok(()),
            later => unsupported(format!(
                "protocol {later} is not supported; the highest is {HIGHEST_PROTOCOL}"
            )),
        }
    }

    /// The value that an opcode makes of its operands, or of values on the stack.
    fn new_value(&mut self, opcode: u8) -> OpcodeResult<PickleNode> {
        let reader = &mut self.reader;
        Ok(match opcode {
            opcode::NONE => PickleNode::None,
            opcode::NEWTRUE => PickleNode::Bool(true),
            opcode::NEWFALSE => PickleNode::Bool(false),
            opcode::INT => match &*reader.line()? {
                // How protocols 0 and 1 write False and True.
                b"00" => PickleNode::Bool(false),
                b"01" => PickleNode::Bool(true),
                line => decimal(line)?,
            },
            opcode::LONG => decimal(&reader.line()?)?,
            opcode::BININT => PickleNode::Int(i32::from_le_bytes(reader.array()?).into()),
            opcode::BININT1 => PickleNode::Int(reader.byte()?.into()),
            opcode::BININT2 => PickleNode::Int(u16::from_le_bytes(reader.array()?).into()),
            opcode::LONG1 => integer(&reader.counted::<1>()?),
            opcode::LONG4 => integer(&reader.counted::<4>()?),
            opcode::FLOAT => PickleNode::Float(reader.number_line()?),
            opcode::BINFLOAT => PickleNode::Float(f64::from_be_bytes(reader.array()?)),
            opcode::STRING => PickleNode::Bytes(reader::string_literal(&reader.line()?)?.into()),
            opcode::SHORT_BINSTRING | opcode::SHORT_BINBYTES => {
                PickleNode::Bytes(reader.counted::<1>()?)
            }
            opcode::BINSTRING | opcode::BINBYTES => PickleNode::Bytes(reader.counted::<4>()?),
            opcode::BINBYTES8 | opcode::BYTEARRAY8 => PickleNode::Bytes(reader.counted::<8>()?),
            opcode::UNICODE => PickleNode::Text(reader::raw_unicode_escape(&reader.line()?)?),
            opcode::SHORT_BINUNICODE => PickleNode::Text(text(&reader.counted::<1>()?)?),
            opcode::BINUNICODE => PickleNode::Text(text(&reader.counted::<4>()?)?),
            opcode::BINUNICODE8 => PickleNode::Text(text(&reader.counted::<8>()?)?),
            opcode::EMPTY_LIST => PickleNode::List(Vec::new()),
            opcode::EMPTY_TUPLE => PickleNode::Tuple(Vec::new()),
            opcode::EMPTY_DICT => PickleNode::Dict(Vec::new()),
            opcode::EMPTY_SET => PickleNode::Set(Vec::new()),
            opcode::LIST => PickleNode::List(self.pop_to_mark()?),
            opcode::TUPLE => PickleNode::Tuple(self.pop_to_mark()?),
            opcode::FROZENSET => PickleNode::Set(self.pop_to_mark()?),
            opcode::DICT => PickleNode::Dict(pairs(&self.pop_to_mark()?)?),
            opcode::TUPLE1 => PickleNode::Tuple(self.pop_many(1)?),
            opcode::TUPLE2 => PickleNode::Tuple(self.pop_many(2)?),
            opcode::TUPLE3 => PickleNode::Tuple(self.pop_many(3)?),
            opcode::PERSID | opcode::BINPERSID => {
                return unsupported(
                    "values outside of the file (persistent ids) are not supported",
                );
            }
            opcode::EXT1 | opcode::EXT2 | opcode::EXT4 => {
                return unsupported("names of the extension registry are not supported");
            }
            opcode::NEXT_BUFFER => {
                return unsupported("buffers outside of the file are not supported");
            }
            _ => return damaged("unknown opcode"),
        })
    }

    pub(super) fn node(&self, id: PickleId) -> OpcodeResult<&PickleNode> {
        match usize::try_from(id.0).ok().and_then(|index| self.nodes.get(index)) {
            Some(node) => Ok(node),
            None => damaged(MISSING_NODE),
        }
    }

    pub(super) fn node_mut(&mut self, id: PickleId) -> OpcodeResult<&mut PickleNode> {
        match usize::try_from(id.0).ok().and_then(|index| self.nodes.get_mut(index)) {
            Some(node) => Ok(node),
            None => damaged(MISSING_NODE),
        }
    }

    /// Adds a node to the arena.
    pub(super) fn add(&mut self, node: PickleNode) -> OpcodeResult<PickleId> {
        let id = u32::try_from(self.nodes.len()).ok();
        let Some(id) = id.filter(|_| self.nodes.len() < MAX_NODES) else {
            let reason = format!("more than {MAX_NODES} values").into();
            return Err(OpcodeError { code: Code::ResourceExhausted, reason });
        };
        self.nodes.push(node);
        Ok(PickleId(id))
    }

    fn push(&mut self, node: PickleNode) -> OpcodeResult<()> {
        let id = self.add(node)?;
        self.stack.push(id);
        Ok(())
    }

    /// Takes `amount` bytes or values from the budget for copies.
    pub(super) fn charge(&mut self, amount: usize) -> OpcodeResult<()> {
        match self.copy_budget.checked_sub(amount) {
            Some(left) => {
                self.copy_budget = left;
                Ok(())
            }
            None => damaged("the pickle expands to far more data than its size allows"),
        }
    }

    /// The lowest height that the stack may be popped to: that of the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    pub(super) fn pop(&mut self) -> OpcodeResult<PickleId> {
        match self.stack.pop().filter(|_| self.stack.len() >= self.floor()) {
            Some(id) => Ok(id),
            None => damaged(EMPTY_STACK),
        }
    }

    fn top(&self) -> OpcodeResult<PickleId> {
        match self.stack.last().filter(|_| self.stack.len() > self.floor()) {
            Some(id) => Ok(*id),
            None => damaged(EMPTY_STACK),
        }
    }

    fn pop_many(&mut self, count: usize) -> OpcodeResult<Vec<PickleId>> {
        match self.stack.len().checked_sub(count).filter(|start| *start >= self.floor()) {
            Some(start) => Ok(self.stack.split_off(start)),
            None => damaged("the stack has too few values"),
        }
    }

    fn pop_to_mark(&mut self) -> OpcodeResult<Vec<PickleId>> {
        match self.marks.pop().filter(|mark| *mark <= self.stack.len()) {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => damaged("the stack has no mark"),
        }
    }

    fn pop_value_or_mark(&mut self) -> OpcodeResult<()> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    fn get(&mut self, opcode: u8) -> OpcodeResult<()> {
        let key = self.memo_key(opcode)?;
        match self.memo.get(&key) {
            Some(id) => {
                self.stack.push(*id);
                Ok(())
            }
            None => damaged(format!("the memo has no value number {key}")),
        }
    }

    fn put(&mut self, opcode: u8) -> OpcodeResult<()> {
        let key = match opcode {
            opcode::MEMOIZE => self.memo.len() as u64,
            _ => self.memo_key(opcode)?,
        };
        let id = self.top()?;
        self.memo.insert(key, id);
        Ok(())
    }

    fn memo_key(&mut self, opcode: u8) -> OpcodeResult<u64> {
        match opcode {
            opcode::GET | opcode::PUT => self.reader.number_line(),
            opcode::BINGET | opcode::BINPUT => self.reader.byte().map(u64::from),
            _ => self.reader.array().map(|bytes| u32::from_le_bytes(bytes).into()),
        }
    }

    fn append(&mut self, opcode: u8) -> OpcodeResult<()> {
        let items = match opcode {
            opcode::APPEND => self.pop_many(1)?,
            _ => self.pop_to_mark()?,
        };
        let target = self.top()?;
        match self.node_mut(target)? {
            PickleNode::List(list) | PickleNode::Set(list) => list.extend(items),
            PickleNode::Object(object) => object.items.extend(items),
            other => return damaged(format!("{} cannot be appended to", other.type_name())),
        }
        Ok(())
    }

    fn set_items(&mut self, opcode: u8) -> OpcodeResult<()> {
        let items = match opcode {
            opcode::SETITEM => self.pop_many(2)?,
            _ => self.pop_to_mark()?,
        };
        let items = pairs(&items)?;
        let target = self.top()?;
        match self.node_mut(target)? {
            PickleNode::Dict(entries) => entries.extend(items),
            PickleNode::Object(object) => object.entries.extend(items),
            other => return damaged(format!("{} has no entries to set", other.type_name())),
        }
        Ok(())
    }

    /// The name in the operands of `GLOBAL` or `INST`.
    fn global_name(&mut self) -> OpcodeResult<Arc<str>> {
        let (module, name) = (self.reader.text_line()?, self.reader.text_line()?);
        self.intern(&module, &name)
    }

    /// The name on the stack that `STACK_GLOBAL` takes.
    fn stack_global_name(&mut self) -> OpcodeResult<Arc<str>> {
        let (name, module) = (self.pop()?, self.pop()?);
        let (module, name) = (self.name_part(module)?, self.name_part(name)?);
        self.intern(&module, &name)
    }

    fn name_part(&self, id: PickleId) -> OpcodeResult<String> {
        match self.node(id)? {
            PickleNode::Text(text) if text.len() <= MAX_NAME_BYTES => Ok(text.clone()),
            _ => damaged("the name of a class is not text, or is too long"),
        }
    }

    /// The name `module.name`, stored once.
    pub(super) fn intern(&mut self, module: &str, name: &str) -> OpcodeResult<Arc<str>> {
        if module.len() + name.len() > MAX_NAME_BYTES {
            return damaged("the name of a class is too long");
        }
        let name = format!("{module}.{name}");
        if let Some(known) = self.names.get(&*name) {
            return Ok(Arc::clone(known));
        }
        self.charge(name.len())?;
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        Ok(name)
    }

    /// Handles the opcodes that call a class or a function. Nothing is called: the result is an
    /// object that records the call, or the data of a function that is known (see `reduce`).
    fn call(&mut self, opcode: u8) -> OpcodeResult<()> {
        let (class, arguments) = match opcode {
            opcode::INST => {
                let class = self.global_name()?;
                let arguments = PickleNode::Tuple(self.pop_to_mark()?);
                (class, self.add(arguments)?)
            }
            opcode::OBJ => {
                let mut arguments = self.pop_to_mark()?;
                if arguments.is_empty() {
                    return damaged("the class of an object is missing");
                }
                let class = self.name_of(arguments.remove(0))?;
                (class, self.add(PickleNode::Tuple(arguments))?)
            }
            _ => {
                // No supported model has keyword arguments.
                if opcode == opcode::NEWOBJ_EX {
                    self.pop()?;
                }
                let (arguments, class) = (self.pop()?, self.pop()?);
                (self.name_of(class)?, arguments)
            }
        };
        let id = match opcode {
            opcode::REDUCE => self.reduce(&class, arguments)?,
            _ => None,
        };
        let id = match id {
            Some(id) => id,
            None => self.add_object(class, Some(arguments))?,
        };
        self.stack.push(id);
        Ok(())
    }

    /// The name of a class or function; empty if it is itself the result of a call.
    pub(super) fn name_of(&self, id: PickleId) -> OpcodeResult<Arc<str>> {
        Ok(match self.node(id)? {
            PickleNode::Global(name) => Arc::clone(name),
            _ => Arc::default(),
        })
    }

    /// Adds an object of `class`.
    pub(super) fn add_object(
        &mut self,
        class: Arc<str>,
        arguments: Option<PickleId>,
    ) -> OpcodeResult<PickleId> {
        let (items, entries) = (Vec::new(), Vec::new());
        let object = PickleObject { class, arguments, state: None, items, entries };
        self.add(PickleNode::Object(Box::new(object)))
    }

    /// Sets the state of the value at the top of the stack.
    fn build(&mut self) -> OpcodeResult<()> {
        let (state, target) = (self.pop()?, self.top()?);
        match self.node_mut(target)? {
            PickleNode::Object(object) => object.state = Some(state),
            // The attributes of a subclass are not needed.
            PickleNode::Dict(_) | PickleNode::List(_) | PickleNode::Set(_) => {}
            PickleNode::Dtype(_) => return self.build_dtype(target, state),
            PickleNode::Array(_) => return self.build_array(target, state),
            other => return damaged(format!("{} has no state", other.type_name())),
        }
        self.read_joblib_array(target)
    }
}

/// The error of an opcode, with its position.
fn describe(error: &OpcodeError, opcode: u8, position: usize) -> Error {
    let OpcodeError { code, reason } = error;
    let what = if *code == Code::DataLoss { "is damaged" } else { "cannot be read" };
    let shown = match opcode.is_ascii_graphic() {
        true => format!("{:?}", char::from(opcode)),
        false => format!("{opcode:#04x}"),
    };
    Error::new(*code, format!("the pickle {what} at byte {position} (opcode {shown}): {reason}"))
}

/// A line with an integer, which Python 2 may have written with an `L` behind it.
fn decimal(line: &[u8]) -> OpcodeResult<PickleNode> {
    let digits = line.trim_ascii();
    let digits = digits.strip_suffix(b"L").unwrap_or(digits);
    let unsigned = digits.strip_prefix(b"-").unwrap_or(digits);
    if unsigned.is_empty() || !unsigned.iter().all(u8::is_ascii_digit) {
        return damaged(INVALID_NUMBER);
    }
    let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    Ok(number.map_or(PickleNode::BigInt, PickleNode::Int))
}

fn integer(bytes: &[u8]) -> PickleNode {
    reader::integer(bytes).map_or(PickleNode::BigInt, PickleNode::Int)
}

/// Keys and values of a dictionary, from a flat list.
fn pairs(items: &[PickleId]) -> OpcodeResult<Vec<(PickleId, PickleId)>> {
    let (pairs, rest) = items.as_chunks::<2>();
    if !rest.is_empty() {
        return damaged("a key has no value");
    }
    Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
}
