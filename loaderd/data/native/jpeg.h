/* The entropy-coded part of a JPEG, read and written again with restart markers and Huffman tables of its own.
 *
 * A plain shared object without Python's headers, called through ctypes by ../jpeg/rewrite.py, which parses and writes all headers. Nothing
 * is transformed back: quantised coefficients go in and the same ones come out, so the pixels can't change.
 *
 * Every length and index that comes from the file is checked here or, where it says so, by the caller. A picture serves one thread at a
 * time. Functions that are exported return 0 or more, or one of the errors below.
 */
#ifndef LOADERD_JPEG_H
#define LOADERD_JPEG_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { NO_MEMORY = -1, TRUNCATED = -2, BAD_CODE = -3, BAD_TABLE = -4, BAD_VALUE = -5, BAD_MARKER = -6, NO_ROOM = -7, LONG_TILE = -8 };
enum { MAX_BLOCKS = 10, FAST = 10, DC_BITS = 11, AC_BITS = 10 };
#define LAST (1u << 24)    /* this symbol ends its block */

typedef struct {
    int h, v;           /* sampling factors = blocks of it in an MCU, across and down */
    int columns, rows;  /* blocks in a scan of this component alone */
    int stride;         /* blocks in a row, padded to whole MCUs */
    int16_t *blocks;    /* progressive only: 64 coefficients each, in zigzag order */
} Component;

typedef struct {
    int components, mcu_columns, mcu_rows, per_mcu;
    Component component[3];
    uint8_t owner[MAX_BLOCKS];  /* which component a block of an MCU belongs to */
    int16_t *dc;                /* one a block, in the order of an interleaved scan */
    size_t blocks;
    uint32_t *ac;               /* bits | symbol << 16 | LAST, blocks one after another */
    size_t count, capacity;
} Picture;

#endif
