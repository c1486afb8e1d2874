// All kernels for CPUs with AVX512-BF16 and AVX512-VNNI.

#include "avx512.h"
#include "no_tiles.h"

#include "kernels.h"
