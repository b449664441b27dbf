// Memory for intermediate values of one call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {

// Memory of the calling thread, kept between calls. It grows on demand, and loses its contents when it does.
class Scratch {
 public:
  ~Scratch() { std::free(memory_); }
  template <typename T>
  T* get(int64_t count) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    if (bytes > size_) {
      std::free(memory_);
      memory_ = std::aligned_alloc(64, bytes);
      if (memory_ == nullptr) std::abort();
      size_ = bytes;
    }
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_ = nullptr;
  size_t size_ = 0;
};

}  // namespace
