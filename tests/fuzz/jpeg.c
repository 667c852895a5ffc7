/* Stored bytes as loaderd/data/native/jpeg_*.c rewrite them, under the sanitizers. `make fuzz` builds and runs it.
 *
 * Headers are read, and refused, as ../../loaderd/data/jpeg/headers.py and rewrite.py do. All memory is of just the size that was asked for.
 * What is written is read again, and must be what was written. */
#include <stdlib.h>
#include <string.h>

#include "jpeg.h"

enum { MOST_BLOCKS = 1 << 12, SLACK = 8192, TABLE = 272 };
enum { SOS = 0xDA, DHT = 0xC4, DRI = 0xDD, EOI = 0xD9 };

int64_t loaderd_jpeg_scan(Picture *p, const uint8_t *data, uint64_t length, const int32_t *how, const uint8_t *tables);
int64_t loaderd_jpeg_finish(Picture *p);
int64_t loaderd_jpeg_write(const Picture *p, int32_t interval, uint8_t *out, uint64_t room, uint16_t *lengths, uint8_t *tables);
Picture *loaderd_jpeg_new(const int32_t *shape);
void loaderd_jpeg_free(Picture *p);

/* What the headers have said so far. known: the lowest bit of each coefficient that has come, or -1. */
typedef struct {
    int parts, names[3], across[3], down[3], width, height, progressive, interval, scans;
    uint8_t codes[2][4][TABLE];
    signed char there[2][4], known[3][64];
} File;

static int frame(File *f, int marker, const uint8_t *at, size_t length) {
    if (f->parts || length < 9 || length != 6 + 3 * (size_t)at[5] || (at[5] != 1 && at[5] != 3)) return 0;
    int parts = at[5], most_across = 1, most_down = 1, blocks = 0;
    f->progressive = marker == 0xC2, f->height = at[1] << 8 | at[2], f->width = at[3] << 8 | at[4];
    if (!f->height || !f->width) return 0;
    for (int i = 0; i < parts; i++) {
        f->names[i] = at[6 + 3 * i], f->across[i] = at[7 + 3 * i] >> 4, f->down[i] = at[7 + 3 * i] & 15;
        if (f->across[i] < 1 || f->across[i] > 4 || f->down[i] < 1 || f->down[i] > 4) return 0;
        if (f->across[i] > most_across) most_across = f->across[i];
        if (f->down[i] > most_down) most_down = f->down[i];
        blocks += f->across[i] * f->down[i];
    }
    for (int i = 0; i < parts; i++) if (most_across % f->across[i] || most_down % f->down[i]) return 0;
    f->parts = parts;
    return (parts == 1 || blocks <= MAX_BLOCKS) && (int64_t)f->height * f->width <= 64 * MOST_BLOCKS;
}

static int codes(File *f, const uint8_t *at, size_t length) {
    while (length) {
        size_t count = 0;
        if (length < 17 || *at & 0xEC) return 0;
        for (int i = 1; i <= 16; i++) count += at[i];
        if (count > 256 || length < 17 + count) return 0;
        for (size_t i = 0; i < count && *at < 16; i++) if (at[17 + i] > 15) return 0;
        uint8_t *to = f->codes[*at >> 4][*at & 3];
        memset(to, 0, TABLE);
        memcpy(to, at + 1, 16 + count);
        f->there[*at >> 4][*at & 3] = 1;
        at += 17 + count, length -= 17 + count;
    }
    return 1;
}

/* A progressive scan must follow those before it. */
static int advance(File *f, const int32_t *how) {
    int first = how[2], last = how[3], high = how[4], low = how[5];
    if (first > last || last > 63 || low > 13 || (first ? how[0] != 1 : last != 0)) return 0;
    for (int i = 0; i < how[0]; i++) {
        for (int k = first; k <= last; k++) {
            signed char *known = &f->known[how[6 + i]][k];
            if (high ? high != low + 1 || *known != high : *known != -1) return 0;
            *known = (signed char)low;
        }
    }
    return 1;
}

/* The header of a scan as loaderd_jpeg_scan takes it. */
static int start(File *f, const uint8_t *at, size_t length, int32_t how[9], uint8_t tables[3 * 2 * TABLE]) {
    int count = length ? at[0] : 0;
    if (!f->parts || count < 1 || count > f->parts || length != 4 + 2 * (size_t)count || (!f->progressive && (count != f->parts || f->scans))) return 0;
    const uint8_t *tail = at + length - 3;
    how[0] = count, how[1] = f->interval, how[2] = tail[0], how[3] = tail[1], how[4] = tail[2] >> 4, how[5] = tail[2] & 15;
    if (!f->progressive && (how[2] || how[3] != 63 || how[4] || how[5])) return 0;
    memset(tables, 0, 3 * 2 * TABLE);
    for (int i = 0, member = 0; i < count; i++, member++) {
        while (member < f->parts && f->names[member] != at[1 + 2 * i]) member++;
        if (member == f->parts) return 0;
        how[6 + i] = member;
        int dc = at[2 + 2 * i] >> 4, ac = at[2 + 2 * i] & 15, with_dc = !how[2], with_ac = how[3] > 0;
        if ((with_dc && !how[4] && (dc > 3 || !f->there[0][dc])) || (with_ac && (ac > 3 || !f->there[1][ac]))) return 0;
        if (with_dc && dc < 4) memcpy(tables + 2 * TABLE * i, f->codes[0][dc], TABLE);
        if (with_ac) memcpy(tables + 2 * TABLE * i + TABLE, f->codes[1][ac], TABLE);
    }
    return !f->progressive || advance(f, how);
}

/* Goes on to the next scan. 0: there is none that can be read. */
static int next_scan(File *f, const uint8_t *data, size_t length, size_t *at, int32_t how[9], uint8_t *tables) {
    while (*at + 4 <= length && data[*at] == 0xFF) {
        int marker = data[*at + 1];
        const uint8_t *payload = data + *at + 4;
        size_t size = (size_t)(data[*at + 2] << 8 | data[*at + 3]);
        if (size < 2 || *at + 2 + size > length) return 0;
        *at += 2 + size, size -= 2;
        if (marker == SOS) return start(f, payload, size, how, tables);
        if (marker >= 0xC0 && marker <= 0xC2 && !frame(f, marker, payload, size)) return 0;
        if (marker == DHT && !codes(f, payload, size)) return 0;
        if (marker == DRI && size == 2) f->interval = payload[0] << 8 | payload[1];
    }
    return 0;
}

static Picture *begun(const File *f, int progressive) {
    int32_t shape[16] = {f->parts, 0, 0, progressive};
    int across = 1, down = 1;
    for (int i = 0; i < f->parts && f->parts > 1; i++) {
        if (f->across[i] > across) across = f->across[i];
        if (f->down[i] > down) down = f->down[i];
    }
    shape[1] = (f->width + 8 * across - 1) / (8 * across), shape[2] = (f->height + 8 * down - 1) / (8 * down);
    for (int i = 0; i < f->parts; i++) {
        int one = f->parts > 1 ? f->across[i] : 1, other = f->parts > 1 ? f->down[i] : 1;
        int32_t part[4] = {one, other, (f->width * one + 8 * across - 1) / (8 * across), (f->height * other + 8 * down - 1) / (8 * down)};
        memcpy(shape + 4 + 4 * i, part, sizeof part);
    }
    return loaderd_jpeg_new(shape);
}

/* What was written as one scan holds the same symbols. */
static void read_back(const File *f, const Picture *p, int interval, const uint8_t *scan, size_t length, const uint8_t *written) {
    int32_t how[9] = {p->components, interval, 0, 63, 0, 0, 0, 1, 2};
    uint8_t *data = malloc(length + 2), *tables = calloc(3, 2 * TABLE);
    Picture *again = begun(f, 0);
    memcpy(data, scan, length);
    data[length] = 0xFF, data[length + 1] = EOI;
    for (int i = 0; i < p->components; i++) {
        memcpy(tables + 2 * TABLE * i, written + TABLE * (i > 0), TABLE);
        memcpy(tables + 2 * TABLE * i + TABLE, written + TABLE * (2 + (i > 0)), TABLE);
    }
    if (loaderd_jpeg_scan(again, data, length + 2, how, tables) != (int64_t)length) abort();
    if (again->blocks != p->blocks || again->count != p->count) abort();
    if (memcmp(again->dc, p->dc, p->blocks * sizeof *p->dc) || memcmp(again->ac, p->ac, p->count * sizeof *p->ac)) abort();
    loaderd_jpeg_free(again);
    free(tables);
    free(data);
}

static void write(const File *f, const Picture *p, int interval, size_t room) {
    size_t tiles = (size_t)(p->mcu_columns / interval) * (size_t)p->mcu_rows, total = 0;
    uint8_t *out = malloc(room), *tables = malloc(4 * TABLE);
    uint16_t *lengths = malloc(tiles * sizeof *lengths);
    int64_t used = loaderd_jpeg_write(p, interval, out, room, lengths, tables);
    if (used > (int64_t)room) abort();
    if (used >= 0) {
        for (size_t i = 0; i < tiles; i++) {
            total += lengths[i];
            if (i + 1 < tiles && (out[total - 2] != 0xFF || out[total - 1] != 0xD0 + (i & 7))) abort();
        }
        if (total != (size_t)used + 2) abort();
        read_back(f, p, interval, out, (size_t)used, tables);
    }
    free(lengths);
    free(tables);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    File *f = calloc(1, sizeof *f);
    uint8_t *data = malloc(length), *tables = malloc(3 * 2 * TABLE);
    int32_t how[9];
    size_t at = 2;
    Picture *p = NULL;
    int64_t taken = 0;
    if (length) memcpy(data, bytes, length);
    memset(f->known, -1, sizeof f->known);
    for (; taken >= 0 && f->scans < 64 && next_scan(f, data, length, &at, how, tables); f->scans++, at += (size_t)taken) {
        if (!p && !(p = begun(f, f->progressive))) abort();
        size_t rest = length - at;
        taken = loaderd_jpeg_scan(p, data + at, rest, how, tables);
        if (taken > (int64_t)rest) abort();
        if (taken < 0) break;
    }
    if (p && taken > 0 && (!f->progressive || loaderd_jpeg_finish(p) == 0)) {
        for (int interval = 1; interval <= p->mcu_columns; interval++) {
            if (p->mcu_columns % interval == 0) write(f, p, interval, length * 9 / (size_t)interval + SLACK);
        }
    }
    loaderd_jpeg_free(p);
    free(tables);
    free(data);
    free(f);
    return 0;
}
