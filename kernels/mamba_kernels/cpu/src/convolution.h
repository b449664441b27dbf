// The causal convolution of each channel over its last inputs, which are kept in a window of the sequence. Included
// after Lanes.
#pragma once
#include "elements.h"
#include "functions.h"
#include "interface.h"

namespace {

// Weights of a convolution, and its windows.
template <typename T>
struct Convolution {
  const float* weight;  // [taps, channels]
  const float* bias;    // [channels] or null
  int64_t channels;
  int taps;
  T* windows;  // [slabs, taps - 1, channels]
  int64_t window_stride;

  T* window(int64_t slot) const { return windows + slot * window_stride; }

  // Computes out = silu(sum_k weight[k] input[t - K + 1 + k] + bias) of all channels, rounded to T, and advances the
  // window.
  template <typename Out>
  void move_on(const T* input, int64_t source, int64_t target, int64_t track, Out* out) const {
    const int past = taps - 1;
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int count = static_cast<int>(channels - c);
      Lanes sum = bias == nullptr ? Lanes::zero() : load_some(bias + c, count);
      for (int k = 0; k <= past; ++k) {
        const Lanes x = k == past     ? load_some(input + c, count)
                        : source < 0 ? Lanes::zero()
                                     : load_some(window(source) + k * channels + c, count);
        sum = Lanes::fused(x, load_some(weight + k * channels + c, count), sum);
        // The oldest input is dropped; in place, each input is read before the one before it is overwritten.
        if (k > 0) {
          store_some(window(target) + (k - 1) * channels + c, count, x);
          if (track >= 0) store_some(window(track) + (k - 1) * channels + c, count, x);
        }
      }
      T rounded[kLanes];
      store(rounded, silu(sum));
      store_some(out + c, count, load(rounded));
    }
  }
};

// Returns the convolution of a mixer's call.
template <typename T, typename Call>
Convolution<T> convolution_of(const Call& call, const float* bias, int64_t channels) {
  return {call.mixer->conv_weight,      bias, channels, call.mixer->taps, static_cast<T*>(call.window),
          call.window_stride};
}

}  // namespace
