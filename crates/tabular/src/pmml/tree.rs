//! Decision trees, as flat arrays: the children of a node lie side by side behind it, so that
//! every step goes forward and scoring ends.

use std::collections::HashMap;

use super::field::{MISSING, Row, rounded};
use super::model::{Classes, Function, NO_CLASS, Place, Verdict};
use super::predicate::{self, Predicate, Truth};
use super::schema::Builder;
use super::xml::Element;
use tensorserve_tensor::error::Result;

pub(super) struct Tree {
    nodes: Box<[Node]>,
    /// The probabilities of all classes, one row of them for each node that has some.
    probabilities: Box<[f64]>,
    classes: Option<Classes>,
    on_missing: OnMissing,
    /// Whether a node of which no child holds gives the result, instead of none.
    keeps_last: bool,
}

struct Node {
    test: Predicate,
    first_child: u32,
    children: u32,
    default_child: u32,
    /// The number it predicts; missing for a class.
    score: f64,
    class: u32,
    /// Its row of probabilities.
    probabilities: u32,
    /// The code of its name.
    name: f64,
}

const NONE: u32 = u32::MAX;

/// What happens when it is not known whether a node's predicate holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnMissing {
    /// It does not hold.
    GoOn,
    /// The node above gives the result.
    Last,
    NoResult,
    /// The node above says which child is next.
    Default,
}

impl Tree {
    pub(super) fn score(&self, row: &mut Row) -> Verdict {
        let Some(mut node) = self.nodes.first() else {
            return Verdict::MISSING;
        };
        if node.test.test(row) != Truth::True {
            return Verdict::MISSING;
        }
        while node.children > 0 {
            match self.next(node, row) {
                Next::Node(next) => node = next,
                Next::Here => break,
                Next::Nowhere => return Verdict::MISSING,
            }
        }
        self.result(node, row)
    }

    #[inline]
    fn next(&self, node: &Node, row: &Row) -> Next<'_> {
        let first = node.first_child as usize;
        let children = self.nodes.get(first..first + node.children as usize).unwrap_or_default();
        for child in children {
            match (child.test.test(row), self.on_missing) {
                (Truth::True, _) => return Next::Node(child),
                (Truth::False, _) | (Truth::Unknown, OnMissing::GoOn) => {}
                (Truth::Unknown, OnMissing::Last) => return Next::Here,
                (Truth::Unknown, OnMissing::NoResult) => return Next::Nowhere,
                (Truth::Unknown, OnMissing::Default) => {
                    let child = self.nodes.get(node.default_child as usize);
                    return child.map_or(Next::Nowhere, Next::Node);
                }
            }
        }
        if self.keeps_last { Next::Here } else { Next::Nowhere }
    }

    fn result(&self, node: &Node, row: &mut Row) -> Verdict {
        let Some(classes) = &self.classes else {
            return Verdict { value: node.score, class: NO_CLASS, entity: node.name };
        };
        let count = classes.len();
        let probabilities = row.range(classes.slot, count);
        let start = (node.probabilities as usize).saturating_mul(count);
        match self.probabilities.get(start..start.saturating_add(count)) {
            Some(known) => probabilities.copy_from_slice(known),
            None => {
                // Without a distribution, all there is to say is which class it is.
                probabilities.fill(0.0);
                if let Some(one) = probabilities.get_mut(node.class as usize) {
                    *one = 1.0;
                }
            }
        }
        Verdict { entity: node.name, ..classes.verdict(node.class) }
    }
}

enum Next<'t> {
    Node(&'t Node),
    Here,
    Nowhere,
}

impl Tree {
    pub(super) fn read<'d>(
        builder: &mut Builder<'d>,
        element: Element<'d>,
        place: &Place,
    ) -> Result<Self> {
        let on_missing = match element.attribute("missingValueStrategy").unwrap_or("none") {
            "none" => OnMissing::GoOn,
            "lastPrediction" => OnMissing::Last,
            "nullPrediction" => OnMissing::NoResult,
            "defaultChild" => OnMissing::Default,
            other => {
                return Err(element.unsupported(format!("missingValueStrategy={other:?}")));
            }
        };
        let keeps_last = match element.attribute("noTrueChildStrategy") {
            None | Some("returnNullPrediction") => false,
            Some("returnLastPrediction") => true,
            Some(other) => {
                let message = format!("noTrueChildStrategy={other:?} is not known");
                return Err(element.damaged(message));
            }
        };
        if let Some("binarySplit" | "multiSplit") | None = element.attribute("splitCharacteristic")
        {
        } else {
            return Err(element.damaged("splitCharacteristic is not known"));
        }
        let reader = Reader {
            builder,
            place,
            nodes: Vec::new(),
            probabilities: Vec::new(),
            is_single: element.attribute("x-mathContext") == Some("float"),
        };
        let (nodes, probabilities) = reader.read(element.need_child("Node")?, on_missing)?;
        let classes = place.classes.clone();
        Ok(Tree { nodes, probabilities, classes, on_missing, keeps_last })
    }
}

struct Reader<'a, 'b, 'd, 's> {
    builder: &'a mut Builder<'d>,
    place: &'a Place<'b, 's>,
    nodes: Vec<Node>,
    probabilities: Vec<f64>,
    /// Whether scores are numbers of single precision.
    is_single: bool,
}

type Arrays = (Box<[Node]>, Box<[f64]>);

impl<'d> Reader<'_, '_, 'd, '_> {
    /// Goes through the tree level by level; a node's number is its place in `elements`.
    fn read(mut self, root: Element<'d>, on_missing: OnMissing) -> Result<Arrays> {
        let mut elements = vec![root];
        let mut at = 0;
        while let Some(element) = elements.get(at).copied() {
            let first_child = number(element, elements.len())?;
            elements.extend(element.all("Node"));
            let children = number(element, elements.len())? - first_child;
            if let Some(embedded) = element.children().find(|c| is_embedded(c.name())) {
                return Err(embedded.unsupported("a model within a node"));
            }
            let default_child = match element.attribute("defaultChild") {
                Some(name) if children > 0 && on_missing == OnMissing::Default => {
                    let mut ids = elements.iter().skip(first_child as usize);
                    let found = ids.position(|child| child.attribute("id") == Some(name));
                    let found = found.ok_or_else(|| {
                        element.damaged(format!("defaultChild={name:?} is no child of it"))
                    })?;
                    first_child + number(element, found)?
                }
                _ => NONE,
            };
            let node = self.node(element)?;
            self.nodes.push(Node { first_child, children, default_child, ..node });
            at += 1;
        }
        Ok((self.nodes.into(), self.probabilities.into()))
    }

    fn node(&mut self, element: Element<'d>) -> Result<Node> {
        let test = predicate::of(element, self.place.scope, &mut self.builder.symbols)?;
        let name = match element.attribute("id") {
            Some(id) if self.builder.wants_entities => self.builder.symbols.intern(id),
            _ => MISSING,
        };
        let mut node = Node {
            test,
            first_child: 0,
            children: 0,
            default_child: NONE,
            score: MISSING,
            class: NO_CLASS,
            probabilities: NONE,
            name,
        };
        match &self.place.classes {
            None => {
                let score = element.number("score")?;
                node.score = score.map_or(MISSING, |score| rounded(score, self.is_single));
            }
            Some(classes) => {
                (node.class, node.probabilities) = self.distribution(element, classes)?;
            }
        }
        Ok(node)
    }

    /// The class that a node predicts, and its row of probabilities.
    fn distribution(&mut self, element: Element<'d>, classes: &Classes) -> Result<(u32, u32)> {
        let mut known: HashMap<u32, (f64, Option<f64>)> = HashMap::new();
        let (mut total, mut likeliest) = (0.0, None::<(u32, f64)>);
        for part in element.all("ScoreDistribution") {
            let class = classes.number(self.builder, part, part.need("value")?)?;
            let count = part.need_number("recordCount")?;
            if count.is_nan() || count < 0.0 {
                return Err(part.damaged("recordCount is negative"));
            }
            total += count;
            if likeliest.is_none_or(|(_, most)| count > most) {
                likeliest = Some((class, count));
            }
            known.insert(class, (count, part.number("probability")?));
        }
        let class = match element.attribute("score") {
            Some(score) => classes.number(self.builder, element, score)?,
            None => likeliest.map_or(NO_CLASS, |(class, _)| class),
        };
        let given = known.values().all(|(_, probability)| probability.is_some());
        if known.is_empty() || (total <= 0.0 && !given) {
            return Ok((class, NONE));
        }
        self.builder.count(element, classes.len())?;
        let row = number(element, self.probabilities.len() / classes.len())?;
        let probability = |class: u32| match known.get(&class) {
            Some((_, Some(probability))) if given => *probability,
            Some((count, _)) => count / total,
            None => 0.0,
        };
        self.probabilities.extend((0u32..).take(classes.len()).map(probability));
        Ok((class, row))
    }
}

fn number(element: Element, count: usize) -> Result<u32> {
    let number = u32::try_from(count).ok().filter(|number| *number < NONE);
    number.ok_or_else(|| element.damaged("has too many nodes"))
}

fn is_embedded(name: &str) -> bool {
    matches!(name, "Regression" | "DecisionTree")
}

impl Function {
    /// Whether results are numbers.
    pub(super) fn is_regression(self) -> bool {
        self == Function::Regression
    }
}
