// Products element by element: an MLP's inner values by their gate.
#pragma once
#include "elements.h"
#include "worker_pool.h"

namespace {

constexpr int64_t kMultipliedPerChunk = 16384;

template <typename T>
void multiply_elements(T* x, const T* y, int64_t count) {
  const int64_t chunks = (count + kMultipliedPerChunk - 1) / kMultipliedPerChunk;
  for_each_chunk(static_cast<int>(chunks), [&](int chunk) {
    const int64_t begin = chunk * kMultipliedPerChunk;
    const int64_t end = begin + kMultipliedPerChunk < count ? begin + kMultipliedPerChunk : count;
    for_each_vector(begin, end, [&](auto kWhole, int64_t i, int some) {
      store_part<kWhole>(x + i, some, load_part<kWhole>(x + i, some) * load_part<kWhole>(y + i, some));
    });
  });
}

void multiply(void* x, const void* y, int64_t count, int32_t kind) {
  if (kind == kFloat32) {
    multiply_elements(static_cast<float*>(x), static_cast<const float*>(y), count);
  } else {
    multiply_elements(static_cast<uint16_t*>(x), static_cast<const uint16_t*>(y), count);
  }
}

}  // namespace
