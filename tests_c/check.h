/* Checks for the C tests: no framework. Valid as C99, C11, C++11 and C++17.
 *
 *     int main(void)
 *     {
 *         CHECK(tcuda_device_count(NULL) != TCUDA_SUCCESS);
 *         CHECK_OK(tcuda_synchronize(-1));
 *         return CHECK_DONE();
 *     }
 *
 * A failed check prints where, and the program goes on; CHECK_DONE prints the counts and gives the exit code. Checks may be made on
 * any thread that main joins. */

#ifndef TCUDA_CHECK_H
#define TCUDA_CHECK_H

#include <stdio.h>
#include <string.h>

#include "tcuda.h"

static int check_passed;
static int check_failed;

/* Counts with the compiler's atomics: GCC and clang have them in every standard. */
#define CHECK_COUNT_(counter) ((void)__atomic_add_fetch(&(counter), 1, __ATOMIC_RELAXED))

static inline int check_(int holds, const char *file, int line, const char *text)
{
    if (holds) {
        CHECK_COUNT_(check_passed);
    } else {
        CHECK_COUNT_(check_failed);
        fprintf(stderr, "%s:%d: failed: %s\n", file, line, text);
    }
    return holds;
}

static inline int check_status_(int status, int expected, const char *file, int line, const char *text)
{
    int holds = check_(status == expected, file, line, text);
    if (!holds)
        fprintf(stderr, "    status %d, expected %d; the last error is: %s\n", status, expected, tcuda_last_error_message());
    return holds;
}

static inline int check_equal_(long long a, long long b, const char *file, int line, const char *text)
{
    int holds = check_(a == b, file, line, text);
    if (!holds)
        fprintf(stderr, "    %lld and %lld\n", a, b);
    return holds;
}

static inline int check_done_(const char *file)
{
    const char *name = strrchr(file, '/');
    printf("%s: %d passed, %d failed\n", name ? name + 1 : file, check_passed, check_failed);
    return check_failed != 0 || check_passed == 0;
}

/* Each gives 1 when it holds, so that `if (!CHECK_OK(...)) return CHECK_DONE();` leaves early. */
#define CHECK(condition) check_((condition) ? 1 : 0, __FILE__, __LINE__, #condition)
#define CHECK_EQUAL(a, b) check_equal_((long long)(a), (long long)(b), __FILE__, __LINE__, #a " == " #b)
#define CHECK_STATUS(call, expected) check_status_((int)(call), (int)(expected), __FILE__, __LINE__, #call " gives " #expected)
#define CHECK_OK(call) CHECK_STATUS(call, TCUDA_SUCCESS)
#define CHECK_TEXT(a, b) check_(strcmp((a), (b)) == 0, __FILE__, __LINE__, #a " is " #b)
#define CHECK_DONE() check_done_(__FILE__)

#endif
