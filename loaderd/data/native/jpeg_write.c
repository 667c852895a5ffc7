/* Writing: the symbols of a picture as one sequential scan, cut by restart markers, with the shortest Huffman codes for it. */
#include <stdlib.h>
#include <string.h>

#include "jpeg.h"

enum { SYMBOLS = 256, DEEPEST = 64, SLACK = 8192 };  /* SLACK: more than the longest MCU, stuffed, and a marker */

typedef struct {
    uint16_t code[SYMBOLS];
    uint8_t size[SYMBOLS];
    uint8_t counts[16], symbols[SYMBOLS];
    int used;
} Code;

typedef struct {
    uint32_t times;
    int symbol, up;  /* up: the node that it was merged into */
} Node;

static int by_times(const void *a, const void *b) {
    const Node *x = a, *y = b;
    if (x->times != y->times) return x->times < y->times ? -1 : 1;
    return y->symbol - x->symbol;
}

/* Number of codes of each length of an optimal code for n sorted leaves, in nodes[2n - 1]: merges the two rarest trees until one is left. */
static void lengths_of(Node *nodes, int n, int counts[DEEPEST]) {
    uint8_t depth[2 * SYMBOLS + 2];
    int leaf = 0, tree = n, next = n;
    for (; next < 2 * n - 1; next++) {
        nodes[next].times = 0;
        for (int i = 0; i < 2; i++) {
            int least = leaf < n && (tree == next || nodes[leaf].times <= nodes[tree].times) ? leaf++ : tree++;
            nodes[next].times += nodes[least].times;
            nodes[least].up = next;
        }
    }
    memset(counts, 0, DEEPEST * sizeof *counts);
    depth[2 * n - 2] = 0;
    for (int i = 2 * n - 3; i >= 0; i--) {
        depth[i] = depth[nodes[i].up] + 1;
        if (i < n) counts[depth[i] < DEEPEST ? depth[i] : DEEPEST - 1]++;
    }
}

/* No code longer than 16 bits (ITU-T T.81, K.3: a pair of too long codes becomes one, and a shorter code makes room for the other). */
static void shorten(int counts[DEEPEST]) {
    for (int i = DEEPEST - 1; i > 16; i--) {
        while (counts[i] > 0) {
            int j = i - 2;
            while (counts[j] == 0) j--;
            counts[i] -= 2;
            counts[i - 1]++;
            counts[j + 1] += 2;
            counts[j]--;
        }
    }
}

static void make_code(Code *c, const uint32_t times[SYMBOLS]) {
    Node nodes[2 * SYMBOLS + 2];
    int counts[DEEPEST], n = 0;
    memset(c, 0, sizeof *c);
    /* A symbol that never comes, rarer than any: it takes the code of ones alone, which no JPEG may use. */
    nodes[n++] = (Node){0, SYMBOLS, 0};
    for (int i = 0; i < SYMBOLS; i++) if (times[i]) nodes[n++] = (Node){times[i], i, 0};
    if (n == 1) return;
    qsort(nodes, (size_t)n, sizeof *nodes, by_times);
    lengths_of(nodes, n, counts);
    shorten(counts);
    int longest = 16;
    while (counts[longest] == 0) longest--;
    counts[longest]--;
    unsigned code = 0;
    int from = n - 1;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        c->counts[length - 1] = (uint8_t)counts[length];
        for (int i = 0; i < counts[length]; i++, code++, from--) {
            int s = nodes[from].symbol;
            c->symbols[c->used++] = (uint8_t)s;
            c->size[s] = (uint8_t)length;
            c->code[s] = (uint16_t)code;
        }
    }
}

typedef struct {
    uint8_t *at;
    uint64_t bits;
    int count;  /* below 32 between calls */
} Writer;

static inline void put_byte(Writer *w, unsigned byte) {
    *w->at++ = (uint8_t)byte;
    if (byte == 0xFF) *w->at++ = 0;
}

static inline void put(Writer *w, unsigned value, int size) {
    w->bits = w->bits << size | value;
    w->count += size;
    if (w->count < 32) return;
    w->count -= 32;
    uint32_t word = (uint32_t)(w->bits >> w->count), inverse = ~word;
    if ((inverse - 0x01010101u) & ~inverse & 0x80808080u) {
        for (int shift = 24; shift >= 0; shift -= 8) put_byte(w, word >> shift & 255);
    } else {
        w->at[0] = (uint8_t)(word >> 24), w->at[1] = (uint8_t)(word >> 16), w->at[2] = (uint8_t)(word >> 8), w->at[3] = (uint8_t)word;
        w->at += 4;
    }
}

static void pad(Writer *w) {
    put(w, 0x7F, 7);
    for (; w->count >= 8; w->count -= 8) put_byte(w, (unsigned)(w->bits >> (w->count - 8)) & 255);
    w->count = 0;
}

static inline int size_of(int value) {
    return value ? 32 - __builtin_clz((unsigned)abs(value)) : 0;
}

/* How often each symbol comes: DC of the first component, of the others, then AC likewise. Returns 0 or BAD_VALUE. */
static int census(const Picture *p, int interval, uint32_t times[4][SYMBOLS]) {
    int predicted[3] = {0, 0, 0}, until = 0;
    const uint32_t *ac = p->ac;
    for (size_t block = 0; block < p->blocks;) {
        if (until-- == 0) {
            memset(predicted, 0, sizeof predicted);
            until = interval - 1;
        }
        for (int i = 0; i < p->per_mcu; i++, block++) {
            int c = p->owner[i], size = size_of(p->dc[block] - predicted[c]);
            if (size > DC_BITS) return BAD_VALUE;
            predicted[c] = p->dc[block];
            times[c > 0][size]++;
            do times[2 + (c > 0)][*ac >> 16 & 255]++; while (!(*ac++ & LAST));
        }
    }
    return 0;
}

static const uint32_t *put_mcu(const Picture *p, Writer *w, const Code code[4], const int16_t *dc, const uint32_t *ac, int predicted[3]) {
    for (int i = 0; i < p->per_mcu; i++) {
        int c = p->owner[i], other = c > 0, value = dc[i] - predicted[c], size = size_of(value);
        predicted[c] = dc[i];
        put(w, (unsigned)code[other].code[size] << size | ((unsigned)(value - (value < 0)) & ((1u << size) - 1)), code[other].size[size] + size);
        const Code *way = &code[2 + other];
        uint32_t entry;
        do {
            entry = *ac++;
            int symbol = entry >> 16 & 255, extra = symbol & 15;
            put(w, (unsigned)way->code[symbol] << extra | (entry & 0xFFFF), way->size[symbol] + extra);
        } while (!(entry & LAST));
    }
    return ac;
}

/* Writes the scan with a restart marker after every `interval` MCUs (1 or more), none after the last, to `out`, which has `room` bytes.
 * Returns its length. `lengths`: one a tile, its bytes with the marker that follows it (2 also for the last: the end of the image).
 * `tables` (4 x 272 bytes): counts and symbols of the codes DC 0, DC 1, AC 0, AC 1; number 1 counts for all but the first component.
 * May be called again with another interval. NO_ROOM: it would not fit. LONG_TILE: a tile is longer than 65535 bytes. */
EXPORT int64_t loaderd_jpeg_write(const Picture *p, int32_t interval, uint8_t *out, uint64_t room, uint16_t *lengths, uint8_t *tables) {
    uint32_t times[4][SYMBOLS];
    Code code[4];
    memset(times, 0, sizeof times);
    int error = census(p, interval, times);
    if (error) return error;
    for (int i = 0; i < 4; i++) {
        make_code(&code[i], times[i]);
        memcpy(tables + 272 * i, code[i].counts, 16);
        memcpy(tables + 272 * i + 16, code[i].symbols, SYMBOLS);
    }
    Writer w = {out, 0, 0};
    uint8_t *tile = out;
    const uint32_t *ac = p->ac;
    int predicted[3] = {0, 0, 0}, mcus = p->mcu_columns * p->mcu_rows, number = 0;
    for (int mcu = 0; mcu < mcus; mcu++) {
        if ((uint64_t)(w.at - out) + SLACK > room) return NO_ROOM;
        ac = put_mcu(p, &w, code, p->dc + (size_t)mcu * p->per_mcu, ac, predicted);
        if ((mcu + 1) % interval && mcu + 1 < mcus) continue;
        pad(&w);
        if (w.at + 2 - tile > 65535) return LONG_TILE;
        *lengths++ = (uint16_t)(w.at + 2 - tile);
        if (mcu + 1 == mcus) break;
        *w.at++ = 0xFF;
        *w.at++ = (uint8_t)(0xD0 + (number++ & 7));
        memset(predicted, 0, sizeof predicted);
        tile = w.at;
    }
    return w.at - out;
}
