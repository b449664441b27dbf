// Root mean square norms of the residual stream, and of a mixer's output after its gate.
#pragma once
#include "elements.h"
#include "functions.h"
#include "worker_pool.h"

namespace {

// Returns the factor with which the mean square becomes one.
inline float inverse_root_mean_square(Lanes squares, int64_t width, float eps) {
  return 1.0f / std::sqrt(squares.sum() / static_cast<float>(width) + eps);
}

template <typename In, typename W, typename T>
void rms_norm_row(In* x, const T* added, const W* weight, T* out, int64_t width, float eps) {
  Lanes squares = Lanes::zero();
  for_each_vector(0, width, [&](auto kWhole, int64_t i, int count) {
    Lanes part = load_part<kWhole>(x + i, count);
    if (added != nullptr) {
      store_part<kWhole>(x + i, count, part + load_part<kWhole>(added + i, count));
      part = load_part<kWhole>(x + i, count);  // read again, rounded
    }
    squares = Lanes::fused(part, part, squares);
  });
  const Lanes scale = Lanes::all(inverse_root_mean_square(squares, width, eps));
  for_each_vector(0, width, [&](auto kWhole, int64_t i, int count) {
    store_part<kWhole>(out + i, count,
                       load_part<kWhole>(x + i, count) * scale * load_part<kWhole>(weight + i, count));
  });
}

constexpr int64_t kElementsPerChunk = 16384;

template <typename In, typename W, typename T>
void rms_norm_rows(const RmsNorm& call) {
  const int64_t per_chunk = call.width < kElementsPerChunk ? kElementsPerChunk / call.width : 1;
  const int64_t chunks = (call.rows + per_chunk - 1) / per_chunk;
  for_each_chunk(static_cast<int>(chunks), [&](int chunk) {
    const int64_t end = (chunk + 1) * per_chunk < call.rows ? (chunk + 1) * per_chunk : call.rows;
    for (int64_t row = chunk * per_chunk; row < end; ++row) {
      const T* added = call.added == nullptr ? nullptr : static_cast<const T*>(call.added) + row * call.width;
      rms_norm_row(static_cast<In*>(call.x) + row * call.x_stride, added, static_cast<const W*>(call.weight),
                   static_cast<T*>(call.out) + row * call.width, call.width, call.eps);
    }
  });
}

void rms_norm(const RmsNorm* call) {
  const bool wide_weight = call->weight_kind == kFloat32;
  if (call->kind == kFloat32) {
    rms_norm_rows<float, float, float>(*call);
  } else if (call->x_kind == kFloat32) {
    wide_weight ? rms_norm_rows<float, float, uint16_t>(*call) : rms_norm_rows<float, uint16_t, uint16_t>(*call);
  } else {
    wide_weight ? rms_norm_rows<uint16_t, float, uint16_t>(*call) : rms_norm_rows<uint16_t, uint16_t, uint16_t>(*call);
  }
}

// Computes norm(y * silu(gate)) * weight over each of `groups` parts; y [width] is overwritten.
template <typename T>
void gated_norm_row(float* y, const T* gate, const T* weight, T* out, int64_t width, int groups, float eps) {
  const int64_t part = width / groups;
  for (int64_t first = 0; first < width; first += part) {
    Lanes squares = Lanes::zero();
    for_each_vector(first, first + part, [&](auto kWhole, int64_t i, int count) {
      const Lanes gated = load_part<kWhole>(y + i, count) * silu(load_part<kWhole>(gate + i, count));
      squares = Lanes::fused(gated, gated, squares);
      store_part<kWhole>(y + i, count, gated);
    });
    const Lanes scale = Lanes::all(inverse_root_mean_square(squares, part, eps));
    for_each_vector(first, first + part, [&](auto kWhole, int64_t i, int count) {
      const Lanes gated = load_part<kWhole>(y + i, count);
      store_part<kWhole>(out + i, count,
                         weight == nullptr ? gated : gated * scale * load_part<kWhole>(weight + i, count));
    });
  }
}

// Computes y = norm(y) * weight * silu(gate), or sigmoid(gate), for each head, with the norm before the gate.
template <bool kSigmoid, typename T>
void norm_and_gate_heads(T* y, const T* gate, const float* weight, int heads, int64_t width, float eps) {
  for (int64_t first = 0; first < heads * width; first += width) {
    T* head = y + first;
    Lanes squares = Lanes::zero();
    for_each_vector(0, width, [&](auto kWhole, int64_t i, int count) {
      const Lanes part = load_part<kWhole>(head + i, count);
      squares = Lanes::fused(part, part, squares);
    });
    const Lanes scale = Lanes::all(inverse_root_mean_square(squares, width, eps));
    for_each_vector(0, width, [&](auto kWhole, int64_t i, int count) {
      const Lanes normed = load_part<kWhole>(head + i, count) * scale * load_part<kWhole>(weight + i, count);
      const Lanes part = load_part<kWhole>(gate + first + i, count);
      store_part<kWhole>(head + i, count, normed * (kSigmoid ? sigmoid(part) : silu(part)));
    });
  }
}

}  // namespace
