// What the library says of itself, and which paths this CPU can run; compiled for any x86-64.

extern "C" {

// Counts changes of what exported functions take: library.py has the same number, or else this library is
// of other sources, and its functions would take one thing for another.
int collm_interface() { return 2; }

// 2: avx512, 1: avx2, 0: neither. A path includes those below it.
int collm_cpu() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!avx2) return 0;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
  return avx512 ? 2 : 1;
}

}  // extern "C"
