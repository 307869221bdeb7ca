/* Threads send memory to processes, which give back what they got or are killed while they have it. test_ipc [ROUNDS] */

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define THREADS 3
#define MOST ((size_t)5 << 20)

extern char **environ;

static char *program;
static int rounds = 12;

static int all_are(const unsigned char *bytes, size_t size)
{
    size_t i;
    for (i = 1; i < size; i++) {
        if (bytes[i] != bytes[0])
            return -1;
    }
    return bytes[0];
}

/* The other process: a handle comes in, what is in the memory goes out. Every fourth it keeps. */
static int consumer(void)
{
    unsigned char *host = (unsigned char *)malloc(MOST);
    tcuda_ipc_handle_t handle;
    int count = 0;

    while (host && fread(&handle, sizeof handle, 1, stdin) == 1) {
        void *memory;
        size_t size;
        int value;
        if (tcuda_ipc_import(&memory, &size, NULL, &handle, NULL) != TCUDA_SUCCESS || tcuda_copy(host, memory, size, false) != TCUDA_SUCCESS) {
            fprintf(stderr, "%s\n", tcuda_last_error_message());
            return 1;
        }
        value = all_are(host, size);
        if (++count % 4 && tcuda_ipc_close(memory, NULL) != TCUDA_SUCCESS)
            return 1;
        if (fwrite(&value, sizeof value, 1, stdout) != 1 || fflush(stdout) != 0)
            return 1;
    }
    free(host);
    return 0;
}

/* A consumer with a pipe each way. */
static pid_t start(int *to, int *from)
{
    char word[] = "consumer", *arguments[] = {program, word, NULL};
    posix_spawn_file_actions_t actions;
    int in[2], out[2];
    pid_t child = -1;

    CHECK(pipe(in) == 0 && pipe(out) == 0);
    /* The others' consumers have no use for them. */
    CHECK(fcntl(in[1], F_SETFD, FD_CLOEXEC) == 0 && fcntl(out[0], F_SETFD, FD_CLOEXEC) == 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    CHECK(posix_spawn(&child, program, &actions, NULL, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    *to = in[1];
    *from = out[0];
    return child;
}

static void *producer(void *argument)
{
    int number = (int)(long)argument, to, from, i, status;
    pid_t child = start(&to, &from);
    tcuda_stream_t stream;

    CHECK_OK(tcuda_stream_create(&stream, 0, 0));
    for (i = 0; i < rounds; i++) {
        int value = (number * 64 + i) % 256, answer = -2;
        size_t size = 1000 + (size_t)(i * 7919 + number * 104729) * 37 % (MOST - 1000);
        tcuda_ipc_handle_t handle;
        void *memory, *own;

        CHECK_OK(tcuda_malloc_cached(&memory, size, stream));
        CHECK_OK(tcuda_memset_async(memory, value, size, stream));
        CHECK_OK(tcuda_ipc_export(&handle, memory, size, 2, stream));
        CHECK_OK(tcuda_free_cached(memory));
        CHECK(write(to, &handle, sizeof handle) == (ssize_t)sizeof handle);
        /* This process takes it as well meanwhile. */
        CHECK_OK(tcuda_ipc_import(&own, NULL, NULL, &handle, stream));
        CHECK(own == memory);
        CHECK(read(from, &answer, sizeof answer) == (ssize_t)sizeof answer);
        CHECK_EQUAL(answer, value);
        CHECK_OK(tcuda_ipc_close(own, stream));
        CHECK_STATUS(tcuda_ipc_import(&own, NULL, NULL, &handle, stream), TCUDA_ERROR_INVALID_HANDLE);
        if (i % 3 == 0)
            CHECK_OK(tcuda_ipc_collect());
    }
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    close(to);
    close(from);
    CHECK_OK(tcuda_stream_destroy(stream));
    return NULL;
}

int main(int count, char **arguments)
{
    tcuda_ipc_stats_t stats = TCUDA_IPC_STATS_INIT;
    pthread_t threads[THREADS];
    int64_t active;
    long i;

    program = arguments[0];
    if (count > 1 && strcmp(arguments[1], "consumer") == 0)
        return consumer();
    if (count > 1)
        rounds = atoi(arguments[1]);
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, producer, (void *)i) == 0);
    for (i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK_OK(tcuda_ipc_collect());
    CHECK_OK(tcuda_ipc_stats(&stats));
    CHECK(stats.exported == 0 && stats.kept == 0 && stats.taken == 0 && stats.consumers == 0 && stats.imported == 0);
    CHECK_OK(tcuda_memory_stat_get(&active, 0, "active_bytes.all.current"));
    CHECK_EQUAL(active, 0);
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
