# SPDX-License-Identifier: Apache-2.0
"""One MoE layer computed by the ggml libraries that llama-cpp-python installs, for comparison of speed."""

import ctypes
import importlib.util
import pathlib
import tempfile
import time

import numpy as np

F32, I32 = 0, 26  # type numbers of ggml.h
BLOCKS = {4: (2, 18), 8: (8, 34)}  # bits: type number of Q4_0, Q8_0, bytes of a block of 32
CPU_DEVICE = 0
SIGMOID_SCALE, LIMIT = 1.702, 7.0


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def find_ggml():
    """The folder of the libraries, or None."""
    spec = importlib.util.find_spec("llama_cpp")
    folder = pathlib.Path(spec.origin).parent / "lib" if spec else None
    return folder if folder and (folder / "libggml-cpu.so").exists() else None


class Libraries:
    """Functions of libggml*: all arguments and results are pointers or integers of 64 bits unless said otherwise."""

    def __init__(self, folder):
        names = ("libggml-base.so", "libggml-cpu.so", "libggml.so")
        self.libraries = [ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL) for name in names]

    def __getattr__(self, name):
        for library in self.libraries:
            if hasattr(library, name):
                function = getattr(library, name)
                break
        else:
            raise AttributeError(name)
        function.restype = ctypes.c_void_p

        def call(*arguments):
            kept = [ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments]
            return function(*kept)

        setattr(self, name, call)
        return call


class GgmlLayer:
    """Gate and value in one matrix [experts][2 * inter][hidden], down in [experts][hidden][inter]; Q4_0 or Q8_0 blocks of random codes.

    repacked: the library's own copy in the layout that its kernels like best; else the blocks of a mapped file.
    """

    def __init__(self, folder, hidden, inter, experts, k, bits, threads, repacked):
        self.c = Libraries(folder)
        self.hidden, self.inter, self.experts, self.k = hidden, inter, experts, k
        self.backend = self.c.ggml_backend_cpu_init()
        self.c.ggml_backend_cpu_set_n_threads(self.backend, threads)
        kind, block_bytes = BLOCKS[bits]
        context = self._context(16)
        dims = ((hidden, 2 * inter), (inter, hidden))
        self.weights = [self.c.ggml_new_tensor_3d(context, kind, *d, experts) for d in dims]
        sizes = [experts * a * b // 32 * block_bytes for a, b in dims]
        self.file = tempfile.TemporaryFile()
        self._write_blocks(sum(sizes), block_bytes)
        self.map = np.memmap(self.file, np.uint8, "r+")
        starts = [0, sizes[0]]
        if repacked:
            if not self.c.ggml_backend_alloc_ctx_tensors_from_buft(context, self._repack_type()):
                raise MemoryError("ggml gives no buffer for repacked weights")
            for tensor, start, size in zip(self.weights, starts, sizes, strict=True):
                self.c.ggml_backend_tensor_set(tensor, self.map.ctypes.data + start, 0, size)
        else:
            buffer = self.c.ggml_backend_cpu_buffer_from_ptr(self.map.ctypes.data, sum(sizes))
            for tensor, start in zip(self.weights, starts, strict=True):
                self.c.ggml_backend_tensor_alloc(buffer, tensor, self.map.ctypes.data + start)
        self.graphs = {}

    def _context(self, n_tensors):
        return self.c.ggml_init(InitParams(n_tensors * 1024 + (1 << 20), None, True))

    def _write_blocks(self, size, block_bytes):
        rng = np.random.default_rng(11)
        for begin in range(0, size, block_bytes << 20):
            blocks = np.frombuffer(rng.bytes(min(block_bytes << 20, size - begin)), np.uint8).reshape(-1, block_bytes).copy()
            blocks[:, :2] = np.frombuffer(np.float16(0.005).tobytes(), np.uint8)
            self.file.write(blocks.tobytes())
        self.file.flush()

    def _repack_type(self):
        device = self.c.ggml_backend_dev_by_type(CPU_DEVICE)
        registry = self.c.ggml_backend_dev_backend_reg(device)
        address = self.c.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        types = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device)
        return types[0]

    def _graph(self, rows):
        if rows in self.graphs:
            return self.graphs[rows]
        c, context = self.c, self._context(64 + 2 * self.k)
        x = c.ggml_new_tensor_3d(context, F32, self.hidden, 1, rows)
        ids = c.ggml_new_tensor_2d(context, I32, self.k, rows)
        shares = c.ggml_new_tensor_3d(context, F32, 1, self.k, rows)
        both = c.ggml_mul_mat_id(context, self.weights[0], x, ids)
        row, token = 8 * self.inter, 8 * self.inter * self.k
        gate, value = (c.ggml_view_3d(context, both, self.inter, self.k, rows, row, token, at) for at in (0, 4 * self.inter))
        h = c.ggml_swiglu_oai(context, gate, value, ctypes.c_float(SIGMOID_SCALE), ctypes.c_float(LIMIT))
        down = c.ggml_mul(context, c.ggml_mul_mat_id(context, self.weights[1], h, ids), shares)
        y = None
        for j in range(self.k):
            part = c.ggml_view_2d(context, down, self.hidden, rows, 4 * self.hidden * self.k, 4 * self.hidden * j)
            y = part if y is None else c.ggml_add(context, y, part)
        graph = c.ggml_new_graph(context)
        c.ggml_build_forward_expand(graph, y)
        c.ggml_backend_alloc_ctx_tensors(context, self.backend)
        self.graphs[rows] = graph, x, ids, shares, y
        return self.graphs[rows]

    def _feed(self, tensor, array):
        array = np.ascontiguousarray(array)
        self.c.ggml_backend_tensor_set(tensor, array.ctypes.data, 0, array.nbytes)

    def _seconds(self, x, ids, weights):
        graph, *inputs, _ = self._graph(len(x))
        for tensor, array in zip(inputs, (x, ids, weights), strict=True):
            self._feed(tensor, array)
        begin = time.perf_counter()
        self.c.ggml_backend_graph_compute(self.backend, graph)
        return time.perf_counter() - begin

    def run(self, x, ids, weights):
        """x [rows][hidden] float32, ids and weights [rows][k] -> y [rows][hidden]."""
        self._seconds(x, ids, weights)
        y = np.empty((len(x), self.hidden), np.float32)
        self.c.ggml_backend_tensor_get(self._graph(len(x))[-1], y.ctypes.data, 0, y.nbytes)
        return y

    def seconds(self, feeds, k):
        """Of the products and sums of all calls; the router's work is done before."""
        total = 0.0
        for f in feeds:
            ids = np.argsort(-f["router"], axis=1)[:, :k].astype(np.int32)
            total += self._seconds(f["x"], ids, np.take_along_axis(f["router"], ids.astype(np.int64), 1))
        return total
