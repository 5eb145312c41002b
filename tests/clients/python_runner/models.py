"""The models: what they are, and the rows that are asked."""

import json
import os
import pickle
import shutil
import sys

import cloudpickle
import lightgbm
import numpy as np
import pandas as pd
import skops.io
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import mine

ROWS = 1000
COLUMNS = ["age", "fare", "sex", "class"]


def passengers(rows, seed):
    """A table with missing values in numbers and texts, extreme numbers and rare texts."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": random.normal(30, 12, rows),
            "fare": random.gamma(1, 30, rows),
            "sex": random.choice(["female", "male"], rows),
            "class": random.choice(["First", "Second", "Third"], rows, p=[0.2, 0.2, 0.6]),
            "name": [f"Passenger {number}" for number in range(rows)],
        }
    )
    frame.loc[random.random(rows) < 0.2, "age"] = np.nan
    frame.loc[random.random(rows) < 0.1, "class"] = np.nan
    return frame


TRAINING = passengers(800, 1)
SURVIVED = np.where(
    (TRAINING.sex == "female") | (np.random.default_rng(2).random(800) < 0.2), "yes", "no"
)
# Values that the training did not have.
QUESTIONS = passengers(ROWS, 3)
QUESTIONS.loc[:9, "class"] = "Crew"
QUESTIONS.loc[10:19, "fare"] = [1e300, -1e300, 0.0, -0.0, 5e-324] * 2


def table_steps(numbers):
    categories = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
    )
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), numbers),
            ("categories", categories, ["sex", "class"]),
        ]
    )
    return [("columns", columns), ("model", LogisticRegression())]


TITANIC = Pipeline(table_steps(["age", "fare"])).fit(TRAINING, SURVIVED)
# Only Python can run these: a function of the user, by name and as a lambda.
FUNCTION = Pipeline(
    [("total", FunctionTransformer(mine.add_total)), *table_steps(["age", "fare", "total"])]
).fit(TRAINING[COLUMNS], SURVIVED)
LAMBDA = make_pipeline(FunctionTransformer(lambda rows: rows**2), LogisticRegression()).fit(
    np.arange(4.0).reshape(-1, 1), [0, 0, 1, 1]
)
NEWS = make_pipeline(TfidfVectorizer(), LinearSVC()).fit(
    ["the team has won the game", "shares fell", "a goal in the last minute", "the bank lends"],
    ["sport", "money", "sport", "money"],
)
BOOSTED = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(
    TRAINING[["age", "fare"]], SURVIVED
)


def write(root):
    """Writes all models below `root`."""

    def folder(name, version=1):
        made = os.path.join(root, name, str(version))
        os.makedirs(made, exist_ok=True)
        return made

    def save(name, model, dump=pickle.dump, file="model.pkl"):
        with open(os.path.join(folder(name), file), "wb") as opened:
            dump(model, opened)

    def with_code(name):
        code = os.path.join(root, name, "code")
        os.makedirs(code, exist_ok=True)
        shutil.copy(os.path.join(HERE, "mine.py"), code)

    save("titanic", TITANIC)
    save("function", FUNCTION)
    with_code("function")
    save("lambda", LAMBDA, cloudpickle.dump)
    save("news", NEWS)
    save("boosted", BOOSTED, file="model.joblib")
    save("doubler", mine.Doubler())
    with_code("doubler")
    skops.io.dump(TITANIC, os.path.join(folder("skops"), "model.skops"))


def instances(frame):
    """The rows as JSON objects, with null for what is missing."""
    return json.loads(frame.to_json(orient="records", double_precision=15))
