"""Writes sklearn-VERSION.json: small fitted models of the installed version of scikit-learn, and
its predictions with them.

    pip install scikit-learn==1.9.1 && python tests/cases/sklearn_models.py
    pip install scikit-learn==1.2.2 "numpy<2" && python tests/cases/sklearn_models.py
"""

import base64
import gzip
import io
import json
import os
import pickle
import warnings

import joblib
import numpy as np
import sklearn.base
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_selection import (
    RFE,
    SelectFdr,
    SelectFpr,
    SelectFromModel,
    SelectFwe,
    SelectKBest,
    SelectPercentile,
    VarianceThreshold,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    BayesianRidge,
    ElasticNet,
    GammaRegressor,
    HuberRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    Perceptron,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import BernoulliNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR, NuSVC, NuSVR
from sklearn.tree import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeClassifier,
    ExtraTreeRegressor,
)

warnings.filterwarnings("ignore")
VERSION = tuple(int(part) for part in sklearn.__version__.split(".")[:2])
random = np.random.RandomState(0)
X, Y = load_iris(return_X_y=True)
X = np.round(X[::2] + random.randn(75, 4) * 0.3, 4)
Y = Y[::2]
TWO = (Y > 0) * 1
NAMES = np.array(["setosa", "versicolor", "é"])[Y]
NUMBER = X @ [0.5, -1, 2, 0.25] + random.randn(75)
NUMBERS = np.column_stack([NUMBER, NUMBER[::-1]])
POSITIVE = np.exp(NUMBER / 5)
HOLES = np.where(random.rand(75, 4) < 0.2, np.nan, X)
COUNTS = np.abs(np.round(X))
ROWS = np.concatenate([X[::8], X[::15] * 3 - 2])


def logistic(**settings):
    return LogisticRegression(max_iter=300, **settings)


few = {"n_estimators": 3, "random_state": 0}
shallow = {"max_depth": 3, "random_state": 0}

CLASSIFIERS = [
    logistic(),
    SGDClassifier(random_state=0),
    SGDClassifier(loss="log_loss", random_state=0),
    SGDClassifier(loss="modified_huber", random_state=0),
    LinearSVC(),
    RidgeClassifier(),
    Perceptron(),
    LinearDiscriminantAnalysis(),
    QuadraticDiscriminantAnalysis(reg_param=0.01),
    GaussianNB(),
    BernoulliNB(binarize=2.0),
    DecisionTreeClassifier(**shallow),
    DecisionTreeClassifier(max_leaf_nodes=5, random_state=0),
    ExtraTreeClassifier(**shallow),
    RandomForestClassifier(max_depth=3, **few),
    ExtraTreesClassifier(max_depth=3, **few),
    GradientBoostingClassifier(max_depth=2, **few),
    GradientBoostingClassifier(max_depth=2, init="zero", **few),
    HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=5),
    AdaBoostClassifier(**few),
    BaggingClassifier(DecisionTreeClassifier(max_depth=2), **few),
    BaggingClassifier(logistic(), max_features=2, **few),
    BaggingClassifier(LinearSVC(), max_features=2, **few),
    KNeighborsClassifier(3),
    KNeighborsClassifier(4, weights="distance", p=1),
    SVC(gamma="scale"),
    SVC(kernel="linear"),
    SVC(kernel="poly", degree=2, coef0=0.5, break_ties=True),
    SVC(probability=True, random_state=0),
    NuSVC(nu=0.3),
    MLPClassifier((4, 3), max_iter=100, random_state=0),
    VotingClassifier([("a", logistic()), ("b", GaussianNB())], voting="soft"),
    VotingClassifier([("a", logistic()), ("b", GaussianNB()), ("c", LinearSVC())]),
    GridSearchCV(logistic(), {"C": [0.1, 1]}),
]
if VERSION < (1, 8):
    CLASSIFIERS += [
        logistic(multi_class="ovr"),
        logistic(multi_class="multinomial"),
        AdaBoostClassifier(algorithm="SAMME", **few),
    ]

if VERSION >= (1, 3):
    CLASSIFIERS += [DummyClassifier(), DummyClassifier(strategy="most_frequent")]

REGRESSORS = [
    LinearRegression(),
    Ridge(),
    Lasso(alpha=0.1),
    ElasticNet(alpha=0.1),
    DecisionTreeRegressor(**shallow),
    ExtraTreeRegressor(**shallow),
    RandomForestRegressor(max_depth=3, **few),
    ExtraTreesRegressor(max_depth=3, **few),
    KNeighborsRegressor(3),
    KNeighborsRegressor(4, weights="distance", metric="chebyshev"),
    MLPRegressor(hidden_layer_sizes=(4,), max_iter=100, random_state=0),
]
if VERSION >= (1, 3):
    REGRESSORS += [DummyRegressor()]
ONE_NUMBER = [
    SGDRegressor(random_state=0),
    BayesianRidge(),
    HuberRegressor(max_iter=300),
    LinearSVR(),
    SVR(),
    NuSVR(kernel="sigmoid", gamma=0.01),
    GradientBoostingRegressor(max_depth=2, **few),
    GradientBoostingRegressor(max_depth=2, loss="quantile", **few),
    HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=5),
    AdaBoostRegressor(DecisionTreeRegressor(max_depth=2), **few),
    BaggingRegressor(Ridge(), max_features=2, **few),
    VotingRegressor([("a", Ridge()), ("b", DecisionTreeRegressor(max_depth=2))]),
]
POSITIVES = [
    PoissonRegressor(),
    GammaRegressor(),
    TweedieRegressor(power=1.5),
    HistGradientBoostingRegressor(loss="poisson", max_iter=3, min_samples_leaf=5),
]
TRANSFORMERS = [
    StandardScaler(),
    StandardScaler(with_mean=False),
    MinMaxScaler((-2, 3), clip=True),
    MaxAbsScaler(),
    RobustScaler(),
    Normalizer(),
    Normalizer("l1"),
    Normalizer("max"),
    Binarizer(threshold=2),
    PolynomialFeatures(2),
    PolynomialFeatures(3, interaction_only=True, include_bias=False),
    PCA(2),
    PCA(2, whiten=True),
    IncrementalPCA(2),
    TruncatedSVD(2),
    SelectKBest(k=2),
    SelectPercentile(percentile=50),
    SelectFpr(),
    SelectFdr(),
    SelectFwe(),
    VarianceThreshold(0.5),
    RFE(logistic(), n_features_to_select=2),
    SelectFromModel(logistic()),
    SelectFromModel(logistic(), threshold="0.9*median", max_features=2),
]
IMPUTERS = [
    SimpleImputer(),
    SimpleImputer(strategy="median", add_indicator=True),
    SimpleImputer(strategy="constant", fill_value=-1),
]


KINDS = np.column_stack([X[:, :2], random.randint(0, 4, 75), random.randint(0, 3, 75) * 10])
STRANGE = np.concatenate([KINDS[::9], np.add(KINDS[:2], [0, 0, 9, 0])])


def by_columns():
    scaled = make_pipeline(SimpleImputer(), StandardScaler())
    ignores = OneHotEncoder(handle_unknown="ignore")
    replaces = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    for parts, rest in [
        ([("n", scaled, [0, 1]), ("c", ignores, [2, 3])], "drop"),
        ([("c", OneHotEncoder(drop="first"), [3]), ("o", replaces, [2])], "passthrough"),
        ([("m", MinMaxScaler(), slice(0, 2))], RobustScaler()),
    ]:
        yield make_pipeline(ColumnTransformer(parts, remainder=rest), logistic())


def models():
    for estimator in by_columns():
        yield estimator, KINDS, Y, STRANGE
    for estimator in CLASSIFIERS:
        yield estimator, X, Y, ROWS
        yield estimator, X, TWO, ROWS
    yield logistic(), X, NAMES, ROWS
    yield logistic(), X, NAMES.astype(object), ROWS
    yield logistic(), X, Y == 1, ROWS
    yield logistic(), X, Y * 2.0, ROWS
    exponential = GradientBoostingClassifier(loss="exponential", max_depth=2, **few)
    yield exponential, X, TWO, ROWS
    for estimator in MultinomialNB(), ComplementNB():
        yield estimator, COUNTS, Y, COUNTS[::9]
    for estimator in REGRESSORS:
        yield estimator, X, NUMBER, ROWS
        yield estimator, X, NUMBERS, ROWS
    for estimator in ONE_NUMBER:
        yield estimator, X, NUMBER, ROWS
    for estimator in POSITIVES:
        yield estimator, X, POSITIVE, ROWS
    for estimator in TRANSFORMERS:
        yield make_pipeline(estimator, logistic()), X, Y, ROWS
    for estimator in IMPUTERS:
        yield make_pipeline(estimator, StandardScaler(), logistic()), HOLES, Y, HOLES[::7]
    boosted = HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=5)
    yield boosted, HOLES, Y, HOLES[::7]
    yield HistGradientBoostingRegressor(max_iter=3), HOLES, NUMBER, HOLES[::7]
    if VERSION >= (1, 3):
        yield DecisionTreeClassifier(**shallow), HOLES, Y, HOLES[::7]
        yield DecisionTreeRegressor(**shallow), HOLES, NUMBER, HOLES[::7]
    if VERSION >= (1, 6):
        yield RandomForestClassifier(max_depth=3, **few), HOLES, Y, HOLES[::7]
        nested = Pipeline([("y", PCA(3)), ("z", "passthrough"), ("s", StandardScaler())])
        yield Pipeline([("a", nested), ("b", logistic())]), X, Y, ROWS
    for settings in {}, {"max_features": 2, "contamination": 0.2}:
        forest = IsolationForest(n_estimators=3, max_samples=20, random_state=0, **settings)
        yield forest, X, None, ROWS
    for kind in KMeans, MiniBatchKMeans:
        yield kind(3, n_init=1, random_state=0), X, None, ROWS


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def case(number, estimator, x, y, rows):
    estimator = sklearn.base.clone(estimator).fit(x, y)
    file = io.BytesIO()
    if number % 2:
        joblib.dump(estimator, file)
    else:
        file.write(pickle.dumps(estimator, [0, 2, 3, 4, 5][number // 2 % 5]))
    expected = {}
    for function in "predict", "predict_proba", "predict_log_proba":
        try:
            answer = getattr(estimator, function)(rows)
        except AttributeError:
            continue
        expected[function] = plain(answer.tolist())
    name = " ".join(str(estimator).split())
    packed = base64.b64encode(gzip.compress(file.getvalue(), 9, mtime=0)).decode()
    return {"name": name, "file": packed, "rows": plain(rows.tolist()), "expected": expected}


if __name__ == "__main__":
    cases = [case(number, *model) for number, model in enumerate(models())]
    folder = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(folder, f"sklearn-{sklearn.__version__}.json")
    with open(path, "w") as out:
        lines = [json.dumps(case, ensure_ascii=False) for case in cases]
        out.write("[\n" + ",\n".join(lines) + "\n]\n")
