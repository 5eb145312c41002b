//! The operators of TensorFlow Lite, and what each does to the rows of a batch. An operator that is not here is
//! unknown: models with it are not joined by default.
//!
//! Operators with weights of 8 bits and inputs of floats quantize each row of their input by itself
//! (`BatchQuantizeFloats` of TensorFlow Lite's kernels).

use tensorserve_rows::integers::{Integers, arithmetic};
use tensorserve_rows::plain::{elementwise, plain_flow};
use tensorserve_rows::{OperationResults, Outcome, Stop, Value, compute, mixed, shapes, unknown};

use super::call::LiteRtCall;
use super::ops;

type LiteRtRuleFn = fn(&LiteRtCall) -> OperationResults;

/// What an operator does.
#[derive(Clone, Copy)]
enum LiteRtRule {
    /// Each element comes from the elements at the same place of all inputs, which are broadcast.
    Elements,
    /// As [`LiteRtRule::Elements`], of small integers that may be sizes.
    Integers(Integers),
    /// The operator works along the last dimension, as the text says.
    Last(&'static str),
    /// The operator works on all elements together, as the text says.
    Whole(&'static str),
    /// The operator gives other results in a batch, whatever its inputs are.
    Mixes(&'static str),
    /// A function gives its only result.
    By(fn(&LiteRtCall) -> Outcome),
    /// A function gives its results.
    Each(LiteRtRuleFn),
}

use LiteRtRule::{By, Each, Elements, Last, Mixes, Whole};

const NORMALIZES: &str = "normalizes over the rows of the batch";
const RANDOM: &str = "draws random numbers, which differ with the place in the batch";
const SELECTS: &str = "keeps a number of elements that depends on all rows";
const SCATTERS: &str = "puts elements of rows in places that other elements may have";
const BOXES: &str = "compares boxes of different rows";
const SEGMENTS: &str = "combines rows of the batch by their number";

/// Number, name and rule.
const OPERATORS: &[(i32, &str, LiteRtRule)] = &[
    // Each element by itself.
    (6, "DEQUANTIZE", Elements),
    (8, "FLOOR", Elements),
    (14, "LOGISTIC", Elements),
    (19, "RELU", Elements),
    (20, "RELU_N1_TO_1", Elements),
    (21, "RELU6", Elements),
    (28, "TANH", Elements),
    (42, "DIV", Elements),
    (47, "EXP", Elements),
    (54, "PRELU", Elements),
    (59, "NEG", Elements),
    (66, "SIN", Elements),
    (73, "LOG", Elements),
    (75, "SQRT", Elements),
    (76, "RSQRT", Elements),
    (78, "POW", Elements),
    (80, "FAKE_QUANT", Elements),
    (87, "LOGICAL_NOT", Elements),
    (92, "SQUARE", Elements),
    (93, "ZEROS_LIKE", Elements),
    (95, "FLOOR_MOD", Elements),
    (98, "LEAKY_RELU", Elements),
    (99, "SQUARED_DIFFERENCE", Elements),
    (101, "ABS", Elements),
    (104, "CEIL", Elements),
    (106, "ADD_N", Elements),
    (108, "COS", Elements),
    (111, "ELU", Elements),
    (114, "QUANTIZE", Elements), // By the scale of its output, which is fixed.
    (116, "ROUND", Elements),
    (117, "HARD_SWISH", Elements),
    (123, "SELECT_V2", Elements),
    (147, "BUCKETIZE", Elements),
    (150, "GELU", Elements),
    (152, "RELU_0_TO_1", Elements),
    (156, "ATAN2", Elements),
    (158, "SIGN", Elements),
    (160, "BITWISE_XOR", Elements),
    (161, "RIGHT_SHIFT", Elements),
    // Small integers, of which shapes are made.
    (0, "ADD", LiteRtRule::Integers(Integers::Add)),
    (18, "MUL", LiteRtRule::Integers(Integers::Multiply)),
    (41, "SUB", LiteRtRule::Integers(Integers::Subtract)),
    (55, "MAXIMUM", LiteRtRule::Integers(Integers::Maximum)),
    (57, "MINIMUM", LiteRtRule::Integers(Integers::Minimum)),
    (58, "LESS", LiteRtRule::Integers(Integers::Less)),
    (61, "GREATER", LiteRtRule::Integers(Integers::Greater)),
    (62, "GREATER_EQUAL", LiteRtRule::Integers(Integers::GreaterEqual)),
    (63, "LESS_EQUAL", LiteRtRule::Integers(Integers::LessEqual)),
    (71, "EQUAL", LiteRtRule::Integers(Integers::Equal)),
    (72, "NOT_EQUAL", LiteRtRule::Integers(Integers::NotEqual)),
    (84, "LOGICAL_OR", LiteRtRule::Integers(Integers::Or)),
    (86, "LOGICAL_AND", LiteRtRule::Integers(Integers::And)),
    (90, "FLOOR_DIV", LiteRtRule::Integers(Integers::FloorDivide)),
    (53, "CAST", By(ops::cast)),
    // Shapes. What they do to the dimension of the rows is followed.
    (77, "SHAPE", By(|call| shapes::shape_of(call.input(0)?))),
    (110, "RANK", By(|call| shapes::rank_of(call.input(0)?))),
    (22, "RESHAPE", By(ops::reshape)),
    (39, "TRANSPOSE", By(|call| shapes::transpose(call.input(0)?, call.input(1)?))),
    (43, "SQUEEZE", By(|call| shapes::squeeze(call.input(0)?, &call.ints(0)?))),
    (
        70,
        "EXPAND_DIMS",
        By(|call| shapes::expand_dims(call.input(0)?, call.input(1)?.number("a dimension")?)),
    ),
    (69, "TILE", By(|call| shapes::tile(call.input(0)?, call.input(1)?))),
    (94, "FILL", By(ops::fill)),
    (
        96,
        "RANGE",
        By(|call| shapes::range(call.input(0)?, call.input(1)?, call.input(2)?, call.symbols())),
    ),
    (
        130,
        "BROADCAST_TO",
        By(|call| shapes::broadcast_to(call.input(0)?, call.input(1)?, call.symbols())),
    ),
    (2, "CONCATENATION", By(ops::concat)),
    (83, "PACK", By(ops::pack)),
    (88, "UNPACK", Each(ops::unpack)),
    (49, "SPLIT", Each(ops::split)),
    (102, "SPLIT_V", Each(ops::split_sizes)),
    (45, "STRIDED_SLICE", By(ops::strided_slice)),
    (65, "SLICE", By(ops::slice)),
    (151, "DYNAMIC_UPDATE_SLICE", By(ops::update_slice)),
    (34, "PAD", By(ops::pad)),
    (60, "PADV2", By(ops::pad)),
    (100, "MIRROR_PAD", By(ops::pad)),
    (64, "SELECT", By(ops::select)),
    // Over dimensions: those of the rows are refused.
    (40, "MEAN", By(ops::reduce)),
    (74, "SUM", By(ops::reduce)),
    (81, "REDUCE_PROD", By(ops::reduce_product)),
    (82, "REDUCE_MAX", By(ops::reduce)),
    (89, "REDUCE_MIN", By(ops::reduce)),
    (91, "REDUCE_ANY", By(ops::reduce)),
    (56, "ARG_MAX", By(ops::arg_reduce)),
    (79, "ARG_MIN", By(ops::arg_reduce)),
    // Along a dimension.
    (11, "L2_NORMALIZATION", Last(NORMALIZES)),
    (25, "SOFTMAX", Last(NORMALIZES)),
    (50, "LOG_SOFTMAX", Last(NORMALIZES)),
    (128, "CUMSUM", By(ops::cumulate)),
    (105, "REVERSE_V2", By(ops::reverse)),
    (48, "TOPK_V2", Each(ops::top_k)),
    // Products: a sum over rows, or a product of two rows, is refused.
    (9, "FULLY_CONNECTED", By(ops::fully_connected)),
    (126, "BATCH_MATMUL", By(ops::batch_matmul)),
    // Elements by an index: the rows of a batch may not be picked by one.
    (36, "GATHER", By(ops::gather)),
    (107, "GATHER_ND", By(|call| compute::gather_nd(call.input(0)?, call.input(1)?, 0))),
    (7, "EMBEDDING_LOOKUP", By(ops::embedding)),
    (85, "ONE_HOT", By(ops::one_hot)),
    // Each image along dimension 0 by itself.
    (1, "AVERAGE_POOL_2D", By(ops::pool)),
    (12, "L2_POOL_2D", By(ops::pool)),
    (17, "MAX_POOL_2D", By(ops::pool)),
    (3, "CONV_2D", By(ops::convolution)),
    (4, "DEPTHWISE_CONV_2D", By(ops::depthwise_convolution)),
    (67, "TRANSPOSE_CONV", By(ops::transposed_convolution)),
    (132, "CONV_3D", By(ops::images_of_other_shape)),
    (13, "LOCAL_RESPONSE_NORMALIZATION", By(ops::images)),
    (5, "DEPTH_TO_SPACE", By(ops::images_of_other_shape)),
    (26, "SPACE_TO_DEPTH", By(ops::images_of_other_shape)),
    (23, "RESIZE_BILINEAR", By(ops::resize)),
    (97, "RESIZE_NEAREST_NEIGHBOR", By(ops::resize)),
    (37, "BATCH_TO_SPACE_ND", By(ops::from_batches)),
    (38, "SPACE_TO_BATCH_ND", By(ops::to_batches)),
    // Weights that are stored without their zeros.
    (124, "DENSIFY", Whole("takes sparse weights")),
    // Elements that are kept, counted or put somewhere by their values.
    (103, "UNIQUE", Each(|call| several(call, SELECTS))),
    (109, "WHERE", Whole(SELECTS)),
    (120, "NON_MAX_SUPPRESSION_V4", Each(|call| several(call, BOXES))),
    (121, "NON_MAX_SUPPRESSION_V5", Each(|call| several(call, BOXES))),
    (122, "SCATTER_ND", Whole(SCATTERS)),
    (68, "SPARSE_TO_DENSE", Whole(SCATTERS)),
    (125, "SEGMENT_SUM", Whole(SEGMENTS)),
    (153, "UNSORTED_SEGMENT_PROD", Whole(SEGMENTS)),
    (154, "UNSORTED_SEGMENT_MAX", Whole(SEGMENTS)),
    (155, "UNSORTED_SEGMENT_SUM", Whole(SEGMENTS)),
    (157, "UNSORTED_SEGMENT_MIN", Whole(SEGMENTS)),
    // Random numbers.
    (146, "RANDOM_STANDARD_NORMAL", Mixes(RANDOM)),
    (148, "RANDOM_UNIFORM", Mixes(RANDOM)),
    (149, "MULTINOMIAL", Mixes(RANDOM)),
    // Conditions and loops.
    (IF, "IF", Each(ops::choose)),
    (WHILE, "WHILE", Each(ops::repeat)),
];

const IF: i32 = crate::schema::IF;
const WHILE: i32 = crate::schema::WHILE;

fn find(code: i32) -> Option<(&'static str, LiteRtRule)> {
    let found = OPERATORS.iter().find(|(its, _, _)| *its == code);
    found.map(|(_, name, rule)| (*name, *rule))
}

/// The name of an operator.
pub(super) fn name(code: i32) -> String {
    find(code).map_or_else(|| format!("operator {code}"), |(name, _)| name.to_owned())
}

/// Whether it runs other subgraphs: they may not use an input of which nothing is known.
pub(super) fn is_call(code: i32) -> bool {
    [IF, WHILE].contains(&code)
}

/// The results of an operator.
pub(super) fn apply(call: &LiteRtCall) -> Result<Vec<Value>, Stop> {
    let Some((_, rule)) = find(call.code) else {
        return unknown("has no rule in the analysis of rows");
    };
    let symbols = call.symbols();
    let all = || call.from(0);
    let value = match rule {
        Elements => elementwise(&all(), symbols)?,
        LiteRtRule::Integers(op) => arithmetic(op, call.input(0)?, call.input(1)?, symbols)?,
        Last(does) => compute::along(call.input(0)?, -1, does)?,
        Whole(does) => compute::whole(&all(), does)?,
        Mixes(does) => return mixed(does),
        By(function) => function(call).or_else(|stop| without_rows(call, stop))?,
        Each(function) => return function(call),
    };
    Ok(vec![value])
}

/// The result of an operator that depends on its inputs alone, if none of them has rows.
fn without_rows(call: &LiteRtCall, stop: Stop) -> Outcome {
    match plain_flow(&call.from(0)) {
        Ok(Some(flow)) => Ok(Value::new(flow, None)),
        _ => Err(stop),
    }
}

/// All results of an operator on all elements together.
fn several(call: &LiteRtCall, does: &str) -> Result<Vec<Value>, Stop> {
    Ok(vec![compute::whole(&call.from(0), does)?; call.outputs.min(1 << 12)])
}
