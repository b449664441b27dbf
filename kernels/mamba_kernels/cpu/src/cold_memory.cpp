// Memory that was written once and is hardly looked at again becomes a file's, page for page.
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

extern "C" {
#pragma GCC visibility push(default)

// Whether a file lies on a disk; those of tmpfs and ramfs are memory themselves.
bool mamba_is_on_disk(int file) {
  struct statfs of = {};
  return fstatfs(file, &of) == 0 && of.f_type != TMPFS_MAGIC && of.f_type != RAMFS_MAGIC;
}

// Copies the pages of [begin, end), private memory of no file, to `place` of the file and maps them from there, to be
// written by this process alone. Returns how many bytes that did; the rest is as it was. Nobody may write to them
// meanwhile: there is one thread, and this function writes to its stack alone. Where the thread's own variables
// lie (`errno` is one of them), nothing is done, for the kernel writes there.
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
