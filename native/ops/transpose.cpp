// SPDX-License-Identifier: Apache-2.0
// Transpose: a view when only dimensions of size 1 move, otherwise copies of runs or of small tiles.
#include "ops/elements.h"

namespace hotset::ops {
namespace {

// The permutation without dimensions of size 1 and with neighbours merged that stay neighbours, in output order.
struct Moves {
  int rank = 0;
  int64_t dim[kMaxRank];     // of the output
  int64_t stride[kMaxRank];  // of the input, in elements
  Moves(const Shape& in, const int* perm) {
    int64_t dense[kMaxRank], step = 1;
    for (int i = in.rank - 1; i >= 0; --i) {
      dense[i] = step;
      step *= in[i];
    }
    for (int i = 0; i < in.rank; ++i) {
      const int64_t size = in[perm[i]], s = dense[perm[i]];
      if (size == 1) continue;
      if (rank > 0 && stride[rank - 1] == s * size) {
        dim[rank - 1] *= size;
        stride[rank - 1] = s;
      } else {
        dim[rank] = size;
        stride[rank++] = s;
      }
    }
  }
  bool identity() const { return rank <= 1; }
};

// out[j * out_step + i] = in[i * in_step + j] for i < n, j < m, in tiles that fit a few cache lines.
template <class T>
void swap_tile(const char* in, int64_t in_step, char* out, int64_t out_step, int64_t n, int64_t m) {
  constexpr int64_t kTile = 16;
  for (int64_t i0 = 0; i0 < n; i0 += kTile)
    for (int64_t j0 = 0; j0 < m; j0 += kTile)
      for (int64_t j = j0, j1 = std::min(m, j0 + kTile); j < j1; ++j)
        for (int64_t i = i0, i1 = std::min(n, i0 + kTile); i < i1; ++i) store_at<T>(out, j * out_step + i, load_at<T>(in, i * in_step + j));
}

class Transpose final : public Kernel {
 public:
  explicit Transpose(const std::vector<int64_t>* perm) : perm_(perm) {}

  Status infer(InferContext& c) const override {
    const Shape& in = c.shape(0);
    int perm[kMaxRank];
    HOTSET_TRY(permutation(in.rank, perm));
    Shape out;
    out.rank = in.rank;
    for (int i = 0; i < in.rank; ++i) out[i] = in[perm[i]];
    c.set_output(0, c.dtype(0), out);
    if (in.size() == 0 || Moves(in, perm).identity()) c.alias(0, 0);
    else HOTSET_FAIL_IF(element_bytes(c.dtype(0)) == 0, unsupported, "data of type %s", dtype_name(c.dtype(0)));
    return {};
  }

  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    int perm[kMaxRank];
    HOTSET_TRY(permutation(in.shape.rank, perm));
    const Moves moves(in.shape, perm);
    if (in.size() == 0 || moves.identity()) return {};
    const char* from = in.as<char>();
    char* to = c.outputs[0]->as<char>();
    const int64_t bytes = element_bytes(in.dtype), n = in.size();
    ThreadPool* pool = n * bytes < (1 << 18) ? nullptr : c.pool;

    int64_t out_stride[kMaxRank], step = 1;
    for (int i = moves.rank - 1; i >= 0; --i) {
      out_stride[i] = step;
      step *= moves.dim[i];
    }
    // The last dimension stays: runs. Otherwise the dimension that is contiguous in the input and the last one of the
    // output form tiles. The others are an odometer.
    const int last = moves.rank - 1;
    int contiguous = last;
    for (int i = 0; i < moves.rank; ++i)
      if (moves.stride[i] == 1) contiguous = i;
    int64_t outer = n / moves.dim[last];
    if (contiguous != last) outer /= moves.dim[contiguous];
    const auto part = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        int64_t rest = r, source = 0, target = 0;
        for (int i = last - 1; i >= 0; --i) {
          if (i == contiguous) continue;
          const int64_t at = rest % moves.dim[i];
          rest /= moves.dim[i];
          source += at * moves.stride[i];
          target += at * out_stride[i];
        }
        const char* p = from + source * bytes;
        char* q = to + target * bytes;
        if (contiguous == last) std::memcpy(q, p, static_cast<size_t>(moves.dim[last] * bytes));
        else swap(bytes, p, moves.stride[last], q, out_stride[contiguous], moves.dim[last], moves.dim[contiguous]);
      }
    };
    if (outer == 1 && pool) {  // one large matrix: split its columns
      over_range(pool, moves.dim[contiguous], std::max<int64_t>(16, (1 << 16) / moves.dim[last]), [&](int64_t begin, int64_t end) {
        swap(bytes, from + begin * bytes, moves.stride[last], to + begin * out_stride[contiguous] * bytes, out_stride[contiguous], moves.dim[last], end - begin);
      });
    } else {
      over_range(pool, outer, std::max<int64_t>(1, outer * (1 << 16) / n), part);
    }
    return {};
  }

 private:
  static void swap(int64_t bytes, const char* in, int64_t in_step, char* out, int64_t out_step, int64_t n, int64_t m) {
    switch (bytes) {
      case 1: return swap_tile<uint8_t>(in, in_step, out, out_step, n, m);
      case 2: return swap_tile<uint16_t>(in, in_step, out, out_step, n, m);
      case 4: return swap_tile<uint32_t>(in, in_step, out, out_step, n, m);
      default: return swap_tile<uint64_t>(in, in_step, out, out_step, n, m);
    }
  }

  Status permutation(int rank, int* perm) const {
    for (int i = 0; i < rank; ++i) perm[i] = rank - 1 - i;
    if (!perm_) return {};
    HOTSET_FAIL_IF(static_cast<int>(perm_->size()) != rank, invalid_argument, "perm has %zu entries for rank %d", perm_->size(), rank);
    uint32_t seen = 0;
    for (int i = 0; i < rank; ++i) {
      HOTSET_FAIL_IF(!normalize_axis((*perm_)[static_cast<size_t>(i)], rank, &perm[i]) || seen >> perm[i] & 1, invalid_argument,
                     "perm is not a permutation: entry %d is %lld", i, static_cast<long long>((*perm_)[static_cast<size_t>(i)]));
      seen |= 1u << perm[i];
    }
    return {};
  }

  const std::vector<int64_t>* perm_;
};

}  // namespace

HOTSET_OPS(transpose, {"", "Transpose", 1, kLatest, [](const OpContext& c) { return make_kernel<Transpose>(c.node().get_ints("perm")); }, {1, 1}});

}  // namespace hotset::ops
