// The functions that Python calls. Compiled without flags of any instruction set: it runs before one is chosen.
#include <chrono>
#include <cstring>

#include "decode_step.h"
#include "route.h"
#include "interface.h"
#include "matrix_unit.h"
#include "worker_pool.h"

extern const KernelTable kernels_avx2;
extern const KernelTable kernels_avx512;
extern const KernelTable kernels_avx512_bf16;
extern const KernelTable kernels_amx_bf16;

namespace {

struct Candidate {
  const KernelTable* kernels;
  bool usable;
};

constexpr int kCandidates = 4;

// Lists the widest first. The built-in also checks whether the operating system saves the registers.
void list_candidates(Candidate (&out)[kCandidates]) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  out[3] = {&kernels_avx2, avx2};
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  out[0] = {&kernels_amx_bf16, avx512 && matrix_unit()};
  out[1] = {&kernels_avx512_bf16, avx512 && __builtin_cpu_supports("avx512bf16") &&
                                          __builtin_cpu_supports("avx512vnni")};
  out[2] = {&kernels_avx512, avx512};
}

// Measures the seconds of a product of some rows. It has enough outputs that copying the rows side by side, which
// takes longer for pairs, costs little in comparison.
double seconds_of_product(const KernelTable& kernels) {
  constexpr int64_t kInputs = 256, kOutputs = 512, kRows = 20;
  alignas(64) static uint16_t weights[kInputs * kOutputs], x[kRows * kInputs], out[kRows * kOutputs];
  LinearLayer layer = {};
  layer.packed = weights;
  layer.inputs = kInputs;
  layer.outputs = kOutputs;
  layer.kind = kBfloat16;
  const auto begin = std::chrono::steady_clock::now();
  kernels.linear(&layer, x, kInputs, kRows, out);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Returns whether pairs of bfloat16 are multiplied faster by their own instruction than as float32. Some cores start
// two of these instructions per cycle, others one in two cycles. The smallest of several times is used, since other
// programs may run on the machine.
bool pairs_are_quick() {
  double wide = 1, pairs = 1;
  for (int turn = 0; turn < 32; ++turn) {
    const double once = seconds_of_product(kernels_avx512), of_pairs = seconds_of_product(kernels_avx512_bf16);
    wide = once < wide ? once : wide;
    pairs = of_pairs < pairs ? of_pairs : pairs;
  }
  return pairs < wide;
}

const KernelTable* table = nullptr;

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

// Selects the instruction set `wanted`, or the fastest one if it is empty: all lanes give the same bits. Returns its
// name, or null if this machine does not have it.
const char* mamba_use(const char* wanted) {
  Candidate candidates[kCandidates] = {};
  list_candidates(candidates);
  if (*wanted == '\0' && !candidates[0].usable && candidates[1].usable) candidates[1].usable = pairs_are_quick();
  for (const Candidate& each : candidates) {
    if (each.usable && (*wanted == '\0' || std::strcmp(each.kernels->name, wanted) == 0)) {
      table = each.kernels;
      return table->name;
    }
  }
  return nullptr;
}

void mamba_set_threads(int count) { set_threads(count); }
int mamba_threads() { return threads(); }

void mamba_linear(const LinearLayer* layer, const void* x, int64_t x_stride, int64_t rows, void* out) {
  table->linear(layer, x, x_stride, rows, out);
}
void mamba_decode(const MambaDecode* call) { table->mamba_decode(call); }
void mamba_prefill(const MambaPrefill* call) { table->mamba_prefill(call); }
void mamba_rms_norm(const RmsNorm* call) { table->rms_norm(call); }
void mamba_paged_decode(const PagedDecode* call) { table->paged_decode(call); }
void mamba_paged_extend(const PagedExtend* call) { table->paged_extend(call); }
void mamba_kv_write(const KvWrite* call) { table->kv_write(call); }
void mamba_rope(const Rope* call) { table->rope(call); }
void mamba_route(const Router* router, const float* logits, int64_t rows, int32_t* chosen, float* weights) {
  route(*router, logits, rows, chosen, weights);
}
void mamba_moe(const Experts* call) { table->moe(call); }
void mamba_largest(const void* x, int64_t rows, int64_t columns, int32_t kind, int64_t* where, uint8_t* finite) {
  table->largest(x, rows, columns, kind, where, finite);
}
void mamba_decode_step(const DecodeStep* step, void* out) { decode_step(*table, *step, out); }
void mamba_draft(const DraftHead* head, const DraftTurns* turns) { draft(*table, *head, *turns); }
void mamba_gated_delta_update(const GatedDeltaUpdate* call) { table->gated_delta_update(call); }
void mamba_gated_delta_prefill(const GatedDeltaPrefill* call) { table->gated_delta_prefill(call); }
void mamba_delta_decode(const DeltaDecode* call) { table->delta_decode(call); }
void mamba_delta_prefill(const DeltaPrefill* call) { table->delta_prefill(call); }
void mamba_short_conv_decode(const ShortConvDecode* call) { table->short_conv_decode(call); }
void mamba_short_conv_prefill(const ShortConvPrefill* call) { table->short_conv_prefill(call); }
void mamba_gate(const SigmoidGate* call) { table->gate(call); }
void mamba_change_rows(const AdapterChanges* changes, const int32_t* places, const void* x, int64_t x_stride,
                       int64_t rows, void* out, int32_t activation) {
  table->change_rows(changes, places, x, x_stride, rows, out, activation);
}

#pragma GCC visibility pop
}
