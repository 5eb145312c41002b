"""Writes number_labels/: a StringIndexer in the format of Spark 4.1, without Spark.

Its labels are the texts that Spark casts the numbers of two columns to, integers and doubles, and those of a
column of strings. Run with Python and pyarrow.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

LABELS = {
    "zip": ["10115", "80331", "-1"],
    "size": ["2.0", "0.5", "1.0E7"],
    "grade": ["1", "2.0", "low"],
}
FOLDER = Path(__file__).parent / "number_labels"
STAGE = "StringIndexer_0"


def write(folder, metadata):
    path = folder / "metadata" / "part-00000.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"timestamp": 0, "sparkVersion": "4.1.4", **metadata}) + "\n")


names = list(LABELS)
write(
    FOLDER,
    {
        "class": "org.apache.spark.ml.PipelineModel",
        "uid": "PipelineModel_0",
        "paramMap": {"stageUids": [STAGE]},
        "defaultParamMap": {},
    },
)
stage = FOLDER / "stages" / f"0_{STAGE}"
write(
    stage,
    {
        "class": "org.apache.spark.ml.feature.StringIndexerModel",
        "uid": STAGE,
        "paramMap": {"inputCols": names, "outputCols": [f"{name}_i" for name in names]},
        "defaultParamMap": {"handleInvalid": "error", "stringOrderType": "frequencyDesc"},
    },
)
(stage / "data").mkdir(exist_ok=True)
labels = pa.array([list(LABELS.values())], pa.list_(pa.list_(pa.string())))
pq.write_table(
    pa.table({"labelsArray": labels}),
    stage / "data" / "part-00000.snappy.parquet",
    compression="snappy",
    version="1.0",
)
