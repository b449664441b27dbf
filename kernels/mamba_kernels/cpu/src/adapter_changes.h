// The changes y += (x A^T) B of a product's rows by low-rank adapters, each row by the adapter of its
// sequence. Included after Lanes.
//
// A row reads only the matrices of its own adapter, and its sums have their own order: it has the same bits alone and
// among others.
#pragma once
#include "elements.h"
#include "functions.h"
#include "scratch.h"
#include "worker_pool.h"

namespace {

constexpr int kInnerAtOnce = 4;  // inner numbers that share a load of x; their sums hide each other's latency

// Computes inner[i] = sum_k first[i][k] x[k] for kCount rows of `first`.
template <int kCount, typename T>
inline void inner_products(const T* first, const T* x, int64_t inputs, float* inner) {
  Lanes sums[kCount];
  for (Lanes& sum : sums) sum = Lanes::zero();
  for_each_vector(0, inputs, [&](auto kWhole, int64_t k, int count) {
    const Lanes part = load_part<kWhole>(x + k, count);
    for (int i = 0; i < kCount; ++i) {
      sums[i] = Lanes::fused(load_part<kWhole>(first + i * inputs + k, count), part, sums[i]);
    }
  });
  for (int i = 0; i < kCount; ++i) inner[i] = sums[i].sum();
}

template <typename T>
void change_row(const AdapterChanges& changes, int64_t place, const T* x, T* out, float* inner) {
  const int64_t rank = changes.ranks[place], width = changes.inputs;
  for (int32_t p = 0; p < changes.part_count; ++p) {
    const AdapterPart& part = changes.parts[p];
    const T* first = static_cast<const T*>(changes.first) + (place * changes.part_count + p) * changes.rank * width;
    const T* second = static_cast<const T*>(part.second) + place * changes.rank * part.width;
    int64_t i = 0;
    for (; i + kInnerAtOnce <= rank; i += kInnerAtOnce) {
      inner_products<kInnerAtOnce>(first + i * width, x, width, inner + i);
    }
    for (; i < rank; ++i) inner_products<1>(first + i * width, x, width, inner + i);
    for_each_vector(0, part.width, [&](auto kWhole, int64_t c, int count) {
      Lanes sum = load_part<kWhole>(out + part.start + c, count);
      for (int64_t k = 0; k < rank; ++k) {
        sum = Lanes::fused(Lanes::all(inner[k]), load_part<kWhole>(second + k * part.width + c, count), sum);
      }
      store_part<kWhole>(out + part.start + c, count, sum);
    });
  }
}

template <typename T>
void change_all(const AdapterChanges& changes, const int32_t* places, const T* x, int64_t x_stride, int64_t rows,
                T* out, int32_t activation) {
  for_each_chunk(static_cast<int>(rows), [&](int row) {
    static thread_local Scratch inner;
    T* y = out + row * changes.outputs;
    if (places[row] >= 0 && changes.ranks[places[row]] > 0) {
      change_row(changes, places[row], x + row * x_stride, y, inner.get<float>(changes.rank));
    }
    if (activation == kIdentity) return;
    for_each_vector(0, changes.outputs, [&](auto kWhole, int64_t i, int count) {
      store_part<kWhole>(y + i, count, activated(load_part<kWhole>(y + i, count), activation));
    });
  });
}

void change_rows(const AdapterChanges* changes, const int32_t* places, const void* x, int64_t x_stride, int64_t rows,
                 void* out, int32_t activation) {
  if (changes->kind == kFloat32) {
    change_all(*changes, places, static_cast<const float*>(x), x_stride, rows, static_cast<float*>(out), activation);
  } else {
    change_all(*changes, places, static_cast<const uint16_t*>(x), x_stride, rows, static_cast<uint16_t*>(out),
               activation);
  }
}

}  // namespace
