/* A part of a stored JPEG, brought to a size: what is called from outside. */
#include <string.h>

#include "crop.h"

enum { BYTES_LAST, BYTES_FIRST, FLOATS_LAST, FLOATS_FIRST };  /* forms of what comes out: where channels stand, and what they are */
enum { RUN = 16, MOST_SHRINK = 1024 };

/* As ../jpeg/fused_decode.py packs it. rows, columns: in pixels of the stored picture. channels: of what comes out, 1 or 3. */
typedef struct {
    Span rows, columns;
    int32_t eighths, channels, form, plain;
} Plan;

/* A picture in the making. */
typedef struct {
    Jpeg *j;
    const Plan *plan;
    const Ways *ways;
    int parts;       /* components that are used */
    size_t width;    /* numbers in a row, padded */
    Axis rows[2], columns[2];  /* of luma, of chroma */
    int16_t *woven[3];         /* rows of samples, brought to pixels along x */
    int16_t *strip, *line[3];
    uint8_t *buffer, *bytes[3];
} Making;

/* Goes up with every change of what is exported here, and of the pixels that come out: fused_decode.py refuses an object that is older or younger than itself. */
EXPORT int loaderd_crop_version(void) {
    return 2;
}

static const Ways *ways(int plain) {
#ifdef HAS_WIDE
    if (!plain && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) return &wide_ways;
#endif
    (void)plain;
    return &plain_ways;
}

/* Height, width and number of components of a JPEG that loaderd_crop reads; else OTHER or DAMAGED. */
EXPORT int loaderd_crop_look(const uint8_t *data, uint64_t length, int32_t *out) {
    Jpeg j;
    int error = read_head(&j, data, length, 0);
    if (error) return error;
    out[0] = j.height, out[1] = j.width, out[2] = j.components;
    return 0;
}

/* Whether the weights of an axis are exact enough as whole numbers: of a longer sum each would be a rounding of next to nothing. */
static int moderate(const Span *span, double scale) {
    return (span->end - span->begin) * scale <= (double)MOST_SHRINK * span->size;
}

static int axes(Making *m, Room *room) {
    Jpeg *j = m->j;
    double scale = m->plan->eighths / 8.0;
    if (!moderate(&m->plan->columns, scale) || !moderate(&m->plan->rows, scale)) return OTHER;
    int wide = (j->width * m->plan->eighths + 7) / 8, high = (j->height * m->plan->eighths + 7) / 8;
    Component *luma = &j->component[0], *chroma = &j->component[1];
    make_axis(&m->columns[0], &m->plan->columns, scale, wide, luma->width, 0, 0, room);
    make_axis(&m->rows[0], &m->plan->rows, scale, high, luma->height, 0, 0, room);
    if (m->parts == 1) return 0;
    int across = luma->across * luma->size / chroma->size, down = luma->down * luma->size / chroma->size;
    int smooth = m->plan->eighths > 1 && chroma->width > 2;  /* libjpeg's rule */
    if (across < 1 || across > 2 || down < 1 || down > across) return OTHER;
    make_axis(&m->columns[1], &m->plan->columns, scale, wide, chroma->width, across == 2, smooth, room);
    make_axis(&m->rows[1], &m->plan->rows, scale, high, chroma->height, down == 2, smooth, room);
    return 0;
}

static void least(int *value, int other) {
    if (other < *value) *value = other;
}

static void most(int *value, int other) {
    if (other > *value) *value = other;
}

/* Which MCUs are wanted, and where their samples go. */
static void planes(Making *m, Room *room) {
    Jpeg *j = m->j;
    j->left = j->mcu_columns, j->top = j->mcu_rows, j->right = j->bottom = 0;
    for (int i = 0; i < (m->parts > 1 ? 2 : 1); i++) {
        int across = j->component[i].across * j->component[i].size, down = j->component[i].down * j->component[i].size;
        least(&j->left, m->columns[i].low / across);
        most(&j->right, (m->columns[i].high + across - 1) / across);
        least(&j->top, m->rows[i].low / down);
        most(&j->bottom, (m->rows[i].high + down - 1) / down);
    }
    m->width = (size_t)(m->plan->columns.pixels + RUN - 1) / RUN * RUN;
    size_t longest = 0;
    for (int i = 0; i < m->parts; i++) {
        Component *c = &j->component[i];
        size_t wide = (size_t)((j->right - j->left) * c->across * c->size), high = (size_t)((j->bottom - j->top) * c->down * c->size);
        c->stride = (high + RUN + 63) / 64 * 64 + 64;
        c->plane = carve(room, (wide + 2) * c->stride);
        size_t lines = (size_t)(m->rows[i > 0].high - m->rows[i > 0].low + RUN - 1) / RUN * RUN;
        m->woven[i] = carve(room, (lines + 2) * m->width * sizeof *m->woven[i]);
        m->line[i] = carve(room, m->width * sizeof *m->line[i]);
        m->bytes[i] = carve(room, m->width + RUN);
        if (lines > longest) longest = lines;
    }
    for (int i = m->parts; i < 3; i++) j->component[i].plane = NULL;
    m->strip = carve(room, 8 * longest * sizeof *m->strip);
    m->buffer = carve(room, (j->lengths ? 65536 : (size_t)(j->end - j->scan)) + PADDING);
}

static void weave(Making *m) {
    for (int i = 0; i < m->parts; i++) {
        const Component *c = &m->j->component[i];
        const Axis *columns = &m->columns[i > 0], *rows = &m->rows[i > 0];
        size_t x = (size_t)(columns->low - m->j->left * c->across * c->size), y = (size_t)(rows->low - m->j->top * c->down * c->size);
        m->ways->along_columns(columns, c->plane + x * c->stride + y, c->stride, rows->high - rows->low, m->strip, m->woven[i], m->width);
    }
}

static void put(const Making *m, int row, const float *levels, uint8_t *out) {
    int width = m->plan->columns.pixels, height = m->plan->rows.pixels, channels = m->plan->channels, form = m->plan->form;
    for (int i = 0; form == BYTES_FIRST && i < channels; i++) memcpy(out + ((size_t)i * (size_t)height + (size_t)row) * (size_t)width, m->bytes[i], (size_t)width);
    if (form == BYTES_LAST) {
        uint8_t *to = out + (size_t)row * (size_t)width * (size_t)channels;
        if (channels == 1) memcpy(to, m->bytes[0], (size_t)width);
        else m->ways->interleave(m->bytes, width, to);
    }
    if (form < FLOATS_LAST) return;
    size_t step = form == FLOATS_LAST ? (size_t)channels : 1;
    for (int i = 0; i < channels; i++) {
        size_t line = form == FLOATS_LAST ? (size_t)row * step : (size_t)i * (size_t)height + (size_t)row;
        float *to = (float *)out + line * (size_t)width + (form == FLOATS_LAST ? i : 0);
        const float *level = levels + 256 * i;
        for (int x = 0; x < width; x++) to[(size_t)x * step] = level[m->bytes[i][x]];
    }
}

static void finish(Making *m, const float *levels, uint8_t *out) {
    for (int row = 0; row < m->plan->rows.pixels; row++) {
        for (int i = 0; i < m->parts; i++) m->ways->along_rows(&m->rows[i > 0], row, m->woven[i], m->width, m->line[i]);
        if (m->parts == 3) {
            m->ways->colours((const int16_t *const *)m->line, (int)m->width, m->bytes);
        } else {
            m->ways->gray(m->line[0], (int)m->width, m->bytes[0]);
        }
        put(m, row, levels, out);
    }
}

/* Makes the pixels of a plan, at `out` (contiguous, of the form's type). levels: channels x 256, for the forms of floats. room: scratch
 * memory of `size` bytes, aligned to 64. 0: done. More: so many bytes of room are needed, maybe more, and nothing was done. Else OTHER or
 * DAMAGED; then `out` may have been written to. */
EXPORT int64_t loaderd_crop(const uint8_t *data, uint64_t length, const void *packed, const float *levels, uint8_t *out, uint8_t *scratch, uint64_t size) {
    Plan plan;
    memcpy(&plan, packed, sizeof plan);
    Room room = {scratch, size, 0};
    Making m = {.plan = &plan, .ways = ways(plan.plain)};
    m.j = carve(&room, sizeof *m.j);
    if (room.used > size) return (int64_t)room.used;
    int error = read_head(m.j, data, length, 1);
    if (error) return error;
    m.parts = plan.channels == 3 ? m.j->components : 1;
    scaled(m.j, plan.eighths);
    if ((error = axes(&m, &room))) return error;
    if (room.used > size) return (int64_t)room.used;
    planes(&m, &room);
    if (room.used > size) return (int64_t)room.used;
    if ((error = m.ways->read_blocks(m.j, m.buffer))) return error;
    weave(&m);
    if (m.parts < plan.channels) m.bytes[1] = m.bytes[2] = m.bytes[0];
    finish(&m, levels, out);
    return 0;
}
