/* Huffman codes as tables that tell a coefficient at a glance. */
#include <string.h>

#include "crop.h"

static void enter(Code *code, unsigned bits, int length, int symbol, int ac) {
    int width = ac ? FAST : DC_FAST, size = ac ? symbol & 15 : symbol, move = !ac ? 1 : symbol ? (symbol >> 4) + 1 : END;
    uint32_t *to = code->fast + ((size_t)bits << (width - length)), entry = ENTRY(length, size, move);
    for (int i = 0; i < 1 << (width - length); i++) to[i] = entry;
}

/* `counts`: 16, `symbols`: as many as they say. 0 or DAMAGED. */
int make_code(Code *c, const uint8_t *counts, const uint8_t *symbols, int number, int ac) {
    int code = 0, index = 0;
    memset(c->fast, 0, (ac ? sizeof *c->fast << FAST : sizeof *c->fast << DC_FAST));
    memcpy(c->symbols, symbols, (size_t)number);
    for (int length = 1; length <= 16; length++, code <<= 1) {
        c->first[length] = index - code;
        for (int i = 0; i < counts[length - 1]; i++, index++, code++) {
            int symbol = symbols[index];
            if (code >= (1 << length) - 1 || (ac ? !(symbol & 15) && symbol && symbol != 0xF0 : symbol > 11)) return DAMAGED;
            if (length <= (ac ? FAST : DC_FAST)) enter(c, (unsigned)code, length, symbol, ac);
        }
        c->limit[length] = code << (16 - length);
    }
    return 0;
}
