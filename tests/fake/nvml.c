/* A fake libnvidia-ml: four boards, in the driver's order. Board 0 can be split by MIG (FAKE_MIG): into a0 and a1, by the first byte of their
   UUIDs. FAKE_NVML=FUNCTION:CODE has a function answer that code. */
#define FAKE_CALLS fake_nvml_calls
#include "fake.h"
#include <stdio.h>
#include <stdlib.h>

struct device {
    int number, instance; /* of MIG, or -1 */
};
static struct device devices[] = {{0, -1}, {1, -1}, {2, -1}, {3, -1}, {0, 0}, {0, 1}};
static int started;

/* 0, or what the variable wants. */
static int wanted(const char *name) {
    const char *text = getenv("FAKE_NVML"), *colon = text ? strchr(text, ':') : 0;
    note(name);
    return colon && strlen(name) == (size_t)(colon - text) && !strncmp(text, name, colon - text) ? atoi(colon + 1) : started ? 0 : 1;
}

/* The body of a function of a device. */
#define TELL(refused, assignment) \
    do { \
        int code = wanted(__func__); \
        if (code) return code; \
        if (refused) return 3; \
        assignment; \
        return 0; \
    } while (0)

const char *nvmlErrorString(int code) {
    return code == 3 ? "Not Supported" : code == 4 ? "Insufficient Permissions" : code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : "some other error";
}
int nvmlInit_v2(void) {
    started = 1;
    int code = wanted(__func__);
    started = code == 0;
    return code;
}
int nvmlDeviceGetHandleByUUID(const char *text, struct device **device) {
    int code = wanted(__func__), first = 0;
    if (code) return code;
    int mig = !strncmp(text, "MIG-", 4);
    if (strlen(text) != 40 || (!mig && strncmp(text, "GPU-", 4)) || sscanf(text + 4, "%2x", &first) != 1) return 2;
    for (unsigned i = 0; i < 6; i++) {
        int board = devices[i].instance < 0, of = board ? 0x10 * (devices[i].number + 1) : 0xa0 + devices[i].instance;
        if (of == first && board == !mig && (board || getenv("FAKE_MIG"))) {
            *device = &devices[i];
            return 0;
        }
    }
    return 6;
}
int nvmlDeviceGetIndex(struct device *d, unsigned *index) { TELL(d->instance >= 0, *index = d->number); }
int nvmlDeviceGetUtilizationRates(struct device *d, unsigned *rates) { TELL(d->instance >= 0, (rates[0] = 10 + d->number, rates[1] = 20 + d->number)); }
int nvmlDeviceGetTemperature(struct device *d, unsigned sensor, unsigned *value) { TELL(d->instance >= 0 || sensor != 0, *value = 30 + d->number); }
int nvmlDeviceGetPowerUsage(struct device *d, unsigned *value) { TELL(d->instance >= 0, *value = 40000 + d->number); }
int nvmlDeviceGetEnforcedPowerLimit(struct device *d, unsigned *value) { TELL(d->instance >= 0, *value = 50000 + d->number); }
int nvmlDeviceGetClockInfo(struct device *d, unsigned type, unsigned *value) {
    TELL(d->instance >= 0 || type < 1 || type > 2, *value = 1000 * type + d->number);
}
int nvmlDeviceGetMemoryInfo(struct device *d, unsigned long long *memory) {
    unsigned long long used = d->instance >= 0 ? 100 + d->instance : 1 + d->number;
    TELL(0, (memory[0] = 80ull << 30, memory[1] = (80ull << 30) - (used << 20), memory[2] = used << 20));
}
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu, compute;
};
/* As many as the number of the device; device 3 has 100. The last one's memory is not known. */
int nvmlDeviceGetComputeRunningProcesses_v3(struct device *d, unsigned *count, struct process *list) {
    unsigned there = d->instance >= 0 ? 1 : d->number == 3 ? 100 : (unsigned)d->number, room = *count;
    int code = wanted(__func__);
    if (code) return code;
    *count = there;
    if (there > room) return 7;
    for (unsigned i = 0; i < there; i++) {
        list[i] = (struct process){1000 + i, (i + 1ull) << 19, ~0u, ~0u};
        if (i + 1 == there) list[i].used = ~0ull;
    }
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v2(struct device *d, unsigned *count, struct process *list) {
    note(__func__);
    return nvmlDeviceGetComputeRunningProcesses_v3(d, count, list);
}
int nvmlDeviceGetMigMode(struct device *d, unsigned *now, unsigned *later) { TELL(d->number == 3, *now = *later = getenv("FAKE_MIG") && d->number == 0); }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *d, struct device **board) {
    int code = wanted(__func__);
    if (code) return code;
    if (d->instance < 0) return 2;
    *board = &devices[d->number];
    return 0;
}
