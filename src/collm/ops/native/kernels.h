// Everything that a path exports, on top of its vectors.

#pragma once

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
