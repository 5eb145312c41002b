"""Makes MOJOs of every algorithm that is read, and what H2O's own scorer predicts for 1000 rows, with
missing, unknown and extreme values.

    pip install h2o==3.46.0.6 pandas        # and Java 8 to 17
    make_h2o.py FOLDER

Writes `rows.csv`, and for each model `NAME.zip` (without `experimental/`, which nobody needs to score)
and `NAME.csv.gz`: the predictions of `hex.genmodel.tools.PredictCsv`. `iris_gbm.zip` and `iris_glm.zip`
are scored as well, with `iris_rows.csv`: they are as another program's author exported them, from the
data of scikit-learn's `load_iris`.
"""

import csv
import gzip
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import h2o
from h2o.estimators import (
    H2OAutoEncoderEstimator,
    H2ODeepLearningEstimator,
    H2OExtendedIsolationForestEstimator,
    H2OGeneralizedLinearEstimator,
    H2OGradientBoostingEstimator,
    H2OIsolationForestEstimator,
    H2OKMeansEstimator,
    H2OPrincipalComponentAnalysisEstimator,
    H2ORandomForestEstimator,
    H2OStackedEnsembleEstimator,
    H2OXGBoostEstimator,
)

FOLDER = Path(sys.argv[1])
JAR = Path(h2o.__file__).parent / "backend/bin/h2o.jar"
SEED = 7
ROWS = 1000
NUMBERS = ["a", "b", "count", "rare"]
CITIES = [f"city {n:02}" for n in range(44)] + ["Zürich", 'say "x"', "a\\nb", "über\\"]
COLORS = ["red", "green", "blue"]
LEVELS = ["color", "city", "code"]
FEATURES = ["a", "color", "b", "city", "count", "code", "rare"]
OFFSET = "shift"
EXTREME = [0.0, -0.0, 1e300, -1e300, 1e-300, 3.4e38, -3.4e38, 1e19, 2**31, -(2**31), 709.0, -745.0]

random.seed(SEED)


def features():
    return {
        "a": random.gauss(0, 1),
        "b": random.expovariate(0.5),
        "count": float(random.randrange(12)),
        "rare": 0.0 if random.random() < 0.8 else random.gauss(3, 1),
        "color": random.choice(COLORS),
        "city": random.choice(CITIES),
        "code": str(random.choice([1, 2, 3, 7])),
        OFFSET: random.random(),
    }


def response(row):
    city = CITIES.index(row["city"])
    signal = (
        row["a"] * 1.5
        - (row["b"] - 2) * (row["color"] == "red")
        + (city % 7 - 3) * 0.6
        + (row["rare"] > 0)
        + (row["count"] > 6) * row["a"]
        + (row["code"] == "7")
        + random.gauss(0, 0.5)
    )
    return {
        "number": signal,
        "positive": max(0.05, 2.718 ** (signal / 3)),
        "events": float(int(max(0.0, signal + 2))),
        "yes": "yes" if signal > 0.5 else "no",
        "bit": str(int(signal > 1)),
        "share": 1 / (1 + 2.718**-signal),
        "zero_one": float(signal > 0),
        "class": "wxyz"[sum(signal > limit for limit in (-1.5, 0.5, 2))],
        "order": "0123"[sum(signal > limit for limit in (-1.5, 0.5, 2))],
    }


def write(path, rows, **form):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n", **form)
        writer.writeheader()
        writer.writerows(rows)


def damaged(row, index):
    """The row with missing, unknown and extreme values."""
    row = dict(row)
    if index == 0:
        return {name: value if name == OFFSET else "" for name, value in row.items()}
    for name in NUMBERS:
        if random.random() < 0.12:
            row[name] = ""
        elif random.random() < 0.12:
            row[name] = random.choice(EXTREME)
    for name in LEVELS:
        if random.random() < 0.12:
            row[name] = ""
        elif random.random() < 0.08:
            row[name] = random.choice(["nowhere", "Red", " red", "99", "é"])
    return row


def holes(row):
    return {k: "" if k in FEATURES and random.random() < 0.04 else v for k, v in row.items()}


def split(path):
    """Leaves the parts out of an archive that describe the model to people."""
    with zipfile.ZipFile(path) as archive:
        files = {
            name: archive.read(name) for name in archive.namelist() if "experimental/" not in name
        }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)


def score(mojo, rows, name, *options):
    out = FOLDER / f"{name}.csv"
    command = [
        "java",
        "-Dfile.encoding=UTF-8",
        "-cp",
        JAR,
        "hex.genmodel.tools.PredictCsv",
        "--mojo",
        mojo,
    ]
    command += ["--input", rows, "--output", out, "--decimal", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    content = out.read_bytes()
    out.unlink()
    with gzip.GzipFile(FOLDER / f"{name}.csv.gz", "wb", 9, mtime=0) as file:
        file.write(content)


def save(name, model, *options):
    path = Path(model.download_mojo(str(FOLDER / f"{name}.zip")))
    score(path, FOLDER / "rows.csv", name, *options)
    split(path)
    print(name, path.stat().st_size, (FOLDER / f"{name}.csv.gz").stat().st_size, flush=True)


FOLDER.mkdir(parents=True, exist_ok=True)
inputs = [features() for _ in range(1500)]
train = [holes(row | response(row)) for row in inputs]
write(FOLDER / "train.csv", train)
# PredictCsv takes a backslash for an escape.
asked = [damaged(features(), index) for index in range(ROWS)]
write(FOLDER / "rows.csv", asked, escapechar="\\")
h2o.init(nthreads=1, max_mem_size="2g", port=54779)
h2o.no_progress()
types = dict.fromkeys([*LEVELS, "yes", "bit", "class", "order"], "enum")
frame = h2o.import_file(str(FOLDER / "train.csv"), col_types=types)
(FOLDER / "train.csv").unlink()


def fit(name, estimator, y=None, x=None, options=()):
    columns = {"x": x or FEATURES, "training_frame": frame}
    if y:
        columns["y"] = y
    estimator.train(**columns)
    save(name, estimator, *options)
    return estimator


def gbm(name, y, options=(), **settings):
    settings = {"ntrees": 5, "max_depth": 4, "seed": SEED} | settings
    return fit(name, H2OGradientBoostingEstimator(**settings), y, options=options)


gbm("gbm_bernoulli", "yes")
gbm("gbm_integer_classes", "bit", nbins_cats=8)
gbm("gbm_multinomial", "class", ntrees=4, max_depth=3)
gbm("gbm_balanced", "class", ntrees=2, max_depth=3, balance_classes=True)
gbm("gbm_gaussian", "number", max_depth=6)
gbm("gbm_poisson_offset", "events", distribution="poisson", offset_column=OFFSET)
gbm("gbm_gamma", "positive", distribution="gamma")
gbm("gbm_quantile", "number", distribution="quantile", quantile_alpha=0.8)
gbm("gbm_huber", "number", distribution="huber")
gbm("gbm_tweedie", "events", distribution="tweedie")
gbm("gbm_quasibinomial", "zero_one", distribution="quasibinomial")
for method in ("PlattScaling", "IsotonicRegression"):
    gbm(
        f"gbm_calibrated_{method}",
        "yes",
        ["--predictCalibrated"],
        ntrees=3,
        calibrate_model=True,
        calibration_method=method,
        calibration_frame=frame,
    )
for encoding in ("label_encoder", "one_hot_explicit", "enum_limited", "sort_by_response"):
    gbm(f"gbm_{encoding}", "yes", ntrees=3, categorical_encoding=encoding)
for encoding in ("binary", "eigen"):
    gbm(f"refused_{encoding}", "yes", ntrees=1, max_depth=2, categorical_encoding=encoding)


def drf(name, y, **settings):
    settings = {"ntrees": 5, "max_depth": 5, "seed": SEED} | settings
    return fit(name, H2ORandomForestEstimator(**settings), y)


drf("drf_binomial", "yes")
drf("drf_double_trees", "yes", binomial_double_trees=True, ntrees=3)
drf("drf_multinomial", "class", ntrees=3, max_depth=4)
drf("drf_regression", "number")
drf("drf_balanced", "bit", balance_classes=True, ntrees=3)

settings = {"ntrees": 10, "sample_size": 64, "seed": SEED}
fit("isolation", H2OIsolationForestEstimator(**settings))
fit("isolation_flag", H2OIsolationForestEstimator(contamination=0.1, **settings))
fit(
    "extended_isolation",
    H2OExtendedIsolationForestEstimator(ntrees=5, sample_size=32, extension_level=2, seed=SEED),
    x=["a", "b", "count", "rare", "color"],
)


def glm(name, y, x=None, **settings):
    settings = {"seed": SEED, "lambda_": 0.001} | settings
    return fit(name, H2OGeneralizedLinearEstimator(**settings), y, x)


glm("glm_gaussian", "number")
# PredictCsv fails for missing levels here.
skip = {"missing_values_handling": "skip", "standardize": False}
glm("glm_gaussian_skip", "number", NUMBERS, **skip)
glm("glm_binomial", "yes", family="binomial")
glm("glm_binomial_offset", "bit", family="binomial", offset_column=OFFSET)
glm("glm_unpenalized", "yes", family="binomial", lambda_=0)
glm("glm_multinomial", "class", family="multinomial")
glm("glm_ordinal", "order", family="ordinal", max_iterations=50)
glm("glm_poisson_offset", "events", family="poisson", offset_column=OFFSET)
glm("glm_gamma_inverse", "positive", family="gamma", link="inverse")
glm("glm_gamma_log", "positive", family="gamma", link="log")
glm("glm_tweedie", "events", family="tweedie", tweedie_variance_power=1.5, tweedie_link_power=0)
glm("glm_tweedie_power", "positive", family="tweedie", tweedie_link_power=0.5)
glm("glm_negative_binomial", "events", family="negativebinomial", theta=0.5)
glm("glm_quasibinomial", "zero_one", family="quasibinomial")
glm("glm_fractional", "share", family="fractionalbinomial")

fit("kmeans", H2OKMeansEstimator(k=4, seed=SEED))
fit("kmeans_raw", H2OKMeansEstimator(k=3, seed=SEED, standardize=False), x=["a", "color", "b"])


def network(name, y, **settings):
    settings = {"hidden": [9, 5], "epochs": 2, "seed": SEED, "reproducible": True} | settings
    return fit(name, H2ODeepLearningEstimator(**settings), y)


network("network_rectifier", "number")
network("network_tanh", "class", activation="tanh")
network("network_maxout", "yes", activation="maxout_with_dropout", hidden_dropout_ratios=[0.2, 0.1])
network("network_poisson", "events", activation="maxout", distribution="poisson")
network("network_dropout", "bit", activation="rectifier_with_dropout", balance_classes=True)
network("network_huber", "number", distribution="huber", standardize=False)
encoder = H2OAutoEncoderEstimator(hidden=[4], epochs=2, seed=SEED, reproducible=True)
fit("network_encoder", encoder, x=["a", "b", "color", "count"])


def boosted(name, y, **settings):
    settings = {"ntrees": 4, "max_depth": 4, "seed": SEED} | settings
    return fit(name, H2OXGBoostEstimator(**settings), y)


boosted("xgboost_binomial", "yes")
boosted("xgboost_sparse", "bit", dmatrix_type="sparse")
boosted("xgboost_multinomial", "class", ntrees=3, max_depth=3)
boosted("xgboost_gamma", "positive", distribution="gamma")
boosted("xgboost_poisson", "events", distribution="poisson")
boosted("xgboost_gaussian_offset", "number", offset_column=OFFSET)
boosted("xgboost_dart", "yes", booster="dart", rate_drop=0.3)
boosted("xgboost_linear", "yes", booster="gblinear")


def ensemble(name, y, learners, **settings):
    folds = {"nfolds": 3, "fold_assignment": "modulo", "seed": SEED}
    folds["keep_cross_validation_predictions"] = True
    models = []
    for learner, own in learners:
        models.append(learner(**folds, **own))
        models[-1].train(x=FEATURES, y=y, training_frame=frame)
    return fit(name, H2OStackedEnsembleEstimator(base_models=models, seed=SEED, **settings), y)


trees = (H2OGradientBoostingEstimator, {"ntrees": 3, "max_depth": 3})
forest = (H2ORandomForestEstimator, {"ntrees": 3, "max_depth": 3})
linear = H2OGeneralizedLinearEstimator
ensemble("ensemble_binomial", "yes", [trees, forest, (linear, {"family": "binomial"})])
ensemble(
    "ensemble_multinomial",
    "class",
    [trees, (linear, {"family": "multinomial"})],
    metalearner_transform="logit",
)
ensemble(
    "ensemble_regression",
    "number",
    [trees, (H2OXGBoostEstimator, {"ntrees": 3, "max_depth": 3}), (linear, {})],
    metalearner_algorithm="gbm",
    metalearner_params={"ntrees": 3, "max_depth": 3},
)

pca = H2OPrincipalComponentAnalysisEstimator(k=2, seed=SEED)
pca.train(x=NUMBERS, training_frame=frame)
split(pca.download_mojo(str(FOLDER / "refused_pca.zip")))
for name in ("refused_binary", "refused_eigen"):
    (FOLDER / f"{name}.csv.gz").unlink()

iris = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
iris_rows = []
for index in range(ROWS):
    row = {name: round(random.uniform(0, 8), 1) for name in iris}
    for name in iris:
        if index and random.random() < 0.1:
            row[name] = random.choice(["", *EXTREME])
    iris_rows.append(row)
write(FOLDER / "iris_rows.csv", iris_rows)
for name in ("iris_gbm", "iris_glm"):
    mojo = Path(__file__).parent / f"{name}.zip"
    score(mojo, FOLDER / "iris_rows.csv", name)
h2o.cluster().shutdown()
