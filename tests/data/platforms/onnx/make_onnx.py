"""Writes ONNX models of scikit-learn, LightGBM, XGBoost and CatBoost, with inputs and expected outputs.

    pip install onnx==1.23.2 onnxruntime==1.32.0 skl2onnx==1.20.0 onnxmltools==1.16.0 scikit-learn==1.9.1 \
        lightgbm==4.7.0 xgboost-cpu==3.4.1 catboost==1.2.10
    python3 make_onnx.py models FOLDER     # many models
    python3 make_onnx.py tests             # those of the tests, beside this script

Each model is a folder in the layout of ONNX's own tests: `model.onnx`, and `test_data_set_0` with `input_N.pb` and
`output_N.pb`. The outputs are those of onnxruntime; a map of classes is the tensor of its values, in the order of
the sorted classes.
"""

import sys
import warnings
from pathlib import Path

import catboost
import lightgbm
import numpy as np
import onnx
import onnxruntime
import xgboost
from onnx import helper, numpy_helper
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn import (
    calibration,
    cluster,
    datasets,
    ensemble,
    linear_model,
    mixture,
    multiclass,
    multioutput,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)
from sklearn.base import clone, is_classifier

HERE = Path(__file__).parent
ROWS = 1000
warnings.filterwarnings("ignore")


def rows(data: np.ndarray, count: int = ROWS) -> np.ndarray:
    """Rows around those of the training data, some with extreme values."""
    random = np.random.default_rng(7)
    chosen = data[random.integers(0, len(data), count)]
    chosen = chosen + random.normal(0, 0.3, chosen.shape) * data.std(axis=0)
    chosen[:20] *= 1000
    chosen[20:40] = 0
    return chosen.astype(np.float32)


def write(folder: Path, model: onnx.ModelProto, inputs: dict) -> None:
    """Writes the model and what onnxruntime returns for the inputs."""
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for index, info in enumerate(session.get_inputs()):
        tensor = numpy_helper.from_array(inputs[info.name], info.name)
        (data / f"input_{index}.pb").write_bytes(tensor.SerializeToString())
    for index, (info, returned) in enumerate(
        zip(session.get_outputs(), session.run(None, inputs), strict=True)
    ):
        file = data / f"output_{index}.pb"
        value = returned
        if isinstance(returned, list) and returned and isinstance(returned[0], dict):
            scores = [[row[key] for key in sorted(row)] for row in returned]
            value = np.array(scores, dtype=np.float32)
        if isinstance(value, list):
            sequence = helper.make_sequence(
                info.name,
                onnx.SequenceProto.TENSOR,
                [numpy_helper.from_array(part) for part in value],
            )
            file.write_bytes(sequence.SerializeToString())
            continue
        file.write_bytes(numpy_helper.from_array(np.asarray(value), info.name).SerializeToString())


def estimators() -> dict:
    """Estimators by name."""
    logistic = linear_model.LogisticRegression(max_iter=500)
    return {
        "logistic": logistic,
        "linear": linear_model.LinearRegression(),
        "ridge": linear_model.Ridge(),
        "lasso": linear_model.Lasso(alpha=0.1),
        "elastic": linear_model.ElasticNet(alpha=0.1),
        "huber": linear_model.HuberRegressor(max_iter=500),
        "sgd": linear_model.SGDClassifier(loss="log_loss", random_state=0),
        "tree": tree.DecisionTreeClassifier(max_depth=5, random_state=0),
        "tree_regressor": tree.DecisionTreeRegressor(max_depth=5, random_state=0),
        "forest": ensemble.RandomForestClassifier(10, max_depth=6, random_state=0),
        "forest_regressor": ensemble.RandomForestRegressor(10, max_depth=6, random_state=0),
        "extra_trees": ensemble.ExtraTreesClassifier(10, max_depth=6, random_state=0),
        "boosting": ensemble.GradientBoostingClassifier(n_estimators=10, random_state=0),
        "boosting_regressor": ensemble.GradientBoostingRegressor(n_estimators=10, random_state=0),
        "hist": ensemble.HistGradientBoostingClassifier(max_iter=10, random_state=0),
        "hist_regressor": ensemble.HistGradientBoostingRegressor(max_iter=10, random_state=0),
        "ada": ensemble.AdaBoostClassifier(n_estimators=10, random_state=0),
        "bagging": ensemble.BaggingClassifier(n_estimators=5, random_state=0),
        "voting": ensemble.VotingClassifier(
            [("a", logistic), ("b", naive_bayes.GaussianNB())], voting="soft"
        ),
        "stacking": ensemble.StackingClassifier(
            [("a", logistic), ("b", naive_bayes.GaussianNB())], final_estimator=logistic
        ),
        "isolation": ensemble.IsolationForest(n_estimators=10, random_state=0),
        "svc": svm.SVC(probability=True, random_state=0),
        "svr": svm.SVR(),
        "linear_svc": svm.LinearSVC(random_state=0),
        "one_class": svm.OneClassSVM(),
        "bayes": naive_bayes.GaussianNB(),
        "neighbors": neighbors.KNeighborsClassifier(),
        "neighbors_regressor": neighbors.KNeighborsRegressor(),
        "perceptron": neural_network.MLPClassifier((8,), max_iter=200, random_state=0),
        "perceptron_regressor": neural_network.MLPRegressor((8,), max_iter=200, random_state=0),
        "calibrated": calibration.CalibratedClassifierCV(svm.LinearSVC(random_state=0)),
        "one_vs_rest": multiclass.OneVsRestClassifier(logistic),
        "multi": multioutput.MultiOutputClassifier(logistic),
        "kmeans": cluster.KMeans(3, random_state=0, n_init=1),
        "mixture": mixture.GaussianMixture(3, random_state=0),
        "scaled": pipeline.make_pipeline(preprocessing.StandardScaler(), logistic),
        "polynomial": pipeline.make_pipeline(
            preprocessing.StandardScaler(), preprocessing.PolynomialFeatures(2), logistic
        ),
        "scaler": preprocessing.StandardScaler(),
        "quantiles": preprocessing.RobustScaler(),
        "bins": preprocessing.KBinsDiscretizer(4, encode="onehot-dense"),
    }


def of_sklearn(folder: Path, names: list | None, count: int = ROWS) -> None:
    """Writes models of skl2onnx: with labels that are numbers and texts, in different operator sets."""
    iris = datasets.load_iris()
    x = iris.data.astype(np.float32)
    texts = np.array(["setosa", "versicolor", "virginica"])[iris.target]
    for name, estimator in estimators().items():
        for labels in ["numbers", "texts"] if is_classifier(estimator) else ["numbers"]:
            for opset in [12, 15, 19]:
                its_name = f"skl_{name}_{labels}_{opset}"
                if names is not None and its_name not in names:
                    continue
                y = texts if labels == "texts" else iris.target
                if name == "multi":
                    y = np.stack([y, y[::-1]], axis=1)
                try:
                    model = to_onnx(estimator.fit(x, y), x[:1], target_opset=opset)
                    write(folder / its_name, model, {"X": rows(x, count)})
                except Exception as error:  # noqa: BLE001
                    print(f"{its_name}: {type(error).__name__}: {str(error)[:120]}")


def of_boosters(folder: Path) -> None:
    """Writes models of onnxmltools, and CatBoost's own export."""
    iris = datasets.load_iris()
    x = iris.data.astype(np.float32)
    types = [("X", FloatTensorType([None, 4]))]
    texts = np.array(["setosa", "versicolor", "virginica"])[iris.target]
    for name, y in {"three": iris.target, "two": iris.target == 1, "number": x[:, 0] * 3}.items():
        is_number = name == "number"
        kind = "Regressor" if is_number else "Classifier"
        lgb = getattr(lightgbm, f"LGBM{kind}")(n_estimators=10, verbose=-1)
        xgb = getattr(xgboost, f"XGB{kind}")(n_estimators=10)
        cat = getattr(catboost, f"CatBoost{kind}")(iterations=10, verbose=0)
        labels = y if is_number else y.astype(int)
        names = labels if is_number else texts
        for what, fitted, converter in [
            ("lgb", clone(lgb).fit(x, labels), convert_lightgbm),
            ("xgb", clone(xgb).fit(x, labels), convert_xgboost),
            ("lgb_texts", clone(lgb).fit(x, names), convert_lightgbm),
        ]:
            try:
                model = converter(fitted, initial_types=types)
                write(folder / f"{what}_{name}", model, {"X": rows(x)})
            except Exception as error:  # noqa: BLE001
                print(f"{what}_{name}: {type(error).__name__}: {str(error)[:120]}")
        for kind, target in {"numbers": labels, "texts": names}.items():
            its_name = f"cat_{name}_{kind}"
            cat.fit(x, target)
            file = folder / f"{its_name}.onnx"
            cat.save_model(str(file), format="onnx")
            write(folder / its_name, onnx.load(file), {"features": rows(x)})
            file.unlink()


def main() -> None:
    if sys.argv[1:] == ["tests"]:
        names = ["skl_logistic_texts_15", "skl_multi_texts_15", "skl_forest_numbers_12"]
        of_sklearn(HERE / "made", names)
        return
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    of_sklearn(folder, None)
    of_boosters(folder)


if __name__ == "__main__":
    main()
