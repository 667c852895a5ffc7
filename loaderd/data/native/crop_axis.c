/* The weights of samples in a pixel. */
#include <string.h>

#include "crop.h"

enum { ONE = 1 << 14, SPARE = 6 };

static int below(double value) {
    int whole = (int)value;
    return whole - (value < whole);
}

static int above(double value) {
    return -below(-value);
}

/* The shares of samples [low, high) in a pixel at `centre`: a triangle that reaches `reach` on both sides. */
static void triangle(double *shares, int low, int high, double centre, double reach) {
    for (int i = low; i < high; i++) {
        double left = i < centre ? reach - (centre - i) : reach - (i - centre);
        shares[i - low] = left > 0.0 ? left : 0.0;
    }
}

/* Shares to whole numbers whose sum is ONE; zeros at both ends go. Returns how many are left, made even. */
static int rounded(const double *shares, int count, int16_t *weights, int *first) {
    double total = 0.0;
    int skip = 0, sum = 0, most = 0;
    for (int i = 0; i < count; i++) total += shares[i];
    double scale = ONE / total;
    while (skip < count - 1 && shares[skip] * scale < 0.5) skip++;
    while (count > skip + 1 && shares[count - 1] * scale < 0.5) count--;
    count -= skip;
    for (int i = 0; i < count; i++) {
        weights[i] = (int16_t)(shares[skip + i] * scale + 0.5);
        sum += weights[i];
        if (weights[i] > weights[most]) most = i;
    }
    weights[most] = (int16_t)(weights[most] + ONE - sum);
    weights[count] = 0;
    *first += skip;
    return count + (count & 1);
}

/* An axis at `scale` of the size at which the whole picture has `samples`. Touches no memory if the room is too small; then `low` and `high`
 * aren't known. */
void make_axis(Axis *axis, const Span *span, double scale, int samples, Room *room) {
    double begin = span->begin * scale, step = (span->end - span->begin) * scale / span->size, reach = step > 1.0 ? step : 1.0;
    int least = below(begin), limit = above(span->begin * scale + step * span->size), most = (int)(2 * reach) + 2;
    least = least < 0 ? 0 : least >= samples ? samples - 1 : least;
    limit = limit > samples ? samples : limit <= least ? least + 1 : limit;
    axis->pixels = span->pixels;
    axis->most = (most + SPARE) & ~1;
    axis->first = carve(room, (size_t)span->pixels * sizeof *axis->first);
    axis->count = carve(room, (size_t)span->pixels * sizeof *axis->count);
    axis->weights = carve(room, (size_t)span->pixels * (size_t)axis->most * sizeof *axis->weights);
    double *shares = carve(room, (size_t)(axis->most + SPARE) * sizeof *shares);
    axis->low = samples, axis->high = 0;
    if (room->used > room->size) return;
    for (int pixel = 0; pixel < span->pixels; pixel++) {
        int place = span->first + (span->mirrored ? span->pixels - 1 - pixel : pixel);
        double centre = begin + (place + 0.5) * step - 0.5;
        int low = below(centre - reach) + 1, high = above(centre + reach);
        low = low < least ? least : low >= limit ? limit - 1 : low;
        high = high > limit ? limit : high <= low ? low + 1 : high;
        triangle(shares, low, high, centre, reach);
        if (high - low == 1) shares[0] = 1.0;
        axis->first[pixel] = low;
        axis->count[pixel] = rounded(shares, high - low, axis->weights + (size_t)pixel * (size_t)axis->most, &axis->first[pixel]);
        if (axis->first[pixel] < axis->low) axis->low = axis->first[pixel];
        if (axis_end(axis, pixel) > axis->high) axis->high = axis_end(axis, pixel);
    }
}
