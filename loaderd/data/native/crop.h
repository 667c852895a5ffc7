/* A part of a stored JPEG, brought to a size: from the bytes to pixels in one call.
 *
 * A plain shared object without Python's headers, called through ctypes by ../jpeg/fused_decode.py. It reads what nearly all photos are: sequential,
 * Huffman, 8 bits, gray or YCbCr with chroma at full size, half width, or half width and height. Of the coded data only the tiles under
 * the part are read where the file says where they are (see ../jpeg/tiles.py), else what lies before its end; only blocks that the part
 * shows are transformed back. Those samples are libjpeg's, bit for bit, at every scale, and so are the colours that they become (crop_window.c). These
 * are resampled by a triangle filter as wide as the shrink; at full scale what comes out differs from Pillow's by one level at most.
 *
 * Whole numbers throughout once the weights are made: every machine makes the same pixels. Whatever comes from the file is checked; what
 * is damaged, or of another kind, is an error, and the caller's slower ways have the last word on it.
 */
#ifndef LOADERD_CROP_H
#define LOADERD_CROP_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_WIDE
#endif
#define INLINE static inline __attribute__((always_inline))

enum { OTHER = -1, DAMAGED = -2 };
enum { FAST = 10, DC_FAST = 8 };
enum { PADDING = 1536 };  /* more than an MCU takes (6 blocks, 64 times at most 31 bits each), so that reading it can't leave the buffer */

/* An entry of `fast` says of the bits that come next: how many the code and its coefficient take, how many the coefficient, and by how many
 * coefficients it moves on. 0: a longer code. END, as a move: no more coefficients. */
#define ENTRY(length, size, move) ((uint32_t)((length) + (size)) | (uint32_t)(size) << 8 | (uint32_t)(move) << 16)
enum { END = 128 };

/* An AC code's entry says more where all bits of a coefficient, or of two, are among those that it is found by. From its low end: bits and
 * moves of both (8 each), move (8) and bits (4) of the first, its value, the second's value (16 each). The second may be the first again.
 * Others have this bit, beside what ENTRY says. */
#define ALONE (1u << 31)

typedef struct {
    uint64_t fast[1 << FAST];
    int32_t limit[18], first[17];
    uint8_t symbols[256];
} Code;

typedef struct {
    int across, down;  /* blocks in an MCU */
    int size;          /* samples a side of a block, scaled: 8, 4, 2 or 1 */
    int width, height; /* samples of the whole component, scaled */
    const uint32_t *quantisation;  /* as in Jpeg */
    const Code *dc, *ac;
    uint8_t *plane;    /* column by column: sample (x, y) at x * stride + y; NULL: nobody wants them */
    size_t stride;
} Component;

typedef struct {
    const uint8_t *data, *end;
    const uint8_t *scan;     /* its first byte */
    const uint8_t *lengths;  /* of tiles, uint16 each, little-endian; NULL: not known */
    int width, height, components, interval;
    int mcu_columns, mcu_rows;
    int left, top, right, bottom;  /* MCUs that are wanted, half-open */
    Component component[3];
    /* Of each coefficient, zigzag: its place in a block | what it is multiplied by << 16. Behind the last one, as far as an entry may move on:
     * a place behind the block. */
    uint32_t tables[4][64 + END + 16];
    Code codes[2][2];        /* DC, AC; number */
} Jpeg;

/* The weights of one axis: pixel i is the sum of count[i] samples from first[i] on, times weights[i * most + k] / 2^14. */
typedef struct {
    int pixels, most;
    int *first, *count;
    int16_t *weights;
    int low, high;  /* samples that are used, half-open */
} Axis;

/* Behind the last sample that pixel i uses: their number is even, so the last one may count for nothing. */
INLINE int axis_end(const Axis *axis, int i) {
    return axis->first[i] + axis->count[i] - !axis->weights[i * axis->most + axis->count[i] - 1];
}

/* What is asked for along an axis: the pixels [first, first + pixels) of `size` that show [begin, end) of the picture. */
typedef struct {
    double begin, end;
    int32_t size, first, pixels, mirrored;
} Span;

/* Memory given by the caller, carved up; `used` may exceed what is there, then nothing may be written. */
typedef struct {
    uint8_t *at;
    size_t size, used;
} Room;

INLINE void *carve(Room *room, size_t bytes) {
    void *place = room->at + room->used;
    room->used += (bytes + 63) & ~(size_t)63;
    return place;
}

/* What takes the time, compiled for several kinds of machine; all give the same. */
typedef struct {
    /* Fills the planes with the MCUs that are wanted. `buffer` has room for the whole scan and PADDING. 0, OTHER or DAMAGED. */
    int (*read_blocks)(Jpeg *j, uint8_t *buffer);
    /* Samples (x, y) for y in [begin, end) of a plane at x * stride + y - begin, to pixels along x: out[(y - begin) * width + pixel], times 2^7.
     * strip: 8 * (end - begin + 16) numbers. */
    void (*along_columns)(const Axis *axis, const uint8_t *plane, size_t stride, int rows, int16_t *strip, int16_t *out, size_t width);
    /* One row of pixels, times 2^6, of what along_columns made. */
    void (*along_rows)(const Axis *axis, int pixel, const int16_t *in, size_t width, int16_t *out);
    /* Such a row to bytes. */
    void (*bytes)(const int16_t *row, int width, uint8_t *out);
    /* Along a column: see crop_colours.h. */
    void (*between)(const uint8_t *near, const uint8_t *far, int count, int bias, uint8_t *out);
    void (*blend)(const uint8_t *near, const uint8_t *far, int count, int16_t *out);
    void (*between_lines)(const int16_t *column, int count, int step, int bias, uint8_t *out);
    void (*rgb)(const uint8_t *luma, const uint8_t *blue, const uint8_t *red, int count, uint8_t *const out[3]);
    void (*interleave)(uint8_t *const in[3], int width, uint8_t *out);
} Ways;

/* Columns [low, high) of the picture in colour, rows [top, top + rows): those that the next pixels show. */
typedef struct {
    const Jpeg *j;
    int top, rows, low, high;
    int smooth, halved_across, halved_down;  /* of chroma */
    size_t stride;
    uint8_t *colour[3], *chroma[2];
    int16_t *blended;
} Window;

extern const Ways plain_ways, wide_ways;

int read_head(Jpeg *j, const uint8_t *data, size_t length, int codes);
int make_code(Code *code, const uint8_t *counts, const uint8_t *symbols, int number, int ac);
void scaled(Jpeg *j, int eighths);
void make_axis(Axis *axis, const Span *span, double scale, int samples, Room *room);
int make_window(Window *w, const Jpeg *j, const Axis *columns, int top, int bottom, int smooth, Room *room);
void weave_colours(Window *w, const Ways *ways, const Axis *columns, int row, int16_t *strip, int16_t *const out[3], size_t width);

#endif
