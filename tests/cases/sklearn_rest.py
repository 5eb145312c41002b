"""Writes sklearn-rest-VERSION.json.gz: neighbours, Gaussian processes, detectors of outliers, clusters, splines,
imputers, projections, and models that were fitted on sparse matrices, as sklearn_tables.py writes models of
tables.

    pip install scikit-learn==1.9.1 pandas && python tests/cases/sklearn_rest.py
    pip install scikit-learn==1.2.2 "numpy<2" "pandas<2.3" "scipy<1.14"
    python tests/cases/sklearn_rest.py
"""

import numpy as np
import pandas as pd
import sklearn_tables
from sklearn.cluster import (
    AffinityPropagation,
    Birch,
    BisectingKMeans,
    MeanShift,
)
from sklearn.covariance import EllipticEnvelope
from sklearn.cross_decomposition import CCA, PLSCanonical, PLSRegression
from sklearn.decomposition import FactorAnalysis, FastICA, KernelPCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process import kernels as k
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    MultiTaskElasticNet,
    MultiTaskLasso,
    QuantileRegressor,
    RANSACRegressor,
    Ridge,
    SGDOneClassSVM,
    TheilSenRegressor,
)
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    LocalOutlierFactor,
    NeighborhoodComponentsAnalysis,
    RadiusNeighborsClassifier,
    RadiusNeighborsRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, SplineTransformer, StandardScaler
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection
from sklearn.semi_supervised import LabelPropagation, LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC, SVR, NuSVC, OneClassSVM
from sklearn.tree import DecisionTreeRegressor
from sklearn_compositions import KINDS, NAMES, NUMBER, NUMBERS, ROWS, TWO, X, Y, table
from sklearn_tables import VERSION, write
from sklearn_texts import DOCUMENTS, LABELS, TEXTS, TOPIC

random = np.random.RandomState(5)
# Rows near those of the training, without ties.
NEAR = np.concatenate([ROWS[:15] + random.randn(15, 4) * 0.1, random.rand(15, 4) * 8])
ALL = np.concatenate([NEAR, ROWS[15:]])
HOLES = np.where(random.rand(90, 4) < 0.2, np.nan, X)
HOLES[:3] = X[:3]
MISSING = np.where(random.rand(len(ALL), 4) < 0.3, np.nan, ALL)
MISSING[:5] = ALL[:5]
MISSING[7] = np.nan
# The number of texts that is enough for a model that stores them.
FEW = 60
SOME = np.where(random.rand(90) < 0.5, -1, Y)


def neighbours():
    for weights in "uniform", "distance":
        yield KNeighborsClassifier(5, weights=weights), KINDS, NEAR
        yield KNeighborsClassifier(5, weights=weights), NAMES, NEAR
        yield KNeighborsRegressor(4, weights=weights), NUMBERS, NEAR
        yield RadiusNeighborsClassifier(1.3, weights=weights), TWO, NEAR
        yield RadiusNeighborsRegressor(3.0, weights=weights), NUMBERS, NEAR
        yield RadiusNeighborsRegressor(3.0, weights=weights), NUMBER, NEAR
    yield RadiusNeighborsClassifier(1.0, outlier_label="most_frequent"), NAMES, NEAR
    yield RadiusNeighborsClassifier(1.0, outlier_label="setosa", metric="manhattan"), NAMES, NEAR
    yield KNeighborsClassifier(3, metric="cosine"), NAMES, NEAR
    for kernel in "rbf", "knn":
        yield LabelSpreading(kernel=kernel, gamma=3), SOME, NEAR
        yield LabelPropagation(kernel=kernel, gamma=3, max_iter=3000), SOME, NEAR
    yield SelfTrainingClassifier(LogisticRegression(max_iter=500)), SOME, ALL


def outliers():
    for count in 5, 20:
        yield LocalOutlierFactor(count, novelty=True), None, ALL
    yield LocalOutlierFactor(10, novelty=True, contamination=0.2, metric="manhattan"), None, ALL
    yield EllipticEnvelope(random_state=0), None, ALL
    yield EllipticEnvelope(contamination=0.3, random_state=0), None, ALL
    yield SGDOneClassSVM(random_state=0, nu=0.3), None, ALL
    yield make_pipeline(Nystroem(n_components=20, random_state=0), SGDOneClassSVM()), None, ALL


def clusters():
    yield MeanShift(bandwidth=1.5), None, ALL
    yield Birch(threshold=0.8, n_clusters=3), None, ALL
    yield Birch(threshold=0.8, n_clusters=None), None, ALL
    yield BisectingKMeans(6, random_state=0), None, ALL
    yield BisectingKMeans(5, random_state=0, bisecting_strategy="largest_cluster"), None, ALL


def processes():
    radial = k.ConstantKernel(2.0) * k.RBF(1.5) + k.WhiteKernel(0.1)
    for kernel in (
        None,
        radial,
        k.RBF([1.0, 2.0, 3.0, 1.0]) + k.WhiteKernel(0.1),
        k.Matern(2.0, nu=0.5) + k.WhiteKernel(0.1),
        k.Matern([1.0, 2.0, 1.0, 2.0], nu=1.5) + k.WhiteKernel(0.1),
        k.Matern(2.0, nu=2.5) + k.WhiteKernel(0.1),
        k.Matern(2.0, nu=np.inf) + k.WhiteKernel(0.1),
        k.RationalQuadratic(1.0, 0.5) + k.WhiteKernel(0.1),
        k.ExpSineSquared(1.0, 3.0) + k.WhiteKernel(30.0),
        k.DotProduct(1.0) + k.WhiteKernel(0.5),
        k.DotProduct(1.0) ** 2 + k.WhiteKernel(0.5),
        k.PairwiseKernel(metric="laplacian", gamma=0.2) + k.WhiteKernel(0.5),
    ):
        settings = {"optimizer": None, "alpha": 1e-2}
        yield GaussianProcessRegressor(kernel, normalize_y=True, **settings), NUMBER, ALL
    yield GaussianProcessRegressor(radial), NUMBERS, ALL
    yield GaussianProcessRegressor(radial, normalize_y=True), NUMBERS, ALL
    yield GaussianProcessClassifier(), TWO, ALL
    yield GaussianProcessClassifier(1.0 * k.Matern(nu=1.5)), np.array(["no", "yes"])[TWO], ALL
    yield GaussianProcessClassifier(k.DotProduct() + k.RBF(), optimizer=None), NAMES, ALL
    yield GaussianProcessClassifier(1.0 * k.RBF()), Y, ALL
    yield GaussianProcessClassifier(1.0 * k.RBF(), multi_class="one_vs_one"), NAMES, NEAR


def regressors():
    tree = DecisionTreeRegressor(max_depth=3)
    yield PLSRegression(2), NUMBER, ALL
    yield PLSRegression(2), NUMBERS, ALL
    yield PLSRegression(3, scale=False), NUMBERS, ALL
    yield CCA(2), NUMBERS, ALL
    yield PLSCanonical(2), NUMBERS, ALL
    yield RANSACRegressor(LinearRegression(), random_state=0), NUMBER, ALL
    yield RANSACRegressor(tree, min_samples=20, random_state=0), NUMBER, ALL
    yield TheilSenRegressor(random_state=0), NUMBER, ALL
    yield QuantileRegressor(alpha=0.01, solver="highs"), NUMBER, ALL
    yield MultiTaskLasso(0.01), NUMBERS, ALL
    yield MultiTaskElasticNet(0.01), NUMBERS, ALL
    yield LogisticRegressionCV(cv=2, max_iter=500), NAMES, ALL


def transformers():
    for degree in 1, 3:
        for extrapolation in "error", "constant", "linear", "continue", "periodic":
            settings = {"degree": degree, "extrapolation": extrapolation}
            yield SplineTransformer(**settings), None, ALL
            yield SplineTransformer(include_bias=False, knots="quantile", **settings), None, ALL
    yield SplineTransformer(degree=2, n_knots=8), None, ALL
    yield make_pipeline(SplineTransformer(), Ridge()), NUMBER, ALL
    yield FastICA(2, random_state=0, whiten="unit-variance"), None, ALL
    yield FactorAnalysis(2, random_state=0), None, ALL
    yield GaussianRandomProjection(3, random_state=0), None, ALL
    yield SparseRandomProjection(3, random_state=0), None, ALL
    yield NeighborhoodComponentsAnalysis(2, random_state=0), Y, ALL
    yield make_pipeline(LinearDiscriminantAnalysis(), Ridge()), Y, ALL
    yield make_pipeline(LinearDiscriminantAnalysis(solver="eigen"), Ridge()), Y, ALL
    for kernel in "linear", "rbf", "poly", "sigmoid", "cosine":
        yield KernelPCA(3, kernel=kernel), None, ALL
        # Of a linear kernel, most of the 12 eigenvalues are 0 but for rounding.
        if kernel != "linear":
            yield Nystroem(kernel=kernel, n_components=12, random_state=0), None, NEAR
    yield KernelPCA(3, kernel="rbf", gamma=0.3), None, ALL
    yield RBFSampler(n_components=9, random_state=0), None, NEAR


def imputers():
    for weights in "uniform", "distance":
        yield KNNImputer(weights=weights), None
        # 1.2 leaves the indicators of a table out if nothing is missing in it.
        if VERSION >= (1, 3):
            yield KNNImputer(n_neighbors=2, weights=weights, add_indicator=True), None
    yield make_pipeline(KNNImputer(), StandardScaler(), LogisticRegression(max_iter=500)), NAMES
    for order in "ascending", "roman":
        yield IterativeImputer(random_state=0, imputation_order=order), None
    yield IterativeImputer(Ridge(), max_iter=3, n_nearest_features=2, random_state=0), None
    tree = DecisionTreeRegressor(max_depth=4, random_state=0)
    yield IterativeImputer(tree, max_iter=3, random_state=0, add_indicator=True), None
    yield IterativeImputer(max_iter=2, random_state=0, min_value=0, max_value=6), None
    yield make_pipeline(IterativeImputer(random_state=0), LogisticRegression(max_iter=500)), NAMES


def sparse():
    for kernel in "linear", "rbf", "poly", "sigmoid":
        yield SVC(kernel=kernel), LABELS[TOPIC]
        yield SVC(kernel=kernel, decision_function_shape="ovo", break_ties=False), TOPIC > 0
    if VERSION < (1, 8):
        yield SVC(probability=True, random_state=0), LABELS[TOPIC]
    yield NuSVC(nu=0.2), TOPIC
    yield SVR(), TOPIC * 1.5
    yield OneClassSVM(nu=0.3), None
    yield KNeighborsClassifier(3), LABELS[TOPIC]
    yield KNeighborsClassifier(4, metric="cosine", weights="distance"), TOPIC
    yield KNeighborsRegressor(4), TOPIC * 1.5
    yield LocalOutlierFactor(5, novelty=True), None
    yield SGDOneClassSVM(random_state=0), None


def without_ties(model, target):
    """The documents that have no neighbours at equal distance, of which scikit-learn takes any."""
    if not hasattr(model[-1], "kneighbors"):
        return DOCUMENTS
    model.fit(TEXTS[:FEW], target)
    count = model[-1].n_neighbors + 1
    distances = np.sort(model[-1].kneighbors(model[:-1].transform(DOCUMENTS), count)[0])
    tied = np.any(np.diff(distances) < 1e-9, axis=1)
    return [document for document, is_tied in zip(DOCUMENTS, tied, strict=True) if not is_tied]


def records(rows):
    """Rows as dictionaries, without the keys whose value is missing."""
    kinds = np.array(["red", "green", "blue", "unseen"], object)
    for number, row in enumerate(rows):
        record = {"size": row[0], "kind": kinds[(number * 7) % 5 % 4], "weight": row[1]}
        if number % 5 == 4:
            del record["kind"]
        if number % 7 == 3:
            del record["weight"]
        if number < 90 and record.get("kind") == "unseen":
            record["kind"] = "red"
        yield record


def keyed_inputs(rows):
    if isinstance(rows, list) and isinstance(rows[0], dict):
        names = sorted({name for row in rows for name in row})
        return {name: sklearn_tables.plain([row.get(name) for row in rows]) for name in names}
    return PLAIN_INPUTS(rows)


PLAIN_INPUTS = sklearn_tables.inputs
sklearn_tables.inputs = keyed_inputs


def dictionaries():
    known = list(records(X))
    rows = [*records(X[::3]), *({"kind": "unseen"}, {"size": 1e6}, {"weight": -1e6, "kind": "red"})]
    for model in (
        make_pipeline(DictVectorizer(), LogisticRegression(max_iter=500)),
        make_pipeline(DictVectorizer(sparse=False), StandardScaler(), Ridge()),
        make_pipeline(DictVectorizer(), MaxAbsScaler(), SVC()),
    ):
        yield model, known, Y, rows
    yield DictVectorizer(), known, None, rows


def rest():
    for estimator, target, rows in [
        *neighbours(),
        *outliers(),
        *clusters(),
        *regressors(),
        *transformers(),
    ]:
        yield estimator, table(X), target, table(rows)
    # It stores the affinities of the rows of its training.
    yield AffinityPropagation(random_state=0), table(X[::4]), None, table(ALL)
    # A process stores a matrix of the rows of its training.
    for estimator, target, rows in processes():
        yield estimator, table(X[::3]), target[::3], table(rows)
    for estimator, target in imputers():
        yield estimator, table(HOLES), target, table(MISSING)
    for estimator, target in sparse():
        words = TfidfVectorizer(min_df=2, max_features=30)
        model = make_pipeline(words, estimator)
        known = None if target is None else target[:FEW]
        yield model, TEXTS[:FEW], known, without_ties(model, known)
    counts = CountVectorizer(min_df=5)
    yield make_pipeline(counts, MaxAbsScaler(), SVC(gamma=0.2)), TEXTS, TOPIC, DOCUMENTS
    projection = SparseRandomProjection(5, random_state=0)
    yield make_pipeline(counts, projection), TEXTS, None, DOCUMENTS
    yield from dictionaries()


def predictions(estimator, row):
    """As those of tables; without the probabilities that one against one does not have."""
    expected = TABLE_PREDICTIONS(estimator, row)
    if getattr(estimator, "multi_class", None) == "one_vs_one":
        try:
            expected = {"predict": sklearn_tables.plain(estimator.predict(row).tolist())}
        except ValueError:
            return None
    return expected


TABLE_PREDICTIONS = sklearn_tables.predictions
sklearn_tables.predictions = predictions

if __name__ == "__main__":
    assert isinstance(table(X), pd.DataFrame)
    write("rest", rest())
