//! The machine that a pickle is a program for: a stack, a memo, and about seventy opcodes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::array::{Array, ElementType};
use super::input::{self, Fault, Input, Step, damaged, text, unsupported};
use super::{Id, Node, Object};
use tensorserve_tensor::error::{Code, Error, Result};

/// The most values: 32 bytes each.
const MOST_NODES: usize = 1 << 25;

/// The longest name of a class or a function with its module.
const LONGEST_NAME: usize = 1024;

/// The highest protocol there is.
const HIGHEST_PROTOCOL: u8 = 5;

/// Runs the pickle and returns all values, and which of them was pickled.
pub(super) fn run(bytes: Bytes) -> Result<(Vec<Node>, Id)> {
    let mut machine = Machine {
        copies: bytes.len().saturating_add(LONGEST_NAME * 64),
        input: Input::new(bytes),
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        names: HashSet::new(),
        inside_joblib: false,
    };
    let root = machine.run()?;
    Ok((machine.nodes, root))
}

pub(super) struct Machine {
    pub(super) input: Input,
    pub(super) nodes: Vec<Node>,
    pub(super) stack: Vec<Id>,
    /// How high the stack was at each open mark.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
    /// Names, each kept once.
    names: HashSet<Arc<str>>,
    /// How much may yet be copied: in a sound pickle each part is copied once at most.
    copies: usize,
    /// Whether this is the plain pickle of an array of objects within a file of joblib's.
    inside_joblib: bool,
}

impl Machine {
    fn run(&mut self) -> Result<Id> {
        loop {
            let at = self.input.position();
            let opcode = self.input.byte().map_err(|_| {
                let message = format!("the pickle ends at byte {at} without its end mark");
                Error::new(Code::DataLoss, message)
            })?;
            match self.step(opcode) {
                Ok(false) => {}
                Ok(true) => {
                    return self.pop().map_err(|fault| describe(&fault, opcode, at));
                }
                Err(fault) => return Err(describe(&fault, opcode, at)),
            }
        }
    }

    /// Carries out one opcode; whether it was the last.
    fn step(&mut self, opcode: u8) -> Step<bool> {
        match opcode {
            b'.' => return Ok(true),
            0x80 => self.protocol()?,
            // How long a frame is matters to who reads from a network.
            0x95 => drop(self.input.array::<8>()?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => self.drop_top()?,
            b'1' => drop(self.pop_mark()?),
            b'2' => self.stack.push(self.top()?),
            b'g' | b'h' | b'j' => self.get(opcode)?,
            b'p' | b'q' | b'r' | 0x94 => self.put(opcode)?,
            b'a' | b'e' | 0x90 => self.append(opcode)?,
            b's' | b'u' => self.set_items(opcode)?,
            b'c' | 0x93 => self.global(opcode)?,
            b'R' | b'i' | b'o' | 0x81 | 0x92 => self.call(opcode)?,
            b'b' => self.build()?,
            // Bytes that must not be changed, which none are.
            0x98 => {}
            _ => {
                let node = self.constant(opcode)?;
                self.push(node)?;
            }
        }
        Ok(false)
    }

    fn protocol(&mut self) -> Step<()> {
        match self.input.byte()? {
            0..=HIGHEST_PROTOCOL => Ok(()),
            later => unsupported(format!("protocol {later}; up to {HIGHEST_PROTOCOL} is known")),
        }
    }

    /// A value that an opcode makes by itself, or of what is on the stack.
    fn constant(&mut self, opcode: u8) -> Step<Node> {
        let input = &mut self.input;
        Ok(match opcode {
            b'N' => Node::None,
            0x88 => Node::Bool(true),
            0x89 => Node::Bool(false),
            b'I' => match &*input.line()? {
                b"00" => Node::Bool(false),
                b"01" => Node::Bool(true),
                line => decimal(line)?,
            },
            b'L' => decimal(&input.line()?)?,
            b'J' => Node::Int(i32::from_le_bytes(input.array()?).into()),
            b'K' => Node::Int(input.byte()?.into()),
            b'M' => Node::Int(u16::from_le_bytes(input.array()?).into()),
            0x8a => integer(&input.counted::<1>()?),
            0x8b => integer(&input.counted::<4>()?),
            b'F' => Node::Float(input.number_line()?),
            b'G' => Node::Float(f64::from_be_bytes(input.array()?)),
            b'S' => Node::Bytes(input::quoted(&input.line()?)?.into()),
            b'U' | b'C' => Node::Bytes(input.counted::<1>()?),
            b'T' | b'B' => Node::Bytes(input.counted::<4>()?),
            0x8e | 0x96 => Node::Bytes(input.counted::<8>()?),
            b'V' => Node::Text(input::raw_unicode(&input.line()?)?),
            0x8c => Node::Text(text(&input.counted::<1>()?)?),
            b'X' => Node::Text(text(&input.counted::<4>()?)?),
            0x8d => Node::Text(text(&input.counted::<8>()?)?),
            b']' => Node::List(Vec::new()),
            b')' => Node::Tuple(Vec::new()),
            b'}' => Node::Dict(Vec::new()),
            0x8f => Node::Set(Vec::new()),
            b'l' => Node::List(self.pop_mark()?),
            b't' => Node::Tuple(self.pop_mark()?),
            0x91 => Node::Set(self.pop_mark()?),
            b'd' => Node::Dict(pairs(&self.pop_mark()?)?),
            0x85..=0x87 => Node::Tuple(self.pop_many(usize::from(opcode - 0x84))?),
            b'P' | b'Q' => return unsupported("a value kept outside of the file"),
            0x82..=0x84 => return unsupported("a name from a registry that the writer had"),
            0x97 => return unsupported("a buffer kept outside of the file"),
            _ => return damaged("no such opcode"),
        })
    }

    pub(super) fn node(&self, id: Id) -> Step<&Node> {
        match usize::try_from(id.0).ok().and_then(|index| self.nodes.get(index)) {
            Some(node) => Ok(node),
            None => damaged("a value that is not there"),
        }
    }

    pub(super) fn node_mut(&mut self, id: Id) -> Step<&mut Node> {
        match usize::try_from(id.0).ok().and_then(|index| self.nodes.get_mut(index)) {
            Some(node) => Ok(node),
            None => damaged("a value that is not there"),
        }
    }

    pub(super) fn add(&mut self, node: Node) -> Step<Id> {
        let id = u32::try_from(self.nodes.len()).ok();
        let Some(id) = id.filter(|_| self.nodes.len() < MOST_NODES) else {
            let why = format!("more than {MOST_NODES} values").into();
            return Err(Fault { code: Code::ResourceExhausted, why });
        };
        self.nodes.push(node);
        Ok(Id(id))
    }

    fn push(&mut self, node: Node) -> Step<()> {
        let id = self.add(node)?;
        self.stack.push(id);
        Ok(())
    }

    /// Counts that `amount` bytes or values are copied.
    pub(super) fn charge(&mut self, amount: usize) -> Step<()> {
        match self.copies.checked_sub(amount) {
            Some(left) => {
                self.copies = left;
                Ok(())
            }
            None => damaged("it would make far more of a few bytes than any writer does"),
        }
    }

    /// How low the stack may be taken: to the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    pub(super) fn pop(&mut self) -> Step<Id> {
        match self.stack.pop().filter(|_| self.stack.len() >= self.floor()) {
            Some(id) => Ok(id),
            None => damaged("the stack is empty"),
        }
    }

    fn top(&self) -> Step<Id> {
        match self.stack.last().filter(|_| self.stack.len() > self.floor()) {
            Some(id) => Ok(*id),
            None => damaged("the stack is empty"),
        }
    }

    fn pop_many(&mut self, count: usize) -> Step<Vec<Id>> {
        match self.stack.len().checked_sub(count).filter(|start| *start >= self.floor()) {
            Some(start) => Ok(self.stack.split_off(start)),
            None => damaged("the stack has too few values"),
        }
    }

    fn pop_mark(&mut self) -> Step<Vec<Id>> {
        match self.marks.pop().filter(|mark| *mark <= self.stack.len()) {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => damaged("there is no mark on the stack"),
        }
    }

    fn drop_top(&mut self) -> Step<()> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    fn get(&mut self, opcode: u8) -> Step<()> {
        let key = self.memo_key(opcode)?;
        match self.memo.get(&key) {
            Some(id) => {
                self.stack.push(*id);
                Ok(())
            }
            None => damaged(format!("nothing was remembered as number {key}")),
        }
    }

    fn put(&mut self, opcode: u8) -> Step<()> {
        let key = match opcode {
            0x94 => self.memo.len() as u64,
            _ => self.memo_key(opcode)?,
        };
        let id = self.top()?;
        self.memo.insert(key, id);
        Ok(())
    }

    fn memo_key(&mut self, opcode: u8) -> Step<u64> {
        match opcode {
            b'g' | b'p' => self.input.number_line(),
            b'h' | b'q' => self.input.byte().map(u64::from),
            _ => self.input.array().map(|bytes| u32::from_le_bytes(bytes).into()),
        }
    }

    fn append(&mut self, opcode: u8) -> Step<()> {
        let items = if opcode == b'a' { self.pop_many(1)? } else { self.pop_mark()? };
        let target = self.top()?;
        match self.node_mut(target)? {
            Node::List(list) | Node::Set(list) => list.extend(items),
            Node::Object(object) => object.items.extend(items),
            other => return damaged(format!("{} has nothing appended to it", other.kind())),
        }
        Ok(())
    }

    fn set_items(&mut self, opcode: u8) -> Step<()> {
        let items = if opcode == b's' { self.pop_many(2)? } else { self.pop_mark()? };
        let items = pairs(&items)?;
        let target = self.top()?;
        match self.node_mut(target)? {
            Node::Dict(entries) => entries.extend(items),
            Node::Object(object) => object.entries.extend(items),
            other => return damaged(format!("{} has no entries to set", other.kind())),
        }
        Ok(())
    }

    fn global(&mut self, opcode: u8) -> Step<()> {
        let name = if opcode == b'c' { self.named_in_lines()? } else { self.named_on_stack()? };
        self.push(Node::Global(name))
    }

    fn named_in_lines(&mut self) -> Step<Arc<str>> {
        let (module, name) = (self.input.text_line()?, self.input.text_line()?);
        self.name(&module, &name)
    }

    fn named_on_stack(&mut self) -> Step<Arc<str>> {
        let (name, module) = (self.pop()?, self.pop()?);
        let text = |id| match self.node(id)? {
            Node::Text(text) if text.len() <= LONGEST_NAME => Ok(text.clone()),
            _ => damaged("the name of a class is no text, or too long"),
        };
        let (module, name) = (text(module)?, text(name)?);
        self.name(&module, &name)
    }

    fn name(&mut self, module: &str, name: &str) -> Step<Arc<str>> {
        if module.len() + name.len() > LONGEST_NAME {
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

    /// What would call something: keeps what is called, and with what.
    fn call(&mut self, opcode: u8) -> Step<()> {
        let (class, arguments) = match opcode {
            b'i' => {
                let class = self.named_in_lines()?;
                let arguments = Node::Tuple(self.pop_mark()?);
                (class, self.add(arguments)?)
            }
            b'o' => {
                let mut arguments = self.pop_mark()?;
                if arguments.is_empty() {
                    return damaged("there is no class to make an object of");
                }
                let class = self.name_of(arguments.remove(0))?;
                (class, self.add(Node::Tuple(arguments))?)
            }
            _ => {
                // Named arguments say nothing of any model that is known.
                if opcode == 0x92 {
                    self.pop()?;
                }
                let (arguments, class) = (self.pop()?, self.pop()?);
                (self.name_of(class)?, arguments)
            }
        };
        let id = match opcode {
            b'R' => self.reduced(&class, arguments)?,
            _ => None,
        };
        let id = match id {
            Some(id) => id,
            None => self.object(class, Some(arguments))?,
        };
        self.stack.push(id);
        Ok(())
    }

    /// The name of a class or function; empty if it is itself the outcome of a call.
    pub(super) fn name_of(&self, id: Id) -> Step<Arc<str>> {
        Ok(match self.node(id)? {
            Node::Global(name) => Arc::clone(name),
            _ => Arc::default(),
        })
    }

    pub(super) fn object(&mut self, class: Arc<str>, arguments: Option<Id>) -> Step<Id> {
        let (items, entries) = (Vec::new(), Vec::new());
        self.add(Node::Object(Box::new(Object { class, arguments, state: None, items, entries })))
    }

    /// Gives the value at the top its state.
    fn build(&mut self) -> Step<()> {
        let (state, target) = (self.pop()?, self.top()?);
        match self.node_mut(target)? {
            Node::Object(object) => object.state = Some(state),
            // What a class that is such a value has beside it.
            Node::Dict(_) | Node::List(_) | Node::Set(_) => {}
            Node::ElementType(_) => return self.build_element_type(target, state),
            Node::Array(_) => return self.build_array(target, state),
            other => return damaged(format!("{} has no state", other.kind())),
        }
        self.read_array_behind(target)
    }

    /// The class of joblib's in whose place it reads an array that lies in the file behind it.
    fn read_array_behind(&mut self, wrapper: Id) -> Step<()> {
        let Node::Object(object) = self.node(wrapper)? else { return Ok(()) };
        let Some((module, class)) = object.class.rsplit_once('.') else { return Ok(()) };
        if !module.ends_with("numpy_pickle") && !module.ends_with("numpy_pickle_compat") {
            return Ok(());
        }
        match class {
            "NumpyArrayWrapper" if !self.inside_joblib => {}
            "NDArrayWrapper" | "ZNDArrayWrapper" => {
                return unsupported(
                    "an array in a file of its own, as joblib before 0.10 wrote it: load and save \
                     the model again with a later joblib",
                );
            }
            _ => return Ok(()),
        }
        let Some(state) = object.state else { return Ok(()) };
        let wrapped = self.wrapped(state)?;
        if wrapped.element.letter() == 'O' {
            let array = self.nested()?;
            self.pop()?;
            self.stack.push(array);
            return Ok(());
        }
        if wrapped.padded {
            let padding = self.input.byte()?;
            self.input.take(padding.into())?;
        }
        let Some(length) = wrapped.element.bytes_of(&wrapped.shape) else {
            return damaged("an array without a size");
        };
        let data = self.input.take(length)?;
        let Wrapped { element, shape, by_columns, .. } = wrapped;
        let Some(array) = Array::of_bytes(element, shape, by_columns, data) else {
            return damaged("an array that does not have the size it says");
        };
        *self.node_mut(wrapper)? = Node::Array(Box::new(array));
        Ok(())
    }

    /// What joblib notes of an array.
    fn wrapped(&self, state: Id) -> Step<Wrapped> {
        let (mut element, mut shape, mut by_columns, mut padded) = (None, None, false, false);
        let Node::Dict(entries) = self.node(state)? else {
            return damaged("an array of joblib's without its notes");
        };
        for (key, value) in entries {
            let key = match self.node(*key)? {
                Node::Text(text) => text.as_bytes(),
                Node::Bytes(bytes) => bytes,
                _ => continue,
            };
            match (key, self.node(*value)?) {
                (b"dtype", Node::ElementType(dtype)) => element = Some(Arc::clone(dtype)),
                (b"shape", Node::Tuple(dims)) => shape = Some(self.shape(dims)?),
                (b"order", Node::Text(order)) => by_columns = order == "F",
                (b"order", Node::Bytes(order)) => by_columns = order == "F",
                (b"numpy_array_alignment_bytes", Node::Int(_)) => padded = true,
                _ => {}
            }
        }
        match (element, shape) {
            (Some(element), Some(shape)) => Ok(Wrapped { element, shape, by_columns, padded }),
            _ => damaged("an array of joblib's without its dtype or its shape"),
        }
    }

    /// Runs the plain pickle of an array of objects, which lies in the midst of one of joblib's.
    fn nested(&mut self) -> Step<Id> {
        let stack = std::mem::take(&mut self.stack);
        let marks = std::mem::take(&mut self.marks);
        let memo = std::mem::take(&mut self.memo);
        self.inside_joblib = true;
        let outcome = self.run();
        self.inside_joblib = false;
        (self.stack, self.marks, self.memo) = (stack, marks, memo);
        outcome.map_err(|error| Fault {
            code: error.code(),
            why: format!("the array behind it: {}", error.message()).into(),
        })
    }
}

/// What joblib notes of an array that lies behind its notes.
struct Wrapped {
    element: Arc<ElementType>,
    shape: Vec<usize>,
    by_columns: bool,
    /// Whether a byte says how much filling comes before the data.
    padded: bool,
}

fn describe(fault: &Fault, opcode: u8, at: usize) -> Error {
    let why = &fault.why;
    let what = if fault.code == Code::DataLoss { "is damaged" } else { "can not be read" };
    let shown = match opcode.is_ascii_graphic() {
        true => format!("{:?}", char::from(opcode)),
        false => format!("{opcode:#04x}"),
    };
    Error::new(fault.code, format!("the pickle {what} at byte {at} (opcode {shown}): {why}"))
}

fn decimal(line: &[u8]) -> Step<Node> {
    let digits = line.trim_ascii();
    let digits = digits.strip_suffix(b"L").unwrap_or(digits);
    let unsigned = digits.strip_prefix(b"-").unwrap_or(digits);
    if unsigned.is_empty() || !unsigned.iter().all(u8::is_ascii_digit) {
        return damaged("a line that should be a number is none");
    }
    let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    Ok(number.map_or(Node::Huge, Node::Int))
}

fn integer(bytes: &[u8]) -> Node {
    input::integer(bytes).map_or(Node::Huge, Node::Int)
}

fn pairs(items: &[Id]) -> Step<Vec<(Id, Id)>> {
    let (pairs, rest) = items.as_chunks::<2>();
    if !rest.is_empty() {
        return damaged("a key has no value");
    }
    Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
}
