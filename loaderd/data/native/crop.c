/* A part of a stored JPEG, brought to a size: what is called from outside. */
#include <string.h>

#include "crop.h"

enum { BYTES_LAST, BYTES_FIRST, FLOATS_LAST, FLOATS_FIRST };  /* forms of what comes out: where channels stand, and what they are */
enum { RUN = 16, MOST_SHRINK = 1024, MOST_EXACT_SHRINK = 8 };

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
    int parts;          /* components that are used */
    size_t width;       /* numbers in a row, padded */
    Axis rows, columns;
    Window window;      /* of colours */
    int16_t *woven[3];  /* rows of samples, brought to pixels along x */
    int16_t *strip, *line;
    uint8_t *buffer, *bytes[3];
} Making;

/* Goes up with every change of what is exported here, and of the pixels that come out: fused_decode.py refuses an object that is older or younger than itself. */
EXPORT int loaderd_crop_version(void) {
    return 3;
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
static int moderate(const Span *span, int eighths) {
    return (span->end - span->begin) * eighths / 8.0 <= (double)(eighths == 8 ? MOST_EXACT_SHRINK : MOST_SHRINK) * span->size;
}

static int axes(Making *m, Room *room) {
    Jpeg *j = m->j;
    int eighths = m->plan->eighths, wide = (j->width * eighths + 7) / 8, high = (j->height * eighths + 7) / 8;
    if (!moderate(&m->plan->columns, eighths) || !moderate(&m->plan->rows, eighths)) return OTHER;
    make_axis(&m->columns, &m->plan->columns, eighths / 8.0, wide, room);
    make_axis(&m->rows, &m->plan->rows, eighths / 8.0, high, room);
    if (m->parts == 1 || room->used > room->size) return 0;
    int smooth = eighths > 1 && j->component[1].width > 2;  /* libjpeg's rule */
    return make_window(&m->window, j, &m->columns, m->rows.low & ~1, m->rows.high, smooth, room);
}

static void least(int *value, int other) {
    if (other < *value) *value = other;
}

static void most(int *value, int other) {
    if (other > *value) *value = other;
}

typedef struct {
    int low, high;
} Range;

/* The MCUs along an axis whose samples are used, `side` of them each. halved: where a component has half as many samples as the picture, a
 * colour lies between one and the next. */
static Range wanted(const Axis *axis, int side, int halved) {
    int low = halved ? axis->low / 2 - 1 : axis->low, high = halved ? (axis->high - 1) / 2 + 2 : axis->high;
    return (Range){low > 0 ? low / side : 0, (high + side - 1) / side};
}

/* Which MCUs are wanted, and where their samples go. */
static void planes(Making *m, Room *room) {
    Jpeg *j = m->j;
    j->left = j->mcu_columns, j->top = j->mcu_rows, j->right = j->bottom = 0;
    for (int i = 0; i < (m->parts > 1 ? 2 : 1); i++) {
        const Component *c = &j->component[i];
        Range x = wanted(&m->columns, c->across * c->size, i && m->window.halved_across);
        Range y = wanted(&m->rows, c->down * c->size, i && m->window.halved_down);
        least(&j->left, x.low);
        most(&j->right, x.high < j->mcu_columns ? x.high : j->mcu_columns);
        least(&j->top, y.low);
        most(&j->bottom, y.high < j->mcu_rows ? y.high : j->mcu_rows);
    }
    m->width = (size_t)(m->plan->columns.pixels + RUN - 1) / RUN * RUN;
    size_t lines = (size_t)(m->rows.high - m->rows.low + RUN - 1) / RUN * RUN;
    for (int i = 0; i < m->parts; i++) {
        Component *c = &j->component[i];
        size_t wide = (size_t)((j->right - j->left) * c->across * c->size), high = (size_t)((j->bottom - j->top) * c->down * c->size);
        c->stride = (high + RUN + 63) / 64 * 64 + 64;
        c->plane = carve(room, (wide + 2) * c->stride);
        m->woven[i] = carve(room, (lines + 2) * m->width * sizeof *m->woven[i]);
        m->bytes[i] = carve(room, m->width + RUN);
    }
    for (int i = m->parts; i < 3; i++) j->component[i].plane = NULL;
    m->line = carve(room, m->width * sizeof *m->line);
    m->strip = carve(room, 8 * lines * sizeof *m->strip);
    m->buffer = carve(room, (j->lengths ? 65536 : (size_t)(j->end - j->scan)) + PADDING);
}

static void weave(Making *m) {
    if (m->parts == 3) {
        weave_colours(&m->window, m->ways, &m->columns, m->rows.low, m->strip, m->woven, m->width);
        return;
    }
    const Component *c = &m->j->component[0];
    size_t x = (size_t)(m->columns.low - m->j->left * c->across * c->size), y = (size_t)(m->rows.low - m->j->top * c->down * c->size);
    m->ways->along_columns(&m->columns, c->plane + x * c->stride + y, c->stride, m->rows.high - m->rows.low, m->strip, m->woven[0], m->width);
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
        for (int i = 0; i < m->parts; i++) {
            m->ways->along_rows(&m->rows, row, m->woven[i], m->width, m->line);
            m->ways->bytes(m->line, (int)m->width, m->bytes[i]);
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
