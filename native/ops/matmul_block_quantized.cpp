// SPDX-License-Identifier: Apache-2.0
// com.microsoft::MatMulBlockQuantizedFp4Weight and ...Fp8Weight: Y = A W^T + bias with weights that are E2M1 or E4M3 floats, one scale
// a block of K. Weights are not rounded to the type of A; float32 is accepted beside the float16 and bfloat16 of the schema.
#include <cmath>

#include "ops/weight_product.h"

namespace hotset::ops {
namespace {

using experts::MatrixBytes;
using experts::MatrixForm;
using experts::Storage;

long long ll(int64_t v) { return static_cast<long long>(v); }

// A scalar, or a tensor of one element.
Status check_scalar(const InferContext& context, int input, const char* name) {
  if (!context.has_input(input)) return {};
  HOTSET_FAIL_IF(context.dtype(input) != DType::f32, invalid_model, "%s (input %d) is %s, expected float", name, input,
                 dtype_name(context.dtype(input)));
  HOTSET_FAIL_IF(context.shape(input).size() != 1, invalid_model, "%s (input %d) has shape %s, expected one element", name, input,
                 to_text(context.shape(input)).c_str());
  return {};
}

// x / scale rounded to E4M3, to nearest and ties to even, and beyond 448 to 448; times scale. NaN stays NaN.
float through_e4m3(float x, float scale) {
  const float v = x / scale;
  if (std::isnan(v)) return v;
  const float size = std::min(std::fabs(v), 480.0f);
  int exponent;
  std::frexp(size, &exponent);                                      // 2^(exponent - 1) <= size
  const float step = std::ldexp(1.0f, std::max(exponent, -5) - 4);  // three bits behind the first, 2^-9 at least
  return std::copysign(std::min(std::nearbyintf(size / step) * step, 448.0f), v) * scale;
}

struct Inputs {
  int scales, bias;
  const char* scales_name;
};

class MatMulBlockQuantized final : public Kernel {
 public:
  MatMulBlockQuantized(bool is_fp4, int64_t block, bool int8) : is_fp4_(is_fp4), block_(block), int8_(int8) {}

  std::string_view implementation() const override { return cpu::minifloat_gemm(int8_ && is_fp4_).name; }

  Status infer(InferContext& context) const override {
    const Shape &a = context.shape(0), &b = context.shape(1);
    const DType dtype = context.dtype(0), weights = context.dtype(1);
    HOTSET_FAIL_IF(!is_activation_type(dtype), invalid_model, "A (input 0) is %s, expected float, float16 or bfloat16", dtype_name(dtype));
    HOTSET_FAIL_IF(weights != DType::u8 && (is_fp4_ || weights != DType::f8e4m3fn), invalid_model, "B (input 1) is %s, expected %s",
                   dtype_name(weights), is_fp4_ ? "uint8" : "float8e4m3fn or uint8");
    HOTSET_FAIL_IF(b.rank != 2, invalid_model, "B (input 1) has shape %s, expected [N, %s]", to_text(b).c_str(), is_fp4_ ? "K / 2" : "K");
    const MatrixForm form = form_of(b, DType::undefined);
    HOTSET_FAIL_IF(a.rank < 1 || a[-1] != form.k, invalid_model, "A (input 0) has shape %s, expected a last dimension of K = %lld",
                   to_text(a).c_str(), ll(form.k));
    HOTSET_TRY(check_scales(context, form));
    DType bias = DType::undefined;
    if (context.has_input(inputs().bias)) {
      bias = context.dtype(inputs().bias);
      HOTSET_FAIL_IF(!is_activation_type(bias), invalid_model, "bias (input %d) is %s, expected the type of A", inputs().bias,
                     dtype_name(bias));
      HOTSET_FAIL_IF(!(context.shape(inputs().bias) == Shape{form.n}), invalid_model, "bias (input %d) has shape %s, expected %s",
                     inputs().bias, to_text(context.shape(inputs().bias)).c_str(), to_text(Shape{form.n}).c_str());
    }
    Shape y = a;
    y[-1] = form.n;
    context.set_output(0, dtype, y);
    const bool rounds = !is_fp4_ && context.has_input(kActivationScale);
    const WeightProduct product(form_of(b, bias), int8_, dtype, a.product(0, a.rank - 1), context.n_threads(), rounds);
    context.set_workspace(product.workspace(), product.packing());
    return {};
  }

  Status run(const RunContext& context) const override {
    const Tensor &a = *context.input(0), &b = *context.input(1);
    const Tensor *const bias = context.input(inputs().bias), *const scale = is_fp4_ ? nullptr : context.input(kActivationScale);
    const MatrixForm form = form_of(b.shape, bias ? bias->dtype : DType::undefined);
    const int64_t m = a.shape.product(0, a.shape.rank - 1);
    if (m == 0 || form.n == 0) return {};
    if (form.k == 0) {
      fill_with_bias(bias, *context.output(0), m, form.n);
      return {};
    }
    MatrixBytes bytes{b.as<const uint8_t>(), context.input(inputs().scales)->as<const uint8_t>(), nullptr,
                      bias ? bias->as<const uint8_t>() : nullptr};
    if (is_fp4_) std::memcpy(&bytes.global_scale, context.input(kGlobalScale)->data, sizeof(float));
    float activation_scale = 1;
    if (scale) std::memcpy(&activation_scale, scale->data, sizeof(float));
    const WeightProduct product(form, int8_, a.dtype, m, context.pool->size(), scale != nullptr);
    product.run(
        context, bytes,
        [&](const float*, float* copy, int64_t m0, int64_t m1) {
          if (!scale) return;
          for (int64_t i = m0 * form.k; i < m1 * form.k; ++i) copy[i] = through_e4m3(copy[i], activation_scale);
        },
        [](float*, int64_t, int64_t, int64_t, int64_t, int64_t, void*) {});
    return {};
  }

 private:
  static constexpr int kGlobalScale = 3, kInputScale = 4, kActivationScale = 3;

  Inputs inputs() const { return is_fp4_ ? Inputs{2, 5, "weight_scale"} : Inputs{2, 4, "b_scale"}; }

  MatrixForm form_of(const Shape& b, DType bias) const {
    MatrixForm form;
    form.storage = is_fp4_ ? Storage::fp4_by_k : Storage::fp8;
    form.dtype = is_fp4_ ? DType::f8e4m3fn : DType::f32;
    form.bias_dtype = bias;
    form.n = b[0];
    form.k = is_fp4_ ? 2 * b[1] : b[1];
    form.block = block_;
    return form;
  }

  Status check_scales(const InferContext& context, const MatrixForm& form) const {
    const int input = inputs().scales;
    const DType dtype = context.dtype(input);
    const bool fits = is_fp4_ ? dtype == DType::u8 || dtype == DType::f8e4m3fn : dtype == DType::f32;
    HOTSET_FAIL_IF(!fits, invalid_model, "%s (input %d) is %s, expected %s", inputs().scales_name, input, dtype_name(dtype),
                   is_fp4_ ? "uint8 or float8e4m3fn" : "float");
    const Shape wanted{form.n, form.k == 0 ? 0 : form.blocks()};
    HOTSET_FAIL_IF(!(context.shape(input) == wanted), invalid_model, "%s (input %d) has shape %s, expected %s for block_size %lld",
                   inputs().scales_name, input, to_text(context.shape(input)).c_str(), to_text(wanted).c_str(), ll(block_));
    if (!is_fp4_) return check_scalar(context, kActivationScale, "a_scale");
    HOTSET_TRY(check_scalar(context, kGlobalScale, "weight_scale_2"));
    return check_scalar(context, kInputScale, "input_scale");  // of a product that quantises A; this one does not
  }

  const bool is_fp4_;
  const int64_t block_;
  const bool int8_;
};

template <bool is_fp4>
Result<std::unique_ptr<Kernel>> make(const OpContext& context) {
  const int64_t block = context.node().get_int("block_size", is_fp4 ? 16 : 128);
  if (block < 16 || block > (int64_t{1} << 40) || (block & (block - 1)) != 0)
    return context.fail(Code::invalid_model, "attribute block_size is %lld, expected a power of two of at least 16", ll(block));
  for (int input = 0; input < (is_fp4 ? 4 : 3); ++input)
    if (!context.has_input(input)) return context.fail(Code::invalid_model, "input %d is missing", input);
  const bool int8 = context.config().cpu_activation == CpuActivation::int8;
  return std::unique_ptr<Kernel>(std::make_unique<MatMulBlockQuantized>(is_fp4, block, int8));
}

}  // namespace

HOTSET_OPS(matmul_block_quantized, {"com.microsoft", "MatMulBlockQuantizedFp4Weight", 1, kLatest, make<true>, {4, 6}},
           {"com.microsoft", "MatMulBlockQuantizedFp8Weight", 1, kLatest, make<false>, {3, 5}});

}  // namespace hotset::ops
