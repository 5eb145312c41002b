"""The models of matrix.py: fits each estimator with each of its options by the installed version of scikit-learn.

    python matrix_models.py FOLDER

Writes FOLDER/models/NAME.pkl and FOLDER/cases.jsonl with 200 rows for each and what scikit-learn answers to each
row. It runs with every version of the matrix, so with Python 3.6, too.
"""

import importlib
import json
import os
import pickle
import re
import sys
import warnings

import numpy as np
import pandas as pd
import sklearn
from matrix_options import MODULES, OPTIONS

warnings.filterwarnings("ignore")
np.seterr(all="ignore")
METHODS = ["predict", "predict_proba", "predict_log_proba", "transform"]
random = np.random.RandomState(0)
CENTERS = np.array([[5.0, 3.4, 1.5, 0.2], [5.9, 2.8, 4.3, 1.3], [6.6, 3.0, 5.6, 2.0]])
Y = random.randint(0, 3, 90)
X = np.round(CENTERS[Y] + random.randn(90, 4) * 0.4, 3)
TWO = (Y > 0) * 1
NAMES = np.array(["setosa", "versicolor", "\u00e9"])[Y]
NUMBER = np.exp(np.dot(X, [0.3, -0.2, 0.4, 0.1]) / 3)
NUMBERS = np.column_stack([NUMBER, X[:, 0] * 2 - 1])
MANY = np.column_stack([TWO, Y == 1, X[:, 0] > 5.5]) * 1
KINDS = np.column_stack([Y, TWO, (X[:, 1] > 3) * 2])
SOME = np.where(random.rand(90) < 0.5, -1, Y)
HOLES = np.where(random.rand(90, 4) < 0.2, np.nan, X)
HOLES[:3] = X[:3]
EXTREMES = [1e30, -1e30, 1e-300, -1e-300, 0.0, 1e5, -1e5, 1e300, -1e300, 5e-324]
TARGETS = {
    "classes": Y, "two": TWO, "names": NAMES, "number": NUMBER, "numbers": NUMBERS,
    "labels": MANY, "kinds": KINDS, "some": SOME, "none": None,
}  # fmt: skip


def rows_of(x):
    """200 rows: of the training, near it, with extreme values, with missing and with infinite ones."""
    near = np.round(x[random.randint(0, len(x), 90)] + random.randn(90, x.shape[1]) * 0.3, 4)
    far = np.round(x[random.randint(0, len(x), 20)] * 4 - 9, 4)
    special = []
    for number in range(90):
        row = np.array(x[number % len(x)])
        row = np.where(np.isnan(row), 1.5, row)
        column = number % x.shape[1]
        if number < 40:
            row[column] = EXTREMES[number // x.shape[1] % len(EXTREMES)]
        elif number < 50:
            row[:] = EXTREMES[number - 40]
        elif number < 74:
            row[column] = np.nan
        elif number < 78:
            row[:] = np.nan
        else:
            row[column] = [np.inf, -np.inf][number // x.shape[1] % 2]
        special.append(row)
    return np.concatenate([near, far, np.array(special)])


def counts(x):
    return np.abs(np.round(x))


def codes(rows):
    return np.column_stack([rows[:, 0] > 5.6, np.round(rows[:, 1]), np.round(rows[:, 2]) * 10])


def table(x, unseen):
    kinds = np.array(["red", "green", "blue", "", "unseen"], object)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1]})
    frame["kind"] = kinds[(np.arange(len(x)) * 7) % (5 if unseen else 3)]
    frame["size"] = np.array(["S", "M", "L"], object)[np.arange(len(x)) % 3]
    if unseen:
        frame.loc[np.arange(4, len(x), 9), "kind"] = np.nan
        frame.loc[np.arange(5, len(x), 11), "size"] = "XXL"
    return frame


WORDS = [
    "goal",
    "match",
    "moon",
    "rocket",
    "orbit",
    "crème",
    "oven",
    "élection",
    "vote",
    "the",
    "of",
    "and",
    "in",
    "10",
    "1999",
    "it's",
]


def texts(count):
    return [" ".join(random.choice(WORDS, random.randint(2, 9))).capitalize() for _ in range(count)]


STRANGE = [
    "",
    " ",
    "zzz qqq",
    "GOAL goal",
    "\u00c9LECTION e\u0301lection",
    "\u0130 \u00df \u03a3",
    "a\tb\nmoon",
]


def records(x, unseen):
    return [
        {"size": row[0], "kind": ["red", "green", "new"][i % (3 if unseen else 2)], "weight": row[1]}
        if i % 7 else {"size": row[0]}
        for i, row in enumerate(x)
    ]  # fmt: skip


ROWS = rows_of(X)
FINITE = ROWS[np.isfinite(ROWS).all(axis=1) & (np.abs(ROWS) < 1e6).all(axis=1)]
TEXTS = texts(90)
DATA = {
    "x": (X, ROWS),
    "holes": (HOLES, rows_of(HOLES[:3])),
    "positive": (np.abs(X) + 0.1, np.abs(ROWS)),
    "counts": (counts(X), np.where(np.isfinite(ROWS), counts(ROWS), ROWS)),
    "codes": (
        codes(X),
        np.concatenate([codes(FINITE), [[9, 9, 9.5], [np.nan, 3, 10], [1, 1e30, 10]]]),
    ),
    "column": (X[:, :1], ROWS[:, :1]),
    "table": (table(X, False), table(FINITE, True)),
    "texts": (TEXTS, texts(200 - len(STRANGE)) + STRANGE),
    "records": (records(X, False), records(FINITE, True)),
}


def namespace():
    names = {"np": np}
    for module in MODULES:
        try:
            loaded = importlib.import_module("sklearn." + module)
        except ImportError:
            continue
        if not module.startswith("experimental"):
            names.update({n: getattr(loaded, n) for n in dir(loaded) if not n.startswith("_")})
    return names


def built(expression, names):
    """The estimator of an expression, or of the first that this version knows of `A || B`."""
    reason = None
    for one in expression.split(" || "):
        try:
            return eval(one, dict(names)), None
        except (NameError, TypeError, ValueError) as error:
            reason = str(error)
    return None, reason


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def answers(model, rows):
    """What each method answers; None if the model refuses the rows."""
    made = {}
    for method in METHODS:
        if method == "transform" and made:
            continue
        try:
            values = getattr(model, method)(rows)
        except (AttributeError, NotImplementedError):
            continue
        parts = values if isinstance(values, list) else [values]
        for number, part in enumerate(parts):
            array = part.toarray() if hasattr(part, "toarray") else np.asarray(part)
            made[f"{method}_{number}" if isinstance(values, list) else method] = array
    return made


def one_by_one(model, rows):
    """What a model answers to each row, and the reason why it refuses one."""
    made = []
    for number in range(len(rows)):
        try:
            one = answers(model, rows[number : number + 1])
            made.append(({key: plain(values.tolist()) for key, values in one.items()}, None))
        except Exception as error:  # noqa: BLE001 - whatever a version raises is a refusal
            made.append((None, f"{type(error).__name__}: {str(error)[:200]}"))
    return made


def inputs(rows):
    if isinstance(rows, pd.DataFrame):
        return {c: [None if pd.isna(v) else plain(v) for v in rows[c]] for c in rows.columns}
    if isinstance(rows, np.ndarray):
        return {"data": plain(rows.tolist())}
    if isinstance(rows[0], dict):
        return {key: [row.get(key) for row in rows] for key in ["size", "kind", "weight"]}
    return {"data": rows}


def fit(folder, number, case, names):
    expression, data, target = case
    model, reason = built(expression, names)
    head = {"case": "{} | {} | {}".format(*case), "absent": reason}
    if model is None:
        return head
    known, rows = DATA[data]
    try:
        model.fit(known, TARGETS[target])
    except Exception as error:  # noqa: BLE001 - options that a version does not have
        head["absent"] = f"{type(error).__name__}: {str(error)[:200]}"
        return head
    head["name"] = f"m{number:03}"
    with open(os.path.join(folder, "models", head["name"] + ".pkl"), "wb") as file:
        pickle.dump(model, file, protocol=[2, 3, 4][number % 3])
    made = one_by_one(model, rows)
    head.update(
        inputs=inputs(rows), right=[one for one, _ in made], reasons=[why for _, why in made]
    )
    return head


def main():
    folder = sys.argv[1]
    os.makedirs(os.path.join(folder, "models"), exist_ok=True)
    names = namespace()
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    with open(os.path.join(folder, "cases.jsonl"), "w") as out:
        for number, case in enumerate(OPTIONS):
            if re.search(only, case[0]):
                out.write(json.dumps(fit(folder, number, case, names)) + "\n")
    print(sklearn.__version__, np.__version__)


if __name__ == "__main__":
    main()
