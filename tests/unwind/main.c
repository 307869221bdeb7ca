#include <pthread.h>
#include <stdio.h>

int unwind_probe(int number);
int unwind_dropped(void);

static void *half(void *caught)
{
    for (int i = 0; i < 500; i++)
        *(int *)caught += unwind_probe(i) == i + 1;
    return NULL;
}

int main(void)
{
    int here = 0, there = 0;
    pthread_t thread;
    if (pthread_create(&thread, NULL, half, &there) != 0)
        return 1;
    half(&here);
    pthread_join(thread, NULL);
    printf("caught %d panics, dropped %d\n", here + there, unwind_dropped());
    return 0;
}
