"""What the tests of the wheel share."""

import os

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
MODELS = os.path.join(ROOT, "models")
GENERATED = os.path.join(ROOT, "tests/data/tensorflow-serving/generated")
# A model that needs no library.
XGBOOST = os.path.join(ROOT, "tests/data/platforms/xgboost/iris_softprob.json")
IRIS = [[5.1, 3.5, 1.4, 0.2]]
