"""Models that MLflow saved: this server answers as MLflow's scoring server does."""

import json
import math
import os
import shutil
import tempfile
import unittest

import requests
from mlflow.pyfunc.scoring_server.client import ScoringServerClient

from scoring import COLUMNS, ScoringServer, ServeCommand, Served, iris, mlflow, save_models, send

ROWS = [[5.1, 3.5, 1.4, 0.2], [6.0, 2.2, 4.0, 1.0], [7.7, 2.6, 6.9, 2.3]]
FLOWERS = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
SHUFFLED = [dict(reversed(flower.items()), extra="x") for flower in FLOWERS]
CSV = "\n".join([",".join(COLUMNS), *(",".join(map(str, row)) for row in ROWS), ""])

# Bodies for the models with the columns of the flowers, or with a tensor of four columns.
FLOWER_BODIES = [
    {"dataframe_split": {"columns": COLUMNS, "data": ROWS}},
    {"dataframe_split": {"columns": COLUMNS, "index": [7, 8, 9], "data": ROWS}},
    {"dataframe_split": {"columns": COLUMNS[::-1], "data": [row[::-1] for row in ROWS]}},
    {"dataframe_records": FLOWERS},
    {"dataframe_records": SHUFFLED},
    {"dataframe_records": [{**FLOWERS[0], "sepal_width": 3}], "params": {"unknown": 1}},
    {"instances": FLOWERS},
    {"inputs": {name: [flower[name] for flower in FLOWERS] for name in COLUMNS}},
    {"inputs": FLOWERS},
    {"inputs": FLOWERS[0]},
    {"instances": ROWS},
    {"inputs": ROWS},
    # Refused by both.
    {"dataframe_split": {"columns": COLUMNS[1:], "data": [row[1:] for row in ROWS]}},
    {"dataframe_split": {"columns": COLUMNS, "data": [row[1:] for row in ROWS]}},
    {"dataframe_split": {"columns": COLUMNS}},
    {"dataframe_split": {"columns": COLUMNS, "data": ROWS, "more": 1}},
    {"dataframe_split": ROWS},
    {"dataframe_split": {"columns": COLUMNS, "index": [1], "data": ROWS}},
    {"dataframe_split": {"columns": COLUMNS, "data": []}},
    {"dataframe_records": FLOWERS[0]},
    {"dataframe_records": [{**FLOWERS[0], "petal_width": "wide"}]},
    {"dataframe_records": [{**FLOWERS[0], "petal_width": [1]}]},
    {"instances": [FLOWERS[0], {"sepal_length": 1}]},
    {"inputs": {**FLOWERS[0], "sepal_width": [1, 2]}},
    {"inputs": {"sepal_length": [1.0]}},
    {"instances": ROWS, "inputs": ROWS},
    {"data": ROWS},
    {},
    [ROWS],
    "text",
]

TYPED_BODIES = [
    {"dataframe_records": [{"a": 1, "b": 2.5, "c": True, "d": 3}]},
    {"dataframe_records": [{"a": 1.7, "b": 2, "c": 0, "d": 3.9}]},
    {"dataframe_records": [{"a": "4", "b": "0.1", "c": False, "d": "5"}]},
    {"dataframe_records": [{"a": None, "b": 2.5, "c": True, "d": 3}]},
    {"dataframe_records": [{"a": 1, "b": "x", "c": True, "d": 3}]},
    {"dataframe_records": [{"a": 1, "b": 0.1, "c": True, "d": 2147483647}]},
    {"inputs": {"a": [1, 2], "b": [0.5, 1], "c": [True, False], "d": [1, 2]}},
    {"inputs": {"a": [1.5], "b": [0.5], "c": [1], "d": [1]}},
    {"inputs": {"a": ["x"], "b": [0.5], "c": [True], "d": [1]}},
    {"instances": [{"a": 1, "b": 2.5, "c": True, "d": 3}, {"a": 2, "b": 1, "c": False, "d": 4}]},
]

PAIR_BODIES = [
    {"inputs": [[1, 2], [3.5, -4]]},
    {"instances": [[1, 2], [3.5, -4]]},
    {"dataframe_split": {"columns": ["p", "q"], "data": [[1, 2], [3.5, -4]]}},
    {"dataframe_records": [{"p": 1.5, "q": 2.5}]},
    {"inputs": {"p": [1.5], "q": [2.5]}},
    {"inputs": [[1, 2, 3]]},
    {"inputs": [1, 2]},
    {"inputs": [[1, 2], [3]]},
    {"inputs": [["x", 1]]},
]

# Without a signature, scikit-learn compares the names of columns with those of the training, and this
# server does not: the bodies with the same names in another order are left out.
UNSIGNED = [0, 1, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 19]

BODIES = {
    "unsigned": [FLOWER_BODIES[index] for index in UNSIGNED],
    "typed": TYPED_BODIES,
    "onnx_one": PAIR_BODIES,
    "onnx_sum": PAIR_BODIES,
    "onnx_one_columns": PAIR_BODIES,
    "onnx_sum_columns": PAIR_BODIES,
}

CSV_BODIES = [
    CSV,
    CSV.replace("\n", "\r\n"),
    "extra," + CSV.replace("\n", "\n1,")[:-2],
    CSV.replace("1.4", "").replace("sepal_width", '"sepal_width"'),
    CSV.replace("1.4", "wide"),
    CSV.replace("6.0", "6.0,5"),
    CSV.replace("petal_width", "other"),
    "",
    "\n".join(CSV.split("\n")[1:]),
]


def same(one, other):
    """Whether two JSON values are equal; NaN equals itself."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def close(one, other):
    """Whether two JSON values are equal but for the last digits of floats."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-7) or same(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(close(one[key], other[key]) for key in one)
    return same(one, other)


class Scoring(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp()
        cls.names = save_models(cls.root)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    def path(self, name):
        return os.path.join(self.root, name)

    def compare(self, mlflow_url, url, body, content_type="application/json"):
        """Sends a body to both; the answers must be equal: predictions, or status and error code."""
        if content_type == "application/json" and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        theirs = send(mlflow_url, body, content_type)
        ours = send(url, body, content_type)
        context = f"{content_type} {body[:300]}\nMLflow: {theirs}\ntensorserve: {ours}"
        self.assertEqual(ours[0], theirs[0], context)
        if theirs[0] == 415:
            return None
        mine, want = json.loads(ours[1]), json.loads(theirs[1])
        if theirs[0] == 200:
            self.assertTrue(close(mine, want), context)
            return mine
        for member in ["error_code", "error_class", "sqlstate"]:
            self.assertEqual(mine.get(member), want.get(member), context)
        self.assertIn("message", mine)
        return None

    def test_every_form_of_every_model(self):
        for name in self.names:
            theirs, ours = ScoringServer(self.path(name)), Served(self.path(name))
            try:
                answered = 0
                for body in BODIES.get(name, FLOWER_BODIES):
                    with self.subTest(name, body=str(body)[:100]):
                        answered += self.compare(theirs.url, ours.url, body) is not None
                # MLflow refuses CSV for every signature of tensors.
                for body in CSV_BODIES if name not in {*BODIES, "tensor"} else []:
                    with self.subTest(name, csv=body[:100]):
                        answered += self.compare(theirs.url, ours.url, body, "text/csv") is not None
                self.assertGreaterEqual(answered, 2, name)
            finally:
                theirs.close()
                ours.close()

    def test_the_serve_command_and_its_other_routes(self):
        theirs, ours = (
            ServeCommand(self.path("sklearn_pickle")),
            Served(self.path("sklearn_pickle")),
        )
        try:
            for path in ["/ping", "/health", "/version"]:
                want, got = requests.get(theirs.url + path), requests.get(ours.url + path)
                self.assertEqual(got.status_code, 200, path)
                self.assertEqual((got.status_code, got.text), (want.status_code, want.text), path)
                self.assertEqual(got.headers["content-type"], want.headers["content-type"], path)
            self.assertEqual(got.text, mlflow.__version__)
            body = json.dumps(FLOWER_BODIES[0])
            self.assertEqual(send(ours.url, body), send(theirs.url, body))
            for kind in [
                "text/plain",
                "application/json; format=pandas-split",
                "text/csv; charset=x",
            ]:
                self.compare(theirs.url, ours.url, body, kind)
            for bad in ["{", "", "nul", "[1", '{"inputs": [1]} x', '{"inputs": NaN}']:
                self.compare(theirs.url, ours.url, bad)
            want, got = (
                requests.get(theirs.url + "/invocations"),
                requests.get(ours.url + "/invocations"),
            )
            self.assertEqual((got.status_code, got.text), (want.status_code, want.text))
        finally:
            theirs.close()
            ours.close()

    def test_mlflows_own_client(self):
        table, _ = iris()
        ours = Served(self.path("sklearn_cloudpickle"))
        try:
            client = ScoringServerClient("127.0.0.1", 0)
            client.url_prefix = ours.url
            client.ping()
            answer = client.invoke(table.head(5)).get_predictions()
        finally:
            ours.close()
        model = mlflow.pyfunc.load_model(self.path("sklearn_cloudpickle"))
        self.assertEqual(list(answer[0]), list(model.predict(table.head(5))))

    def test_a_directory_of_versions(self):
        folder = self.path("versions")
        for version, name in [("1", "unsigned"), ("2", "sklearn_pickle")]:
            shutil.copytree(self.path(name), os.path.join(folder, version))
        ours = Served(folder)
        try:
            self.assertEqual(requests.get(ours.url + "/health").status_code, 200)
            status, body = send(ours.url, CSV, "text/csv")
            self.assertEqual((status, json.loads(body)), (200, {"predictions": [0, 1, 2]}))
        finally:
            ours.close()
            shutil.rmtree(folder)


if __name__ == "__main__":
    unittest.main()
