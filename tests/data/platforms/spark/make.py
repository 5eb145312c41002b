"""Makes the models of this folder with Spark 3.5.8 (pyspark, on Java 17), and expected.json: what
Spark makes of some rows. Run it in this folder; seed 7."""

import glob
import json
import os
import random
import shutil

from pyspark.ml.classification import LinearSVC, LogisticRegression
from pyspark.ml.linalg import Vectors
from pyspark.ml.regression import LinearRegression
from pyspark.mllib.classification import LogisticRegressionWithLBFGS, SVMWithSGD
from pyspark.mllib.linalg import Vectors as OldVectors
from pyspark.mllib.regression import LabeledPoint, LinearRegressionWithSGD
from pyspark.sql import SparkSession

random.seed(7)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
WIDTH = 5


def label(row, classes):
    score = row[0] + 2 * row[1] - row[2] + random.gauss(0, 0.4)
    return float(min(classes - 1, max(0, int(score + classes / 2))))


ROWS = [[round(random.uniform(-1, 1), 3) for _ in range(WIDTH)] for _ in range(200)]
ASKED = [[round(random.uniform(-2, 2), 3) for _ in range(WIDTH)] for _ in range(12)]
# Three features that are hardly ever there, for a sparse model.
WIDE = [[0.0] * 40 for _ in range(200)]
for wide, row in zip(WIDE, ROWS, strict=True):
    wide[3], wide[17], wide[38] = row[0], row[1], row[2]
expected = {}


def frame(rows, labels):
    return spark.createDataFrame(
        [(y, Vectors.dense(x)) for x, y in zip(rows, labels, strict=True)], ["label", "features"]
    )


def keep(name, save):
    shutil.rmtree(name, ignore_errors=True)
    save(os.path.abspath(name))
    for path in glob.glob(f"{name}/**/.*.crc", recursive=True) + glob.glob(
        f"{name}/**/_SUCCESS", recursive=True
    ):
        os.remove(path)


def ml(name, estimator, labels, rows=ROWS, asked=ASKED):
    model = estimator.fit(frame(rows, labels))
    keep(name, lambda path: model.write().overwrite().save(path))
    answers = model.transform(frame(asked, [0.0] * len(asked))).collect()
    expected[name] = [
        {
            "features": x,
            "prediction": a.prediction,
            "probabilities": [float(p) for p in a.probability] if "probability" in a else [],
        }
        for x, a in zip(asked, answers, strict=True)
    ]


two = [label(row, 2) for row in ROWS]
three = [label(row, 3) for row in ROWS]
number = [3 * row[0] - row[3] + 0.5 for row in ROWS]
ml("ml_binary", LogisticRegression(threshold=0.3), two)
ml("ml_binary_thresholds", LogisticRegression(thresholds=[0.2, 0.7]), two)
ml("ml_multinomial", LogisticRegression(family="multinomial"), three)
ml("ml_multinomial_thresholds", LogisticRegression(thresholds=[0.2, 0.7, 0.4]), three)
ml(
    "ml_sparse",
    LogisticRegression(family="multinomial", regParam=0.05, elasticNetParam=1.0),
    three,
    WIDE,
    WIDE[:8],
)
ml("ml_linear", LinearRegression(), number)
ml("ml_svc", LinearSVC(threshold=0.2), two)


def mllib(name, model, probabilities=False):
    keep(name, lambda path: model.save(spark.sparkContext, path))
    answers = []
    for row in ASKED:
        answer = {
            "features": row,
            "prediction": float(model.predict(OldVectors.dense(row))),
            "probabilities": [],
        }
        if probabilities:
            threshold = model.threshold
            model.clearThreshold()
            second = model.predict(OldVectors.dense(row))
            model.setThreshold(threshold)
            answer["probabilities"] = [1 - second, second]
        answers.append(answer)
    expected[name] = answers


def points(labels):
    return spark.sparkContext.parallelize(
        [LabeledPoint(y, x) for x, y in zip(ROWS, labels, strict=True)], 1
    )


mllib("mllib_binary", LogisticRegressionWithLBFGS.train(points(two), intercept=True), True)
mllib(
    "mllib_multinomial",
    LogisticRegressionWithLBFGS.train(points(three), intercept=True, numClasses=3),
)
mllib(
    "mllib_multinomial_without_intercept",
    LogisticRegressionWithLBFGS.train(points(three), numClasses=3),
)
mllib("mllib_svm", SVMWithSGD.train(points(two), iterations=20, intercept=True))
mllib("mllib_linear", LinearRegressionWithSGD.train(points(number), iterations=50, intercept=True))

with open("expected.json", "w") as file:
    lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in expected.items())
    file.write("{\n" + ",\n".join(lines) + "\n}\n")
