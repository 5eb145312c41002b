"""Writes sklearn-tables-VERSION.json.gz: models of tables with columns of numbers and of texts, and
of texts, fitted by the installed version of scikit-learn, and what they predict for each row. `null` is a
row that scikit-learn refuses.

    pip install scikit-learn==1.9.1 pandas && python tests/cases/sklearn_tables.py
    pip install scikit-learn==1.2.2 "numpy<2" "pandas<2.3" && python tests/cases/sklearn_tables.py
"""

import base64
import gzip
import json
import os
import pickle
import warnings

import numpy as np
import pandas as pd
import sklearn
from sklearn.compose import ColumnTransformer, make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

warnings.filterwarnings("ignore")
VERSION = tuple(int(part) for part in sklearn.__version__.split(".")[:2])
FOLDER = os.path.dirname(os.path.abspath(__file__))
FUNCTIONS = "predict", "predict_proba", "predict_log_proba", "transform"
random = np.random.RandomState(0)
COUNT = 240


def texts(values, missing, chances=None):
    column = random.choice(np.array(values, object), COUNT, p=chances)
    column[random.rand(COUNT) < missing] = np.nan
    return column


def numbers(values, missing):
    return np.where(random.rand(COUNT) < missing, np.nan, values)


# Passengers of a ship, as in the data set that everyone starts with, drawn at random.
SHIP = pd.DataFrame(
    {
        "pclass": random.choice([1, 2, 3], COUNT, p=[0.25, 0.2, 0.55]),
        "sex": texts(["male", "female"], 0.0),
        "age": numbers(np.round(random.gamma(4, 7, COUNT), 1), 0.2),
        "sibsp": random.poisson(0.5, COUNT),
        "fare": numbers(np.round(random.lognormal(3, 1, COUNT), 2), 0.02),
        "embarked": texts(["S", "C", "Q", "Zürich"], 0.05, [0.7, 0.2, 0.08, 0.02]),
        "deck": texts(list("ABCDEFG"), 0.6),
        "alone": random.rand(COUNT) < 0.4,
        "name": [f"Passenger {number}" for number in range(COUNT)],
    }
)
CHANCE = (SHIP.sex == "female") * 2.5 - SHIP.pclass * 0.8 + SHIP.fare.fillna(20) * 0.01
SURVIVED = (CHANCE + random.randn(COUNT) > 0).astype(int)
FATE = np.array(["lost", "saved"], object)[SURVIVED]
THREE = np.clip(np.round(CHANCE + random.randn(COUNT)), -1, 1).astype(int)
MONEY = CHANCE * 10 + random.randn(COUNT)
NUMERIC = ["age", "fare"]
TEXTUAL = ["sex", "embarked", "deck"]


def changed_rows():
    """Rows of the training, with missing, extreme and unseen values."""
    rows = SHIP.iloc[::4].reset_index(drop=True).copy()
    rows["sibsp"] = rows["sibsp"].astype(float)
    rows["pclass"] = rows["pclass"].astype(float)
    changes = {
        "age": [0.0, -5.0, 1e9, np.nan, 1e-300, 1e300],
        "fare": [np.nan, 1e12, -1e12, 0.0],
        "sex": ["unknown", "Male", np.nan, "mal\u00e9"],
        "embarked": ["X", np.nan, "Z\u00fcrich", "s", "S "],
        "deck": ["T", np.nan, "\U0001f6f3"],
        "pclass": [4.0, 0.0, np.nan, 2.5],
    }
    number = 10
    for column, values in changes.items():
        for value in values:
            rows.loc[number, column] = value
            number += 2
    for column in changes:
        rows.loc[59, column] = np.nan
    return rows


ROWS = changed_rows()


def logistic():
    return LogisticRegression(max_iter=500)


def titanic(last, **encoding):
    encoding = encoding or {"handle_unknown": "ignore"}
    number = Pipeline([("i", SimpleImputer(strategy="median")), ("s", StandardScaler())])
    text = Pipeline(
        [
            ("i", SimpleImputer(strategy="most_frequent")),
            ("e", OneHotEncoder(**encoding)),
        ]
    )
    parts = [("num", number, NUMERIC), ("cat", text, ["embarked", "sex", "pclass"])]
    parts[1:] = [
        ("cat", text, ["embarked", "sex"]),
        ("class", OneHotEncoder(handle_unknown="ignore"), ["pclass"]),
    ]
    return Pipeline([("columns", ColumnTransformer(parts)), ("model", last)])


def boosted(**settings):
    return HistGradientBoostingClassifier(max_iter=4, max_depth=3, min_samples_leaf=5, **settings)


def one_hot(**settings):
    """One-hot columns, without the missing values that not all of its settings allow."""
    return make_pipeline(
        ColumnTransformer(
            [("t", OneHotEncoder(**settings), TEXTUAL), ("n", SimpleImputer(), NUMERIC)]
        ),
        logistic(),
    )


ENCODINGS = [
    {"handle_unknown": "error"},
    {"handle_unknown": "ignore"},
    {"handle_unknown": "ignore", "drop": "first"},
    {"handle_unknown": "ignore", "drop": "if_binary"},
    {"handle_unknown": "error", "drop": "if_binary"},
    {"handle_unknown": "infrequent_if_exist", "min_frequency": 20},
    {"handle_unknown": "infrequent_if_exist", "max_categories": 3, "drop": "first"},
    {"handle_unknown": "infrequent_if_exist"},
    {"handle_unknown": "ignore", "min_frequency": 0.1},
    {"handle_unknown": "error", "max_categories": 4},
]
ORDINALS = [
    {},
    {"handle_unknown": "use_encoded_value", "unknown_value": -1},
    {"handle_unknown": "use_encoded_value", "unknown_value": 99, "encoded_missing_value": -2},
]
if VERSION >= (1, 3):
    ORDINALS.append({**ORDINALS[1], "min_frequency": 15, "encoded_missing_value": -2})
    ORDINALS.append({**ORDINALS[1], "max_categories": 3})


def imputers():
    constant = SimpleImputer(strategy="constant", fill_value="none", add_indicator=True)
    encoder = OneHotEncoder(handle_unknown="ignore")
    yield constant, encoder
    yield SimpleImputer(strategy="constant"), encoder
    yield SimpleImputer(strategy="most_frequent", missing_values="S"), encoder
    yield SimpleImputer(strategy="most_frequent"), OrdinalEncoder(**ORDINALS[1])


def tables():
    """Models, rows to fit, targets, rows to predict."""
    yield titanic(logistic()), SHIP, SURVIVED, ROWS
    yield titanic(logistic()), SHIP, FATE, ROWS
    dense = {"handle_unknown": "ignore", "sparse": False}
    if VERSION >= (1, 2):
        dense = {"handle_unknown": "ignore", "sparse_output": False}
    yield titanic(boosted(), **dense), SHIP, FATE, ROWS
    yield titanic(RandomForestClassifier(3, max_depth=3, random_state=0)), SHIP, THREE, ROWS
    yield titanic(Ridge()), SHIP, MONEY, ROWS
    search = GridSearchCV(titanic(logistic()), {"model__C": [0.1, 1.0]}, cv=2)
    yield search, SHIP, SURVIVED, ROWS
    votes = [("a", titanic(logistic())), ("b", one_hot(handle_unknown="error"))]
    yield VotingClassifier(votes, voting="soft"), SHIP, SURVIVED, ROWS
    for settings in ENCODINGS:
        yield one_hot(**settings), SHIP, SURVIVED, ROWS
    if VERSION >= (1, 6):
        yield one_hot(handle_unknown="warn", min_frequency=20), SHIP, SURVIVED, ROWS
    for settings in ORDINALS:
        encoder = OrdinalEncoder(**settings)
        columns = make_column_transformer((encoder, TEXTUAL), remainder="drop")
        yield make_pipeline(columns, boosted()), SHIP, SURVIVED, ROWS
    for imputer, encoder in imputers():
        columns = [(make_pipeline(imputer, encoder), ["embarked", "deck"])]
        if imputer.missing_values == "S":
            columns = [(make_pipeline(imputer, encoder), ["sex"])]
        columns.append((SimpleImputer(add_indicator=True), NUMERIC))
        model = make_pipeline(make_column_transformer(*columns), logistic())
        yield model, SHIP, SURVIVED, ROWS
    both = FeatureUnion(
        [
            ("one", OneHotEncoder(handle_unknown="ignore")),
            ("missing", MissingIndicator(features="all")),
        ],
        transformer_weights={"missing": 2.0},
    )
    yield make_pipeline(both, logistic()), SHIP[TEXTUAL], SURVIVED, ROWS[TEXTUAL]
    indicator = MissingIndicator()
    yield (
        make_pipeline(indicator, logistic()),
        SHIP[["age", "sibsp"]],
        SURVIVED,
        ROWS[["age", "sibsp"]],
    )
    encoder = OneHotEncoder(handle_unknown="ignore")
    selected = make_column_transformer(
        (SimpleImputer(), make_column_selector(dtype_include=float)),
        (encoder, make_column_selector(dtype_include=object, pattern="^[^n]")),
        remainder="passthrough",
    )
    frame = SHIP.drop(columns="name")
    frame[TEXTUAL] = frame[TEXTUAL].astype(object)
    yield make_pipeline(selected, logistic()), frame, SURVIVED, ROWS
    by_mask = ColumnTransformer(
        [("n", SimpleImputer(), slice("age", "fare")), ("t", encoder, [1, 5])],
        transformer_weights={"n": 0.5},
    )
    yield make_pipeline(by_mask, logistic()), SHIP, SURVIVED, ROWS
    matrix = SHIP[TEXTUAL].to_numpy(object)
    yield make_pipeline(encoder, logistic()), matrix, SURVIVED, ROWS[TEXTUAL].to_numpy(object)
    yield make_pipeline(SimpleImputer(), logistic()), SHIP[NUMERIC], SURVIVED, ROWS[NUMERIC]
    yield Ridge(), SHIP[["pclass", "sibsp"]], MONEY, ROWS[["pclass", "sibsp"]]
    yield boosted(categorical_features=[0]), SHIP[["pclass", "age"]], THREE, ROWS[["pclass", "age"]]
    if VERSION >= (1, 4):
        yield from with_categories()
    if VERSION >= (1, 3):
        yield from target_encoders()


def with_categories():
    frame = SHIP[["age", "sex", "embarked", "deck", "fare"]].astype(
        {"sex": "category", "embarked": "category", "deck": "category"}
    )
    rows = ROWS[frame.columns]
    yield boosted(categorical_features="from_dtype"), frame, THREE, rows
    regressor = HistGradientBoostingRegressor(
        max_iter=4, categorical_features=["sex", "deck", "embarked"], min_samples_leaf=5
    )
    yield regressor, frame, MONEY, rows
    scaled = make_column_transformer((StandardScaler(), NUMERIC), remainder="drop")
    yield make_pipeline(scaled, boosted()), SHIP, SURVIVED, ROWS


def target_encoders():
    for kind, target in (Ridge(), MONEY), (logistic(), SURVIVED), (logistic(), THREE):
        columns = make_column_transformer(
            (
                sklearn.preprocessing.TargetEncoder(cv=2, random_state=0),
                ["embarked", "pclass", "sex", "deck"],
            ),
            (SimpleImputer(), NUMERIC),
        )
        yield make_pipeline(columns, kind), SHIP, target, ROWS


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def as_fitted(row, fitted):
    """A row with the types of the table that the model was fitted with."""
    for column in fitted.columns if hasattr(fitted, "columns") else ():
        if str(fitted[column].dtype) == "category":
            row[column] = row[column].astype("category")
        elif fitted[column].dtype == object or str(fitted[column].dtype) == "str":
            row[column] = row[column].astype(object)
    return row


def predictions(estimator, row):
    """What each function of a model answers for one row; none if it refuses the row."""
    expected = {}
    for function in FUNCTIONS:
        if function == "transform" and expected:
            continue
        try:
            call = getattr(estimator, function)
        except AttributeError:
            continue
        try:
            answer = call(row)
        except AttributeError:
            continue
        except (ValueError, TypeError):
            return None
        if isinstance(answer, list):
            for number, part in enumerate(answer):
                expected[f"{function}_{number}"] = plain(np.asarray(part).tolist())
            continue
        if hasattr(answer, "toarray"):
            answer = answer.toarray()
        expected[function] = plain(np.asarray(answer).tolist())
    return expected


def inputs(rows):
    """The values of each column; `null` is a missing one."""
    if isinstance(rows, np.ndarray):
        names = [f"x{number}" for number in range(rows.shape[1])]
        rows = pd.DataFrame(rows, columns=names)
    if not hasattr(rows, "columns"):
        return {"data": list(rows)}
    columns = {}
    for name in rows.columns:
        values = [None if pd.isna(value) else value for value in rows[name]]
        columns[name] = plain(values)
    return columns


def case(estimator, fitted, target, rows):
    name = " ".join(str(estimator).split())
    estimator.fit(fitted, target)
    file = gzip.compress(pickle.dumps(estimator), 9, mtime=0)
    expected = []
    for number in range(len(rows)):
        row = rows[number : number + 1]
        if isinstance(rows, pd.DataFrame):
            row = as_fitted(row.copy(), fitted)
        expected.append(predictions(estimator, row))
    file = base64.b64encode(file).decode()
    return {"name": name, "file": file, "inputs": inputs(rows), "expected": expected}


def write(name, cases):
    made = [case(*parts) for parts in cases]
    refused = sum(expected is None for case in made for expected in case["expected"])
    rows = sum(len(case["expected"]) for case in made)
    print(f"{name}: {len(made)} models, {rows} rows, {refused} refused")
    path = os.path.join(FOLDER, f"sklearn-{name}-{sklearn.__version__}.json.gz")
    with open(path, "wb") as out:
        text = json.dumps(made, ensure_ascii=False)
        out.write(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    write("tables", tables())
