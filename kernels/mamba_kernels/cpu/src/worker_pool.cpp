#include "worker_pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace {

// An idle worker first spins (the next call of a step is microseconds away), then lets other threads run between its
// checks, then sleeps.
constexpr int kSpins = 2000;
constexpr std::chrono::microseconds kAwake(200);
constexpr unsigned kFlushDenormals = 0x8040;  // FTZ | DAZ of MXCSR, which bfloat16 instructions imply

class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushDenormals); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

class WorkerPool {
 public:
  void run(int count, ChunkFunction function, void* context) {
    FlushDenormals flush;
    std::unique_lock<std::mutex> only(callers_, std::try_to_lock);
    if (count == 1 || !only.owns_lock() || workers_.empty()) {
      for (int chunk = 0; chunk < count; ++chunk) function(context, chunk);
      return;
    }
    function_ = function;
    context_ = context;
    finished_.store(0, std::memory_order_relaxed);
    // Sequentially consistent, like `parked_`: either we see the sleeping worker or it sees these chunks.
    ticket_.store(static_cast<uint64_t>(count) << 32);
    if (parked_.load() > 0) {
      std::lock_guard<std::mutex> lock(park_);
      wake_.notify_all();
    }
    take_chunks();
    wait_for_all(count);
  }

  void resize(int count) {
    std::lock_guard<std::mutex> only(callers_);
    {
      std::lock_guard<std::mutex> lock(park_);
      stop_ = true;
      wake_.notify_all();
    }
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    stop_ = false;
    for (int i = 1; i < count; ++i) workers_.emplace_back([this] { work(); });
  }

  int size() {
    std::lock_guard<std::mutex> only(callers_);
    return static_cast<int>(workers_.size()) + 1;
  }

 private:
  static bool left(uint64_t ticket) { return static_cast<uint32_t>(ticket) < ticket >> 32; }

  // The thread that advances the ticket owns the chunk, and an owned chunk keeps the call alive: function_ and context_
  // are read only during that time.
  void take_chunks() {
    uint64_t ticket = ticket_.load();
    while (left(ticket)) {
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
      function_(context_, static_cast<int>(static_cast<uint32_t>(ticket)));
      finished_.fetch_add(1, std::memory_order_release);
      ticket = ticket_.load();
    }
  }

  // The chunks of the other threads take microseconds. A longer wait means that such a thread does not run, so the
  // core is yielded to the thread that keeps it from running.
  void wait_for_all(int count) {
    const auto all = [&] { return finished_.load(std::memory_order_acquire) == count; };
    for (int i = 0; i < kSpins; ++i) {
      if (all()) return;
      _mm_pause();
    }
    while (!all()) sched_yield();
  }

  void work() {
    FlushDenormals flush;
    while (!stop_) {
      if (wait_awake()) {
        take_chunks();
        continue;
      }
      std::unique_lock<std::mutex> lock(park_);
      parked_.fetch_add(1);
      wake_.wait(lock, [this] { return stop_ || left(ticket_.load()); });
      parked_.fetch_sub(1);
    }
  }

  bool wait_awake() {
    for (int i = 0; i < kSpins; ++i) {
      if (left(ticket_.load(std::memory_order_relaxed))) return true;
      _mm_pause();
    }
    const auto end = std::chrono::steady_clock::now() + kAwake;
    while (std::chrono::steady_clock::now() < end) {
      if (stop_ || left(ticket_.load(std::memory_order_relaxed))) return true;
      sched_yield();
    }
    return false;
  }

  std::mutex callers_;
  std::vector<std::thread> workers_;
  ChunkFunction function_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint64_t> ticket_{0};  // chunks << 32 | next one
  alignas(64) std::atomic<int> finished_{0};
  alignas(64) std::atomic<int> parked_{0};
  std::atomic<bool> stop_{false};
  std::mutex park_;
  std::condition_variable wake_;
};

WorkerPool* pool = new WorkerPool;  // never destroyed: workers may sleep in it when the process ends

// A forked child has none of the threads; it begins with an empty pool.
const int registered = pthread_atfork(nullptr, nullptr, [] { pool = new WorkerPool; });

}  // namespace

void run_chunks(int count, ChunkFunction function, void* context) {
  if (count > 0) pool->run(count, function, context);
}

void set_threads(int count) { pool->resize(count); }

int threads() { return pool->size(); }
