// Inputs of the gated delta rule for a row, and places of its states, the same for decodes and prompts. Included
// after Lanes.
#pragma once
#include "elements.h"
#include "functions.h"
#include "interface.h"
#include "worker_pool.h"

namespace {

constexpr int64_t kDeltaElements = 1 << 15;  // state elements of a chunk: 128 KB, tens of microseconds
constexpr int kDeltaRows = 4;                // rows of a state at once: eight chains, k and q loaded once

// Calls body(row, first head, end) for chunks of the heads of all rows that decode.
template <typename Body>
void for_each_head_chunk(const DeltaRows& delta, int rows, const Body& body) {
  const int64_t per_head = int64_t{delta.value_dim} * delta.key_dim;
  const int together = static_cast<int>(per_head < kDeltaElements ? kDeltaElements / per_head : 1);
  const int parts = (delta.heads + together - 1) / together;
  for_each_chunk(rows * parts, [&](int chunk) {
    const int first = chunk % parts * together;
    body(chunk / parts, first, first + together < delta.heads ? first + together : delta.heads);
  });
}

// Reads and writes the tensors of DeltaRows as lanes. Their type is checked at each vector: that costs little
// compared with the computation, and prompts need one function instead of six.
class DeltaTensors {
 public:
  explicit DeltaTensors(const DeltaRows& rows) : rows_(rows), heads_to_a_key_(rows.heads / rows.key_heads) {}

  int key_head(int head) const { return head / heads_to_a_key_; }

  // Reads sixteen elements of a row of V from `at` on; elements beyond the end of the row are zero.
  Lanes v(int64_t row, int head, int64_t at) const {
    return load(rows_.kind, rows_.v, row * rows_.v_row + head * rows_.v_head + at, rows_.value_dim - at);
  }
  void put_out(int64_t row, int head, int64_t at, Lanes x) const {
    const int64_t first = row * rows_.out_row + head * rows_.out_head + at;
    if (rows_.kind == kBfloat16) {
      put(static_cast<uint16_t*>(rows_.out) + first, rows_.value_dim - at, x);
    } else {
      put(static_cast<float*>(rows_.out) + first, rows_.value_dim - at, x);
    }
  }

  // Reads sixteen elements of row `v` of a state from `k` on, in the same way.
  Lanes state(int64_t slot, int head, int64_t v, int64_t k) const {
    return load(rows_.state_kind, rows_.state, place(slot, head, v) + k, rows_.key_dim - k);
  }
  void put_state(int64_t slot, int head, int64_t v, int64_t k, Lanes x, uint32_t noise) const {
    const int64_t at = place(slot, head, v) + k, count = rows_.key_dim - k;
    if (rows_.state_kind == kFloat16) {
      const uint32_t element = first_element(head) + static_cast<uint32_t>(v * rows_.key_dim + k);
      put(static_cast<Half*>(rows_.state) + at, count, as_stored<Half>(x, element, noise));
    } else if (rows_.state_kind == kBfloat16) {
      put(static_cast<uint16_t*>(rows_.state) + at, count, x);
    } else {
      put(static_cast<float*>(rows_.state) + at, count, x);
    }
  }
  // Returns the place of row `v` of a state among all states, in elements.
  int64_t place(int64_t slot, int head, int64_t v) const {
    return slot * rows_.state_slab + head * rows_.state_head + v * rows_.state_row;
  }
  // Returns the first element of a head in a dense state; stochastic rounding of float16 depends on it.
  uint32_t first_element(int head) const {
    return static_cast<uint32_t>(int64_t{head} * rows_.value_dim * rows_.key_dim);
  }

  // Returns the factor of `rate` in the logarithm of the decay, which is never negative.
  float step(int64_t row, int head) const {
    return softplus(load(rows_.kind, rows_.a, row * rows_.a_row + head, 1).sum() + rows_.step_bias[head]);
  }
  // Computes the decay of each channel of a head, with ones up to a whole number of vectors.
  void decays(int64_t row, int head, float* out) const {
    const int64_t size = rows_.key_dim, first = row * rows_.a_row + head * size;
    for (int64_t k = 0; k < size; k += kLanes) load(rows_.kind, rows_.a, first + k, size - k).store(out + k);
    for (int64_t k = 0; k < size; ++k) {
      out[k] = rows_.rate[head] * softplus(out[k] + rows_.step_bias[head * size + k]);
    }
    for (int64_t k = size; k % kLanes != 0; ++k) out[k] = 0.0f;
    for (int64_t k = 0; k < size; k += kLanes) exponential(Lanes::load(out + k)).store(out + k);
  }
  float beta(int64_t row, int head) const {
    return rows_.beta_scale / (1.0f + std::exp(-load(rows_.kind, rows_.b, row * rows_.b_row + head, 1).sum()));
  }

  // Normalises the key to length 1 and the query to length `scale`, with zeros up to a whole number of vectors.
  void key(int64_t row, int key_head, float* out) const {
    normalise(rows_.k, row * rows_.k_row + key_head * rows_.k_head, 1.0f, out);
  }
  void query(int64_t row, int key_head, float* out) const {
    normalise(rows_.q, row * rows_.q_row + key_head * rows_.q_head, rows_.scale, out);
  }

 private:
  static Lanes load(int32_t kind, const void* from, int64_t at, int64_t count) {
    if (count <= 0) return Lanes::zero();
    const int some = static_cast<int>(count);
    if (kind == kFloat16) return load_some(static_cast<const Half*>(from) + at, some);
    if (kind == kBfloat16) return load_some(static_cast<const uint16_t*>(from) + at, some);
    return load_some(static_cast<const float*>(from) + at, some);
  }
  template <typename T>
  static void put(T* at, int64_t count, Lanes x) {
    if (count > 0) store_some(at, static_cast<int>(count), x);
  }

  void normalise(const void* from, int64_t at, float length, float* out) const {
    const int64_t size = rows_.key_dim;
    Lanes squares = Lanes::zero();
    for (int64_t k = 0; k < size; k += kLanes) {
      const Lanes part = load(rows_.kind, from, at + k, size - k);
      squares = Lanes::fused(part, part, squares);
      part.store(out + k);
    }
    const Lanes factor = Lanes::all(length / std::sqrt(squares.sum() + rows_.least_square));
    for (int64_t k = 0; k < size; k += kLanes) (Lanes::load(out + k) * factor).store(out + k);
  }

  const DeltaRows& rows_;
  int heads_to_a_key_;
};

}  // namespace
