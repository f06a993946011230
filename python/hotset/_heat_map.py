# SPDX-License-Identifier: Apache-2.0
"""The use of experts as a picture."""

import math

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError(f"a heat map needs matplotlib ({error}): pip install 'hotset[plots]'") from error


def shares(layers):
    """For each layer of expert_stats() the share of its routes that each expert got, times the number of experts: 1 is an even
    share. Rows are as long as the longest layer; NaN is no expert."""
    width = max(layer["experts"] for layer in layers)
    rows = []
    for layer in layers:
        scale = layer["experts"] / max(layer["routes_total"], 1)
        rows.append([n * scale for n in layer["routes"]] + [math.nan] * (width - layer["experts"]))
    return rows


def draw_heat_map(layers, path):
    """Writes a picture to `path`, in the format that its ending names: a row is a layer, its experts by falling use."""
    rows = [sorted(row, key=lambda share: -math.inf if math.isnan(share) else share, reverse=True) for row in shares(layers)]
    figure = Figure(figsize=(10, 2 + 0.16 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(rows, aspect="auto", interpolation="nearest", cmap="magma", vmin=0)
    axes.set_xlabel("experts of a layer, the busiest first")
    axes.set_ylabel("layer")
    figure.colorbar(image, ax=axes, label="routes, 1 = an even share")
    figure.savefig(path, dpi=150)
