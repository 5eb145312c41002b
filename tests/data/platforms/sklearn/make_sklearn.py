"""Writes the models of passengers, of news and of flowers here, pickled, and what scikit-learn predicts for
rows with missing, extreme and unseen values: the file NAME.json beside each.

pip install scikit-learn==1.9.1 pandas && python tests/data/platforms/sklearn/make_sklearn.py
"""

import json
import os
import pickle

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

FOLDER = os.path.dirname(os.path.abspath(__file__))
random = np.random.RandomState(7)
COUNT = 400


def texts(values, missing):
    column = random.choice(np.array(values, object), COUNT)
    column[random.rand(COUNT) < missing] = np.nan
    return column


# The columns of the data set of the Titanic's passengers; the passengers are drawn at random.
PASSENGERS = pd.DataFrame(
    {
        "PassengerId": np.arange(1, COUNT + 1),
        "Pclass": random.choice([1, 2, 3], COUNT, p=[0.25, 0.2, 0.55]),
        "Name": [f"Passenger, Mr. {number}" for number in range(COUNT)],
        "Sex": texts(["male", "female"], 0.0),
        "Age": np.where(random.rand(COUNT) < 0.2, np.nan, np.round(random.gamma(4, 7, COUNT), 1)),
        "SibSp": random.poisson(0.5, COUNT),
        "Parch": random.poisson(0.4, COUNT),
        "Ticket": [f"A/5 {number}" for number in range(COUNT)],
        "Fare": np.round(random.lognormal(3, 1, COUNT), 2),
        "Cabin": texts(["C85", "E46", "B28"], 0.7),
        "Embarked": texts(["S", "C", "Q"], 0.02),
    }
)
CHANCE = (PASSENGERS.Sex == "female") * 2.5 - PASSENGERS.Pclass * 0.8 + PASSENGERS.Fare * 0.01
SURVIVED = (CHANCE + random.randn(COUNT) > 0).astype(int)
NUMBERS = ["Age", "SibSp", "Parch", "Fare"]
CATEGORIES = ["Pclass", "Sex", "Embarked"]


def passengers(last):
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    categories = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder)
    columns = ColumnTransformer(
        [
            ("numbers", numbers, NUMBERS),
            ("class", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["Pclass"]),
            ("categories", categories, ["Sex", "Embarked"]),
        ]
    )
    return make_pipeline(columns, last).fit(PASSENGERS, SURVIVED)


def new_passengers():
    rows = PASSENGERS.iloc[:40].reset_index(drop=True).copy()
    rows["Pclass"] = rows["Pclass"].astype(float)
    changes = {
        "Age": [np.nan, 0.0, 1e9, -1e300],
        "Fare": [np.nan, 1e12, 0.0],
        "Sex": ["unknown", "Male", np.nan],
        "Embarked": ["X", np.nan, "S "],
        "Pclass": [7.0, np.nan],
    }
    number = 0
    for column, values in changes.items():
        for value in values:
            rows.loc[number, column] = value
            number += 2
    rows.loc[39, ["Age", "Fare", "Sex", "Embarked", "Pclass"]] = np.nan
    return rows


TOPICS = {
    "sport": "goal match team player coach season league score win defeat stadium cup final",
    "space": "rocket orbit moon launch probe planet star telescope crew station mission engine",
    "politics": "election president vote law parliament debate ministry reform senate treaty",
    "food": "recipe oven butter sugar flour dinner chef kitchen taste menu cheese bread",
}
COMMON = "the a of and in to is was for on with that it as by at from this its has after"
LABELS = list(TOPICS)


def news(count):
    topics = random.randint(0, len(LABELS), count)
    articles = []
    for topic in topics:
        words = random.choice(TOPICS[LABELS[topic]].split(), random.randint(2, 7)).tolist()
        words += random.choice(COMMON.split(), random.randint(3, 9)).tolist()
        random.shuffle(words)
        articles.append(" ".join(words).capitalize() + ".")
    return articles, np.array(LABELS)[topics]


def plain(value):
    """A value as JSON has it: null for a missing one."""
    if isinstance(value, float) and np.isnan(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def write(name, model, rows, functions):
    with open(os.path.join(FOLDER, name + ".pkl"), "wb") as file:
        pickle.dump(model, file, protocol=4)
    outputs = {function: getattr(model, function)(rows).tolist() for function in functions}
    if isinstance(rows, pd.DataFrame):
        records = rows.astype(object).to_dict("records")
        rows = [{key: plain(value) for key, value in record.items()} for record in records]
    with open(os.path.join(FOLDER, name + ".json"), "w") as file:
        json.dump({"rows": rows, "outputs": outputs}, file, separators=(",", ":"))
        file.write("\n")


def main():
    both = "predict", "predict_proba"
    logistic = passengers(LogisticRegression(max_iter=500))
    write("passengers_logistic", logistic, new_passengers(), both)
    boosted = HistGradientBoostingClassifier(max_iter=5, max_depth=3, min_samples_leaf=10)
    write("passengers_boosted", passengers(boosted), new_passengers(), both)
    articles, topics = news(300)
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), min_df=3), LinearSVC())
    write("news", model.fit(articles, topics), [*news(40)[0], "", "Zzz!"], ["predict"])
    iris = load_iris(as_frame=True)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(iris.data, iris.target)
    write("iris_frame", model, iris.data.iloc[::10], both)


main()
