/* Samples to pixels: weighted sums along one axis, then the other, then colours. Included by crop_plain.c and crop_wide.c. */
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

/* Pixels along x, eight at a time: each of all rows, then turned so that rows lie beside each other. */
static void along_columns(const Axis *axis, const uint8_t *plane, size_t stride, int rows, int16_t *strip, int16_t *out, size_t width) {
    size_t line = (size_t)(rows + RUN - 1) / RUN * RUN;
    for (int pixel = 0; pixel < axis->pixels; pixel++) {
        const uint8_t *from = plane + (size_t)(axis->first[pixel] - axis->low) * stride;
        const int16_t *weights = axis->weights + (size_t)pixel * (size_t)axis->most;
        int16_t *to = strip + (size_t)(pixel % LINES) * line;
        for (size_t y = 0; y < line; y += RUN) {
            int32_t sum[RUN];
            for (int i = 0; i < RUN; i++) sum[i] = 1 << 6;
            for (int k = 0; k < axis->count[pixel]; k += 2) {  /* weights come in pairs; the last may be 0 */
                const uint8_t *a = from + (size_t)k * stride + y, *b = a + stride;
                for (int i = 0; i < RUN; i++) sum[i] += a[i] * weights[k] + b[i] * weights[k + 1];
            }
            for (int i = 0; i < RUN; i++) to[y + (size_t)i] = (int16_t)(sum[i] >> 7);
        }
        if (pixel % LINES != LINES - 1 && pixel != axis->pixels - 1) continue;
        for (size_t y = 0; y < line; y += 8) turn(strip + y, line, out + y * width + (size_t)(pixel - pixel % LINES), width);
    }
}

static void along_rows(const Axis *axis, int pixel, const int16_t *in, size_t width, int16_t *out) {
    const int16_t *from = in + (size_t)(axis->first[pixel] - axis->low) * width;
    const int16_t *weights = axis->weights + (size_t)pixel * (size_t)axis->most;
    for (size_t x = 0; x < width; x += RUN) {
        int32_t sum[RUN];
        for (int i = 0; i < RUN; i++) sum[i] = 1 << 14;
        for (int k = 0; k < axis->count[pixel]; k += 2) {
            const int16_t *a = from + (size_t)k * width + x, *b = a + width;
            for (int i = 0; i < RUN; i++) sum[i] += a[i] * weights[k] + b[i] * weights[k + 1];
        }
        for (int i = 0; i < RUN; i++) out[x + (size_t)i] = (int16_t)(sum[i] >> 15);
    }
}

INLINE uint8_t byte_of(int value) {
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* JFIF's conversion, with 14 bits of fraction. */
static void colours(const int16_t *const rows[3], int width, uint8_t *const out[3]) {
    const int16_t *restrict luma = rows[0], *restrict blue = rows[1], *restrict red = rows[2];
    uint8_t *restrict r = out[0], *restrict g = out[1], *restrict b = out[2];
    for (int x = 0; x < width; x++) {
        int y = luma[x] * 16384 + (1 << 19), cb = blue[x] - 128 * 64, cr = red[x] - 128 * 64;
        r[x] = byte_of((y + 22970 * cr) >> 20);
        g[x] = byte_of((y - 5638 * cb - 11700 * cr) >> 20);
        b[x] = byte_of((y + 29032 * cb) >> 20);
    }
}

static void gray(const int16_t *row, int width, uint8_t *out) {
    for (int x = 0; x < width; x++) out[x] = byte_of((row[x] + 32) >> 6);
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
