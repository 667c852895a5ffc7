/* For x86 machines with vectors of 32 bytes: the same code, compiled for them. */
#include "crop.h"

#ifdef HAS_WIDE
#include <immintrin.h>
#include <string.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi,bmi2,lzcnt")
#endif

#define VECTORS
#include "crop_back_wide.h"
#include "crop_codes.h"
#include "crop_colours.h"
#include "crop_weave.h"

const Ways wide_ways = {read_blocks, along_columns, along_rows, bytes, between, blend, between_lines, rgb, interleave};

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
