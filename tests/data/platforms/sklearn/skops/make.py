"""Writes models of scikit-learn 1.9.1 with skops 0.16, and the predictions that they must give."""

import json
import os
import zipfile

import numpy as np
import skops.io
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.svm import SVC

HERE = os.path.dirname(os.path.abspath(__file__))


def models(rows, labels):
    names = np.array(["setosa", "versicolor", "virginica"])[labels]
    logistic = LogisticRegression()
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), [3]), (StandardScaler(), [0, 1, 2])
    )
    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2)
    votes = VotingClassifier(
        [("a", logistic), ("b", SGDClassifier(loss="log_loss"))], voting="soft"
    )
    return {
        "pipeline": make_pipeline(StandardScaler(), MinMaxScaler(), logistic).fit(rows, names),
        "columns": make_pipeline(columns, LogisticRegression()).fit(rows, labels),
        "search": search.fit(rows, labels),
        "forest": RandomForestClassifier(3, max_depth=3, random_state=1).fit(rows, labels),
        "boosted": GradientBoostingClassifier(n_estimators=3, random_state=1).fit(rows, labels),
        "histogram": HistGradientBoostingRegressor(max_iter=3).fit(rows, labels),
        "votes": votes.fit(rows, labels),
        "neighbors": KNeighborsClassifier(3).fit(rows, labels),
        "network": MLPClassifier([4], max_iter=20, random_state=1).fit(rows, labels),
        "svc": SVC(random_state=1).fit(rows, labels),
    }


def main():
    rows, labels = load_iris(return_X_y=True)
    some = rows[[0, 60, 120]]
    expected = {"rows": some.tolist()}
    for number, (name, model) in enumerate(models(rows, labels).items()):
        # Compressed files, and one that is not.
        method = zipfile.ZIP_DEFLATED if number else zipfile.ZIP_STORED
        skops.io.dump(model, os.path.join(HERE, f"{name}.skops"), compression=method)
        outputs = {"predict": model.predict(some).tolist()}
        if hasattr(model, "predict_proba"):
            outputs["predict_proba"] = model.predict_proba(some).tolist()
        expected[name] = outputs
    with open(os.path.join(HERE, "expected.json"), "w", encoding="utf-8") as file:
        json.dump(expected, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
