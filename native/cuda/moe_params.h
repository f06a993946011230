// SPDX-License-Identifier: Apache-2.0
// What the kernels of a mixture-of-experts layer are told, for nvcc and the host compiler. Sizes are in elements unless a name says
// bytes. T rows of x ("tokens"), k routes a row, R = T k routes, E experts.
#pragma once
#include <cstdint>

namespace hotset::cuda {

enum class MoeType : std::uint32_t { none, f32, f16, bf16, e4m3, e8m0 };
enum class MoeStorage : std::uint32_t { dense, raw, sm80, fp4_by_k, fp4_by_n, fp8 };
enum class MoeZeros : std::uint32_t { middle, packed, bytes, along_n };
enum class MoePairing : std::uint32_t { none, interleaved, halves, separate };
enum class MoeAct : std::uint32_t { relu, relu2, gelu, silu, identity, swiglu, geglu };

// What all matrices of one kind (FC1 of every expert) have in common; experts/weight_matrix.h says what the fields mean.
struct MoeForm {
  MoeStorage storage;
  MoeZeros zeros;
  MoeType type;       // dense: of the elements, else of the scales; none: no scales
  MoeType bias_type;  // none: no bias
  std::uint32_t bits;
  std::uint32_t n, k;
  std::uint32_t blocks;           // of a row
  std::uint32_t block_shift;      // 2^block_shift codes of a row share a scale; 31: all
  std::uint32_t scale_row_shift;  // 2^scale_row_shift rows share their scales
  std::uint32_t row_bytes;        // of k codes
  std::uint32_t zero_row_bytes;   // of one row of zero points
};

// Device addresses of one matrix. Weights of the fast kernels begin at multiples of 4.
struct MoePlace {
  const std::uint8_t* weights;
  const std::uint8_t* scales;
  const std::uint8_t* zeros;
  const std::uint8_t* bias;
  float global_scale;
  std::uint32_t unused;
};
struct MoeExpert {
  MoePlace fc[3];  // FC1, FC2, FC3
};
static_assert(sizeof(MoeExpert) == 120);

struct MoeActivation {
  MoeAct kind;
  float alpha, beta, limit;
  std::uint32_t limit_after;
};

// Rows of one expert: places [first, first + rows) of the sorted routes.
struct MoeGroup {
  std::uint32_t expert, first, rows, unused;
};

// The order in which a matrix product takes the columns of its rows, so that one lane finds the factors of its codes side by side:
// position 8 t + e of each 32 holds column
//   natural: 8 t + e          nibble: 8 t + e / 2 + 4 (e mod 2)          tiles: 8 (e / 2) + 2 t + e mod 2
enum class MoeOrder : std::uint32_t { natural, nibble, tiles };

// Rows as a product takes them: `parts` runs of `k` elements of 16 bits a row, or plain (parts 0) in the type of the layer. 16-bit
// types have one part. A float32 has three bf16 parts whose sum it is.
struct MoeRows {
  std::uint32_t parts;
  MoeOrder order;
};

struct MoeRouterParams {
  const void* logits;  // [T][E] of `type`
  const void* given;   // [T][E] of `given_type` or null
  std::int32_t* ids;   // [R]
  float* weights;      // [R]
  // Groups by rising expert, rows of a group by rising route. With one row: groups in the order of routes.
  MoeGroup* groups;
  std::uint32_t* counts;  // [0]: groups, [1]: tiles; null: the router kernel leaves grouping to another kernel
  std::int32_t* order;    // [R] route at a place
  // Many rows only:
  std::int32_t* places;       // [R] place of a route
  std::int32_t* sorted_rows;  // [R] row of x at a place
  std::int32_t* offsets;      // [E + 1] first place of an expert
  std::uint32_t* tiles;       // [.] group | first row / tile_rows << 16 ... of the grouped product; null with few rows
  MoeType type, given_type;
  std::uint32_t n_tokens, n_experts, k;
  std::uint32_t normalize, sparse_mixer;
  std::uint32_t tile_rows;
  // x to the form that FC1 takes: blocks behind those that route.
  const void* x;
  void* prepared;
  MoeType x_type;
  std::uint32_t hidden;
  MoeRows rows;
  std::uint32_t router_blocks;
};

// Where a warp keeps a unit (16 rows x `steps` steps of 32 codes) of a matrix in shared memory.
struct MoeUnit {
  std::uint32_t steps;
  std::uint32_t line_pitch;   // bytes from line to line; a line: a row, or the columns of an SM80 tile
  std::uint32_t scale_at;     // offset of scales
  std::uint32_t scale_pitch;  // from row to row
  std::uint32_t bytes;
  std::uint32_t granule;  // bytes that copies of weights move at once
};

struct MoeProductParams {
  const MoeExpert* experts;
  const MoeGroup* groups;
  const std::uint32_t* counts;
  const std::int32_t* order;
  const std::int32_t* sorted_rows;
  const std::int32_t* ids;
  const float* weights;
  const std::uint32_t* tiles;
  const void* x;  // rows of FC1 [T] or of FC2 [R], as `in` says
  void* y;        // FC1: h [R] as `out` says. FC2: few rows the result [T][n], many rows [R][n] by route, both of the layer's type
  MoeForm form;   // of FC1 or FC2
  MoeForm third;  // FC3
  MoeRows in, out;
  MoeUnit unit;
  MoePairing pairing;
  MoeActivation activation;
  MoeType type;  // of the layer
  std::uint32_t n_tokens, k;
  std::uint32_t inter;   // features after the activation
  std::uint32_t parts;   // warps that share the columns of a group in FC2 of few rows
  std::uint32_t panels;  // of a block in FC1 of few rows
  std::uint32_t n_experts;
  std::uint32_t second;  // FC2; grouped product only
};

// y[t] = sum over j of weight * (row of route + bias), in the order of routes.
struct MoeSumParams {
  const void* rows;            // [R][n]
  const std::int32_t* places;  // [R] row of a route; null: its number
  const MoeExpert* experts;
  const std::int32_t* ids;
  const float* weights;
  void* y;  // [T][n]
  MoeType type, bias_type;
  std::uint32_t n_tokens, k, n;
};

}  // namespace hotset::cuda
