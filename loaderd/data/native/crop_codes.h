/* The coded blocks: from the scan to samples. Included by crop_plain.c and crop_wide.c. */
#include <string.h>

#include "crop.h"

static const uint8_t NATURAL[80] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

/* Bits of a stretch of the scan from which stuffed zeros have been taken out. Behind its end lie a few zeros, in PADDING bytes that may be read. */
typedef struct {
    const uint8_t *at;
    uint64_t bits;  /* the next ones, from the top */
    int count;      /* how many of them, at least */
} Reader;

INLINE void refill(Reader *r) {
    uint64_t word;
    memcpy(&word, r->at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    r->bits |= word >> r->count;
    r->at += (63 - r->count) >> 3;
    r->count |= 56;
}

INLINE void drop(Reader *r, int n) {
    r->bits <<= n;
    r->count -= n;
}

/* The entry of a code longer than FAST; 0 if it means nothing. */
static uint32_t __attribute__((noinline)) longer(uint64_t bits, const Code *code, int ac) {
    int32_t ahead = (int32_t)(bits >> 48);
    int length = (ac ? FAST : DC_FAST) + 1;
    while (length <= 16 && ahead >= code->limit[length]) length++;
    if (length > 16) return 0;
    int symbol = code->symbols[((ahead >> (16 - length)) + code->first[length]) & 255];
    return ac ? ENTRY(length, symbol & 15, symbol ? (symbol >> 4) + 1 : END) : ENTRY(length, symbol, 1);
}

/* The next entry and its coefficient, of which the bits are dropped: at most 26 for the shorter codes, 31 for others. */
INLINE uint32_t next(Reader *r, const Code *code, int ac, int *value) {
    uint32_t entry = code->fast[r->bits >> (64 - (ac ? FAST : DC_FAST))];
    if (__builtin_expect(!entry, 0)) {
        entry = longer(r->bits, code, ac);
        if (!entry) return 0;
    }
    unsigned length = entry & 255, size = entry >> 8 & 255;
    unsigned coded = (unsigned)(r->bits >> (64 - length)) & ((1u << size) - 1);
    *value = (int)coded + ((((int)(2 * coded >> size) & 1) - 1) & (1 - (1 << size)));
    drop(r, (int)length);
    return entry;
}

INLINE int difference(Reader *r, const Code *code, int *dc) {
    int value = 0;
    refill(r);
    uint32_t entry = next(r, code, 0, &value);
    *dc += value;
    return entry ? 0 : DAMAGED;
}

/* A block's other coefficients, dequantised, to their places in `block`, which is all zero; NULL: they are passed over. Returns the place
 * in zigzag order of the last one, or DAMAGED. */
INLINE int others(Reader *r, const Code *code, const uint16_t *quantisation, int16_t *block) {
    for (int k = 0, last = 0, value = 0;;) {
        refill(r);
        for (int i = 0; i < 2; i++) {
            if (i && __builtin_expect(r->count < 31, 0)) refill(r);
            uint32_t entry = next(r, code, 1, &value);
            k += (int)(entry >> 16);
            if (k > 63) return k >= END ? last : DAMAGED;
            if (__builtin_expect(!entry, 0)) return DAMAGED;
            last = k;
            if (block) block[NATURAL[k]] = (int16_t)(value * quantisation[k]);
            if (k == 63) return k;
        }
    }
}

/* The shortest transform, for any machine. */
INLINE int odd_2(int a, int b, int c, int d) {
    return a * 29692 - b * 10426 + c * 6967 - d * 5906;
}

static void back_2(const int16_t *block, uint8_t *out, size_t stride) {
    static const int USED[5] = {0, 1, 3, 5, 7};
    int work[2][8], shift = BITS - EXTRA + 2;
    for (int i = 0; i < 5; i++) {
        const int16_t *at = block + USED[i];
        int even = at[0] * (1 << (BITS + 2)) + (1 << (shift - 1)), odd = odd_2(at[8], at[24], at[40], at[56]);
        work[0][USED[i]] = (even + odd) >> shift;
        work[1][USED[i]] = (even - odd) >> shift;
    }
    shift = BITS + EXTRA + 3 + 2;
    for (int y = 0; y < 2; y++) {
        const int *at = work[y];
        int even = at[0] * (1 << (BITS + 2)) + (1 << (shift - 1)), odd = odd_2(at[1], at[3], at[5], at[7]);
        for (int x = 0; x < 2; x++) {
            int value = ((x ? even - odd : even + odd) >> shift) + 128;
            out[(size_t)x * stride + (size_t)y] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
        }
    }
}

/* A block of one sample. */
static void flat(const Component *c, int dc, uint8_t *out) {
    int value = ((dc + 4) >> 3) + 128;
    value = value < 0 ? 0 : value > 255 ? 255 : value;
    for (int x = 0; x < c->size; x++, out += c->stride) memset(out, value, (size_t)c->size);
}

/* A block of an MCU: whose it is, and where in the MCU. */
typedef struct {
    Component *component;
    int part, x, y;  /* y, x: samples */
} Place;

/* A block's coefficients to `block`, which is all zero (NULL: nobody wants them). Returns as `others`. */
INLINE int coefficients(Reader *r, const Component *c, int *dc, int16_t *block) {
    if (difference(r, c->dc, dc)) return DAMAGED;
    if (!block) return others(r, c->ac, NULL, NULL);
    block[0] = (int16_t)(*dc * c->quantisation[0]);
    return c->size == 1 ? others(r, c->ac, NULL, NULL) : others(r, c->ac, c->quantisation, block);
}

/* last: the place of the last coefficient that isn't zero, or of a later one. */
INLINE void samples(const Component *c, const int16_t *block, int last, uint8_t *out) {
    if (last == 0 || c->size == 1) flat(c, block[0], out);
    else if (c->size == 8) back_8(block, out, c->stride);
    else if (c->size == 4) back_4(block, out, c->stride);
    else back_2(block, out, c->stride);
}

static int places_of(Jpeg *j, Place *places) {
    int count = 0;
    for (int i = 0; i < j->components; i++) {
        Component *c = &j->component[i];
        for (int k = 0; k < c->across * c->down; k++) places[count++] = (Place){c, i, k % c->across * c->size, k / c->across * c->size};
    }
    return count;
}

/* An MCU that nobody wants. */
INLINE int pass_over(Reader *r, const Place *places, int count, int dc[3]) {
    for (int i = 0; i < count; i++) {
        if (coefficients(r, places[i].component, &dc[places[i].part], NULL) < 0) return DAMAGED;
    }
    return 0;
}

/* An MCU whose samples go to the planes. All of its coefficients come before all samples: a vector read right after its parts were
 * written has to wait for them. */
INLINE int one_mcu(const Jpeg *j, Reader *r, const Place *places, int count, int column, int row, int dc[3]) {
    int16_t blocks[6][64] __attribute__((aligned(32)));
    int last[6];
    memset(blocks, 0, (size_t)count * sizeof blocks[0]);
    for (int i = 0; i < count; i++) {
        const Component *c = places[i].component;
        last[i] = coefficients(r, c, &dc[places[i].part], c->plane ? blocks[i] : NULL);
        if (last[i] < 0) return DAMAGED;
    }
    for (int i = 0; i < count; i++) {
        const Component *c = places[i].component;
        if (!c->plane) continue;
        size_t x = (size_t)((column - j->left) * c->across * c->size + places[i].x), y = (size_t)((row - j->top) * c->down * c->size + places[i].y);
        samples(c, blocks[i], last[i], c->plane + x * c->stride + y);
    }
    return 0;
}

/* Takes stuffed zeros out of the scan up to the next marker, which is returned. */
static const uint8_t *unstuffed(const uint8_t *from, const uint8_t *end, uint8_t *to, uint8_t **to_end) {
    for (;;) {
        const uint8_t *mark = memchr(from, 0xFF, (size_t)(end - from));
        if (!mark || end - mark < 2) return NULL;
        size_t length = (size_t)(mark - from);
        memcpy(to, from, length);
        to += length;
        if (mark[1] != 0) {
            memset(to, 0, 64);
            *to_end = to;
            return mark;
        }
        *to++ = 0xFF;
        from = mark + 2;
    }
}

/* The MCUs [first, last) of one stretch between restart markers; from `enough` on none is wanted. */
static int stretch(Jpeg *j, const uint8_t *begin, const uint8_t *end, int first, int last, int enough) {
    Reader r = {begin, 0, 0};
    int dc[3] = {0, 0, 0}, wide = j->mcu_columns, mcu = first;
    Place places[6];
    int row = first / wide, column = first % wide, count = places_of(j, places);
    for (; mcu < last && mcu < enough; mcu++) {
        int wanted = row >= j->top && column >= j->left && column < j->right;
        int error = wanted ? one_mcu(j, &r, places, count, column, row, dc) : pass_over(&r, places, count, dc);
        if (error || r.at > end + 16) return DAMAGED;
        if (++column == wide) column = 0, row++;
    }
    ptrdiff_t left = (end - r.at) * 8 + r.count;
    return left < 0 || (mcu == last && left >= 8) ? DAMAGED : 0;
}

static int read_tiles(Jpeg *j, uint8_t *buffer) {
    int across = j->mcu_columns / j->interval, tile = 0;
    const uint8_t *at = j->scan;
    for (int row = 0; row < j->bottom; row++) {
        for (int column = 0; column < across; column++, tile++) {
            int length = j->lengths[2 * tile] | j->lengths[2 * tile + 1] << 8, first = column * j->interval, last = first + j->interval;
            if (length > j->end - at) return DAMAGED;
            if (row >= j->top && first < j->right && last > j->left) {
                uint8_t *end = buffer;
                const uint8_t *mark = unstuffed(at, at + length, buffer, &end);
                if (mark != at + length - 2) return DAMAGED;
                int base = row * j->mcu_columns;
                if (stretch(j, buffer, end, base + first, base + last, base + j->right)) return DAMAGED;
            }
            at += length;
        }
    }
    return 0;
}

static int read_in_order(Jpeg *j, uint8_t *buffer) {
    int all = j->mcu_columns * j->mcu_rows, interval = j->interval ? j->interval : all, number = 0;
    int enough = (j->bottom - 1) * j->mcu_columns + j->right;
    const uint8_t *at = j->scan;
    for (int first = 0; first < all && first / j->mcu_columns < j->bottom; first += interval, number++) {
        uint8_t *end = buffer;
        const uint8_t *mark = unstuffed(at, j->end, buffer, &end);
        if (!mark) return DAMAGED;
        int last = first + interval < all ? first + interval : all;
        if ((last - 1) / j->mcu_columns >= j->top && stretch(j, buffer, end, first, last, enough)) return DAMAGED;
        if (mark[1] != (last == all ? 0xD9 : 0xD0 + (number & 7))) return OTHER;
        at = mark + 2;
    }
    return 0;
}

static int read_blocks(Jpeg *j, uint8_t *buffer) {
    return j->lengths ? read_tiles(j, buffer) : read_in_order(j, buffer);
}
