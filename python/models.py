"""Loads a Python object that predicts, and calls it: a pickle of scikit-learn, XGBoost, LightGBM or of
classes of your own, or a model of CatBoost. The server's side is crates/python.
"""

import json
import os
import pickle
import sys
import traceback
import warnings

import tensorserve_arrays as arrays
from tensorserve_columns import CATEGORY, DOCUMENT, NUMBER, UNUSED, Column, attribute, columns_of

# The number of the function in crates/python/src/model.rs.
PREDICT = 1

# The methods that may be outputs. Those of PREDICTIONS are outputs by default if the object has `predict`;
# of the others the first one that it has, if it does not.
PREDICTIONS = ("predict", "predict_proba", "predict_log_proba")
METHODS = (*PREDICTIONS, "transform", "decision_function", "score_samples")

# The names of signatures and of their input with all columns, as the server's own evaluator has them.
DEFAULT, COLUMNS, DATA = "serving_default", "columns", "data"

# Loss functions of CatBoost whose models predict classes.
CLASSES_OF_CATBOOST = (
    *("Logloss", "CrossEntropy", "Focal", "MultiClass", "MultiClassOneVsAll"),
    *("MultiLogloss", "MultiCrossEntropy"),
)

# Exceptions that the values of a request cause, besides ValueError.
REFUSALS = ("CatBoostError",)

# The longest text of an exception for a client, in characters.
MAX_TEXT = 2000

# The rows of the examples from which the outputs are learnt.
EXAMPLE_ROWS = 2


def load(file, trusted):
    """The object in a file."""
    ending = os.path.splitext(file)[1].lower()
    if ending == ".cbm":
        return load_catboost(file)
    if ending == ".skops":
        import skops.io

        return skops.io.load(file, trusted=trusted)
    try:
        # It also reads plain pickles, and compressed ones.
        from joblib import load as load_file
    except ImportError:
        load_file = load_pickle
    try:
        return load_file(file)
    except AttributeError as error:
        if "__main__" not in str(error):
            raise
        raise AttributeError(
            f"{error}: it was defined in the script or notebook that saved the model, and is not saved "
            "with it. Define it in a module, put the module into the folder code/ beside the model, and "
            "save the model again; or save it with cloudpickle"
        ) from error


def load_pickle(file):
    with open(file, "rb") as opened:
        return pickle.load(opened)


def load_catboost(file):
    import catboost

    model = catboost.CatBoost()
    model.load_model(file)
    loss = str(model.get_all_params().get("loss_function", "")).split(":")[0]
    kind = (
        catboost.CatBoostClassifier if loss in CLASSES_OF_CATBOOST else catboost.CatBoostRegressor
    )
    model = kind()
    model.load_model(file)
    return model


class Boosters:
    """A Booster of XGBoost or LightGBM, whose only output is `result`."""

    def __init__(self, booster):
        self.booster = booster
        self.is_xgboost = type(booster).__module__.startswith("xgboost")
        count = booster.num_features() if self.is_xgboost else booster.num_feature()
        self.n_features_in_ = int(count)

    def result(self, rows):
        if not self.is_xgboost:
            return self.booster.predict(rows)
        import xgboost

        return self.booster.predict(xgboost.DMatrix(rows, feature_names=self.booster.feature_names))


def wrapped(model):
    is_booster = type(model).__name__ == "Booster"
    return Boosters(model) if is_booster else model


class Spec:
    """The name, the dtype and the shape of an input or an output."""

    def __init__(self, name, dtype, shape, takes_missing=False):
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.takes_missing = takes_missing

    def described(self):
        return [self.name, self.dtype, self.shape, self.takes_missing]


def by_name(specs):
    return sorted(specs, key=lambda spec: spec.name)


class Matrix:
    """The signature with one matrix of numbers."""

    unused = ()

    def __init__(self, table, name, by_columns):
        self.table = table
        self.name = name
        self.by_columns = by_columns
        count = -1 if table.count is None else table.count
        self.inputs = [Spec(DATA, table.dtype, [-1, count], True)]

    def build(self, tensors):
        return self.table.of_matrix(tensors[0])

    def example(self):
        count = 1 if self.table.count is None else self.table.count
        row = [0.0] * count
        return self.build([self.table.matrix([row] * EXAMPLE_ROWS)])


class Columns:
    """The signature with an input for each column that the model uses."""

    by_columns = None

    def __init__(self, table, name):
        self.table = table
        self.name = name
        self.places = {}
        for place, (column_name, column) in enumerate(zip(table.column_names(), table.columns)):
            if column.use != UNUSED:
                self.places[column_name] = place
        inputs = [(name, table.columns[place]) for name, place in self.places.items()]
        dtype = {NUMBER: "float64", CATEGORY: "string", DOCUMENT: "string"}
        self.inputs = by_name(Spec(name, dtype[one.use], [-1], True) for name, one in inputs)
        self.unused = [name for name in table.names or () if name not in self.places]

    def build(self, tensors):
        values = {self.places[spec.name]: tensor for spec, tensor in zip(self.inputs, tensors)}
        return self.table.of_columns(values)

    def example(self):
        columns = [self.table.columns[self.places[spec.name]] for spec in self.inputs]
        return self.build(
            [arrays.column([one.example()] * EXAMPLE_ROWS, one.use != NUMBER) for one in columns]
        )


class Declared:
    """The signature that a tensorserve.toml declares."""

    name, by_columns, unused = DEFAULT, None, ()

    def __init__(self, table, declared):
        self.table = table
        self.declared = [spec["name"] for spec in declared]
        dims = [spec["shape"] for spec in declared]
        self.has_columns = all(shape == [-1] for shape in dims) and (
            len(dims) > 1 or bool(table.names)
        )
        missing = ("float32", "float64", "string")
        self.inputs = by_name(
            Spec(
                spec["name"],
                spec["dtype"],
                spec["shape"],
                self.has_columns and spec["dtype"] in missing,
            )
            for spec in declared
        )

    def build(self, tensors):
        values = dict(zip([spec.name for spec in self.inputs], tensors))
        if not self.has_columns:
            first = values[self.declared[0]]
            return first if len(values) == 1 else values
        return self.table.of_named(values, self.declared)

    def example(self):
        tensors = []
        for spec in self.inputs:
            shape = [EXAMPLE_ROWS, *(max(size, 1) for size in spec.shape[1:])] if spec.shape else []
            tensors.append(arrays.filled(spec.dtype, shape))
        return self.build(tensors)


class Table:
    """Makes the argument of the model's methods: a data frame if the model was fitted on one."""

    def __init__(self, model):
        names = attribute(model, "feature_names_in_")
        count = attribute(model, "n_features_in_")
        categories = ()
        if hasattr(model, "get_cat_feature_indices"):
            categories = model.get_cat_feature_indices()
            names = names if names is not None else attribute(model, "feature_names_")
            count = count or len(names)
        self.names = None if names is None else [str(name) for name in names]
        self.count = len(self.names) if self.names is not None else count and int(count)
        # XGBoost computes with these.
        self.dtype = "float32" if getattr(model, "is_xgboost", False) else "float64"
        # A vectorizer knows no number of features: it takes one column of documents.
        self.columns = columns_of(model, self.names, 1 if self.count is None else self.count)
        if categories:
            known = ("",)
            for place in categories:
                self.columns[place] = Column(CATEGORY, known)
        uses = {column.use for column in self.columns}
        self.has_texts = bool(uses & {CATEGORY, DOCUMENT})
        self.missing = [column.missing() for column in self.columns]
        self.frames = import_pandas() if self.names is not None else None

    def column_names(self):
        if self.names is not None:
            return self.names
        return (
            [DATA]
            if len(self.columns) == 1
            else [f"x{place}" for place in range(len(self.columns))]
        )

    def signatures(self):
        if self.has_texts:
            return [Columns(self, DEFAULT)]
        if self.names is None:
            return [Matrix(self, DEFAULT, None)]
        return [Columns(self, COLUMNS), Matrix(self, DEFAULT, COLUMNS)]

    def matrix(self, rows):
        return arrays.matrix(rows, self.dtype)

    def of_matrix(self, values):
        return values if self.frames is None else self.frames.DataFrame(values, columns=self.names)

    def of_columns(self, values):
        """From tensors of columns by number."""
        values = {place: self.filled(place, tensor) for place, tensor in values.items()}
        if self.frames is None:
            return self.without_frames(values)
        names = enumerate(self.names)
        rows = len(next(iter(values.values()), ()))
        missing = [float("nan")] * rows
        return self.frames.DataFrame({name: values.get(place, missing) for place, name in names})

    def without_frames(self, values):
        if len(self.columns) == 1 and self.columns[0].use == DOCUMENT:
            return values[0]
        rows = len(next(iter(values.values()), ()))
        return arrays.table(
            [values.get(place) for place in range(len(self.columns))], rows, self.has_texts
        )

    def filled(self, place, tensor):
        """The column with what stands for missing values in place of empty texts."""
        column, missing = self.columns[place], self.missing[place]
        if column.use != CATEGORY or missing is None:
            return tensor
        return arrays.replaced(tensor, "", missing[0])

    def of_named(self, values, order):
        """From declared columns by name."""
        names = order if self.names is None else self.names
        frames = self.frames or import_pandas()
        if frames is None:
            raise ImportError("several columns are a data frame, and pandas is not installed")
        rows = len(next(iter(values.values())))
        missing = [float("nan")] * rows
        columns = {}
        for name in [*names, *(name for name in order if name not in names)]:
            column = values.get(name, missing)
            is_category = name not in (self.names or ()) or self.missing[self.names.index(name)]
            if is_category and arrays.are_texts(column):
                column = arrays.replaced(column, "", float("nan"))
            columns[name] = column
        return frames.DataFrame(columns)


def import_pandas():
    try:
        import pandas
    except ImportError:
        return None
    return pandas


class ServedModel:
    """An object with its signatures."""

    def __init__(self, model, declared):
        self.model = model
        declared_outputs = declared.get("outputs") or []
        self.methods, self.renamed = self.choose_methods([one["name"] for one in declared_outputs])
        table = Table(model)
        inputs = declared.get("inputs")
        self.signatures = [Declared(table, inputs)] if inputs else table.signatures()
        self.outputs = self.find_outputs({one["name"]: one for one in declared_outputs})

    def choose_methods(self, declared):
        """The methods to call, and the name of the output of `predict` if it has another one."""
        if isinstance(self.model, Boosters):
            return ["result"], None
        known = [name for name in declared if name in METHODS]
        others = [name for name in declared if name not in METHODS]
        lacking = [name for name in known if not hasattr(self.model, name)]
        kind = type(self.model).__name__
        if lacking:
            raise AttributeError(
                f"{kind} has no method {lacking[0]}, which [[signature.outputs]] names"
            )
        if known or others:
            renamed = others[0] if len(others) == 1 and "predict" not in known else None
            return known + (["predict"] if others and "predict" not in known else []), renamed
        found = [name for name in METHODS if callable(attribute(self.model, name))]
        if "predict" in found:
            # A ClassifierChain has `predict_log_proba` even where it fails without `predict_proba`.
            is_catboost = type(self.model).__module__.startswith("catboost")
            default = PREDICTIONS[:2] if is_catboost else PREDICTIONS
            outputs = [name for name in found if name in default]
            return outputs if "predict_proba" in outputs else ["predict"], None
        if not found:
            raise TypeError(
                f"the file has an object of the class {kind}, which has none of {', '.join(METHODS)}"
            )
        return found[:1], None

    def results(self, rows):
        """What the methods return, by the names of outputs."""
        results = {}
        for method in self.methods:
            value = getattr(self.model, method)(rows)
            name = self.renamed if method == "predict" and self.renamed else method
            if isinstance(value, dict):
                results.update((str(key), part) for key, part in value.items())
            elif (
                isinstance(value, list) and method in PREDICTIONS[1:] and hasattr(value[0], "shape")
            ):
                # One matrix for each output of the model.
                results.update((f"{name}_{number}", part) for number, part in enumerate(value))
            else:
                results[name] = value
        return results

    def find_outputs(self, declared):
        if declared and all(one["dtype"] and one["shape"] is not None for one in declared.values()):
            return by_name(Spec(name, one["dtype"], one["shape"]) for name, one in declared.items())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = self.results(self.signatures[-1].example())
            learnt = {name: arrays.described(value) for name, value in results.items()}
        except Exception as error:
            summary = traceback.format_exception_only(type(error), error)[-1].strip()
            print(
                f"the outputs are not learnt from an example, which the model refuses: {summary}",
                file=sys.stderr,
            )
            learnt = {name: self.expected(name) for name in self.methods}
            if self.renamed:
                learnt[self.renamed] = learnt.pop("predict")
        outputs = []
        for name, (dtype, shape) in learnt.items():
            one = declared.get(name) or {}
            if declared and not one:
                continue
            given = one.get("shape")
            outputs.append(
                Spec(name, one.get("dtype") or dtype, open_rows(shape) if given is None else given)
            )
        lacking = [name for name in declared if name not in learnt]
        if lacking:
            raise ValueError(
                f"the model has no output {lacking[0]}, which [[signature.outputs]] names; it has {', '.join(learnt)}"
            )
        return by_name(outputs)

    def expected(self, method):
        """The dtype and the shape of what a method returns for two rows, as far as the object tells."""
        classes = attribute(self.model, "classes_")
        if method == "predict":
            if classes is None:
                return "float64", [EXAMPLE_ROWS]
            dtype, _ = arrays.described(classes)
            return dtype, [EXAMPLE_ROWS]
        if method == "score_samples":
            return "float64", [EXAMPLE_ROWS]
        return "float64", [EXAMPLE_ROWS, -1 if classes is None else len(classes)]

    def about(self):
        signatures = [
            {
                "name": one.name,
                "inputs": [spec.described() for spec in one.inputs],
                "outputs": [spec.described() for spec in self.outputs],
                "by_columns": one.by_columns,
                "unused": list(one.unused),
            }
            for one in self.signatures
        ]
        return json.dumps({"signatures": signatures, "written_by": written_by(self.model)})

    def predict(self, fields, body):
        number, header = fields
        rows = self.signatures[int(number)].build(arrays.decode(header, body))
        results = self.results(rows)
        lacking = [spec.name for spec in self.outputs if spec.name not in results]
        if lacking:
            raise TypeError(f"the model has returned no {lacking[0]}, but {', '.join(results)}")
        values = [results[spec.name] for spec in self.outputs]
        header, body = arrays.encode(values, [spec.dtype for spec in self.outputs])
        return (header,), body


def open_rows(shape):
    """The shape of a result for the rows of the example, for any number of rows."""
    return [-1, *shape[1:]] if shape and shape[0] == EXAMPLE_ROWS else shape


def written_by(model):
    version = attribute(model, "_sklearn_version")
    module = type(model).__module__.split(".")[0]
    if version is None:
        version = getattr(sys.modules.get(module), "__version__", None)
    return f"{'scikit-learn' if module == 'sklearn' else module} {version}" if version else ""


def set_up(settings):
    """Loads the model. Returns its functions by number, and its description."""
    for folder in json.loads(settings["code"]):
        sys.path.insert(0, folder)
    model = wrapped(load(settings["file"], json.loads(settings["trusted"])))
    served = ServedModel(model, json.loads(settings["declared"]))
    return {PREDICT: served.predict}, [served.about()]


def describe(error):
    """Describes an exception to the server: whether the request is at fault, and the text."""
    is_refusal = isinstance(error, ValueError) or type(error).__name__ in REFUSALS
    if not is_refusal:
        sys.modules["tensorserve_worker"].report(error)
    try:
        text = str(error)
    except Exception:
        text = ""
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return ["refused" if is_refusal else "failed", text[:MAX_TEXT]]
