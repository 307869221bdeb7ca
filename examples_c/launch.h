/* Starts a process of this program for each rank, as torchrun does. Comes before all other headers. */

#ifndef LAUNCH_H
#define LAUNCH_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <arpa/inet.h>
#include <netinet/in.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANKS = 8 };

extern char **environ;

/* One that is free now. */
static int free_port(void)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0) {
        perror("no free port");
        exit(1);
    }
    close(listener);
    return ntohs(address.sin_port);
}

static void set(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* How many of the ranks failed; `killed`, or -1, is one that is to end by a signal. */
static int launch(char **arguments, int count, int killed)
{
    pid_t children[MOST_RANKS];
    int rank, failed = 0;

    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set("MASTER_PORT", free_port());
    set("WORLD_SIZE", count);
    for (rank = 0; rank < count; rank++) {
        set("RANK", rank);
        set("LOCAL_RANK", rank);
        if (posix_spawn(&children[rank], "/proc/self/exe", NULL, NULL, arguments, environ) != 0) {
            perror("a process cannot be started");
            exit(1);
        }
    }
    /* This process is none of them. */
    unsetenv("RANK");
    for (rank = 0; rank < count; rank++) {
        int status = 1;

        waitpid(children[rank], &status, 0);
        failed += status != 0 && !(rank == killed && WIFSIGNALED(status));
    }
    return failed;
}

#endif
