# SPDX-License-Identifier: Apache-2.0
"""Runs of one com.microsoft node whose weights are constants and whose other inputs are fed."""

import ml_dtypes
import numpy as np

import helpers
import hotset

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def _model_arguments(inputs, fed, output_dtype=None):
    return {"domain": "com.microsoft", "constant": [i for i in range(len(inputs)) if i not in fed], "output_types": (output_dtype,)}


def run_node(op, inputs, attributes, fed=(0, 1), output_dtype=None, threads=2, activation=None):
    """fed: positions of the graph inputs. activation: hotset.cpu_activation."""
    options = hotset.SessionOptions()
    options.intra_op_num_threads = threads
    if activation:
        options.add_session_config_entry("hotset.cpu_activation", activation)
    arguments = _model_arguments(inputs, fed, output_dtype)
    with hotset.InferenceSession(helpers.node_model(op, inputs, attributes, **arguments), options) as session:
        return session.run(None, helpers.feeds(inputs, arguments["constant"]))[0]


def run_onnxruntime(op, inputs, attributes, fed=(0, 1), output_dtype=None):
    return helpers.run_onnxruntime(op, inputs, attributes, **_model_arguments(inputs, fed, output_dtype))[0]


def relative_error(got, expected):
    """L2 norm of the difference over that of the expected values."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-30)
