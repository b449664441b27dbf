// Products element by element: an MLP's inner values by their gate, an embedding's rows by a factor.
#pragma once
#include "elements.h"
#include "worker_pool.h"

namespace {

constexpr int64_t kMultipliedPerChunk = 16384;

// `other(whole, i, some)`: what the elements from i on are multiplied by.
template <typename T, typename Other>
void multiply_elements(T* x, int64_t count, Other other) {
  const int64_t chunks = (count + kMultipliedPerChunk - 1) / kMultipliedPerChunk;
  for_each_chunk(static_cast<int>(chunks), [&](int chunk) {
    const int64_t begin = chunk * kMultipliedPerChunk;
    const int64_t end = begin + kMultipliedPerChunk < count ? begin + kMultipliedPerChunk : count;
    for_each_vector(begin, end, [&](auto kWhole, int64_t i, int some) {
      store_part<kWhole>(x + i, some, load_part<kWhole>(x + i, some) * other(kWhole, i, some));
    });
  });
}

template <typename T>
void multiply_by_elements(T* x, const T* y, int64_t count) {
  multiply_elements(x, count, [&](auto kWhole, int64_t i, int some) { return load_part<kWhole>(y + i, some); });
}

template <typename T>
void multiply_by_factor(T* x, float factor, int64_t count) {
  multiply_elements(x, count, [&](auto, int64_t, int) { return Lanes::all(factor); });
}

void multiply(void* x, const void* y, int64_t count, int32_t kind) {
  if (kind == kFloat32) {
    multiply_by_elements(static_cast<float*>(x), static_cast<const float*>(y), count);
  } else {
    multiply_by_elements(static_cast<uint16_t*>(x), static_cast<const uint16_t*>(y), count);
  }
}

void scale(void* x, float factor, int64_t count, int32_t kind) {
  if (kind == kFloat32) {
    multiply_by_factor(static_cast<float*>(x), factor, count);
  } else {
    multiply_by_factor(static_cast<uint16_t*>(x), factor, count);
  }
}

}  // namespace
