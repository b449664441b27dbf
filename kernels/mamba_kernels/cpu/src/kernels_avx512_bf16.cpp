// The kernels for one instruction set; compiled with its flags.
#include "lanes_avx512.h"

#include "linear.h"
#include "delta_mixer.h"
#include "adapter_changes.h"
#include "elementwise.h"
#include "experts.h"
#include "gate.h"
#include "gated_delta_prefill.h"
#include "gated_delta_update.h"
#include "kv_write.h"
#include "largest.h"
#include "mamba_decode.h"
#include "mamba_prefill.h"
#include "norms.h"
#include "packed_rows.h"
#include "rope.h"
#include "short_conv.h"
#include "paged_decode.h"
#include "paged_extend.h"

extern const KernelTable kernels_avx512_bf16;
const KernelTable kernels_avx512_bf16 = {"avx512_bf16", linear, mamba_decode, mamba_prefill, rms_norm, paged_decode, paged_extend, kv_write, moe<linear>, packed_rows, largest, multiply, add, scale, rope, gated_delta_update, gated_delta_prefill, delta_decode, delta_prefill, gate, short_conv_decode, short_conv_prefill, change_rows};
