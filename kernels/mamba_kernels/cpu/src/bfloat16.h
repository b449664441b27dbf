// Conversion of single bfloat16 numbers, for any x86-64.
#pragma once
#include <cstdint>
#include <cstring>

namespace {

inline float widened(uint16_t bfloat16) {
  const uint32_t bits = static_cast<uint32_t>(bfloat16) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

}  // namespace
