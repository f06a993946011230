# SPDX-License-Identifier: Apache-2.0
"""Python host: greedy generation through InferenceSession.run, written as for onnxruntime.

usage: generate_python.py MODEL.onnx HEAD_SIZE WINDOW N_TOKENS ID...    prints N_TOKENS token ids
"""

import sys

import ml_dtypes
import numpy as np

import hotset as ort  # the one line that differs

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(bfloat16)": ml_dtypes.bfloat16}


def main(path, head_size, window, n_new, *ids):
    head_size, window, n_new, ids = int(head_size), int(window), int(n_new), [int(i) for i in ids]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    feed = {}
    for arg in session.get_inputs():
        if arg.name.startswith("past_key_values."):  # growing caches begin empty, windowed ones have their size from the start
            length = window if "sliding" in str(arg.shape[2]) else 0
            feed[arg.name] = np.zeros((1, arg.shape[1], length, head_size), DTYPES[arg.type])

    new = ids
    for _ in range(n_new):
        feed["input_ids"] = np.array([new], np.int64)
        feed["attention_mask"] = np.ones((1, len(ids)), np.int64)
        results = dict(zip(names, session.run(None, feed), strict=True))
        new = [int(results["logits"][0, -1].argmax())]
        ids = ids + new
        print(new[0])
        for name, value in results.items():
            if name.startswith("present."):
                feed[name.replace("present.", "past_key_values.")] = value


main(*sys.argv[1:])
