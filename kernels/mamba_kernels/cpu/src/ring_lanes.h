// Where the rows of a step find the inputs that their states lack, and leave their own: see `StateRing`.
#pragma once
#include "interface.h"

namespace {

class RingLanes {
 public:
  explicit RingLanes(const StateRing& ring) : ring_(ring) {}

  bool in_use() const { return ring_.lane != nullptr; }
  bool writes(int64_t row) const { return ring_.writes[row] != 0; }
  int waiting(int64_t row) const { return ring_.waiting[row]; }
  // Returns the number of a row's oldest input among those of all lanes.
  int64_t first(int64_t row) const { return ring_.lane[row] * ring_.lane_inputs; }
  template <typename T>
  T* input(int64_t number) const {
    return static_cast<T*>(ring_.inputs) + number * ring_.width;
  }
  // Returns where a row leaves its own input; null if it leaves none.
  template <typename T>
  T* own(int64_t row) const {
    if (!in_use() || writes(row) || ring_.lane[row] < 0) return nullptr;
    return input<T>(first(row) + waiting(row));
  }

 private:
  const StateRing& ring_;
};

}  // namespace
