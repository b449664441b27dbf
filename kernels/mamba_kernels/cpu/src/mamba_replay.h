// Several tokens of the Mamba2 recurrence, folded into rows of a state that are read once. Included once by each
// instruction set.
//
// Registers run through the operations of single tokens in their order, so the bits are those of a state that is
// written after each token.
#pragma once
#include <type_traits>

#include "elements.h"

namespace {

// Tokens of a head, oldest first; the last one is the step's own.
struct FoldedTokens {
  int count;
  const float* decay;   // [count] exp(dt A)
  const float* inflow;  // [count, head_dim up to whole vectors] dt x
  int64_t inflow_row;
  const float* B;  // [count, state_size up to whole vectors], the rest zeros
  int64_t B_row;
};

// A head's state before and after its tokens; null if there is none.
template <typename State>
struct FoldedPlaces {
  const State* before;
  State* after;
  State* copy;
  uint32_t first;
  uint32_t noise;
};

// Folds the tokens into `kRows` rows of a state from `p` on, and computes y = C h of the last token.
template <int kRows, typename State>
void fold_rows(const FoldedTokens& tokens, const FoldedPlaces<State>& places, int p, int N, const float* C, float* y) {
  Lanes sums[kRows];
  for (int r = 0; r < kRows; ++r) sums[r] = Lanes::zero();
  const auto columns = [&](auto kWhole, int n) {
    const int count = N - n;
    const float* inflow = tokens.inflow + p;
    const float* B = tokens.B + n;
    Lanes h[kRows];
    int next = 0;
    for (int r = 0; r < kRows; ++r) {
      const int64_t at = int64_t{p + r} * N + n;
      if (places.before == nullptr) {
        h[r] = Lanes::all(inflow[r]) * load(B);
        next = 1;
        continue;
      }
      if (Lanes::kReadAhead > 0) ask_ahead(places.before + at, kLanes * sizeof(State));
      h[r] = load_part<kWhole>(places.before + at, count);
    }
    inflow += next * tokens.inflow_row;
    B += next * tokens.B_row;
    for (int i = next; i < tokens.count; ++i, inflow += tokens.inflow_row, B += tokens.B_row) {
      const Lanes b = load(B), decay = Lanes::all(tokens.decay[i]);
      for (int r = 0; r < kRows; ++r) h[r] = Lanes::fused(h[r], decay, Lanes::all(inflow[r]) * b);
    }
    const Lanes c = load_part<kWhole>(C + n, count);
    for (int r = 0; r < kRows; ++r) sums[r] = Lanes::fused(h[r], c, sums[r]);
    if (places.after == nullptr) return;
    for (int r = 0; r < kRows; ++r) {
      const int64_t at = int64_t{p + r} * N + n;
      const Lanes stored = as_stored<State>(h[r], places.first + static_cast<uint32_t>(at), places.noise);
      store_part<kWhole>(places.after + at, count, stored);
      if (places.copy != nullptr) store_part<kWhole>(places.copy + at, count, stored);
    }
  };
  const int whole = N / kLanes * kLanes;
  for (int n = 0; n < whole; n += kLanes) columns(std::true_type{}, n);
  if (whole < N) columns(std::false_type{}, whole);
  for (int r = 0; r < kRows; ++r) y[p + r] = sums[r].sum();
}

}  // namespace
