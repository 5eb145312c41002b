"""Writes the model of ../iris_logreg_pipeline.joblib again, compressed with lz4 and zstd.

pip install scikit-learn==1.9.1 joblib lz4 zstandard
"""

import io
import os

import joblib
import zstandard

FOLDER = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    model = joblib.load(os.path.join(FOLDER, "..", "iris_logreg_pipeline.joblib"))
    joblib.dump(model, os.path.join(FOLDER, "lz4.joblib"), compress="lz4")
    plain = io.BytesIO()
    joblib.dump(model, plain)
    with open(os.path.join(FOLDER, "zstd.joblib"), "wb") as file:
        file.write(zstandard.compress(plain.getvalue()))
