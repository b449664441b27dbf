// The rules of mamba_kernels/moe/routing.py, one row at a time.
#include "route.h"

#include <cmath>
#include <limits>

#include "scratch.h"

namespace {

constexpr float kLeastSum = 1e-20f;

// NaN comes before all numbers, as in torch's sort.
bool is_before(float a, float b) { return a > b || (a != a && b == b); }

// Finds the places of the `wanted` largest of `count` scores, in order; of equal scores the first comes first.
void choose(const float* scores, int32_t count, int32_t wanted, int32_t* chosen) {
  int32_t kept = 0;
  for (int32_t i = 0; i < count; ++i) {
    int32_t at = kept;
    while (at > 0 && is_before(scores[i], scores[chosen[at - 1]])) --at;
    if (at == wanted) continue;
    if (kept < wanted) ++kept;
    for (int32_t k = kept - 1; k > at; --k) chosen[k] = chosen[k - 1];
    chosen[at] = i;
  }
}

// Keeps only the scores of the groups whose two best scores have the largest sums.
void keep_groups(const Router& router, float* scores, float* best, int32_t* kept) {
  const int32_t size = router.experts / router.groups;
  for (int32_t group = 0; group < router.groups; ++group) {
    int32_t two[2] = {0, 0};
    const float* own = scores + group * size;
    choose(own, size, size < 2 ? size : 2, two);
    best[group] = size < 2 ? own[0] : own[two[0]] + own[two[1]];
  }
  choose(best, router.groups, router.kept_groups, kept);
  for (int32_t group = 0; group < router.groups; ++group) {
    bool stays = false;
    for (int32_t k = 0; k < router.kept_groups; ++k) stays |= kept[k] == group;
    if (stays) continue;
    for (int32_t i = group * size; i < (group + 1) * size; ++i) scores[i] = -std::numeric_limits<float>::infinity();
  }
}

void weigh_by_sigmoid(const Router& router, const float* scores, const int32_t* chosen, float* weights) {
  float sum = kLeastSum;
  for (int32_t k = 0; k < router.top_k; ++k) sum += scores[chosen[k]];
  for (int32_t k = 0; k < router.top_k; ++k) {
    weights[k] = scores[chosen[k]] / (router.renormalise ? sum : 1.0f) * router.scale;
  }
}

void weigh_by_softmax(const Router& router, const float* logits, const int32_t* chosen, float* weights) {
  const float largest = logits[chosen[0]];
  float sum = 0.0f;
  if (router.renormalise) {
    for (int32_t k = 0; k < router.top_k; ++k) sum += std::exp(logits[chosen[k]] - largest);
  } else {
    for (int32_t i = 0; i < router.experts; ++i) sum += std::exp(logits[i] - largest);
  }
  for (int32_t k = 0; k < router.top_k; ++k) {
    weights[k] = std::exp(logits[chosen[k]] - largest) / sum * router.scale;
  }
}

}  // namespace

void route(const Router& router, const float* logits, int64_t rows, int32_t* chosen, float* weights) {
  static thread_local Scratch all, grouped, groups;
  float* scores = all.get<float>(2 * router.experts);
  float* choice = scores + router.experts;
  float* best = grouped.get<float>(router.groups);
  int32_t* kept = groups.get<int32_t>(router.groups);
  for (int64_t row = 0; row < rows; ++row) {
    const float* own = logits + row * router.experts;
    int32_t* picked = chosen + row * router.top_k;
    for (int32_t i = 0; i < router.experts; ++i) {
      scores[i] = router.sigmoid ? 1.0f / (1.0f + std::exp(-own[i])) : own[i];
      choice[i] = router.correction == nullptr ? scores[i] : scores[i] + router.correction[i];
    }
    if (router.kept_groups < router.groups) keep_groups(router, choice, best, kept);
    choose(choice, router.experts, router.top_k, picked);
    if (router.sigmoid) {
      weigh_by_sigmoid(router, scores, picked, weights + row * router.top_k);
    } else {
      weigh_by_softmax(router, scores, picked, weights + row * router.top_k);
    }
  }
}
