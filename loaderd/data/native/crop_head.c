/* The headers of a JPEG: from its first byte to the scan. */
#define _GNU_SOURCE /* memrchr */
#include <string.h>

#include "crop.h"

enum { VERSION = 1, INDEX_HEAD = 18 };  /* of the index of tiles, see ../jpeg/tiles.py */

static const uint8_t NATURAL[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

typedef struct {
    int codes, jfif, adobe, frame, tables, tile_height, tile_width, tile_rows, tile_columns, scan_bytes;
    int id[3], quantisation[3];
    const uint8_t *behind;  /* the byte after the index */
} Seen;

static int word(const uint8_t *at) {
    return at[0] << 8 | at[1];
}

static int little(const uint8_t *at) {
    return at[1] << 8 | at[0];
}

static int quantisation(Jpeg *j, Seen *seen, const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        int wide = *at >> 4, number = *at & 15;
        at++;
        if (wide > 1 || number > 3 || end - at < 64 * (1 + wide)) return DAMAGED;
        for (int k = 0; k < 64; k++) j->tables[number][k] = NATURAL[k] | (uint32_t)(wide ? word(at + 2 * k) : at[k]) << 16;
        for (size_t k = 64; k < sizeof *j->tables / sizeof **j->tables; k++) j->tables[number][k] = 64;
        at += 64 * (1 + wide);
        seen->tables |= 1 << number;
    }
    return 0;
}

static int huffman(Jpeg *j, Seen *seen, const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        int kind = *at >> 4, number = *at & 15, count = 0;
        if (end - at < 17 || kind > 1 || number > 3) return DAMAGED;
        if (number > 1) return OTHER;
        for (int i = 1; i <= 16; i++) count += at[i];
        if (count > 256 || end - at < 17 + count) return DAMAGED;
        if (seen->codes && make_code(&j->codes[kind][number], at + 1, at + 17, count, kind)) return DAMAGED;
        at += 17 + count;
        seen->tables |= 16 << (2 * kind + number);
    }
    return 0;
}

static int frame(Jpeg *j, Seen *seen, const uint8_t *at, const uint8_t *end) {
    if (seen->frame || end - at < 9 || end - at != 6 + 3 * at[5]) return DAMAGED;
    j->height = word(at + 1), j->width = word(at + 3), j->components = at[5];
    if (at[0] != 8 || !j->height || !j->width || (j->components != 1 && j->components != 3)) return OTHER;
    for (int i = 0; i < j->components; i++) {
        const uint8_t *one = at + 6 + 3 * i;
        seen->id[i] = one[0], seen->quantisation[i] = one[2];
        j->component[i].across = one[1] >> 4, j->component[i].down = one[1] & 15;
        if (one[2] > 3) return DAMAGED;
    }
    Component *c = j->component;
    if (j->components == 1) {
        if (c->across < 1 || c->across > 4 || c->down < 1 || c->down > 4) return DAMAGED;
        c->across = c->down = 1;
    } else {
        if (c[1].across != 1 || c[1].down != 1 || c[2].across != 1 || c[2].down != 1) return OTHER;
        if (c->across < 1 || c->across > 2 || c->down < 1 || c->down > c->across) return OTHER;
    }
    j->mcu_columns = (j->width + 8 * c->across - 1) / (8 * c->across);
    j->mcu_rows = (j->height + 8 * c->down - 1) / (8 * c->down);
    seen->frame = 1;
    return 0;
}

static void application(Jpeg *j, Seen *seen, int marker, const uint8_t *at, const uint8_t *end) {
    if (marker == 0xE0 && end - at >= 14 && !memcmp(at, "JFIF", 5)) seen->jfif = 1;
    if (marker == 0xEE && end - at >= 12 && !memcmp(at, "Adobe", 5)) seen->adobe = 1 + at[11];
    if (marker != 0xE9 || end - at < 8 + INDEX_HEAD || memcmp(at, "loaderd", 8) || at[8] != VERSION || j->lengths) return;
    seen->tile_height = little(at + 10), seen->tile_width = little(at + 12);
    seen->tile_rows = little(at + 14), seen->tile_columns = little(at + 16);
    seen->scan_bytes = little(at + 22) | little(at + 24) << 16;
    if ((int64_t)seen->tile_rows * seen->tile_columns * 2 != end - at - 8 - INDEX_HEAD) return;
    j->lengths = at + 8 + INDEX_HEAD;
    seen->behind = end + little(at + 18);
}

/* Whether an end of image is there; other bytes may follow it, as in the files of some cameras. What the scan stuffs can't look like it. */
static int ends(const uint8_t *from, const uint8_t *end) {
    while (end - from >= 2) {
        const uint8_t *last = memrchr(from + 1, 0xD9, (size_t)(end - from - 1));
        if (!last || last[-1] == 0xFF) return last != NULL;
        end = last;
    }
    return 0;
}

static int start(Jpeg *j, const Seen *seen, const uint8_t *at, const uint8_t *end) {
    int count = j->components;
    if (!seen->frame || end - at != 4 + 2 * count || at[0] != count || at[1 + 2 * count] != 0 || at[2 + 2 * count] != 63 || at[3 + 2 * count])
        return OTHER;
    for (int i = 0; i < count; i++) {
        int dc = at[2 + 2 * i] >> 4, ac = at[2 + 2 * i] & 15;
        if (at[1 + 2 * i] != seen->id[i] || dc > 1 || ac > 1) return OTHER;
        if (!(seen->tables >> seen->quantisation[i] & 1) || !(seen->tables >> (4 + dc) & 1) || !(seen->tables >> (6 + ac) & 1)) return DAMAGED;
        j->component[i].dc = &j->codes[0][dc], j->component[i].ac = &j->codes[1][ac];
        j->component[i].quantisation = j->tables[seen->quantisation[i]];
    }
    /* What libjpeg takes for YCbCr without having to guess. */
    if (count == 3 && !seen->jfif && (seen->adobe ? seen->adobe != 2 : seen->id[0] != 1 || seen->id[1] != 2 || seen->id[2] != 3)) return OTHER;
    j->scan = end;
    if (j->lengths) {
        int across = 8 * j->component[0].across, down = 8 * j->component[0].down;
        int fits = seen->behind == end && seen->scan_bytes >= 2 && seen->scan_bytes <= j->end - end;
        fits = fits && end[seen->scan_bytes - 2] == 0xFF && end[seen->scan_bytes - 1] == 0xD9;
        fits = fits && seen->tile_height == down && seen->tile_rows == j->mcu_rows && j->interval > 0 && seen->tile_width == j->interval * across && seen->tile_columns * j->interval == j->mcu_columns;
        if (fits) j->end = end + seen->scan_bytes;
        return fits ? 0 : OTHER;
    }
    return ends(end, j->end) ? 0 : OTHER;
}

/* Reads everything before the scan; `codes`: the tables of Huffman codes are made. 0, OTHER or DAMAGED. */
int read_head(Jpeg *j, const uint8_t *data, size_t length, int codes) {
    Seen seen;
    memset(&seen, 0, sizeof seen);
    seen.codes = codes;
    const uint8_t *at = data + 2;
    j->data = data, j->end = data + length, j->lengths = NULL, j->interval = 0, j->width = j->height = j->components = 0;
    if (length < 8 || data[0] != 0xFF || data[1] != 0xD8) return OTHER;
    for (;;) {
        if (j->end - at < 4 || at[0] != 0xFF) return OTHER;
        int marker = at[1], error = 0;
        const uint8_t *from = at + 4, *to = at + 2 + word(at + 2);
        if (to < from || to > j->end) return DAMAGED;
        if (marker == 0xDA) return start(j, &seen, from, to);
        if (marker == 0xDB) error = quantisation(j, &seen, from, to);
        else if (marker == 0xC4) error = huffman(j, &seen, from, to);
        else if (marker == 0xC0 || marker == 0xC1) error = frame(j, &seen, from, to);
        else if (marker == 0xDD && to - from == 2) j->interval = word(from);
        else if (marker >= 0xE0 && marker <= 0xEF) application(j, &seen, marker, from, to);
        else if (marker != 0xFE) error = OTHER;
        if (error) return error;
        at = to;
    }
}

/* The sizes of blocks and components at eighths / 8 of the size: chroma is scaled down later than luma where it is smaller already. */
void scaled(Jpeg *j, int eighths) {
    int most_across = j->component[0].across, most_down = j->component[0].down;
    for (int i = 0; i < j->components; i++) {
        Component *c = &j->component[i];
        int size = eighths;
        while (size < 8 && (most_across * eighths) % (c->across * size * 2) == 0 && (most_down * eighths) % (c->down * size * 2) == 0) size *= 2;
        c->size = size;
        c->width = (j->width * c->across * size + 8 * most_across - 1) / (8 * most_across);
        c->height = (j->height * c->down * size + 8 * most_down - 1) / (8 * most_down);
    }
}
