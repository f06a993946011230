// SPDX-License-Identifier: Apache-2.0
// Slice: starts, ends, axes and steps as inputs, or as attributes in old files.
#include "ops/axes.h"

namespace hotset::ops {
namespace {

// What remains of each dimension.
struct Cut {
  int64_t start[kMaxRank], step[kMaxRank];
  Shape out;
};

class Slice final : public Kernel {
 public:
  explicit Slice(const OpContext& c)
      : attributes_{c.node().get_ints("starts"), c.node().get_ints("ends"), c.node().get_ints("axes"), nullptr} {}
  uint32_t shape_inputs() const override { return attributes_[0] ? 0 : 0b11110; }

  Status infer(InferContext& c) const override {
    IntList lists[4];
    for (int i = 0; i < 4; ++i) {
      if (attributes_[0]) {
        HOTSET_TRY(from_attribute(i, &lists[i]));
      } else if (c.has_input(i + 1)) {
        const Tensor* t = c.known(i + 1);
        if (!t) return c.defer(i + 1);
        HOTSET_TRY(read_list(*t, kNames[i], &lists[i]));
      }
    }
    const Shape& in = c.shape(0);
    Cut cut;
    HOTSET_TRY(resolve(lists, in, &cut));
    const int64_t bytes = element_bytes(c.dtype(0));
    HOTSET_FAIL_IF(bytes == 0, unsupported, "data of type %s", dtype_name(c.dtype(0)));
    c.set_output(0, c.dtype(0), cut.out);
    // A cut of the outermost dimension that is not 1 leaves a contiguous range.
    int first = 0;
    while (first < in.rank && in[first] == 1 && cut.out[first] == 1) ++first;
    bool contiguous = true;
    for (int i = first + 1; i < in.rank; ++i) contiguous &= cut.out[i] == in[i] && cut.step[i] == 1;
    if (first < in.rank && cut.step[first] != 1) contiguous &= cut.out[first] == 1;
    if (cut.out.size() == 0) c.alias(0, 0);
    else if (contiguous) c.alias(0, 0, static_cast<size_t>(first < in.rank ? cut.start[first] * in.product(first + 1, in.rank) * bytes : 0));
    return {};
  }

  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    Tensor& out = *c.outputs[0];
    if (out.size() == 0) return {};
    IntList lists[4];
    for (int i = 0; i < 4; ++i) {
      if (attributes_[0]) HOTSET_TRY(from_attribute(i, &lists[i]));
      else if (c.input(i + 1)) HOTSET_TRY(read_list(*c.input(i + 1), kNames[i], &lists[i]));
    }
    Cut cut;
    HOTSET_TRY(resolve(lists, in.shape, &cut));
    // Dimensions from `inner` on are whole: one run of bytes.
    const int rank = in.shape.rank;
    int inner = rank;
    while (inner > 0 && cut.out[inner - 1] == in.shape[inner - 1] && cut.step[inner - 1] == 1) --inner;
    int64_t run = in.shape.product(inner, rank) * element_bytes(in.dtype), stride[kMaxRank];
    int64_t step = run, base = 0;
    for (int i = inner - 1; i >= 0; --i) {
      stride[i] = step;
      base += cut.start[i] * step;
      step *= in.shape[i];
    }
    if (inner > 0 && cut.step[inner - 1] == 1) {  // a range of the last cut dimension is a run as well
      --inner;
      run *= cut.out[inner];
    }
    const int64_t runs = cut.out.product(0, inner);
    over_range(runs * run < (1 << 18) ? nullptr : c.pool, runs, std::max<int64_t>(1, (1 << 17) / run), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        int64_t rest = r, at = base;
        for (int i = inner - 1; i >= 0; --i) {
          at += rest % cut.out[i] * cut.step[i] * stride[i];
          rest /= cut.out[i];
        }
        std::memcpy(out.as<char>() + r * run, in.as<char>() + at, static_cast<size_t>(run));
      }
    });
    return {};
  }

 private:
  static constexpr const char* kNames[4] = {"starts", "ends", "axes", "steps"};

  Status from_attribute(int i, IntList* out) const {
    const std::vector<int64_t>* list = attributes_[i];
    if (!list) return {};
    HOTSET_FAIL_IF(list->size() > IntList::kCapacity, invalid_model, "%zu %s", list->size(), kNames[i]);
    out->n = static_cast<int>(list->size());
    std::copy(list->begin(), list->end(), out->value);
    out->given = true;
    return {};
  }

  static Status resolve(const IntList (&lists)[4], const Shape& in, Cut* cut) {
    const auto& [starts, ends, axes, steps] = lists;
    HOTSET_FAIL_IF(starts.n != ends.n || (axes.given && axes.n != starts.n) || (steps.given && steps.n != starts.n), invalid_argument,
                   "%d starts, %d ends, %d axes, %d steps", starts.n, ends.n, axes.n, steps.n);
    cut->out = in;
    for (int i = 0; i < in.rank; ++i) {
      cut->start[i] = 0;
      cut->step[i] = 1;
    }
    uint32_t seen = 0;
    for (int i = 0; i < starts.n; ++i) {
      int axis = 0;
      const int64_t wanted = axes.given ? axes[i] : i;
      HOTSET_FAIL_IF(!normalize_axis(wanted, in.rank, &axis), invalid_argument, "axis %lld is out of range for data of shape %s", static_cast<long long>(wanted),
                     to_text(in).c_str());
      HOTSET_FAIL_IF(seen >> axis & 1, invalid_argument, "axis %d is given twice", axis);
      seen |= 1u << axis;
      const int64_t step = steps.given ? steps[i] : 1, size = in[axis];
      HOTSET_FAIL_IF(step == 0, invalid_argument, "step of axis %d is 0", axis);
      const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
      const int64_t start = std::clamp(starts[i] < 0 ? starts[i] + size : starts[i], int64_t{0}, std::max<int64_t>(high, 0));
      const int64_t end = std::clamp(ends[i] < 0 ? ends[i] + size : ends[i], low, std::max(high, low));
      const int64_t distance = step > 0 ? end - start : start - end;
      // step may be the most negative number: count without negating it.
      const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
      cut->out[axis] = distance <= 0 || size == 0 ? 0 : static_cast<int64_t>((static_cast<uint64_t>(distance) - 1) / stride) + 1;
      cut->start[axis] = start;
      cut->step[axis] = cut->out[axis] <= 1 ? 1 : step;
    }
    return {};
  }

  const std::vector<int64_t>* attributes_[4];
};

Result<std::unique_ptr<Kernel>> make_slice(const OpContext& c) {
  const bool old = c.node().get_ints("starts") != nullptr;
  if (old && !c.node().get_ints("ends")) return c.fail(Code::invalid_model, "attribute ends is missing");
  for (int i = 1; i <= 2 && !old; ++i)
    if (!c.has_input(i)) return c.fail(Code::invalid_model, "input %d (%s) is missing", i, i == 1 ? "starts" : "ends");
  return make_kernel<Slice>(c);
}

}  // namespace

HOTSET_OPS(slice, {"", "Slice", 1, kLatest, make_slice, {1, 5}});

}  // namespace hotset::ops
