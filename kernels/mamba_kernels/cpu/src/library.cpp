// What Python sees. Compiled without flags of any instruction set: it runs before we know what there is.
#include <cstring>

#include "interface.h"
#include "worker_pool.h"

extern const KernelTable kernels_avx2;
extern const KernelTable kernels_avx512;
extern const KernelTable kernels_avx512_bf16;

namespace {

struct Candidate {
  const KernelTable* kernels;
  bool usable;
};

// The widest first. The built-in also asks whether the operating system keeps the registers.
void list_candidates(Candidate (&out)[3]) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  out[2] = {&kernels_avx2, avx2};
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  out[0] = {&kernels_avx512_bf16, avx512 && __builtin_cpu_supports("avx512bf16")};
  out[1] = {&kernels_avx512, avx512};
}

const KernelTable* table = nullptr;

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

// Takes the instruction set `wanted`, or the best one where it is empty. Returns its name; null where this
// machine does not have it.
const char* mamba_use(const char* wanted) {
  Candidate candidates[3] = {};
  list_candidates(candidates);
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

#pragma GCC visibility pop
}
