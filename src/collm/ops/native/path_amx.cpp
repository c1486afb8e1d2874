// All kernels for CPUs with AMX-BF16 and AMX-INT8.

#include "amx.h"

#include "kernels.h"
