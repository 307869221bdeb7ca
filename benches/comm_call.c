// For torch_comm.py: one of tcuda's collectives with the end of what it gave out, as a C program has it, and the synchronisation that every
// contender ends with. Python's own calls would add as much as a small collective takes.

#include <stddef.h>
#include <stdint.h>

typedef int32_t (*collective_t)(void **outs, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

struct call {
    collective_t function;
    void (*destroy)(void *out);
    void **outs;
    size_t count;
    // Those behind `outs`, as words; a function leaves what it does not take.
    uintptr_t arguments[6];
};

int32_t comm_call(const struct call *call) {
    const uintptr_t *words = call->arguments;
    const int32_t status = call->function(call->outs, words[0], words[1], words[2], words[3], words[4], words[5]);
    for (size_t at = 0; status == 0 && at < call->count; ++at) call->destroy(call->outs[at]);
    return status;
}

int32_t comm_synchronize(int32_t (*synchronize)(int32_t device), int32_t devices) {
    int32_t status = 0;
    for (int32_t device = 0; status == 0 && device < devices; ++device) status = synchronize(device);
    return status;
}
