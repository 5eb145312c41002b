"""Writes sklearn-boosters-VERSION.json.gz: pipelines and ensembles with estimators of XGBoost and
LightGBM, as sklearn_tables.py writes models of tables.

    pip install scikit-learn==1.9.1 pandas xgboost-cpu==3.2.0 lightgbm==4.7.0
    pip install scikit-learn==1.2.2 "numpy<2" "pandas<2.3" xgboost-cpu==2.1.4 lightgbm==4.3.0
    python tests/cases/sklearn_boosters.py
"""

import pickle

import numpy as np
import sklearn_tables
from lightgbm import LGBMClassifier, LGBMRanker, LGBMRegressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingClassifier,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)
from sklearn_tables import (
    FATE,
    MONEY,
    NUMERIC,
    ROWS,
    SHIP,
    SURVIVED,
    TEXTUAL,
    THREE,
    VERSION,
    write,
)
from sklearn_texts import DOCUMENTS, TEXTS, TOPIC
from xgboost import XGBClassifier, XGBRanker, XGBRegressor, XGBRFClassifier

KINDS = np.array(["first", "second", "third"])[THREE + 1]


def xgb(**settings):
    return XGBClassifier(n_estimators=4, max_depth=3, n_jobs=1, **settings)


def lgbm(**settings):
    return LGBMClassifier(
        n_estimators=4, num_leaves=6, min_child_samples=5, n_jobs=1, verbose=-1, **settings
    )


def xgb_number(**settings):
    return XGBRegressor(n_estimators=4, max_depth=3, n_jobs=1, **settings)


def lgbm_number(**settings):
    return LGBMRegressor(
        n_estimators=4, num_leaves=6, min_child_samples=5, n_jobs=1, verbose=-1, **settings
    )


def columns(text, threshold=0.3, numbers="passthrough"):
    """Texts are encoded, numbers stay as they are, missing ones too."""
    parts = [("text", text, TEXTUAL), ("number", numbers, [*NUMERIC, "sibsp"])]
    return ColumnTransformer(parts, sparse_threshold=threshold)


def one_hot(**settings):
    return OneHotEncoder(handle_unknown="ignore", **settings)


def ordinal():
    return OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2
    )


def filled(text=None, threshold=0.3):
    return columns(text or one_hot(), threshold, make_pipeline(SimpleImputer(), StandardScaler()))


def classifiers():
    """A sparse matrix of XGBoost's has no zeros: they are missing."""
    for columns_of in (
        columns(ordinal()),
        columns(one_hot(), threshold=1.0),
        columns(one_hot(), threshold=0.0),
        filled(),
        filled(threshold=1.0),
    ):
        yield make_pipeline(columns_of, xgb()), SURVIVED
        yield make_pipeline(columns_of, lgbm()), FATE
    yield make_pipeline(columns(ordinal()), xgb()), THREE + 1
    yield make_pipeline(columns(ordinal()), lgbm()), KINDS
    yield make_pipeline(columns(ordinal()), xgb(missing=0)), SURVIVED
    yield make_pipeline(columns(ordinal()), xgb(booster="dart")), SURVIVED
    yield make_pipeline(filled(), xgb(objective="binary:hinge")), SURVIVED
    yield make_pipeline(filled(), XGBRFClassifier(n_estimators=3, max_depth=3)), SURVIVED
    yield make_pipeline(filled(), lgbm(boosting_type="rf", subsample=0.6, subsample_freq=1)), FATE
    union = FeatureUnion([("one", one_hot()), ("bins", ordinal())])
    yield make_pipeline(columns(union), xgb()), SURVIVED
    for base in xgb(), lgbm():
        inner = make_pipeline(columns(ordinal()), base)
        name = type(base).__name__.lower()
        search = GridSearchCV(inner, {f"{name}__learning_rate": [0.1, 0.4]}, cv=2)
        yield search, SURVIVED
        yield make_pipeline(filled(), CalibratedClassifierCV(base, cv=2)), SURVIVED
        isotonic = CalibratedClassifierCV(base, method="isotonic", cv=2)
        yield make_pipeline(filled(), isotonic), THREE + 1
        yield make_pipeline(filled(threshold=1.0), OneVsRestClassifier(base)), KINDS
        bagging = BaggingClassifier(base, 3, max_features=0.7, random_state=0)
        yield make_pipeline(filled(), bagging), FATE
    parts = [("x", xgb()), ("l", lgbm()), ("r", LogisticRegression(max_iter=500))]
    for voting in "soft", "hard":
        yield make_pipeline(filled(), VotingClassifier(parts, voting=voting)), FATE
        yield make_pipeline(filled(threshold=1.0), VotingClassifier(parts, voting=voting)), KINDS
    for passthrough in False, True:
        stack = StackingClassifier(parts, LogisticRegression(), cv=2, passthrough=passthrough)
        yield make_pipeline(filled(threshold=1.0), stack), KINDS
    last = StackingClassifier(parts[1:], xgb(), cv=2, passthrough=True)
    yield make_pipeline(filled(threshold=1.0), last), SURVIVED


def numbers():
    for base in xgb_number(), lgbm_number():
        yield make_pipeline(columns(ordinal()), base), MONEY
        yield make_pipeline(columns(one_hot(), threshold=1.0), base), MONEY
        logs = TransformedTargetRegressor(base, func=np.log1p, inverse_func=np.expm1)
        yield make_pipeline(filled(), logs), np.exp(MONEY / 10)
        yield make_pipeline(filled(), MultiOutputRegressor(base)), np.column_stack([MONEY, THREE])
    counts = SHIP.sibsp.to_numpy()
    yield make_pipeline(columns(ordinal()), xgb_number(objective="count:poisson")), counts
    yield make_pipeline(columns(ordinal()), lgbm_number(objective="poisson")), counts
    both = [("x", xgb_number()), ("l", lgbm_number()), ("r", Ridge())]
    yield make_pipeline(filled(), VotingRegressor(both)), MONEY
    yield make_pipeline(filled(), StackingRegressor(both, Ridge(), cv=2)), MONEY
    yield make_pipeline(filled(), xgb_number()), np.column_stack([MONEY, THREE])


def rankers():
    groups = np.repeat(np.arange(24), 10)
    model = make_pipeline(columns(ordinal()), XGBRanker(n_estimators=4, max_depth=3))
    yield model.set_params(xgbranker__objective="rank:pairwise"), {"xgbranker__qid": groups}
    ranker = LGBMRanker(n_estimators=4, num_leaves=6, min_child_samples=5, verbose=-1)
    yield make_pipeline(columns(ordinal()), ranker), {"lgbmranker__group": [10] * 24}


class Served:
    """A model with the settings of its fit, and its whole description. Its pickle is that of the model."""

    def __init__(self, model, settings=()):
        self.model, self.settings = model, dict(settings)

    def fit(self, rows, target):
        self.model.fit(rows, target, **self.settings)

    def __str__(self):
        return self.model.__repr__(N_CHAR_MAX=10**6)

    def __getattr__(self, name):
        return getattr(self.model, name)


class ModelPickles:
    """Pickles what is served."""

    @staticmethod
    def dumps(estimator):
        return pickle.dumps(estimator.model)


sklearn_tables.pickle = ModelPickles


def boosters():
    for estimator, target in [*classifiers(), *numbers()]:
        yield Served(estimator), SHIP, target, ROWS
    for estimator, settings in rankers():
        yield Served(estimator, settings), SHIP, THREE + 1, ROWS
    rows = ROWS[["age", "fare"]]
    for encode in "onehot", "onehot-dense":
        bins = KBinsDiscretizer(4, encode=encode, strategy="uniform")
        model = make_pipeline(SimpleImputer(), bins, xgb())
        yield Served(model), SHIP[["age", "fare"]], SURVIVED, rows
    for base in xgb(), lgbm():
        yield Served(make_pipeline(TfidfVectorizer(min_df=3), base)), TEXTS, TOPIC, DOCUMENTS


if __name__ == "__main__":
    assert VERSION in ((1, 9), (1, 2))
    write("boosters", boosters())
