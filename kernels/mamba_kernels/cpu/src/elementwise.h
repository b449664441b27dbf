// Elementwise operations: an MLP's inner values times their gate, rows of an embedding times a factor, sums of mixers.
#pragma once
#include "elements.h"
#include "worker_pool.h"

namespace {

constexpr int64_t kElementsAtOnce = 16384;

// Replaces each vector of x: `change(whole, part, i, some)` returns the new one for `part`, which has the
// `some` elements from i on.
template <typename T, typename Change>
void change_elements(T* x, int64_t count, Change change) {
  const int64_t chunks = (count + kElementsAtOnce - 1) / kElementsAtOnce;
  for_each_chunk(static_cast<int>(chunks), [&](int chunk) {
    const int64_t begin = chunk * kElementsAtOnce;
    const int64_t end = begin + kElementsAtOnce < count ? begin + kElementsAtOnce : count;
    for_each_vector(begin, end, [&](auto kWhole, int64_t i, int some) {
      store_part<kWhole>(x + i, some, change(kWhole, load_part<kWhole>(x + i, some), i, some));
    });
  });
}

template <typename T>
void multiply_elements(T* x, const T* y, int64_t count) {
  change_elements(x, count, [&](auto kWhole, Lanes part, int64_t i, int some) {
    return part * load_part<kWhole>(y + i, some);
  });
}

template <typename T>
void add_elements(T* x, const T* y, int64_t count) {
  change_elements(x, count, [&](auto kWhole, Lanes part, int64_t i, int some) {
    return part + load_part<kWhole>(y + i, some);
  });
}

template <typename T>
void scale_elements(T* x, float factor, int64_t count) {
  change_elements(x, count, [&](auto, Lanes part, int64_t, int) { return part * Lanes::all(factor); });
}

void multiply(void* x, const void* y, int64_t count, int32_t kind) {
  if (kind == kFloat32) {
    multiply_elements(static_cast<float*>(x), static_cast<const float*>(y), count);
  } else {
    multiply_elements(static_cast<uint16_t*>(x), static_cast<const uint16_t*>(y), count);
  }
}

void add(void* x, const void* y, int64_t count, int32_t kind) {
  if (kind == kFloat32) {
    add_elements(static_cast<float*>(x), static_cast<const float*>(y), count);
  } else {
    add_elements(static_cast<uint16_t*>(x), static_cast<const uint16_t*>(y), count);
  }
}

void scale(void* x, float factor, int64_t count, int32_t kind) {
  if (kind == kFloat32) {
    scale_elements(static_cast<float*>(x), factor, count);
  } else {
    scale_elements(static_cast<uint16_t*>(x), factor, count);
  }
}

}  // namespace
