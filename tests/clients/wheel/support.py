"""What the tests of the wheel share."""

import os

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
MODELS = os.path.join(ROOT, "models")
GENERATED = os.path.join(ROOT, "tests/data/tensorflow-serving/generated")
# A model that needs no library.
XGBOOST = os.path.join(ROOT, "tests/data/platforms/xgboost/iris_softprob.json")
IRIS = [[5.1, 3.5, 1.4, 0.2]]

WHEEL = os.environ["CLIENT_WHEEL"]
# What is left would be settings of the servers that the tests start.
for name in [name for name in os.environ if name.startswith("TENSORSERVE_")]:
    if name != "TENSORSERVE_LIB_DIR":
        del os.environ[name]
