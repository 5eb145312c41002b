"""Models logged with MLflow, its scoring server, and the built binary serving the same folders."""

import os
import subprocess
import sys
import threading
import time

os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "true")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ["GIT_PYTHON_REFRESH"] = "quiet"

import mlflow
import numpy as np
import pandas as pd
import requests
import uvicorn
import xgboost
from mlflow.models import infer_signature
from mlflow.pyfunc import scoring_server
from onnx import TensorProto, helper
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import Running, environment, free_port

REQUIREMENTS = ["mlflow"]
COLUMNS = ["sepal_length", "sepal_width", "petal_length", "petal_width"]


def iris():
    data = load_iris()
    return pd.DataFrame(data.data, columns=COLUMNS), data.target


def onnx_linear(outputs):
    """y = 2 x + 1 for rows of two values, and their sums if two outputs are wanted."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("Add", ["doubled", "one"], ["y"]),
        helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=1),
    ]
    constants = [
        helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]),
        helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
        helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
    ]
    info = helper.make_tensor_value_info
    shapes = {"y": ["n", 2], "sum": ["n", 1]}
    graph = helper.make_graph(
        nodes,
        "linear",
        [info("x", TensorProto.FLOAT, ["n", 2])],
        [info(name, TensorProto.FLOAT, shapes[name]) for name in outputs],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def save_models(root):
    """Writes the models below `root`; returns their names."""
    table, labels = iris()
    first = table.head(3)
    common = {"pip_requirements": REQUIREMENTS}

    def path(name):
        return os.path.join(root, name)

    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, labels)
    signature = infer_signature(first, model.predict(first))
    for name in ["pickle", "cloudpickle", "skops"]:
        mlflow.sklearn.save_model(
            model, path(f"sklearn_{name}"), signature=signature, serialization_format=name, **common
        )
    mlflow.sklearn.save_model(
        model,
        path("probabilities"),
        signature=signature,
        serialization_format="pickle",
        pyfunc_predict_fn="predict_proba",
        **common,
    )
    mlflow.sklearn.save_model(model, path("unsigned"), serialization_format="pickle", **common)

    # Numbers of every kind, one of them optional.
    frame = pd.DataFrame(
        {
            "a": np.array([1, 2, 3], dtype=np.int64),
            "b": np.array([1.5, 2.5, 0.5], dtype=np.float32),
            "c": [True, False, True],
            "d": np.array([7, 8, 10], dtype=np.int32),
        }
    )
    model = LinearRegression().fit(frame, [1.0, 2.0, 5.0])
    signature = infer_signature(frame, model.predict(frame))
    mlflow.sklearn.save_model(
        model, path("typed"), signature=signature, serialization_format="pickle", **common
    )

    array = table.to_numpy()
    model = LinearRegression().fit(array, labels)
    mlflow.sklearn.save_model(
        model,
        path("tensor"),
        signature=infer_signature(array, model.predict(array)),
        serialization_format="pickle",
        **common,
    )

    booster = xgboost.train(
        {"objective": "multi:softprob", "num_class": 3, "nthread": 1},
        xgboost.DMatrix(table, labels),
        num_boost_round=5,
    )
    signature = infer_signature(first, booster.predict(xgboost.DMatrix(first)))
    for name in ["ubj", "json"]:
        mlflow.xgboost.save_model(
            booster, path(f"booster_{name}"), signature=signature, model_format=name, **common
        )
    three = xgboost.XGBClassifier(n_estimators=5, n_jobs=1).fit(table, labels)
    two = xgboost.XGBClassifier(n_estimators=5, n_jobs=1).fit(table, labels == 2)
    regressor = xgboost.XGBRegressor(n_estimators=5, n_jobs=1).fit(table, labels)
    for name, model in [("three", three), ("two", two), ("regressor", regressor)]:
        signature = infer_signature(first, model.predict(first))
        mlflow.xgboost.save_model(model, path(f"xgboost_{name}"), signature=signature, **common)

    for name, outputs in [("onnx_one", ["y"]), ("onnx_sum", ["sum"])]:
        model = onnx_linear(outputs)
        pair = np.zeros((1, 2), dtype=np.float32)
        tensor = infer_signature(pair, {outputs[0]: pair})
        mlflow.onnx.save_model(model, path(name), signature=tensor, **common)
        frame = pd.DataFrame(pair, columns=["p", "q"])
        columns = infer_signature(frame, pd.DataFrame({outputs[0]: [0.0]}))
        mlflow.onnx.save_model(model, path(f"{name}_columns"), signature=columns, **common)
    return sorted(os.listdir(root))


class ScoringServer:
    """MLflow's scoring server for one model: its own application, over HTTP, in a thread."""

    def __init__(self, path):
        self.port = free_port()
        app = scoring_server.init(mlflow.pyfunc.load_model(path))
        config = uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="error")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.05)
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self):
        self.server.should_exit = True
        self.thread.join()


class ServeCommand:
    """`mlflow models serve` for one model."""

    def __init__(self, path):
        port = free_port()
        arguments = ["models", "serve", "-m", path, "-p", str(port), "--env-manager", "local"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]},
            start_new_session=True,
        )
        self.url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                if requests.get(f"{self.url}/ping", timeout=5).status_code == 200:
                    return
            except requests.ConnectionError:
                time.sleep(0.2)
        raise RuntimeError("mlflow models serve does not answer")

    def close(self):
        os.killpg(self.process.pid, 15)
        self.process.wait()


class Served:
    """The built binary serving one folder."""

    def __init__(self, *paths, may_be_unready=False, **options):
        ports = ["--http-port", "0", "--grpc-port", "0"]
        command = ["serve", *paths, *ports, "--log-level", "error"]
        self.running = Running(command, environment(), may_be_unready, **options)
        self.url = self.running.url

    def close(self):
        self.running.stop()


def send(url, body, content_type="application/json"):
    """The status and the body of the response to a scoring request."""
    headers = {"Content-Type": content_type}
    response = requests.post(f"{url}/invocations", data=body, headers=headers, timeout=60)
    return response.status_code, response.text
