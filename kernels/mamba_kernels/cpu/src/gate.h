// A sigmoid gate on the result of attention.
#pragma once
#include "elements.h"
#include "functions.h"
#include "worker_pool.h"

namespace {

constexpr int64_t kGatedPerChunk = 16384;

template <typename T>
void gate_rows(const SigmoidGate& call) {
  const int64_t some = call.width < kGatedPerChunk ? kGatedPerChunk / call.width : 1;
  for_each_chunk(static_cast<int>((call.rows + some - 1) / some), [&](int chunk) {
    const int64_t end = (chunk + 1) * some < call.rows ? (chunk + 1) * some : call.rows;
    for (int64_t row = chunk * some; row < end; ++row) {
      T* x = static_cast<T*>(call.x) + row * call.width;
      const T* gate = static_cast<const T*>(call.gate) + row * call.gate_stride;
      for_each_vector(0, call.width, [&](auto kWhole, int64_t i, int count) {
        store_part<kWhole>(x + i, count,
                           load_part<kWhole>(x + i, count) * sigmoid(load_part<kWhole>(gate + i, count)));
      });
    }
  });
}

void gate(const SigmoidGate* call) {
  call->kind == kFloat32 ? gate_rows<float>(*call) : gate_rows<uint16_t>(*call);
}

}  // namespace
