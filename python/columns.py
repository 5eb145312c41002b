"""What the columns of a table are for a fitted model: numbers, categories or documents.

scikit-learn keeps no dtypes of the data that an estimator was fitted on. They follow from what the
steps have learnt: the categories of encoders, the statistics of imputers, and that vectorizers take
texts. The rules are those of the server's own evaluator (crates/sklearn), so that a model
has the same inputs there and here.
"""

# The uses of a column, the later of two being the one that counts.
UNUSED, NUMBER, CATEGORY, DOCUMENT = range(4)

# Names of classes that turn texts into rows; subclasses count, too.
VECTORIZERS = ("CountVectorizer", "HashingVectorizer")

# Attributes with the fitted estimator that another one calls with its own input.
INNER = ("best_estimator_", "estimator_", "regressor_")


class Column:
    """The use of a column, and the categories that the model knows of it."""

    def __init__(self, use, known=()):
        self.use = use
        self.known = known

    def merged(self, other):
        if other.use > self.use:
            return other
        if other.use == self.use and not self.known:
            return other
        return self

    def example(self):
        """A value that the model may know."""
        texts = [text for text in self.known if isinstance(text, str)]
        if self.use in (CATEGORY, DOCUMENT):
            return texts[0] if texts else "a"
        return 0.0

    def missing(self):
        """What stands for a missing text; None if an empty one is a value like others."""
        if self.use == DOCUMENT or "" in self.known:
            return None
        if any(text is None for text in self.known):
            return (None,)
        return (float("nan"),)


def columns_of(model, names, count):
    """A Column for each of the `count` features, whose names may be None."""
    found = uses(model, names, count)
    return found or [Column(NUMBER) for _ in range(count)]


def attribute(model, name):
    """An attribute; None if there is none, or it is a property that fails."""
    try:
        return getattr(model, name, None)
    except Exception:
        return None


def uses(model, names, count):
    """A Column for each feature; None if nothing is known."""
    if model is None or isinstance(model, str):
        return None
    if any(kind.__name__ in VECTORIZERS for kind in type(model).__mro__):
        return [Column(DOCUMENT)] * count
    for name in INNER:
        inner = attribute(model, name)
        if inner is not None and not isinstance(inner, str):
            return uses(inner, names, count)
    if attribute(model, "calibrated_classifiers_"):
        inner = model.calibrated_classifiers_[0]
        return uses(attribute(inner, "estimator"), names, count)
    if attribute(model, "transformers_") is not None:
        return uses_of_parts(model.transformers_, names, count)
    if attribute(model, "steps") is not None:
        return uses_of_steps([step for _, step in model.steps], names, count)
    members = attribute(model, "transformer_list")
    if members is not None:
        return merged([uses(member, names, count) for _, member in members])
    return uses_of_estimator(model, names, count)


def uses_of_estimator(model, names, count):
    categories = attribute(model, "categories_")
    if categories is not None and len(categories) == count:
        return [column_of(list(values)) for values in categories]
    statistics = attribute(model, "statistics_")
    if statistics is not None and len(statistics) == count:
        return [column_of([value]) for value in statistics]
    mask = attribute(model, "is_categorical_")
    encoders = attribute(attribute(model, "_preprocessor"), "named_transformers_")
    if mask is not None and encoders is not None and "encoder" in encoders:
        known = iter(attribute(encoders["encoder"], "categories_") or ())
        return [column_of(list(next(known, ()))) if is_one else Column(NUMBER) for is_one in mask]
    members = attribute(model, "estimators_")
    if isinstance(members, list):
        return merged([uses(member, names, count) for member in members])
    return None


def column_of(values):
    is_text = any(isinstance(value, str) for value in values)
    return Column(CATEGORY, values) if is_text else Column(NUMBER)


def uses_of_parts(parts, names, count):
    """The uses of a ColumnTransformer, whose parts get some columns each."""
    columns = [Column(UNUSED) for _ in range(count)]
    for _, part, wanted in parts:
        if isinstance(part, str) and part == "drop":
            continue
        places = indices(wanted, names, count)
        if places is None:
            return None
        inner_names = [names[place] for place in places] if names else None
        found = uses(part, inner_names, len(places)) or [Column(NUMBER)] * len(places)
        for place, column in zip(places, found):
            columns[place] = columns[place].merged(column)
    return columns


def indices(wanted, names, count):
    """The numbers of the columns that a part of a ColumnTransformer gets; None if unknown."""
    if callable(wanted):
        return None
    if isinstance(wanted, slice):
        ends = [place_of(end, names) for end in (wanted.start, wanted.stop)]
        if isinstance(wanted.stop, str) and ends[1] is not None:
            ends[1] += 1
        return list(range(count))[ends[0] : ends[1] : wanted.step]
    if isinstance(wanted, str) or not hasattr(wanted, "__iter__"):
        wanted = [wanted]
    wanted = list(wanted)
    if (
        wanted
        and len(wanted) == count
        and all(type(one).__name__ in ("bool", "bool_") for one in wanted)
    ):
        return [place for place, is_one in enumerate(wanted) if is_one]
    places = [place_of(one, names) for one in wanted]
    if any(place is None or not -count <= place < count for place in places):
        return None
    return [place % count for place in places]


def place_of(column, names):
    if column is None:
        return None
    if isinstance(column, str):
        return names.index(column) if names and column in names else None
    return int(column)


def uses_of_steps(steps, names, count):
    """The uses of a pipeline: of its first step; behind steps that may do anything, those of columns that
    still have their names."""
    for number, step in enumerate(steps):
        if step is None or isinstance(step, str):
            continue
        found = uses(step, names, count)
        if found is not None or number == len(steps) - 1:
            return found
        later = attribute(step, "get_feature_names_out")
        if later is not None and type(step).__name__ != "FunctionTransformer":
            return None
        return uses_by_name(steps[number + 1 :], names, count)
    return None


def uses_by_name(steps, names, count):
    columns = [Column(NUMBER) for _ in range(count)]
    for step in steps:
        step_names = attribute(step, "feature_names_in_")
        if step_names is None or not names:
            continue
        step_names = list(step_names)
        for name, column in zip(step_names, uses(step, step_names, len(step_names)) or []):
            if name in names:
                place = names.index(name)
                columns[place] = columns[place].merged(column)
        break
    return columns


def merged(all_uses):
    known = [found for found in all_uses if found is not None]
    if not known:
        return None
    columns = known[0]
    for found in known[1:]:
        columns = [one.merged(other) for one, other in zip(columns, found)]
    return columns
