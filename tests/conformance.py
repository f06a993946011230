#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes CONFORMANCE.md: every operator and element type against float64 and against onnxruntime."""

import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys
import zlib

import numpy as np
import onnx
from onnx import TensorProto, helper

import helpers
import hotset
from conformance_cases.registry import GENERATORS, REASONS, widen

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLE = ROOT / "CONFORMANCE.md"
ONNXRUNTIME_FACTOR = 2  # on the tolerance: both round
QUICK = 3  # cases an operator and type of the quick run
NO_CASE = {}  # (domain, operator) -> why it has none
ENTRY = re.compile(r'\{"([\w.]*)", "(\w+)", \d+, (?:kLatest|\d+),')


def library_operators():
    """(domain, operator) of all kernel tables."""
    return {match.groups() for path in (ROOT / "native/ops").glob("*.cpp") for match in ENTRY.finditer(path.read_text())}


@dataclasses.dataclass
class Row:
    op: str
    domain: str
    type: str
    cases: int = 0
    error: float = 0.0
    bound: float = 0.0  # the largest tolerance of its cases
    sources: set = dataclasses.field(default_factory=set)
    kernels: set = dataclasses.field(default_factory=set)
    compared: int = 0
    difference: float = 0.0
    skipped: dict = dataclasses.field(default_factory=dict)  # reason -> cases
    refused: list = dataclasses.field(default_factory=list)  # texts of hotset
    notes: list = dataclasses.field(default_factory=list)  # texts of onnxruntime
    failures: list = dataclasses.field(default_factory=list)


def build(case, generator, inputs=None, outputs=None):
    return case.model or helpers.node_model(
        generator.op,
        case.inputs if inputs is None else inputs,
        case.attributes,
        opset=case.opset,
        domain=generator.domain,
        constant=case.constant,
        output_types=case.outputs if outputs is None else outputs,
    )


def named(outputs, case):
    """Values of the named outputs in the places of all outputs."""
    values = iter(outputs)
    return [None if t == "" else next(values) for t in case.outputs]


def run_hotset(case, generator):
    """Outputs by position, kernels."""
    options = hotset.SessionOptions()
    options.intra_op_num_threads = 2
    with hotset.InferenceSession(build(case, generator), options) as session:
        kernels = {node["kernel"] for node in session.plan()["nodes"]}
        return named(session.run(None, helpers.feeds(case.inputs, case.constant)), case), kernels


def run_reference(case, generator):
    """Outputs of onnx.reference on the model with every float in float64."""
    from onnx.reference import ReferenceEvaluator

    inputs = [None if a is None else widen(a) for a in case.inputs]
    outputs = tuple(t if t in (None, "") else widen(np.zeros(0, t)).dtype for t in case.outputs)
    model = onnx.load_from_string(build(case, generator, inputs, outputs))
    with np.errstate(all="ignore"):
        return named(ReferenceEvaluator(model).run(None, helpers.feeds(inputs, case.constant)), case)


def widen_edges(model):
    """Types that NumPy lacks are cast from and to float32 or int32 inside the model; returns it and {input: NumPy type}."""
    model, fed = onnx.load_from_string(model), {}
    graph = model.graph
    for i, value in enumerate([*graph.input, *graph.output]):
        kind = value.type.tensor_type.elem_type
        numpy_type = helper.tensor_dtype_to_np_dtype(kind)
        if (
            numpy_type.kind in "iufb"
            and numpy_type.itemsize <= 8
            and not numpy_type.name.startswith(("float8", "float4", "bfloat", "int4", "uint4"))
        ):
            continue
        wide, name = (TensorProto.INT32 if "int4" in numpy_type.name else TensorProto.FLOAT), value.name
        value.name += "_wide"
        value.type.tensor_type.elem_type = wide
        if i < len(graph.input):
            graph.node.insert(0, helper.make_node("Cast", [value.name], [name], to=kind))
            fed[name] = helper.tensor_dtype_to_np_dtype(wide)
        else:
            graph.node.append(helper.make_node("Cast", [name], [value.name], to=wide))
    return model.SerializeToString(), fed


def run_onnxruntime(case, generator):
    """Outputs by position, or the code of the reason why there are none and a text."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    model, fed = widen_edges(build(case, generator))
    feeds = {
        name + "_wide" * (name in fed): a.astype(fed.get(name, a.dtype)) for name, a in helpers.feeds(case.inputs, case.constant).items()
    }
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return named(session.run(None, feeds), case)
    except Exception as error:  # its classes are many; the text tells
        text = str(error)
        code = (
            "k"
            if "NOT_IMPLEMENTED" in text
            or re.search(r"Type '[^']*' of input parameter .* is invalid|Type parameter|not a registered function", text)
            else "r"
        )
        return code, text


def largest_error(got, expected):
    """Largest difference relative to the largest magnitude; infinite when shape, type class or special values differ."""
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape:
        return np.inf
    dtype = got.dtype
    if dtype not in helpers.TOLERANCE:
        return 0.0 if np.array_equal(widen(got), widen(expected), equal_nan=got.dtype.kind not in "iub") else np.inf
    g, e = widen(got), np.asarray(expected).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = e.astype(dtype).astype(np.float64)
    e = np.where(np.isinf(rounded), rounded, e)
    finite = np.isfinite(e)
    if not np.array_equal(g[~finite], e[~finite], equal_nan=True) or not np.isfinite(g[finite]).all():
        return np.inf
    return float(np.abs(g[finite] - e[finite]).max(initial=0) / max(np.abs(e[finite]).max(initial=0), 1e-30))


def check_case(row, case, generator, with_onnxruntime):
    try:
        got, kernels = run_hotset(case, generator)
    except hotset.Unsupported as error:
        row.refused.append(str(error))
        return
    expected = list(case.oracle() if case.oracle else run_reference(case, generator))
    if len(expected) < len(case.outputs):
        expected = named(expected, case)
    dtypes = [helpers.TOLERANCE.get(g.dtype, 0.0) for g in got if g is not None]
    bound = max(dtypes) * case.factor
    row.cases += 1
    row.kernels |= kernels
    row.sources.add(case.source)
    row.bound = max(row.bound, bound)
    shapes = [None if a is None else np.shape(a) for a in case.inputs]
    for g, e in zip(case.view(got), case.view(expected), strict=True):
        if g is None:
            continue
        error = largest_error(g, e)
        row.error = max(row.error, error)
        if not error <= helpers.TOLERANCE.get(g.dtype, 0.0) * case.factor:
            row.failures.append(f"error {error:.2g}, shapes {shapes} {case.attributes}")
    if not with_onnxruntime:
        return
    theirs = (case.skip, "") if case.skip else run_onnxruntime(case, generator)
    if isinstance(theirs, tuple):
        row.skipped[theirs[0]] = row.skipped.get(theirs[0], 0) + 1
        row.notes.append(theirs[1])
        return
    row.compared += 1
    for g, t in zip(case.view(got), case.view(theirs), strict=True):
        if g is not None:
            t = np.asarray(t)
            difference = largest_error(g, widen(t) if g.dtype in helpers.TOLERANCE else t)
            row.difference = max(row.difference, difference)
            if not difference <= ONNXRUNTIME_FACTOR * helpers.TOLERANCE.get(g.dtype, 0.0) * case.factor:
                row.failures.append(f"differs from onnxruntime by {difference:.2g}, shapes {shapes} {case.attributes}")


def run_all(pattern="", quick=False, with_onnxruntime=True):
    rows = []
    for generator in GENERATORS:
        if pattern and not re.search(pattern, f"{generator.domain}.{generator.op}"):
            continue
        for label, value in generator.types.items():
            row = Row(generator.op, generator.domain, label)
            for i in range(min(generator.count, QUICK) if quick else generator.count):
                rng = np.random.default_rng(zlib.crc32(f"{generator.domain}.{generator.op} {label} {i}".encode()))
                try:
                    case = generator.make(rng, value, i)
                    if case is not None:
                        check_case(row, case, generator, with_onnxruntime)
                except Exception as error:
                    row.failures.append(f"case {i}: {type(error).__name__}: {error}")
            rows.append(row)
    return sorted(rows, key=lambda row: (row.op.lower(), row.domain, row.type))


def missing_operators():
    """Operators of the library without cases or reason, and cases of operators that it lacks."""
    covered = {(g.domain, g.op) for g in GENERATORS} | NO_CASE.keys()
    return sorted(library_operators() ^ covered)


def number(value):
    return "0" if value == 0 else f"{value:.1e}"


def write_table(rows):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    import onnxruntime

    lines = [
        "# Conformance",
        "",
        f"hotset {hotset.__version__}, commit {commit or 'unknown'}, CPU level {hotset.doctor()['cpu']['level']}, onnxruntime"
        f" {onnxruntime.__version__}, onnx {onnx.__version__}. Written by `python tests/conformance.py`; `--check` fails",
        "when an error exceeds its bound, and `tests/test_conformance.py` runs a part of it. Types with equal figures share a line.",
        "",
        "Inputs are seeded random numbers, rounded to the type first, in several shapes: odd and zero sizes, broadcasts, every form of",
        "the operator. **error**: largest difference to the oracle, which computes in float64, relative to the largest magnitude of the",
        "result; integers and booleans must be equal. **bound**: what the test allows. **oracle**: `onnx` is `onnx.reference`, `reference`",
        "`tests/reference`, `formula` a NumPy formula in `tests/conformance_cases`, `exact` a copy or conversion. **onnxruntime**: the",
        "largest difference to its CPU kernels, measured the same way; twice the bound is allowed. **not compared**: cases by reason:",
        "",
        *(f"- `{code}`: {text}" for code, text in REASONS.items()),
        "",
        "| operator | domain | type | cases | error | bound | oracle | onnxruntime | not compared | kernel |",
        "|---|---|---|--:|--:|--:|---|--:|---|---|",
    ]
    refused, shared = {}, {}
    for row in rows:
        name = f"{row.domain or 'ai.onnx'}.{row.op}"
        if row.refused:
            some = f" (in {len(row.refused)} of {len(row.refused) + row.cases} cases)" if row.cases else ""
            refused.setdefault(name, []).append(row.type + some)
        if not row.cases:
            continue
        difference = number(row.difference) if row.compared else "-"
        skipped = ", ".join(f"{n} {code}" for code, n in sorted(row.skipped.items()))
        figures = [row.cases, number(row.error), number(row.bound), ", ".join(sorted(row.sources)), difference, skipped]
        shared.setdefault((row.op, row.domain or "ai.onnx", *figures, ", ".join(sorted(row.kernels))), []).append(row.type)
    for (op, domain, *figures), types in shared.items():
        lines.append(f"| {op} | {domain} | {'; '.join(types)} | {' | '.join(map(str, figures))} |")
    lines += ["", "## Types of the standard that hotset refuses", ""]
    lines += [f"- {name}: {', '.join(types)}" for name, types in sorted(refused.items())]
    lines += [f"- {op} ({domain}): no case, {why}" for (domain, op), why in sorted(NO_CASE.items())]
    TABLE.write_text("\n".join(lines) + "\n")


def table_operators():
    """(domain, operator) of the committed table."""
    rows = (line.split("|") for line in TABLE.read_text().splitlines() if line.startswith("| "))
    listed = {(cells[2].strip().replace("ai.onnx", ""), cells[1].strip()) for cells in rows}
    return (listed - {("domain", "operator")}) | NO_CASE.keys()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when an error exceeds its bound")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} cases an operator and type")
    parser.add_argument("--only", default="", metavar="REGEX", help="operators to run, as domain.operator; writes nothing")
    parser.add_argument("--verbose", action="store_true", help="print every row")
    arguments = parser.parse_args()
    if missing := missing_operators():
        print("no case and no reason, or no such operator:", ", ".join(f"{d or 'ai.onnx'}.{o}" for d, o in missing), file=sys.stderr)
        return 1
    rows = run_all(arguments.only, arguments.quick)
    for row in rows:
        if arguments.verbose:
            print(
                row.domain,
                row.op,
                row.type,
                row.cases,
                number(row.error),
                number(row.difference),
                row.compared,
                row.skipped,
                row.refused[:1],
                row.notes[:1],
            )
        for failure in row.failures:
            print(f"{row.domain or 'ai.onnx'}.{row.op}, {row.type}: {failure}", file=sys.stderr)
    if any(row.failures for row in rows):
        return 1
    if not (arguments.check or arguments.only or arguments.quick):
        write_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
