/* Bugs on purpose, one for each letter: the tools that watch the C tests must find them, on this side and inside the library.
 *
 *     f  the library writes to freed memory        h  this program writes past its memory
 *     r  two threads let the library write to one place   c  two threads of this program write to one place
 *     u  a signed number overflows                 l  memory is lost
 *     0  none */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tcuda.h"

static int32_t place;
static volatile int own_place;

static void *let_write(void *unused)
{
    tcuda_device_count(&place);
    return unused;
}

static void *write_here(void *unused)
{
    own_place = own_place + 1;
    return unused;
}

static void on_two_threads(void *(*body)(void *))
{
    pthread_t one, two;
    if (pthread_create(&one, NULL, body, NULL) != 0 || pthread_create(&two, NULL, body, NULL) != 0)
        exit(2);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
}

int main(int argc, char **argv)
{
    char letter = '0';
    char *volatile memory = (char *)malloc(4);
    volatile int number = 0x7fffffff;
    if (argc > 1)
        letter = argv[1][0];
    switch (letter) {
    case 'f':
        free(memory);
        tcuda_device_count((int32_t *)(void *)memory);
        return 0;
    case 'h':
        memory[argc + 2] = 1;
        break;
    case 'r':
        on_two_threads(let_write);
        break;
    case 'c':
        on_two_threads(write_here);
        break;
    case 'u':
        number = number + argc;
        break;
    case 'l':
        memory = NULL;
        return 0;
    default:
        tcuda_device_count(&place);
        printf("%d devices\n", (int)place);
    }
    free(memory);
    return 0;
}
