/* An allocator as people write them for torch: its two functions have torch's signatures. It gives parts of one piece of memory, which the
 * program brings, so that it runs on any device. Built as libarena.so. */

#include <stddef.h>
#include <sys/types.h>

#define PARTS 4
#define PART ((size_t)22 << 20)

static char *memory;
static int used[PARTS], out, refuse, misled;

/* For the program: where the memory is, how many parts are out, and how often it gave back what it had not got. */
void arena_bring(void *ptr) { memory = (char *)ptr; }
int arena_out(void) { return out; }
int arena_misled(void) { return misled; }
/* The next so many requests get nothing. */
void arena_refuse(int times) { refuse = times; }

void *arena_alloc(ssize_t size, int device, void *stream)
{
    int at;
    (void)device, (void)stream;
    if (refuse > 0) {
        refuse--;
        return NULL;
    }
    for (at = 0; at < PARTS && (size_t)size <= PART; at++)
        if (!used[at]) {
            used[at] = 1;
            out++;
            return memory + at * PART;
        }
    return NULL;
}

void arena_free(void *ptr, ssize_t size, int device, void *stream)
{
    size_t at = (size_t)((char *)ptr - memory) / PART;
    (void)device, (void)stream;
    if ((char *)ptr < memory || at >= PARTS || !used[at] || (size_t)size > PART || ((char *)ptr - memory) % PART) {
        misled++;
        return;
    }
    used[at] = 0;
    out--;
}
