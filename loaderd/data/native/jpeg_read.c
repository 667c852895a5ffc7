/* Reading: scans of a sequential or progressive JPEG to the symbols of a sequential one. */
#include <stdlib.h>
#include <string.h>

#include "jpeg.h"

#define ONES 0x0101010101010101u

/* ---- bits in ---- */

typedef struct {
    const uint8_t *at, *end;
    uint64_t bits;  /* the next ones, from the top */
    int count;      /* how many of them; negative: more were asked for than there are */
    int done;       /* a marker or the end is next */
} Reader;

static void refill(Reader *r) {
    if (r->done) return;
    if (r->end - r->at >= 8) {
        const uint8_t *b = r->at;
        uint64_t word = (uint64_t)b[0] << 56 | (uint64_t)b[1] << 48 | (uint64_t)b[2] << 40 | (uint64_t)b[3] << 32 | (uint64_t)b[4] << 24 |
                        (uint64_t)b[5] << 16 | (uint64_t)b[6] << 8 | b[7];
        uint64_t inverse = ~word;
        if (!((inverse - ONES) & ~inverse & (ONES << 7))) {  /* no 0xFF among the eight */
            r->bits |= word >> r->count;
            r->at += (63 - r->count) >> 3;
            r->count |= 56;
            return;
        }
    }
    while (r->count <= 56) {
        if (r->at == r->end || (r->at[0] == 0xFF && (r->end - r->at < 2 || r->at[1] != 0))) {
            r->done = 1;
            return;
        }
        r->bits |= (uint64_t)r->at[0] << (56 - r->count);
        r->at += r->at[0] == 0xFF ? 2 : 1;
        r->count += 8;
    }
}

/* `n` bits that are there already: right after a symbol at least 16 are, or the end is near. */
static inline unsigned taken(Reader *r, int n) {
    unsigned value = (unsigned)(r->bits >> 1 >> (63 - n)); /* n may be 0 */
    r->bits <<= n;
    r->count -= n;
    return value;
}

static inline unsigned take(Reader *r, int n) {
    if (r->count < n) refill(r);
    return taken(r, n);
}

/* A run of `size` bits as the signed number that it stands for. */
static inline int extended(unsigned value, int size) {
    return size && value < 1u << (size - 1) ? (int)value - (1 << size) + 1 : (int)value;
}

/* The reader stands at a marker, with less than a byte of padding before it. */
static int at_marker(Reader *r) {
    refill(r);
    if (r->count < 0 || r->at == r->end) return TRUNCATED;
    if (!r->done || r->count >= 8) return BAD_MARKER;
    while (r->end - r->at > 2 && r->at[1] == 0xFF) r->at++;
    return r->end - r->at < 2 ? TRUNCATED : 0;
}

static int restarted(Reader *r, unsigned number) {
    int error = at_marker(r);
    if (error) return error;
    if (r->at[1] != 0xD0 + (number & 7)) return BAD_MARKER;
    r->at += 2;
    r->bits = 0;
    r->count = r->done = 0;
    return 0;
}

/* ---- Huffman codes in ---- */

typedef struct {
    uint16_t fast[1 << FAST];  /* length << 8 | symbol of the code that these bits begin with; 0: a longer one */
    int32_t limit[17];         /* codes of this length are below it, seen as 16 bits */
    int32_t first[17];         /* index of a symbol = code + first[length] */
    uint8_t symbols[256];
} Table;

/* `from`: 16 counts, then 256 symbols. The caller has checked that the counts add up to at most 256. */
static int make_table(Table *t, const uint8_t *from) {
    int code = 0, index = 0;
    memset(t->fast, 0, sizeof t->fast);
    memcpy(t->symbols, from + 16, 256);
    for (int length = 1; length <= 16; length++, code <<= 1) {
        t->first[length] = index - code;
        for (int i = 0; i < from[length - 1]; i++, index++, code++) {
            if (code >= (1 << length) - 1) return BAD_TABLE;  /* a code of ones alone, or too many */
            if (length > FAST) continue;
            for (int j = 0; j < 1 << (FAST - length); j++) t->fast[(code << (FAST - length)) + j] = (uint16_t)(length << 8 | from[16 + index]);
        }
        t->limit[length] = code << (16 - length);
    }
    return 0;
}

static inline int symbol(Reader *r, const Table *t) {
    if (r->count < 32) refill(r);
    unsigned entry = t->fast[r->bits >> (64 - FAST)];
    int length = entry >> 8;
    if (!entry) {
        int32_t ahead = (int32_t)(r->bits >> 48);
        for (length = FAST + 1; length <= 16 && ahead >= t->limit[length]; length++) {}
        if (length > 16) return BAD_CODE;
        entry = t->symbols[((ahead >> (16 - length)) + t->first[length]) & 255];
    }
    r->bits <<= length;
    r->count -= length;
    return entry & 255;
}

/* ---- scans in ---- */

typedef struct {
    int count, restart, start, end, high, low, member[3];
    Table dc[3], ac[3];
    int predicted[3];
    unsigned run;  /* blocks that still have nothing to say */
} Scan;

static int difference(Reader *r, const Table *t, int *predicted) {
    int size = symbol(r, t);
    if (size < 0) return size;
    if (size > DC_BITS) return BAD_VALUE;
    *predicted += extended(taken(r, size), size);
    return *predicted < -2047 || *predicted > 2047 ? BAD_VALUE : 0;
}

/* Works on copies of what changes: the compiler can't know that a store to the symbols leaves the reader alone. */
static int sequential(Picture *p, Reader *reader, Scan *s, int c) {
    int error = difference(reader, &s->dc[c], &s->predicted[c]);
    if (error) return error;
    p->dc[p->blocks++] = (int16_t)s->predicted[c];
    Reader r = *reader;
    uint32_t *to = p->ac + p->count;
    const Table *table = &s->ac[c];
    for (int k = 1; k < 64;) {
        int coded = symbol(&r, table), size = coded & 15;
        if (coded == 0) {
            *to++ = 0;
            break;
        }
        if (coded < 0 || (size == 0 && coded != 0xF0)) return BAD_CODE;
        if (size > AC_BITS) return BAD_VALUE;
        k += (coded >> 4) + 1;
        if (k > 64 || (k == 64 && size == 0)) return BAD_CODE;
        *to++ = (uint32_t)coded << 16 | taken(&r, size);
    }
    to[-1] |= LAST;
    p->count = (size_t)(to - p->ac);
    *reader = r;
    return 0;
}

static int first_of_ac(Reader *r, Scan *s, int16_t *block) {
    if (s->run) {
        s->run--;
        return 0;
    }
    for (int k = s->start; k <= s->end; k++) {
        int coded = symbol(r, &s->ac[0]), run = coded >> 4, size = coded & 15;
        if (coded < 0) return BAD_CODE;
        if (size == 0 && run < 15) {
            s->run = (1u << run) - 1 + take(r, run);
            return 0;
        }
        k += run;
        if (k > s->end) return BAD_CODE;
        if (size + s->low > AC_BITS) return BAD_VALUE;
        if (size) block[k] = (int16_t)(extended(take(r, size), size) * (1 << s->low));
    }
    return 0;
}

static inline void refine(Reader *r, int16_t *value, int bit) {
    if (take(r, 1) && !(*value & bit)) *value = (int16_t)(*value + (*value > 0 ? bit : -bit));
}

static int more_of_ac(Reader *r, Scan *s, int16_t *block) {
    int k = s->start, bit = 1 << s->low;
    for (; !s->run && k <= s->end; k++) {
        int coded = symbol(r, &s->ac[0]), run = coded >> 4, fresh = 0;
        if (coded < 0 || (coded & 15) > 1) return BAD_CODE;
        if (coded & 1) {
            fresh = take(r, 1) ? bit : -bit;
        } else if (run < 15) {
            s->run = (1u << run) + take(r, run);
            break;
        }
        for (; k <= s->end; k++) {
            if (block[k]) refine(r, &block[k], bit);
            else if (--run < 0) break;
        }
        if (k > s->end) {
            if (fresh) return BAD_CODE;
            break;
        }
        block[k] = (int16_t)fresh;
    }
    if (s->run) {
        for (; k <= s->end; k++) if (block[k]) refine(r, &block[k], bit);
        s->run--;
    }
    return 0;
}

static int progressive(Reader *r, Scan *s, int c, int16_t *block) {
    if (s->start) return s->high ? more_of_ac(r, s, block) : first_of_ac(r, s, block);
    if (s->high) {
        if (take(r, 1)) block[0] = (int16_t)(block[0] | 1 << s->low);
        return 0;
    }
    int error = difference(r, &s->dc[c], &s->predicted[c]);
    if (error || abs(s->predicted[c]) * (1 << s->low) > 2047) return error ? error : BAD_VALUE;
    block[0] = (int16_t)(s->predicted[c] * (1 << s->low));
    return 0;
}

static int one_unit(Picture *p, Reader *r, Scan *s, int unit) {
    for (int i = 0; i < s->count; i++) {
        Component *c = &p->component[s->member[i]];
        int across = s->count == 1 ? 1 : c->h, down = s->count == 1 ? 1 : c->v, wide = s->count == 1 ? c->columns : p->mcu_columns;
        for (int y = 0; y < down; y++) {
            for (int x = 0; x < across; x++) {
                size_t at = ((size_t)(unit / wide) * down + y) * c->stride + (size_t)(unit % wide) * across + x;
                int error = c->blocks ? progressive(r, s, i, c->blocks + at * 64) : sequential(p, r, s, i);
                if (error) return error;
            }
        }
    }
    return r->count < 0 ? TRUNCATED : 0;
}

static int room_for_symbols(Picture *p) {
    if (p->capacity - p->count >= 64 * MAX_BLOCKS) return 0;
    size_t capacity = p->capacity + p->capacity / 2 + 64 * MAX_BLOCKS;
    uint32_t *more = realloc(p->ac, capacity * sizeof *more);
    if (!more) return NO_MEMORY;
    p->ac = more;
    p->capacity = capacity;
    return 0;
}

/* Reads one scan that begins at `data`. Returns how many bytes it takes (a marker other than a restart follows), or an error.
 * `how`: number of components, restart interval in MCUs (0: none), first and last coefficient, high and low bit, then the components.
 * `tables`: 2 x 272 bytes a component: counts and symbols of its DC and AC codes. A sequential picture has one scan of all components. */
EXPORT int64_t loaderd_jpeg_scan(Picture *p, const uint8_t *data, uint64_t length, const int32_t *how, const uint8_t *tables) {
    Scan *s = calloc(1, sizeof *s);
    if (!s) return NO_MEMORY;
    Reader r = {data, data + length, 0, 0, 0};
    int error = 0;
    s->count = how[0], s->restart = how[1], s->start = how[2], s->end = how[3], s->high = how[4], s->low = how[5];
    for (int i = 0; i < s->count && !error; i++) {
        s->member[i] = how[6 + i];
        error = make_table(&s->dc[i], tables + i * 544);
        if (!error) error = make_table(&s->ac[i], tables + i * 544 + 272);
    }
    Component *only = &p->component[s->member[0]];
    int units = s->count == 1 ? only->columns * only->rows : p->mcu_columns * p->mcu_rows;
    for (int unit = 0; unit < units && !error; unit++) {
        if (s->restart && unit && unit % s->restart == 0) {
            error = restarted(&r, (unsigned)(unit / s->restart - 1));
            memset(s->predicted, 0, sizeof s->predicted);
            s->run = 0;
        }
        if (!error) error = room_for_symbols(p);
        if (!error) error = one_unit(p, &r, s, unit);
    }
    free(s);
    if (!error) error = at_marker(&r);
    return error ? error : r.at - data;
}

/* ---- a picture ---- */

/* Goes up with every change of what is exported here: rewrite.py refuses an object that is older or younger than itself. */
EXPORT int loaderd_jpeg_version(void) {
    return 1;
}

EXPORT void loaderd_jpeg_free(Picture *p) {
    if (!p) return;
    for (int i = 0; i < 3; i++) free(p->component[i].blocks);
    free(p->dc);
    free(p->ac);
    free(p);
}

/* `shape`: components (1 or 3), MCU columns, MCU rows, 1 if progressive, then h, v, columns, rows of each component. The caller has
 * checked that an MCU has at most 10 blocks and that all blocks together are fewer than 2^26. A lone component has h = v = 1.
 * NULL: no memory. */
EXPORT Picture *loaderd_jpeg_new(const int32_t *shape) {
    Picture *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->components = shape[0], p->mcu_columns = shape[1], p->mcu_rows = shape[2];
    size_t mcus = (size_t)p->mcu_columns * p->mcu_rows;
    int failed = 0;
    for (int i = 0; i < p->components; i++) {
        Component *c = &p->component[i];
        const int32_t *from = shape + 4 + 4 * i;
        c->h = from[0], c->v = from[1], c->columns = from[2], c->rows = from[3];
        c->stride = p->mcu_columns * c->h;
        for (int j = 0; j < c->h * c->v; j++) p->owner[p->per_mcu++] = (uint8_t)i;
        if (shape[3]) failed |= !(c->blocks = calloc(mcus * c->h * c->v, 64 * sizeof(int16_t)));
    }
    p->dc = malloc(mcus * p->per_mcu * sizeof *p->dc);
    if (!failed && p->dc) return p;
    loaderd_jpeg_free(p);
    return NULL;
}

static int bits_of(int value) {
    int size = 0;
    for (unsigned rest = (unsigned)abs(value); rest; rest >>= 1) size++;
    return size;
}

static int symbols_of(Picture *p, const int16_t *block) {
    int run = 0, last = 63;
    if (bits_of(block[0]) > DC_BITS) return BAD_VALUE;
    p->dc[p->blocks++] = block[0];
    while (last && !block[last]) last--;
    for (int k = 1; k <= last; k++) {
        if (!block[k]) {
            run++;
            continue;
        }
        int size = bits_of(block[k]);
        if (size > AC_BITS) return BAD_VALUE;
        for (; run > 15; run -= 16) p->ac[p->count++] = 0xF0u << 16;
        p->ac[p->count++] = (uint32_t)(run << 4 | size) << 16 | ((unsigned)(block[k] - (block[k] < 0)) & ((1u << size) - 1));
        run = 0;
    }
    if (last == 63) p->ac[p->count - 1] |= LAST;
    else p->ac[p->count++] = LAST;
    return 0;
}

/* After the last scan of a progressive picture: its coefficients as symbols. 0 or an error. */
EXPORT int64_t loaderd_jpeg_finish(Picture *p) {
    for (int unit = 0; unit < p->mcu_columns * p->mcu_rows; unit++) {
        int error = room_for_symbols(p);
        for (int i = 0; i < p->components && !error; i++) {
            Component *c = &p->component[i];
            for (int j = 0; j < c->h * c->v && !error; j++) {
                size_t row = (size_t)(unit / p->mcu_columns) * c->v + j / c->h;
                error = symbols_of(p, c->blocks + (row * c->stride + (size_t)(unit % p->mcu_columns) * c->h + j % c->h) * 64);
            }
        }
        if (error) return error;
    }
    return 0;
}
