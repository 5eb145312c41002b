#!/usr/bin/env python3
"""Compares the time of a prediction with that of the libraries, in turns, with one thread each:

    pip install lightgbm==4.7.0 catboost==1.2.10 xgboost==3.2.0 numpy
    python3 time_trees.py [--rounds 3] [--only LightGBM]

Builds the evaluators first. Prints the medians of the rounds, in microseconds for a run of 1 row and of 1000
rows, and the ratio of this project's to the library's.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import tempfile
import time

import catboost
import lightgbm
import numpy as np
import xgboost

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
FEATURES = 20
ROWS = 50_000


def data(classes=2):
    random = np.random.default_rng(7)
    values = random.normal(size=(ROWS, FEATURES))
    values[random.random(values.shape) < 0.05] = np.nan
    score = np.nan_to_num(values) @ random.normal(size=FEATURES) + np.nan_to_num(values[:, 0]) ** 2
    target = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    return values, score, target


def of_lightgbm(folder, rounds, leaves, classes):
    values, _, target = data(classes)
    objective = {"objective": "binary"} if classes == 2 else {"objective": "multiclass"}
    settings = objective | {"num_leaves": leaves, "verbose": -1}
    settings |= {} if classes == 2 else {"num_class": classes}
    model = lightgbm.train(settings, lightgbm.Dataset(values, target), rounds)
    model.save_model(os.path.join(folder, "model.txt"))
    loaded = lightgbm.Booster(model_file=os.path.join(folder, "model.txt"))
    one = single_row_of_lightgbm(loaded, classes)
    return lambda rows: one(rows) if len(rows) == 1 else loaded.predict(rows, num_threads=1)


def single_row_of_lightgbm(booster, classes):
    """The library's own function for one row, which Python's package does not use."""
    library, handle = lightgbm.basic._LIB, ctypes.c_void_p()
    start = library.LGBM_BoosterPredictForMatSingleRowFastInit
    failed = start(
        *(booster._handle, 0, 0, -1, 1, FEATURES, b"num_threads=1"), ctypes.byref(handle)
    )
    assert failed == 0
    predict = library.LGBM_BoosterPredictForMatSingleRowFast
    results, count = (ctypes.c_double * classes)(), ctypes.c_int64()
    returned = ctypes.byref(count)
    # As a number, because the conversion to a pointer takes longer than the prediction.
    predict.argtypes = [ctypes.c_void_p] * 4

    def one(rows):
        assert predict(handle, rows.ctypes.data, returned, results) == 0

    return one


def of_catboost(folder, rounds, policy, classes):
    values, score, target = data(classes)
    settings = {
        "iterations": rounds,
        "grow_policy": policy,
        "verbose": 0,
        "allow_writing_files": False,
    }
    settings |= {"max_leaves": 31} if policy == "Lossguide" else {}
    if classes:
        model = catboost.CatBoostClassifier(**settings).fit(values, target)
    else:
        model = catboost.CatBoostRegressor(**settings).fit(values, score)
    model.save_model(os.path.join(folder, "model.cbm"))
    if classes:
        return lambda rows: model.predict_proba(rows, thread_count=1)
    return lambda rows: model.predict(rows, thread_count=1)


def of_xgboost(folder, rounds, depth, classes):
    values, _, target = data(classes)
    settings = {"objective": "binary:logistic", "max_depth": depth, "nthread": 2}
    if classes > 2:
        settings |= {"objective": "multi:softprob", "num_class": classes}
    model = xgboost.train(settings, xgboost.DMatrix(values, target), rounds)
    model.save_model(os.path.join(folder, "model.ubj"))
    loaded = xgboost.Booster({"nthread": 1})
    loaded.load_model(os.path.join(folder, "model.ubj"))
    # Without the copy into a DMatrix.
    return loaded.inplace_predict


CASES = [
    ("LightGBM, 2 classes, 100 trees of 31 leaves", of_lightgbm, (100, 31, 2)),
    ("LightGBM, 2 classes, 500 trees of 63 leaves", of_lightgbm, (500, 63, 2)),
    ("LightGBM, 3 classes, 100 rounds of 31 leaves", of_lightgbm, (100, 31, 3)),
    ("CatBoost, 2 classes, 200 trees of 6 levels", of_catboost, (200, "SymmetricTree", 2)),
    ("CatBoost, numbers, 1000 trees of 6 levels", of_catboost, (1000, "SymmetricTree", 0)),
    ("CatBoost, numbers, 200 lossguide trees of 31 leaves", of_catboost, (200, "Lossguide", 0)),
    ("XGBoost, 2 classes, 100 trees of 6 levels", of_xgboost, (100, 6, 2)),
    ("XGBoost, 3 classes, 200 rounds of 6 levels", of_xgboost, (200, 6, 3)),
]


def time_of(predict, rows, runs):
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for number in range(runs):
            predict(rows[number % len(rows)])
        times.append((time.perf_counter() - start) * 1e6 / runs)
    return statistics.median(times)


def ours(program, folder):
    command = [program, "--ignored", "--nocapture", "--exact", "speed::time_of_a_prediction"]
    env = os.environ | {"TENSORSERVE_SPEED": folder}
    # Large batches would use all cores.
    command = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), *command]
    text = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    lines = [line.split() for line in text.splitlines()]
    found = {
        line[0]: float(line[1]) for line in lines if len(line) == 2 and line[0] in {"1", "1000"}
    }
    return found["1"], found["1000"]


def build():
    command = ["cargo", "test", "--release", "--locked", "-p", "tensorserve-sklearn", "--no-run"]
    built = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stderr
    return os.path.join(ROOT, built.rsplit("(", 1)[1].split(")")[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", metavar="TEXT", default="", help="models with this in their name")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    program = build()
    print("| model | 1 row: here | library | ratio | 1000 rows: here | library | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, make, settings in CASES:
        if arguments.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            predict = make(folder, *settings)
            values = data()[0][:10_000]
            if make is of_xgboost:
                values = values.astype(np.float32)
            values.astype(np.float64).tofile(os.path.join(folder, "rows.bin"))
            times = []
            for _ in range(rounds):
                alone = time_of(predict, np.split(values[:1000], 1000), 1000)
                many_rows = np.split(values, 10)
                if make is of_catboost:
                    many_rows = [catboost.Pool(rows) for rows in many_rows]
                many = time_of(predict, many_rows, 20)
                times.append([*ours(program, folder), alone, many])
            one, thousand, alone, many = (
                statistics.median(each) for each in zip(*times, strict=True)
            )
        print(
            f"| {name} | {one:.1f} µs | {alone:.1f} µs | {one / alone:.2f} "
            f"| {thousand / 1000:.2f} ms | {many / 1000:.2f} ms | {thousand / many:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
