// Keys and values of new tokens into pages of FP8: rows are rounded by the rule of ../fp8_pages.py. Included once by
// each instruction set. Pages of other types take copies of rows, which need no kernel.
#pragma once
#include "elements.h"
#include "worker_pool.h"

namespace {

constexpr int64_t kWrittenPerChunk = 16384;
constexpr uint32_t kTop = 0x1fffff, kLeastScale = 32, kNotFinite = 255;  // of ../fp8_pages.py

inline float of_bits(uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}
inline uint32_t bits_of(float x) {
  uint32_t out;
  std::memcpy(&out, &x, sizeof out);
  return out;
}

// Rounds the row of one head; returns its scale.
template <typename T>
uint8_t round_row(const T* row, int64_t width, Fp8* out) {
  uint32_t largest = 0;
  for_each_vector(0, width, [&](auto kWhole, int64_t i, int count) {
    const Lanes x = load_part<kWhole>(row + i, count);
    const uint32_t size = bits_of(Lanes::largest_size(x, x));
    largest = size > largest ? size : largest;
  });
  uint32_t scale = (largest + kTop) >> 23;
  scale = scale < kLeastScale ? kLeastScale : scale;
  if (scale >= kNotFinite) {
    std::memset(out, 0, static_cast<size_t>(width));
    return kNotFinite;
  }
  const Lanes factor = Lanes::all(of_bits((262 - scale) << 23));
  for_each_vector(0, width, [&](auto kWhole, int64_t i, int count) {
    store_part<kWhole>(out + i, count, load_part<kWhole>(row + i, count) * factor);
  });
  return static_cast<uint8_t>(scale);
}

template <typename T>
void write_rows(const KvWrite& call) {
  const int64_t width = int64_t{call.kv_heads} * call.head_dim;
  const int64_t some = width < kWrittenPerChunk ? kWrittenPerChunk / width : 1;
  for_each_chunk(static_cast<int>((call.rows + some - 1) / some), [&](int chunk) {
    const int64_t end = (chunk + 1) * some < call.rows ? (chunk + 1) * some : call.rows;
    for (int64_t row = chunk * some; row < end; ++row) {
      const int64_t page = call.key_row[row] / call.page_size, offset = call.key_row[row] % call.page_size;
      for (int which = 0; which < 2; ++which) {
        const T* from = which == 0 ? static_cast<const T*>(call.key) + row * call.key_stride
                                   : static_cast<const T*>(call.value) + row * call.value_stride;
        uint8_t* numbers = call.kv + page * call.page_stride + which * call.value_offset + offset * width;
        uint8_t* scales = call.scales + page * call.scale_stride + which * call.scale_offset + offset * call.kv_heads;
        for (int32_t head = 0; head < call.kv_heads; ++head) {
          scales[head] = round_row(from + int64_t{head} * call.head_dim, call.head_dim,
                                   reinterpret_cast<Fp8*>(numbers) + int64_t{head} * call.head_dim);
        }
      }
    }
  });
}

void kv_write(const KvWrite* call) {
  call->kind == kBfloat16 ? write_rows<uint16_t>(*call) : write_rows<float>(*call);
}

}  // namespace
