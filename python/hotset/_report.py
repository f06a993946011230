# SPDX-License-Identifier: Apache-2.0
"""Reports of the library as text for a terminal."""

from .cache_report import cache_rows


def print_info(report):
    metadata = report["metadata"]
    print(report["model"])
    print(f"producer  {metadata['producer_name'] or '-'}")
    print(f"opsets    {', '.join(f'{domain} {version}' for domain, version in metadata['opsets'].items())}")
    for title in ("inputs", "outputs"):
        rows = [
            (arg["name"], arg["type"], "[" + ", ".join("?" if n is None else str(n) for n in arg["shape"] or ()) + "]")
            for arg in report[title]
        ]
        print_table(title, rows)
    operators = sorted(report["operators"].items(), key=lambda item: (-item[1], item[0]))
    print_table("operators", [(str(count), name) for name, count in operators], right=(0,))
    if report["missing_operators"]:
        print_table("operators without a kernel", [(name,) for name in report["missing_operators"]])
    print_fallbacks(report["nodes"])
    if report["experts"]:
        rows = [("node", "operator", "experts", "per token", "size", "size of one")]
        for row in report["experts"]:
            sizes = size_text(row["bytes"]), size_text(row["bytes_per_expert"])
            rows.append((row["node"], row["op"], str(row["experts"]), str(row["experts_per_token"]), *sizes))
        print_table("experts", rows, right=(2, 3, 4, 5))
    if report["unfused_experts"]:
        rows = [("router", "computed", "experts", "per token", "size", "size of one")]
        forms = {"masked": "all of them for every token", "gathered": "from copies of their weights for every token"}
        for row in report["unfused_experts"]:
            sizes = size_text(row["bytes"]), size_text(row["bytes_per_expert"])
            rows.append((row["router"], forms[row["form"]], str(row["experts"]), str(row["experts_per_token"] or "?"), *sizes))
        print_table("experts in ordinary operators (no MoE nodes)", rows, right=(2, 3, 4, 5))
    if report["caches"]["states"]:
        print_table("caches of one sequence", cache_rows(report["caches"], size_text), right=(1, 2, 3, 4))
    print_memory(report)
    print_table("files", [(row["path"], size_text(row["bytes"])) for row in report["files"]], right=(1,))


def print_fallbacks(nodes):
    """Of a session on a GPU: what it runs, and the nodes that stay on the CPU, with the reason."""
    devices = sorted({node["device"] for node in nodes} - {"cpu"})
    if not devices:
        return
    rows = [(node["name"], node["op"], node["reason"]) for node in nodes if node.get("fallback")]
    count = sum(node["device"] != "cpu" for node in nodes)
    copies = sum(node["kernel"] == "copy" for node in nodes)
    print(f"\n{devices[0]} runs {count} of {len(nodes) - copies} nodes, with {copies} copies between it and the host")
    if rows:
        print_table("nodes that run on the CPU", [("node", "operator", "because"), *rows])


def print_memory(report):
    """Bytes by purpose; what depends on the sizes of a run has no bound before it."""
    rows = [("purpose", "where", "size", "at most")]
    for row in report["memory"]:
        bound = "by the run" if row["bound"] is None else size_text(row["bound"])
        rows.append((row["purpose"], row["where"], size_text(row["bytes"]), bound))
    print_table("memory", rows, right=(2, 3))
    store = report["expert_store"]
    if store["total_bytes"]:
        print(f"\nexperts: {size_text(store['total_bytes'])} in files, at most {size_text(store['bound_bytes'])} of host memory;", end=" ")
        print(f"{store['reason']}. The least host_expert_bytes: {store['minimum_bytes']}")


def print_expert_stats(layers, file):
    """Routes per layer: how many, how many experts took part, the share of the busiest quarter, and the busiest ones."""
    rows = [("node", "routes", "experts used", "busiest quarter", "busiest experts")]
    for layer in layers:
        order = sorted(range(layer["experts"]), key=lambda e: -layer["routes"][e])
        routes = [layer["routes"][e] for e in order]
        share = sum(routes[: max(len(routes) // 4, 1)]) / max(layer["routes_total"], 1)
        used = sum(1 for count in routes if count)
        busiest = " ".join(f"{e}:{layer['routes'][e]}" for e in order[:6] if layer["routes"][e])
        rows.append((layer["node"], str(layer["routes_total"]), f"{used} of {layer['experts']}", f"{share:.0%}", busiest))
    print_table("routes to experts", rows, right=(1, 2, 3), file=file)
    skipped, substituted = (sum(layer[what] for layer in layers) for what in ("skipped", "substituted"))
    if skipped or substituted:
        print(f"\napproximate: {skipped} routes were dropped, {substituted} replaced", file=file)


def print_table(title, rows, right=(), file=None):
    print(f"\n{title}", file=file)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        print("  " + "  ".join(cells).rstrip(), file=file)


def size_text(n_bytes):
    if n_bytes < 1024:
        return f"{n_bytes} B"
    power = min((n_bytes.bit_length() - 1) // 10, 4)
    return f"{n_bytes / 1024**power:.1f} {'KMGT'[power - 1]}iB"


def print_value(value, indent=0):
    """JSON values as indented lines."""
    pad = "  " * indent
    if isinstance(value, dict):
        width = max((len(str(key)) for key, inner in value.items() if not isinstance(inner, (dict, list))), default=0)
        for key, inner in value.items():
            if isinstance(inner, dict) or (isinstance(inner, list) and any(isinstance(item, (dict, list)) for item in inner)):
                print(f"{pad}{key}")
                print_value(inner, indent + 1)
            else:
                shown = ", ".join(map(str, inner)) if isinstance(inner, list) else inner
                print(f"{pad}{str(key):<{width}}  {shown if shown != '' else '-'}")
    elif isinstance(value, list):
        for item in value:
            print_value(item, indent)
    else:
        print(f"{pad}{value}")
