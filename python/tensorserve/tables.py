"""Tables: data frames, rows and columns with missing values, as the columns of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# Values that JSON has. Lists are values of inputs with more dimensions.
_PLAIN = (str, bytes, bytearray, memoryview, bool, int, float, list, tuple, Mapping)
# The missing values of pandas, which need not be imported here: of any dtype, and of times.
_MARKERS = ("NAType", "NaTType")


def columns_of(inputs: Any) -> dict[str, list[Any]] | None:
    """The columns of a data frame or of a list of rows, by their names.

    `None` for anything else, such as the values of a single input.
    """
    if isinstance(inputs, Mapping):
        return None
    if isinstance(inputs, (list, tuple)):
        return _of_rows(inputs) if inputs and _is_row(inputs[0]) else None
    if hasattr(inputs, "iloc") and hasattr(inputs, "columns"):
        count = len(inputs.columns)
        return _named(inputs.columns, (inputs.iloc[:, at].tolist() for at in range(count)))
    if hasattr(inputs, "get_column") and hasattr(inputs, "columns"):
        names = list(inputs.columns)
        return _named(names, (inputs.get_column(name).to_list() for name in names))
    if hasattr(inputs, "column_names") and hasattr(inputs, "to_pydict"):
        return _named(inputs.column_names, (column.to_pylist() for column in inputs.columns))
    return None


def without_markers(
    columns: Mapping[str, Any], takes_texts: Callable[[str], bool]
) -> dict[str, Any]:
    """The same columns, in which `None` stands for what is missing among texts.

    Missing numbers stay NaN, which graphs take, too. ``takes_texts`` tells whether the input of a
    name takes texts; it is asked only if the values of its column do not show it.
    """
    return {name: _completed(name, values, takes_texts) for name, values in columns.items()}


def _is_row(value: Any) -> bool:
    # {"b64": …} is a string of bytes in TensorFlow Serving's JSON.
    return isinstance(value, Mapping) and value.keys() != {"b64"}


def _of_rows(rows: Sequence[Any]) -> dict[str, list[Any]]:
    """The columns of rows. What a row does not have is missing."""
    columns: dict[str, list[Any]] = {}
    for at, row in enumerate(rows):
        if not _is_row(row):
            raise TypeError(
                f"row {at} is a {type(row).__name__}: either all rows of a table are dictionaries, "
                "or none is"
            )
        for name, value in row.items():
            if not isinstance(name, str):
                raise TypeError(f"row {at}: the name of a column has to be a str, not {name!r}")
            column = columns.setdefault(name, [])
            column.extend([None] * (at - len(column)))
            column.append(value)
    for column in columns.values():
        column.extend([None] * (len(rows) - len(column)))
    return columns


def _named(names: Iterable[Any], values: Iterable[list[Any]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for name, column in zip(names, values):
        if not isinstance(name, str):
            raise TypeError(
                f"the columns of the table have no names but {name!r}: name them as the model "
                "does, or pass the values alone, as with DataFrame.to_numpy()"
            )
        if name in columns:
            raise ValueError(f"the table has two columns {name!r}")
        columns[name] = column
    return columns


def _completed(name: str, values: Any, takes_texts: Callable[[str], bool]) -> Any:
    if not isinstance(values, (list, tuple)):
        # Of a Series; or a single value, or an array.
        if isinstance(values, (str, bytes)) or not hasattr(values, "tolist"):
            return values
        values = values.tolist()
        if not isinstance(values, list):
            return values
    found = [_plain(name, value) for value in values]
    if not any(map(_is_nan, found)):
        return found
    if any(isinstance(value, str) for value in found) or takes_texts(name):
        return [None if _is_nan(value) else value for value in found]
    return found


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, _PLAIN):
        return value
    if type(value).__name__ in _MARKERS:
        return None
    if hasattr(value, "tolist"):
        # A scalar of NumPy, or an array in a row.
        return value.tolist()
    raise TypeError(
        f"column {name!r}: a {type(value).__name__} cannot be sent to a model; convert it to a "
        "number or a text, or leave the column out"
    )
