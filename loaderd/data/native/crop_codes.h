/* The coded blocks: from the scan to samples. Included by crop_plain.c and crop_wide.c. */
#include <string.h>

#include "crop.h"

enum { BLOCK = 80 };  /* numbers: 64 coefficients, and a place for what is none */

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
    r->bits <<= n & 63; /* as the instruction does it anyway */
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

/* A coefficient of its own, by the entry that was found, of which the bits are dropped, at most 31. Returns the entry; 0: none. */
INLINE uint32_t next(Reader *r, uint32_t entry, const Code *code, int ac, int *value) {
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
    uint32_t entry = next(r, (uint32_t)code->fast[r->bits >> (64 - DC_FAST)], code, 0, &value);
    *dc += value;
    return entry ? 0 : DAMAGED;
}

INLINE void put(int16_t *block, uint32_t place, int value) {
    if (block) block[place & 0xFF] = (int16_t)(value * (int)(place >> 16));
}

/* A block's other coefficients, dequantised, to their places in `block`, which is all zero; NULL: they are passed over. Returns the place
 * in zigzag order of the last one, or DAMAGED. */
INLINE int others(Reader *r, const Code *code, const uint32_t *quantisation, int16_t *block) {
    for (int k = 0, value = 0;;) {
        refill(r);
        for (int i = 0; i < 2; i++) {
            uint64_t entry = code->fast[r->bits >> (64 - FAST)];
            if (__builtin_expect((entry & ALONE) != 0, 0)) {
                if (i) refill(r);
                uint32_t alone = next(r, (uint32_t)entry & ~ALONE, code, 1, &value);
                if (!alone) return DAMAGED;
                int place = k + (int)(alone >> 16);
                if (place > 63) return place >= END ? k : DAMAGED;
                k = place;
                put(block, quantisation[k], value);
                if (k == 63) return k;
                continue;
            }
            int one = k + (int)(entry >> 16 & 255), two = k + (int)(entry >> 8 & 255);
            put(block, quantisation[one], (int16_t)(entry >> 32));
            if (__builtin_expect(two < 63, 1)) {
                put(block, quantisation[two], (int)((int64_t)entry >> 48));
                drop(r, (int)(entry & 255));
                k = two;
                continue;
            }
            if (__builtin_expect(one >= 63 && one < END, 0)) {  /* the second is not of this block */
                drop(r, (int)(entry >> 24 & 15));
                return one == 63 ? one : DAMAGED;
            }
            drop(r, (int)(entry & 255));
            if (__builtin_expect(two >= END, 1)) return one < END ? one : k;
            if (two > 63) return DAMAGED;
            put(block, quantisation[two], (int)((int64_t)entry >> 48));
            return two;
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
    if (!block) return others(r, c->ac, c->quantisation, NULL);
    put(block, c->quantisation[0], *dc);
    return c->size == 1 ? others(r, c->ac, c->quantisation, NULL) : others(r, c->ac, c->quantisation, block);
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
    int16_t blocks[6][BLOCK] __attribute__((aligned(32)));
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
