"""Makes models of every loss function and kind of tree with CatBoost (1.2.10 was used), as `.cbm` and
JSON, and its predictions for rows with missing, extreme and unseen values.

    make_catboost.py FOLDER
"""

import json
import os
import sys

import numpy as np
import pandas as pd
from catboost import CatBoostClassifier, CatBoostRanker, CatBoostRegressor, Pool

FOLDER = sys.argv[1]
SEEN, ASKED, NUMBERS = 500, 1000, 4
CASES, PARTS = {}, []
# Models that are also written as JSON, which takes much more space; all were compared.
JSON = ("rmse", "multiclass", "booleans", "lossguide", "ctr_regression")
JSON += ("ctr_BinarizedTargetMeanValue",)

random = np.random.default_rng(5)


def draw(count, unseen):
    numbers = random.normal(size=(count, NUMBERS))
    numbers[random.random(numbers.shape) < 0.1] = np.nan
    first = np.array(["red", "green", "blue", "", "näh", "x y", "purple"])
    texts = [
        first[random.integers(0, 6 + unseen, count)],
        random.integers(0, 40 + 20 * unseen, count),
    ]
    texts.append(np.array(["yes", "no", "maybe"])[random.integers(0, 2 + unseen, count)])
    return numbers, np.array(texts).T.astype(str)


def frame(numbers, texts):
    data = {f"n{i}": numbers[:, i] for i in range(numbers.shape[1])}
    return pd.DataFrame(data | {f"c{i}": texts[:, i] for i in range(texts.shape[1])})


seen, seen_texts = draw(SEEN, 0)
asked, asked_texts = draw(ASKED, 1)
for value in (0, 1e300, -1e300, np.inf, -np.inf, 1e-40, -0.0, 3e38):
    asked[random.random(asked.shape) < 0.02] = value
asked[0] = np.nan
score = (
    np.nan_to_num(seen[:, 0]) * 1.5 - np.nan_to_num(seen[:, 1]) + (seen_texts[:, 0] == "red") * 2
)
score += (seen_texts[:, 1].astype(int) % 5 == 0) * 2 + (seen_texts[:, 2] == "yes")
real = score + random.normal(size=SEEN) * 0.2
yes = (score > 1.5).astype(int)
three = np.digitize(score, [0.5, 2])
positive = np.exp(score / 4)
words = np.array(["low", "middle", "high"])[three]
CATEGORIES = ["c0", "c1", "c2"]


def note(name, predicted, proba=None):
    numbers = np.ascontiguousarray(predicted if proba is None else proba, "<f8")
    case = {"offset": sum(part.size for part in PARTS), "shape": list(numbers.shape)}
    case["is_classifier"] = proba is not None
    if proba is not None and np.ndim(predicted) < 2:
        case["labels"] = sorted({str(label) for label in predicted})
        case["predicted"] = "".join(str(case["labels"].index(str(x))) for x in predicted)
    CASES[name] = case
    PARTS.append(numbers)


def make(name, kind, labels, categories=False, group=None, **options):
    options = {"iterations": 12, "depth": 4, "learning_rate": 0.3, **options}
    model = kind(random_seed=1, thread_count=1, verbose=0, allow_writing_files=False, **options)
    data = frame(seen, seen_texts) if categories else seen
    rows = frame(asked, asked_texts) if categories else asked
    pool = Pool(data, labels, cat_features=CATEGORIES if categories else None, group_id=group)
    model.fit(pool)
    model.save_model(os.path.join(FOLDER, name + ".cbm"))
    files = [name + ".cbm"]
    if name in JSON:
        model.save_model(os.path.join(FOLDER, name + ".json"), format="json", pool=pool)
        files.append(name + ".json")
    for file in files:
        if hasattr(model, "predict_proba"):
            note(file, np.squeeze(model.predict(rows)), model.predict_proba(rows))
        else:
            note(file, model.predict(rows))


os.makedirs(FOLDER, exist_ok=True)
C, R = CatBoostClassifier, CatBoostRegressor
make("rmse", R, real)
make("rmse_many", R, real, iterations=40, depth=6)
make("deep", R, real, depth=9, iterations=3)
make("nan_max", R, real, nan_mode="Max")
make("mae", R, real, loss_function="MAE")
make("quantile", R, real, loss_function="MultiQuantile:alpha=0.1,0.5,0.9")
make("poisson", R, positive, loss_function="Poisson")
make("tweedie", R, positive, loss_function="Tweedie:variance_power=1.5")
make("uncertainty", R, real, loss_function="RMSEWithUncertainty")
make("targets", R, np.stack([real, -real], 1), loss_function="MultiRMSE")
make("logloss", C, yes)
make("cross_entropy", C, 1 / (1 + np.exp(-score)), loss_function="CrossEntropy")
make("multiclass", C, words)
make("one_vs_all", C, three * 10, loss_function="MultiClassOneVsAll")
make("booleans", C, yes > 0)
make("floats", C, three + 0.5)
make("multilabel", C, np.stack([yes, three > 1], 1).astype(int), loss_function="MultiLogloss")
make("ranker", CatBoostRanker, three, group=np.repeat(np.arange(SEEN // 20), 20))
make("lossguide", R, real, grow_policy="Lossguide", max_leaves=12)
make("depthwise_multiclass", C, words, grow_policy="Depthwise")
make("one_hot", R, real, True, one_hot_max_size=50)
make("one_hot_lossguide", C, yes, True, one_hot_max_size=50, grow_policy="Lossguide")
make("ctr", C, yes, True)
make("ctr_regression", R, real, True)
make("ctr_multiclass", C, words, True)
make("ctr_depthwise", R, real, True, grow_policy="Depthwise")
for ctr in ("Borders", "Buckets", "BinarizedTargetMeanValue", "Counter"):
    only = [ctr + ":Prior=0.5"]
    make("ctr_" + ctr, C, words, True, simple_ctr=only, combinations_ctr=only, max_ctr_complexity=3)
make("ctr_one_hot", R, real, True, one_hot_max_size=3, max_ctr_complexity=3, iterations=40)
with open(os.path.join(FOLDER, "rows.bin"), "wb") as file:
    file.write(np.ascontiguousarray(asked, "<f8").tobytes())
with open(os.path.join(FOLDER, "texts.json"), "w") as file:
    json.dump(asked_texts.tolist(), file, separators=(",", ":"))
with open(os.path.join(FOLDER, "expected.bin"), "wb") as file:
    file.write(b"".join(part.tobytes() for part in PARTS))
with open(os.path.join(FOLDER, "cases.json"), "w") as file:
    json.dump(CASES, file, indent=0)
print(len(CASES), "cases")
