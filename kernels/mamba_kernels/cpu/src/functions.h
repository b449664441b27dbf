// Functions of sixteen lanes that the operators share. Included after Lanes.
#pragma once
#include <cmath>

#include "interface.h"

namespace {

// Computes e^x to about one unit in the last place (Cephes' polynomial); zero below the smallest normal float32.
inline Lanes exponential(Lanes x) {
  // Beyond these bounds the result is not a normal number; 127 is the largest exponent that power_of_two can create.
  const Lanes inside = Lanes::clamp(x, -87.33654f, 88.02f);
  const Lanes whole = Lanes::rounded(inside * Lanes::all(1.44269504f));
  Lanes rest = Lanes::fused(whole, Lanes::all(-0.693359375f), inside);
  rest = Lanes::fused(whole, Lanes::all(2.12194440e-4f), rest);
  Lanes series = Lanes::all(1.9875691500e-4f);
  series = Lanes::fused(series, rest, Lanes::all(1.3981999507e-3f));
  series = Lanes::fused(series, rest, Lanes::all(8.3334519073e-3f));
  series = Lanes::fused(series, rest, Lanes::all(4.1665795894e-2f));
  series = Lanes::fused(series, rest, Lanes::all(1.6666665459e-1f));
  series = Lanes::fused(series, rest, Lanes::all(5.0000001201e-1f));
  series = Lanes::fused(series, rest * rest, rest + Lanes::all(1.0f));
  return series * Lanes::power_of_two(whole);
}

inline Lanes sigmoid(Lanes x) { return Lanes::all(1.0f) / (Lanes::all(1.0f) + exponential(Lanes::zero() - x)); }
inline Lanes silu(Lanes x) { return x / (Lanes::all(1.0f) + exponential(Lanes::zero() - x)); }

inline Lanes activated(Lanes x, int32_t activation) {
  // `larger` returns the second operand if the two cannot be compared, so NaN stays NaN.
  if (activation == kRelu) return Lanes::larger(Lanes::zero(), x);
  if (activation == kReluSquared) {
    const Lanes positive = Lanes::larger(Lanes::zero(), x);
    return positive * positive;
  }
  return activation == kSilu ? silu(x) : x;
}

// Computes log(1 + e^x) without overflow.
inline float softplus(float x) { return std::log1p(std::exp(-std::fabs(x))) + (x > 0.0f ? x : 0.0f); }

}  // namespace
