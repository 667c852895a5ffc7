/* Feeds a harness with damaged inputs, for so many seconds: what libFuzzer does, as far as any C compiler can.
 *
 *     driver SECONDS SEED FOUND CORPUS...
 *
 * Inputs that reach new code (-fsanitize-coverage=trace-pc) are kept and damaged further. The input at work lies in the file FOUND, so that it
 * is there when the harness dies of it. With SECONDS = 0 each file of the corpus is tried once as it is. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <fcntl.h>
#include <unistd.h>

enum { LONGEST = 1 << 17, KEPT = 4096, MAP = 1 << 16, HEAD = 8, LINE_S = 10 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

typedef struct {
    uint8_t *data;
    size_t length;
} Input;

static Input kept[KEPT];
static size_t many, news;
static uint8_t seen[MAP];
static uint64_t state;

void __sanitizer_cov_trace_pc(void) {
    uintptr_t at = (uintptr_t)__builtin_return_address(0);
    uint8_t *place = &seen[(at ^ at >> 16) % MAP];
    if (!*place) *place = 1, news++;
}

static size_t drawn(size_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below ? (size_t)(state >> 11) % below : 0;
}

static void keep(const uint8_t *data, size_t length) {
    Input *to = many < KEPT ? &kept[many++] : &kept[drawn(KEPT)];
    free(to->data);
    to->data = malloc(length + 1), to->length = length;
    memcpy(to->data, data, length);
}

static size_t read_file(const char *name, uint8_t *to) {
    FILE *file = fopen(name, "rb");
    if (!file) perror(name), exit(2);
    size_t length = fread(to, 1, LONGEST, file);
    fclose(file);
    return length;
}

/* One of the kept, with a few changes. */
static size_t damaged(uint8_t *to) {
    static const uint8_t odd[] = {0, 1, 0x7F, 0x80, 0xFE, 0xFF, 0xD8, 0xD9, 0xDA, 0xC0, 0xC2, 0xC4, 0xDD};
    const Input *from = &kept[drawn(many)];
    size_t length = from->length;
    memcpy(to, from->data, length);
    for (size_t changes = 1 + drawn(drawn(4) ? 4 : 32); changes && length; changes--) {
        size_t at = drawn(drawn(2) ? length : length < 700 ? length : 700), size = 1 + drawn(16);
        const Input *other = &kept[drawn(many)];
        switch (drawn(8)) {
        case 0: to[at] ^= (uint8_t)(1u << drawn(8)); break;
        case 1: to[at] = (uint8_t)drawn(256); break;
        case 2: to[at] = odd[drawn(sizeof odd)]; break;
        case 3: to[at] = (uint8_t)(to[at] + drawn(9) - 4); break;
        case 4: /* leave a part out */
            if (at + size < length) memmove(to + at, to + at + size, length - at - size), length -= size;
            break;
        case 5: /* a part twice */
            if (at + size < length && length + size < LONGEST) memmove(to + at + size, to + at, length - at), length += size;
            break;
        case 6: /* a part of another */
            if (other->length) {
                size_t begin = drawn(other->length), part = 1 + drawn(other->length - begin);
                if (part > length - at) part = length - at;
                memcpy(to + at, other->data + begin, part);
            }
            break;
        default: /* cut short, seldom */
            if (!drawn(8)) length = at;
        }
    }
    return length;
}

int main(int count, char **names) {
    if (count < 5) return fprintf(stderr, "driver SECONDS SEED FOUND CORPUS...\n"), 2;
    double seconds = atof(names[1]);
    state = strtoull(names[2], NULL, 10) * 0x9E3779B97F4A7C15u | 1;
    int fd = open(names[3], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, LONGEST + HEAD)) return perror(names[3]), 2;
    uint8_t *now = mmap(NULL, LONGEST + HEAD, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (now == MAP_FAILED) return perror("mmap"), 2;
    uint64_t *length = (uint64_t *)now, runs = 0;
    now += HEAD;
    for (int i = 4; i < count; i++, runs++) {
        *length = read_file(names[i], now);
        LLVMFuzzerTestOneInput(now, *length);
        keep(now, *length);
    }
    time_t begin = time(NULL), said = begin;
    while ((double)(time(NULL) - begin) < seconds) {
        size_t before = news;
        *length = damaged(now);
        LLVMFuzzerTestOneInput(now, *length);
        if (news > before) keep(now, *length);
        runs++;
        if (time(NULL) - said >= LINE_S) said = time(NULL), printf("    %llu inputs, %zu places\n", (unsigned long long)runs, news), fflush(stdout);
    }
    printf("    %llu inputs, %zu places, %zu kept\n", (unsigned long long)runs, news, many);
    unlink(names[3]);
    return 0;
}
