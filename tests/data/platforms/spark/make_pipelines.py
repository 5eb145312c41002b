"""Makes pipelines.json.gz, expected_pipelines.json.gz and rows.json.gz with Spark 4.1 (pip install
pyspark==4.1.* numpy; Java 17): pipelines of Spark ML, and what Spark's transform makes of 1000 rows with
missing, extreme and unseen values. Another version of Spark makes the same files in another folder.

    python make_pipelines.py [FOLDER [NAME ...]]  # seed 7; with names only these are made again
    python make_pipelines.py --time NAME ...      # how long Spark takes for a row, alone and among 1000
"""

import gzip
import json
import math
import pathlib
import random
import sys
import tempfile
import time

from pyspark.ml import Pipeline
from pyspark.ml import classification as c
from pyspark.ml import clustering as k
from pyspark.ml import feature as f
from pyspark.ml import regression as r
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

random.seed(7)
COUNT = 1000
MODELS, EXPECTED = "pipelines.json.gz", "expected_pipelines.json.gz"
CATEGORIES = ["red", "green", "blue", "Ärger", "dark red"]
CITIES = [
    "Köln",
    "Łódź",
    "İzmir",
    "東京",
    "Oslo",
    "Nice",
    "Bath",
    "Ulm",
    "Bari",
    "Faro",
    "Nis",
    "x y",
]
SENTENCE = """the a Good BAD movie film was plot ÉTÉ straße İstanbul ΣΊΣΥΦΟΣ 東京 great, awful! don't 3D
actor actress scene-by-scene music not never very seen again story I it this is"""
WORDS = SENTENCE.split()
EXTREMES = [0.0, -0.0, 1e300, -1e300, 5e-324, 1e-12, 1e9, -7.0, 1.0]


def number(spread):
    if random.random() < 0.06:
        return random.choice(EXTREMES)
    return round(random.gauss(0, spread), random.choice([1, 3, 17]))


def text():
    separators = [" ", "  ", "\t", ", ", "\n", "\u00a0", ". "]
    words = [random.choice(WORDS) for _ in range(random.randint(0, 12))]
    return "".join(word + random.choice(separators[:1] * 6 + separators) for word in words)


def row(index, is_dirty):
    """A row; one that is dirty may have values that no training data has."""
    values = {
        "id": index,
        "a": number(1) if is_dirty else random.gauss(0, 1),
        "b": abs(number(3)) if is_dirty else random.expovariate(0.5),
        "n": float(random.randint(0, 4)),
        "z": random.choice([0.0, 0.0, 0.0, 1.0, random.random()]),
        "color": random.choice(CATEGORIES),
        "city": random.choice(CITIES),
        "text": text(),
    }
    if is_dirty:
        # NaN stands for null, too, which is missing in an Imputer whatever its missingValue is.
        values["n"] = random.choice([0.0, 1.0, 2.0, 3.0, 4.0, 9.0, 2.5])
        for name in ["a", "b", "n", "z"]:
            if random.random() < 0.05:
                values[name] = math.nan
        if random.random() < 0.05:
            values["color"] = random.choice([None, "unseen", "RED"])
        if random.random() < 0.05:
            values["city"] = random.choice([None, "Rom", "köln"])
    return values


def with_labels(values):
    score = values["a"] + 0.4 * values["b"] - values["n"] / 2 + len(values["text"]) / 90
    score += {"red": 1, "blue": -1}.get(values["color"], 0) + random.gauss(0, 0.3)
    bad = values["text"].lower().count("bad") > 0
    return {
        **values,
        "label": float(score > 0),
        "three": float(min(2, max(0, int(score + 1.5)))),
        "target": score,
        "positive": math.exp(score / 3),
        "count": float(max(0, round(score + 2))),
        "sentiment": float(bad),
        "censor": float(random.random() < 0.8),
        "answer": random.choice(["yes", "no"])
        if random.random() < 0.1
        else "yes"
        if score > 0
        else "no",
    }


TRAIN = [with_labels(row(i, False)) for i in range(400)]
CLEAN = [row(i, False) for i in range(COUNT)]
for values in CLEAN[::7]:
    values["a"] = random.choice([0.0, -0.0, 50.0, -1e6, 1e9, 1e-300])
    values["b"] = random.choice([0.0, 1e3, 1e-9])
DIRTY = [row(i, True) for i in range(COUNT)]

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.default.parallelism", "1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
SCHEMA = "id long, a double, b double, n double, z double, color string, city string, text string"
LABELS = ", label double, three double, target double, positive double, count double"
LABELS += ", sentiment double, censor double, answer string"


def frame(rows, schema):
    return spark.createDataFrame([tuple(values.values()) for values in rows], schema).coalesce(1)


train = frame(TRAIN, SCHEMA + LABELS).cache()
NULLS = [{**values, "a": None if math.isnan(values["a"]) else values["a"]} for values in DIRTY]
FRAMES = {
    "clean": frame(CLEAN, SCHEMA).cache(),
    "dirty": frame(DIRTY, SCHEMA).cache(),
    "nulls": frame(NULLS, SCHEMA).cache(),
}
NUMBERS = ["a", "b", "n", "z"]


def assemble(inputs=None, output="features", invalid="keep"):
    return f.VectorAssembler(inputCols=inputs or NUMBERS, outputCol=output, handleInvalid=invalid)


def index(name, invalid="keep"):
    return f.StringIndexer(inputCol=name, outputCol=f"{name}_i", handleInvalid=invalid)


def one_hot(names, **options):
    outputs = [f"{name}_v" for name in names]
    return f.OneHotEncoder(inputCols=[f"{n}_i" for n in names], outputCols=outputs, **options)


def scaled(kind, **options):
    return kind(inputCol="features", outputCol="scaled", **options)


def impute(names):
    return f.Imputer(inputCols=names, outputCols=[f"{name}_f" for name in names], strategy="median")


def tokens(**options):
    return f.RegexTokenizer(inputCol="text", outputCol="words", **options)


def made():
    """The pipelines: their names, rows, and stages."""
    three = {"labelCol": "three"}
    target = {"labelCol": "target"}
    features = {"featuresCol": "scaled"}
    filled = [impute(NUMBERS), assemble([f"{name}_f" for name in NUMBERS])]
    yield (
        "tree_classifier",
        "dirty",
        [
            index("color"),
            assemble([*NUMBERS, "color_i"]),
            f.VectorIndexer(
                inputCol="features", outputCol="vi", maxCategories=7, handleInvalid="keep"
            ),
            c.DecisionTreeClassifier(featuresCol="vi", maxDepth=6, **three).setThresholds(
                [0.5, 0.3, 0.6]
            ),
        ],
    )
    labels = f.StringIndexer(inputCol="answer", outputCol="answer_i").fit(train)
    yield (
        "forest_classifier",
        "dirty",
        [
            labels,
            f.StringIndexer(
                inputCols=["color", "city"], outputCols=["color_i", "city_i"], handleInvalid="keep"
            ),
            one_hot(["color", "city"], handleInvalid="keep"),
            assemble([*NUMBERS, "color_v", "city_v"]),
            c.RandomForestClassifier(labelCol="answer_i", numTrees=6, maxDepth=4, seed=7),
            f.IndexToString(inputCol="prediction", outputCol="answered", labels=labels.labels),
        ],
    )
    yield (
        "forest_regressor",
        "dirty",
        [
            impute(["a", "b"]),
            f.Bucketizer(
                splits=[-math.inf, 0.5, 2.0, 3.5, math.inf],
                inputCol="n",
                outputCol="bucket",
                handleInvalid="keep",
            ),
            assemble(["a_f", "b_f", "bucket"]),
            r.RandomForestRegressor(numTrees=5, maxDepth=4, seed=7, **target),
        ],
    )
    yield (
        "tree_regressor",
        "dirty",
        [
            f.Imputer(inputCols=["a"], outputCols=["a_f"], missingValue=1.0),
            f.Binarizer(inputCol="z", outputCol="is_z", threshold=0.2),
            assemble(["a_f", "is_z", "n"], invalid="skip"),
            r.DecisionTreeRegressor(maxDepth=4, predictionCol="estimate", **target),
        ],
    )
    yield (
        "gbt_classifier",
        "dirty",
        [
            index("color"),
            assemble([*NUMBERS, "color_i"]),
            f.VectorIndexer(
                inputCol="features", outputCol="vi", maxCategories=8, handleInvalid="keep"
            ),
            c.GBTClassifier(featuresCol="vi", maxIter=6, maxDepth=4, seed=7),
        ],
    )
    yield (
        "gbt_regressor",
        "dirty",
        [assemble(), r.GBTRegressor(maxIter=5, maxDepth=4, seed=7, **target)],
    )
    yield (
        "logistic_skip",
        "dirty",
        [
            index("color", "skip"),
            index("n", "skip"),
            one_hot(["color", "n"], dropLast=False),
            assemble(["a", "b", "color_v", "n_v"], invalid="skip"),
            scaled(f.StandardScaler, withMean=True),
            c.LogisticRegression(threshold=0.4, **features),
        ],
    )
    yield (
        "logistic_thresholds",
        "dirty",
        [
            *filled,
            scaled(f.MinMaxScaler, min=-1.0, max=2.0),
            c.LogisticRegression(
                thresholds=[0.2, 0.5, 0.3], family="multinomial", **features, **three
            ),
        ],
    )
    yield (
        "linear_max_abs",
        "dirty",
        [*filled, scaled(f.MaxAbsScaler), r.LinearRegression(**features, **target)],
    )
    yield (
        "poisson_robust",
        "clean",
        [
            assemble(invalid="error"),
            scaled(f.RobustScaler, withCentering=True),
            r.GeneralizedLinearRegression(
                family="poisson", linkPredictionCol="link", labelCol="count", maxIter=8, **features
            ),
        ],
    )
    for name, options in {
        "gamma": {"family": "gamma", "link": "log", "labelCol": "positive"},
        "binomial": {"family": "binomial", "link": "probit", "labelCol": "label"},
        "tweedie": {
            "family": "tweedie",
            "variancePower": 1.5,
            "linkPower": -0.5,
            "labelCol": "positive",
        },
        "cloglog": {"family": "binomial", "link": "cloglog", "labelCol": "label"},
        "gaussian": {"family": "gaussian", "offsetCol": "z", "labelCol": "target"},
    }.items():
        model = r.GeneralizedLinearRegression(maxIter=5, regParam=0.1, **options)
        yield f"general_{name}", "clean", [assemble(["a", "b"]), model]
    yield (
        "svc_normalizer",
        "dirty",
        [*filled, scaled(f.Normalizer, p=1.0), c.LinearSVC(maxIter=10, threshold=0.1, **features)],
    )
    yield (
        "network_pca",
        "dirty",
        [
            *filled,
            scaled(f.PCA, k=3),
            c.MultilayerPerceptronClassifier(
                layers=[3, 5, 4, 3], maxIter=30, seed=7, **features, **three
            ),
        ],
    )
    yield (
        "polynomial",
        "clean",
        [
            assemble(["a", "n", "z"]),
            scaled(f.PolynomialExpansion, degree=3),
            r.LinearRegression(**features, **target),
        ],
    )
    yield (
        "quantiles_bayes",
        "dirty",
        [
            f.QuantileDiscretizer(
                inputCols=["a", "b"], outputCols=["a_i", "b_i"], numBuckets=4, handleInvalid="keep"
            ),
            one_hot(["a", "b"], handleInvalid="keep"),
            assemble(["a_v", "b_v"]),
            c.NaiveBayes(**three),
        ],
    )
    yield (
        "bernoulli_bayes",
        "clean",
        [
            assemble(["a", "z", "n"]),
            scaled(f.Binarizer, threshold=0.3),
            c.NaiveBayes(modelType="bernoulli", **features, **three),
        ],
    )
    yield (
        "complement_bayes",
        "clean",
        [
            assemble(["b", "n", "z"]),
            c.NaiveBayes(modelType="complement", thresholds=[0.5, 0.2, 0.4], **three),
        ],
    )
    yield "gaussian_bayes", "dirty", [*filled, c.NaiveBayes(modelType="gaussian", **three)]
    yield "kmeans", "dirty", [*filled, scaled(f.StandardScaler), k.KMeans(k=5, seed=7, **features)]
    yield (
        "bisecting_kmeans",
        "clean",
        [
            assemble(["b", "n", "z"]),
            f.ElementwiseProduct(
                inputCol="features", outputCol="scaled", scalingVec=Vectors.dense([1.0, 2.0, 0.5])
            ),
            f.VectorSizeHint(inputCol="scaled", size=3),
            k.BisectingKMeans(k=4, seed=7, **features),
        ],
    )
    yield "mixture", "clean", [assemble(["a", "b", "z"]), k.GaussianMixture(k=3, seed=7)]
    yield (
        "one_vs_rest",
        "dirty",
        [
            *filled,
            scaled(f.StandardScaler),
            c.OneVsRest(classifier=c.LogisticRegression(regParam=0.01), **features, **three),
        ],
    )
    yield (
        "factor_classifier",
        "clean",
        [
            assemble(),
            scaled(f.MinMaxScaler),
            c.FMClassifier(factorSize=3, maxIter=20, seed=7, **features),
        ],
    )
    yield (
        "factor_regressor",
        "clean",
        [assemble(), r.FMRegressor(factorSize=2, maxIter=20, seed=7, **target)],
    )
    yield (
        "isotonic",
        "clean",
        [assemble(["b", "a"]), r.IsotonicRegression(featureIndex=1, **target)],
    )
    yield (
        "survival",
        "clean",
        [
            assemble(["z", "n"]),
            r.AFTSurvivalRegression(labelCol="positive", censorCol="censor", maxIter=10),
        ],
    )
    selected = {"featuresCol": "features", "outputCol": "scaled"}
    yield (
        "selectors",
        "dirty",
        [
            impute(NUMBERS),
            index("color"),
            index("city"),
            one_hot(["color", "city"]),
            assemble(["n_f", "color_v", "city_v", "b_f"]),
            f.UnivariateFeatureSelector(labelCol="three", **selected)
            .setFeatureType("continuous")
            .setLabelType("categorical")
            .setSelectionThreshold(12),
            f.VarianceThresholdSelector(
                featuresCol="scaled", outputCol="varied", varianceThreshold=0.02
            ),
            f.VectorSlicer(inputCol="varied", outputCol="sliced", indices=[0, 3, 2]),
            f.Interaction(inputCols=["a_f", "sliced"], outputCol="product"),
            assemble(["sliced", "product"], output="both"),
            r.LinearRegression(featuresCol="both", **target),
        ],
    )
    yield (
        "formula",
        "dirty",
        [
            f.RFormula(formula="three ~ a + color + n:b + z", handleInvalid="keep"),
            c.LogisticRegression(regParam=0.01, labelCol="label"),
        ],
    )
    sentiment = {"labelCol": "sentiment"}
    yield (
        "text_hashing",
        "dirty",
        [
            f.Tokenizer(inputCol="text", outputCol="words"),
            f.StopWordsRemover(inputCol="words", outputCol="kept"),
            f.HashingTF(inputCol="kept", outputCol="hashed", numFeatures=4096),
            f.IDF(inputCol="hashed", outputCol="features", minDocFreq=2),
            c.LogisticRegression(regParam=0.05, elasticNetParam=0.9, maxIter=20, **sentiment),
        ],
    )
    yield (
        "text_counts",
        "dirty",
        [
            tokens(pattern=r"\W+", minTokenLength=2),
            f.NGram(inputCol="words", outputCol="pairs", n=2),
            f.CountVectorizer(inputCol="words", outputCol="counts", minDF=3.0, minTF=0.1),
            f.CountVectorizer(
                inputCol="pairs", outputCol="pair_counts", minDF=4.0, binary=True, vocabSize=40
            ),
            assemble(["counts", "pair_counts", "z"], invalid="skip"),
            c.NaiveBayes(**sentiment),
        ],
    )
    yield (
        "text_pattern",
        "clean",
        [
            tokens(pattern=r"[\p{L}\d'-]+", gaps=False, toLowercase=False),
            f.StopWordsRemover(
                inputCol="words", outputCol="kept", stopWords=["I", "İt", "is"], caseSensitive=True
            ),
            f.HashingTF(inputCol="kept", outputCol="features", numFeatures=600, binary=True),
            f.Normalizer(inputCol="features", outputCol="normal"),
            c.LinearSVC(featuresCol="normal", maxIter=10, **sentiment),
        ],
    )
    yield (
        "kmeans_cosine",
        "clean",
        [
            f.Bucketizer(splits=[-math.inf, 1e-6, math.inf], inputCol="b", outputCol="is_b"),
            f.OneHotEncoder(inputCol="is_b", outputCol="is_b_v", dropLast=False),
            assemble(["b", "n", "z", "is_b_v"]),
            k.KMeans(k=4, seed=7, distanceMeasure="cosine"),
        ],
    )
    yield "transformers", "dirty", [index("city")]


def plain(value):
    """A value of a column as JSON."""
    if hasattr(value, "toArray"):
        return [plain(float(number)) for number in value.toArray()]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def answers(model, name):
    """The columns that `transform` adds, by the ids of their rows."""
    table = model.transform(FRAMES[name])
    kept = ["prediction", "estimate", "probability", "rawPrediction", "link", "answered", "city_i"]
    kept = [column for column in kept if column in table.columns]
    if "prediction" in kept and "city_i" in kept:
        kept.remove("city_i")
    rows = {
        row["id"]: [plain(row[column]) for column in kept]
        for row in table.select("id", *kept).collect()
    }
    # rawPrediction is checked on fewer rows: it has the same sums as the probabilities.
    found = {}
    for at, column in enumerate(kept):
        limit = 100 if column == "rawPrediction" and "probability" in kept else COUNT
        found[column] = [rows[i][at] if i in rows else None for i in range(limit)]
    return found


def files_of(folder):
    found = {}
    for path in sorted(folder.rglob("part-*")):
        found[str(path.relative_to(folder))] = path.read_bytes().decode("latin-1")
    return found


def write(path, content):
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def read(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def main(folder, only):
    models, expected = {}, {}
    if only:
        models, expected = (read(folder / name) for name in (MODELS, EXPECTED))
    codecs = ["snappy"] * 5 + ["gzip", "zstd", "uncompressed"]
    with tempfile.TemporaryDirectory() as temporary:
        for number, (name, rows, stages) in enumerate(made()):
            if only and name not in only:
                continue
            model = Pipeline(stages=stages).fit(train)
            spark.conf.set("spark.sql.parquet.compression.codec", codecs[number % len(codecs)])
            path = pathlib.Path(temporary) / name
            model.write().overwrite().save(str(path))
            models[name] = files_of(path)
            outputs = answers(model, "nulls" if name == "tree_regressor" else rows)
            expected[name] = {"rows": rows, "outputs": outputs}
            print(name, len(models[name]), flush=True)
    write(folder / MODELS, models)
    write(folder / EXPECTED, expected)
    for rows in (CLEAN, DIRTY):
        for values in rows:
            values.pop("id")
    columns = {
        name: {key: [plain(values[key]) for values in rows] for key in rows[0]}
        for name, rows in (("clean", CLEAN), ("dirty", DIRTY))
    }
    write(folder / "rows.json.gz", columns)


def measure(names):
    for name, rows, stages in made():
        if name not in names:
            continue
        model = Pipeline(stages=stages).fit(train)
        for count in (1, COUNT):
            table = FRAMES[rows].limit(count).cache()
            table.count()
            times = []
            for _ in range(30):
                start = time.perf_counter()
                model.transform(table).select("prediction").collect()
                times.append(time.perf_counter() - start)
            print(name, count, f"{sorted(times)[15] / count * 1e6:.1f} µs a row", flush=True)


if sys.argv[1:2] == ["--time"]:
    measure(sys.argv[2:])
else:
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."), sys.argv[2:])
