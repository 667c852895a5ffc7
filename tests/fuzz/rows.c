/* Pages of a database as loaderd/data/native/rows.c reads them, under the sanitizers. `make fuzz` builds and runs it.
 *
 * All memory is of just the size that is named. The last bytes of the input are what is asked for. What is found must lie in the file: each
 * row that is said to be there is looked for in it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, ASKED = 24, ROWS = 21 };

typedef struct {
    uint8_t *to;
    uint64_t at, length;
} Target; /* rows.c's */

int64_t loaderd_rows_copy(const uint8_t *file, uint64_t page, uint64_t pages, uint64_t root, const int64_t *keys, int64_t count,
                          const uint8_t *start, uint64_t begin, uint64_t size, const Target *targets, int64_t parts, int streamed);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    if (length < ASKED + PAGE) return 0;
    const uint8_t *asked = bytes + length - ASKED;
    uint64_t pages = (length - ASKED) / PAGE;
    uint8_t *file = malloc(pages * PAGE);
    memcpy(file, bytes, pages * PAGE);
    uint64_t size = asked[0] | (uint64_t)asked[1] << 8, root = asked[2] % (pages + 1), begin = asked[3] < size ? asked[3] % 4 : 0;
    uint64_t at = size ? asked[4] % size : 0, part = size - at;
    int64_t keys[ROWS];
    for (int i = 0; i < ROWS; i++) keys[i] = (int64_t)(asked[5] % 128) + (asked[6] % 3 ? i : -i * 7);
    uint8_t *to = malloc(ROWS * part + 1), *first = malloc(ROWS * at + 1);
    Target targets[2] = {{to, at, part}, {first, 0, at}};
    int64_t done = loaderd_rows_copy(file, PAGE, pages, root, keys, ROWS, asked + 8, begin, size, targets, 2, asked[7] & 1);
    if (done < 0 || done > ROWS) abort();
    for (int64_t i = 0; i < done && size; i++) {
        uint64_t k = 0;
        while (k + size <= pages * PAGE && (memcmp(file + k, first + (uint64_t)i * at, at) || memcmp(file + k + at, to + (uint64_t)i * part, part))) k++;
        if (k + size > pages * PAGE) abort();
    }
    free(file), free(to), free(first);
    return 0;
}
