"""tensorserve.Client: data frames, rows and columns with missing values."""

import datetime
import json
import os
import unittest

import numpy as np
import pandas as pd
import polars as pl

import tensorserve
from support import MODELS, ROOT

FOLDER = os.path.join(ROOT, "tests/data/platforms/sklearn")
# The columns that the model uses; the others are the passenger's name and the like.
USED = ("Age", "Embarked", "Fare", "Parch", "Pclass", "Sex", "SibSp")


class TablesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Made by scikit-learn, with its predictions: a third of the rows have missing values.
        with open(os.path.join(FOLDER, "passengers_boosted.json"), encoding="utf-8") as file:
            golden = json.load(file)
        cls.rows, cls.expected = golden["rows"], golden["outputs"]["predict"]
        names = ("passengers_boosted", "iris_frame")
        models = {name: os.path.join(FOLDER, f"{name}.pkl") for name in names}
        models["half_plus_two"] = os.path.join(MODELS, "half_plus_two")
        cls.server = tensorserve.Server(models).start()
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def found(self, inputs):
        return self.client.predict("passengers_boosted", inputs)["predict"]

    def columns(self, missing):
        def value(row, name):
            return missing if row[name] is None else row[name]

        return {name: [value(row, name) for row in self.rows] for name in USED}

    def test_data_frames(self):
        frame = pd.DataFrame(self.rows)
        # All columns, also those that the model does not use, with NaN among numbers and texts.
        self.assertTrue(frame["Age"].isna().any() and frame["Embarked"].isna().any())
        self.assertEqual(self.found(frame), self.expected)
        self.assertEqual(self.found(frame[list(reversed(USED))]), self.expected)
        # Extension types, with pandas.NA.
        self.assertEqual(self.found(frame.convert_dtypes()), self.expected)
        self.assertEqual(self.found(frame.astype({"Sex": "category"})), self.expected)
        polars = pl.DataFrame(self.rows, infer_schema_length=None)
        self.assertEqual(self.found(polars), self.expected)
        self.assertEqual(self.found(polars.to_arrow()), self.expected)
        self.assertEqual(self.found(frame[:0]), [])

    def test_a_row_whose_text_is_missing(self):
        # NaN alone does not say that it stands for a text: the model does.
        frame = pd.DataFrame(self.rows)
        for at in np.flatnonzero(frame["Embarked"].isna())[:3]:
            row = frame[at : at + 1].astype({"Embarked": float})
            self.assertEqual(self.found(row), self.expected[at : at + 1])
        self.assertGreater(frame["Embarked"].isna().sum(), 0)

    def test_rows(self):
        self.assertEqual(self.found(self.rows), self.expected)
        nan = [{k: float("nan") if v is None else v for k, v in row.items()} for row in self.rows]
        self.assertEqual(self.found(nan), self.expected)
        absent = [{k: v for k, v in row.items() if v is not None} for row in self.rows]
        self.assertEqual(self.found(absent), self.expected)
        self.assertEqual(self.found(tuple(self.rows[:2])), self.expected[:2])

    def test_columns(self):
        for missing in (None, float("nan"), np.nan, pd.NA):
            self.assertEqual(self.found(self.columns(missing)), self.expected)
        series = {name: pd.Series(values) for name, values in self.columns(None).items()}
        self.assertEqual(self.found(series), self.expected)

    def test_frames_of_numbers_and_graphs(self):
        with open(os.path.join(FOLDER, "iris_frame.json"), encoding="utf-8") as file:
            golden = json.load(file)
        frame = pd.DataFrame(golden["rows"])
        found = self.client.predict("iris_frame", frame)
        np.testing.assert_allclose(found["predict_proba"], golden["outputs"]["predict_proba"])
        graph = pd.DataFrame({"x": [1.0, 2.0]})
        self.assertEqual(self.client.predict("half_plus_two", graph), [2.5, 3.0])
        # A graph has no missing values, but NaN.
        (nan,) = self.client.predict("half_plus_two", [{"x": float("nan")}])
        self.assertNotEqual(nan, nan)

    def test_what_is_no_table_is_refused_by_name(self):
        with self.assertRaisesRegex(tensorserve.InvalidRequestError, "age.*Age"):
            self.found(pd.DataFrame({"age": [3.0], "Sex": ["male"]}))
        with self.assertRaisesRegex(TypeError, "no names but 0.*to_numpy"):
            self.client.predict("half_plus_two", pd.DataFrame([[1.0], [2.0]]))
        with self.assertRaisesRegex(ValueError, "two columns 'x'"):
            self.client.predict("half_plus_two", pd.DataFrame([[1.0, 2.0]], columns=["x", "x"]))
        with self.assertRaisesRegex(TypeError, "row 1 is a int"):
            self.client.predict("half_plus_two", [{"x": 1.0}, 2])
        with self.assertRaisesRegex(TypeError, "column 'Age': a date cannot be sent"):
            self.found([{"Age": datetime.date(1912, 4, 15)}])


if __name__ == "__main__":
    unittest.main()
