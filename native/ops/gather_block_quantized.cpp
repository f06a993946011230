// SPDX-License-Identifier: Apache-2.0
// com.microsoft::GatherBlockQuantized: slices of a block-quantised tensor, dequantised. Data are integers, or floats of 8 or 4 bits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu_avx/convert.h"
#include "ops/op.h"

namespace hotset::ops {
namespace {

constexpr int kData = 0, kIndices = 1, kScales = 2, kZeroPoints = 3;
constexpr int64_t kPiece = 256;  // elements that are decoded at a time

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
long long ll(int64_t v) { return static_cast<long long>(v); }

// Values of the codes of a small float type with `exponent_bits` and the rest behind them; fnuz: a bias of one more, no negative zero
// but NaN in its place.
template <int bits, int exponent_bits, bool fnuz>
struct SmallFloats {
  float value[1 << bits];

  SmallFloats() {
    constexpr int kMantissa = bits - 1 - exponent_bits, kBias = (1 << (exponent_bits - 1)) - (fnuz ? 0 : 1), kSign = 1 << (bits - 1);
    for (int i = 0; i < 1 << bits; ++i) {
      const int e = (i & (kSign - 1)) >> kMantissa, m = i & ((1 << kMantissa) - 1);
      const float size = std::ldexp(static_cast<float>(e == 0 ? m : m + (1 << kMantissa)), std::max(e, 1) - kBias - kMantissa);
      value[i] = i & kSign ? -size : size;
    }
    if (fnuz) value[kSign] = NAN;
  }
};

// Values of the codes of a type that holds floats, null for integers.
const float* values_of(DType type) {
  static const SmallFloats<4, 2, false> e2m1;
  static const SmallFloats<8, 4, true> e4m3fnuz;
  static const SmallFloats<8, 5, true> e5m2fnuz;
  struct Others {
    float e4m3fn[256], e5m2[256];
    Others() {
      for (int i = 0; i < 256; ++i) e4m3fn[i] = f8e4m3fn_to_f32(static_cast<uint8_t>(i)), e5m2[i] = f8e5m2_to_f32(static_cast<uint8_t>(i));
    }
  };
  static const Others others;
  switch (type) {
    case DType::f4e2m1:
      return e2m1.value;
    case DType::f8e4m3fn:
      return others.e4m3fn;
    case DType::f8e4m3fnuz:
      return e4m3fnuz.value;
    case DType::f8e5m2:
      return others.e5m2;
    case DType::f8e5m2fnuz:
      return e5m2fnuz.value;
    default:
      return nullptr;
  }
}

int code_at(const uint8_t* stream, int bits, int64_t i) { return (stream[i * bits >> 3] >> (i * bits & 7)) & ((1 << bits) - 1); }

// Data as a tensor of codes: uint8 data holds 8 / bits codes a byte along its last axis.
struct Codes {
  Shape shape;
  int bits = 4;
  bool is_signed = false;         // int4
  const float* floats = nullptr;  // values of the codes of a float type
  bool padded_rows = false;       // zero points of a row begin at a whole byte (uint8 data)
  int default_zero = 0;
  int gather_axis = 0, quantize_axis = 1;
  int64_t block = 1, stride = 1, blocks = 1;  // of the quantised axis

  int64_t n_scales() const { return shape[quantize_axis] == 0 ? 0 : shape.size() / shape[quantize_axis] * blocks; }
  float value(const uint8_t* stream, int64_t i) const {
    const int code = code_at(stream, bits, i);
    if (floats) return floats[code];
    return static_cast<float>(is_signed ? (code ^ 8) - 8 : code);
  }
};

class GatherBlockQuantized final : public Kernel {
 public:
  GatherBlockQuantized(int bits, int64_t block, int64_t gather_axis, int64_t quantize_axis)
      : bits_(bits), block_(block), gather_axis_(gather_axis), quantize_axis_(quantize_axis) {}

  Status infer(InferContext& context) const override {
    Codes codes;
    HOTSET_TRY(describe(context.dtype(kData), context.shape(kData), &codes));
    const DType index = context.dtype(kIndices), scale = context.dtype(kScales);
    HOTSET_FAIL_IF(index != DType::i32 && index != DType::i64, invalid_model, "indices (input 1) are %s, expected int32 or int64",
                   dtype_name(index));
    HOTSET_FAIL_IF(scale != DType::f32 && scale != DType::f16 && scale != DType::bf16, invalid_model,
                   "scales (input 2) are %s, expected float, float16 or bfloat16", dtype_name(scale));
    Shape scales = codes.shape;
    scales[codes.quantize_axis] = codes.blocks;
    HOTSET_FAIL_IF(!fits(context.shape(kScales), scales, codes), invalid_model,
                   "scales (input 2) have shape %s, expected %s for data %s and block_size %lld", to_text(context.shape(kScales)).c_str(),
                   to_text(scales).c_str(), to_text(context.shape(kData)).c_str(), ll(block_));
    HOTSET_FAIL_IF(codes.floats && context.has_input(kZeroPoints), invalid_model, "zero_points (input 3) do not go with data of type %s",
                   dtype_name(context.dtype(kData)));
    if (context.has_input(kZeroPoints)) {
      Shape zeros = scales;
      if (codes.padded_rows) zeros[-1] = ceil_div(zeros[-1] * codes.bits, 8);
      HOTSET_FAIL_IF(context.dtype(kZeroPoints) != context.dtype(kData), invalid_model,
                     "zero_points (input 3) are %s, expected %s as the data", dtype_name(context.dtype(kZeroPoints)),
                     dtype_name(context.dtype(kData)));
      HOTSET_FAIL_IF(!(context.shape(kZeroPoints) == zeros), invalid_model, "zero_points (input 3) have shape %s, expected %s",
                     to_text(context.shape(kZeroPoints)).c_str(), to_text(zeros).c_str());
    }

    const Shape& indices = context.shape(kIndices);
    Shape out;
    HOTSET_FAIL_IF(codes.shape.rank - 1 + indices.rank > kMaxRank, unsupported, "the output would have more than %d dimensions", kMaxRank);
    for (int i = 0; i < codes.gather_axis; ++i) out.dim[out.rank++] = codes.shape[i];
    for (int i = 0; i < indices.rank; ++i) out.dim[out.rank++] = indices[i];
    for (int i = codes.gather_axis + 1; i < codes.shape.rank; ++i) out.dim[out.rank++] = codes.shape[i];
    context.set_output(0, scale, out);
    return {};
  }

  Status run(const RunContext& context) const override {
    const Tensor &data = *context.input(kData), &indices = *context.input(kIndices), &scales = *context.input(kScales);
    const Tensor* const zero_points = context.input(kZeroPoints);
    const Tensor& y = *context.output(0);
    Codes codes;
    HOTSET_TRY(describe(data.dtype, data.shape, &codes));
    const int64_t n_indices = indices.size(), extent = codes.shape[codes.gather_axis];
    const int64_t outer = codes.shape.product(0, codes.gather_axis), inner = codes.shape.product(codes.gather_axis + 1, codes.shape.rank);
    const size_t io = static_cast<size_t>(dtype_bits(y.dtype)) / 8;
    if (inner == 0) return {};

    // A job is one piece of one slice.
    const int64_t pieces = ceil_div(inner, kPiece), n_jobs = outer * n_indices * pieces;
    const auto gather = [&](int64_t job) {
      const int64_t slice = job / pieces, i0 = job % pieces * kPiece, count = std::min(kPiece, inner - i0);
      int64_t index =
          indices.dtype == DType::i32 ? indices.as<const int32_t>()[slice % n_indices] : indices.as<const int64_t>()[slice % n_indices];
      if (index < 0) index += extent;
      uint8_t* const out = y.as<uint8_t>() + static_cast<size_t>(slice * inner + i0) * io;
      if (index < 0 || index >= extent) {
        std::memset(out, 0, static_cast<size_t>(count) * io);
        return;
      }
      float values[kPiece];
      decode(codes, data, scales, zero_points, (slice / n_indices * extent + index) * inner + i0, count, values);
      cpu::from_f32(y.dtype, values, out, count);
    };
    if (n_jobs * kPiece <= 16 * kPiece) {
      for (int64_t i = 0; i < n_jobs; ++i) gather(i);
    } else {
      constexpr int64_t kJobs = 8;
      context.pool->parallel_for(ceil_div(n_jobs, kJobs), [&](int64_t i, int) {
        for (int64_t job = i * kJobs; job < std::min(n_jobs, (i + 1) * kJobs); ++job) gather(job);
      });
    }
    return {};
  }

 private:
  Status describe(DType dtype, const Shape& shape, Codes* out) const {
    out->floats = values_of(dtype);
    HOTSET_FAIL_IF(!out->floats && dtype != DType::u8 && dtype != DType::u4 && dtype != DType::i4, invalid_model,
                   "data (input 0) is %s, expected uint8, uint4, int4, float4e2m1 or a float8 type with a sign", dtype_name(dtype));
    HOTSET_FAIL_IF(block_ == 0 && !out->floats, invalid_model, "attribute block_size is 0, which goes with data of a float type, not %s",
                   dtype_name(dtype));
    HOTSET_FAIL_IF(shape.rank < 1, invalid_model, "data (input 0) is a scalar");
    const auto axis = [&](int64_t value, const char* name, int* result) -> Status {
      HOTSET_FAIL_IF(value < -shape.rank || value >= shape.rank, invalid_model, "attribute %s is %lld, but data has shape %s", name,
                     ll(value), to_text(shape).c_str());
      *result = static_cast<int>(value < 0 ? value + shape.rank : value);
      return {};
    };
    HOTSET_TRY(axis(gather_axis_, "gather_axis", &out->gather_axis));
    HOTSET_TRY(axis(quantize_axis_, "quantize_axis", &out->quantize_axis));
    out->shape = shape;
    out->is_signed = dtype == DType::i4;
    out->bits = dtype_bits(dtype);
    if (dtype == DType::u8) {
      HOTSET_FAIL_IF(out->quantize_axis != shape.rank - 1 || out->gather_axis == out->quantize_axis, invalid_model,
                     "uint8 data is packed along its last axis: quantize_axis %lld and gather_axis %lld do not fit shape %s",
                     ll(quantize_axis_), ll(gather_axis_), to_text(shape).c_str());
      out->bits = bits_;
      out->padded_rows = true;
      out->default_zero = 1 << (bits_ - 1);
      out->shape[-1] = shape[-1] * (8 / bits_);
    }
    out->stride = out->shape.product(out->quantize_axis + 1, out->shape.rank);
    const int64_t length = out->shape[out->quantize_axis];
    out->block = block_ > 0 ? block_ : std::max<int64_t>(length, 1);
    out->blocks = ceil_div(length, out->block);
    return {};
  }

  // Scales as wanted; for floats a dimension of 1 serves all of an axis.
  static bool fits(const Shape& scales, const Shape& wanted, const Codes& codes) {
    if (scales.rank != wanted.rank) return false;
    for (int i = 0; i < scales.rank; ++i)
      if (scales[i] != wanted[i] && !(codes.floats && i != codes.quantize_axis && scales[i] == 1)) return false;
    return true;
  }

  // Place of a scale in a tensor some of whose dimensions are 1: `line` counts the axes before the quantised one, `rest` those behind.
  static int64_t broadcast(const Codes& c, const Shape& scales, int64_t line, int64_t block, int64_t rest) {
    int64_t place = 0, step = 1;
    for (int i = scales.rank - 1; i >= 0; --i) {
      int64_t coordinate = block;
      if (i != c.quantize_axis) {
        int64_t& left = i > c.quantize_axis ? rest : line;
        coordinate = left % c.shape[i];
        left /= c.shape[i];
      }
      if (scales[i] > 1) place += coordinate * step;
      step *= scales[i];
    }
    return place;
  }

  // Elements [first, first + count) of the data in memory order.
  void decode(const Codes& c, const Tensor& data, const Tensor& scales, const Tensor* zero_points, int64_t first, int64_t count,
              float* out) const {
    const int64_t length = c.shape[c.quantize_axis];
    const uint8_t* const stream = data.as<const uint8_t>();
    const size_t scale_bytes = static_cast<size_t>(dtype_bits(scales.dtype)) / 8;
    const int64_t zero_row = ceil_div(c.blocks * c.bits, 8);  // bytes, when rows are padded
    for (int64_t i = 0; i < count;) {
      const int64_t at = first + i, line = at / c.stride / length, place = at / c.stride % length, block = place / c.block;
      const int64_t zero_at = (line * c.blocks + block) * c.stride + at % c.stride;
      const int64_t scale_at = scales.shape.size() == c.n_scales() ? zero_at : broadcast(c, scales.shape, line, block, at % c.stride);
      float scale, zero = static_cast<float>(c.default_zero);
      cpu::to_f32(scales.dtype, scales.as<const uint8_t>() + static_cast<size_t>(scale_at) * scale_bytes, &scale, 1);
      if (zero_points) {
        const uint8_t* const zeros = zero_points->as<const uint8_t>();
        zero = c.padded_rows ? c.value(zeros + line * zero_row, block) : c.value(zeros, zero_at);
      }
      // Neighbours in memory share the scale up to the end of the block when the quantised axis is the last.
      const int64_t end = c.stride == 1 ? std::min(count, i + std::min((block + 1) * c.block, length) - place) : i + 1;
      for (; i < end; ++i) out[i] = (c.value(stream, first + i) - zero) * scale;
    }
  }

  const int bits_;
  const int64_t block_, gather_axis_, quantize_axis_;
};

Result<std::unique_ptr<Kernel>> make_gather_block_quantized(const OpContext& context) {
  const model::Node& node = context.node();
  const int64_t bits = node.get_int("bits", 4), block = node.get_int("block_size", 128);
  if (bits != 2 && bits != 4 && bits != 8) return context.fail(Code::invalid_model, "attribute bits is %lld, supported: 2 4 8", ll(bits));
  if (block != 0 && (block < 16 || (block & (block - 1)) != 0))
    return context.fail(Code::invalid_model, "attribute block_size is %lld, expected a power of two of at least 16", ll(block));
  for (int input : {kData, kIndices, kScales})
    if (!context.has_input(input)) return context.fail(Code::invalid_model, "input %d is missing", input);
  return std::unique_ptr<Kernel>(std::make_unique<GatherBlockQuantized>(static_cast<int>(bits), block, node.get_int("gather_axis", 0),
                                                                        node.get_int("quantize_axis", 1)));
}

}  // namespace

HOTSET_OPS(gather_block_quantized, {"com.microsoft", "GatherBlockQuantized", 1, kLatest, make_gather_block_quantized, {3, 4}});

}  // namespace hotset::ops
