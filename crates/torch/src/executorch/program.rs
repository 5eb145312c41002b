//! Reads a program's file without libexecutorch: its methods, with their inputs and outputs, and what it needs
//! of the library. The rest of the file is verified by the library.

use std::collections::BTreeSet;

use super::schema::{self, container, delegate, extra, operator, plan, program, tensor, value};
use crate::package::names_of;
use crate::types;
use tensorserve_codec::flatbuffer::{FlatFile, Table};
use tensorserve_tensor::DType;
use tensorserve_tensor::error::{Code, Error, Result};

/// The version of the schema.
const SCHEMA_VERSION: u32 = 0;

/// The most methods of a program, and inputs or outputs of a method.
const MOST_METHODS: usize = 256;
const MOST_PORTS: usize = 1024;

/// The most memory in bytes that a method may plan for its values. The system provides what is used.
const MOST_PLANNED: u64 = 1 << 40;

/// The highest rank of a tensor in libexecutorch (`kTensorDimensionLimit`).
const MOST_DIMENSIONS: usize = 16;

/// The backends of the library in Python's wheel.
const BACKENDS: [&str; 1] = ["XnnpackBackend"];

/// A method that takes and returns tensors.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProgramMethod {
    pub(super) name: String,
    pub(super) inputs: Vec<MethodPort>,
    pub(super) outputs: Vec<MethodPort>,
    /// Whether runs change the method's variables, or its inputs.
    pub(super) writes_state: bool,
    /// Whether runs draw random numbers.
    pub(super) is_random: bool,
    /// Bytes of the memory for its values.
    pub(super) planned: u64,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MethodPort {
    pub(super) name: String,
    /// Its number among the inputs or outputs of the method, some of which may be no tensors.
    pub(super) place: usize,
    pub(super) dtype: DType,
    /// The size of each dimension; the largest one, if the shape varies.
    pub(super) sizes: Vec<i64>,
    /// Whether the shape varies. Which of its dimensions do is not in the file.
    pub(super) varies: bool,
}

fn damaged(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Code::DataLoss, message)
}

fn unsupported(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Code::Unimplemented, message)
}

/// Reads the methods of a program that take and return tensors.
///
/// # Errors
/// [`Code::DataLoss`] if it is damaged, [`Code::Unimplemented`] if it is not served.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<ProgramMethod>> {
    if bytes.get(4..8) != Some(schema::IDENTIFIER) {
        return Err(damaged("it does not begin as a program of ExecuTorch (ET12)"));
    }
    let file = FlatFile::new(bytes);
    let root = Table::root(&file)?;
    let version = root.uint(program::VERSION)?;
    if version != SCHEMA_VERSION {
        return Err(unsupported(format!("it has version {version} of the format, not 0")));
    }
    let plans = root.vector(program::EXECUTION_PLAN)?;
    if plans.len() > MOST_METHODS {
        return Err(unsupported(format!("it has more than {MOST_METHODS} methods")));
    }
    let mut methods: Vec<ProgramMethod> = Vec::new();
    for table in plans.tables()? {
        let method = read_method(&table)?;
        if methods.iter().any(|known| known.name == method.name) {
            return Err(damaged(format!("it has two methods {:?}", method.name)));
        }
        methods.push(method);
    }
    // Exporters add methods that return constants, such as the size of a vocabulary.
    methods.retain(|method| !method.inputs.is_empty() && !method.outputs.is_empty());
    if methods.is_empty() {
        return Err(unsupported("it has no method that takes tensors and returns tensors"));
    }
    Ok(methods)
}

fn read_method(table: &Table) -> Result<ProgramMethod> {
    let name = table.text(plan::NAME)?;
    if name.is_empty() || name.contains('\0') {
        return Err(damaged("it has a method without a name"));
    }
    let values = table.vector(plan::VALUES)?.tables()?;
    let (inputs, outputs) = (table.ints(plan::INPUTS)?, table.ints(plan::OUTPUTS)?);
    let (input_names, output_names) = names(table, inputs.len(), outputs.len())?;
    let inputs = ports("input", &inputs, &values, &input_names)?;
    let outputs = ports("output", &outputs, &values, &output_names)?;
    check_external(&values)?;
    check_backends(table, &name)?;
    let operators = operators(table)?;
    let is_written = |name: &String| {
        let own = name.split("::").last().unwrap_or_default();
        let own = own.split('.').next().unwrap_or_default();
        own.ends_with('_') || own.starts_with("update_cache")
    };
    let draws = ["rand", "bernoulli", "dropout", "multinomial", "normal_"];
    let mut planned = 0_u64;
    for size in table.longs(plan::BUFFER_SIZES)? {
        let size = u64::try_from(size).map_err(|_| damaged("it has a buffer of negative size"))?;
        planned = planned.saturating_add(size);
    }
    if planned > MOST_PLANNED {
        return Err(damaged(format!("its method {name:?} plans {planned} bytes of memory")));
    }
    Ok(ProgramMethod {
        writes_state: operators.iter().any(is_written),
        is_random: operators.iter().any(|name| draws.iter().any(|draw| name.contains(draw))),
        name,
        inputs,
        outputs,
        planned,
    })
}

/// The names of a method's operators, with their overloads.
fn operators(table: &Table) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for table in table.vector(plan::OPERATORS)?.tables()? {
        let (name, overload) = (table.text(operator::NAME)?, table.text(operator::OVERLOAD)?);
        names.insert(format!("{name}.{overload}"));
    }
    Ok(names)
}

/// The names of the inputs and outputs: those of the exported call, or their places.
fn names(table: &Table, inputs: usize, outputs: usize) -> Result<(Vec<String>, Vec<String>)> {
    let by_place = |role: &str, count: usize| match count {
        1 => vec![role.to_owned()],
        _ => (0..count).map(|place| format!("{role}_{place}")).collect::<Vec<String>>(),
    };
    let named = match table.table(plan::CONTAINER)? {
        Some(table) => names_of(&table.text(container::INPUTS)?, &table.text(container::OUTPUTS)?),
        None => None,
    };
    let (input_names, output_names) = named.unwrap_or_default();
    let or_by_place = |names: Vec<String>, role: &str, count: usize| {
        let distinct: BTreeSet<&String> = names.iter().collect();
        match names.len() == count && distinct.len() == count {
            true => names,
            false => by_place(role, count),
        }
    };
    Ok((or_by_place(input_names, "input", inputs), or_by_place(output_names, "output", outputs)))
}

/// The tensors among the inputs or outputs of a method.
fn ports(
    role: &str,
    indices: &[i32],
    values: &[Table],
    names: &[String],
) -> Result<Vec<MethodPort>> {
    if indices.len() > MOST_PORTS {
        return Err(unsupported(format!("it has a method with more than {MOST_PORTS} {role}s")));
    }
    let mut ports = Vec::new();
    for ((place, index), name) in indices.iter().enumerate().zip(names) {
        let value = usize::try_from(*index).ok().and_then(|index| values.get(index));
        let value = value.ok_or_else(|| {
            damaged(format!("{role} {name:?} is value {index} of {}", values.len()))
        })?;
        if value.byte(value::KIND, 0)? != value::TENSOR {
            continue;
        }
        let tensor = value.table(value::VALUE)?;
        let tensor = tensor.ok_or_else(|| damaged(format!("{role} {name:?} has no content")))?;
        ports.push(port(role, name, place, &tensor)?);
    }
    Ok(ports)
}

fn port(role: &str, name: &str, place: usize, table: &Table) -> Result<MethodPort> {
    let number = table.byte(tensor::SCALAR_TYPE, 0)?;
    let dtype = types::of_number(i32::from(number)).ok_or_else(|| {
        unsupported(format!(
            "{role} {name:?} has elements of type {number}, which is not supported"
        ))
    })?;
    let sizes: Vec<i64> = table.ints(tensor::SIZES)?.into_iter().map(i64::from).collect();
    let order = table.vector(tensor::DIM_ORDER)?.numbers(u8::from_le_bytes)?;
    let axes: BTreeSet<u8> = order.iter().copied().collect();
    let is_order = order.len() == sizes.len()
        && axes.len() == order.len()
        && order.iter().all(|axis| usize::from(*axis) < sizes.len());
    if sizes.len() > MOST_DIMENSIONS || !is_order || sizes.iter().any(|size| *size < 0) {
        return Err(damaged(format!("{role} {name:?} has an invalid shape")));
    }
    let varies = table.byte(tensor::DYNAMISM, 0)? != 0;
    Ok(MethodPort { name: name.to_owned(), place, dtype, sizes, varies })
}

/// Refuses weights that are in another file.
fn check_external(values: &[Table]) -> Result<()> {
    for value in values {
        if value.byte(value::KIND, 0)? != value::TENSOR {
            continue;
        }
        let Some(table) = value.table(value::VALUE)? else { continue };
        let Some(table) = table.table(tensor::EXTRA)? else { continue };
        if table.byte(extra::LOCATION, 0)? == extra::EXTERNAL {
            let name = table.text(extra::NAME)?;
            return Err(unsupported(format!(
                "its tensor {name:?} is in another file (.ptd), which is not supported: export it \
                 without external_constants"
            )));
        }
    }
    Ok(())
}

/// Refuses what is compiled for another processor.
fn check_backends(table: &Table, method: &str) -> Result<()> {
    let mut others = BTreeSet::new();
    for table in table.vector(plan::DELEGATES)?.tables()? {
        let id = table.text(delegate::ID)?;
        if !BACKENDS.contains(&id.as_str()) {
            others.insert(id);
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = others.iter().map(String::as_str).collect();
    Err(unsupported(format!(
        "its method {method:?} is compiled for {}, which only devices with that backend run; here runs what is \
         exported without a partitioner, or with XnnpackPartitioner: \
         `to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])`",
        names.join(" and ")
    )))
}
