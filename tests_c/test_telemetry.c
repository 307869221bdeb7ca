/* Telemetry from C: structs, texts, what is left alone on failure, a reading shared by threads. */

#include <pthread.h>

#include "check.h"

enum { THREADS = 4, ROUNDS = 2000 };

static void *poll_often(void *unused)
{
    int i, wrong = 0;

    (void)unused;
    for (i = 0; i < ROUNDS; i++) {
        tcuda_telemetry_t t = TCUDA_TELEMETRY_INIT;
        wrong += tcuda_telemetry_read(&t, 0, (uint32_t)(i % 16 != 0)) != TCUDA_SUCCESS || t.device_memory_total <= 0;
    }
    CHECK_EQUAL(wrong, 0);
    return NULL;
}

static void all_at_once(void)
{
    tcuda_telemetry_t t = TCUDA_TELEMETRY_INIT, again = TCUDA_TELEMETRY_INIT;
    pthread_t threads[THREADS];
    uint64_t used = 0;
    int32_t celsius = -7;
    int i;

    CHECK_OK(tcuda_telemetry_read(&t, TCUDA_DEVICE_CURRENT, 0));
    CHECK_EQUAL(t.struct_size, sizeof t);
    CHECK(t.temperature > 5 && t.temperature < 150 && t.power_draw > 5000 && t.clock_rate > 50);
    CHECK(t.device_memory_used >= 0 && t.device_memory_used <= t.device_memory_total);
    CHECK_OK(tcuda_telemetry_read(&again, 0, UINT32_MAX));
    CHECK_EQUAL(again.device_memory_used, t.device_memory_used);
    CHECK(again.age_ns >= t.age_ns);
    CHECK_OK(tcuda_temperature(&celsius, 0));
    CHECK(celsius > 5 && celsius < 150);
    CHECK_OK(tcuda_device_memory_used(&used, 0));
    CHECK((int64_t)used <= t.device_memory_total);
    for (i = 0; i < THREADS; i++)
        CHECK_EQUAL(pthread_create(&threads[i], NULL, poll_often, NULL), 0);
    for (i = 0; i < THREADS; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
}

static void processes(void)
{
    char text[1 << 16], small[4] = "abc";
    size_t needed = 0, count = 99;

    CHECK_OK(tcuda_list_gpu_processes(text, sizeof text, &needed, 0));
    CHECK_EQUAL(needed, strlen(text) + 1);
    CHECK(strncmp(text, "GPU:", 4) == 0 && strchr(text, '\n') != NULL && text[needed - 2] != '\n');
    CHECK_STATUS(tcuda_list_gpu_processes(small, sizeof small, NULL, 0), TCUDA_ERROR_BUFFER_TOO_SMALL);
    CHECK_TEXT(small, "abc");
    CHECK_OK(tcuda_gpu_processes(NULL, 0, &count, 0));
    CHECK(count < 99);
}

static void failures_leave_things_alone(void)
{
    tcuda_telemetry_t t = TCUDA_TELEMETRY_INIT;
    int32_t value = -7;

    t.temperature = -7;
    CHECK_STATUS(tcuda_telemetry_read(&t, 9999, 0), TCUDA_ERROR_INVALID_DEVICE);
    CHECK_EQUAL(t.temperature, -7);
    CHECK_STATUS(tcuda_power_draw(&value, TCUDA_DEVICE_CPU), TCUDA_ERROR_INVALID_DEVICE);
    CHECK_EQUAL(value, -7);
    CHECK_STATUS(tcuda_clock_rate(NULL, 0), TCUDA_ERROR_INVALID_ARGUMENT);
}

int main(void)
{
    all_at_once();
    processes();
    failures_leave_things_alone();
    return CHECK_DONE();
}
