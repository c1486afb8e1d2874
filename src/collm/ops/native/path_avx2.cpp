// All kernels for CPUs with AVX2 and FMA.

#include "avx2.h"
#include "no_tiles.h"

#include "kernels.h"
