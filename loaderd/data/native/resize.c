/* Resizing of uint8 pixels as Pillow does it: across first, then down, each rounded to a byte, by whole-number weights of 22 bits.
 * Called through ctypes by ../images/resize.py, which has the same in numpy, for machines without this. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_WIDE
#include <immintrin.h>
#endif

enum { BITS = 22, HALF = 1 << (BITS - 1), SPARE = 64 };

/* Pixel i of an axis is the sum of `taps` stored ones from first[i] on, times weights[i * taps + k] / 2^22. */
typedef struct {
    int32_t *first, *weights;
    int taps, low, high;  /* stored pixels that are used, half-open */
} Axis;

/* What is asked for: `pixels` that lie `step` stored ones apart, the first one's left edge at `begin`. */
typedef struct {
    double begin, step;
    int32_t pixels, stored;
} Span;

typedef struct {
    Span rows, columns;
    int32_t channels, cubic, plain;
} Plan;

static double share(double x, int cubic) {
    x = x < 0 ? -x : x;
    if (!cubic) return x < 1.0 ? 1.0 - x : 0.0;
    if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1.0;
    return x < 2.0 ? ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0 : 0.0;
}

/* The same number of taps for every pixel: a loop whose end is known costs less than zeros. */
static int make_axis(Axis *axis, const Span *span, int cubic) {
    double wide = span->step > 1.0 ? span->step : 1.0, reach = (cubic ? 2.0 : 1.0) * wide;
    int most = ((int)reach + 1) * 2 + 1, taps = axis->taps = most < span->stored ? most : span->stored;
    axis->first = malloc((size_t)span->pixels * (size_t)(taps + 1) * sizeof(int32_t));
    double *shares = malloc((size_t)most * sizeof *shares);
    if (!axis->first || !shares) return free(shares), -1;
    axis->weights = axis->first + span->pixels;
    memset(axis->weights, 0, (size_t)span->pixels * (size_t)taps * sizeof(int32_t));
    axis->low = span->stored, axis->high = 0;
    for (int i = 0; i < span->pixels; i++) {
        double centre = span->begin + (i + 0.5) * span->step, total = 0.0;
        int low = (int)(centre - reach + 0.5), high = (int)(centre + reach + 0.5);
        low = low < 0 ? 0 : low;
        high = high > span->stored ? span->stored : high;
        int first = axis->first[i] = low + taps > span->stored ? span->stored - taps : low;
        for (int k = low; k < high; k++) total += shares[k - low] = share((k - centre + 0.5) * (1.0 / wide), cubic);
        for (int k = low; k < high; k++) {
            double weight = shares[k - low] / total * (1 << BITS);
            axis->weights[i * taps + k - first] = (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
        }
        if (first < axis->low) axis->low = first;
        if (first + taps > axis->high) axis->high = first + taps;
    }
    return free(shares), 0;
}

static uint8_t byte_of(int32_t sum) {
    sum >>= BITS;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* Two rows of pixels. `a` and `b` may be read, and the rows that are written may be overwritten, up to SPARE bytes behind. */
static void across(const Axis *axis, int pixels, int channels, const uint8_t *a, const uint8_t *b, uint8_t *out_a, uint8_t *out_b) {
    for (int i = 0; i < pixels; i++) {
        const int32_t *weights = axis->weights + (size_t)i * (size_t)axis->taps;
        for (int c = 0; c < channels; c++) {
            int32_t one = HALF, other = HALF;
            size_t at = (size_t)axis->first[i] * (size_t)channels + (size_t)c, to = (size_t)i * (size_t)channels + (size_t)c;
            for (int k = 0; k < axis->taps; k++, at += (size_t)channels) one += a[at] * weights[k], other += b[at] * weights[k];
            out_a[to] = byte_of(one), out_b[to] = byte_of(other);
        }
    }
}

/* A row of `bytes` from `in`, the first stored row that is used; rows are `stride` apart and may be read up to SPARE bytes behind. */
static void down(const Axis *axis, int row, const uint8_t *in, size_t stride, size_t bytes, uint8_t *out) {
    const int32_t *weights = axis->weights + (size_t)row * (size_t)axis->taps;
    in += (size_t)(axis->first[row] - axis->low) * stride;
    for (size_t x = 0; x < bytes; x++) {
        int32_t sum = HALF;
        for (int k = 0; k < axis->taps; k++) sum += in[(size_t)k * stride + x] * weights[k];
        out[x] = byte_of(sum);
    }
}

#ifdef HAS_WIDE
#define WIDE __attribute__((target("avx2")))

WIDE static inline __m256i numbers(__m128i bytes, __m256i weight) {
    return _mm256_mullo_epi32(_mm256_cvtepu8_epi32(bytes), weight);
}

WIDE static inline __m128i eight_bytes(__m256i sum) {
    sum = _mm256_srai_epi32(sum, BITS);
    __m128i small = _mm_packs_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return _mm_packus_epi16(small, small);
}

WIDE static inline __m128i four_and_four(const uint8_t *a, const uint8_t *b) {
    int32_t one, other;
    memcpy(&one, a, 4), memcpy(&other, b, 4);
    return _mm_insert_epi32(_mm_cvtsi32_si128(one), other, 1);
}

/* As `across`: four bytes of each row at once, a pixel and what follows it. What is written behind a pixel is written over by the next. */
WIDE static void across_wide(const Axis *axis, int pixels, int channels, const uint8_t *a, const uint8_t *b, uint8_t *out_a, uint8_t *out_b) {
    const int32_t *weights = axis->weights;
    const int taps = axis->taps;
    for (int i = 0; i < pixels; i++, weights += taps, out_a += channels, out_b += channels) {
        size_t at = (size_t)axis->first[i] * (size_t)channels;
        const uint8_t *one = a + at, *other = b + at;
        __m256i sum = _mm256_set1_epi32(HALF);
        for (int k = 0; k < taps; k++, one += channels, other += channels)
            sum = _mm256_add_epi32(sum, numbers(four_and_four(one, other), _mm256_set1_epi32(weights[k])));
        uint64_t both = (uint64_t)_mm_cvtsi128_si64(eight_bytes(sum));
        memcpy(out_a, &both, 4);
        both >>= 32;
        memcpy(out_b, &both, 4);
    }
}

WIDE static void down_wide(const Axis *axis, int row, const uint8_t *in, size_t stride, size_t bytes, uint8_t *out) {
    const int32_t *weights = axis->weights + (size_t)row * (size_t)axis->taps;
    in += (size_t)(axis->first[row] - axis->low) * stride;
    for (size_t x = 0; x < bytes; x += 16) {
        __m256i low = _mm256_set1_epi32(HALF), high = low;
        for (int k = 0; k < axis->taps; k++) {
            __m256i weight = _mm256_set1_epi32(weights[k]);
            __m128i some = _mm_loadu_si128((const __m128i *)(const void *)(in + (size_t)k * stride + x));
            low = _mm256_add_epi32(low, numbers(some, weight));
            high = _mm256_add_epi32(high, numbers(_mm_srli_si128(some, 8), weight));
        }
        __m128i made = _mm_unpacklo_epi64(eight_bytes(low), eight_bytes(high));
        if (bytes - x >= 16) _mm_storeu_si128((__m128i *)(void *)(out + x), made);
        else memcpy(out + x, &made, bytes - x);
    }
}
#endif

/* The loops that take the time; both sets give the same. */
typedef struct {
    void (*across)(const Axis *, int, int, const uint8_t *, const uint8_t *, uint8_t *, uint8_t *);
    void (*down)(const Axis *, int, const uint8_t *, size_t, size_t, uint8_t *);
} Ways;

static Ways ways(int plain) {
#ifdef HAS_WIDE
    if (!plain && __builtin_cpu_supports("avx2")) return (Ways){across_wide, down_wide};
#endif
    (void)plain;
    return (Ways){across, down};
}

static void carry_out(const Plan *plan, const Axis *rows, const Axis *columns, const uint8_t *in, ptrdiff_t step, uint8_t *line, uint8_t *woven, size_t stride, uint8_t *out) {
    size_t wide = (size_t)plan->columns.stored * (size_t)plan->channels, bytes = (size_t)plan->columns.pixels * (size_t)plan->channels;
    const Ways use = ways(plan->plain);
    for (int y = rows->low; y < rows->high; y += 2) {
        const uint8_t *a = in + y * step, *b = y + 1 < rows->high ? a + step : a;
        if (y + 2 >= plan->rows.stored) {  /* behind the last row nothing may be read */
            memcpy(line, a, wide), memcpy(line + wide + SPARE, b, wide);
            a = line, b = line + wide + SPARE;
        }
        uint8_t *to = woven + (size_t)(y - rows->low) * stride;
        use.across(columns, plan->columns.pixels, plan->channels, a, b, to, to + stride);
    }
    for (int y = 0; y < plan->rows.pixels; y++) use.down(rows, y, woven, stride, bytes, out + (size_t)y * bytes);
}

/* in: rows `step` bytes apart, of 1 to 4 channels that lie side by side. out: contiguous. 0: done, -1: no memory. */
EXPORT int loaderd_resize(const uint8_t *in, int64_t step, const void *packed, uint8_t *out) {
    Plan plan;
    memcpy(&plan, packed, sizeof plan);
    Axis rows = {0}, columns = {0};
    uint8_t *line = NULL, *woven = NULL;
    int result = make_axis(&rows, &plan.rows, plan.cubic) || make_axis(&columns, &plan.columns, plan.cubic) ? -1 : 0;
    if (!result) {
        size_t stride = (size_t)plan.columns.pixels * (size_t)plan.channels + SPARE;
        line = calloc(2, (size_t)plan.columns.stored * (size_t)plan.channels + SPARE);
        woven = malloc((size_t)(rows.high - rows.low + 2) * stride);
        if (line && woven) carry_out(&plan, &rows, &columns, in, (ptrdiff_t)step, line, woven, stride, out);
        else result = -1;
    }
    free(rows.first), free(columns.first), free(line), free(woven);
    return result;
}
