/* Threads that use the library at the same time: each its own streams and events, one stream and one event for all, and a host function
 * that hands memory from one to the other. ThreadSanitizer watches this one above all. */

#include <pthread.h>
#include <stdlib.h>

#include "check.h"

enum { THREADS = 4, ROUNDS = 50 };

static tcuda_stream_t common_stream;
static tcuda_event_t common_event;
/* Written by host functions on common_stream only, which runs them one after another; read when it is done. */
static int ran;

static void on_host(void *counter)
{
    *(int *)counter += 1;
}

static void own_objects(int32_t device)
{
    tcuda_stream_t stream = NULL;
    tcuda_event_t event = NULL;
    int own = 0;

    CHECK_OK(tcuda_stream_create(&stream, device, 0));
    CHECK_OK(tcuda_event_create(&event, TCUDA_EVENT_DISABLE_TIMING));
    CHECK_OK(tcuda_stream_add_host_function(stream, on_host, &own));
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK_EQUAL(own, 1);
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void *work(void *index)
{
    int32_t device = (int32_t)(*(int *)index % 2), current = -1, i;
    bool complete = false;

    for (i = 0; i < ROUNDS; i++) {
        CHECK_OK(tcuda_set_device(device));
        CHECK_OK(tcuda_current_device(&current));
        CHECK_EQUAL(current, device); /* the others do not change this thread's */
        own_objects(device);
        CHECK_OK(tcuda_stream_add_host_function(common_stream, on_host, &ran));
        CHECK_OK(tcuda_event_record(common_event, common_stream));
        CHECK_OK(tcuda_event_query(common_event, &complete));
        CHECK(tcuda_set_device(12345) != TCUDA_SUCCESS);
        CHECK(strstr(tcuda_last_error_message(), "12345") != NULL);
    }
    return index;
}

int main(void)
{
    pthread_t threads[THREADS];
    int index[THREADS], i;
    int32_t count = 0;

    CHECK_OK(tcuda_device_count(&count));
    if (!CHECK(count >= 1))
        return CHECK_DONE();
    CHECK_OK(tcuda_stream_create(&common_stream, 0, 0));
    CHECK_OK(tcuda_event_create(&common_event, TCUDA_EVENT_DISABLE_TIMING));
    for (i = 0; i < THREADS; i++) {
        index[i] = count >= 2 ? i : 0;
        if (!CHECK(pthread_create(&threads[i], NULL, work, &index[i]) == 0))
            return CHECK_DONE();
    }
    for (i = 0; i < THREADS; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    CHECK_OK(tcuda_stream_synchronize(common_stream));
    CHECK_EQUAL(ran, THREADS * ROUNDS);
    CHECK_OK(tcuda_event_destroy(common_event));
    CHECK_OK(tcuda_stream_destroy(common_stream));
    return CHECK_DONE();
}
