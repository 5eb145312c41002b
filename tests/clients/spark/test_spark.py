"""`tensorserve.spark` in Spark's local mode: the same numbers as `tensorserve transform`."""

import csv
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import BINARY, ROOT, environment

PACKAGE = os.path.join(ROOT, "python")
IRIS = os.path.join(ROOT, "tests/data/platforms/xgboost/iris_softprob.json")
MODELS = {"half_plus_two": os.path.join(ROOT, "models/half_plus_two")}
ROWS = 4000
COLUMNS = ["a", "b", "c", "d"]
# Spark starts its Python workers with them.
os.environ["TENSORSERVE_BINARY"] = BINARY
os.environ["PYTHONPATH"] = PACKAGE
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.insert(0, PACKAGE)

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

import tensorserve.spark


class Spark(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.place = Path(cls.folder.name)
        MODELS["iris"] = str(cls.place / "iris")
        os.mkdir(MODELS["iris"])
        shutil.copy(IRIS, MODELS["iris"])
        builder = SparkSession.builder.master("local[2]").appName("tensorserve")
        for key, value in {
            "spark.driver.memory": "512m",
            "spark.local.dir": cls.folder.name,
            # Workers import pandas first, which takes longer than the default on a busy machine.
            "spark.python.authenticate.socketTimeout": "120s",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "300",
            "spark.sql.warehouse.dir": str(cls.place / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }.items():
            builder = builder.config(key, value)
        cls.spark = builder.getOrCreate()
        cls.addClassCleanup(cls.spark.stop)
        cls.spark.sparkContext.setLogLevel("ERROR")
        chance = random.Random(1)
        cls.values = [[round(chance.uniform(0, 8), 1) for _ in COLUMNS] for _ in range(ROWS)]
        schema = StructType(
            [StructField("id", LongType()), *(StructField(c, DoubleType()) for c in COLUMNS)]
        )
        data = [(index, *row) for index, row in enumerate(cls.values)]
        # Six partitions, and two workers.
        cls.rows = cls.spark.createDataFrame(data, schema).repartition(6)

    def transformed(self, model, rows):
        """The outputs of one run of `tensorserve transform`."""
        source, output = self.place / f"{model}.csv", self.place / f"{model}-out"
        with open(source, "w", newline="") as file:
            csv.writer(file).writerows(rows)
        subprocess.run(
            [BINARY, "transform", MODELS[model], f"--input={source}", f"--output={output}"],
            env=environment() | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            check=True,
            stderr=subprocess.DEVNULL,
        )
        return [json.loads(line) for line in (output / f"{model}.csv.out").read_text().splitlines()]

    def test_columns_as_a_matrix(self):
        expected = self.transformed("iris", self.values)
        inputs = {self.input_of("iris"): COLUMNS}
        predict = tensorserve.spark.predictor(MODELS["iris"], inputs, keep=["id"])
        (output,) = self.outputs_of("iris")
        found = self.rows.mapInPandas(predict, f"id long, {output} array<float>").collect()
        self.assertEqual(len(found), ROWS)
        for row in found:
            self.assertEqual(
                np.float32(row[output]).tolist(), np.float32(expected[row["id"]]).tolist()
            )

    def test_a_column_and_one_server_for_each_worker(self):
        expected = self.transformed("half_plus_two", [row[:1] for row in self.values])
        predict = tensorserve.spark.predictor(MODELS["half_plus_two"], {"x": "a"}, keep=["id"])

        def with_server(batches):
            for batch in predict(batches):
                (server, _) = next(iter(tensorserve.spark._servers.values()))
                yield batch.assign(worker=os.getpid(), server=server.pid)

        schema = "id long, y float, worker long, server long"
        for _ in range(2):
            found = self.rows.mapInPandas(with_server, schema).collect()
            pairs = {(row["worker"], row["server"]) for row in found}
            self.assertEqual(
                [np.float32(row["y"]) for row in sorted(found, key=lambda row: row["id"])],
                [np.float32(value) for value in expected],
            )
            # Six partitions do not start six servers.
            self.assertLessEqual(len({server for _, server in pairs}), 2, pairs)
            self.assertEqual(len(pairs), len({worker for worker, _ in pairs}))

    def test_a_missing_model_is_an_error(self):
        predict = tensorserve.spark.predictor("/no/such/model", {"x": "a"})
        with self.assertRaises(Exception) as caught:
            self.rows.mapInPandas(predict, "y float").collect()
        self.assertIn("/no/such/model", str(caught.exception))

    def input_of(self, model):
        (name,) = self.signature(model).inputs
        return name

    def outputs_of(self, model):
        return list(self.signature(model).outputs)

    @staticmethod
    def signature(model):
        with tensorserve.Server({"m": MODELS[model]}, grpc_port=None) as server:
            return server.client().signatures("m")["serving_default"]


if __name__ == "__main__":
    unittest.main()
