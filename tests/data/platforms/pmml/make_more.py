"""Makes the PMML files of this folder that make.py does not, and goldens.json.gz: what JPMML makes of 1,000
rows of each, with missing, extreme and unseen values; or PMML4S, for models that JPMML does not know.
Rows for which the evaluator raises an error are left out. Seed 18.

    pip install pypmml==1.5.8 jpmml-evaluator==0.16.0     # on Java 17
"""

import gzip
import json
import math
import os
import random

import make
from jpmml_evaluator import make_evaluator
from make import CLASS, NUMBER, apply, derived, document, output, schema, simple, text
from pypmml import Model

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = 1000
TEXT = 'optype="categorical" dataType="string"'
XZN = "".join(f'<MiningField name="{n}"/>' for n in ("x", "z", "n"))
random.seed(18)


def number():
    return round(random.uniform(-1, 1), 4)


def shown(name, feature, kind=TEXT, more=""):
    return f'<OutputField name="{name}" feature="{feature}" {kind} {more}/>'


def array(numbers):
    return f'<Array type="real" n="{len(numbers)}">{" ".join(map(str, numbers))}</Array>'


def counts(values):
    inside = "".join(
        f'<TargetValueCount value="{c}" count="{n}"/>' for c, n in zip("abc", values, strict=True)
    )
    return f"<TargetValueCounts>{inside}</TargetValueCounts>"


def bayes():
    def pairs(field, values, derived=""):
        inside = "".join(
            f'<PairCounts value="{v}">{counts([random.choice((0, random.randint(1, 60))) for _ in "abc"])}</PairCounts>'
            for v in values
        )
        return f'<BayesInput fieldName="{field}">{derived}{inside}</BayesInput>'

    def stats(field, distribution):
        inside = "".join(
            f'<TargetValueStat value="{c}">{distribution(i)}</TargetValueStat>'
            for i, c in enumerate("abc")
        )
        return f'<BayesInput fieldName="{field}"><TargetValueStats>{inside}</TargetValueStats></BayesInput>'

    bins = derived(
        "z_bin",
        '<Discretize field="z"><DiscretizeBin binValue="low"><Interval closure="openClosed" rightMargin="-0.2"/></DiscretizeBin>'
        '<DiscretizeBin binValue="mid"><Interval closure="openOpen" leftMargin="-0.2" rightMargin="0.4"/></DiscretizeBin>'
        '<DiscretizeBin binValue="high"><Interval closure="closedOpen" leftMargin="0.4"/></DiscretizeBin></Discretize>',
        TEXT,
    )
    inputs = pairs("colour", ("red", "green", "blue")) + pairs("size", ("big", "small"))
    inputs += pairs("z", ("low", "mid", "high"), bins)
    inputs += stats(
        "x",
        lambda i: (
            f'<GaussianDistribution mean="{(-0.5, 0.1, 0.6)[i]}" variance="{(0.1, 0.3, 0.05)[i]}"/>'
        ),
    )
    inputs += stats("n", lambda i: f'<PoissonDistribution mean="{(1.5, 3, 5)[i]}"/>')
    return (
        f'<NaiveBayesModel functionName="classification" threshold="0.002">{schema("class")}{output(CLASS)}'
        f'<BayesInputs>{inputs}</BayesInputs><BayesOutput fieldName="class">{counts((100, 70, 40))}</BayesOutput></NaiveBayesModel>'
    )


KERNELS = {
    "linear": "<LinearKernelType/>",
    "polynomial": '<PolynomialKernelType gamma="0.5" coef0="1" degree="3"/>',
    "radial": '<RadialBasisKernelType gamma="0.8"/>',
    "sigmoid": '<SigmoidKernelType gamma="0.3" coef0="0.1"/>',
}


def vectors(kernel, machines, target="class", attributes="", coefficients=False):
    fields = ["x", "z", "n"]
    body = "".join(f'<FieldRef field="{f}"/>' for f in fields)
    body += '<CategoricalPredictor name="colour" value="red" coefficient="1"/><CategoricalPredictor name="colour" value="blue" coefficient="1"/>'
    vectors = ""
    for i in range(8):
        values = [number(), number(), random.randint(0, 6), random.choice((0, 1)), 0]
        if i % 2:
            places = [j for j, v in enumerate(values) if v]
            inside = f"<Indices>{' '.join(str(j + 1) for j in places)}</Indices><REAL-Entries>{' '.join(str(values[j]) for j in places)}</REAL-Entries>"
            inside = f'<REAL-SparseArray n="5">{inside}</REAL-SparseArray>'
        else:
            inside = array(values)
        vectors += f'<VectorInstance id="v{i}">{inside}</VectorInstance>'
    svms = ""
    for machine in machines:
        count = 5 if coefficients else 8
        own = "".join(f'<SupportVector vectorId="v{i}"/>' for i in range(8))
        own = "" if coefficients else f"<SupportVectors>{own}</SupportVectors>"
        terms = "".join(f'<Coefficient value="{number()}"/>' for _ in range(count))
        svms += f'<SupportVectorMachine {machine}>{own}<Coefficients absoluteValue="{number()}">{terms}</Coefficients></SupportVectorMachine>'
    function = "regression" if target == "y" else "classification"
    shown = f'<Output><OutputField name="result" feature="predictedValue" {NUMBER if target == "y" else CLASS}/></Output>'
    active = XZN + '<MiningField name="colour" invalidValueTreatment="asIs"/>'
    representation = "Coefficients" if coefficients else "SupportVectors"
    return (
        f'<SupportVectorMachineModel functionName="{function}" svmRepresentation="{representation}" {attributes}>{schema(target, active)}{shown}'
        f"{KERNELS[kernel]}<VectorDictionary><VectorFields>{body}</VectorFields>{vectors}</VectorDictionary>{svms}</SupportVectorMachineModel>"
    )


def pair(a, b):
    return f'targetCategory="{a}" alternateTargetCategory="{b}"'


def nearest(target, method, measure="<euclidean/>", kind="distance", compare=True, ids=True):
    random_class = random.Random(5)
    rows = ""
    for i in range(40):
        values = (number(), number(), random.randint(0, 6), random.choice(("red", "green", "blue")))
        rows += f"<row><c_id>k{i}</c_id><c_x>{values[0]}</c_x><c_z>{values[1]}</c_z><c_n>{values[2]}</c_n><c_colour>{values[3]}</c_colour>"
        rows += f"<c_class>{random_class.choice('aabbc')}</c_class><c_y>{number()}</c_y></row>"
    names = ("id", "x", "z", "n", "colour", target)
    fields = "".join(f'<InstanceField field="{n}" column="c_{n}"/>' for n in names)
    inputs = '<KNNInput field="x"/><KNNInput field="z" fieldWeight="2"/><KNNInput field="n" fieldWeight="0.05"/>'
    inputs += '<KNNInput field="colour" compareFunction="delta"/>' if compare else ""
    is_class = target == "class"
    function = "classification" if is_class else "regression"
    name = "categoricalScoringMethod" if is_class else "continuousScoringMethod"
    more = (
        "".join(shown(f"neighbor{i}", "entityId", TEXT, f'rank="{i}"') for i in (1, 2, 5))
        if ids
        else ""
    )
    active = XZN + ('<MiningField name="colour" invalidValueTreatment="asIs"/>' if compare else "")
    result = f'<Output><OutputField name="result" feature="predictedValue" {CLASS if is_class else NUMBER}/>{more}</Output>'
    return (
        f'<NearestNeighborModel functionName="{function}" numberOfNeighbors="5" {name}="{method}" instanceIdVariable="id" threshold="0.01">'
        f'{schema(target, active)}{result}<TrainingInstances isTransformed="false"><InstanceFields>{fields}</InstanceFields><InlineTable>{rows}</InlineTable></TrainingInstances>'
        f'<ComparisonMeasure kind="{kind}" compareFunction="absDiff">{measure}</ComparisonMeasure><KNNInputs>{inputs}</KNNInputs></NearestNeighborModel>'
    )


def rules(criterion):
    def rule(name, score, test):
        return f'<SimpleRule id="{name}" score="{score}" weight="{abs(number())}" confidence="{abs(number())}">{test}</SimpleRule>'

    body = rule(
        "r1",
        "a",
        make.either("and", simple("x", "greaterThan", 0.3), simple("colour", "equal", "red")),
    )
    inner = rule("r2", "b", simple("n", "greaterThan", 3)) + rule(
        "r3", "c", simple("size", "notEqual", "big")
    )
    inner += (
        f"<CompoundRule>{simple('x', 'lessThan', -0.5)}{rule('r4', 'a', '<True/>')}</CompoundRule>"
    )
    body += f"<CompoundRule>{simple('z', 'lessOrEqual', 0.2)}{inner}</CompoundRule>"
    body += rule("r5", "b", make.within("colour", ["green", "blue"]))
    return (
        f'<RuleSetModel functionName="classification">{schema("class")}<Output><OutputField name="result" feature="predictedValue" {CLASS}/></Output>'
        f'<RuleSet defaultScore="c" defaultConfidence="0.1"><RuleSelectionMethod criterion="{criterion}"/>{body}</RuleSet></RuleSetModel>'
    )


def clusters(measure, kind="distance", compare="absDiff", scale="", binary=False):
    fields = "".join(
        f'<ClusteringField field="{n}" fieldWeight="{w}" {scale}/>'
        for n, w in (("x", 1), ("z", 2), ("n", 0.1))
    )
    body = ""
    for i in range(4):
        center = (
            [random.choice((0, 1)) for _ in "xzn"]
            if binary
            else [number(), number(), random.randint(0, 6)]
        )
        body += f'<Cluster id="k{i}" name="cluster {i}">{array(center)}</Cluster>'
    outputs = shown("nearest", "entityId") + shown("name", "predictedDisplayValue")
    outputs += shown("affinity", "affinity", NUMBER) + shown(
        "affinity_k2", "affinity", NUMBER, 'value="k2"'
    )
    if compare == "absDiff":  # PMML4S ranks the others in reverse.
        outputs += shown("second", "entityId", TEXT, 'rank="2"')
    return (
        f'<ClusteringModel functionName="clustering" modelClass="centerBased" numberOfClusters="4"><MiningSchema>{XZN}</MiningSchema><Output>{outputs}</Output>'
        f'<ComparisonMeasure kind="{kind}" compareFunction="{compare}">{measure}</ComparisonMeasure>{fields}'
        f"<MissingValueWeights>{array([1, 2, 0.5])}</MissingValueWeights>{body}</ClusteringModel>"
    )


def reasons(algorithm):
    body = make.scorecard()
    outputs = "".join(shown(f"reason{i}", "reasonCode", TEXT, f'rank="{i}"') for i in (1, 2, 3))
    body = body.replace("</Output>", outputs + "</Output>")
    return body.replace(
        'useReasonCodes="false"', f'useReasonCodes="true" reasonCodeAlgorithm="{algorithm}"'
    )


def cox():
    cells = "".join(f'<BaselineCell time="{t}" cumHazard="{0.1 * t * t}"/>' for t in range(1, 6))
    return (
        f'<GeneralRegressionModel functionName="regression" modelType="CoxRegression" endTimeVariable="n">{schema("y")}{output(NUMBER)}'
        '<ParameterList><Parameter name="p1" referencePoint="0.3"/><Parameter name="p2" referencePoint="0"/></ParameterList>'
        '<FactorList><Predictor name="colour"/></FactorList><CovariateList><Predictor name="x"/></CovariateList>'
        '<PPMatrix><PPCell value="1" predictorName="x" parameterName="p1"/><PPCell value="red" predictorName="colour" parameterName="p2"/></PPMatrix>'
        '<ParamMatrix><PCell parameterName="p1" beta="0.7"/><PCell parameterName="p2" beta="-0.4"/></ParamMatrix>'
        f'<EventValues><Value value="1"/></EventValues><BaseCumHazardTables maxTime="5">{cells}</BaseCumHazardTables></GeneralRegressionModel>'
    )


def ordinal(link):
    body = make.general("ordinalMultinomial", "", "ab")
    body = body[body.index("<GeneralRegressionModel") : body.index("</PMML>")]
    cells = '<PCell targetCategory="a" parameterName="p0" beta="-0.6"/><PCell targetCategory="b" parameterName="p0" beta="0.5"/>'
    cells += "".join(f'<PCell parameterName="p{i}" beta="{number()}"/>' for i in range(1, 6))
    start, end = body.index("<ParamMatrix>"), body.index("</ParamMatrix>")
    body = body[: start + len("<ParamMatrix>")] + cells + body[end:]
    return body.replace(
        "targetReferenceCategory", f'cumulativeLink="{link}" targetReferenceCategory'
    ).replace('targetReferenceCategory="b"', 'targetReferenceCategory="c"')


def offset():
    body = make.general("generalizedLinear", "log")
    body = body[body.index("<GeneralRegressionModel") : body.index("</PMML>")]
    return body.replace(
        'functionName="regression"', 'functionName="regression" offsetVariable="z" trialsValue="3"'
    )


DATES = '<DataField name="day" optype="categorical" dataType="date"/><DataField name="clock" optype="categorical" dataType="time"/><DataField name="moment" optype="categorical" dataType="dateTime"/><DataField name="words" optype="categorical" dataType="string"/>'

FUNCTIONS = {
    "upper": (TEXT, apply("uppercase", "words")),
    "lower": (TEXT, apply("lowercase", "words")),
    "length": (NUMBER, apply("stringLength", "words")),
    "part": (
        TEXT,
        apply("substring", "words", 2.0, 3.0)
        .replace('dataType="double">2.0', 'dataType="integer">2')
        .replace('dataType="double">3.0', 'dataType="integer">3'),
    ),
    "trimmed": (TEXT, apply("trimBlanks", "words")),
    "joined": (TEXT, apply("concat", "words", text("-"), "n", text("/"), "x")),
    "swapped": (TEXT, apply("replace", "words", text("(\\w)(\\w)"), text("$2$1"))),
    "vowel": (NUMBER, apply("if", apply("matches", "words", text("[aeiou]{2}")), 1.0, 0.0)),
    "padded": (TEXT, apply("formatNumber", "n", text("%5d"))),
    "fixed": (TEXT, apply("formatNumber", "x", text("%+.3f"))),
    "date": (TEXT, apply("formatDatetime", "day", text("%d.%m.%Y (%j)"))),
    "days": (NUMBER, apply("dateDaysSinceYear", "day", 1960)),
    "seconds": (NUMBER, apply("dateSecondsSinceYear", "moment", 1980)),
    "of_day": (NUMBER, apply("dateSecondsSinceMidnight", "clock")),
    "cdf": (NUMBER, apply("normalCDF", "x", 0.2, 1.5)),
    "pdf": (NUMBER, apply("normalPDF", "x", 0.2, 1.5)),
    "idf": (NUMBER, apply("normalIDF", apply("stdNormalCDF", "z"), 0.2, 1.5)),
    "error": (NUMBER, apply("erf", "x")),
    "small": (NUMBER, apply("ln1p", apply("expm1", "z"))),
    "side": (NUMBER, apply("hypot", "x", "z")),
    "waves": (
        NUMBER,
        apply("+", apply("sin", "x"), apply("*", apply("cos", "z"), apply("tanh", "x"))),
    ),
    "arcs": (NUMBER, apply("+", apply("atan", "x"), apply("asin", apply("/", "z", 1000.0)))),
    "even": (NUMBER, apply("rint", apply("*", "x", 10.0))),
    "left": (NUMBER, apply("modulo", "x", 0.3)),
    "whole": (NUMBER, apply("/", "n", "n2")),
    "product": (NUMBER, apply("product", "x", "z", 2.0)),
    "half": (NUMBER, apply("half_of", "x", "z")),
    "nested": (NUMBER, apply("half_of", apply("half_of", "z", 1.0), "x")),
    "greeting": (TEXT, apply("greet", "words")),
}


def functions():
    fields = "".join(
        f'<DerivedField name="d_{n}" {kind}>{e}</DerivedField>'
        for n, (kind, e) in FUNCTIONS.items()
    )
    outputs = "".join(
        f'<OutputField name="o_{n}" feature="transformedValue" {kind}><FieldRef field="d_{n}"/></OutputField>'
        for n, (kind, _) in FUNCTIONS.items()
    )
    own = (
        '<DefineFunction name="half_of" optype="continuous" dataType="double"><ParameterField name="a" dataType="double"/><ParameterField name="b"/>'
        + apply("/", apply("-", '<FieldRef field="a"/>', '<FieldRef field="b"/>'), 2.0)
        + "</DefineFunction>"
        '<DefineFunction name="greet" optype="categorical" dataType="string"><ParameterField name="who" dataType="string"/>'
        + apply("concat", text("hello "), apply("lowercase", '<FieldRef field="who"/>'))
        + "</DefineFunction>"
    )
    integer = '<DerivedField name="n2" optype="continuous" dataType="integer"><Apply function="+"><FieldRef field="n"/><Constant dataType="integer">2</Constant></Apply></DerivedField>'
    active = XZN + "".join(
        f'<MiningField name="{n}"/>' for n in ("day", "clock", "moment", "words")
    )
    body = (
        f'<RegressionModel functionName="regression">{schema("y", active)}{output(NUMBER, outputs)}<LocalTransformations>{integer}{fields}</LocalTransformations>'
        '<RegressionTable intercept="1"><NumericPredictor name="x" coefficient="2"/></RegressionTable></RegressionModel>'
    )
    file = document(body, more=f"<TransformationDictionary>{own}</TransformationDictionary>")
    return file.replace("</DataDictionary>", DATES + "</DataDictionary>")


def isolation():
    def tree(depth):
        def split(depth, test):
            if depth == 0 or random.random() < 0.2:
                return f'<Node score="{round(random.uniform(2, 6), 4)}">{test}</Node>'
            field, value = random.choice("xz"), number()
            left = split(depth - 1, simple(field, "lessThan", value))
            right = split(depth - 1, simple(field, "greaterOrEqual", value))
            return f"<Node>{test}{left}{right}</Node>"

        active = '<MiningSchema><MiningField name="x"/><MiningField name="z"/></MiningSchema>'
        return f'<Segment><True/><TreeModel functionName="regression">{active}{split(depth, "<True/>")}</TreeModel></Segment>'

    active = '<MiningSchema><MiningField name="x"/><MiningField name="z"/></MiningSchema>'
    trees = "".join(tree(3) for _ in range(5))
    return (
        f'<AnomalyDetectionModel functionName="regression" algorithmType="iforest" sampleDataSize="64">{active}<Output><OutputField name="result" feature="predictedValue" {NUMBER}/></Output>'
        f'<MiningModel functionName="regression">{active}<Output><OutputField name="depth" feature="predictedValue" {NUMBER}/></Output><Segmentation multipleModelMethod="average">{trees}</Segmentation></MiningModel></AnomalyDetectionModel>'
    )


def cluster_distance():
    body = clusters("<euclidean/>")
    start, end = body.index("<Output>"), body.index("</Output>") + len("</Output>")
    body = body[:start] + body[end:]
    return (
        f'<AnomalyDetectionModel functionName="regression" algorithmType="clusterMeanDist"><MiningSchema>{XZN}</MiningSchema>'
        f'<Output><OutputField name="result" feature="predictedValue" {NUMBER}/></Output>{body}<MeanClusterDistances>{array([0.2, 0.5, 0.3, 0.7])}</MeanClusterDistances></AnomalyDetectionModel>'
    )


def display():
    body = make.regression_classes("softmax")
    values = '<Targets><Target field="class"><TargetValue value="a" displayValue="alpha"/><TargetValue value="b" displayValue="beta"/></Target></Targets>'
    return body.replace(
        "</Output>", shown("display", "predictedDisplayValue") + "</Output>" + values
    )


FILES = {
    "bayes": document(bayes()),
    "functions": functions(),
    "general_cox": document(cox()),
    "general_offset": document(offset()),
}
FILES["vectors_number"] = document(vectors("radial", [""], "y"))
FILES["vectors_sigmoid"] = document(vectors("sigmoid", [""], "y"))
FILES["vectors_pairs"] = document(
    vectors(
        "polynomial",
        [pair("a", "b"), pair("a", "c"), pair("b", "c")],
        attributes='classificationMethod="OneAgainstOne"',
    )
)
for wins in ("true", "false"):
    machines = [f'targetCategory="{c}"' for c in "abc"]
    attributes = f'classificationMethod="OneAgainstAll" maxWins="{wins}"'
    FILES[f"vectors_each_{wins}"] = document(vectors("linear", machines, attributes=attributes))
FILES["vectors_coefficients"] = document(vectors("linear", [""], "y", coefficients=True))
for method in ("average", "median", "weightedAverage"):
    FILES[f"nearest_{method}"] = document(nearest("y", method))
for method in ("majorityVote", "weightedMajorityVote"):
    FILES[f"nearest_{method}"] = document(nearest("class", method))
FILES["nearest_cityBlock"] = document(nearest("y", "average", "<cityBlock/>", compare=False))
for criterion in ("firstHit", "weightedSum", "weightedMax"):
    FILES[f"rules_{criterion}"] = document(rules(criterion))
FILES["clusters_minkowski"] = document(clusters('<minkowski p-parameter="3"/>'))
FILES["clusters_affinity"] = document(clusters("<euclidean/>"))
FILES["clusters_gaussSim"] = document(
    clusters("<squaredEuclidean/>", compare="gaussSim", scale='similarityScale="0.7"')
)
for algorithm in ("pointsAbove", "pointsBelow"):
    FILES[f"reasons_{algorithm}"] = document(reasons(algorithm))
for link in ("logit", "probit", "cloglog", "loglog", "cauchit"):
    FILES[f"ordinal_{link}"] = document(ordinal(link))
FILES["anomaly_iforest"] = document(isolation())
FILES["anomaly_clusters"] = document(cluster_distance())
FILES["display"] = document(display())
# Files of make.py, whose votes JPMML counts as the standard says.
OLD = ("forest_classes_majorityVote", "forest_classes_weightedMajorityVote")


def row(name):
    made = {
        "x": round(random.uniform(-1.2, 1.2), 3),
        "z": round(random.uniform(-1.2, 1.2), 3),
        "n": random.randint(0, 6),
        "colour": random.choice(["red", "green", "blue"]),
        "size": random.choice(["big", "small", "odd"]),
    }
    if random.random() < 0.03:
        made["x"] = random.choice((-1e6, 1e6, 0.0))
    if random.random() < 0.03:
        made["size"] = "never seen"
    if name == "functions":
        for key in ("colour", "size"):
            del made[key]
        made["day"] = (
            f"{random.randint(1950, 2030)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"
        )
        made["clock"] = (
            f"{random.randint(0, 23):02}:{random.randint(0, 59):02}:{random.randint(0, 59):02}"
        )
        made["moment"] = (
            f"{random.randint(1950, 2030)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}T{made['clock']}"
        )
        made["words"] = random.choice(
            ["Grüße aus Köln", "  blanks ", "queue", "A", "ÀÉÎ", "one two three", "x=1;y=2"]
        )
        return made
    if random.random() < 0.5:
        # PMML4S takes a missing category for one of no vector, JPMML raises an error.
        always = ("colour",) if name.startswith("vectors") else ()
        for field in list(made):
            if field not in always and random.random() < 0.25:
                del made[field]
    return made


def plain(value):
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float):
        return float(f"{value:.13g}") if math.isfinite(value) else None
    return value if isinstance(value, (bool, int, str)) else str(value)


def ask(path, name, by):
    """The rows that an evaluator answers, and its predictions."""
    evaluate = make_evaluator(path).evaluate if by == "jpmml" else Model.load(path).predict
    rows, answers, errors = [], [], 0
    while len(rows) < ROWS:
        made = row(name)
        try:
            answer = {str(k): plain(v) for k, v in evaluate(dict(made)).items()}
        except Exception:  # of any kind, from Java
            errors += 1
            if errors > 100 and not rows:
                raise
            continue
        rows.append(made)
        answers.append(answer)
    print(name, by, len(rows), "rows,", errors, "errors")
    return rows, answers


def golden(name):
    """The answers of JPMML, or of PMML4S for models that it does not know."""
    path = os.path.join(HERE, f"{name}.pmml")
    # JPMML 1.7.7 does not take the heaviest rule.
    for by in ("pmml4s",) if name == "rules_weightedMax" else ("jpmml", "pmml4s"):
        rows, answers = [], []
        try:
            rows, answers = ask(path, name, by)
            break
        except Exception as error:  # noqa: BLE001 - of any kind, from Java
            print(name, by, str(error)[:200])
    keys = sorted({k for made in rows for k in made})
    # Without those that the file does not declare.
    with open(path) as file:
        declared = file.read()
    names = {k for answer in answers for k in answer if f'name="{k}"' in declared}
    inputs = {k: [made.get(k) for made in rows] for k in keys}
    return {
        "by": by,
        "inputs": inputs,
        "outputs": {k: [a.get(k) for a in answers] for k in sorted(names)},
    }


if __name__ == "__main__":
    for name, content in FILES.items():
        with open(os.path.join(HERE, f"{name}.pmml"), "w") as file:
            file.write(content)
    goldens = {name: golden(name) for name in [*FILES, *OLD]}
    with gzip.GzipFile(os.path.join(HERE, "goldens.json.gz"), "wb", mtime=0) as file:
        file.write(json.dumps(goldens).encode())
