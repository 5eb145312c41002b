"""Writes sklearn-extremes-VERSION.json.gz: what the models of sklearn-VERSION.json predict with the
installed version of scikit-learn for extreme values. Each row is predicted on its own; `null` is a
row that scikit-learn refuses.

    pip install scikit-learn==1.9.1 && python tests/cases/sklearn_extremes.py
    pip install scikit-learn==1.2.2 "numpy<2" && python tests/cases/sklearn_extremes.py
"""

import base64
import gzip
import io
import itertools
import json
import os
import warnings

import joblib
import numpy as np
import sklearn
from sklearn_models import plain

warnings.filterwarnings("ignore")
FOLDER = os.path.dirname(os.path.abspath(__file__))
COLUMNS = 4
TYPICAL = [5.0, 3.0, 2.0, 10.0]
# Sums of linear models of three classes: far below zero for all classes, and around it.
SUMS = [[-900.0, -1000.0, -1100.0], [-2e5, -1e5, -3e5], [-720.0, -721.0, -722.0]]
SUMS += [[-700.0, -1200.0, -800.0], [40.0, -900.0, -800.0], [900.0, 1000.0, 800.0]]


def common_rows():
    whole = [0.0, -0.0, 5e-324, 1e-310, 1e-20, 3e38, 4e38, 1e154, 1e155, 1e300, 1e305]
    for value in whole:
        yield [value] * COLUMNS
        yield [-value] * COLUMNS
    for column in range(COLUMNS):
        for value in [1e5, -1e5, 1e39, -1e39, np.nan, np.inf, -np.inf]:
            row = list(TYPICAL)
            row[column] = value
            yield row
    for signs in itertools.product([1.0, -1.0], repeat=COLUMNS):
        for size in [300.0, 1e4, 1e300]:
            yield [size * sign * (1 + 0.1 * column) for column, sign in enumerate(signs)]


def rows(name, estimator):
    coefficients = np.atleast_2d(getattr(estimator, "coef_", 0.0))
    # The sums of a multinomial model depend on each other.
    if coefficients.shape == (3, COLUMNS) and np.linalg.cond(coefficients) < 1e6:
        inverse = np.linalg.pinv(coefficients)
        for sums in SUMS:
            yield (inverse @ (sums - estimator.intercept_)).tolist()
    for row in common_rows():
        # So far away, all training rows are equally near, and any of them may be the nearest.
        is_tie = "KNeighbors" in name and np.nanmax(np.abs(row)) > 1e9
        if np.isinf(row).any() or not is_tie:
            yield row


def predictions(estimator, row):
    try:
        estimator.predict(np.array([row]))
    except ValueError:
        return None
    expected = {}
    for function in "predict", "predict_proba", "predict_log_proba":
        try:
            answer = getattr(estimator, function)(np.array([row]))
        except AttributeError:
            continue
        expected[function] = plain(answer.tolist())
    return expected


def case(line):
    model = json.loads(line.rstrip(",\n"))
    file = gzip.decompress(base64.b64decode(model["file"]))
    estimator = joblib.load(io.BytesIO(file))
    inputs = list(rows(model["name"], estimator))
    expected = [predictions(estimator, row) for row in inputs]
    return {"name": model["name"], "rows": plain(inputs), "expected": expected}


if __name__ == "__main__":
    with open(os.path.join(FOLDER, f"sklearn-{sklearn.__version__}.json")) as models:
        cases = [case(line) for line in models if line.startswith("{")]
    path = os.path.join(FOLDER, f"sklearn-extremes-{sklearn.__version__}.json.gz")
    with open(path, "wb") as out:
        out.write(gzip.compress(json.dumps(cases).encode(), 9, mtime=0))
