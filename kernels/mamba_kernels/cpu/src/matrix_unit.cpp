// Detection of the matrix unit. Compiled without flags of any instruction set.
#include "matrix_unit.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

// Older compilers have no built-in for this check. The registers are large, so Linux saves them only after a
// process requests that, once for all its threads.
bool matrix_unit() {
  constexpr unsigned kAll = 1u << 22 | 1u << 24 | 1u << 25;  // bfloat16, tiles, int8
  constexpr long kAskPermission = 0x1023, kTileData = 18;    // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAll) != kAll) return false;
  return syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0;
}
