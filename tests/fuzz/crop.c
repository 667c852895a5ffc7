/* Stored bytes as loaderd/data/native/crop.c reads them, under the sanitizers. `make fuzz` builds and runs it.
 *
 * -fwrapv: what damaged files overflow wraps. All memory is of just the size that was asked for. The plan is drawn from the bytes. For the
 * same bytes and plan the outcome must be the same whatever lay in memory before, and with and without vectors. */
#include <stdlib.h>
#include <string.h>

#include "crop.h"

enum { MOST_ROOM = 64 << 20, TOO_MUCH = -9 };

typedef struct {
    Span rows, columns;
    int32_t eighths, channels, form, plain;
} Plan; /* crop.c's */

int loaderd_crop_look(const uint8_t *data, uint64_t length, int32_t *out);
int64_t loaderd_crop(const uint8_t *data, uint64_t length, const void *plan, const float *levels, uint8_t *out, uint8_t *room, uint64_t size);

static uint64_t state;

static int drawn(int below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (int)((state >> 11) % (uint64_t)below);
}

static Span span(int side) {
    int begin = drawn(2) ? 0 : drawn(side), size = drawn(5) ? 1 + drawn(drawn(3) ? 40 : 300) : 1, first = drawn(2) ? 0 : drawn(size);
    double end = drawn(3) ? begin + 1 + drawn(side - begin) : begin + (side - begin) * (1 + drawn(1000)) / 1000.0;
    return (Span){begin, end, size, first, 1 + drawn(size - first), drawn(2)};
}

static int64_t outcome(const uint8_t *data, size_t length, const Plan *plan, uint8_t *out, size_t bytes, int fill) {
    size_t numbers = 256 * (size_t)plan->channels;
    float *levels = malloc(numbers * sizeof *levels);
    for (size_t i = 0; i < numbers; i++) levels[i] = (float)i;
    memset(out, fill, bytes);
    int64_t result = 0, size = drawn(4) ? 0 : drawn(200000);
    for (;; size = result) {
        void *room;
        if (size > MOST_ROOM || posix_memalign(&room, 64, (size_t)size)) {
            result = TOO_MUCH;
            break;
        }
        memset(room, fill, (size_t)size);
        result = loaderd_crop(data, length, plan, levels, out, room, (uint64_t)size);
        free(room);
        if (result <= 0) break;
        if (result <= size) abort(); /* asks for what it has */
    }
    free(levels);
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    uint8_t *data = malloc(length), *out[3];
    int64_t results[3];
    int32_t shape[3] = {40, 50, 3};
    if (length) memcpy(data, bytes, length);
    state = 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < length; i++) state = (state ^ bytes[i]) * 0x100000001B3u;
    state |= 1;
    if (loaderd_crop_look(data, length, shape) && drawn(8)) shape[0] = 40, shape[1] = 50;
    Plan plan = {span(shape[0]), span(shape[1]), 1 << drawn(4), drawn(3) ? 3 : 1, drawn(4), 0};
    size_t size = (size_t)plan.rows.pixels * (size_t)plan.columns.pixels * (size_t)plan.channels * (plan.form > 1 ? sizeof(float) : 1);
    for (int i = 0; i < 3; i++) {
        plan.plain = i == 2;
        out[i] = malloc(size);
        results[i] = outcome(data, length, &plan, out[i], size, 0x5A * i);
        if (results[i] != results[0] || (!results[i] && memcmp(out[i], out[0], size))) abort();
    }
    for (int i = 0; i < 3; i++) free(out[i]);
    free(data);
    return 0;
}
