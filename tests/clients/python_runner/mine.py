"""Classes and functions of a model's author; the models have a copy of this file in `code/`."""

import os
import time

import numpy as np


def add_total(frame):
    frame = frame.copy()
    frame["total"] = frame["fare"] + frame["age"].fillna(0)
    return frame


class Doubler:
    """Doubles numbers. Some are commands."""

    n_features_in_ = 1

    def predict(self, rows):
        rows = np.asarray(rows)
        if (rows == -1).any():
            os._exit(7)
        if (rows == -2).any():
            time.sleep(120)
        if (rows == -3).any():
            raise ValueError("-3 is refused")
        if (rows == -4).any():
            raise KeyError("-4")
        return rows[:, 0] * 2
