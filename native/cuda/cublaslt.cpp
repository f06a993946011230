// SPDX-License-Identifier: Apache-2.0
// cuBLASLt at run time. It counts columns first: our C (m, n) is its D (n, m), so B is its first operand and A the second.
#include "cuda/cublaslt.h"

#include <map>
#include <mutex>
#include <tuple>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace hotset::cuda {
namespace {

using LtStatus = int;
using Handle = struct LtHandleTag*;
using Description = struct LtDescriptionTag*;
using Layout = struct LtLayoutTag*;
using Preference = struct LtPreferenceTag*;

// Numbers of cublasLt.h and library_types.h.
constexpr int kReal32 = 0, kReal16 = 2, kRealBfloat = 14, kCompute32 = 68;
enum DescriptionAttribute { kTransA = 3, kTransB = 4, kEpilogue = 7, kBiasPointer = 8 };
enum LayoutAttribute { kBatchCount = 5, kBatchStride = 6 };
constexpr int kEpilogueBias = 4, kMaxWorkspace = 1, kTransposed = 1;

struct Algorithm {  // cublasLtMatmulAlgo_t
  uint64_t data[8];
};
struct Choice {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  size_t workspace_bytes;
  LtStatus state;
  float waves;
  int reserved[4];
};

#define HOTSET_LT_FUNCTIONS(X)                                                                                                    \
  X(get_version, "cublasLtGetVersion", size_t, ())                                                                                \
  X(create, "cublasLtCreate", LtStatus, (Handle*))                                                                                \
  X(description_create, "cublasLtMatmulDescCreate", LtStatus, (Description*, int, int))                                           \
  X(description_destroy, "cublasLtMatmulDescDestroy", LtStatus, (Description))                                                    \
  X(description_set, "cublasLtMatmulDescSetAttribute", LtStatus, (Description, int, const void*, size_t))                         \
  X(layout_create, "cublasLtMatrixLayoutCreate", LtStatus, (Layout*, int, uint64_t, uint64_t, int64_t))                           \
  X(layout_destroy, "cublasLtMatrixLayoutDestroy", LtStatus, (Layout))                                                            \
  X(layout_set, "cublasLtMatrixLayoutSetAttribute", LtStatus, (Layout, int, const void*, size_t))                                 \
  X(preference_create, "cublasLtMatmulPreferenceCreate", LtStatus, (Preference*))                                                 \
  X(preference_destroy, "cublasLtMatmulPreferenceDestroy", LtStatus, (Preference))                                                \
  X(preference_set, "cublasLtMatmulPreferenceSetAttribute", LtStatus, (Preference, int, const void*, size_t))                     \
  X(choose, "cublasLtMatmulAlgoGetHeuristic", LtStatus,                                                                           \
    (Handle, Description, Layout, Layout, Layout, Layout, Preference, int, Choice*, int*))                                        \
  X(multiply, "cublasLtMatmul", LtStatus,                                                                                         \
    (Handle, Description, const void*, const void*, Layout, const void*, Layout, const void*, const void*, Layout, void*, Layout, \
     const Algorithm*, void*, size_t, Stream))

struct LtLibrary {
#define X(member, symbol, result, parameters) result(*member) parameters = nullptr;
  HOTSET_LT_FUNCTIONS(X)
#undef X
  bool complete = false;
};

void* open_library() {
#if defined(_WIN32)
  for (const char* name : {"cublasLt64_13.dll", "cublasLt64_12.dll"})
    if (HMODULE module = LoadLibraryA(name)) return reinterpret_cast<void*>(module);
#else
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
#endif
  return nullptr;
}

void* find_symbol(void* library, const char* name) {
#if defined(_WIN32)
  return reinterpret_cast<void*>(GetProcAddress(reinterpret_cast<HMODULE>(library), name));
#else
  return dlsym(library, name);
#endif
}

// Loaded on first use and never unloaded, as the driver below it.
const LtLibrary& library() {
  static const LtLibrary loaded = [] {
    LtLibrary l;
    void* const handle = open_library();
    if (!handle) return l;
#define X(member, symbol, result, parameters)                                   \
  l.member = reinterpret_cast<decltype(l.member)>(find_symbol(handle, symbol)); \
  if (!l.member) return l;
    HOTSET_LT_FUNCTIONS(X)
#undef X
    l.complete = true;
    return l;
  }();
  return loaded;
}

// What the library needs to know of products of one form, and the kernel it chose.
struct Plan {
  Description description = nullptr;
  Layout a = nullptr, b = nullptr, c = nullptr;
  Algorithm algorithm = {};
  bool usable = false;
};
using Key = std::tuple<int, DType, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int>;

Layout layout_of(const LtLibrary& l, int type, int64_t rows, int64_t columns, int64_t leading, int64_t batch, int64_t stride) {
  Layout layout = nullptr;
  if (l.layout_create(&layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), leading) != 0) return nullptr;
  const int32_t count = static_cast<int32_t>(batch);
  if (batch > 1) {
    l.layout_set(layout, kBatchCount, &count, sizeof count);
    l.layout_set(layout, kBatchStride, &stride, sizeof stride);
  }
  return layout;
}

Plan make_plan(const LtLibrary& l, Handle handle, const MatMulCall& c) {
  Plan plan;
  const int type = c.type == DType::f16 ? kReal16 : kRealBfloat;
  const int64_t ldc = c.ldc ? c.ldc : c.n;
  if (l.description_create(&plan.description, kCompute32, kReal32) != 0) return plan;
  const int32_t transposed = kTransposed;
  if (c.trans_b) l.description_set(plan.description, kTransA, &transposed, sizeof transposed);
  if (c.trans_a) l.description_set(plan.description, kTransB, &transposed, sizeof transposed);
  const int32_t epilogue = kEpilogueBias;
  if (c.bias) l.description_set(plan.description, kEpilogue, &epilogue, sizeof epilogue);
  plan.b = c.trans_b ? layout_of(l, type, c.k, c.n, c.k, c.batch, c.b_batch) : layout_of(l, type, c.n, c.k, c.n, c.batch, c.b_batch);
  plan.a = c.trans_a ? layout_of(l, type, c.m, c.k, c.m, c.batch, c.a_batch) : layout_of(l, type, c.k, c.m, c.k, c.batch, c.a_batch);
  plan.c = layout_of(l, type, c.n, c.m, ldc, c.batch, c.m * ldc);
  Preference preference = nullptr;
  if (!plan.a || !plan.b || !plan.c || l.preference_create(&preference) != 0) return plan;
  const size_t no_workspace = 0;
  l.preference_set(preference, kMaxWorkspace, &no_workspace, sizeof no_workspace);
  Choice choice = {};
  int found = 0;
  const LtStatus status = l.choose(handle, plan.description, plan.b, plan.a, plan.c, plan.c, preference, 1, &choice, &found);
  l.preference_destroy(preference);
  plan.algorithm = choice.algorithm;
  plan.usable = status == 0 && found == 1 && choice.state == 0;
  return plan;
}

struct Plans {
  std::mutex mutex;
  std::map<int, Handle> handles;  // by device
  std::map<Key, Plan> plans;
};
Plans& plans() {
  static Plans& all = *new Plans;  // never destroyed: sessions in static objects end after it would have been
  return all;
}

}  // namespace

size_t cublaslt_version() { return library().complete ? library().get_version() : 0; }

bool cublaslt_takes(const MatMulCall& c) {
  constexpr int64_t kLeast = int64_t{1} << 28;  // multiplications
  const bool plain_bias = !c.bias || (c.bias_type == c.type && c.bias_row == 0 && c.bias_column == 1 && c.beta == 1 && c.batch == 1);
  return (c.type == DType::f16 || c.type == DType::bf16) && c.m >= 64 && c.k > 0 && plain_bias && c.m * c.batch >= kLeast / c.n / c.k &&
         library().complete;
}

Status launch_cublaslt(const Gpu& gpu, Stream stream, const MatMulCall& c, bool* done) {
  *done = false;
  const LtLibrary& l = library();
  Plans& all = plans();
  Handle handle = nullptr;
  Plan plan;
  {
    const std::lock_guard lock(all.mutex);
    Handle& known = all.handles[gpu.index()];
    if (!known && l.create(&known) != 0) return {};
    handle = known;
    const int form = (c.trans_a ? 1 : 0) | (c.trans_b ? 2 : 0) | (c.bias ? 4 : 0);
    const Key key = {gpu.index(), c.type, c.m, c.n, c.k, c.batch, c.a_batch, c.b_batch, c.ldc, form};
    const auto [at, is_new] = all.plans.try_emplace(key);
    if (is_new) at->second = make_plan(l, handle, c);
    plan = at->second;
    if (!plan.usable) return {};
    // The description is shared and holds the address of the bias: the call copies it before the lock is given back.
    if (c.bias) l.description_set(plan.description, kBiasPointer, &c.bias, sizeof c.bias);
    const float one = c.alpha, zero = 0;
    *done = l.multiply(handle, plan.description, &one, c.b, plan.b, c.a, plan.a, &zero, c.c, plan.c, c.c, plan.c, &plan.algorithm, nullptr,
                       0, stream) == 0;
  }
  return {};
}

}  // namespace hotset::cuda
