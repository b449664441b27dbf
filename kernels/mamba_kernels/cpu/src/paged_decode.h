// Attention of one new token for each of some sequences over paged keys and values, in one call. Included once
// by each instruction set.
//
// A chunk is one sequence and one KV head, whose query heads process block after block together. The context is
// processed in its own order, so a row's bits depend on its own context alone.
#pragma once
#include "elements.h"
#include "functions.h"
#include "scratch.h"
#include "worker_pool.h"

namespace {

constexpr int kMostVectors = 36;     // vectors of a head: MOST_HEAD_DIM of ../paged_decode.py
constexpr int32_t kPositions = 64;  // positions of a block: tens of kilobytes of keys, in the first or second cache

// Returns the power of two by which a row of FP8 is multiplied.
inline float factor_of(uint8_t scale) {
  const uint32_t bits = uint32_t{scale} << 23;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Stored: type of the pages' numbers, T or Fp8. The factor of a row of FP8 is a power of two, so the results
// have the bits of those for rows of T with the same numbers. kVectors: vectors of a head, all of them whole;
// 0 = any number, the last of which may be partial. If the number is known, sums and queries stay in
// registers.
template <typename T, typename Stored, int kVectors>
class PagedDecodeCall {
 public:
  explicit PagedDecodeCall(const PagedDecode& call)
      : call_(call), group_(call.heads / call.kv_heads), any_((call.head_dim + kLanes - 1) / kLanes) {}

  void run() const {
    for_each_chunk(call_.rows * call_.kv_heads,
                   [this](int chunk) { attend(chunk / call_.kv_heads, chunk % call_.kv_heads); });
  }

 private:
  static constexpr bool kWhole = kVectors > 0;
  static constexpr bool kScaled = std::is_same_v<Stored, Fp8>;

  int vectors() const { return kWhole ? kVectors : any_; }
  int count(int vector) const { return call_.head_dim - vector * kLanes; }

  // Calls body(position, key (which = 0) or value (which = 1), its factor) for positions of a context; those of a page
  // are contiguous.
  template <typename Body>
  void by_pages(const int32_t* pages, int kv_head, int which, int32_t first, int32_t end, const Body& body) const {
    const int64_t step = int64_t{call_.kv_heads} * call_.head_dim;
    for (int32_t t = first; t < end;) {
      const int32_t page = t / call_.page_size, offset = t % call_.page_size;
      const int32_t stop = end - t < call_.page_size - offset ? end : t - offset + call_.page_size;
      const Stored* at = static_cast<const Stored*>(call_.kv) + pages[page] * call_.page_stride +
                         which * call_.value_offset + offset * step + int64_t{kv_head} * call_.head_dim;
      if constexpr (kScaled) {
        const uint8_t* scale = call_.scales + pages[page] * call_.scale_stride + which * call_.scale_offset +
                               int64_t{offset} * call_.kv_heads + kv_head;
        for (; t < stop; ++t, at += step, scale += call_.kv_heads) body(t, at, factor_of(*scale));
      } else {
        for (; t < stop; ++t, at += step) body(t, at, 1.0f);
      }
    }
  }

  // Calls body(query head of the group, first, end) for blocks of positions that stay cached for the whole group.
  template <typename Body>
  void by_blocks(int32_t context, const Body& body) const {
    for (int32_t first = 0; first < context; first += kPositions) {
      const int32_t end = first + kPositions < context ? first + kPositions : context;
      for (int member = 0; member < group_; ++member) body(member, first, end);
    }
  }

  void attend(int row, int kv_head) const {
    static thread_local Scratch scratch;
    const int32_t context = call_.context_len[row];
    const int32_t* pages = call_.page_table + call_.table_row[row] * call_.page_table_stride;
    // Scores [query heads of the group, context], and sums [query heads, vectors, kLanes]
    float* weights = scratch.get<float>(int64_t{group_} * (context + vectors() * kLanes));
    float* sums = weights + int64_t{group_} * context;
    std::memset(sums, 0, static_cast<size_t>(group_) * vectors() * kLanes * sizeof(float));
    const int64_t first_head = int64_t{kv_head} * group_;
    const T* queries = static_cast<const T*>(call_.query) + row * call_.query_stride + first_head * call_.head_dim;
    by_blocks(context, [&](int member, int32_t first, int32_t end) {
      score(queries + member * call_.head_dim, pages, kv_head, first, end, weights + int64_t{member} * context);
    });
    for (int member = 0; member < group_; ++member) normalize(weights + int64_t{member} * context, context);
    by_blocks(context, [&](int member, int32_t first, int32_t end) {
      add_values(weights + int64_t{member} * context, pages, kv_head, first, end, sums + member * vectors() * kLanes);
    });
    T* out = static_cast<T*>(call_.out) + (row * int64_t{call_.heads} + first_head) * call_.head_dim;
    for (int member = 0; member < group_; ++member) {
      for (int v = 0; v < vectors(); ++v) {
        store_some(out + member * call_.head_dim + v * kLanes, count(v),
                   Lanes::load(sums + (member * vectors() + v) * kLanes));
      }
    }
  }

  void score(const T* query, const int32_t* pages, int kv_head, int32_t first, int32_t end, float* scores) const {
    Lanes q[kWhole ? kVectors : kMostVectors];
    for (int v = 0; v < vectors(); ++v) q[v] = load_part<kWhole>(query + v * kLanes, count(v));
    by_pages(pages, kv_head, 0, first, end, [&](int32_t t, const Stored* key, float factor) {
      Lanes sum = Lanes::zero();
      for (int v = 0; v < vectors(); ++v) {
        sum = Lanes::fused(q[v], load_part<kWhole>(key + v * kLanes, count(v)), sum);
      }
      scores[t] = sum.sum() * factor * call_.scale;
    });
  }

  void add_values(const float* weights, const int32_t* pages, int kv_head, int32_t first, int32_t end,
                  float* sums) const {
    Lanes parts[kWhole ? kVectors : kMostVectors];
    for (int v = 0; v < vectors(); ++v) parts[v] = Lanes::load(sums + v * kLanes);
    by_pages(pages, kv_head, 1, first, end, [&](int32_t t, const Stored* value, float factor) {
      const Lanes weight = Lanes::all(weights[t] * factor);
      for (int v = 0; v < vectors(); ++v) {
        parts[v] = Lanes::fused(weight, load_part<kWhole>(value + v * kLanes, count(v)), parts[v]);
      }
    });
    for (int v = 0; v < vectors(); ++v) parts[v].store(sums + v * kLanes);
  }

  // Computes the softmax in place.
  static void normalize(float* scores, int32_t context) {
    float most = scores[0];
    for (int32_t t = 1; t < context; ++t) most = scores[t] > most ? scores[t] : most;
    Lanes total = Lanes::zero();
    for (int32_t t = 0; t < context; t += kLanes) {
      const int some = context - t < kLanes ? context - t : kLanes;
      float part[kLanes];
      exponential(load_some(scores + t, some) - Lanes::all(most)).store(part);
      for (int i = some; i < kLanes; ++i) part[i] = 0.0f;
      total = total + Lanes::load(part);
      std::memcpy(scores + t, part, static_cast<size_t>(some) * sizeof(float));
    }
    const float scale = 1.0f / total.sum();
    for (int32_t t = 0; t < context; ++t) scores[t] *= scale;
  }

  const PagedDecode& call_;
  int group_;
  int any_;  // vectors of a head if kVectors is 0
};

template <typename T, typename Stored>
void run_paged_decode(const PagedDecode& call) {
  switch (call.head_dim) {
    case 64: return PagedDecodeCall<T, Stored, 4>(call).run();
    case 128: return PagedDecodeCall<T, Stored, 8>(call).run();
    default: return PagedDecodeCall<T, Stored, 0>(call).run();
  }
}

template <typename T>
void run_paged_decode(const PagedDecode& call) {
  call.scales == nullptr ? run_paged_decode<T, T>(call) : run_paged_decode<T, Fp8>(call);
}

void paged_decode(const PagedDecode* call) {
  call->kind == kBfloat16 ? run_paged_decode<uint16_t>(*call) : run_paged_decode<float>(*call);
}

}  // namespace
