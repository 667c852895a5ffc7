/* Colours, a few columns at a time: those that the next pixels show. They are bytes before they are resampled, as Pillow has them: what is
 * out of range is brought into it first. */
#include <string.h>

#include "crop.h"

enum { GROUP = 16, SLACK = 64 };  /* pixels made of one window; bytes behind a column that may be read or written */

/* The columns that a group of pixels from `pixel` on shows. */
static Axis group_of(const Axis *axis, int pixel) {
    Axis group = *axis;
    group.pixels = axis->pixels - pixel < GROUP ? axis->pixels - pixel : GROUP;
    group.first += pixel, group.count += pixel;
    group.weights += (size_t)pixel * (size_t)axis->most;
    group.low = axis->high, group.high = axis->low;
    for (int i = 0; i < group.pixels; i++) {
        if (group.first[i] < group.low) group.low = group.first[i];
        if (axis_end(&group, i) > group.high) group.high = axis_end(&group, i);
    }
    return group;
}

/* top: of the first row that is used, an even number. OTHER for components of sizes that aren't read here. */
int make_window(Window *w, const Jpeg *j, const Axis *columns, int top, int bottom, int smooth, Room *room) {
    const Component *luma = &j->component[0], *chroma = &j->component[1];
    memset(w, 0, sizeof *w);
    w->j = j, w->top = top, w->rows = bottom - top, w->smooth = smooth;
    int across = luma->across * luma->size / chroma->size, down = luma->down * luma->size / chroma->size;
    if (across < 1 || across > 2 || down < 1 || down > across) return OTHER;
    w->halved_across = across == 2, w->halved_down = down == 2;
    w->stride = ((size_t)w->rows + 2 * SLACK) / 64 * 64;
    int most = 0;
    for (int pixel = 0; pixel < columns->pixels; pixel += GROUP) {
        Axis group = group_of(columns, pixel);
        if (group.high - group.low > most) most = group.high - group.low;
    }
    for (int i = 0; i < 3; i++) w->colour[i] = carve(room, (size_t)(most + 1) * w->stride + SLACK); /* a column that counts for nothing may follow */
    for (int i = 0; i < 2; i++) w->chroma[i] = carve(room, w->stride + SLACK);
    w->blended = carve(room, (w->stride / 2 + SLACK) * sizeof *w->blended);
    return 0;
}

/* The sample of a component in its column x and row y. */
static const uint8_t *sample(const Jpeg *j, const Component *c, int x, int y) {
    x -= j->left * c->across * c->size, y -= j->top * c->down * c->size;
    return c->plane + (size_t)x * c->stride + (size_t)y;
}

/* A column of chroma under column x of the picture. */
static const uint8_t *chroma_of(Window *w, const Ways *ways, int part, int x) {
    const Component *c = &w->j->component[part];
    if (!w->halved_across) return sample(w->j, c, x, w->top);
    int near = x / 2, far = x % 2 ? near + 1 : near - 1;
    if (!w->smooth || far < 0 || far >= c->width) far = near;
    uint8_t *out = w->chroma[part - 1];
    if (!w->halved_down) {
        ways->between(sample(w->j, c, near, w->top), sample(w->j, c, far, w->top), w->rows, 1 + x % 2, out);
        return out;
    }
    int top = w->top / 2, count = (w->rows + 1) / 2, begin = top > 0 ? top - 1 : 0, end = top + count < c->height ? top + count + 1 : c->height;
    int16_t *first = w->blended + 1 - (top - begin);
    ways->blend(sample(w->j, c, near, begin), sample(w->j, c, far, begin), end - begin, first);
    if (begin == top) w->blended[0] = w->blended[1];
    if (end == top + count) w->blended[count + 1] = w->blended[count];
    ways->between_lines(w->blended, count, w->smooth, 8 - x % 2, out);
    return out;
}

/* Colours of columns [begin, end), which belong at their place in a window that begins at `low`. */
static void convert(Window *w, const Ways *ways, int begin, int end, int low) {
    for (int x = begin; x < end; x++) {
        size_t at = (size_t)(x - low) * w->stride;
        uint8_t *const out[3] = {w->colour[0] + at, w->colour[1] + at, w->colour[2] + at};
        const uint8_t *blue = chroma_of(w, ways, 1, x), *red = chroma_of(w, ways, 2, x);
        ways->rgb(sample(w->j, &w->j->component[0], x, w->top), blue, red, w->rows, out);
    }
}

/* The window becomes [low, high); columns that it has are kept. */
static void move(Window *w, const Ways *ways, int low, int high) {
    int begin = low > w->low ? low : w->low, end = high < w->high ? high : w->high;
    if (begin < end) {
        for (int i = 0; i < 3; i++) {
            memmove(w->colour[i] + (size_t)(begin - low) * w->stride, w->colour[i] + (size_t)(begin - w->low) * w->stride, (size_t)(end - begin) * w->stride);
        }
        convert(w, ways, low, begin, low);
        convert(w, ways, end, high, low);
    } else {
        convert(w, ways, low, high, low);
    }
    w->low = low, w->high = high;
}

/* The pixels of an axis across, as along_columns makes them, of each colour. row: the first one used. */
void weave_colours(Window *w, const Ways *ways, const Axis *columns, int row, int16_t *strip, int16_t *const out[3], size_t width) {
    for (int pixel = 0; pixel < columns->pixels; pixel += GROUP) {
        Axis group = group_of(columns, pixel);
        move(w, ways, group.low, group.high);
        for (int i = 0; i < 3; i++) {
            ways->along_columns(&group, w->colour[i] + (row - w->top), w->stride, w->top + w->rows - row, strip, out[i] + pixel, width);
        }
    }
}
