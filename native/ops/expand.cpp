// SPDX-License-Identifier: Apache-2.0
// Expand and Tile: repeated data.
#include "ops/axes.h"
#include "ops/broadcast.h"

namespace hotset::ops {
namespace {

// n copies of one element of `bytes` bytes.
void fill(char* to, const char* element, int64_t bytes, int64_t n) {
  const auto as = [&](auto tag) {
    using T = decltype(tag);
    const T v = load_at<T>(element, 0);
    for (int64_t i = 0; i < n; ++i) store_at<T>(to, i, v);
  };
  switch (bytes) {
    case 1: return as(uint8_t{});
    case 2: return as(uint16_t{});
    case 4: return as(uint32_t{});
    case 8: return as(uint64_t{});
    default:
      for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * bytes, element, static_cast<size_t>(bytes));
  }
}

class Expand final : public Kernel {
 public:
  uint32_t shape_inputs() const override { return 2; }
  Status infer(InferContext& c) const override {
    const Tensor* target = c.known(1);
    if (!target) return c.defer(1);
    IntList list;
    HOTSET_TRY(read_list(*target, "shape", &list));
    HOTSET_FAIL_IF(list.n > kMaxRank, unsupported, "target of rank %d, at most %d", list.n, kMaxRank);
    HOTSET_FAIL_IF(element_bytes(c.dtype(0)) == 0, unsupported, "input of type %s", dtype_name(c.dtype(0)));
    Shape out = c.shape(0), wanted;
    wanted.rank = list.n;
    for (int i = 0; i < list.n; ++i) {
      HOTSET_FAIL_IF(list[i] < 0, invalid_argument, "target dimension %d is %lld", i, static_cast<long long>(list[i]));
      wanted[i] = list[i];
    }
    HOTSET_TRY(broadcast_shape(wanted, &out));
    c.set_output(0, c.dtype(0), out);
    if (out.size() == c.shape(0).size()) c.alias(0, 0);
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    Tensor& out = *c.outputs[0];
    if (out.size() == 0 || out.size() == in.size()) return {};
    const Broadcast<1> layout(out.shape, {&in.shape});
    const int64_t bytes = element_bytes(in.dtype), run = layout.run();
    const bool one = layout.stride[layout.rank - 1][0] == 0;
    over_range(c.pool, layout.n_runs(), std::max<int64_t>(1, kParallel / run), [&](int64_t begin, int64_t end) {
      layout.walk(begin, end, [&](const int64_t* at, int64_t r) {
        char* to = out.as<char>() + r * run * bytes;
        if (one) fill(to, in.as<char>() + at[0] * bytes, bytes, run);
        else std::memcpy(to, in.as<char>() + at[0] * bytes, static_cast<size_t>(run * bytes));
      });
    });
    return {};
  }
};

class Tile final : public Kernel {
 public:
  uint32_t shape_inputs() const override { return 2; }
  Status infer(InferContext& c) const override {
    const Tensor* repeats = c.known(1);
    if (!repeats) return c.defer(1);
    IntList list;
    HOTSET_TRY(read_list(*repeats, "repeats", &list));
    const Shape& in = c.shape(0);
    HOTSET_FAIL_IF(list.n != in.rank, invalid_argument, "%d repeats for shape %s", list.n, to_text(in).c_str());
    HOTSET_FAIL_IF(element_bytes(c.dtype(0)) == 0, unsupported, "input of type %s", dtype_name(c.dtype(0)));
    Shape out = in;
    bool same = true;
    for (int i = 0; i < in.rank; ++i) {
      HOTSET_FAIL_IF(list[i] < 0 || __builtin_mul_overflow(in[i], list[i], &out[i]), invalid_argument, "repeat %d is %lld", i, static_cast<long long>(list[i]));
      same &= list[i] == 1;
    }
    c.set_output(0, c.dtype(0), out);
    if (same) c.alias(0, 0);
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    Tensor& out = *c.outputs[0];
    if (out.size() == 0 || out.shape == in.shape) return {};
    char* to = out.as<char>();
    const char* from = in.as<char>();
    write(in.shape, out.shape, 0, element_bytes(in.dtype), &from, &to);
    return {};
  }

 private:
  // Writes the block of dimensions [i, rank) from *from to *to, repeats it, and moves both on.
  static void write(const Shape& in, const Shape& out, int i, int64_t bytes, const char** from, char** to) {
    char* const begin = *to;
    if (i >= in.rank - 1) {
      const int64_t n = (in.rank ? in[-1] : 1) * bytes;
      std::memcpy(*to, *from, static_cast<size_t>(n));
      *from += n;
      *to += n;
    } else {
      for (int64_t d = 0; d < in[i]; ++d) write(in, out, i + 1, bytes, from, to);
    }
    const int64_t block = *to - begin, repeats = in.rank ? out[i] / in[i] : 1;
    for (int64_t r = 1; r < repeats; ++r) {
      std::memcpy(*to, begin, static_cast<size_t>(block));
      *to += block;
    }
  }
};

}  // namespace

HOTSET_OPS(expand,
           {"", "Expand", 8, kLatest, [](const OpContext&) { return make_kernel<Expand>(); }, {2, 2}},
           {"", "Tile", 6, kLatest, [](const OpContext&) { return make_kernel<Tile>(); }, {2, 2}});

}  // namespace hotset::ops
