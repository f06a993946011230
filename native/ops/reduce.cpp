// SPDX-License-Identifier: Apache-2.0
// Reductions over axes given as an attribute or as an input.
#include <cmath>
#include <limits>

#include "ops/axes.h"

namespace hotset::ops {
namespace {

// Floats are accumulated in double, integers in 64 bits that wrap around.
template <class T>
using Accumulator = std::conditional_t<std::is_integral_v<T>, std::conditional_t<std::is_unsigned_v<T>, uint64_t, int64_t>, double>;

template <class A>
A wrapped_add(A a, A b) {
  if constexpr (std::is_integral_v<A>) return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else return a + b;
}
template <class A>
A wrapped_mul(A a, A b) {
  if constexpr (std::is_integral_v<A>) return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else return a * b;
}

struct SumRule {
  template <class A> static A first() { return 0; }
  template <class A> static A join(A acc, A x) { return wrapped_add(acc, x); }
  template <class A> static A finish(A acc, int64_t) { return acc; }
};
struct MeanRule : SumRule {
  template <class A> static A finish(A acc, int64_t n) {
    if constexpr (std::is_integral_v<A>) return n ? acc / static_cast<A>(n) : 0;
    else return acc / static_cast<double>(n);
  }
};
struct ProdRule : SumRule {
  template <class A> static A first() { return 1; }
  template <class A> static A join(A acc, A x) { return wrapped_mul(acc, x); }
};
struct SumSquareRule : SumRule {
  template <class A> static A join(A acc, A x) { return wrapped_add(acc, wrapped_mul(x, x)); }
};
struct L1Rule : SumRule {
  template <class A> static A join(A acc, A x) { return wrapped_add(acc, x < 0 ? wrapped_mul(x, static_cast<A>(-1)) : x); }
};
struct L2Rule : SumSquareRule {
  template <class A> static A finish(A acc, int64_t) { return from_double<A>(std::sqrt(static_cast<double>(acc))); }
};
struct LogSumRule : SumRule {
  template <class A> static A finish(A acc, int64_t) { return from_double<A>(std::log(static_cast<double>(acc))); }
};
struct MaxRule : SumRule {
  template <class A> static A first() { return std::is_integral_v<A> ? std::numeric_limits<A>::lowest() : static_cast<A>(-std::numeric_limits<double>::infinity()); }
  template <class A> static A join(A acc, A x) { return acc > x || acc != acc ? acc : x; }
};
struct MinRule : SumRule {
  template <class A> static A first() { return std::is_integral_v<A> ? std::numeric_limits<A>::max() : static_cast<A>(std::numeric_limits<double>::infinity()); }
  template <class A> static A join(A acc, A x) { return acc < x || acc != acc ? acc : x; }
};

// Two accumulators into one: squares and absolute values are formed only when an element joins.
template <class Rule, class A>
A merge(A a, A b) {
  if constexpr (std::is_base_of_v<ProdRule, Rule> || std::is_same_v<Rule, MaxRule> || std::is_same_v<Rule, MinRule>) return Rule::template join<A>(a, b);
  else return wrapped_add(a, b);
}

// Kept and reduced dimensions, neighbours of one kind merged, sizes of 1 left out.
struct Split {
  int64_t kept_dim[kMaxRank], kept_stride[kMaxRank], dim[kMaxRank], stride[kMaxRank];
  int n_kept = 0, n = 0;
  int64_t kept_size = 1, size = 1;
  Split(const Shape& in, uint32_t axes) {
    int64_t step = 1;
    int previous = -1;
    for (int i = in.rank - 1; i >= 0; --i) {
      const int reduced = axes >> i & 1;
      if (in[i] != 1) {
        int64_t* d = reduced ? dim : kept_dim;
        int64_t* s = reduced ? stride : kept_stride;
        int& count = reduced ? n : n_kept;
        if (previous == reduced) {
          d[count - 1] *= in[i];
        } else {
          d[count] = in[i];
          s[count++] = step;
        }
        previous = reduced;
      }
      (reduced ? size : kept_size) *= in[i];
      step *= in[i];
    }
  }
};

// Results begin..end when the innermost dimension is kept: up to kBlock neighbours at a time, so that memory is read in runs.
template <class Rule, class T>
void reduce_columns(const void* in, void* out, const Split& split, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  constexpr int64_t kBlock = 32;
  const int64_t row = split.kept_dim[0];
  for (int64_t o = begin; o < end;) {
    const int n = static_cast<int>(std::min({kBlock, end - o, row - o % row}));
    int64_t base = o % row, rest = o / row;
    for (int i = 1; i < split.n_kept; ++i) {
      base += rest % split.kept_dim[i] * split.kept_stride[i];
      rest /= split.kept_dim[i];
    }
    A acc[kBlock];
    std::fill(acc, acc + n, Rule::template first<A>());
    int64_t index[kMaxRank] = {};
    for (int64_t left = split.size; left > 0; --left) {
      for (int j = 0; j < n; ++j) acc[j] = Rule::template join<A>(acc[j], static_cast<A>(static_cast<Wide<T>>(load_at<T>(in, base + j))));
      for (int i = 0; i < split.n; ++i) {
        base += split.stride[i];
        if (++index[i] < split.dim[i]) break;
        index[i] = 0;
        base -= split.stride[i] * split.dim[i];
      }
    }
    for (int j = 0; j < n; ++j) store_at<T>(out, o + j, static_cast<T>(static_cast<Wide<T>>(Rule::template finish<A>(acc[j], split.size))));
    o += n;
  }
}

template <class Rule, class T>
void reduce(const void* in, void* out, const Split& split, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  if (split.n_kept && split.kept_stride[0] == 1) return reduce_columns<Rule, T>(in, out, split, begin, end);
  const auto value = [in](int64_t i) { return static_cast<A>(static_cast<Wide<T>>(load_at<T>(in, i))); };
  const auto put = [&](int64_t i, A acc) { store_at<T>(out, i, static_cast<T>(static_cast<Wide<T>>(Rule::template finish<A>(acc, split.size)))); };
  const int64_t run = split.n ? split.dim[0] : 1, run_stride = split.n ? split.stride[0] : 0;
  for (int64_t o = begin; o < end; ++o) {
    int64_t base = 0, rest = o;
    for (int i = 0; i < split.n_kept; ++i) {  // innermost first
      base += rest % split.kept_dim[i] * split.kept_stride[i];
      rest /= split.kept_dim[i];
    }
    A acc = Rule::template first<A>();
    int64_t index[kMaxRank] = {};
    for (int64_t left = split.size; left > 0; left -= run) {
      if (run_stride == 1 && run >= 8) {  // four chains hide the latency of the addition
        A part[4] = {acc, Rule::template first<A>(), Rule::template first<A>(), Rule::template first<A>()};
        int64_t i = 0;
        for (; i + 4 <= run; i += 4)
          for (int j = 0; j < 4; ++j) part[j] = Rule::template join<A>(part[j], value(base + i + j));
        for (; i < run; ++i) part[0] = Rule::template join<A>(part[0], value(base + i));
        acc = merge<Rule>(merge<Rule>(part[0], part[1]), merge<Rule>(part[2], part[3]));
      } else {
        for (int64_t i = 0; i < run; ++i) acc = Rule::template join<A>(acc, value(base + i * run_stride));
      }
      for (int i = 1; i < split.n; ++i) {
        base += split.stride[i];
        if (++index[i] < split.dim[i]) break;
        index[i] = 0;
        base -= split.stride[i] * split.dim[i];
      }
    }
    put(o, acc);
  }
}

using ReduceLoop = void (*)(const void* in, void* out, const Split& split, int64_t begin, int64_t end);

template <class Rule>
ReduceLoop find_loop(DType type) {
  ReduceLoop loop = nullptr;
  visit_number(type, [&](auto tag) { loop = reduce<Rule, decltype(tag)>; });
  if constexpr (std::is_same_v<Rule, MaxRule> || std::is_same_v<Rule, MinRule>)
    if (type == DType::boolean) loop = reduce<Rule, uint8_t>;
  return loop;
}

class ReduceKernel final : public Kernel {
 public:
  ReduceKernel(ReduceLoop (*find)(DType), const OpContext& c)
      : find_(find), axes_(c, 1), keep_(c.node().get_int("keepdims", 1) != 0), noop_(c.node().get_int("noop_with_empty_axes", 0) != 0) {}
  uint32_t shape_inputs() const override { return axes_.shape_inputs(); }

  Status infer(InferContext& c) const override {
    HOTSET_FAIL_IF(!find_(c.dtype(0)), unsupported, "not defined for type %s", dtype_name(c.dtype(0)));
    IntList list;
    bool deferred;
    HOTSET_TRY(axes_.read(c, &list, &deferred));
    if (deferred) return {};
    const Shape& in = c.shape(0);
    uint32_t axes = 0;
    HOTSET_TRY(resolve(list, in.rank, &axes));
    Shape out;
    for (int i = 0; i < in.rank; ++i) {
      if (!(axes >> i & 1)) out.dim[out.rank++] = in[i];
      else if (keep_) out.dim[out.rank++] = 1;
    }
    c.set_output(0, c.dtype(0), out);
    return {};
  }

  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    IntList list;
    uint32_t axes = 0;
    HOTSET_TRY(axes_.read(c, &list));
    HOTSET_TRY(resolve(list, in.shape.rank, &axes));
    const ReduceLoop loop = find_(in.dtype);
    const Split split(in.shape, axes);
    void* const out = c.outputs[0]->data;
    over_range(in.size() < kParallel ? nullptr : c.pool, split.kept_size, std::max<int64_t>(1, kParallel / 2 / std::max<int64_t>(1, split.size)),
               [&](int64_t begin, int64_t end) { loop(in.data, out, split, begin, end); });
    return {};
  }

 private:
  Status resolve(const IntList& list, int rank, uint32_t* axes) const {
    HOTSET_TRY(axis_set(list, rank, axes));
    if (list.n == 0 && !noop_) *axes = (1u << rank) - 1;
    return {};
  }
  ReduceLoop (*const find_)(DType);
  const AxesArgument axes_;
  const bool keep_, noop_;
};

template <class Rule>
Result<std::unique_ptr<Kernel>> make_reduce(const OpContext& c) {
  return make_kernel<ReduceKernel>(find_loop<Rule>, c);
}

}  // namespace

HOTSET_OPS(reduce,
           {"", "ReduceSum", 1, kLatest, make_reduce<SumRule>, {1, 2}},
           {"", "ReduceMean", 1, kLatest, make_reduce<MeanRule>, {1, 2}},
           {"", "ReduceProd", 1, kLatest, make_reduce<ProdRule>, {1, 2}},
           {"", "ReduceMax", 1, kLatest, make_reduce<MaxRule>, {1, 2}},
           {"", "ReduceMin", 1, kLatest, make_reduce<MinRule>, {1, 2}},
           {"", "ReduceSumSquare", 1, kLatest, make_reduce<SumSquareRule>, {1, 2}},
           {"", "ReduceL1", 1, kLatest, make_reduce<L1Rule>, {1, 2}},
           {"", "ReduceL2", 1, kLatest, make_reduce<L2Rule>, {1, 2}},
           {"", "ReduceLogSum", 1, kLatest, make_reduce<LogSumRule>, {1, 2}});

}  // namespace hotset::ops
