/* The transforms of crop_back.h on x86's vectors, to the same bits: products of pairs of 16 bits, summed to 32. Included by crop_wide.c. */
#include <immintrin.h>
#include <string.h>

#include "crop.h"

enum { BITS = 13, EXTRA = 2 };  /* of fraction in the constants; kept between the passes */

/* Numbers of a and b beside each other: the first four pairs, then the other four. */
INLINE __m256i pairs(__m128i a, __m128i b) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi16(a, b)), _mm_unpackhi_epi16(a, b), 1);
}

INLINE __m256i both(__m256i ab, int a, int b) {
    return _mm256_madd_epi16(ab, _mm256_set1_epi32((int)((unsigned)b << 16 | (a & 0xFFFF))));
}

INLINE __m128i both_4(__m128i ab, int a, int b) {
    return _mm_madd_epi16(ab, _mm_set1_epi32((int)((unsigned)b << 16 | (a & 0xFFFF))));
}

#define ADD _mm256_add_epi32
#define SUB _mm256_sub_epi32

/* From pairs of lines 0 and 4, 2 and 6, 1 and 3, 5 and 7. */
INLINE void pass_8(__m256i p04, __m256i p26, __m256i p13, __m256i p57, __m256i out[8], int shift) {
    __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    __m256i even0 = ADD(both(p04, 8192, 8192), half), even1 = ADD(both(p04, 8192, -8192), half);
    __m256i even2 = both(p26, 4433, -10704), even3 = both(p26, 10703, 4433);
    __m256i odd0 = ADD(both(p13, 2260, -6436), both(p57, 9633, -11363)), odd1 = ADD(both(p13, 6437, -11362), both(p57, 2261, 9633));
    __m256i odd2 = ADD(both(p13, 9633, -2259), both(p57, -11362, -6436)), odd3 = ADD(both(p13, 11363, 9633), both(p57, 6437, 2260));
    __m256i a = ADD(even0, even3), d = SUB(even0, even3), b = ADD(even1, even2), c = SUB(even1, even2);
    out[0] = _mm256_srai_epi32(ADD(a, odd3), shift), out[7] = _mm256_srai_epi32(SUB(a, odd3), shift);
    out[1] = _mm256_srai_epi32(ADD(b, odd2), shift), out[6] = _mm256_srai_epi32(SUB(b, odd2), shift);
    out[2] = _mm256_srai_epi32(ADD(c, odd1), shift), out[5] = _mm256_srai_epi32(SUB(c, odd1), shift);
    out[3] = _mm256_srai_epi32(ADD(d, odd0), shift), out[4] = _mm256_srai_epi32(SUB(d, odd0), shift);
}

/* Lines 0 and 1, 2 and 3 of numbers 0..3 | 4..7 to numbers 0 and 1 | 4 and 5 of lines 0..3, and 2 and 3 | 6 and 7. */
INLINE void quarter_turn(__m256i ab, __m256i cd, __m256i *first, __m256i *second) {
    __m256i low = _mm256_unpacklo_epi16(ab, cd), high = _mm256_unpackhi_epi16(ab, cd);
    *first = _mm256_unpacklo_epi16(low, high);
    *second = _mm256_unpackhi_epi16(low, high);
}

static void back_8(const int16_t *block, uint8_t *out, size_t stride) {
    __m128i row[8];
    __m256i x[8], upper[2], lower[2];
    for (int i = 0; i < 8; i++) row[i] = _mm_load_si128((const __m128i *)(block + 8 * i));
    pass_8(pairs(row[0], row[4]), pairs(row[2], row[6]), pairs(row[1], row[3]), pairs(row[5], row[7]), x, BITS - EXTRA);
    quarter_turn(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3]), &upper[0], &upper[1]);
    quarter_turn(_mm256_packs_epi32(x[4], x[5]), _mm256_packs_epi32(x[6], x[7]), &lower[0], &lower[1]);
    __m256i c04 = _mm256_unpacklo_epi64(upper[0], lower[0]), c15 = _mm256_unpackhi_epi64(upper[0], lower[0]);
    __m256i c26 = _mm256_unpacklo_epi64(upper[1], lower[1]), c37 = _mm256_unpackhi_epi64(upper[1], lower[1]);
    __m256i top = _mm256_unpacklo_epi16(c15, c37), bottom = _mm256_unpackhi_epi16(c15, c37);
    pass_8(pairs(_mm256_castsi256_si128(c04), _mm256_extracti128_si256(c04, 1)), pairs(_mm256_castsi256_si128(c26), _mm256_extracti128_si256(c26, 1)),
           _mm256_permute2x128_si256(top, bottom, 0x20), _mm256_permute2x128_si256(top, bottom, 0x31), x, BITS + EXTRA + 3);
    for (int i = 0; i < 8; i += 4, out += 4 * stride) {
        __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(x[i], x[i + 1]), _mm256_packs_epi32(x[i + 2], x[i + 3]));
        bytes = _mm256_xor_si256(bytes, _mm256_set1_epi8((char)0x80));
        __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
        __m128i first = _mm_unpacklo_epi32(low, high), second = _mm_unpackhi_epi32(low, high);
        _mm_storel_epi64((__m128i *)out, first);
        _mm_storeh_pd((double *)(void *)(out + stride), _mm_castsi128_pd(first));
        _mm_storel_epi64((__m128i *)(out + 2 * stride), second);
        _mm_storeh_pd((double *)(void *)(out + 3 * stride), _mm_castsi128_pd(second));
    }
}

static void back_4(const int16_t *block, uint8_t *out, size_t stride) {
    __m128i row[8], none = _mm_setzero_si128();
    for (int i = 0; i < 8; i++) row[i] = _mm_load_si128((const __m128i *)(block + 8 * i));
    int shift = BITS - EXTRA + 1;
    __m256i p13 = pairs(row[1], row[3]), p57 = pairs(row[5], row[7]), p26 = pairs(row[2], row[6]);
    __m256i even = ADD(both(pairs(row[0], none), 16384, 0), _mm256_set1_epi32(1 << (shift - 1))), wave = both(p26, 15137, -6270);
    __m256i odd0 = ADD(both(p13, 8697, -17799), both(p57, 11893, -1730)), odd2 = ADD(both(p13, 20995, 7373), both(p57, -4926, -4176));
    __m256i a = ADD(even, wave), b = SUB(even, wave), first, second;
    __m256i x0 = _mm256_srai_epi32(ADD(a, odd2), shift), x3 = _mm256_srai_epi32(SUB(a, odd2), shift);
    __m256i x1 = _mm256_srai_epi32(ADD(b, odd0), shift), x2 = _mm256_srai_epi32(SUB(b, odd0), shift);
    quarter_turn(_mm256_packs_epi32(x0, x1), _mm256_packs_epi32(x2, x3), &first, &second);
    __m128i c01 = _mm256_castsi256_si128(first), c45 = _mm256_extracti128_si256(first, 1);
    __m128i c23 = _mm256_castsi256_si128(second), c67 = _mm256_extracti128_si256(second, 1);
    __m128i q13 = _mm_unpackhi_epi16(c01, c23), q57 = _mm_unpackhi_epi16(c45, c67), q26 = _mm_unpacklo_epi16(c23, c67);
    shift = BITS + EXTRA + 3 + 1;
    __m128i e = _mm_add_epi32(both_4(_mm_unpacklo_epi16(c01, none), 16384, 0), _mm_set1_epi32(1 << (shift - 1))), w = both_4(q26, 15137, -6270);
    __m128i o0 = _mm_add_epi32(both_4(q13, 8697, -17799), both_4(q57, 11893, -1730));
    __m128i o2 = _mm_add_epi32(both_4(q13, 20995, 7373), both_4(q57, -4926, -4176));
    __m128i f = _mm_add_epi32(e, w), g = _mm_sub_epi32(e, w);
    __m128i left = _mm_packs_epi32(_mm_srai_epi32(_mm_add_epi32(f, o2), shift), _mm_srai_epi32(_mm_add_epi32(g, o0), shift));
    __m128i right = _mm_packs_epi32(_mm_srai_epi32(_mm_sub_epi32(g, o0), shift), _mm_srai_epi32(_mm_sub_epi32(f, o2), shift));
    __m128i bytes = _mm_xor_si128(_mm_packs_epi16(left, right), _mm_set1_epi8((char)0x80));
    int32_t columns[4];
    memcpy(columns, &bytes, sizeof bytes);
    for (int i = 0; i < 4; i++) memcpy(out + (size_t)i * stride, &columns[i], 4);
}
