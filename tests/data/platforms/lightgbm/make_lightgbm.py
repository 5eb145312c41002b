"""Makes models of every objective and kind of tree with the LightGBM that is installed (2.2, 3.3 and
4.7 were used), and the predictions of LightGBM 4 for all models of a folder.

    make_lightgbm.py write FOLDER     # with any version: models, their names begin with the version
    make_lightgbm.py predict FOLDER   # with version 4: rows.bin, expected.bin and cases.json

`made/` has most of what 4.7 wrote, and some of what 3.3 and 2.2 wrote (with NumPy 1.23); `others/` has
models of other people.
"""

import json
import os
import pickle
import sys

import joblib
import lightgbm as lgb
import numpy as np

FOLDER = sys.argv[2]
VERSION = tuple(int(part) for part in lgb.__version__.split(".")[:2])
PREFIX = f"{VERSION[0]}.{VERSION[1]}_"
SEEN, ASKED, FEATURES = 400, 1000, 8
CATEGORIES = [5, 6]
ROUNDS = 6
TREES = {
    "num_leaves": 7,
    "min_data_in_leaf": 5,
    "learning_rate": 0.3,
    "verbose": -1,
    "num_threads": 1,
    "seed": 3,
    "deterministic": True,
}

random = np.random.default_rng(11)


def draw(count, categories):
    rows = random.normal(size=(count, FEATURES))
    rows[:, 4] = np.round(rows[:, 4])
    rows[:, 5] = random.integers(0, 12 + categories, count)
    rows[:, 6] = random.integers(0, 70 + 10 * categories, count)
    rows[random.random(count) < 0.7, 7] = 0
    return rows


seen = draw(SEEN, 0)
seen[random.random(seen.shape) < 0.1] = np.nan
filled = np.nan_to_num(seen)
asked = draw(ASKED, 3)
for share, value in [
    (0.1, np.nan), (0.1, 0), (0.02, 1e300), (0.02, -1e300), (0.02, np.inf), (0.02, -np.inf),
    (0.02, 1e-36), (0.02, -1e-36), (0.02, 5e-324), (0.02, float(np.float32(1e-35))),
    (0.02, -float(np.float32(1e-35))), (0.02, -0.5), (0.02, -1.0), (0.02, 2.0**31), (0.02, 11.99),
    (0.01, -0.0),
]:  # fmt: skip
    asked[random.random(asked.shape) < share] = value
asked[0], asked[1], asked[2] = np.nan, 0, -1e-36

score = filled[:, 0] * 1.5 + filled[:, 1] * filled[:, 2] - filled[:, 3] + filled[:, 7]
score += np.isin(filled[:, 5], [1, 5, 7, 11]) * 2.0 + np.isin(filled[:, 6] % 7, [2, 3]) * 1.5
real = score + random.normal(size=SEEN) * 0.1
yes = (score > 0.5).astype(float)
positive = np.exp(score / 4).clip(0.05, 20)
three = np.digitize(score, [-1, 1])
share = 1 / (1 + np.exp(-score))


def path(name):
    return os.path.join(FOLDER, PREFIX + name)


def train(labels, rounds=ROUNDS, categories=(), group=None, data=seen, **parameters):
    training = lgb.Dataset(
        data, labels, group=group, categorical_feature=list(categories) or "auto", params=TREES
    )
    return lgb.train(dict(TREES, **parameters), training, rounds)


def make(name, labels, dump=False, **arguments):
    try:
        booster = train(labels, **arguments)
    except (lgb.basic.LightGBMError, TypeError) as error:
        print("not made", name, str(error).splitlines()[0])
        return
    booster.save_model(path(name + ".txt"))
    if dump:
        with open(path(name + ".json"), "w") as file:
            json.dump(booster.dump_model(), file, indent=1 if name == "regression" else None)


def objectives():
    make("regression", real, objective="regression", dump=True)
    make("regression_sqrt", real, objective="regression", reg_sqrt=True)
    for objective in ("regression_l1", "huber", "fair", "quantile", "mape"):
        make(objective, real, objective=objective)
    for objective in ("poisson", "gamma", "tweedie"):
        make(objective, positive, objective=objective)
    make("binary", yes, objective="binary", dump=True)
    make("binary_sigmoid", yes, objective="binary", sigmoid=0.7123)
    make("multiclass", three, objective="multiclass", num_class=3, dump=True)
    make("multiclassova", three, objective="multiclassova", num_class=3, sigmoid=1.37)
    make("cross_entropy", share, objective="cross_entropy")
    make("cross_entropy_lambda", share, objective="cross_entropy_lambda")
    group = [20] * (SEEN // 20)
    make("lambdarank", three, objective="lambdarank", group=group)
    if VERSION >= (3, 0):
        make("rank_xendcg", three, objective="rank_xendcg", group=group)
    if VERSION >= (4, 0):
        make("custom", real, objective=lambda sums, data: (sums - data.get_label(), sums * 0 + 1))


def shapes():
    squares = {"objective": "regression"}
    make("dart", real, boosting="dart", drop_rate=0.5, **squares)
    bagging = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
    make("rf", real, dump=VERSION >= (4, 0), **bagging, **squares)
    make("rf_binary", yes, objective="binary", **bagging)
    make("rf_multiclass", three, objective="multiclass", num_class=3, **bagging)
    make("zero_as_missing", real, zero_as_missing=True, dump=True, **squares)
    make("no_missing", real, use_missing=False, **squares)
    make("categories", real, categories=CATEGORIES, min_data_per_group=5, dump=True, **squares)
    make(
        "categories_onehot", real, categories=CATEGORIES, max_cat_to_onehot=100, cat_smooth=1,
        min_data_per_group=1, **squares,
    )  # fmt: skip
    zeros = {"zero_as_missing": True, "min_data_per_group": 5}
    make("categories_zero", real, categories=CATEGORIES, **zeros, **squares)
    make("leaf_only", real, min_data_in_leaf=10000, rounds=2, dump=VERSION >= (4, 0), **squares)
    make("deep", real, num_leaves=60, min_data_in_leaf=1, rounds=2, dump=True, **squares)
    make("nothing_missing", real, data=filled, num_leaves=15, **squares)
    if VERSION >= (3, 2):
        linear = {"linear_tree": True, "linear_lambda": 0.1}
        make("linear", real, dump=True, **linear, **squares)
        make("linear_binary", yes, categories=CATEGORIES, objective="binary", **linear)


def pickles():
    """Models for scikit-learn, and a booster with a best iteration."""

    def dump(name, model):
        with open(path(name), "wb") as file:
            pickle.dump(model, file)

    options = {"num_leaves": 7, "min_child_samples": 5, "n_jobs": 1, "random_state": 3}
    words = np.array(["no", "perhaps", "yes"])[three]
    few = dict(options, n_estimators=5)
    dump("classifier.pkl", lgb.LGBMClassifier(**few).fit(seen, words))
    dump("classifier_two.pkl", lgb.LGBMClassifier(**few).fit(seen, np.where(yes > 0, 7, -3)))
    dump("classifier_bool.pkl", lgb.LGBMClassifier(**few).fit(seen, yes > 0))
    dump("regressor.pkl", lgb.LGBMRegressor(objective="poisson", **few).fit(seen, positive))
    # After 60 rounds, so that there are trees behind the best round.
    booster = train(yes, rounds=60, objective="binary")
    booster.best_iteration = 4
    dump("best_iteration.pkl", booster)
    ranker = lgb.LGBMRanker(**few).fit(seen, three, group=[20] * (SEEN // 20))
    if VERSION >= (4, 0):
        joblib.dump(ranker, path("ranker.joblib"), compress=3)


def answers(name):
    """The predictions for a file, one array for each output; `None` if it is not a model."""
    file = os.path.join(FOLDER, name)
    if name.endswith((".txt", ".model")):
        booster = lgb.Booster(model_file=file)
        # Models of others have other numbers of features.
        return [booster.predict(asked[:, np.arange(booster.num_feature()) % FEATURES])]
    if name.endswith(".json") and name != "cases.json":
        # The library does not read what it dumps.
        return answers(name[: -len("json")] + "txt")
    if not name.endswith((".pkl", ".joblib")):
        return None
    model = joblib.load(file)
    if isinstance(model, lgb.Booster):
        return [model.predict(asked)]
    # Attributes that older versions do not have.
    booster, classes = model.__dict__["_Booster"], getattr(model, "_classes", None)
    result = booster.predict(asked)
    if classes is None:
        return [result]
    proba = result if result.ndim > 1 else np.vstack((1.0 - result, result)).T
    if name.startswith(PREFIX):
        assert (proba == model.predict_proba(asked)).all()
        assert (classes[proba.argmax(1)] == model.predict(asked)).all()
    return [classes[proba.argmax(1)], proba]


def predict():
    cases, parts, offset = {}, [], 0
    for name in sorted(os.listdir(FOLDER)):
        outputs = answers(name)
        if outputs is None:
            continue
        numbers = np.ascontiguousarray(outputs[-1], "<f8")
        case = {"offset": offset, "shape": list(numbers.shape)}
        if len(outputs) == 2:
            # The labels, as the indices of the classes.
            case["labels"] = sorted({str(label) for label in outputs[0]})
            digits = [str(case["labels"].index(str(label))) for label in outputs[0]]
            case["predicted"] = "".join(digits)
        cases[name] = case
        parts.append(numbers.tobytes())
        offset += numbers.size
    with open(os.path.join(FOLDER, "rows.bin"), "wb") as file:
        file.write(np.ascontiguousarray(asked, "<f8").tobytes())
    with open(os.path.join(FOLDER, "expected.bin"), "wb") as file:
        file.write(b"".join(parts))
    with open(os.path.join(FOLDER, "cases.json"), "w") as file:
        json.dump(cases, file, indent=0)
    print(len(cases), "cases")


os.makedirs(FOLDER, exist_ok=True)
if sys.argv[1] == "write":
    for step in (objectives, shapes, pickles):
        step()
else:
    predict()
