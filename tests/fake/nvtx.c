/* A tool that takes marks and ranges by NVTX's injection protocol, and writes down what it hears, a line each. FAKE_NVTX: `refuse` has it not
   start (after it has given its functions), `push` has it take nothing but rangePushA. FAKE_NVTX_CALLS: the address of a function that it
   calls while it starts. */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char text[1 << 20];
static size_t length;
static int starts;

struct domain {
    char name[64];
    int number;
};
static struct domain domains[16] = {{"default", 0}};
static int domain_count = 1;
static char *strings[256];
static int string_count;
static unsigned long long ranges;
static __thread int depth[16];

static void say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    pthread_mutex_lock(&lock);
    length += (size_t)vsnprintf(text + length, sizeof text - length, format, list);
    if (length >= sizeof text) abort();
    pthread_mutex_unlock(&lock);
    va_end(list);
}

/* What was heard since the last call; the caller frees it. */
__attribute__((visibility("default"))) char *fake_nvtx_heard(void) {
    pthread_mutex_lock(&lock);
    char *copy = strdup(text);
    text[0] = 0;
    length = 0;
    pthread_mutex_unlock(&lock);
    return copy;
}
__attribute__((visibility("default"))) long fake_nvtx_starts(const char *unused) {
    (void)unused;
    return starts;
}

struct event {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    union {
        uint64_t u;
        int64_t i;
        double d;
    } payload;
    int32_t message_type;
    const void *message;
};

static void event(const char *what, struct domain *d, const struct event *e) {
    char payload[64] = "", color[32] = "";
    if (e->version != 3 || e->size != sizeof *e || sizeof *e != 48 || e->reserved != 0) say("a wrong struct\n");
    if (e->payload_type == 1) snprintf(payload, sizeof payload, " u%llu", (unsigned long long)e->payload.u);
    if (e->payload_type == 2) snprintf(payload, sizeof payload, " i%lld", (long long)e->payload.i);
    if (e->payload_type == 3) snprintf(payload, sizeof payload, " d%g", e->payload.d);
    if (e->color_type == 1) snprintf(color, sizeof color, " #%08x", e->color);
    say("%s %s:%s%s%s", what, d->name, e->message_type == 3 || e->message_type == 1 ? (const char *)e->message : "?", color, payload);
    if (e->category) say(" c%u", e->category);
    say("\n");
}

static void mark_a(const char *m) { say("mark %s\n", m); }
static int push_a(const char *m) {
    say("push %s\n", m);
    return depth[0]++;
}
static int pop(void) {
    say("pop\n");
    return --depth[0];
}
static uint64_t start_a(const char *m) {
    uint64_t id = __atomic_add_fetch(&ranges, 1, __ATOMIC_RELAXED);
    say("start %s = %d\n", m, (int)id);
    return id;
}
static void end(uint64_t id) { say("end %d\n", (int)id); }
static void name_category(uint32_t category, const char *name) { say("category default %u %s\n", category, name); }

static void mark_ex(const struct event *e) { event("mark", &domains[0], e); }
static int push_ex(const struct event *e) {
    event("push", &domains[0], e);
    return depth[0]++;
}
static uint64_t start_ex(const struct event *e) {
    event("start", &domains[0], e);
    return __atomic_add_fetch(&ranges, 1, __ATOMIC_RELAXED);
}

static void d_mark(struct domain *d, const struct event *e) { event("mark", d, e); }
static int d_push(struct domain *d, const struct event *e) {
    event("push", d, e);
    return depth[d->number]++;
}
static int d_pop(struct domain *d) {
    say("pop %s\n", d->name);
    return --depth[d->number];
}
static uint64_t d_start(struct domain *d, const struct event *e) {
    event("start", d, e);
    return __atomic_add_fetch(&ranges, 1, __ATOMIC_RELAXED);
}
static void d_end(struct domain *d, uint64_t id) { say("end %s %d\n", d->name, (int)id); }
static struct domain *d_create(const char *name) {
    pthread_mutex_lock(&lock);
    struct domain *d = &domains[domain_count];
    snprintf(d->name, sizeof d->name, "%s", name);
    d->number = domain_count++;
    pthread_mutex_unlock(&lock);
    return d;
}
static void d_destroy(struct domain *d) { say("destroy %s\n", d->name); }
static const void *d_register(struct domain *d, const char *string) {
    (void)d;
    pthread_mutex_lock(&lock);
    char *copy = strings[string_count++] = strdup(string);
    pthread_mutex_unlock(&lock);
    return copy;
}
static void d_category(struct domain *d, uint32_t category, const char *name) { say("category %s %u %s\n", d->name, category, name); }

struct callbacks {
    size_t size;
    int (*table)(int module, void ****functions, unsigned *count);
};
struct version {
    size_t size;
    uint32_t version, reserved;
    void (*set)(uint32_t);
};

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void *(*get)(uint32_t)) {
    static const unsigned counts[8] = {0, 16, 9, 15, 7, 16, 7, 0};
    const struct callbacks *callbacks = get(1);
    const struct version *version = get(3);
    const char *how = getenv("FAKE_NVTX"), *calls = getenv("FAKE_NVTX_CALLS");
    void ***core = 0, ***domain = 0, ***any;
    unsigned count;

    starts++;
    if (get(0) || get(2) || get(4) || callbacks->size != sizeof *callbacks || version->size != sizeof *version || version->version != 3) abort();
    version->set(3);
    for (int module = -1; module < 9; module++) {
        int known = module > 0 && module < 7;
        if (callbacks->table(module, &any, &count) != known) abort();
        if (!known) continue;
        if (count != counts[module] || any[0] || any[count]) abort();
        /* NULL outputs are no failure. */
        if (!callbacks->table(module, 0, 0)) abort();
        for (unsigned i = 1; i < count; i++)
            if (!any[i] || *any[i]) abort();
        if (module == 1) core = any;
        if (module == 5) domain = any;
    }
    *core[9] = (void *)push_a;
    if (how && !strcmp(how, "push")) return 1;
    *core[1] = (void *)mark_ex, *core[2] = (void *)mark_a, *core[4] = (void *)start_ex, *core[5] = (void *)start_a;
    *core[7] = (void *)end, *core[8] = (void *)push_ex, *core[11] = (void *)pop, *core[12] = (void *)name_category;
    *domain[1] = (void *)d_mark, *domain[2] = (void *)d_start, *domain[3] = (void *)d_end, *domain[4] = (void *)d_push;
    *domain[5] = (void *)d_pop, *domain[8] = (void *)d_category, *domain[10] = (void *)d_register, *domain[12] = (void *)d_create;
    *domain[14] = (void *)d_destroy;
    if (calls) ((void (*)(void))(uintptr_t)strtoull(calls, 0, 10))();
    return !(how && !strcmp(how, "refuse"));
}
