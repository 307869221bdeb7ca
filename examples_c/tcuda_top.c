/* How the devices are doing: load, temperature, power, clock, memory as the driver sees it beside what tcuda holds of it, and processes.
 *
 *     tcuda_top             refreshed every second in a terminal, until Ctrl-C; once where the output is no terminal
 *     tcuda_top --once      once
 *     tcuda_top --json      one JSON object in a line, once
 *
 * It makes no context on any device. `-` (in JSON null) is what a device does not tell. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "tcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TRY(call)                                                                                        \
    do {                                                                                                 \
        if ((call) != TCUDA_SUCCESS) {                                                                   \
            fprintf(stderr, "%s\n", tcuda_last_error_message());                                         \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

#define MIB (1024.0 * 1024.0)

enum { MOST_PROCESSES = 1024 };

struct device {
    char name[256];
    tcuda_telemetry_t now;
    int64_t held; /* by tcuda's cache of this process */
    tcuda_gpu_process_t processes[MOST_PROCESSES];
    size_t process_count;
    int processes_told;
};

static void look(struct device *d, int32_t index)
{
    tcuda_telemetry_t fresh = TCUDA_TELEMETRY_INIT;

    d->now = fresh;
    TRY(tcuda_get_device_name(d->name, sizeof d->name, NULL, index));
    TRY(tcuda_telemetry_read(&d->now, index, 100));
    TRY(tcuda_memory_stat_get(&d->held, index, "reserved_bytes.all.current"));
    d->process_count = 0;
    d->processes_told = tcuda_gpu_processes(d->processes, MOST_PROCESSES, &d->process_count, index) == TCUDA_SUCCESS;
}

/* A number in its unit, or what stands for none. */
static const char *number(char *text, size_t size, int64_t value, double unit, const char *format, const char *none)
{
    if (value < 0)
        return none;
    snprintf(text, size, format, (double)value / unit);
    return text;
}

static void cell(const char *format, int64_t value, double unit, const char *width)
{
    char text[64];

    printf(width, number(text, sizeof text, value, unit, format, "-"));
}

static void print_text(const struct device *d, int32_t index)
{
    size_t i;

    printf("%d  %s\n", (int)index, d->name);
    cell("%.0f%%", d->now.utilization, 1, "   load %5s");
    cell("%.0f%%", d->now.memory_usage, 1, "   memory traffic %5s");
    cell("%.0f C", d->now.temperature, 1, "   %6s");
    cell("%.0f", d->now.power_draw, 1000, "   %s");
    cell("%.0f W", d->now.power_limit, 1000, " of %s");
    cell("%.0f MHz", d->now.clock_rate, 1, "   %s\n");
    cell("%.0f", d->now.device_memory_used, MIB, "   memory %s");
    cell("%.0f MiB", d->now.device_memory_total, MIB, " of %s");
    cell("%.0f MiB", d->held, MIB, ", of which tcuda holds %s here\n");
    if (!d->processes_told)
        printf("   the driver does not tell which processes there are\n");
    for (i = 0; i < d->process_count; i++) {
        char text[64];
        int64_t bytes = d->processes[i].bytes == UINT64_MAX ? -1 : (int64_t)d->processes[i].bytes;
        printf("   process %10u %10s MiB\n", (unsigned)d->processes[i].pid, number(text, sizeof text, bytes, MIB, "%.0f", "-"));
    }
}

static void member(const char *name, int64_t value)
{
    char text[64];

    printf("\"%s\": %s, ", name, number(text, sizeof text, value, 1, "%.0f", "null"));
}

static void print_json(const struct device *d, int32_t index)
{
    const char *c;
    size_t i;

    printf("%s{\"device\": %d, \"name\": \"", index ? ", " : "", (int)index);
    for (c = d->name; *c; c++)
        printf(*c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    printf("\", ");
    member("driver_index", d->now.driver_index);
    member("utilization", d->now.utilization);
    member("memory_usage", d->now.memory_usage);
    member("temperature", d->now.temperature);
    member("power_draw", d->now.power_draw);
    member("power_limit", d->now.power_limit);
    member("clock_rate", d->now.clock_rate);
    member("memory_clock_rate", d->now.memory_clock_rate);
    member("device_memory_used", d->now.device_memory_used);
    member("device_memory_total", d->now.device_memory_total);
    member("held_by_tcuda", d->held);
    printf("\"processes\": [");
    for (i = 0; i < d->process_count; i++) {
        char text[64];
        int64_t bytes = d->processes[i].bytes == UINT64_MAX ? -1 : (int64_t)d->processes[i].bytes;
        printf("%s{\"pid\": %u, \"bytes\": %s}", i ? ", " : "", (unsigned)d->processes[i].pid,
               number(text, sizeof text, bytes, 1, "%.0f", "null"));
    }
    printf("]}");
}

int main(int argc, char **argv)
{
    static struct device device;
    int32_t count, index;
    int json = argc > 1 && strcmp(argv[1], "--json") == 0;
    int once = json || (argc > 1 && strcmp(argv[1], "--once") == 0) || !isatty(STDOUT_FILENO);
    struct timespec second = {1, 0};

    if (argc > 2 || (argc == 2 && !json && strcmp(argv[1], "--once") != 0)) {
        fprintf(stderr, "usage: tcuda_top [--once | --json]\n");
        return 2;
    }
    TRY(tcuda_init(NULL));
    TRY(tcuda_device_count(&count));
    do {
        if (!once)
            printf("\033[H\033[J"); /* home, and clear */
        if (json)
            printf("{\"backend\": \"%s\", \"devices\": [", tcuda_backend_name());
        for (index = 0; index < count; index++) {
            look(&device, index);
            (json ? print_json : print_text)(&device, index);
        }
        if (json)
            printf("]}\n");
        fflush(stdout);
    } while (!once && nanosleep(&second, NULL) == 0);
    return 0;
}
