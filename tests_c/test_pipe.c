/* A pipe that nobody reads gets what tcuda writes: that is an error, or a line that is lost, and no SIGPIPE that ends the program. */

#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char fifo[64];

/* Begins with a line to stderr, of a variable that is wrong. */
static int log_a_line(void)
{
    int ends[2];
    int32_t count = 0;
    sigset_t pending;

    if (pipe(ends) != 0 || dup2(ends[1], 2) < 0)
        return 2;
    close(ends[0]);
    close(ends[1]);
    setenv("TCUDA_LOG", "loudly", 1);
    if (tcuda_device_count(&count) != TCUDA_SUCCESS)
        return 3;
    /* Nothing of it is left for the moment in which the program lets it in. */
    sigpending(&pending);
    return sigismember(&pending, SIGPIPE) == 0 ? 0 : 4;
}

/* More than a pipe holds. */
static int write_snapshot(void)
{
    static void *blocks[20000];
    size_t at;
    tcuda_snapshot_t snapshot = NULL;

    for (at = 0; at < sizeof blocks / sizeof *blocks; at++)
        if (tcuda_malloc_cached(&blocks[at], 512, NULL) != TCUDA_SUCCESS)
            return 2;
    if (tcuda_memory_snapshot(&snapshot, 0) != TCUDA_SUCCESS)
        return 3;
    if (tcuda_snapshot_write(snapshot, fifo) != TCUDA_ERROR_SYSTEM)
        return 4;
    return strstr(tcuda_last_error_message(), fifo) != NULL ? 0 : 5;
}

/* Forked before tcuda is used. Whoever waits for it reads the first bytes of the pipe, if it is to. */
static int ends_with(int (*work)(void), int reads)
{
    int status = -1, file;
    char byte;
    pid_t child = fork();

    if (child == 0) {
        signal(SIGPIPE, SIG_DFL);
        _exit(work());
    }
    if (reads) {
        file = open(fifo, O_RDONLY);
        CHECK(file >= 0 && read(file, &byte, 1) == 1);
        close(file);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    return status;
}

int main(void)
{
    snprintf(fifo, sizeof fifo, "/tmp/tcuda-pipe-%ld", (long)getpid());
    CHECK_EQUAL(mkfifo(fifo, 0600), 0);
    CHECK_EQUAL(ends_with(log_a_line, 0), 0);
    CHECK_EQUAL(ends_with(write_snapshot, 1), 0);
    CHECK_EQUAL(remove(fifo), 0);
    return CHECK_DONE();
}
