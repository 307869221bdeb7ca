/* What the generated program build/tests/every/every.c runs on: a child process for each function, so that a crash has a name, and
 * checks of each call: a known status, a message of its own with every failure, no output written by a call that failed. */

#ifndef TCUDA_EVERY_H
#define TCUDA_EVERY_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tcuda.h"

/* What a variant of a call expects. */
enum { ANY, FAIL };
/* When the call comes: with the library in use; as the first call of the process; after tcuda_shutdown; in a forked child. */
enum { IN_USE, FIRST, SHUT_DOWN, FORKED, MODES };
enum { BUFFERS = 16, BUFFER = 4096, TEXT = 256, SECONDS = 20 };

static const char *const every_mode_names[MODES] = {"", " as the first call", " after tcuda_shutdown", " in a forked child"};

struct every_function {
    const char *name;
    /* What its messages may quote, each between blanks: its parameters, and the fields of their structs. */
    const char *names;
    /* Makes call number `variant`; 0 when there is none of that number. */
    int (*call)(int variant);
    /* By mode: 1 if it works then, 0 if it is refused, -1 if that depends. Of docs/THREADS.md. */
    int works[MODES];
};
static const struct every_function *every_function;

/* Shared with the children. */
struct every_shared {
    char label[TEXT];
    int calls, failed;
    int crashed;
    int succeeded; /* of the function at hand, in use */
};
static struct every_shared *every_shared;
static int every_mode;

/* The outputs of a call, by the number of the parameter, and what was in them before. */
static union every_buffer {
    unsigned char bytes[BUFFER];
    size_t struct_size;
    double number;
    void *pointer;
} every_out[BUFFERS], every_before[BUFFERS];
/* 1 for an output that a failing call may write: the `needed` of a text. */
static unsigned char every_may_change[BUFFERS];
/* Zeroed memory for inputs. */
static union every_buffer every_in[BUFFERS];

static const char *every_variant;
static int every_expected;

/* Generated from the header's list of codes. */
static int every_known_status(int status);

static void every_fail(const char *what, const char *detail)
{
    every_shared->failed++;
    printf("%s: %s%s%s\n", every_shared->label, what, detail ? ": " : "", detail ? detail : "");
    fflush(stdout);
}

static void every_reset(void)
{
    memset(every_out, 0xA5, sizeof every_out);
    memset(every_in, 0, sizeof every_in);
    memset(every_may_change, 0, sizeof every_may_change);
    every_variant = "good arguments";
    every_expected = ANY;
}

static void every_vary(const char *variant, int expected)
{
    every_variant = variant;
    every_expected = expected;
}

/* A struct that says its own size. */
static void *every_sized(union every_buffer *buffer, size_t size)
{
    memset(buffer->bytes, 0, size < BUFFER ? size : BUFFER);
    buffer->struct_size = size;
    return buffer;
}

/* Ends the process that forked, once its child has made the call. */
static void every_watch(pid_t child)
{
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        raise(WTERMSIG(status));
    _exit(WEXITSTATUS(status));
}

/* Between the making of the arguments and the call. */
static void every_begin(const char *function)
{
    snprintf(every_shared->label, TEXT, "%s%s with %s", function, every_mode_names[every_mode], every_variant);
    if (every_mode == SHUT_DOWN) {
        int32_t count;
        tcuda_device_count(&count);
        tcuda_shutdown();
    }
    if (every_mode == FORKED) {
        int32_t count;
        pid_t child;
        tcuda_device_count(&count);
        child = fork();
        if (child != 0)
            every_watch(child);
        signal(SIGALRM, SIG_DFL);
    }
    if (every_mode != FIRST) /* another failure, so that one that is not recorded shows */
        tcuda_device_count(NULL);
    memcpy(every_before, every_out, sizeof every_out);
    every_shared->calls++;
    alarm(SECONDS);
}

/* A message quotes no name but one that the header has for this function: 'outs', 'outs[1]', 'tensor->shape'. */
static void every_check_names(const char *message)
{
    const char *quoted = message;

    while ((quoted = strchr(quoted, '\'')) != NULL) {
        const char *name = ++quoted;
        size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz_0123456789");
        char wanted[64];
        quoted += length;
        /* No name: what an apostrophe follows ("torch's"), and the texts that are given. */
        if (length == 0 || name[0] < 'a' || strspn(name, "x") == length || (quoted[0] != '\'' && quoted[0] != '[' && strncmp(quoted, "->", 2) != 0) ||
            (name > message + 1 && name[-2] >= 'a' && name[-2] <= 'z'))
            continue;
        snprintf(wanted, sizeof wanted, " %.*s ", (int)length, name);
        if (strstr(every_function->names, wanted) == NULL)
            every_fail("quotes a name that the header does not have for it", message);
        quoted += strcspn(quoted, "'");
        quoted += quoted[0] != 0;
    }
}

static void every_end_status(const char *function, int status)
{
    const char *message = tcuda_last_error_message();
    tcuda_error_info_t error = TCUDA_ERROR_INFO_INIT;
    char number[32];
    int i;

    alarm(0);
    snprintf(number, sizeof number, "status %d", status);
    if (!every_known_status(status))
        every_fail("unknown status", number);
    if (every_mode == SHUT_DOWN || every_mode == FORKED) {
        int refused = status == (every_mode == SHUT_DOWN ? TCUDA_ERROR_SHUT_DOWN : TCUDA_ERROR_FORKED);
        if (every_function->works[every_mode] == refused)
            every_fail(refused ? "is refused, where docs/THREADS.md says that it works" : "works, where docs/THREADS.md says that it is refused", number);
    }
    if (status == TCUDA_ERROR_INTERNAL)
        every_fail("a defect of the library", message);
    if (status == TCUDA_SUCCESS) {
        every_shared->succeeded += every_mode == IN_USE;
        if (every_expected == FAIL && every_mode == IN_USE)
            every_fail("succeeds and should not", NULL);
        return;
    }
    if (status == TCUDA_ERROR_NOT_READY) /* an answer, not a failure */
        return;
    if (message == NULL || message[0] == 0)
        every_fail("fails without a message", number);
    else if (every_mode == IN_USE)
        every_check_names(message);
    if (tcuda_last_error(&error) != TCUDA_SUCCESS || error.status != status || strcmp(error.function, function) != 0)
        every_fail("fails and leaves another call's error as the last", error.function);
    for (i = 0; i < BUFFERS; i++)
        if (!every_may_change[i] && memcmp(every_out[i].bytes, every_before[i].bytes, BUFFER) != 0)
            every_fail("fails and has written an output", number);
}

static void every_end_text(const char *text, int may_be_null)
{
    alarm(0);
    every_shared->succeeded++;
    if (text == NULL && !may_be_null)
        every_fail("gives NULL for a text", NULL);
    else if (text != NULL && strlen(text) > 100000)
        every_fail("gives a text without an end", NULL);
}

static void every_end_value(void)
{
    alarm(0);
    every_shared->succeeded++;
}

/* Runs a function's calls in a child process. After a crash the next child goes on behind the call that crashed. */
static void every_run(const struct every_function *function, int mode)
{
    int variant = 0, crashed = 1;

    while (crashed) {
        pid_t child = fork();
        int status = 0;

        if (child == 0) {
            int more = 1;
            every_function = function;
            every_mode = mode;
            for (; more; variant++) {
                every_shared->crashed = variant;
                every_reset();
                if (mode == IN_USE && variant > 0) { /* the first call may be one that has to come first */
                    int32_t count;
                    tcuda_device_count(&count);
                }
                more = function->call(variant) && mode == IN_USE;
            }
            fflush(stdout);
            _exit(0);
        }
        waitpid(child, &status, 0);
        crashed = WIFSIGNALED(status) || WEXITSTATUS(status) != 0;
        if (crashed) {
            if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
                every_fail("does not come back", NULL);
            else
                every_fail("ends the process", WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "by exit");
            variant = every_shared->crashed + 1;
            crashed = mode == IN_USE;
        }
    }
}

static int every_main(const struct every_function *functions, size_t count)
{
    size_t i;
    int mode;

    every_shared = (struct every_shared *)mmap(NULL, sizeof *every_shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (every_shared == MAP_FAILED)
        return 2;
    for (i = 0; i < count; i++) {
        every_shared->succeeded = 0;
        for (mode = 0; mode < MODES; mode++)
            every_run(&functions[i], mode);
        if (every_shared->succeeded == 0)
            printf("never succeeded: %s\n", functions[i].name);
        fflush(stdout);
    }
    printf("every: %d calls of %d functions, %d passed, %d failed\n", every_shared->calls, (int)count,
           every_shared->calls - every_shared->failed, every_shared->failed);
    return every_shared->failed != 0;
}

#endif
