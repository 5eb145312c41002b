//! The operations of TensorFlow, and what each does to the rows of a batch. An operation that is not here is
//! unknown: graphs with it are not joined by default.

use std::collections::HashMap;
use std::sync::OnceLock;

use tensorserve_rows::integers::Integers;
use tensorserve_rows::plain::{elementwise, plain_flow};
use tensorserve_rows::{OperationResults, Outcome, Stop, Value, compute, mixed, unknown};

use super::call::TensorFlowCall;
use super::{control, features, images, rules, slicing};

/// Gives the results of an operation.
type TensorFlowRuleFn = fn(&TensorFlowCall) -> OperationResults;

/// What an operation does.
#[derive(Clone, Copy)]
enum TensorFlowRule {
    /// Each element comes from the elements at the same place of all inputs, which are broadcast.
    Elements,
    /// As [`TensorFlowRule::Elements`], of small integers that may be sizes.
    Integers(Integers),
    /// Its first input, unchanged.
    Keeps,
    /// Something that is the same for every batch.
    Constant,
    /// The operation works along the last dimension, as the text says.
    Last(&'static str),
    /// The operation works on all elements together, as the text says.
    Whole(&'static str),
    /// The operation gives other results in a batch, whatever its inputs are.
    Mixes(&'static str),
    /// A function gives its only result.
    By(fn(&TensorFlowCall) -> Outcome),
    /// A function gives its results.
    Each(TensorFlowRuleFn),
}

use TensorFlowRule::{By, Constant, Each, Elements, Keeps, Last, Mixes, Whole};

const RANDOM: &str = "draws random numbers, which differ with the place in the batch";
const BOXES: &str = "compares boxes of different rows";
const SELECTS: &str = "keeps a number of elements that depends on all rows";
const SCATTERS: &str = "puts elements of rows in places that other elements may have";
const DECODES: &str = "decodes one file";
const SEVERAL: &str = "works with elements of rows of various lengths";
const RANGE: &str = "quantizes by the least and the greatest element of the batch";

/// Operations on each element: the same function of the elements at one place. Broadcast inputs keep their
/// place from the end.
const ELEMENTS: &[&str] = &[
    "Abs",
    "Acos",
    "Acosh",
    "AddN",
    "ApproximateEqual",
    "AccumulateNV2",
    "Angle",
    "Asin",
    "Asinh",
    "Atan",
    "Atan2",
    "Atanh",
    "BesselI0",
    "BesselI0e",
    "BesselI1",
    "BesselI1e",
    "BesselJ0",
    "BesselJ1",
    "BesselK0",
    "BesselK0e",
    "BesselK1",
    "BesselK1e",
    "BesselY0",
    "BesselY1",
    "Betainc",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Bucketize",
    "Ceil",
    "ClipByValue",
    "Complex",
    "ComplexAbs",
    "Conj",
    "Cos",
    "Cosh",
    "Dawsn",
    "Digamma",
    "Div",
    "DivNoNan",
    "Elu",
    "Erf",
    "Erfc",
    "Erfinv",
    "Exp",
    "Expint",
    "Expm1",
    "FakeQuantWithMinMaxArgs",
    "FakeQuantWithMinMaxVars",
    "Floor",
    "FloorMod",
    "FresnelCos",
    "FresnelSin",
    "Igamma",
    "IgammaGradA",
    "Igammac",
    "Imag",
    "Inv",
    "Invert",
    "IsFinite",
    "IsInf",
    "IsNan",
    "LeakyRelu",
    "LeftShift",
    "Lgamma",
    "Log",
    "Log1p",
    "LogicalNot",
    "Mod",
    "MulNoNan",
    "Ndtri",
    "Neg",
    "NextAfter",
    "OnesLike",
    "Polygamma",
    "PopulationCount",
    "Pow",
    "Real",
    "RealDiv",
    "Reciprocal",
    "Relu",
    "Relu6",
    "RightShift",
    "Rint",
    "Round",
    "Rsqrt",
    "SelectV2",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Spence",
    "Sqrt",
    "Square",
    "SquaredDifference",
    "Tan",
    "Tanh",
    "TruncateDiv",
    "TruncateMod",
    "Xdivy",
    "Xlog1py",
    "Xlogy",
    "ZerosLike",
    "Zeta",
    // Texts.
    "AsString",
    "DecodeBase64",
    "DecodeCompressed",
    "DecodeJSONExample",
    "EncodeBase64",
    "RegexFullMatch",
    "RegexReplace",
    "StaticRegexFullMatch",
    "StaticRegexReplace",
    "StringJoin",
    "StringLength",
    "StringLower",
    "StringStrip",
    "StringToHashBucket",
    "StringToHashBucketFast",
    "StringToHashBucketStrong",
    "StringToNumber",
    "StringUpper",
    "Substr",
    "UnicodeScript",
    "UnicodeTranscode",
    // Colours of pixels: the contrast is one of each element, with the same factor.
    "AdjustHue",
    "AdjustSaturation",
];

/// All other operations.
const OTHERS: &[(&str, TensorFlowRule)] = &[
    // Operations that pass a tensor on: what they check or mark does not change it.
    ("Identity", Keeps),
    ("StopGradient", Keeps),
    ("PreventGradient", Keeps),
    ("Snapshot", Keeps),
    ("DeepCopy", Keeps),
    ("GuaranteeConst", Keeps),
    ("CheckNumerics", Keeps),
    ("CheckNumericsV2", Keeps),
    ("EnsureShape", Keeps),
    ("PlaceholderWithDefault", Keeps), // An input that no request has.
    ("DisableCopyOnRead", Keeps),
    ("ReadVariableOp", Keeps), // A handle stands for what the variable contains.
    ("RefIdentity", Keeps),
    ("OptionalGetValue", Whole("takes an optional value")),
    ("IdentityN", Each(|call| Ok(call.inputs.clone()))),
    // Results that are the same for every batch: variables, tables and constants.
    ("Const", By(rules::const_value)),
    ("VarHandleOp", By(rules::variable)),
    ("VariableV2", By(rules::variable)),
    ("Variable", By(rules::variable)),
    ("VariableShape", By(rules::shape)),
    ("VarIsInitializedOp", Constant),
    ("IsVariableInitialized", Constant),
    ("HashTable", Constant),
    ("HashTableV2", Constant),
    ("MutableHashTable", Constant),
    ("MutableHashTableV2", Constant),
    ("MutableDenseHashTableV2", Constant),
    ("LookupTableSize", By(features::constant_scalar)),
    ("LookupTableSizeV2", By(features::constant_scalar)),
    ("LookupTableExportV2", Constant),
    ("StatelessRandomGetAlg", Constant),
    ("LookupTableFind", By(features::table_find)),
    ("LookupTableFindV2", By(features::table_find)),
    // No results but errors, after which each request runs alone.
    ("NoOp", Constant),
    ("Assert", Constant),
    ("Print", Keeps),
    // Small integers, of which shapes are made.
    ("Add", TensorFlowRule::Integers(Integers::Add)),
    ("AddV2", TensorFlowRule::Integers(Integers::Add)),
    ("Sub", TensorFlowRule::Integers(Integers::Subtract)),
    ("Mul", TensorFlowRule::Integers(Integers::Multiply)),
    ("FloorDiv", TensorFlowRule::Integers(Integers::FloorDivide)),
    ("Maximum", TensorFlowRule::Integers(Integers::Maximum)),
    ("Minimum", TensorFlowRule::Integers(Integers::Minimum)),
    ("Less", TensorFlowRule::Integers(Integers::Less)),
    ("Greater", TensorFlowRule::Integers(Integers::Greater)),
    ("LessEqual", TensorFlowRule::Integers(Integers::LessEqual)),
    ("GreaterEqual", TensorFlowRule::Integers(Integers::GreaterEqual)),
    ("Equal", TensorFlowRule::Integers(Integers::Equal)),
    ("NotEqual", TensorFlowRule::Integers(Integers::NotEqual)),
    ("LogicalAnd", TensorFlowRule::Integers(Integers::And)),
    ("LogicalOr", TensorFlowRule::Integers(Integers::Or)),
    ("Cast", By(rules::cast)),
    // Shapes. What they do to the dimension of the rows is followed.
    ("Shape", By(rules::shape)),
    ("ShapeN", Each(rules::shapes_of)),
    ("Rank", By(|call| tensorserve_rows::shapes::rank_of(call.input(0)?))),
    ("Size", By(|call| tensorserve_rows::shapes::size_of(call.input(0)?))),
    ("Reshape", By(rules::reshape)),
    ("Transpose", By(rules::transpose)),
    ("ExpandDims", By(rules::expand_dims)),
    ("Squeeze", By(rules::squeeze)),
    ("Fill", By(rules::fill)),
    ("Range", By(rules::range)),
    ("Tile", By(rules::tile)),
    ("BroadcastTo", By(rules::broadcast_to)),
    ("BroadcastArgs", By(rules::broadcast_args)),
    ("ConcatV2", By(rules::concat)),
    ("Concat", By(rules::concat_from_first)),
    ("Pack", By(rules::pack)),
    ("Unpack", Each(slicing::unpack)),
    ("Split", Each(slicing::split)),
    ("SplitV", Each(slicing::split_sizes)),
    ("Slice", By(slicing::slice)),
    ("StridedSlice", By(slicing::strided_slice)),
    ("Pad", By(slicing::pad)),
    ("PadV2", By(slicing::pad)),
    ("MirrorPad", By(slicing::pad)),
    // A choice for each element.
    ("Select", By(rules::select)),
    // Over dimensions: those of the rows are refused.
    ("Sum", By(rules::reduce)),
    ("Prod", By(rules::reduce)),
    ("Mean", By(rules::reduce)),
    ("Max", By(rules::reduce)),
    ("Min", By(rules::reduce)),
    ("All", By(rules::reduce)),
    ("Any", By(rules::reduce)),
    ("EuclideanNorm", By(rules::reduce)),
    ("ReduceJoin", By(rules::reduce)),
    ("ArgMax", By(rules::arg_reduce)),
    ("ArgMin", By(rules::arg_reduce)),
    ("L2Loss", Whole("adds up the rows")),
    // Along a dimension.
    ("Softmax", Last("normalizes over the rows of the batch")),
    ("LogSoftmax", Last("normalizes over the rows of the batch")),
    ("HSVToRGB", Last("takes rows as colours")),
    ("RGBToHSV", Last("takes rows as colours")),
    ("FakeQuantWithMinMaxVarsPerChannel", By(|call| elementwise(&call.all(), call.symbols()))),
    ("Cumsum", By(rules::along_second_input)),
    ("Cumprod", By(rules::along_second_input)),
    ("CumulativeLogsumexp", By(rules::along_second_input)),
    ("ReverseV2", By(rules::reverse)),
    ("Roll", By(rules::roll)),
    ("ReverseSequence", By(rules::reverse_sequence)),
    ("TopKV2", Each(rules::top_k)),
    ("TopK", Each(rules::top_k)),
    // Products: a sum over rows, or a product of two rows, is refused.
    ("MatMul", By(rules::matmul)),
    ("BatchMatMul", By(rules::matmul)),
    ("BatchMatMulV2", By(rules::matmul)),
    ("BatchMatMulV3", By(rules::matmul)),
    ("Einsum", By(rules::einsum)),
    ("BiasAdd", By(rules::bias_add)),
    ("BiasAddV1", By(rules::bias_add)),
    // Elements by an index: the rows of a batch may not be picked by one.
    ("Gather", By(rules::gather)),
    ("GatherV2", By(rules::gather)),
    ("ResourceGather", By(rules::gather)),
    ("GatherNd", By(rules::gather_nd)),
    ("ResourceGatherNd", By(rules::gather_nd)),
    ("OneHot", By(rules::one_hot)),
    ("LowerBound", By(features::search)),
    ("UpperBound", By(features::search)),
    // Each image, sound or volume along dimension 0 by itself.
    ("Conv2D", By(images::convolution)),
    ("Conv3D", By(images::convolution)),
    ("DepthwiseConv2dNative", By(images::convolution)),
    ("Conv2DBackpropInput", By(images::transposed_convolution)),
    ("Conv3DBackpropInputV2", By(images::transposed_convolution)),
    ("DepthwiseConv2dNativeBackpropInput", By(images::transposed_convolution)),
    ("MaxPool", By(images::pool)),
    ("AvgPool", By(images::pool)),
    ("MaxPool3D", By(images::pool)),
    ("AvgPool3D", By(images::pool)),
    ("MaxPoolWithArgmax", Each(images::pool_with_places)),
    ("Dilation2D", By(images::images_of_other_shape)),
    ("LRN", By(images::images)),
    ("AdjustContrastv2", By(images::contrast)),
    ("SpaceToDepth", By(images::images_of_other_shape)),
    ("DepthToSpace", By(images::images_of_other_shape)),
    ("ExtractImagePatches", By(images::images_of_other_shape)),
    ("ScaleAndTranslate", By(images::images_of_other_shape)),
    ("ResizeBilinear", By(images::resize)),
    ("ResizeNearestNeighbor", By(images::resize)),
    ("ResizeBicubic", By(images::resize)),
    ("ResizeArea", By(images::resize)),
    // Blocks of images become images of their own for a while.
    ("SpaceToBatchND", By(images::to_batches)),
    ("BatchToSpaceND", By(images::from_batches)),
    ("FusedBatchNorm", Each(images::batch_norm)),
    ("FusedBatchNormV2", Each(images::batch_norm)),
    ("FusedBatchNormV3", Each(images::batch_norm)),
    ("CombinedNonMaxSuppression", Each(images::combined_suppression)),
    ("NonMaxSuppression", Whole(BOXES)),
    ("NonMaxSuppressionV2", Whole(BOXES)),
    ("NonMaxSuppressionV3", Whole(BOXES)),
    ("NonMaxSuppressionV4", Each(|call| several(call, BOXES, 2))),
    ("NonMaxSuppressionV5", Each(|call| several(call, BOXES, 3))),
    ("NonMaxSuppressionWithOverlaps", Whole(BOXES)),
    ("CropAndResize", Whole("takes images of the batch by their number")),
    // One file at a time: in a loop over rows.
    ("DecodeJpeg", Whole(DECODES)),
    ("DecodeAndCropJpeg", Whole(DECODES)),
    ("DecodePng", Whole(DECODES)),
    ("DecodeImage", Whole(DECODES)),
    ("DecodeBmp", Whole(DECODES)),
    ("DecodeGif", Whole(DECODES)),
    ("DecodeWebP", Whole(DECODES)),
    ("ExtractJpegShape", Whole(DECODES)),
    ("DecodeWav", Each(|call| several(call, DECODES, 2))),
    ("ParseTensor", Whole(DECODES)),
    ("EncodeJpeg", Whole("encodes one file")),
    ("EncodePng", Whole("encodes one file")),
    ("DecodeRaw", By(features::decode_raw)),
    ("DecodeCSV", Each(features::decode_csv)),
    ("ParseExampleV2", Each(features::parse_examples)),
    // Matrices in the last two dimensions.
    ("MatrixBandPart", By(images::matrices)),
    ("MatrixInverse", By(images::matrices)),
    ("Cholesky", By(images::matrices)),
    ("MatrixDiagV3", By(images::diagonals)),
    ("MatrixDiag", By(images::diagonals)),
    ("MatrixDiagPartV3", By(images::diagonals)),
    ("MatrixDiagPart", By(images::diagonals)),
    // Transforms along the last dimension.
    ("FFT", By(images::transform)),
    ("IFFT", By(images::transform)),
    ("RFFT", By(images::transform)),
    ("IRFFT", By(images::transform)),
    // Rows of various lengths.
    ("StringSplitV2", Each(features::split_text)),
    ("RaggedTensorToTensor", By(features::ragged_to_tensor)),
    ("RaggedBincount", By(features::ragged_count)),
    ("DenseBincount", By(features::count)),
    ("Bincount", By(features::count)),
    ("SegmentSum", By(features::segments)),
    ("SegmentMean", By(features::segments)),
    ("SegmentMax", By(features::segments)),
    ("SegmentMin", By(features::segments)),
    ("SegmentProd", By(features::segments)),
    ("UnsortedSegmentSum", By(features::segments)),
    ("UnsortedSegmentMax", By(features::segments)),
    ("UnsortedSegmentMin", By(features::segments)),
    ("UnsortedSegmentProd", By(features::segments)),
    ("UnsortedSegmentJoin", By(features::segments)),
    ("StringSplit", Each(|call| several(call, SEVERAL, 3))),
    ("StringNGrams", Each(|call| several(call, SEVERAL, 2))),
    ("SparseSegmentMean", Whole(SEVERAL)),
    ("SparseSegmentSum", Whole(SEVERAL)),
    ("SparseSegmentSqrtN", Whole(SEVERAL)),
    ("SparseReshape", Each(|call| several(call, SEVERAL, 2))),
    ("SparseFillEmptyRows", Each(|call| several(call, SEVERAL, 4))),
    ("SparseToDense", Whole(SEVERAL)),
    ("SparseTensorDenseMatMul", Whole(SEVERAL)),
    // Elements that are kept, counted or put somewhere by their values.
    ("Where", Whole(SELECTS)),
    ("Unique", Each(|call| several(call, SELECTS, 2))),
    ("UniqueV2", Each(|call| several(call, SELECTS, 2))),
    ("UniqueWithCounts", Each(|call| several(call, SELECTS, 3))),
    ("UniqueWithCountsV2", Each(|call| several(call, SELECTS, 3))),
    ("ListDiff", Each(|call| several(call, SELECTS, 2))),
    (
        "DynamicPartition",
        Each(|call| {
            several(
                call,
                SELECTS,
                usize::try_from(call.int("num_partitions").unwrap_or(1)).unwrap_or(1),
            )
        }),
    ),
    ("DynamicStitch", Whole(SCATTERS)),
    ("ParallelDynamicStitch", Whole(SCATTERS)),
    ("ScatterNd", Whole(SCATTERS)),
    ("TensorScatterUpdate", Whole(SCATTERS)),
    ("TensorScatterAdd", Whole(SCATTERS)),
    ("TensorScatterSub", Whole(SCATTERS)),
    ("TensorScatterMax", Whole(SCATTERS)),
    ("TensorScatterMin", Whole(SCATTERS)),
    ("InvertPermutation", Whole(SELECTS)),
    ("QuantizeV2", Each(|call| several(call, RANGE, 3))),
    ("QuantizeAndDequantizeV2", Whole(RANGE)),
    ("QuantizeAndDequantizeV3", Whole(RANGE)),
    ("QuantizeAndDequantizeV4", Whole(RANGE)),
    // Random numbers and the time.
    ("RandomUniform", Mixes(RANDOM)),
    ("RandomUniformInt", Mixes(RANDOM)),
    ("RandomStandardNormal", Mixes(RANDOM)),
    ("TruncatedNormal", Mixes(RANDOM)),
    ("ParameterizedTruncatedNormal", Mixes(RANDOM)),
    ("RandomGamma", Mixes(RANDOM)),
    ("RandomPoisson", Mixes(RANDOM)),
    ("RandomPoissonV2", Mixes(RANDOM)),
    ("RandomShuffle", Mixes(RANDOM)),
    ("Multinomial", Mixes(RANDOM)),
    ("StatelessRandomUniform", Whole(RANDOM)),
    ("StatelessRandomUniformV2", Whole(RANDOM)),
    ("StatelessRandomNormal", Whole(RANDOM)),
    ("StatelessRandomNormalV2", Whole(RANDOM)),
    ("StatelessTruncatedNormal", Whole(RANDOM)),
    ("StatelessTruncatedNormalV2", Whole(RANDOM)),
    ("StatelessRandomUniformInt", Whole(RANDOM)),
    ("StatelessRandomUniformIntV2", Whole(RANDOM)),
    ("StatelessMultinomial", Whole(RANDOM)),
    ("StatelessRandomGetKeyCounter", Each(|call| several(call, RANDOM, 2))),
    ("Timestamp", Mixes("takes the time")),
    // Lists, which loops read and write.
    ("TensorListReserve", By(features::list_reserve)),
    ("TensorListFromTensor", By(features::list_from)),
    ("TensorListGetItem", By(features::list_get)),
    ("TensorListSetItem", By(features::list_set)),
    ("TensorListStack", By(features::list_stack)),
    ("TensorListLength", By(features::list_length)),
    // Calls, conditions and loops.
    ("PartitionedCall", Each(control::call)),
    ("StatefulPartitionedCall", Each(control::call)),
    ("If", Each(control::choose)),
    ("StatelessIf", Each(control::choose)),
    ("Case", Each(control::case)),
    ("StatelessCase", Each(control::case)),
    ("While", Each(control::repeat)),
    ("StatelessWhile", Each(control::repeat)),
    ("Switch", Each(control::switch)),
    ("RefSwitch", Each(control::switch)),
    ("Merge", Each(control::merge)),
    ("RefMerge", Each(control::merge)),
    ("Enter", Keeps),
    ("RefEnter", Keeps),
    ("Exit", Keeps),
    ("RefExit", Keeps),
    ("LoopCond", Keeps),
];

/// The rule of an operation.
fn rule(op: &str) -> Option<TensorFlowRule> {
    static RULES: OnceLock<HashMap<&str, TensorFlowRule>> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let elements = ELEMENTS.iter().map(|op| (*op, Elements));
        elements.chain(OTHERS.iter().copied()).collect()
    });
    rules.get(op).copied()
}

/// Whether an operation is looked at although nothing is known of one of its inputs.
pub(super) fn takes_lost(op: &str) -> bool {
    let is_control = |rule| matches!(rule, Each(function) if CONTROL.iter().any(|its| std::ptr::fn_addr_eq(*its, function)));
    op == "Maximum" || op == "Merge" || op == "RefMerge" || rule(op).is_some_and(is_control)
}

const CONTROL: [TensorFlowRuleFn; 4] =
    [control::call, control::choose, control::case, control::repeat];

/// The results of an operation.
pub(super) fn apply(call: &TensorFlowCall) -> Result<Vec<Value>, Stop> {
    let op = call.node.op.as_str();
    if call.interpreter.function(op).is_some() {
        return call.interpreter.call(op, &call.inputs);
    }
    let symbols = call.symbols();
    let value = match rule(op) {
        None => return unknown("has no rule in the analysis of rows"),
        Some(Elements) => elementwise(&call.all(), symbols)?,
        Some(TensorFlowRule::Integers(integers)) => rules::integers(call, integers)?,
        Some(Keeps) => call.input(0)?.clone(),
        Some(Constant) => Value::constant(),
        Some(Last(does)) => compute::along(call.input(0)?, -1, does)?,
        Some(Whole(does)) => compute::whole(&call.all(), does)?,
        Some(Mixes(does)) => return mixed(does),
        Some(By(function)) => function(call).or_else(|stop| without_rows(call, stop))?,
        Some(Each(function)) => return function(call),
    };
    Ok(vec![value])
}

/// The result of an operation that depends on its inputs alone, if none of them has rows.
fn without_rows(call: &TensorFlowCall, stop: Stop) -> Outcome {
    match plain_flow(&call.all()) {
        Ok(Some(flow)) => Ok(Value::new(flow, None)),
        _ => Err(stop),
    }
}

/// `count` results of an operation on all elements together.
fn several(call: &TensorFlowCall, does: &str, count: usize) -> Result<Vec<Value>, Stop> {
    Ok(vec![compute::whole(&call.all(), does)?; count.min(1 << 12)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_operation_has_two_rules() {
        let mut ops: Vec<&str> =
            ELEMENTS.iter().copied().chain(OTHERS.iter().map(|(op, _)| *op)).collect();
        ops.sort_unstable();
        let twice: Vec<_> = ops.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }
}
