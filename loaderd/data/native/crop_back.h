/* Coefficients to samples: the inverse transforms of libjpeg's accurate method, to the bit, on vectors of whole numbers. They are the
 * algorithm of Loeffler, Ligtenberg and Moschytz with 13 bits of fraction, and its shortened forms for 4 x 4 and 2 x 2 samples. A block
 * goes out column by column. Included by crop_plain.c and crop_wide.c. */
#include <string.h>

#include "crop.h"

typedef int32_t V8 __attribute__((vector_size(32)));
typedef int32_t V4 __attribute__((vector_size(16)));
typedef int16_t S8 __attribute__((vector_size(16)));
typedef uint8_t B8 __attribute__((vector_size(8)));
typedef uint8_t B4 __attribute__((vector_size(4)));

#ifdef __clang__
#define MIX8(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define MIX4(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX8(a, b, ...) __builtin_shuffle(a, b, (V8){__VA_ARGS__})
#define MIX4(a, b, ...) __builtin_shuffle(a, b, (V4){__VA_ARGS__})
#endif

enum { BITS = 13, EXTRA = 2 };  /* of fraction in the constants; kept between the passes */

INLINE void transpose_8(V8 v[8]) {
    V8 a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = MIX8(v[2 * i], v[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        a[2 * i + 1] = MIX8(v[2 * i], v[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++) {
            b[4 * i + 2 * k] = MIX8(a[4 * i + k], a[4 * i + 2 + k], 0, 1, 8, 9, 4, 5, 12, 13);
            b[4 * i + 2 * k + 1] = MIX8(a[4 * i + k], a[4 * i + 2 + k], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    }
    for (int i = 0; i < 4; i++) {
        v[i] = MIX8(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        v[i + 4] = MIX8(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* What 16 bits can't hold is brought to what they can, as instructions for 16 bits do: only damaged or odd files come to it. */
INLINE V8 held(V8 v) {
    V8 over = v > 32767, under = v < -32768;
    return (v & ~(over | under)) | (over & 32767) | (under & -32768);
}

/* One pass over eight lines at once; what comes out has `shift` bits too many, which are rounded away. */
INLINE void pass_8(V8 x[8], int shift) {
    V8 both = (x[2] + x[6]) * 4433, half = (V8){} + (1 << (shift - 1));
    V8 even2 = both - x[6] * 15137, even3 = both + x[2] * 6270;
    V8 even0 = ((x[0] + x[4]) << BITS) + half, even1 = ((x[0] - x[4]) << BITS) + half;
    V8 a = even0 + even3, d = even0 - even3, b = even1 + even2, c = even1 - even2;
    V8 z1 = (x[7] + x[1]) * -7373, z2 = (x[5] + x[3]) * -20995, z3 = x[7] + x[3], z4 = x[5] + x[1], z5 = (z3 + z4) * 9633;
    z3 = z5 - z3 * 16069;
    z4 = z5 - z4 * 3196;
    V8 odd0 = x[7] * 2446 + z1 + z3, odd1 = x[5] * 16819 + z2 + z4, odd2 = x[3] * 25172 + z2 + z3, odd3 = x[1] * 12299 + z1 + z4;
    x[0] = (a + odd3) >> (shift), x[7] = (a - odd3) >> shift;
    x[1] = (b + odd2) >> (shift), x[6] = (b - odd2) >> shift;
    x[2] = (c + odd1) >> (shift), x[5] = (c - odd1) >> shift;
    x[3] = (d + odd0) >> (shift), x[4] = (d - odd0) >> shift;
}

static void back_8(const int16_t *block, uint8_t *out, size_t stride) {
    V8 x[8];
    for (int i = 0; i < 8; i++) {
        S8 row;
        memcpy(&row, block + 8 * i, sizeof row);
        x[i] = __builtin_convertvector(row, V8);
    }
    pass_8(x, BITS - EXTRA);
    for (int i = 0; i < 8; i++) x[i] = held(x[i]);
    transpose_8(x);
    pass_8(x, BITS + EXTRA + 3);
    for (int i = 0; i < 8; i++) {
        V8 v = x[i] + 128;
        v &= ~(v >> 31);
        v |= (255 - v) >> 31;
        B8 bytes = __builtin_convertvector(v & 255, B8);
        memcpy(out + (size_t)i * stride, &bytes, sizeof bytes);
    }
}

/* x: coefficients 0, 1, 2, 3, 5, 6, 7; four samples come out in its first four. */
#define PASS_4(V, x, shift)                                                                             \
    do {                                                                                                \
        V even = (x[0] << (BITS + 1)) + ((V){} + (1 << ((shift) - 1)));                                 \
        V wave = x[2] * 15137 - x[5] * 6270, a = even + wave, b = even - wave;                          \
        V odd0 = x[4] * 11893 - x[6] * 1730 - x[3] * 17799 + x[1] * 8697;                               \
        V odd2 = x[3] * 7373 - x[6] * 4176 - x[4] * 4926 + x[1] * 20995;                                \
        x[0] = (a + odd2) >> (shift), x[3] = (a - odd2) >> (shift);                                     \
        x[1] = (b + odd0) >> (shift), x[2] = (b - odd0) >> (shift);                                     \
    } while (0)

INLINE void transpose_4(V4 v[4]) {
    V4 a = MIX4(v[0], v[1], 0, 4, 1, 5), b = MIX4(v[0], v[1], 2, 6, 3, 7);
    V4 c = MIX4(v[2], v[3], 0, 4, 1, 5), d = MIX4(v[2], v[3], 2, 6, 3, 7);
    v[0] = MIX4(a, c, 0, 1, 4, 5), v[1] = MIX4(a, c, 2, 3, 6, 7);
    v[2] = MIX4(b, d, 0, 1, 4, 5), v[3] = MIX4(b, d, 2, 3, 6, 7);
}

static void back_4(const int16_t *block, uint8_t *out, size_t stride) {
    V8 x[7];
    for (int i = 0; i < 7; i++) {
        S8 row;
        memcpy(&row, block + 8 * (i + (i > 3)), sizeof row);
        x[i] = __builtin_convertvector(row, V8);
    }
    PASS_4(V8, x, BITS - EXTRA + 1);
    V4 low[4], high[4];
    for (int i = 0; i < 4; i++) {
        x[i] = held(x[i]);
        memcpy(&low[i], &x[i], sizeof low[i]);
        memcpy(&high[i], (const char *)&x[i] + sizeof high[i], sizeof high[i]);
    }
    transpose_4(low);
    transpose_4(high);
    V4 y[7] = {low[0], low[1], low[2], low[3], high[1], high[2], high[3]};
    PASS_4(V4, y, BITS + EXTRA + 3 + 1);
    for (int i = 0; i < 4; i++) {
        V4 v = y[i] + 128;
        v &= ~(v >> 31);
        v |= (255 - v) >> 31;
        B4 bytes = __builtin_convertvector(v & 255, B4);
        memcpy(out + (size_t)i * stride, &bytes, sizeof bytes);
    }
}
