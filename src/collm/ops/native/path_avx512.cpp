// All kernels for CPUs with AVX512-BF16 and AVX512-VNNI.

#include "avx512.h"
#include "no_tiles.h"

#include "attention.h"
#include "elementwise.h"
#include "exports_linear.h"
#include "layers.h"
#include "logits.h"
#include "logprobs.h"
#include "sampling.h"
#include "training_attention.h"
#include "training_attention_back.h"
#include "training_linear.h"
