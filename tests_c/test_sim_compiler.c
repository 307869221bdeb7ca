/* The compiler of the simulated device's functions is a child process: how that is told where SIGCHLD is the program's own business, where it is
 * killed, and where none can be started. Each case is a process, since the compiler is found once. */

#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char script[64];
static const char PLUS[] = "template <typename T> T plus(T x) { return x + T(1); }";

/* Of a source that no cache has. */
static tcuda_status_t compiled(const char *source)
{
    const tcuda_dtype_t f32 = {2, 32, 1};
    const int64_t shape = 4;
    tcuda_managed_tensor_t *tensor = NULL, *out = NULL;
    const tcuda_tensor_t *input;
    tcuda_jit_t jit = NULL;
    tcuda_status_t status;

    CHECK_OK(tcuda_tensor_empty(&tensor, 0, f32, 1, &shape, NULL));
    input = &tensor->tensor;
    CHECK_OK(tcuda_jit_create(&jit, source, NULL, 0));
    status = tcuda_jit_call(jit, &out, &input, 1, NULL, 0, NULL);
    if (status == TCUDA_SUCCESS)
        CHECK_OK(tcuda_tensor_destroy(out));
    CHECK_OK(tcuda_tensor_destroy(tensor));
    CHECK_OK(tcuda_jit_destroy(jit));
    return status;
}

static int says(const char *text)
{
    return strstr(tcuda_last_error_message(), text) != NULL;
}

static void takes_all(int unused)
{
    int before = errno;
    (void)unused;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    errno = before;
}

static const char WRONG[] = "template <typename T> T wrong(T x) { return nothing(x); }";

static void with_ignored_children(void)
{
    signal(SIGCHLD, SIG_IGN);
    CHECK_OK(compiled(PLUS));
    CHECK_STATUS(compiled(WRONG), TCUDA_ERROR_COMPILATION);
    CHECK(says("nothing"));
}

static void with_a_handler(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = takes_all;
    sigaction(SIGCHLD, &action, NULL);
    CHECK_OK(compiled(PLUS));
    CHECK_STATUS(compiled(WRONG), TCUDA_ERROR_COMPILATION);
    CHECK(says("nothing"));
}

static void with_exceptions(void)
{
    CHECK_STATUS(compiled("template <typename T> T throws(T x) { if (x > T(1)) throw 1; return x; }"), TCUDA_ERROR_COMPILATION);
    CHECK(says("exception"));
}

/* Knows its version, and is killed when it compiles. */
static void with_a_killed_compiler(void)
{
    FILE *file = fopen(script, "w");
    if (!CHECK(file != NULL))
        return;
    fprintf(file, "#!/bin/sh\n[ \"$1\" = --version ] && echo killed 1.0 && exit 0\nkill -9 $$\n");
    fclose(file);
    CHECK_EQUAL(chmod(script, 0700), 0);
    setenv("TCUDA_CXX", script, 1);
    CHECK_STATUS(compiled(PLUS), TCUDA_ERROR_SYSTEM);
    CHECK(says("signal: 9"));
    CHECK_EQUAL(remove(script), 0);
}

/* Neither is it said that there is no compiler, nor is that kept. */
static void without_files(void)
{
    struct rlimit before, none;
    void *block = NULL;

    CHECK_OK(tcuda_malloc_cached(&block, 100, NULL));
    CHECK_EQUAL(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3;
    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &none), 0);
    CHECK_STATUS(compiled(PLUS), TCUDA_ERROR_SYSTEM);
    CHECK(says("Too many open files"));
    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_OK(compiled(PLUS));
}

int main(void)
{
    void (*const cases[])(void) = {with_ignored_children, with_a_handler, with_exceptions, with_a_killed_compiler, without_files};
    char folder[64], command[128];
    size_t at;

    snprintf(script, sizeof script, "/tmp/tcuda-compiler-%ld", (long)getpid());
    snprintf(folder, sizeof folder, "/tmp/tcuda-compiled-%ld", (long)getpid());
    setenv("TCUDA_JIT_CACHE_PATH", folder, 1);
    for (at = 0; at < sizeof cases / sizeof *cases; at++) {
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            cases[at]();
            _exit(check_failed != 0 || check_passed == 0);
        }
        CHECK_EQUAL(waitpid(child, &status, 0), child);
        CHECK_EQUAL(status, 0);
        snprintf(command, sizeof command, "rm -rf %s", folder);
        CHECK_EQUAL(system(command), 0);
    }
    return CHECK_DONE();
}
