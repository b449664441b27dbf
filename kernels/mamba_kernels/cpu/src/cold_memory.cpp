// Moves memory that was written once, and is rarely read, to a file whose pages take its place.
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

extern "C" {
#pragma GCC visibility push(default)

// Returns whether a file is on a disk; files of tmpfs and ramfs are memory themselves.
bool mamba_is_on_disk(int file) {
  struct statfs of = {};
  return fstatfs(file, &of) == 0 && of.f_type != TMPFS_MAGIC && of.f_type != RAMFS_MAGIC;
}

// Copies the pages of [begin, end), private anonymous memory, to `place` in the file and maps them from there, with
// private writes. Returns the number of bytes that were moved; the rest is unchanged. The pages must not be written
// meanwhile: the process has one thread, and this function writes to its stack only. If the range contains the
// thread's own variables, such as `errno`, nothing is done, since the kernel writes to them.
int64_t mamba_put_aside(int file, int64_t place, uintptr_t begin, uintptr_t end) {
  const uintptr_t own = reinterpret_cast<uintptr_t>(&errno);
  if (begin <= own && own < end) return 0;
  constexpr uintptr_t kMost = 1 << 20;
  uintptr_t at = begin;
  while (at < end) {
    const uintptr_t size = end - at < kMost ? end - at : kMost;
    void* const pages = reinterpret_cast<void*>(at);
    if (pwrite(file, pages, size, place) != static_cast<ssize_t>(size)) break;
    if (mmap(pages, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, place) == MAP_FAILED) break;
    at += size;
    place += static_cast<int64_t>(size);
  }
  return static_cast<int64_t>(at - begin);
}

#pragma GCC visibility pop
}
