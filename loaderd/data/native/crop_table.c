/* Huffman codes as tables that tell a coefficient at a glance. */
#include <string.h>

#include "crop.h"

/* The coefficient that `coded` stands for, of `size` bits. */
static int extended(int coded, int size) {
    return size && coded < 1 << (size - 1) ? coded - (1 << size) + 1 : coded;
}

/* A code of `length` bits at its places in the table. whole: likewise, with all bits of its coefficient: their number | move << 8 |
 * value << 16. */
static void enter(Code *c, int code, int length, int symbol, int ac, uint32_t *whole) {
    int width = ac ? FAST : DC_FAST, size = ac ? symbol & 15 : symbol, move = !ac ? 1 : symbol ? (symbol >> 4) + 1 : END;
    int rest = width - length, left = rest - size;
    uint32_t entry = ENTRY(length, size, move) | (ac ? ALONE : 0);
    for (int i = 0; i < 1 << rest; i++) c->fast[(code << rest) + i] = entry;
    if (!ac || left < 0) return;
    for (int coded = 0; coded < 1 << size; coded++) {
        uint32_t found = (uint32_t)(length + size) | (uint32_t)move << 8 | (uint32_t)extended(coded, size) << 16;
        for (int i = 0; i < 1 << left; i++) whole[(code << rest) + (coded << left) + i] = found;
    }
}

/* The entries of one coefficient, or of two. */
static void pair(Code *c, const uint32_t *whole) {
    for (unsigned bits = 0; bits < 1 << FAST; bits++) {
        uint32_t first = whole[bits], used = first & 255, move = first >> 8 & 255, second = whole[bits << used & ((1 << FAST) - 1)];
        if (!first) continue;
        if (move == END || !second || used + (second & 255) > FAST) second = first & 0xFFFF0000u;
        uint64_t values = (uint64_t)(first >> 16) << 32 | (uint64_t)(second >> 16) << 48;
        c->fast[bits] = values | used << 24 | move << 16 | (move + (second >> 8 & 255)) << 8 | (used + (second & 255));
    }
}

/* `counts`: 16, `symbols`: as many as they say. 0 or DAMAGED. */
int make_code(Code *c, const uint8_t *counts, const uint8_t *symbols, int number, int ac) {
    int code = 0, index = 0, width = ac ? FAST : DC_FAST;
    uint32_t whole[1 << FAST];
    memset(whole, 0, sizeof whole);
    memcpy(c->symbols, symbols, (size_t)number);
    for (int i = 0; i < 1 << width; i++) c->fast[i] = ac ? ALONE : 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        c->first[length] = index - code;
        for (int i = 0; i < counts[length - 1]; i++, index++, code++) {
            int symbol = symbols[index];
            if (code >= (1 << length) - 1 || (ac ? !(symbol & 15) && symbol && symbol != 0xF0 : symbol > 11)) return DAMAGED;
            if (length <= width) enter(c, code, length, symbol, ac, whole);
        }
        c->limit[length] = code << (16 - length);
    }
    if (ac) pair(c, whole);
    return 0;
}
