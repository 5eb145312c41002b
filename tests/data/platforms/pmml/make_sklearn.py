"""Makes the files sklearn2pmml_*.pmml of this folder, which sklearn2pmml writes, and sklearn.json.gz: what
scikit-learn itself predicts for 1,000 rows of each, with missing, extreme and unseen values. Seed 3.

    pip install scikit-learn==1.9.0 pandas==3.1.1 sklearn2pmml==0.133.1     # on Java 17
"""

import gzip
import json
import os

import numpy as np
import pandas as pd
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import AdaBoostRegressor, GradientBoostingClassifier, IsolationForest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, NuSVC, OneClassSVM
from sklearn2pmml import sklearn2pmml
from sklearn2pmml.pipeline import PMMLPipeline

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = 1000
rng = np.random.default_rng(3)

iris, species = load_iris(return_X_y=True, as_frame=True)
iris.columns = ["sl", "sw", "pl", "pw"]
species = np.array(["setosa", "versicolor", "virginica"])[species]
diabetes, progress = load_diabetes(return_X_y=True, as_frame=True)

PEOPLE = 1500
people = pd.DataFrame(
    {
        "age": rng.integers(1, 80, PEOPLE).astype(float),
        "fare": rng.exponential(30, PEOPLE).round(2),
        "cls": rng.choice(["first", "second", "third"], PEOPLE),
        "sex": rng.choice(["male", "female"], PEOPLE),
    }
)
odds = (people.sex == "female") * 2 + (people.cls == "first") - (people.age > 40)
survived = (odds + rng.normal(0, 1, PEOPLE) > 1).astype(int)
people.loc[rng.random(PEOPLE) < 0.1, "age"] = np.nan


def table(last):
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    texts = OneHotEncoder(handle_unknown="ignore")
    columns = [("numbers", numbers, ["age", "fare"]), ("texts", texts, ["cls", "sex"])]
    return Pipeline([("columns", ColumnTransformer(columns)), ("last", last)])


# The model, its data, and the name of the output that is its prediction.
MODELS = {
    "titanic": (table(LogisticRegression()), people, survived, None),
    "titanic_boosted": (table(GradientBoostingClassifier(n_estimators=10)), people, survived, None),
    "naive_bayes": (GaussianNB(), iris, species, "y"),
    "neighbors": (KNeighborsClassifier(5), iris, species, "y"),
    "svc": (SVC(), iris, species, "y"),
    "nu_svc": (NuSVC(kernel="poly"), iris, species, "y"),
    "one_class": (OneClassSVM(nu=0.1), iris, None, None),
    "isolation": (IsolationForest(n_estimators=5, random_state=1), iris, None, None),
    "perceptron": (MLPClassifier((6,), max_iter=400, random_state=1), iris, species, "y"),
    "kmeans": (KMeans(3, n_init=3, random_state=1), iris, None, "cluster"),
    "ada": (AdaBoostRegressor(n_estimators=5, random_state=1), diabetes, progress, "target"),
    "poisson": (PoissonRegressor(), diabetes, progress, "target"),
}


def rows_like(data):
    if data is people:
        rows = data.sample(ROWS, random_state=2).reset_index(drop=True)
        rows.loc[::7, "fare"] = 1e6
        rows.loc[::11, "age"] = np.nan
        return rows
    low, high = data.min(), data.max()
    margin = 0.2 * (high - low)
    return pd.DataFrame(
        {
            c: rng.uniform(low[c] - margin[c], high[c] + margin[c], ROWS).round(3)
            for c in data.columns
        }
    )


def golden(name):
    model, data, target, output = MODELS[name]
    steps = model.steps if isinstance(model, Pipeline) else [("model", model)]
    pipeline = PMMLPipeline(steps).fit(data, target)
    sklearn2pmml(pipeline, os.path.join(HERE, f"sklearn2pmml_{name}.pmml"))
    rows = rows_like(data)
    outputs = {}
    if output:
        predicted = pipeline.predict(rows).tolist()
        outputs[output] = [str(p) for p in predicted] if name == "kmeans" else predicted
    if (
        target is not None
        and hasattr(model, "predict_proba")
        and name not in ("svc", "nu_svc", "neighbors")
    ):
        for index, label in enumerate(pipeline.classes_):
            outputs[f"probability({label})"] = pipeline.predict_proba(rows)[:, index].tolist()
    if name in ("one_class", "isolation"):
        outputs["decisionFunction"] = pipeline.decision_function(rows).tolist()
    inputs = {c: [None if v != v else v for v in rows[c].tolist()] for c in rows.columns}
    return {"by": "scikit-learn", "inputs": inputs, "outputs": outputs}


if __name__ == "__main__":
    goldens = {f"sklearn2pmml_{name}": golden(name) for name in MODELS}
    with gzip.GzipFile(os.path.join(HERE, "sklearn.json.gz"), "wb", mtime=0) as file:
        file.write(json.dumps(goldens).encode())
