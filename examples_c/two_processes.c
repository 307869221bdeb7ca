/* Two processes use the same device memory. The first one starts the second, sends it a handle of 64 bytes through a pipe, and frees the
 * block at once: it is kept until the second one has closed it, or has ended in whatever way.
 *
 *     the consumer read 42 in 1048576 bytes of the producer
 *     nothing is kept any more */

#include "tcuda.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRY(call)                                                                                        \
    do {                                                                                                 \
        if ((call) != TCUDA_SUCCESS) {                                                                   \
            fprintf(stderr, "%s\n", tcuda_last_error_message());                                         \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

enum { SIZE = 1 << 20 };

extern char **environ;

static int consumer(void)
{
    tcuda_ipc_handle_t handle;
    unsigned char *host = (unsigned char *)malloc(SIZE);
    size_t size, i;
    void *memory;

    if (host == NULL || fread(&handle, sizeof handle, 1, stdin) != 1)
        return 1;
    /* What comes next on the stream waits for what the producer's stream had got before the export. */
    TRY(tcuda_ipc_import(&memory, &size, NULL, &handle, NULL));
    TRY(tcuda_copy(host, memory, size, false));
    TRY(tcuda_ipc_close(memory, NULL));
    for (i = 0; i < size; i++) {
        if (host[i] != host[0])
            return 1;
    }
    printf("the consumer read %d in %zu bytes of the producer\n", host[0], size);
    free(host);
    return 0;
}

static int producer(char *program)
{
    char word[] = "consumer", *arguments[] = {program, word, NULL};
    posix_spawn_file_actions_t actions;
    tcuda_ipc_stats_t stats = TCUDA_IPC_STATS_INIT;
    tcuda_ipc_handle_t handle;
    tcuda_stream_t stream;
    int ends[2], status;
    void *memory;
    pid_t child;

    if (pipe(ends) != 0 || posix_spawn_file_actions_init(&actions) != 0 || posix_spawn_file_actions_adddup2(&actions, ends[0], 0) != 0 ||
        posix_spawn_file_actions_addclose(&actions, ends[1]) != 0 || posix_spawn(&child, program, &actions, NULL, arguments, environ) != 0)
        return 1;

    TRY(tcuda_stream_from_pool(&stream, TCUDA_DEVICE_CURRENT, 0));
    TRY(tcuda_malloc_cached(&memory, SIZE, stream));
    TRY(tcuda_memset_async(memory, 42, SIZE, stream)); /* stands for a kernel */
    TRY(tcuda_ipc_export(&handle, memory, SIZE, 1, stream));
    TRY(tcuda_free_cached(memory));

    if (write(ends[1], &handle, sizeof handle) != (ssize_t)sizeof handle || waitpid(child, &status, 0) != child || status != 0)
        return 1;
    TRY(tcuda_ipc_collect());
    TRY(tcuda_ipc_stats(&stats));
    if (stats.kept != 0)
        return 1;
    printf("nothing is kept any more\n");
    posix_spawn_file_actions_destroy(&actions);
    return 0;
}

int main(int count, char **arguments)
{
    return count > 1 && strcmp(arguments[1], "consumer") == 0 ? consumer() : producer(arguments[0]);
}
