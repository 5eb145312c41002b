//! The operators of ONNX and of ONNX Runtime, and what each does to the rows of a batch. An operator that is
//! not here is unknown: models with it are not joined by default.

use std::collections::HashMap;
use std::sync::OnceLock;

use tensorserve_rows::{OperationResults, Stop, Value, mixed};

use super::call::OnnxCall;
use super::{control, elements, images, layers, learning, places, shapes};

/// Gives the results of an operator.
pub(super) type OnnxRule = fn(&OnnxCall) -> OperationResults;

/// Each element of the result comes from the elements at the same place of the inputs.
const ELEMENTS: &[&str] = &[
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Log",
    "Mean",
    "Mish",
    "Mod",
    "Neg",
    "PRelu",
    "Pow",
    "Reciprocal",
    "RegexFullMatch",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "StringConcat",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Xor",
];

/// The other operators of the standard.
const STANDARD: &[(&str, OnnxRule)] = &[
    // Elements at the same place, of small integers that may be sizes.
    ("Add", elements::add),
    ("And", elements::and),
    ("Cast", elements::cast),
    ("CastLike", elements::each_of_first), // Of the second input only the type counts.
    ("Div", elements::divide),
    ("Equal", elements::equal),
    ("Greater", elements::greater),
    ("GreaterOrEqual", elements::greater_or_equal),
    ("Less", elements::less),
    ("LessOrEqual", elements::less_or_equal),
    ("Max", elements::maximum),
    ("Min", elements::minimum),
    ("Mul", elements::multiply),
    ("Not", elements::not),
    ("Or", elements::or),
    ("Sub", elements::subtract),
    ("Where", elements::choose),
    // Unchanged: optional values stand for what they hold.
    ("Identity", elements::keep),
    ("Optional", elements::keep),
    ("OptionalGetElement", elements::keep),
    ("Dropout", elements::dropout), // Unless the model is being trained.
    // Results that are the same for every batch.
    ("Constant", elements::constant),
    ("BlackmanWindow", |call| elements::whole(call, "depends on the batch")),
    ("HammingWindow", |call| elements::whole(call, "depends on the batch")),
    ("HannWindow", |call| elements::whole(call, "depends on the batch")),
    ("MelWeightMatrix", |call| elements::whole(call, "depends on the batch")),
    ("EyeLike", |call| elements::whole(call, "gives each row another result")),
    ("ConstantOfShape", shapes::constant_of_shape),
    ("Range", shapes::range),
    // Shapes: the dimension of the rows is followed.
    ("Concat", shapes::concat),
    ("Expand", shapes::expand),
    ("Flatten", shapes::flatten),
    ("Pad", shapes::pad),
    ("Reshape", shapes::reshape),
    ("Shape", shapes::shape),
    ("Size", shapes::size),
    ("Slice", shapes::slice),
    ("Split", shapes::split),
    ("Squeeze", shapes::squeeze),
    ("Tile", shapes::tile),
    ("Transpose", shapes::transpose),
    ("Trilu", layers::matrices), // Of the last two dimensions.
    ("Unsqueeze", shapes::unsqueeze),
    // Along dimensions, of which the rows are refused.
    ("ArgMax", shapes::place_of_extreme),
    ("ArgMin", shapes::place_of_extreme),
    ("CumProd", shapes::running),
    ("CumSum", shapes::running),
    ("Hardmax", shapes::softmax),
    ("LogSoftmax", shapes::softmax),
    ("LpNormalization", shapes::normalize_last),
    ("ReduceL1", shapes::reduce),
    ("ReduceL2", shapes::reduce),
    ("ReduceLogSum", shapes::reduce),
    ("ReduceLogSumExp", shapes::reduce),
    ("ReduceMax", shapes::reduce),
    ("ReduceMean", shapes::reduce),
    ("ReduceMin", shapes::reduce),
    ("ReduceProd", shapes::reduce_product),
    ("ReduceSum", shapes::reduce_sum),
    ("ReduceSumSquare", shapes::reduce),
    ("Softmax", shapes::softmax),
    ("TopK", places::top_k),
    // By places: rows may not be picked by one.
    ("Compress", places::compress),
    ("Gather", places::gather),
    ("GatherElements", places::gather_elements),
    ("GatherND", places::gather_nd),
    ("OneHot", places::one_hot),
    ("ReverseSequence", places::reverse_sequence),
    ("Scatter", places::scatter_elements),
    ("ScatterElements", places::scatter_elements),
    ("ScatterND", places::scatter_nd),
    // Products: sums over rows, and products of two rows are refused.
    ("Det", layers::determinant),
    ("Einsum", layers::einsum),
    ("Gemm", layers::gemm),
    ("MatMul", layers::matmul),
    ("MatMulInteger", layers::matmul_integer),
    ("QLinearMatMul", layers::matmul_scaled),
    // Each image or sequence by itself.
    ("AveragePool", images::pool),
    ("BatchNormalization", layers::batch_normalization), // By constants, but in training.
    ("Col2Im", images_of_other_shape),
    ("Conv", images::convolution),
    ("ConvInteger", images::convolution),
    ("ConvTranspose", images::transposed_convolution),
    ("DepthToSpace", images::depth_to_space),
    ("GlobalAveragePool", images::global_pool),
    ("GlobalLpPool", images::global_pool),
    ("GlobalMaxPool", images::global_pool),
    ("GridSample", images::sample),
    ("GroupNormalization", layers::per_example),
    ("GRU", layers::recurrent),
    ("InstanceNormalization", layers::per_example),
    ("LayerNormalization", layers::layer_normalization),
    ("LpPool", images::pool),
    ("LRN", layers::per_example), // Over neighbouring channels.
    ("LSTM", layers::recurrent),
    ("MaxPool", images::pool),
    ("MeanVarianceNormalization", layers::normalize_axes),
    ("QLinearConv", images::convolution_scaled),
    ("Resize", images::resize),
    ("RMSNormalization", layers::layer_normalization),
    ("RNN", layers::recurrent),
    ("SimplifiedLayerNormalization", layers::layer_normalization), // Of ONNX Runtime.
    ("SpaceToDepth", images::space_to_depth),
    ("Upsample", images::resize),
    // Scales that are constants.
    ("DequantizeLinear", elements::quantize),
    ("QuantizeLinear", elements::quantize),
    // Texts.
    ("StringNormalizer", elements::normalize_text), // Without stop words, each text by itself.
    ("TfIdfVectorizer", learning::count_words),
    // Graphs.
    ("If", control::choose),
    ("Loop", control::repeat),
    ("Scan", control::scan),
    // All rows together.
    ("DynamicQuantizeLinear", |call| elements::whole(call, SCALE)),
    ("NonMaxSuppression", |call| elements::whole(call, "lists the boxes of all rows")),
    ("NonZero", |call| elements::whole(call, "lists the places of all rows")),
    ("StringSplit", |call| elements::whole(call, "fills up rows to the longest one of the batch")),
    ("Unique", |call| elements::whole(call, "keeps one of several rows or elements")),
    ("MaxRoiPool", |call| elements::whole(call, BOXES)),
    ("RoiAlign", |call| elements::whole(call, BOXES)),
    ("MaxUnpool", |call| elements::whole(call, "takes places within the whole batch")),
    ("NegativeLogLikelihoodLoss", |call| elements::whole(call, LOSS)),
    ("SoftmaxCrossEntropyLoss", |call| elements::whole(call, LOSS)),
    // Random numbers.
    ("Bernoulli", |_| mixed(RANDOM)),
    ("Multinomial", |_| mixed(RANDOM)),
    ("RandomNormal", |_| mixed(RANDOM)),
    ("RandomNormalLike", |_| mixed(RANDOM)),
    ("RandomUniform", |_| mixed(RANDOM)),
    ("RandomUniformLike", |_| mixed(RANDOM)),
];

const SCALE: &str = "takes one scale from all rows of the batch";
const BOXES: &str = "takes images by their number in the batch";
const LOSS: &str = "averages a loss over the rows";
const RANDOM: &str = "draws random numbers, which differ with the place in the batch";

/// Operators of classical models: a matrix has one example in each row.
const LEARNING: &[(&str, OnnxRule)] = &[
    ("ArrayFeatureExtractor", learning::extract),
    ("Binarizer", elements::each_of_first),
    ("CategoryMapper", elements::each_of_first),
    ("FeatureVectorizer", learning::join),
    ("Imputer", learning::columns),
    ("LabelEncoder", elements::each_of_first),
    ("LinearClassifier", learning::classify),
    ("LinearRegressor", learning::regress_linear),
    ("Normalizer", learning::columns), // Over the columns of a row.
    ("OneHotEncoder", learning::encode),
    ("Scaler", learning::columns),
    ("SVMClassifier", learning::classify),
    ("SVMRegressor", learning::regress_one),
    ("TreeEnsemble", learning::regress),
    ("TreeEnsembleClassifier", learning::classify),
    ("TreeEnsembleRegressor", learning::regress),
];

/// Operators of ONNX Runtime, which its optimizers write.
const MICROSOFT: &[(&str, OnnxRule)] = &[
    ("BiasGelu", elements::each),
    ("FastGelu", elements::each),
    ("Gelu", elements::each),
    ("QuickGelu", elements::each_of_first),
    ("QLinearAdd", elements::each_of_two_scaled),
    ("QLinearMul", elements::each_of_two_scaled),
    ("QLinearLeakyRelu", elements::each_of_one_scaled),
    ("QLinearSigmoid", elements::each_of_one_scaled),
    ("DequantizeLinear", elements::quantize),
    ("QuantizeLinear", elements::quantize),
    ("Trilu", layers::matrices),
    ("Inverse", layers::matrices),
    ("FusedConv", images::convolution), // With a constant that is added.
    ("FusedMatMul", layers::matmul_fused),
    ("MatMulNBits", layers::matmul_packed),
    ("QLinearGlobalAveragePool", images::global_pool),
    ("SkipLayerNormalization", layers::skip_normalization),
    ("SkipSimplifiedLayerNormalization", layers::skip_normalization),
    ("Attention", layers::self_attention),
    ("MultiHeadAttention", layers::multi_head_attention),
    // All rows together.
    ("DynamicQuantizeLSTM", |call| elements::whole(call, SCALE)),
    ("DynamicQuantizeMatMul", |call| elements::whole(call, SCALE)),
    ("Tokenizer", |call| elements::whole(call, "fills up rows to the longest one of the batch")),
    ("Unique", |call| elements::whole(call, "keeps one of several rows or elements")),
    ("Sampling", |_| mixed(RANDOM)),
];

/// Images of a shape that is not followed.
fn images_of_other_shape(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = tensorserve_rows::compute::examples(call.input(0)?, &call.from(1), None)?;
    Ok(vec![value])
}

/// The name of a domain of operators: the standard one has two.
pub(super) fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

/// What the operator `name` does.
pub(super) fn rule(domain: &str, name: &str) -> Option<OnnxRule> {
    static RULES: OnceLock<HashMap<(&str, &str), OnnxRule>> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let each: OnnxRule = elements::each;
        let mut rules: HashMap<(&str, &str), OnnxRule> =
            ELEMENTS.iter().map(|name| (("", *name), each)).collect();
        let tables = [("", STANDARD), ("ai.onnx.ml", LEARNING), ("com.microsoft", MICROSOFT)];
        for (domain, table) in tables {
            rules.extend(table.iter().map(|(name, rule)| ((domain, *name), *rule)));
        }
        rules
    });
    rules.get(&(domain, name)).copied()
}
