// What the library says of itself, and which paths this CPU can run; compiled for any x86-64.

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

// Whether the CPU has tiles of bfloat16 and bytes, and the system keeps them for this process. It has to be
// asked, once: they are eight kilobytes of every thread.
__attribute__((target("xsave"))) bool has_tiles() {
  constexpr unsigned kTileBf16 = 1u << 22, kTile = 1u << 24, kTileInt8 = 1u << 25;
  constexpr unsigned kAll = kTileBf16 | kTile | kTileInt8, kSystemSaves = 1u << 27;
  constexpr unsigned long long kKept = 3ull << 17;
  constexpr long kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kSystemSaves) || (_xgetbv(0) & kKept) != kKept) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAll) != kAll) return false;
  return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
}

}  // namespace

extern "C" {

// Counts changes of what exported functions take: library.py has the same number, or else this library is
// of other sources, and its functions would take one thing for another.
int collm_interface() { return 3; }

// 3: amx, 2: avx512, 1: avx2, 0: none. A path includes those below it.
int collm_cpu() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!avx2) return 0;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
  if (!avx512) return 1;
  return has_tiles() ? 3 : 2;
}

}  // extern "C"
