/* Generators: what is set before the first use waits for it in order, states go round, threads that draw from one get numbers of their
 * own, errors name what is wrong. */

#include <pthread.h>
#include <stdlib.h>

#include "check.h"

enum { STATE = 16, THREADS = 4, DRAWS = 200 };

static uint64_t seed_of(int32_t device)
{
    tcuda_generator_t generator = NULL;
    uint64_t seed = 0;

    CHECK_OK(tcuda_default_generator(&generator, device));
    CHECK_OK(tcuda_generator_initial_seed(generator, &seed));
    return seed;
}

/* The first calls of the process. */
static void seeds_before_the_first_use_are_done_in_order(void)
{
    uint8_t state[STATE] = {7, 0, 0, 0, 0, 0, 0, 0, 8}, found[STATE];
    uint64_t seed = 0;
    int32_t count = 0, device;

    CHECK_OK(tcuda_manual_seed_all(1));
    CHECK_OK(tcuda_manual_seed(2));
    CHECK_OK(tcuda_set_rng_state(state, STATE, 0));
    memset(state, 0xFF, STATE); /* it was copied */
    CHECK_STATUS(tcuda_set_rng_state(state, STATE, 0), TCUDA_ERROR_INVALID_ARGUMENT); /* an offset of 2^64 - 1 */
    CHECK_STATUS(tcuda_set_rng_state(state, 8, -77), TCUDA_ERROR_INVALID_DEVICE);
    CHECK(!tcuda_is_initialized());
    CHECK_OK(tcuda_get_rng_state(found, STATE, 0));
    CHECK(tcuda_is_initialized());
    memset(state, 0, STATE);
    state[0] = 7;
    state[8] = 8;
    CHECK(memcmp(found, state, STATE) == 0);
    CHECK_OK(tcuda_initial_seed(&seed));
    CHECK_EQUAL(seed, 7);
    CHECK_OK(tcuda_device_count(&count));
    for (device = 1; device < count; device++)
        CHECK_EQUAL(seed_of(device), 1);
}

static void states_go_round(void)
{
    tcuda_generator_t generator = NULL, clone = NULL;
    uint8_t state[STATE], other[STATE + 1], old[8] = {5};
    uint64_t seed = 0, offset = 1;
    int32_t device = -7;

    CHECK_OK(tcuda_generator_create(&generator, 0));
    CHECK_OK(tcuda_generator_device(generator, &device));
    CHECK_EQUAL(device, 0);
    CHECK_OK(tcuda_generator_initial_seed(generator, &seed));
    CHECK_EQUAL(seed, 67280421310721LL);
    CHECK_OK(tcuda_generator_get_offset(generator, &offset));
    CHECK_EQUAL(offset, 0);

    CHECK_OK(tcuda_generator_manual_seed(generator, UINT64_C(0x1122334455667788)));
    CHECK_OK(tcuda_generator_set_offset(generator, 400));
    CHECK_OK(tcuda_generator_get_state(generator, state, STATE));
    CHECK(state[0] == 0x88 && state[7] == 0x11 && state[8] == 0x90 && state[9] == 0x01 && state[15] == 0);
    CHECK_OK(tcuda_generator_clone(&clone, generator));
    CHECK_OK(tcuda_generator_seed(generator, &seed));
    CHECK(seed < UINT64_C(1) << 53 && seed != UINT64_C(0x1122334455667788));
    memset(other, 0xA5, sizeof other);
    CHECK_OK(tcuda_generator_get_state(clone, other, sizeof other));
    CHECK(memcmp(state, other, STATE) == 0 && other[STATE] == 0xA5);
    CHECK_OK(tcuda_generator_set_state(generator, state, STATE));
    CHECK_OK(tcuda_generator_get_offset(generator, &offset));
    CHECK_EQUAL(offset, 400);

    /* torch's older form is the seed alone. */
    CHECK_OK(tcuda_generator_set_state(generator, old, sizeof old));
    CHECK_OK(tcuda_generator_get_offset(generator, &offset));
    CHECK_OK(tcuda_generator_initial_seed(generator, &seed));
    CHECK(offset == 0 && seed == 5);

    CHECK_STATUS(tcuda_generator_set_state(generator, state, 15), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(tcuda_last_error_message(), "RNG state is wrong size") != NULL);
    CHECK_STATUS(tcuda_generator_set_offset(generator, 6), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(tcuda_last_error_message(), "offset must be a multiple of 4") != NULL);
    CHECK_STATUS(tcuda_generator_get_state(generator, other, 15), TCUDA_ERROR_BUFFER_TOO_SMALL);
    CHECK_STATUS(tcuda_generator_manual_seed((tcuda_generator_t)(void *)state, 1), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_OK(tcuda_generator_destroy(clone));
    CHECK_STATUS(tcuda_generator_get_offset(clone, &offset), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tcuda_generator_destroy(clone), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_OK(tcuda_generator_destroy(generator));
    CHECK_OK(tcuda_generator_destroy(NULL));
}

static tcuda_generator_t common;
static uint64_t drawn[THREADS][DRAWS];

static void *draw(void *mine)
{
    uint64_t *offsets = (uint64_t *)mine;
    tcuda_philox_state_t state;
    tcuda_generator_t own = NULL;
    int i;

    CHECK_OK(tcuda_generator_create(&own, 0));
    for (i = 0; i < DRAWS; i++) {
        memset(&state, 0xFF, sizeof state);
        CHECK_OK(tcuda_generator_philox_state(&state, common, 5, TCUDA_STREAM_DEFAULT(0)));
        CHECK(state.seed == 11 && state.offset_intragraph == 0 && state.captured == 0 && state.reserved == 0);
        offsets[i] = state.offset;
        CHECK_OK(tcuda_generator_philox_state(&state, own, 1, TCUDA_STREAM_DEFAULT(0)));
        CHECK_EQUAL(state.offset, 4 * i);
    }
    CHECK_OK(tcuda_generator_destroy(own));
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void threads_draw_numbers_of_their_own(void)
{
    pthread_t threads[THREADS];
    uint64_t offset = 0;
    int i, wrong = 0;

    CHECK_OK(tcuda_generator_create(&common, 0));
    CHECK_OK(tcuda_generator_manual_seed(common, 11));
    for (i = 0; i < THREADS; i++)
        if (!CHECK(pthread_create(&threads[i], NULL, draw, drawn[i]) == 0))
            exit(CHECK_DONE());
    for (i = 0; i < THREADS; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    qsort(drawn, THREADS * DRAWS, sizeof drawn[0][0], by_value);
    for (i = 0; i < THREADS * DRAWS; i++)
        wrong += drawn[i / DRAWS][i % DRAWS] != (uint64_t)i * 8;
    CHECK_EQUAL(wrong, 0);
    CHECK_OK(tcuda_generator_get_offset(common, &offset));
    CHECK_EQUAL(offset, THREADS * DRAWS * 8);
    CHECK_OK(tcuda_generator_destroy(common));
}

static void geometries(void)
{
    tcuda_device_properties_t properties = TCUDA_DEVICE_PROPERTIES_INIT;
    tcuda_generator_t generator = NULL;
    int32_t kind = -1, multiprocessors = -1, threads = -1;

    CHECK_OK(tcuda_get_device_properties(&properties, 0));
    CHECK_OK(tcuda_generator_create(&generator, 0));
    CHECK_OK(tcuda_generator_get_geometry(generator, &kind, &multiprocessors, &threads));
    CHECK_EQUAL(kind, TCUDA_GEOMETRY_DEVICE);
    CHECK_EQUAL(multiprocessors, properties.multi_processor_count);
    CHECK_EQUAL(threads, properties.max_threads_per_multi_processor);
    CHECK_OK(tcuda_generator_geometry_of(&multiprocessors, &threads, "a100"));
    CHECK(multiprocessors == 108 && threads == 2048);
    CHECK_OK(tcuda_generator_set_geometry(generator, TCUDA_GEOMETRY_NAMED, multiprocessors, threads));
    CHECK_STATUS(tcuda_generator_set_geometry(generator, TCUDA_GEOMETRY_NAMED, 0, 2048), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tcuda_generator_set_geometry(generator, TCUDA_GEOMETRY_NAMED, 132, 255), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tcuda_generator_set_geometry(generator, 3, 132, 2048), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tcuda_generator_geometry_of(&multiprocessors, &threads, "A101"), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(tcuda_last_error_message(), "A101") != NULL && strstr(tcuda_last_error_message(), "H100 SXM") != NULL);
    CHECK_OK(tcuda_generator_get_geometry(generator, &kind, &multiprocessors, &threads));
    CHECK(kind == TCUDA_GEOMETRY_NAMED && multiprocessors == 108 && threads == 2048);
    CHECK_OK(tcuda_generator_set_geometry(generator, TCUDA_GEOMETRY_PORTABLE, 0, 0));
    CHECK_OK(tcuda_generator_get_geometry(generator, &kind, &multiprocessors, &threads));
    CHECK(kind == TCUDA_GEOMETRY_PORTABLE && multiprocessors == 0 && threads == 0);
    CHECK_OK(tcuda_generator_destroy(generator));
}

int main(void)
{
    seeds_before_the_first_use_are_done_in_order();
    states_go_round();
    threads_draw_numbers_of_their_own();
    geometries();
    return CHECK_DONE();
}
