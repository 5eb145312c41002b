"""Writes the model of ../iris_logreg_pipeline.joblib again, compressed with lz4, bz2, xz, lzma and zstd.

pip install scikit-learn==1.9.1 joblib lz4 zstandard
"""

import io
import os

import joblib
import zstandard

FOLDER = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    model = joblib.load(os.path.join(FOLDER, "..", "iris_logreg_pipeline.joblib"))
    for kind in "lz4", "bz2", "xz", "lzma":
        joblib.dump(model, os.path.join(FOLDER, f"{kind}.joblib"), compress=kind)
    plain = io.BytesIO()
    joblib.dump(model, plain)
    with open(os.path.join(FOLDER, "zstd.joblib"), "wb") as file:
        file.write(zstandard.compress(plain.getvalue()))
