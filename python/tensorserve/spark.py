"""Predictions in Spark: :func:`predictor` is for ``DataFrame.mapInPandas``.

    import tensorserve.spark

    predict = tensorserve.spark.predictor("/models/iris", {"x": ["a", "b", "c", "d"]})
    rows.mapInPandas(predict, "id long, probabilities array<float>")

Each Python worker of Spark starts one server, and keeps it for its later tasks.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tensorserve.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import pandas as pd

    from tensorserve.client import Client

_MODEL = "model"
# Of this process, by model and settings. Spark uses the process for many tasks.
_servers: dict[str, tuple[Server, Client]] = {}


def predictor(
    model: str | os.PathLike[str],
    inputs: Mapping[str, str | Sequence[str]],
    keep: Sequence[str] = (),
    **settings: Any,
) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """Returns a function that adds predictions to batches of rows.

    ``model`` is a path that all executors have, or the URL of a store. ``inputs`` names the column
    of each input of the model; several columns become a matrix, and a column of arrays does, too.
    The result has the columns ``keep`` and a column for each output of the model; outputs with
    several values in a row are lists. ``settings`` are those of :class:`tensorserve.Server`.
    """
    path = os.fspath(model)

    def predict(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        client = _client(path, settings)
        names = list(client.signatures(_MODEL)["serving_default"].outputs)
        for batch in batches:
            if len(batch) == 0:
                continue
            values = {name: _array(batch, columns) for name, columns in inputs.items()}
            found = client.predict(_MODEL, values)
            outputs = found if isinstance(found, dict) else {names[0]: found}
            yield batch[list(keep)].assign(**{k: _column(v) for k, v in outputs.items()})

    return predict


def _client(model: str, settings: dict[str, Any]) -> Client:
    """The client of this process's server, which is started when it is first needed."""
    key = repr((model, sorted(settings.items())))
    if key not in _servers:
        server = Server({_MODEL: model}, **{"grpc_port": None, **settings}).start()
        _servers[key] = (server, server.client())
    return _servers[key][1]


def _array(batch: pd.DataFrame, columns: str | Sequence[str]) -> np.ndarray[Any, Any]:
    import numpy as np

    if not isinstance(columns, str):
        return batch[list(columns)].to_numpy()
    values = batch[columns].to_numpy()
    is_nested = values.dtype == object and isinstance(values[0], (list, np.ndarray))
    return np.stack([np.asarray(value) for value in values]) if is_nested else values


def _column(values: np.ndarray[Any, Any]) -> Any:
    return values if values.ndim == 1 else list(values)
