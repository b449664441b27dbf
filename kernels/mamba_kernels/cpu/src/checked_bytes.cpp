// Moves bytes between a socket and memory, and computes the checksums of their blocks, in one pass over
// memory: a window of bytes is in the second cache during its system call and its checksum. Compiled for any
// x86-64.
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <chrono>
#include <new>

#include "interface.h"
#include "xxh3.h"

namespace {

constexpr int64_t kWindow = 256 << 10;  // bytes of one system call, which stay in the second cache
constexpr int kVectors = 256;
constexpr auto kSlice = std::chrono::milliseconds(50);

// A place in the pieces of memory.
struct Place {
  int64_t piece = 0, offset = 0;

  // Returns how many of `count` bytes follow in the same piece, and passes them.
  int64_t pass(const CheckedBytes& call, int64_t count) {
    const int64_t here = std::min(count, call.lengths[piece] - offset);
    offset += here;
    if (offset == call.lengths[piece]) {
      ++piece;
      offset = 0;
    }
    return here;
  }
  uint8_t* address(const CheckedBytes& call) const {
    return reinterpret_cast<uint8_t*>(call.addresses[piece]) + offset;
  }
};

class Bytes {
 public:
  explicit Bytes(const CheckedBytes& call) : call_(call) {
    for (int64_t block = 0; block < call.blocks; ++block) left_ += call.sizes[block];
    checksum_.begin(call.sizes[0]);
  }

  // Returns the bytes that were moved within one slice of time; 0 if the peer has closed, or minus an error number.
  int64_t move(int socket) {
    const auto until = std::chrono::steady_clock::now() + kSlice;
    int64_t moved = 0;
    while (left_ > 0) {
      const int64_t now = call_.sends ? send_window(socket) : receive_window(socket);
      if (now <= 0) {
        // The bytes moved before the error or the end are reported first; the next call meets either again.
        if (moved == 0) moved = now;
        break;
      }
      moved += now;
      if (std::chrono::steady_clock::now() >= until) break;
    }
    return moved;
  }

 private:
  int64_t send_window(int socket) {
    if (ahead_ == 0) {
      ahead_ = std::min(left_, kWindow);
      add_window(ahead_, summed_);
    }
    iovec vectors[kVectors];
    msghdr message = {};
    message.msg_iov = vectors;
    message.msg_iovlen = list_window(vectors, ahead_);
    const int64_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent < 0) return -errno;
    for (int64_t rest = sent; rest > 0;) rest -= next_.pass(call_, rest);
    ahead_ -= sent;
    left_ -= sent;
    return sent;
  }

  int64_t receive_window(int socket) {
    iovec vectors[kVectors];
    msghdr message = {};
    message.msg_iov = vectors;
    message.msg_iovlen = list_window(vectors, std::min(left_, kWindow));
    // A whole window at a time: a thread that wakes for each part of one costs more than it gains.
    const int64_t received = recvmsg(socket, &message, MSG_WAITALL);
    if (received <= 0) return received < 0 ? -errno : 0;
    add_window(received, next_);
    left_ -= received;
    return received;
  }

  // Lists the memory of the next `bytes` bytes from `next_`, as far as the vectors reach; returns their number.
  int list_window(iovec* vectors, int64_t bytes) const {
    Place place = next_;
    int count = 0;
    for (; bytes > 0 && count < kVectors; ++count) {
      vectors[count].iov_base = place.address(call_);
      vectors[count].iov_len = place.pass(call_, bytes);
      bytes -= static_cast<int64_t>(vectors[count].iov_len);
    }
    return count;
  }

  // Adds the next `bytes` bytes from `place` to the checksums of their blocks, and passes them.
  void add_window(int64_t bytes, Place& place) {
    while (bytes > 0) {
      const uint8_t* const from = place.address(call_);
      const int64_t here = place.pass(call_, std::min(bytes, checksum_.left()));
      checksum_.add(from, here, call_.wide);
      if (checksum_.left() == 0) {
        call_.digests[block_++] = checksum_.result();
        if (block_ < call_.blocks) checksum_.begin(call_.sizes[block_]);
      }
      bytes -= here;
    }
  }

  const CheckedBytes call_;
  Checksum checksum_;
  Place next_;    // the next byte of the socket
  Place summed_;  // of a sender, the next byte without a checksum
  int64_t left_ = 0;   // bytes that have not passed the socket
  int64_t ahead_ = 0;  // of these, bytes to be sent whose checksums are computed
  int64_t block_ = 0;
};

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

// Prepares to move the bytes of `call`, whose arrays the caller keeps. Returns null without memory, or for a block that
// is too small.
void* mamba_begin_checked_bytes(const CheckedBytes* call) {
  CheckedBytes own = *call;
  if (own.blocks == 0) return nullptr;
  for (int64_t block = 0; block < own.blocks; ++block) {
    if (own.sizes[block] < kSmallestBlock) return nullptr;
  }
  __builtin_cpu_init();
  own.wide = own.wide && __builtin_cpu_supports("avx512f");
  return new (std::nothrow) Bytes(own);
}

int64_t mamba_move_checked_bytes(void* bytes, int socket) { return static_cast<Bytes*>(bytes)->move(socket); }

void mamba_end_checked_bytes(void* bytes) { delete static_cast<Bytes*>(bytes); }

#pragma GCC visibility pop
}
