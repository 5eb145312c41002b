//! Which copies of a model are made: which variables become constants, and whether the runtime fuses operations.

use std::fmt::Display;

use prost::Message;

use crate::ffi::SessionSettings;
use tensorserve_proto::tensorflow::rewriter_config::Toggle;
use tensorserve_proto::tensorflow::{ConfigProto, GraphOptions, RewriterConfig};
use tensorserve_tensor::{DType, Signature, Tensor};

/// Which variables become constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrozenVariables {
    /// All.
    All,
    /// All but matrices that are read as a whole: mostly weights of products. If they are constants, the runtime may store
    /// them in blocks and fold factors into them: sums then have other last bits.
    NoMatrices,
    /// Those of at most one dimension, and those of which rows are looked up.
    NoWeights,
}

impl FrozenVariables {
    /// The sets of these variables that differ. What promises most comes first.
    fn sets(values: &[Tensor]) -> Vec<FrozenVariables> {
        if values.is_empty() {
            return Vec::new();
        }
        let mut sets = vec![FrozenVariables::All];
        if values.iter().any(|value| FrozenVariables::NoMatrices.keeps(value)) {
            sets.push(FrozenVariables::NoMatrices);
        }
        if values.iter().any(|value| value.shape().dims().len() > MATRIX) {
            sets.push(FrozenVariables::NoWeights);
        }
        sets
    }

    /// Whether a variable that is read as a whole stays one.
    pub(super) fn keeps(self, value: &Tensor) -> bool {
        let rank = value.shape().dims().len();
        match self {
            FrozenVariables::All => false,
            FrozenVariables::NoMatrices => rank == MATRIX,
            FrozenVariables::NoWeights => rank >= MATRIX,
        }
    }
}

/// The number of dimensions of a matrix.
const MATRIX: usize = 2;

/// What the runtime rewrites in the graph of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GraphRewrites {
    /// What it does by default.
    All,
    /// No operations into one. A product that oneDNN computes together with what follows it (`_MklNativeFusedMatMul`) takes
    /// several microseconds more than product, bias and activation one after the other, which is most of what a small
    /// model takes, and saves little of a large one.
    NoFusion,
    /// Nor factors into the weights of products, which changes the last bits of sums.
    NoFolding,
}

/// A copy that can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyPlan {
    /// `None`: all variables stay.
    pub(crate) variables: Option<FrozenVariables>,
    pub(crate) rewrites: GraphRewrites,
    /// Whether the copies that follow promise less.
    pub(crate) ends_group: bool,
}

impl CopyPlan {
    fn new(variables: impl Into<Option<FrozenVariables>>, rewrites: GraphRewrites) -> Self {
        CopyPlan { variables: variables.into(), rewrites, ends_group: false }
    }

    /// What is different, in words. `counts` says so of the variables.
    pub(super) fn describe(&self, counts: &impl Display) -> String {
        let mut what: Vec<String> = self.variables.iter().map(|_| counts.to_string()).collect();
        match self.rewrites {
            GraphRewrites::All => {}
            GraphRewrites::NoFusion => what.push("operations are not fused".to_owned()),
            GraphRewrites::NoFolding => {
                what.push("operations are not fused, and products not rearranged".to_owned());
            }
        }
        what.join("; ")
    }

    /// Whether the model stays loaded for runs in which its operations may compute something else: if `Relu` is fused with a
    /// product, it makes 0 of NaN.
    pub(crate) fn needs_original(&self) -> bool {
        self.rewrites != GraphRewrites::All
    }
}

/// The copies of a model with these operations and variables, in groups of which one promises as much as the other.
/// `may_stay`: whether the model can stay loaded beside its copy.
pub(super) fn plans<'o>(
    mut ops: impl Iterator<Item = &'o str>,
    values: &[Tensor],
    may_stay: bool,
) -> Vec<CopyPlan> {
    let has_products = may_stay && ops.any(|op| op == "MatMul");
    let mut sets = FrozenVariables::sets(values).into_iter();
    let mut groups: Vec<Vec<CopyPlan>> = Vec::new();
    if let Some(all) = sets.next() {
        let mut first = vec![CopyPlan::new(all, GraphRewrites::All)];
        let mut second: Vec<_> = sets.map(|set| CopyPlan::new(set, GraphRewrites::All)).collect();
        if has_products {
            first.push(CopyPlan::new(all, GraphRewrites::NoFusion));
            second.push(CopyPlan::new(all, GraphRewrites::NoFolding));
        }
        groups.extend([first, second]);
    }
    if has_products {
        groups.push(vec![CopyPlan::new(None, GraphRewrites::NoFusion)]);
    }
    for group in &mut groups {
        if let Some(last) = group.last_mut() {
            last.ends_group = true;
        }
    }
    groups.concat()
}

/// Whether it can be told of all inputs of a signature whether they are NaN: strings may be numbers.
pub(super) fn has_numbers(signature: &Signature) -> bool {
    let is_told = |dtype: DType| dtype == DType::Float || dtype.is_integer_or_bool();
    signature.inputs.iter().all(|input| input.dtype().is_some_and(is_told))
}

/// The settings of the session of a copy, for a model with these.
pub(super) fn session_settings(of_model: &SessionSettings, plan: &CopyPlan) -> SessionSettings {
    let mut settings = of_model.clone();
    let off = |is_off| if is_off { Toggle::Off } else { Toggle::Default };
    let rewrite_options = Some(RewriterConfig {
        remapping: off(plan.rewrites != GraphRewrites::All).into(),
        constant_folding: off(plan.rewrites == GraphRewrites::NoFolding).into(),
    });
    let graph_options = Some(GraphOptions { rewrite_options, ..GraphOptions::default() });
    let fields = ConfigProto { graph_options, ..ConfigProto::default() };
    // One encoded message after another is a message with the fields of both.
    settings.config.extend(fields.encode_to_vec());
    settings
}
