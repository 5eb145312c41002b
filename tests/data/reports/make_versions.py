"""Writes models of the same kinds as the reports here, in the folders `versions/NAME-VERSION`: what changed
between versions of scikit-learn, and what was refused. Each has the values that this version predicts.

pip install scikit-learn==VERSION pandas && python tests/data/reports/make_versions.py
"""

import json
import os
import pickle
import warnings

import numpy as np
import sklearn
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.feature_selection import RFE, RFECV
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    RidgeClassifier,
    SGDRegressor,
)
from sklearn.neighbors import KNeighborsClassifier, RadiusNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, OneHotEncoder, QuantileTransformer, StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

warnings.filterwarnings("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
VERSION = tuple(int(part) for part in sklearn.__version__.split(".")[:2])
METHODS = ["predict", "predict_proba", "predict_log_proba"]
random = np.random.RandomState(0)
X = random.normal(size=(80, 3)).round(2)
ROWS = (random.normal(size=(30, 3)) * 1.5).round(2)
CLASSES = np.digitize(X[:, 0] + X[:, 1] / 2, [-0.5, 0.5])
LABELS = np.c_[X[:, 0] > 0, X[:, 1] > 0].astype(int)
CODES = np.c_[random.randint(0, 4, 80), random.randint(0, 5, 80), random.randint(0, 3, 80)]
CODES[CODES[:, 1] == 2, 1] = 4
SEEN_CODES = np.array([[0, 1, 2], [3, 4, 0], [1, 2, 1], [2, 0, 0]])


def plain(values):
    values = values.toarray() if hasattr(values, "toarray") else values
    numbers = np.asarray(values)
    if numbers.dtype.kind == "f":
        numbers = np.where(np.isinf(numbers), None, numbers)
    return numbers.tolist()


def outputs(model, rows, methods):
    made = {}
    for method in methods:
        if not hasattr(model, method):
            continue
        values = getattr(model, method)(rows)
        if isinstance(values, list):
            for number, one in enumerate(values):
                made[f"{method}_{number}"] = plain(one)
        else:
            made[method] = plain(values)
    return made


def write(name, model, rows=ROWS, methods=METHODS, inputs=None, refused=None):
    folder = os.path.join(HERE, "versions", f"{name}-{VERSION[0]}.{VERSION[1]}")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "model.pkl"), "wb") as file:
        pickle.dump(model, file, protocol=2)
    if refused:
        with open(os.path.join(folder, "model.refused.txt"), "w") as file:
            file.write(refused + "\n")
        return
    request = {"inputs": inputs or {"data": rows.tolist()}}
    for file_name, value in [("request", request), ("right", outputs(model, rows, methods))]:
        with open(os.path.join(folder, file_name + ".json"), "w") as file:
            file.write(json.dumps(value) + "\n")


def isolation():
    settings = {"n_estimators": 4, "random_state": 0, "max_samples": 20}
    write("isolation", IsolationForest(max_features=2, **settings).fit(X), methods=["predict"])
    if VERSION in [(0, 20), (0, 21)]:
        model = IsolationForest(behaviour="new", contamination="auto", **settings).fit(X)
        write("isolation-new", model, methods=["predict"])


def quantiles():
    rows = np.r_[X[:10], ROWS, X.min(0)[None], X.max(0)[None], X.min(0)[None] + 5e-8]
    for shape in ["uniform", "normal"]:
        model = QuantileTransformer(n_quantiles=7, output_distribution=shape).fit(X)
        write("quantiles-" + shape, model, rows, ["transform"])


def bins():
    from sklearn.preprocessing import KBinsDiscretizer  # noqa: PLC0415 - since 0.20

    rows = np.arange(-20, 121)[:, None] / 100.0
    train = np.linspace(0, 1, 11)[:, None]
    model = KBinsDiscretizer(n_bins=10, encode="onehot", strategy="uniform").fit(train)
    write("bins", model, rows, ["transform"])
    if VERSION >= (0, 24):
        single = KBinsDiscretizer(n_bins=7, encode="ordinal", strategy="uniform", dtype=np.float32)
        write("bins-single", single.fit(train), rows, ["transform"])


def one_hot():
    above = np.r_[SEEN_CODES, [[9, 1, 7]]]
    target = CODES[:, 1] > 2
    settings = {"handle_unknown": "ignore"}
    write("onehot", OneHotEncoder().fit(CODES), SEEN_CODES, ["transform"])
    encoder = OneHotEncoder(n_values=6, **settings).fit(CODES)
    write("onehot-number", encoder, above, ["transform"])
    for name, chosen in [("index", [0, -1]), ("mask", np.array([True, False, True]))]:
        encoder = OneHotEncoder(categorical_features=chosen, sparse=name == "index", **settings)
        write(
            "onehot-" + name, make_pipeline(encoder, LogisticRegression()).fit(CODES, target), above
        )
    encoder = OneHotEncoder(categorical_features=[0, 1]).fit(CODES)
    write("onehot-alone", encoder, refused="indices where no step tells the number of columns")
    encoder = make_pipeline(
        OneHotEncoder(categorical_features=np.array([False, True, False])), Normalizer()
    )
    write(
        "onehot-steps", make_pipeline(encoder, LogisticRegression()).fit(CODES, target), SEEN_CODES
    )


def selections():
    write("rfe", RFE(LogisticRegression(), n_features_to_select=2).fit(X, CLASSES))
    model = RFECV(DecisionTreeRegressor(max_depth=2, random_state=0), cv=3).fit(X, X[:, 0])
    write("rfecv", make_pipeline(StandardScaler(), model).fit(X, X[:, 0]))


def sparsified():
    write("sparse-classifier", LogisticRegression().fit(X, CLASSES).sparsify())
    write("sparse-regressor", SGDRegressor(random_state=0).fit(X, X[:, 0]).sparsify())


def labels():
    from sklearn.ensemble import StackingClassifier  # noqa: PLC0415 - since 0.22
    from sklearn.neural_network import MLPClassifier  # noqa: PLC0415

    write("ridge-labels", RidgeClassifier().fit(X, np.c_[LABELS, X[:, 2] > 0]))
    if VERSION >= (1, 2):
        members = [
            ("a", KNeighborsClassifier(3)),
            ("b", RandomForestClassifier(3, max_depth=2, random_state=0)),
            ("c", RidgeClassifier()),
            ("d", MLPClassifier(hidden_layer_sizes=(2,), max_iter=20, random_state=0)),
        ]
        last = DecisionTreeClassifier(max_depth=3, random_state=0)
        write(
            "stacked-labels", StackingClassifier(members, final_estimator=last, cv=3).fit(X, LABELS)
        )


def texts():
    import pandas as pd  # noqa: PLC0415
    from sklearn.preprocessing import OrdinalEncoder  # noqa: PLC0415

    known = np.array(["x", "", "y", "z"] * 5, dtype=object)
    missing = np.array(["x", "", None, "y"] * 5, dtype=object)
    asked = {"city": ["x", "", None, "y"]}
    target = np.arange(20) % 4
    tree = DecisionTreeRegressor(random_state=0)
    for name, encoder, values in [
        ("texts-unknown", OneHotEncoder(handle_unknown="ignore"), known),
        ("texts-onehot", OneHotEncoder(), missing),
        ("texts-ordinal", OrdinalEncoder(), np.where(missing == None, np.nan, missing)),  # noqa: E711
    ]:
        if name == "texts-ordinal":
            encoder.set_params(encoded_missing_value=-1)
        model = make_pipeline(encoder, tree).fit(pd.DataFrame({"city": values}), target)
        rows = pd.DataFrame({"city": np.array(asked["city"], dtype=object)})
        if name == "texts-ordinal":
            rows = rows.where(rows.notna(), np.nan)
        write(name, model, rows, ["predict"], asked)


def outliers():
    for name, classes, label in [
        ("numbers", LABELS[:, 0], 1),
        ("texts", np.array(["a", "b"])[LABELS[:, 0]], "b"),
    ]:
        model = RadiusNeighborsClassifier(0.6, outlier_label=label).fit(X, classes)
        write("outliers-" + name, model, methods=["predict"])


def frozen():
    from sklearn.frozen import FrozenEstimator  # noqa: PLC0415 - since 1.6

    scaler = FrozenEstimator(StandardScaler().fit(X))
    last = FrozenEstimator(LinearRegression().fit(X, X[:, 0]))
    write("frozen", FrozenEstimator(make_pipeline(scaler, last).fit(X, X[:, 0])))


if VERSION < (1, 0):
    isolation()
    quantiles()
    outliers()
    write("discriminants", LinearDiscriminantAnalysis().fit(X, CLASSES))
if VERSION >= (0, 20) and VERSION < (1, 2):
    bins()
if VERSION < (0, 22):
    one_hot()
if VERSION >= (1, 0) or VERSION == (0, 20):
    selections()
    sparsified()
if VERSION >= (1, 0):
    labels()
if VERSION >= (1, 2):
    texts()
if VERSION >= (1, 6):
    frozen()
