/* Samples to pixels: weighted sums along one axis, then the other. Included by crop_plain.c and crop_wide.c. */
#include <string.h>

#include "crop.h"

enum { LINES = 8, RUN = 16 };

typedef int16_t Lane __attribute__((vector_size(16)));
typedef uint8_t Bytes __attribute__((vector_size(16)));

#ifdef __clang__
#define MIX_LANES(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define MIX_BYTES(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX_LANES(a, b, ...) __builtin_shuffle(a, b, (Lane){__VA_ARGS__})
#define MIX_BYTES(a, b, ...) __builtin_shuffle(a, b, (Bytes){__VA_ARGS__})
#endif

/* Eight lines of eight numbers, turned. */
INLINE void turn(const int16_t *in, size_t in_step, int16_t *out, size_t out_step) {
    Lane v[8], a[8], b[8];
    for (int i = 0; i < 8; i++) memcpy(&v[i], in + (size_t)i * in_step, sizeof v[i]);
    for (int i = 0; i < 4; i++) {
        a[2 * i] = MIX_LANES(v[2 * i], v[2 * i + 1], 0, 8, 1, 9, 2, 10, 3, 11);
        a[2 * i + 1] = MIX_LANES(v[2 * i], v[2 * i + 1], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++) {
            b[4 * i + 2 * k] = MIX_LANES(a[4 * i + k], a[4 * i + 2 + k], 0, 1, 8, 9, 2, 3, 10, 11);
            b[4 * i + 2 * k + 1] = MIX_LANES(a[4 * i + k], a[4 * i + 2 + k], 4, 5, 12, 13, 6, 7, 14, 15);
        }
    }
    for (int i = 0; i < 4; i++) {
        Lane first = MIX_LANES(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11), second = MIX_LANES(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        memcpy(out + (size_t)(2 * i) * out_step, &first, sizeof first);
        memcpy(out + (size_t)(2 * i + 1) * out_step, &second, sizeof second);
    }
}

/* RUN weighted sums: of the numbers at `from`, `from` + step, ..., `count` of them, an even number; rounded, `shift` bits fewer. */
#ifdef VECTORS
#define SUMS(name, type, load)                                                                                                        \
    INLINE void name(const type *from, size_t step, const int16_t *weights, int count, int16_t *to, int shift) {                      \
        __m256i low = _mm256_set1_epi32(1 << (shift - 1)), high = low;                                                                \
        for (int k = 0; k < count; k += 2, from += 2 * step) {                                                                        \
            int32_t both;                                                                                                             \
            memcpy(&both, weights + k, sizeof both);                                                                                  \
            __m256i a = load(from), b = load(from + step), weight = _mm256_set1_epi32(both);                                          \
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weight));                                      \
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weight));                                    \
        }                                                                                                                             \
        __m256i sum = _mm256_packs_epi32(_mm256_srai_epi32(low, shift), _mm256_srai_epi32(high, shift));                              \
        _mm256_storeu_si256((__m256i *)to, sum);                                                                                      \
    }
#define LOAD_BYTES(at) _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(at)))
#define LOAD_NUMBERS(at) _mm256_loadu_si256((const __m256i *)(at))
#else
#define SUMS(name, type, load)                                                                                                        \
    INLINE void name(const type *from, size_t step, const int16_t *weights, int count, int16_t *to, int shift) {                      \
        int32_t sum[RUN];                                                                                                             \
        for (int i = 0; i < RUN; i++) sum[i] = 1 << (shift - 1);                                                                      \
        for (int k = 0; k < count; k += 2, from += 2 * step) {                                                                        \
            for (int i = 0; i < RUN; i++) sum[i] += from[i] * weights[k] + from[(size_t)i + step] * weights[k + 1];                   \
        }                                                                                                                             \
        for (int i = 0; i < RUN; i++) to[i] = (int16_t)(sum[i] >> shift);                                                             \
    }
#endif

SUMS(sum_bytes, uint8_t, LOAD_BYTES)
SUMS(sum_numbers, int16_t, LOAD_NUMBERS)

/* Pixels along x, eight at a time: each of all rows, then turned so that rows lie beside each other. */
static void along_columns(const Axis *axis, const uint8_t *plane, size_t stride, int rows, int16_t *strip, int16_t *out, size_t width) {
    size_t line = (size_t)(rows + RUN - 1) / RUN * RUN;
    for (int pixel = 0; pixel < axis->pixels; pixel++) {
        const uint8_t *from = plane + (size_t)(axis->first[pixel] - axis->low) * stride;
        const int16_t *weights = axis->weights + (size_t)pixel * (size_t)axis->most;
        int16_t *to = strip + (size_t)(pixel % LINES) * line;
        for (size_t y = 0; y < line; y += RUN) sum_bytes(from + y, stride, weights, axis->count[pixel], to + y, 7);
        if (pixel % LINES != LINES - 1 && pixel != axis->pixels - 1) continue;
        for (size_t y = 0; y < line; y += 8) turn(strip + y, line, out + y * width + (size_t)(pixel - pixel % LINES), width);
    }
}

static void along_rows(const Axis *axis, int pixel, const int16_t *in, size_t width, int16_t *out) {
    const int16_t *from = in + (size_t)(axis->first[pixel] - axis->low) * width;
    const int16_t *weights = axis->weights + (size_t)pixel * (size_t)axis->most;
    for (size_t x = 0; x < width; x += RUN) sum_numbers(from + x, width, weights, axis->count[pixel], out + x, 15);
}

INLINE uint8_t byte_of(int16_t value) {
    int16_t rounded = (int16_t)((value + 32) >> 6), low = rounded < 0 ? 0 : rounded;
    return (uint8_t)(low > 255 ? 255 : low);
}

static void bytes(const int16_t *row, int width, uint8_t *out) {
#ifdef VECTORS
    const __m256i half = _mm256_set1_epi16(32);
    for (int x = 0; x < width; x += RUN) {
        __m256i v = _mm256_srai_epi16(_mm256_add_epi16(LOAD_NUMBERS((const __m256i *)(const void *)(row + x)), half), 6);
        _mm_storeu_si128((__m128i *)(void *)(out + x), _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi16(v, v), 0xD8)));
    }
    return;
#endif
    for (int x = 0; x < width; x++) out[x] = byte_of(row[x]);
}

/* Writes 3 * width bytes. What `in` holds may be read 16 bytes further than that. */
static void interleave(uint8_t *const in[3], int width, uint8_t *out) {
    int x = 0;
    for (; x + 16 <= width; x += 16, out += 48) {
        Bytes r, g, b;
        memcpy(&r, in[0] + x, 16), memcpy(&g, in[1] + x, 16), memcpy(&b, in[2] + x, 16);
        Bytes first = MIX_BYTES(r, g, 0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5);
        Bytes second = MIX_BYTES(r, g, 21, 0, 6, 22, 0, 7, 23, 0, 8, 24, 0, 9, 25, 0, 10, 26);
        Bytes third = MIX_BYTES(r, g, 0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0);
        first = MIX_BYTES(first, b, 0, 1, 16, 3, 4, 17, 6, 7, 18, 9, 10, 19, 12, 13, 20, 15);
        second = MIX_BYTES(second, b, 0, 21, 2, 3, 22, 5, 6, 23, 8, 9, 24, 11, 12, 25, 14, 15);
        third = MIX_BYTES(third, b, 26, 1, 2, 27, 4, 5, 28, 7, 8, 29, 10, 11, 30, 13, 14, 31);
        memcpy(out, &first, 16), memcpy(out + 16, &second, 16), memcpy(out + 32, &third, 16);
    }
    for (; x < width; x++, out += 3) out[0] = in[0][x], out[1] = in[1][x], out[2] = in[2][x];
}
