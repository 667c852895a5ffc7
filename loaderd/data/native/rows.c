/* Rows of numbers from the pages of an LMDB into a batch, without an object for any of them: ../lmdb/page_reader.py calls it.
 *
 * The format is that of LMDB's data version 1, 64 bit, as its mdb.c declares it. A page: its number (8 bytes), a pad (2), flags (2), where
 * its free space begins and ends (2 + 2), or how many pages a large value takes (4); then the places of its nodes (2 each). A node: two
 * halves of the value's size (2 + 2), flags (2), the key's size (2), key, value. In a branch the first six bytes are a page number.
 *
 * The file may be damaged or hostile: nothing is read but [file, file + bytes), and whatever isn't as it should be ends the copying. */
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define EXPORT __attribute__((visibility("default")))

enum { HEAD = 16, NODE = 8, KEY = 8, BRANCH = 1, LEAF = 2, OVERFLOWN = 4, LARGE = 1, DEEPEST = 32 };
enum { TOGETHER = 16, FEW = 4 };  /* rows that are looked for at once, so that each waits for memory while the others are looked for */
enum { LINE = 64, AHEAD = 1024 };

typedef struct {
    const uint8_t *start;
    uint64_t page, pages, root;
} File;

/* Where a part of every row comes from and goes to: [at, at + length) of its value, to the next `length` bytes of `to`. */
typedef struct {
    uint8_t *to;
    uint64_t at, length;
} Target;

static inline uint16_t two(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t eight(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline const uint8_t *page_at(const File *f, uint64_t number) {
    return number < f->pages ? f->start + number * f->page : NULL;
}

/* Node i of a page with its key within the page; NULL if there is none such. */
static inline const uint8_t *node_at(const File *f, const uint8_t *page, unsigned i) {
    unsigned at = two(page + HEAD + 2 * i);
    if (at < HEAD || at + NODE > f->page || at + NODE + two(page + at + 6) > f->page) return NULL;
    return page + at;
}

/* Below 0, 0 or above 0, as the node's key stands to that of a sample, given as a number. */
static inline int compare(const uint8_t *node, uint64_t key) {
    unsigned size = two(node + 6);
    if (size == KEY) {
        uint64_t own = __builtin_bswap64(eight(node + NODE));
        return (own > key) - (own < key);
    }
    uint64_t bytes = __builtin_bswap64(key);
    int order = memcmp(node + NODE, &bytes, size < KEY ? size : KEY);
    return order ? order : size < KEY ? -1 : 1;
}

/* The number of nodes whose keys are at most `key`, from node `first` on counted from 0; -1 if one of them can't be. */
static inline int until(const File *f, const uint8_t *page, unsigned first, uint64_t key) {
    unsigned lower = two(page + 12);
    if (lower < HEAD || lower > f->page) return -1;
    unsigned low = first, high = (lower - HEAD) / 2;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        const uint8_t *node = node_at(f, page, middle);
        if (!node) return -1;
        if (compare(node, key) <= 0) low = middle + 1;
        else high = middle;
    }
    return (int)low;
}

/* One step down from a branch; NULL if it leads nowhere. The first key of a branch stands for all that are smaller. */
static const uint8_t *below(const File *f, const uint8_t *page, uint64_t key) {
    int found = until(f, page, 1, key);
    const uint8_t *node = found < 1 || two(page + 12) < HEAD + 2 ? NULL : node_at(f, page, (unsigned)found - 1);
    return node ? page_at(f, two(node) | (uint64_t)two(node + 2) << 16 | (uint64_t)two(node + 4) << 32) : NULL;
}

/* The value of `key` in a leaf, if it is there and has this size. */
static const uint8_t *value_in(const File *f, const uint8_t *page, uint64_t key, uint64_t size) {
    int found = until(f, page, 0, key);
    const uint8_t *node = found < 1 ? NULL : node_at(f, page, (unsigned)found - 1);
    if (!node || two(node + 6) != KEY || compare(node, key) != 0) return NULL;
    if ((two(node) | (uint64_t)two(node + 2) << 16) != size) return NULL;
    const uint8_t *value = node + NODE + KEY;
    uint64_t room = (uint64_t)(page + f->page - value);
    unsigned flags = two(node + 4);
    if (flags == 0) return size <= room ? value : NULL;
    if (flags != LARGE || room < 8) return NULL;
    uint64_t number = eight(value);
    const uint8_t *large = page_at(f, number);
    if (!large || !(two(large + 10) & OVERFLOWN) || size > (f->pages - number) * f->page - HEAD) return NULL;
    return large + HEAD;
}

/* Where the values of `count` keys lie, each of `size` bytes; 0 if one of them isn't there. */
static int find(const File *f, const int64_t *keys, int count, uint64_t size, const uint8_t **found) {
    for (int i = 0; i < count; i++) found[i] = page_at(f, f->root);
    int leaves = 0;
    for (int depth = 0; depth < DEEPEST && leaves < count; depth++) {
        leaves = 0;
        for (int i = 0; i < count; i++) {
            if (!found[i]) return 0;
            unsigned flags = two(found[i] + 10);
            if (flags == LEAF) leaves++;
            else if (flags != BRANCH) return 0;
            else {
                found[i] = below(f, found[i], (uint64_t)keys[i]);
                __builtin_prefetch(found[i]);
            }
        }
    }
    if (leaves < count) return 0;
    for (int i = 0; i < count; i++) {
        for (unsigned n = 0, at; n < FEW && HEAD + 2 * n < two(found[i] + 12); n++)
            if ((at = two(found[i] + HEAD + 2 * n)) < f->page) __builtin_prefetch(found[i] + at);
    }
    for (int i = 0; i < count; i++) {
        found[i] = value_in(f, found[i], (uint64_t)keys[i], size);
        if (!found[i]) return 0;
        for (uint64_t at = 0; at < size && at < AHEAD; at += LINE) __builtin_prefetch(found[i] + at);
    }
    return 1;
}

/* memcpy past the caches: what is written is not read here again, and need not push out what is. */
static void stream(uint8_t *to, const uint8_t *from, uint64_t length) {
#ifdef __SSE2__
    uint64_t head = -(uintptr_t)to % LINE;
    if (length > AHEAD + head + LINE) {
        memcpy(to, from, head);
        to += head, from += head, length -= head;
        for (; length >= LINE; to += LINE, from += LINE, length -= LINE) {
            if (length > AHEAD) __builtin_prefetch(from + AHEAD);
            __m128i a = _mm_loadu_si128((const __m128i *)from), b = _mm_loadu_si128((const __m128i *)(from + 16));
            __m128i c = _mm_loadu_si128((const __m128i *)(from + 32)), d = _mm_loadu_si128((const __m128i *)(from + 48));
            _mm_stream_si128((__m128i *)to, a);
            _mm_stream_si128((__m128i *)(to + 16), b);
            _mm_stream_si128((__m128i *)(to + 32), c);
            _mm_stream_si128((__m128i *)(to + 48), d);
        }
    }
#endif
    memcpy(to, from, length);
}

/* Goes up with every change of what is exported here: page_reader.py refuses an object that is older or younger than itself. */
EXPORT int loaderd_rows_version(void) {
    return 1;
}

/* Copies the parts of the samples `keys` that `targets` name; each value must have `size` bytes and begin with [start, start + begin).
 * Returns `count`, or how many samples from the first one on are surely there and like that: nothing is known of the others.
 * streamed: the copy is larger than a cache, and whoever reads it is not this core. */
EXPORT int64_t loaderd_rows_copy(const uint8_t *file, uint64_t page, uint64_t pages, uint64_t root, const int64_t *keys, int64_t count,
                                 const uint8_t *start, uint64_t begin, uint64_t size, const Target *targets, int64_t parts, int streamed) {
    File f = {file, page, pages, root};
    const uint8_t *found[TOGETHER];
    for (int64_t first = 0; first < count; first += TOGETHER) {
        int some = count - first < TOGETHER ? (int)(count - first) : TOGETHER;
        if (!find(&f, keys + first, some, size, found)) return first;
        for (int i = 0; i < some; i++) {
            if (memcmp(found[i], start, begin) != 0) return first + i;
            for (int64_t p = 0; p < parts; p++) {
                const Target *t = &targets[p];
                uint8_t *to = t->to + (uint64_t)(first + i) * t->length;
                if (streamed) stream(to, found[i] + t->at, t->length);
                else memcpy(to, found[i] + t->at, t->length);
            }
        }
    }
#ifdef __SSE2__
    if (streamed) _mm_sfence();  /* before whoever is told that the rows are there */
#endif
    return count;
}
