"""Makes models of every booster and objective with the XGBoost that is installed (0.90 to 3.4 were
used), in every format that it writes, and `cases.json` with its answers on random rows.

    make_xgboost.py FOLDER [DEPTH ROUNDS ROWS]

`made/` holds some of what several versions have made, with 3 3 12.
"""

import json
import os
import pickle
import sys

import numpy as np
import xgboost as xgb

FOLDER = sys.argv[1]
DEPTH, ROUNDS, ROWS = (int(text) for text in sys.argv[2:5]) if len(sys.argv) > 2 else (4, 8, 64)
VERSION = tuple(int(part) for part in xgb.__version__.split(".")[:2])
TREES = {"max_depth": DEPTH, "eta": 0.4}
FEATURES = 6
CASES = {}

random = np.random.default_rng(7)
seen = random.normal(size=(300, FEATURES)).astype(np.float32)
seen[random.random(seen.shape) < 0.15] = np.nan
filled = np.nan_to_num(seen)
score = filled[:, 0] * 1.5 + filled[:, 1] * filled[:, 2] - filled[:, 3]
asked = random.normal(size=(ROWS, FEATURES)).astype(np.float32) * 2
asked[random.random(asked.shape) < 0.2] = np.nan
asked[0], asked[1], asked[2], asked[3] = np.nan, 0, 1e30, -1e30

real = score + random.normal(size=300) * 0.1
yes = (score > 0).astype(float)
positive = np.exp(score / 4).clip(0.05, 20)
three = np.digitize(score, [-1, 1])


def hexadecimal(values):
    return np.ascontiguousarray(values, dtype="<f4").tobytes().hex()


def note(name, files, rows, answer):
    CASES[name] = {
        "files": files,
        "rows": len(rows),
        "input": hexadecimal(rows),
        "expected": hexadecimal(answer),
        "shape": list(answer.shape),
        # Before, it added the trees' values to each other first, and rounded otherwise.
        "exact": VERSION >= (1, 3),
    }


def save(name, booster, rows=asked, **matrix):
    files = []
    for ending in ("json", "ubj", "deprecated"):
        if (ending == "ubj" and VERSION < (1, 6)) or (ending == "deprecated" and VERSION >= (3, 0)):
            continue
        try:
            booster.save_model(os.path.join(FOLDER, f"{name}.{ending}"))
            files.append(f"{name}.{ending}")
        except xgb.core.XGBoostError as error:
            print("not saved", name, ending, str(error).splitlines()[0])
    with open(os.path.join(FOLDER, f"{name}.pkl"), "wb") as file:
        pickle.dump(booster, file)
    with open(os.path.join(FOLDER, f"{name}.raw"), "wb") as file:
        file.write(bytes(booster.__getstate__()["handle"]))
    # Before 1.0 a prediction without a limit dropped trees, as training does.
    all_trees = {"ntree_limit": 1000} if VERSION < (1, 0) and "dart" in name else {}
    answer = booster.predict(xgb.DMatrix(rows, missing=np.nan, **matrix), **all_trees)
    note(name, [*files, f"{name}.pkl", f"{name}.raw"], rows, answer)


def make(name, parameters, labels, rounds=ROUNDS, rows=asked, data=seen, **matrix):
    parameters = dict(parameters, seed=3, nthread=1, verbosity=0)
    try:
        training = xgb.DMatrix(data, labels, missing=np.nan, **matrix)
        booster = xgb.train(parameters, training, rounds)
    except Exception as error:  # noqa: BLE001 - Not known to this version.
        print("not made", name, str(error).splitlines()[0])
        return
    save(name, booster, rows, **matrix)


def objectives():
    for objective, labels in [
        ("reg:squarederror", real),
        ("reg:linear", real),
        ("reg:squaredlogerror", positive),
        ("reg:pseudohubererror", real),
        ("reg:absoluteerror", real),
        ("reg:logistic", 1 / (1 + np.exp(-score))),
        ("binary:logistic", yes),
        ("binary:logitraw", yes),
        ("binary:hinge", yes),
        ("count:poisson", np.round(positive)),
        ("reg:gamma", positive),
        ("reg:tweedie", np.where(positive < 0.7, 0, positive)),
        ("survival:cox", positive),
    ]:
        name = objective.replace(":", "_")
        make(name, dict(TREES, objective=objective), labels)
        make(name + "_base", dict(TREES, objective=objective, base_score=0.3), labels)
    quantiles = {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.5, 0.9]}
    make("quantiles", dict(TREES, **quantiles), real)
    make("quantile", dict(TREES, **dict(quantiles, quantile_alpha=0.3)), real)
    for objective in ("rank:pairwise", "rank:ndcg", "rank:map"):
        training = xgb.DMatrix(seen, yes if objective == "rank:map" else three)
        training.set_group([30] * 10)
        booster = xgb.train(dict(TREES, objective=objective, nthread=1), training, ROUNDS)
        save(objective.replace(":", "_"), booster)
    if VERSION >= (1, 2):
        training = xgb.DMatrix(seen)
        training.set_float_info("label_lower_bound", positive)
        training.set_float_info("label_upper_bound", positive * 1.5)
        booster = xgb.train(dict(TREES, objective="survival:aft", nthread=1), training, ROUNDS)
        save("survival_aft", booster)


def boosters():
    dropping = {"booster": "dart", "rate_drop": 0.4, "one_drop": 1}
    linear = {"booster": "gblinear", "updater": "coord_descent"}
    make("dart", dict(TREES, objective="binary:logistic", **dropping), yes, ROUNDS + 4)
    make("linear", dict(linear, objective="reg:squarederror"), real)
    make("linear_logistic", dict(linear, objective="binary:logistic"), yes)
    for name in ("softprob", "softmax"):
        classes = {"objective": "multi:" + name, "num_class": 3}
        make(name, dict(TREES, **classes), three)
        make(name + "_dart", dict(TREES, **classes, **dropping), three)
        make(name + "_linear", dict(linear, **classes), three)
        parallel = {"num_parallel_tree": 3, "subsample": 0.5}
        make(name + "_parallel", dict(TREES, **classes, **parallel), three, max(ROUNDS // 2, 1))


def shapes():
    squares = {"objective": "reg:squarederror"}
    for method in ("exact", "approx", "hist"):
        make(method, dict(TREES, **squares, tree_method=method, max_depth=2 * DEPTH), real)
    # Nodes that are made and thrown away.
    pruned = {"gamma": 3, "max_depth": 2 * DEPTH, "tree_method": "exact"}
    make("pruned", dict(TREES, **squares, **pruned), real)
    make("leaf_only", dict(max_depth=1, gamma=1e9, **squares), real)
    make("names", dict(TREES, **squares), real, feature_names=list("abcdef"))
    rows = np.concatenate([asked] * 4)
    make("many", {"max_depth": 8, "eta": 0.1, **squares}, real, 20 * ROUNDS, rows)
    if VERSION >= (1, 6):
        targets = np.stack([real, -real, positive], 1)
        make("targets", dict(TREES, **squares), targets)
        make("targets_logistic", dict(TREES, objective="binary:logistic"), targets > 0)
    if VERSION >= (2, 0):
        vectors = {"multi_strategy": "multi_output_tree", "tree_method": "hist"}
        make("vectors", dict(TREES, **squares, **vectors), targets)


def categories():
    if VERSION < (1, 5):
        return
    matrix = {"feature_types": ["q", "c", "q", "q", "c", "q"], "enable_categorical": True}
    data, rows = seen.copy(), asked.copy()
    data[:, 1], data[:, 4] = random.integers(0, 12, 300), random.integers(0, 70, 300)
    data[random.random(300) < 0.1, 1] = np.nan
    rows[:, 1], rows[:, 4] = random.integers(0, 14, ROWS), random.integers(0, 90, ROWS)
    rows[5, 1], rows[6, 4] = np.nan, 1000
    labels = np.isin(data[:, 1], [1, 5, 7, 11]) * 2.0 + np.isin(data[:, 4] % 7, [2, 3]) * 1.5
    labels += filled[:, 0]
    for name, most in (("onehot", 1000), ("partition", 1), ("mixed", 20)):
        parameters = dict(TREES, tree_method="hist", max_cat_to_onehot=most)
        parameters["objective"] = "reg:squarederror"
        make(f"categories_{name}", parameters, labels, rows=rows, data=data, **matrix)


def wrappers():
    """Models for scikit-learn, whose predictions stop at the best round."""
    if VERSION < (1, 6):
        return
    stopping = {"n_estimators": 60, "early_stopping_rounds": 3}
    sampling = {"num_parallel_tree": 2, "subsample": 0.7}
    model = xgb.XGBClassifier(max_depth=DEPTH, learning_rate=0.6, n_jobs=1, **stopping, **sampling)
    model.fit(seen[:200], three[:200], eval_set=[(seen[200:], three[200:])], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    for ending in ("json", "ubj"):
        model.save_model(os.path.join(FOLDER, f"wrapped.{ending}"))
    with open(os.path.join(FOLDER, "wrapped.pkl"), "wb") as file:
        pickle.dump(model, file)
    note(
        "wrapped", ["wrapped.json", "wrapped.ubj", "wrapped.pkl"], asked, model.predict_proba(asked)
    )

    booster = model.get_booster()
    with open(os.path.join(FOLDER, "unwrapped.pkl"), "wb") as file:
        pickle.dump(booster, file)
    note("unwrapped", ["unwrapped.pkl"], asked, booster.predict(xgb.DMatrix(asked)))

    model = xgb.XGBRegressor(n_estimators=ROUNDS, max_depth=DEPTH, missing=-999.0, n_jobs=1)
    model.fit(np.nan_to_num(seen, nan=-999.0), real)
    with open(os.path.join(FOLDER, "missing.pkl"), "wb") as file:
        pickle.dump(model, file)
    rows = np.nan_to_num(asked, nan=-999.0)
    note("missing", ["missing.pkl"], rows, model.predict(rows))


os.makedirs(FOLDER, exist_ok=True)
for step in (objectives, boosters, shapes, categories, wrappers):
    step()
with open(os.path.join(FOLDER, "cases.json"), "w") as file:
    json.dump(CASES, file)
print(len(CASES), "cases", sum(len(case["files"]) for case in CASES.values()), "files")
