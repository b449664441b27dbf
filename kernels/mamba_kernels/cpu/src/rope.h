// Rotary positions: queries and keys are rotated in place.
#pragma once
#include "elements.h"
#include "worker_pool.h"

namespace {

constexpr int64_t kTurnedPerChunk = 16384;

template <typename T>
void turn_head(T* x, const float* cos, const float* sin, int64_t half) {
  for_each_vector(0, half, [&](auto kWhole, int64_t i, int count) {
    const Lanes first = load_part<kWhole>(x + i, count), second = load_part<kWhole>(x + half + i, count);
    const Lanes c = load_part<kWhole>(cos + i, count), s = load_part<kWhole>(sin + i, count);
    // The fused product is explicit, so that all instruction sets and compilers round alike.
    store_part<kWhole>(x + i, count, Lanes::fused(first, c, Lanes::fused(second, Lanes::zero() - s, Lanes::zero())));
    store_part<kWhole>(x + half + i, count, Lanes::fused(second, c, Lanes::fused(first, s, Lanes::zero())));
  });
}

template <typename T>
void rope_rows(const Rope& call) {
  const int64_t width = int64_t{call.heads} * call.half, some = width < kTurnedPerChunk ? kTurnedPerChunk / width : 1;
  for_each_chunk(static_cast<int>((call.rows + some - 1) / some), [&](int chunk) {
    const int64_t end = (chunk + 1) * some < call.rows ? (chunk + 1) * some : call.rows;
    for (int64_t row = chunk * some; row < end; ++row) {
      T* x = static_cast<T*>(call.x) + row * call.x_stride;
      for (int32_t head = 0; head < call.heads; ++head) {
        turn_head(x + int64_t{head} * call.head_dim, call.cos + row * call.half, call.sin + row * call.half, call.half);
      }
    }
  });
}

void rope(const Rope* call) {
  if (call->kind == kFloat32) {
    rope_rows<float>(*call);
  } else {
    rope_rows<uint16_t>(*call);
  }
}

}  // namespace
