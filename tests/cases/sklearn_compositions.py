"""Writes sklearn-compositions-VERSION.json.gz: estimators made of others, estimators with several
outputs, mixtures, and transformers alone, as sklearn_tables.py writes models of tables.

    pip install scikit-learn==1.9.1 pandas && python tests/cases/sklearn_compositions.py
    pip install scikit-learn==1.2.2 "numpy<2" "pandas<2.3" && python tests/cases/sklearn_compositions.py
"""

import numpy as np
import pandas as pd
import sklearn.model_selection
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.datasets import load_iris
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    StackingRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.isotonic import IsotonicRegression
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.multioutput import (
    ClassifierChain,
    MultiOutputClassifier,
    MultiOutputRegressor,
    RegressorChain,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    OneHotEncoder,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn_tables import VERSION, write
from sklearn_texts import DOCUMENTS, LABELS, TEXTS, TOPIC

random = np.random.RandomState(2)
X, Y = load_iris(return_X_y=True)
CHOSEN = random.permutation(150)[:90]
X = np.round(X[CHOSEN] + random.randn(90, 4) * 0.3, 3)
Y = Y[CHOSEN]
TWO = (Y > 0) * 1
NAMES = np.array(["setosa", "versicolor", "\u00e9"])[Y]
MANY = np.column_stack([TWO, Y == 1, X[:, 0] > 5.5]) * 1
KINDS = np.column_stack([Y, TWO, (X[:, 1] > 3) * 2])
NUMBER = np.exp(X @ [0.3, -0.2, 0.4, 0.1])
NUMBERS = np.column_stack([NUMBER, X[:, 0] * 2 - 1])
EXTREME = [[0.0] * 4, [1e5] * 4, [-1e5] * 4, [5, 3, -1e5, 2], [np.nan, 3, 2, 1], [5, 3, 2, np.inf]]
EXTREME += [[1e-300, 3, 1e-20, 1], [4.9, 1e5, 1.4, 0.2], [90, 1, 1, 1]]
ROWS = np.concatenate([X[::6], EXTREME, X[::30] * 3 - 2, X[::20]])


def table(rows):
    return pd.DataFrame(rows, columns=[f"x{number}" for number in range(rows.shape[1])])


def logistic():
    return LogisticRegression(max_iter=300)


small = {"n_estimators": 3, "max_depth": 2, "random_state": 0}
tree = DecisionTreeClassifier(max_depth=3, random_state=0)


def classifiers():
    yield CalibratedClassifierCV(LinearSVC(random_state=0), cv=2)
    yield CalibratedClassifierCV(tree, method="isotonic", cv=2)
    yield CalibratedClassifierCV(GaussianNB(), cv=2, ensemble=False)
    yield CalibratedClassifierCV(SVC(), method="isotonic", cv=2, ensemble=False)
    yield CalibratedClassifierCV(GradientBoostingClassifier(**small), cv=2)
    yield CalibratedClassifierCV(AdaBoostClassifier(n_estimators=3, random_state=0), cv=2)
    boosted = HistGradientBoostingClassifier(max_iter=2, max_depth=2, min_samples_leaf=5)
    yield CalibratedClassifierCV(make_pipeline(SimpleImputer(), boosted), cv=2)
    if VERSION >= (1, 8):
        yield CalibratedClassifierCV(LinearSVC(random_state=0), method="temperature", cv=2)
        yield CalibratedClassifierCV(GaussianNB(), method="temperature", cv=2)
    parts = [("forest", RandomForestClassifier(**small)), ("ridge", RidgeClassifier())]
    parts.append(("scaled", make_pipeline(StandardScaler(), LinearSVC(random_state=0))))
    yield StackingClassifier(parts, logistic(), cv=2)
    yield StackingClassifier(parts, logistic(), cv=2, passthrough=True)
    yield StackingClassifier(parts, tree, cv=2, stack_method="predict")
    for base in LinearSVC(random_state=0), logistic(), tree, GaussianNB():
        yield OneVsRestClassifier(base)
        yield OneVsOneClassifier(base)
    yield OutputCodeClassifier(logistic(), random_state=0)
    yield NearestCentroid()
    yield NearestCentroid(metric="manhattan")
    if VERSION >= (1, 6):
        yield NearestCentroid(priors=[0.7, 0.3])
    yield make_pipeline(KBinsDiscretizer(4, encode="ordinal"), tree)


def numbers():
    parts = [("forest", RandomForestRegressor(**small)), ("ridge", Ridge())]
    yield StackingRegressor(parts, Ridge(), cv=2)
    yield StackingRegressor(parts, DecisionTreeRegressor(max_depth=3), cv=2, passthrough=True)
    yield TransformedTargetRegressor(Ridge(), func=np.log1p, inverse_func=np.expm1)
    yield TransformedTargetRegressor(Ridge(), func=np.log, inverse_func=np.exp)
    yield TransformedTargetRegressor(Ridge(), transformer=StandardScaler())
    yield TransformedTargetRegressor(Ridge(), transformer=MinMaxScaler((1, 3)))
    yield TransformedTargetRegressor(Ridge(), transformer=PowerTransformer())
    yield TransformedTargetRegressor(Ridge(), transformer=PowerTransformer("box-cox"))
    normal = QuantileTransformer(n_quantiles=30, output_distribution="normal")
    yield TransformedTargetRegressor(Ridge(), transformer=normal)
    yield TransformedTargetRegressor(Ridge(), transformer=QuantileTransformer(n_quantiles=30))
    for kernel in "linear", "poly", "rbf", "laplacian", "sigmoid", "cosine":
        yield KernelRidge(kernel=kernel, alpha=0.5, degree=2)


def transformers():
    yield PowerTransformer()
    yield PowerTransformer(standardize=False)
    yield QuantileTransformer(n_quantiles=20)
    yield QuantileTransformer(n_quantiles=90, output_distribution="normal")
    for encode in "onehot", "onehot-dense", "ordinal":
        for strategy in "uniform", "quantile", "kmeans":
            yield KBinsDiscretizer(4, encode=encode, strategy=strategy)
    for function in np.log1p, np.square, np.sqrt, np.tanh, np.sign, np.cbrt, None:
        yield FunctionTransformer(function)
    yield FunctionTransformer(np.abs, validate=True)
    yield StandardScaler()
    yield make_pipeline(SimpleImputer(), PowerTransformer("yeo-johnson"), StandardScaler())
    yield make_column_transformer((FunctionTransformer(np.log1p), [0, 1]), (MinMaxScaler(), [3]))


def mixtures():
    for kind in "full", "tied", "diag", "spherical":
        yield GaussianMixture(3, covariance_type=kind, random_state=0)
        yield BayesianGaussianMixture(
            n_components=3, covariance_type=kind, random_state=0, max_iter=300
        )
    dirichlet = {"weight_concentration_prior_type": "dirichlet_distribution"}
    yield BayesianGaussianMixture(n_components=3, random_state=0, max_iter=300, **dirichlet)
    yield OneClassSVM(nu=0.2)
    yield OneClassSVM(kernel="poly", degree=2, nu=0.4)


def thresholds():
    if VERSION < (1, 5):
        return
    selection = sklearn.model_selection
    for settings in (
        {},
        {"threshold": 0.7},
        {"threshold": 0.1, "response_method": "decision_function"},
    ):
        yield selection.FixedThresholdClassifier(logistic(), **settings), TWO
    named = selection.FixedThresholdClassifier(logistic(), threshold=0.8, pos_label="no")
    yield named, np.array(["no", "yes"], object)[TWO]
    svm = LinearSVC(random_state=0)
    yield selection.FixedThresholdClassifier(svm, threshold=-0.3, pos_label=0), TWO
    tuned = selection.TunedThresholdClassifierCV(logistic(), cv=2, thresholds=20)
    yield tuned, (Y == 1) * 1


def outputs():
    yield MultiOutputClassifier(logistic()), KINDS
    yield MultiOutputClassifier(LinearSVC(random_state=0)), KINDS
    yield MultiOutputClassifier(GaussianNB()), np.array(["a", "b", "c"])[KINDS]
    yield ClassifierChain(logistic()), MANY
    yield ClassifierChain(GaussianNB(), order=[2, 0, 1]), MANY
    yield ClassifierChain(LinearSVC(random_state=0), order=[1, 2, 0]), MANY
    if VERSION >= (1, 5):
        yield ClassifierChain(logistic(), chain_method="predict_proba"), MANY
    yield OneVsRestClassifier(logistic()), MANY
    yield OneVsRestClassifier(LinearSVC(random_state=0)), MANY
    yield tree, KINDS
    yield RandomForestClassifier(**small), KINDS
    yield RandomForestClassifier(**small), np.array(["a", "b", "c"])[KINDS]
    yield MLPClassifier((3,), max_iter=200, random_state=0), MANY
    yield MultiOutputRegressor(SVR()), NUMBERS
    yield MultiOutputRegressor(Ridge()), NUMBERS
    yield RegressorChain(Ridge(), order=[1, 0]), NUMBERS
    yield TransformedTargetRegressor(Ridge(), transformer=StandardScaler()), NUMBERS
    yield KernelRidge(kernel="rbf"), NUMBERS


def texts_and_tables():
    words = TfidfVectorizer(min_df=3)
    svm = LinearSVC(random_state=0)
    for last in (
        CalibratedClassifierCV(svm, cv=2),
        OneVsRestClassifier(svm),
        OneVsOneClassifier(svm),
    ):
        yield make_pipeline(words, last), TEXTS, LABELS[TOPIC], DOCUMENTS
    parts = [("a", logistic()), ("b", svm)]
    yield make_pipeline(words, StackingClassifier(parts, logistic(), cv=2)), TEXTS, TOPIC, DOCUMENTS
    short = TfidfVectorizer(min_df=6, max_features=12)
    yield short, TEXTS, None, DOCUMENTS
    frame = table(X)
    frame["kind"] = np.array(["a", "b", "c"], object)[(X[:, 1] * 7).astype(int) % 3]
    rows = table(ROWS)
    rows["kind"] = np.array(["a", "b", "c", "d"], object)[np.arange(len(ROWS)) % 4]
    columns = make_column_transformer(
        (OneHotEncoder(), ["kind"]), (SimpleImputer(), ["x0", "x2"]), remainder="drop"
    )
    parts = [("a", make_pipeline(columns, logistic())), ("b", make_pipeline(columns, GaussianNB()))]
    yield StackingClassifier(parts, logistic(), cv=2), frame, NAMES, rows
    yield CalibratedClassifierCV(parts[0][1], cv=2), frame, Y, rows
    yield columns, frame, None, rows


def compositions():
    for number, estimator in enumerate(classifiers()):
        rows = ROWS
        if "priors" not in str(estimator):
            yield estimator, table(X), NAMES if number % 2 else Y, table(rows)
        if "manhattan" not in str(estimator):
            yield estimator, table(X), TWO, table(rows)
    for estimator in numbers():
        yield estimator, table(X), NUMBER, table(ROWS)
    for estimator in transformers():
        yield estimator, table(X), None, table(ROWS)
    positive = np.abs(X) + 0.1
    yield PowerTransformer("box-cox"), table(positive), None, table(ROWS)
    for estimator in mixtures():
        yield estimator, table(X), None, table(ROWS)
    yield KNeighborsClassifier(3), table(X), Y, table(X[::9])
    yield IsotonicRegression(out_of_bounds="clip"), table(X[:, :1]), NUMBER, table(ROWS[:, :1])
    for estimator, target in thresholds():
        yield estimator, table(X), target, table(ROWS)
    for estimator, target in outputs():
        yield estimator, table(X), target, table(ROWS)
    yield from texts_and_tables()


if __name__ == "__main__":
    write("compositions", compositions())
