// The kernels for one instruction set; compiled with its flags.
#include "lanes_avx512.h"

#include "linear.h"
#include "mamba_decode.h"
#include "norms.h"
#include "paged_decode.h"

extern const KernelTable kernels_avx512_bf16;
const KernelTable kernels_avx512_bf16 = {"avx512_bf16", linear, mamba_decode, rms_norm, paged_decode};
