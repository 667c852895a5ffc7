/* Samples to colours: what lies between chroma samples, and JFIF's conversion, as libjpeg does both, to the bit. All goes along a column. Included by
 * crop_plain.c and crop_wide.c. */
#include <string.h>

#include "crop.h"

/* Chroma at a column between two. */
static __attribute__((noinline)) void between(const uint8_t *restrict near, const uint8_t *restrict far, int count, int bias, uint8_t *restrict out) {
    for (int y = 0; y < count; y++) out[y] = (uint8_t)((3 * near[y] + far[y] + bias) >> 2);
}

/* Four times the same. */
static __attribute__((noinline)) void blend(const uint8_t *restrict near, const uint8_t *restrict far, int count, int16_t *restrict out) {
    for (int y = 0; y < count; y++) out[y] = (int16_t)(3 * near[y] + far[y]);
}

#ifdef VECTORS
INLINE __m256i numbers_at(const int16_t *at) {
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

/* Of such a column, with one more sample at both ends, the 2 * count between its lines. step: 1, or 0 where nothing is interpolated.
 * Behind the end of what is read and written there is room for 32 more, here and below. */
static void between_lines(const int16_t *column, int count, int step, int bias, uint8_t *out) {
    const __m256i extra = _mm256_set1_epi16((short)bias);
    const int16_t *at = column + 1;
    for (int y = 0; y < count; y += 16, at += 16, out += 32) {
        __m256i near = numbers_at(at), sum = _mm256_add_epi16(_mm256_add_epi16(near, near), _mm256_add_epi16(near, extra));
        __m256i even = _mm256_srli_epi16(_mm256_add_epi16(sum, numbers_at(at - step)), 4);
        __m256i odd = _mm256_srli_epi16(_mm256_add_epi16(sum, numbers_at(at + step)), 4);
        _mm256_storeu_si256((__m256i *)(void *)out, _mm256_or_si256(even, _mm256_slli_epi16(odd, 8)));
    }
}

static void rgb(const uint8_t *luma, const uint8_t *blue, const uint8_t *red, int count, uint8_t *const out[3]) {
    const __m256i middle = _mm256_set1_epi16(128), one = _mm256_set1_epi16(1), half = _mm256_set1_epi32(1 << 15);
    const __m256i to_red = _mm256_set1_epi16(26345), to_blue = _mm256_set1_epi16(-14942), to_green = _mm256_set1_epi32((int)(18734u << 16 | (-22554 & 0xFFFF)));
    for (int y = 0; y < count; y += 16) {
        __m256i light = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(luma + y)));
        __m256i cb = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(blue + y))), middle);
        __m256i cr = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(red + y))), middle);
        __m256i two_cb = _mm256_add_epi16(cb, cb), two_cr = _mm256_add_epi16(cr, cr);
        __m256i r = _mm256_srai_epi16(_mm256_add_epi16(_mm256_mulhi_epi16(two_cr, to_red), one), 1);
        __m256i b = _mm256_srai_epi16(_mm256_add_epi16(_mm256_mulhi_epi16(two_cb, to_blue), one), 1);
        __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), to_green), high = _mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), to_green);
        __m256i g = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(low, half), 16), _mm256_srai_epi32(_mm256_add_epi32(high, half), 16));
        r = _mm256_add_epi16(light, _mm256_add_epi16(r, cr));
        g = _mm256_add_epi16(light, _mm256_sub_epi16(g, cr));
        b = _mm256_add_epi16(light, _mm256_add_epi16(b, two_cb));
        __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi16(r, g), 0xD8), last = _mm256_permute4x64_epi64(_mm256_packus_epi16(b, b), 0xD8);
        _mm_storeu_si128((__m128i *)(void *)(out[0] + y), _mm256_castsi256_si128(both));
        _mm_storeu_si128((__m128i *)(void *)(out[1] + y), _mm256_extracti128_si256(both, 1));
        _mm_storeu_si128((__m128i *)(void *)(out[2] + y), _mm256_castsi256_si128(last));
    }
}
#else
static void between_lines(const int16_t *column, int count, int step, int bias, uint8_t *out) {
    const int16_t *near = column + 1, *above = near - step, *below = near + step;
    for (int y = 0; y < count; y++) {
        out[2 * y] = (uint8_t)((3 * near[y] + above[y] + bias) >> 4);
        out[2 * y + 1] = (uint8_t)((3 * near[y] + below[y] + bias) >> 4);
    }
}

INLINE uint8_t clamped(int value) {
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static void rgb(const uint8_t *luma, const uint8_t *blue, const uint8_t *red, int count, uint8_t *const out[3]) {
    for (int y = 0; y < count; y++) {
        int cb = blue[y] - 128, cr = red[y] - 128;
        out[0][y] = clamped(luma[y] + ((91881 * cr + (1 << 15)) >> 16));
        out[1][y] = clamped(luma[y] + ((-22554 * cb - 46802 * cr + (1 << 15)) >> 16));
        out[2][y] = clamped(luma[y] + ((116130 * cb + (1 << 15)) >> 16));
    }
}
#endif
