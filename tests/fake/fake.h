/* What the fake libcudart and the fake libcuda share. Every function notes that it was called and checks the arguments that
   tests/fake_cuda.rs passes: values that do not survive a wrong order or a wrong width. */
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef void *stream_t;
typedef void *event_t;
typedef struct {
    int location_type, location_id, flags;
} access_t;

#define TO ((void *)0x7f0000001000)
#define FROM ((void *)0x7f0000002000)
#define SIZE ((size_t)0x500000003)
#define STREAM ((void *)0x7f0000003000)
#define EVENT ((void *)0x7f0000004000)
#define OTHER ((void *)0x7f0000005000)

struct counter {
    const char *name;
    long calls;
};
static struct counter counters[128];

/* Number of calls of the function of that name. */
__attribute__((visibility("default"))) long FAKE_CALLS(const char *name) {
    for (int i = 0; i < 128 && counters[i].name; i++)
        if (!strcmp(counters[i].name, name)) return __atomic_load_n(&counters[i].calls, __ATOMIC_RELAXED);
    return 0;
}

static void note(const char *name) {
    for (int i = 0; i < 128; i++) {
        if (!counters[i].name) counters[i].name = name;
        if (!strcmp(counters[i].name, name)) {
            __atomic_add_fetch(&counters[i].calls, 1, __ATOMIC_RELAXED);
            return;
        }
    }
}

/* The body of a function that only checks its arguments. */
#define CHECK(condition) \
    do { \
        note(__func__); \
        return (condition) ? 0 : 1; \
    } while (0)

/* The same with something to write first. */
#define GIVE(condition, assignment) \
    do { \
        note(__func__); \
        if (!(condition)) return 1; \
        assignment; \
        return 0; \
    } while (0)

#endif
