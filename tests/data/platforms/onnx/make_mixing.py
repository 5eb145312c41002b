"""Writes `mixing/`: ONNX models whose outputs for a row depend on the other rows of a batch, each in another way, and
`independent`, which does not. Each takes what `requests.json` has for it.

    pip install onnx==1.23.2
    python3 make_mixing.py
"""

import json
import random
from pathlib import Path

import onnx
from onnx import parser

FOLDER = Path(__file__).resolve().parent / "mixing"
FLOATS, IDS = "float[N, 4]", "int64[N]"
# By name: the input, the output, and the nodes that make y of x.
MODELS = {
    "independent": (FLOATS, "float[N, 4]", "s = Softmax<axis = 1>(x)\n y = Mul(s, x)"),
    "softmax_over_rows": (FLOATS, "float[N, 4]", "y = Softmax<axis = 0>(x)"),
    "running_sum_of_rows": (
        FLOATS,
        "float[N, 4]",
        "a = Constant<value_int = 0>()\n y = CumSum(x, a)",
    ),
    "largest_of_rows": (
        FLOATS,
        "float[N, 4]",
        "k = Constant<value_ints = [1]>()\n best, at = TopK<axis = 0>(x, k)\n y = Sub(x, best)",
    ),
    "sorted_rows": (
        FLOATS,
        "float[N, 4]",
        """s = Shape<start = 0, end = 1>(x)
           y, at = TopK<axis = 0, sorted = 1>(x, s)""",
    ),
    "without_mean_of_rows": (
        FLOATS,
        "float[N, 4]",
        "a = Constant<value_ints = [0]>()\n m = ReduceMean(x, a)\n y = Sub(x, m)",
    ),
    "scaled_by_number_of_rows": (
        FLOATS,
        "float[N, 4]",
        "s = Shape<start = 0, end = 1>(x)\n f = Cast<to = 1>(s)\n y = Div(x, f)",
    ),
    # ONNX Runtime's BatchNormalization in training mode keeps what it has seen: the same rows never get the same twice.
    "norm_of_the_batch": (
        FLOATS,
        "float[N, 4]",
        """a = Constant<value_ints = [0]>()
           m = ReduceMean(x, a)
           d = Sub(x, m)
           q = Mul(d, d)
           v = ReduceMean(q, a)
           e = Constant<value_float = 0.001>()
           w = Add(v, e)
           s = Sqrt(w)
           y = Div(d, s)""",
    ),
    "moved_rows": (
        FLOATS,
        "float[N, 4]",
        """z = Constant<value_ints = [0]>()
           one = Constant<value_ints = [1]>()
           many = Constant<value_ints = [9999]>()
           head = Slice(x, z, one, z)
           rest = Slice(x, one, many, z)
           y = Concat<axis = 0>(rest, head)""",
    ),
    "reversed_rows": (
        FLOATS,
        "float[N, 4]",
        """z = Constant<value_ints = [0]>()
           last = Constant<value_ints = [-1]>()
           first = Constant<value_ints = [-9999]>()
           y = Slice(x, last, first, z, last)""",
    ),
    "row_by_an_index": (
        FLOATS,
        "float[N, 4]",
        "z = Constant<value_ints = [0]>()\n first = Gather<axis = 0>(x, z)\n y = Sub(x, first)",
    ),
    "with_number_of_row": (
        FLOATS,
        "float[N, 4]",
        """z = Constant<value_int = 0>()
           one = Constant<value_int = 1>()
           s = Shape<start = 0, end = 1>(x)
           n = Squeeze(s)
           r = Range(z, n, one)
           a = Constant<value_ints = [1]>()
           c = Unsqueeze(r, a)
           f = Cast<to = 1>(c)
           y = Add(x, f)""",
    ),
    "first_places_of_equal_rows": (
        FLOATS,
        "int64[N]",
        """z = Constant<value_int = 0>()
           c = Gather<axis = 1>(x, z)
           r = Round(c)
           u, i, y, n = Unique(r)""",
    ),
    "how_often_in_the_batch": (
        IDS,
        "int64[N]",
        "u, i, at, n = Unique(x)\n y = Gather<axis = 0>(n, at)",
    ),
    "boxes_that_are_kept": (
        FLOATS,
        "int64[K, 3]",
        """a = Constant<value_ints = [0]>()
           boxes = Unsqueeze(x, a)
           one = Constant<value_ints = [1]>()
           sums = ReduceMax<keepdims = 0>(x, one)
           b = Constant<value_ints = [0, 1]>()
           scores = Unsqueeze(sums, b)
           most = Constant<value_ints = [100]>()
           iou = Constant<value_floats = [0.1]>()
           y = NonMaxSuppression(boxes, scores, most, iou)""",
    ),
    "attention_to_rows": (
        FLOATS,
        "float[N, 4]",
        "t = Transpose(x)\n p = MatMul(x, t)\n w = Softmax<axis = 1>(p)\n y = MatMul(w, x)",
    ),
    "divided_by_norm": (
        FLOATS,
        "float[N, 4]",
        "q = ReduceSumSquare<keepdims = 0>(x)\n s = Sqrt(q)\n y = Div(x, s)",
    ),
    "normalized_over_rows": (FLOATS, "float[N, 4]", "y = LpNormalization<axis = 0>(x)"),
    "reshaped_columns": (
        FLOATS,
        "float[N, 4]",
        "t = Transpose(x)\n s = Shape(x)\n y = Reshape(t, s)",
    ),
    "places_of_positive_rows": (
        FLOATS,
        "int64[2, K]",
        "z = Constant<value_float = 0.0>()\n p = Greater(x, z)\n y = NonZero(p)",
    ),
    "rows_that_are_positive": (
        FLOATS,
        "float[K, 4]",
        """one = Constant<value_ints = [1]>()
           z = Constant<value_float = 0.0>()
           s = ReduceSum<keepdims = 0>(x, one)
           p = Greater(s, z)
           y = Compress<axis = 0>(x, p)""",
    ),
    "last_one_wins": (
        IDS,
        "float[N]",
        """z = Constant<value_int = 0>()
           one = Constant<value_int = 1>()
           s = Shape<start = 0, end = 1>(x)
           n = Squeeze(s)
           r = Range(z, n, one)
           f = Cast<to = 1>(r)
           hundred = Constant<value_ints = [100]>()
           table = ConstantOfShape(hundred)
           filled = ScatterElements<axis = 0>(table, x, f)
           y = Gather<axis = 0>(filled, x)""",
    ),
    "sum_of_equal_ids": (
        IDS,
        "float[N]",
        """f = Cast<to = 1>(x)
           hundred = Constant<value_ints = [100]>()
           table = ConstantOfShape(hundred)
           filled = ScatterElements<axis = 0, reduction = "add">(table, x, f)
           y = Gather<axis = 0>(filled, x)""",
    ),
    "quantized_by_the_range": (
        FLOATS,
        "float[N, 4]",
        "q, s, z = DynamicQuantizeLinear(x)\n y = DequantizeLinear(q, s, z)",
    ),
    "branch_by_any_row": (
        FLOATS,
        "float[N, 4]",
        """z = Constant<value_float = 8.0>()
           m = ReduceMax<keepdims = 0>(x)
           c = Greater(m, z)
           y = If (c) <then_branch = t () => (float[N, 4] a) { a = Neg(x) },
                       else_branch = e () => (float[N, 4] b) { b = Identity(x) }>""",
    ),
    "state_from_row_to_row": (
        FLOATS,
        "float[N, 4]",
        """z = Constant<value_floats = [0.0, 0.0, 0.0, 0.0]>()
           last, y = Scan<num_scan_inputs = 1, body = step (float[4] before, float[4] row)
               => (float[4] after, float[4] out)
               { half = Constant<value_float = 0.5>()
                 b = Mul(before, half)
                 after = Add(b, row)
                 out = Identity(after) }>(z, x)""",
    ),
    "steps_of_the_slowest_row": (
        FLOATS,
        "float[N, 4]",
        """m = ReduceMax<keepdims = 0>(x)
           a = Abs(m)
           n = Cast<to = 7>(a)
           t = Constant<value = bool {1}>()
           y = Loop(n, t, x) <body = step (int64 i, bool c, float[N, 4] v) => (bool d, float[N, 4] w)
               { d = Identity(c)
                 h = Constant<value_float = 0.5>()
                 w = Mul(v, h) }>""",
    ),
    "einsum_over_rows": (
        FLOATS,
        "float[N, 4]",
        'g = Einsum<equation = "ij,ik->jk">(x, x)\n y = MatMul(x, g)',
    ),
}


def requests(kind: str) -> list:
    rng = random.Random(5)
    made = []
    for _ in range(200):
        rows = rng.choice([1, 1, 1, 2, 3])
        if kind == IDS:
            made.append([rng.randrange(10) for _ in range(rows)])
        else:
            made.append([[round(rng.gauss(0, 3), 2) for _ in range(4)] for _ in range(rows)])
    return made


def main() -> None:
    for name, (given, made, nodes) in MODELS.items():
        graph = (
            f'<ir_version: 10, opset_import: ["": 20]>\ng ({given} x) => ({made} y) {{ {nodes} }}'
        )
        built = parser.parse_model(graph)
        onnx.checker.check_model(built, full_check=True)
        version = FOLDER / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        onnx.save(built, version / "model.onnx")
    listed = {name: requests(given) for name, (given, _, _) in MODELS.items()}
    (FOLDER / "requests.json").write_text(json.dumps(listed) + "\n")


if __name__ == "__main__":
    main()
