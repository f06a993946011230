# SPDX-License-Identifier: Apache-2.0
"""Cases of operators that move elements, and of those that make shapes and numbers."""

import numpy as np
from onnx import TensorProto, helper

from reference import attention as reference

from .registry import BF16, FLOATS, Case, cases, draw, formula, is_float

# Also the 8-bit floats, where the operator moves bytes.
SHAPES = [(3, 5), (2, 0, 3), (4, 1, 65), (33, 17), (7, 2, 3, 5), (129,), (2, 3), (1, 1)]


def numbers(*values):
    return np.array(values, np.int64)


@cases("Reshape")
def reshape(rng, dtype, i):
    shape, target, allow = [
        ((3, 5), (5, 3), 0), ((2, 0, 3), (0, 0, -1), 0), ((4, 1, 65), (0, -1), 0), ((33, 17), (-1,), 0), ((7, 2, 3), (0, 6, 1), 0),
        ((0, 4), (4, 0), 1), ((1,), (), 0), ((1,), (1, 1, 1), 0),
    ][i]  # fmt: skip
    if 0 in shape and -1 in target:
        target = (0, 0, 3)
    return Case([draw(rng, dtype, shape), numbers(*target)], {"allowzero": allow})


@cases("Flatten")
def flatten(rng, dtype, i):
    shape = SHAPES[i]
    axis = int(rng.integers(-len(shape), len(shape) + 1))
    rows = int(np.prod(shape[: axis + len(shape) if axis < 0 else axis]))
    x = draw(rng, dtype, shape)
    return formula(
        [x], lambda x: x.reshape(rows, x.size // rows if rows else int(np.prod(shape[axis:]))), attributes={"axis": axis}, source="exact"
    )


@cases("Squeeze", "Unsqueeze")
def squeeze(rng, dtype, i, op):
    if op == "Unsqueeze":
        return Case([draw(rng, dtype, SHAPES[i]), numbers(*[(0,), (-1,), (1, 0), (0, -1)][i % 4])])
    shape, axes = [((3, 1, 5), (1,)), ((1, 0, 1), (0, -1)), ((4, 1, 65), (-2,)), ((1, 7, 1), None)][i % 4]
    return Case([draw(rng, dtype, shape)] + ([] if axes is None else [numbers(*axes)]))


@cases("Transpose")
def transpose(rng, dtype, i):
    x = draw(rng, dtype, SHAPES[i])
    return Case([x], {} if i == 0 else {"perm": [int(a) for a in rng.permutation(x.ndim)]})


@cases("Concat")
def concat(rng, dtype, i):
    shape, axis = SHAPES[i], int(rng.integers(0, len(SHAPES[i])))
    parts = [(*shape[:axis], n, *shape[axis + 1 :]) for n in ([2, 0, 5], [3], [1, 1, 1, 1])[i % 3]]
    return Case([draw(rng, dtype, part) for part in parts], {"axis": axis - len(shape) if i % 2 else axis})


@cases("Split")
def split(rng, dtype, i):
    if i % 2:
        sizes = [[2, 0, 5], [1, 6], [7], [3, 3, 1]][i // 2]
        return Case([draw(rng, dtype, (3, 7, 2)), numbers(*sizes)], {"axis": 1}, outputs=(dtype,) * len(sizes))
    n = [2, 3, 4, 1][i // 2]
    return Case([draw(rng, dtype, (10, 3))], {"num_outputs": n}, outputs=(dtype,) * n)


@cases("Expand", "Tile")
def expand(rng, dtype, i, op):
    shape = SHAPES[i]
    if op == "Tile":
        return Case([draw(rng, dtype, shape), rng.integers(0 if i == 5 else 1, 4, len(shape))])
    shape, target = [
        ((3, 1), (2, 3, 6)),
        ((1, 0), (4, 1)),
        ((1,), (0,)),
        ((5, 1, 7), (1, 33, 1)),
        ((), (3, 5)),
        ((3, 5), (1,)),
        ((2, 1), (2, 9)),
        ((1, 1), (1,)),
    ][i]
    return Case([draw(rng, dtype, shape), numbers(*target)])


@cases("Slice")
def slice_(rng, dtype, i):
    shape, starts, ends, axes, steps = [
        ((9, 7), [1], [-1], None, None), ((9, 0), [0, 0], [5, 5], None, None), ((9, 7), [2, -1], [100, -100], [0, 1], [2, -1]),
        ((4, 5, 65), [-3], [-1], [-1], None), ((33, 17), [30], [0], [0], [-7]), ((129,), [5], [5], None, None),
        ((2, 3, 33), [0, 1], [2**62, 9], [1, 2], [1, 3]), ((7,), [-1], [-(2**62)], [0], [-1]),
    ][i]  # fmt: skip
    inputs = [draw(rng, dtype, shape), numbers(*starts), numbers(*ends)]
    if axes is not None:
        inputs += [numbers(*axes)] + ([numbers(*steps)] if steps else [])
    return Case(inputs)


@cases("Gather")
def gather(rng, dtype, i):
    shape, axis, index = [
        ((9, 7), 0, (2, 3)), ((9, 0), 0, (4,)), ((9, 7), 1, ()), ((4, 5, 65), -1, (0,)), ((33, 17), 0, (40,)), ((7, 2, 3), 1, (1, 2)),
        ((129,), 0, (5, 1)), ((2, 3), -2, (3,)),
    ][i]  # fmt: skip
    indices = rng.integers(-shape[axis], shape[axis], index)
    return Case([draw(rng, dtype, shape), np.asarray(indices, np.int32 if i % 2 else np.int64)], {"axis": axis})


@cases("GatherElements")
def gather_elements(rng, dtype, i):
    shape, axis = SHAPES[i], int(rng.integers(0, len(SHAPES[i])))
    if 0 in shape:
        axis = 0
    index_shape = tuple(int(rng.integers(1, n + 1)) if n else 0 for n in shape)
    inputs = [draw(rng, dtype, shape), rng.integers(-shape[axis], shape[axis], index_shape)]

    def take(x, indices):
        return np.take_along_axis(x[tuple(slice(None if a == axis else n) for a, n in enumerate(index_shape))], indices, axis)

    return formula(inputs, take, attributes={"axis": axis}, source="exact")


@cases("GatherND")
def gather_nd(rng, dtype, i):
    shape, index, batch = [
        ((5, 7, 3), (4, 2), 0), ((5, 7, 3), (0, 2), 0), ((2, 7, 3), (2, 4, 1), 1), ((5,), (3, 3, 1), 0), ((2, 3, 33), (2, 3, 1), 2),
        ((5, 7), (6, 2), 0), ((5, 7, 3), (3,), 0), ((4, 9), (1, 1), 0),
    ][i]  # fmt: skip
    indices = np.stack([rng.integers(-shape[batch + a], shape[batch + a], index[:-1]) for a in range(index[-1])], -1)
    return Case([draw(rng, dtype, shape), indices], {"batch_dims": batch})


REDUCTIONS = ["none", "add", "mul", "max", "min", "none", "add", "none"]


def reduction_of(dtype, i):
    reduction = REDUCTIONS[i]
    return "none" if dtype == np.bool_ or not (is_float(dtype) or np.dtype(dtype).kind in "iu") else reduction


@cases("ScatterElements")
def scatter_elements(rng, dtype, i):
    shape, axis = SHAPES[i], 0
    index_shape = tuple(int(rng.integers(1, n + 1)) if n else 0 for n in shape)
    indices = np.argsort(rng.random((shape[0], *index_shape[1:])), axis=0)[: index_shape[0]]  # each place once
    return Case([draw(rng, dtype, shape), indices, draw(rng, dtype, indices.shape)], {"axis": axis, "reduction": reduction_of(dtype, i)})


@cases("Scatter")
def scatter(rng, dtype, i):
    case = scatter_elements(rng, dtype, i)
    data, indices, updates = case.inputs

    def put(data, indices, updates):
        y = data.copy()
        for place in np.ndindex(indices.shape):
            y[(indices[place], *place[1:])] = updates[place]
        return y

    return formula([data, indices, updates], put, attributes={"axis": 0}, opset=10, source="exact")


@cases("ScatterND")
def scatter_nd(rng, dtype, i):
    shape, count, depth = [
        ((5, 7, 3), 4, 2),
        ((5, 0), 2, 1),
        ((5, 7, 3), 0, 1),
        ((129,), 30, 1),
        ((5, 7, 3), 9, 3),
        ((5, 7), 3, 1),
        ((9, 4), 20, 2),
        ((2, 3), 1, 2),
    ][i]
    places = rng.permutation(int(np.prod(shape[:depth])))[:count]  # each place once
    indices = np.stack(np.unravel_index(places, shape[:depth]), -1).astype(np.int64).reshape(count, depth)
    return Case([draw(rng, dtype, shape), indices, draw(rng, dtype, (count, *shape[depth:]))], {"reduction": reduction_of(dtype, i)})


@cases("Trilu")
def trilu(rng, dtype, i):
    shape = [(5, 7), (2, 0, 3), (3, 9, 4), (1, 1), (2, 2, 33, 17), (6, 6), (7, 3), (65, 65)][i]
    return Case([draw(rng, dtype, shape)] + ([numbers(int(rng.integers(-4, 5))).reshape(())] if i % 3 else []), {"upper": i % 2})


@cases("Shape", "Size")
def shape(rng, dtype, i, op):
    attributes = [{}, {"start": 1}, {"end": -1}, {"start": -2, "end": 9}][i % 4] if op == "Shape" else {}
    return Case([draw(rng, dtype, SHAPES[i])], attributes, outputs=(np.int64,))


@cases("Range")
def range_(rng, dtype, i):
    start, limit, delta = [(0, 10, 1), (5, 5, 1), (10, -7, -3), (1, 8, 2), (0, 300, 7), (3, 0, 1), (-4, 4, 1), (2, 3, 5)][i]
    return Case([np.array(v, dtype) for v in (start, limit, delta)])


@cases("ConstantOfShape", parameter="T2")
def constant_of_shape(rng, dtype, i):
    dims = [(3, 5), (2, 0), (), (1,), (33,)][i % 5]
    value = np.array([1 if i % 2 else 0], dtype)
    proto = TensorProto(dims=[1], data_type=helper.np_dtype_to_tensor_dtype(value.dtype), raw_data=value.tobytes())
    return formula(
        [np.array(dims, np.int64)],
        lambda _: np.full(dims, value.astype(np.float64) if value.dtype.kind not in "iub" else value[0]),
        attributes={"value": proto},
        outputs=(dtype,),
        source="exact",
    )


@cases("TopK")
def topk(rng, dtype, i):
    shape, axis, k = [
        ((5, 9), -1, 3),
        ((0, 9), -1, 2),
        ((4, 1, 65), -1, 65),
        ((33, 17), 0, 4),
        ((129,), 0, 0),
        ((7,), 0, 7),
        ((2, 300), 1, 8),
        ((3, 4, 5), 1, 2),
    ][i]
    x = draw(rng, dtype, shape, 0 if np.dtype(dtype).kind == "u" else -60, 60)

    def top(x, _):
        key = x.astype(np.float64) if is_float(dtype) else x.astype(object)
        order = np.argsort(key if i % 2 else -key, axis=axis, kind="stable").astype(np.int64)
        ids = np.take(order, np.arange(k), axis)
        return [np.take_along_axis(x, ids, axis), ids]

    return formula([x, numbers(k)], top, attributes={"axis": axis, "largest": 1 - i % 2}, outputs=(None, np.int64))


@cases("CumSum")
def cumsum(rng, dtype, i):
    axis, exclusive, reverse = int(rng.integers(0, len(SHAPES[i]))), i % 2, i // 2 % 2
    x = draw(rng, dtype, SHAPES[i])

    def sums(x, _):
        y = np.flip(x, axis) if reverse else x
        y = np.cumsum(y, axis, dtype=x.dtype) - (y if exclusive else 0)
        return (np.flip(y, axis) if reverse else y).astype(x.dtype)

    return formula([x, np.array(axis, np.int32)], sums, attributes={"exclusive": exclusive, "reverse": reverse})


@cases("TensorScatter", types=FLOATS | {"int8": np.dtype(np.int8), "int64": np.dtype(np.int64)})
def tensor_scatter(rng, dtype, i):
    capacity, rows, circular = int(rng.integers(5, 20)), [1, 0, 5, 3][i % 4], bool(i % 2)
    shape, axis = ((3, capacity, 6), 1) if i % 3 else ((3, 2, capacity, 6), -2)
    update = (3, rows, 6) if i % 3 else (3, 2, rows, 6)
    inputs = [draw(rng, dtype, shape), draw(rng, dtype, update)]
    if i != 4:
        inputs.append(rng.integers(0, 2 * capacity if circular else capacity - rows + 1, 3))
    attributes = {"axis": axis, "mode": "circular" if circular else "linear"}
    return formula(
        inputs,
        lambda cache, new, ids=None: reference.tensor_scatter(cache, new, ids, axis, circular),
        attributes=attributes,
        opset=24,
        source="reference",
    )


@cases("Select", domain="hotset", types=FLOATS | {"int64": np.dtype(np.int64), "bool": np.dtype(bool)}, count=4)
def select(rng, dtype, i):
    """The node that a session makes of If."""
    element = int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def branch(op, name):
        return helper.make_graph([helper.make_node(op, ["x1"], [name])], name, [], [helper.make_tensor_value_info(name, element, None)])

    node = helper.make_node("If", ["x0"], ["y0"], then_branch=branch("Identity", "a"), else_branch=branch("Transpose", "b"))
    inputs = [np.array(i % 2 == 0), draw(rng, dtype, [(3, 5), (2, 0), (4, 4), (1, 33)][i])]
    fed = [helper.make_tensor_value_info("x0", TensorProto.BOOL, []), helper.make_tensor_value_info("x1", element, ["n", "m"])]
    graph = helper.make_graph([node], "if", fed, [helper.make_tensor_value_info("y0", element, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    return formula(
        inputs, lambda c, x: x if i % 2 == 0 else x.T, outputs=(dtype,), source="exact", model=model, skip="k" if dtype == BF16 else ""
    )
