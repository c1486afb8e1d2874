"""C++ kernels for CPUs with AVX512-BF16 or AVX2, built at install where a compiler is at hand."""
