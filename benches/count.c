/* Counts the instructions of an allocation and its free by single steps: `count ANCHOR.so` (anchor.h). x86-64 Linux only.
 *
 *     own_streams_4KiB instructions 1580.9 locked 8.00 syscalls 0.00 shared 15 shared_locked 3
 *
 * A line a case. Counted is what runs outside this program: the anchor's few instructions, the linker's table, the allocator, the C
 * library. The first three figures are for one pair. locked: with a lock prefix, or xchg with memory, which locks without one. shared:
 * cache lines, over all pairs, that one of the case's two threads wrote and the other one read or wrote. shared_locked: those of them on
 * which an instruction was locked. BENCH_SHOW=1 prints these lines.
 * Ends with 77 where single steps are not possible, and says why. */

#define _GNU_SOURCE
#include "anchor.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ABSENT 77

#if defined(__x86_64__) && defined(__linux__)

#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

#define PAIRS 64
#define WARM 300
#define PAIRS_SET 256
#define WARM_SET 30000
#define MOST_LINES 65536
#define MOST_SECONDS 600

#define die(...) (fprintf(stderr, "count: " __VA_ARGS__), fputc('\n', stderr), _exit(1))

/* ---- The program that is stepped ------------------------------------------------------------------------------------------------ */

/* What the stepped program tells the stepping one, in shared memory. */
struct told {
    char name[32];
    int thread; /* 0 or 1: which of the case's threads the next steps are of */
    int pairs;  /* how many they begin */
    int last;   /* they are the case's last */
};

static struct told *told;

static __typeof__(&bench_begin) begin;
static __typeof__(&bench_thread) thread_begin;
static __typeof__(&bench_stream_create) stream_create;
static __typeof__(&bench_alloc) alloc_block;
static __typeof__(&bench_free) free_block;

/* Steps begin behind one stop and end at the next. */
static void stop(void)
{
    __asm__ volatile("int3" ::: "memory");
}

static void start(const char *name, int thread, int count, int last)
{
    snprintf(told->name, sizeof told->name, "%s", name);
    told->thread = thread;
    told->pairs = count;
    told->last = last;
    stop();
}

static void pairs(size_t size, void *stream, int count)
{
    while (count-- > 0) {
        void *ptr = alloc_block(size, stream);
        if (ptr == NULL)
            die("%zu bytes cannot be allocated", size);
        free_block(ptr, size, stream);
    }
}

/* Blocks of a thread, of which one gives way to another one of random size. */
#define LIVE 64
struct set {
    uint64_t random;
    void *blocks[LIVE];
};

static uint64_t draw(struct set *set, uint64_t below)
{
    set->random = set->random * 6364136223846793005u + 1442695040888963407u;
    return (set->random >> 33) % below;
}

/* Below 512 bytes times two to the power of `powers`, logarithms evenly spread. */
static void replace(struct set *set, uint64_t powers, void *stream, int count)
{
    while (count-- > 0) {
        size_t least = (size_t)512 << draw(set, powers), size = least + draw(set, least);
        void **block = &set->blocks[draw(set, LIVE)];
        if (*block != NULL)
            free_block(*block, 0, stream);
        if ((*block = alloc_block(size, stream)) == NULL)
            die("%zu bytes cannot be allocated", size);
    }
}

struct two {
    const char *name;
    size_t size; /* 0: of a set, up to these powers */
    uint64_t powers;
    void *streams[2];
    void *blocks[WARM];
    pthread_barrier_t turn;
};

static void work(struct two *two, struct set *set, int thread, int count)
{
    if (two->size != 0)
        pairs(two->size, two->streams[thread], count);
    else
        replace(set, two->powers, two->streams[thread], count);
}

/* Both are warm before the first is counted, and neither ends before the other one was. Always one at a time: what a count finds is not
 * to hang on who came first. */
static void *own_blocks(void *argument, int thread)
{
    struct two *two = (struct two *)argument;
    struct set set = {.random = (uint64_t)thread + 1};
    int turn, i;

    thread_begin();
    for (turn = 0; turn < 4; turn++) {
        pthread_barrier_wait(&two->turn);
        if (turn % 2 != thread)
            continue;
        work(two, &set, thread, two->size != 0 ? WARM : WARM_SET);
        if (turn >= 2) {
            int count = two->size != 0 ? PAIRS : PAIRS_SET;
            start(two->name, thread, count, thread == 1);
            work(two, &set, thread, count);
            stop();
        }
    }
    pthread_barrier_wait(&two->turn);
    for (i = 0; i < LIVE; i++)
        if (set.blocks[i] != NULL)
            free_block(set.blocks[i], 0, two->streams[thread]);
    return NULL;
}

/* Thread 0 allocates, thread 1 frees, in lots; the last lot is counted. */
static void *remote_free(void *argument, int thread)
{
    struct two *two = (struct two *)argument;
    int lot, i;

    thread_begin();
    for (lot = 0; lot < 5; lot++) {
        int count = lot < 4 ? WARM : PAIRS;
        if (thread == 1)
            pthread_barrier_wait(&two->turn);
        if (lot == 4)
            start(two->name, thread, thread == 0 ? PAIRS : 0, thread == 1);
        for (i = 0; i < count; i++) {
            if (thread == 1)
                free_block(two->blocks[i], two->size, two->streams[0]);
            else if ((two->blocks[i] = alloc_block(two->size, two->streams[0])) == NULL)
                die("%zu bytes cannot be allocated", two->size);
        }
        if (lot == 4)
            stop();
        if (thread == 0)
            pthread_barrier_wait(&two->turn);
        pthread_barrier_wait(&two->turn);
    }
    return NULL;
}

static void *own_0(void *two) { return own_blocks(two, 0); }
static void *own_1(void *two) { return own_blocks(two, 1); }
static void *remote_0(void *two) { return remote_free(two, 0); }
static void *remote_1(void *two) { return remote_free(two, 1); }

static void with_two_threads(const char *name, size_t size, uint64_t powers, int streams, void *(*first)(void *), void *(*second)(void *))
{
    struct two two = {.name = name, .size = size, .powers = powers};
    pthread_t threads[2];

    two.streams[0] = stream_create();
    two.streams[1] = streams == 2 ? stream_create() : two.streams[0];
    pthread_barrier_init(&two.turn, NULL, 2);
    if (pthread_create(threads, NULL, first, &two) != 0 || pthread_create(threads + 1, NULL, second, &two) != 0)
        die("threads cannot be made");
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
}

static void *find(void *library, const char *name)
{
    void *function = dlsym(library, name);
    if (function == NULL)
        die("%s", dlerror());
    return function;
}

static void all_cases(const char *anchor)
{
    static const struct { const char *name; size_t size; } sizes[] = {
        {"pair_512", 512}, {"pair_1MiB", 1 << 20}, {"pair_20MiB", 20 << 20}, {"pair_256MiB", 256 << 20}};
    static const struct { const char *name; size_t size; } of_pools[] = {{"pool_pair_512", 512}, {"pool_pair_20MiB", 20 << 20}};
    void *library = dlopen(anchor, RTLD_NOW), *stream;
    int (*open_pool)(int);
    size_t i;

    if (library == NULL)
        die("%s", dlerror());
    *(void **)&begin = find(library, "bench_begin");
    *(void **)&thread_begin = find(library, "bench_thread");
    *(void **)&stream_create = find(library, "bench_stream_create");
    *(void **)&alloc_block = find(library, "bench_alloc");
    *(void **)&free_block = find(library, "bench_free");
    begin();
    thread_begin();
    stream = stream_create();
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pairs(sizes[i].size, stream, WARM);
        start(sizes[i].name, 0, PAIRS, 1);
        pairs(sizes[i].size, stream, PAIRS);
        stop();
    }
    *(void **)&open_pool = dlsym(library, "bench_pool");
    if (open_pool != NULL && open_pool(1)) {
        for (i = 0; i < sizeof of_pools / sizeof *of_pools; i++) {
            pairs(of_pools[i].size, stream, WARM);
            start(of_pools[i].name, 0, PAIRS, 1);
            pairs(of_pools[i].size, stream, PAIRS);
            stop();
        }
        open_pool(0);
    }
    with_two_threads("own_streams_4KiB", 4096, 0, 2, own_0, own_1);
    with_two_threads("own_streams_20MiB", 20 << 20, 0, 2, own_0, own_1);
    with_two_threads("one_stream_4KiB", 4096, 0, 1, own_0, own_1);
    with_two_threads("remote_free_512", 512, 0, 1, remote_0, remote_1);
    with_two_threads("own_streams_mixed", 0, 16, 2, own_0, own_1);
    with_two_threads("own_streams_small", 0, 11, 2, own_0, own_1);
}

/* ---- Instructions --------------------------------------------------------------------------------------------------------------- */

/* As much of one as the counts need. */
struct instruction {
    int locked, syscall, repeated;
    int memory; /* 0: none that is named by address, 1: read, 2: written */
    int relative; /* the address is relative to the next instruction */
    uint64_t address;
};

static uint64_t general(const struct user_regs_struct *regs, int number)
{
    const unsigned long long values[16] = {regs->rax, regs->rcx, regs->rdx, regs->rbx, regs->rsp, regs->rbp, regs->rsi, regs->rdi,
                                           regs->r8,  regs->r9,  regs->r10, regs->r11, regs->r12, regs->r13, regs->r14, regs->r15};
    return values[number & 15];
}

/* Instructions of the first table that have a ModRM byte, and those of the second that have none. */
static int has_modrm(int map, int op)
{
    if (map == 1)
        return (op < 0x40 && (op & 4) == 0) || op == 0x63 || op == 0x69 || op == 0x6b || (op >= 0x80 && op <= 0x8f) || op == 0xc0 ||
               op == 0xc1 || op == 0xc6 || op == 0xc7 || (op >= 0xd0 && op <= 0xd3) || (op >= 0xd8 && op <= 0xdf) || op == 0xf6 ||
               op == 0xf7 || op == 0xfe || op == 0xff;
    if (map == 2)
        return !((op >= 0x05 && op <= 0x09) || op == 0x0b || op == 0x0e || (op >= 0x30 && op <= 0x37) || op == 0x77 ||
                 (op >= 0x80 && op <= 0x8f) || (op >= 0xa0 && op <= 0xa2) || (op >= 0xa8 && op <= 0xaa) || (op >= 0xc8 && op <= 0xcf));
    return 1;
}

/* What is done with the operand that ModRM names in memory. */
static int use_of(int map, int op, int reg, int vector)
{
    if (map == 1) {
        if (op == 0x8d)
            return 0; /* lea */
        if (op < 0x38)
            return (op & 2) == 0 ? 2 : 1;
        if (op >= 0x80 && op <= 0x83)
            return reg == 7 ? 1 : 2;
        if (op == 0xf6 || op == 0xf7)
            return reg == 2 || reg == 3 ? 2 : 1;
        if (op == 0xfe || op == 0xff)
            return reg <= 1 ? 2 : 1;
        return (op >= 0x86 && op <= 0x89) || op == 0x8c || op == 0x8f || op == 0xc0 || op == 0xc1 || op == 0xc6 || op == 0xc7 ||
                       (op >= 0xd0 && op <= 0xd3) || ((op == 0xd9 || op == 0xdb || op == 0xdd || op == 0xdf) && reg >= 2)
                   ? 2
                   : 1;
    }
    if (map == 2) {
        if (op == 0x0d || (op >= 0x18 && op <= 0x1f))
            return 0; /* prefetch, nop */
        if (op == 0xba)
            return reg >= 5 ? 2 : 1;
        if (op == 0xae)
            return vector || reg == 0 || reg == 3 || reg == 4 ? 2 : 1;
        return op == 0x11 || op == 0x13 || op == 0x17 || op == 0x29 || op == 0x2b || op == 0x7e || op == 0x7f || (op >= 0x90 && op <= 0x9f) ||
                       op == 0xa4 || op == 0xa5 || op == 0xab || op == 0xac || op == 0xad || op == 0xb0 || op == 0xb1 || op == 0xb3 ||
                       op == 0xbb || op == 0xc0 || op == 0xc1 || op == 0xc3 || op == 0xc7 || op == 0xd6 || op == 0xe7
                   ? 2
                   : 1;
    }
    return map == 4 && op >= 0x14 && op <= 0x17 ? 2 : 1; /* pextr; the rest of 0F 38 and 0F 3A reads */
}

static struct instruction decode(const unsigned char *code, const struct user_regs_struct *regs)
{
    struct instruction found = {0};
    const unsigned char *at = code;
    uint64_t segment = 0;
    int lock = 0, rex = 0, map = 1, op, modrm, mod, rm, reg, vector = 0, scale = 1;

    for (;; at++) {
        if (*at == 0xf0)
            lock = 1;
        else if (*at == 0xf2 || *at == 0xf3)
            found.repeated = 1;
        else if (*at == 0x64)
            segment = regs->fs_base;
        else if (*at == 0x65)
            segment = regs->gs_base;
        else if (*at != 0x66 && *at != 0x67 && *at != 0x2e && *at != 0x36 && *at != 0x3e && *at != 0x26)
            break;
    }
    if ((*at & 0xf0) == 0x40)
        rex = *at++;
    if (*at == 0xc5) { /* VEX in two bytes */
        vector = 1;
        at += 2;
        map = 2;
    } else if (*at == 0xc4) { /* VEX in three: the extensions of the registers are inverted */
        vector = 1;
        rex = ~at[1] >> 5 & 7;
        map = (at[1] & 31) + 1;
        at += 3;
    } else if (*at == 0x62) { /* EVEX: a short displacement counts vectors */
        vector = 1;
        rex = ~at[1] >> 5 & 7;
        map = (at[1] & 7) + 1;
        scale = 16 << (at[3] >> 5 & 3);
        at += 4;
    } else if (*at == 0x0f) {
        at++;
        map = 2;
        if (*at == 0x38 || *at == 0x3a)
            map = *at++ == 0x38 ? 3 : 4;
    }
    op = *at++;
    found.syscall = map == 2 && op == 0x05 && !vector;
    found.locked = lock;
    if (map == 1 && op >= 0xa4 && op <= 0xaf && op != 0xa8 && op != 0xa9) { /* strings; each turn is a step */
        found.memory = op == 0xa4 || op == 0xa5 || op == 0xaa || op == 0xab ? 2 : 1;
        found.address = op == 0xac || op == 0xad ? regs->rsi : regs->rdi;
        return found;
    }
    found.repeated = 0;
    if (!has_modrm(map, op))
        return found;
    modrm = *at++;
    mod = modrm >> 6;
    reg = modrm >> 3 & 7;
    rm = modrm & 7;
    if (mod == 3)
        return found;
    if (map == 1 && (op == 0x86 || op == 0x87))
        found.locked = 1;
    found.memory = use_of(map, op, reg, vector);
    if (rm == 4) {
        int sib = *at++, index = (sib >> 3 & 7) | (rex & 2) << 2, base = sib & 7;
        if (index != 4)
            found.address += general(regs, index) << (sib >> 6);
        if (base == 5 && mod == 0)
            mod = 4; /* four bytes and no base */
        else
            found.address += general(regs, base | (rex & 1) << 3);
    } else if (rm == 5 && mod == 0) {
        mod = 4;
        found.relative = 1;
    } else {
        found.address = general(regs, rm | (rex & 1) << 3);
    }
    if (mod == 1) {
        found.address += (uint64_t)((int64_t)(signed char)*at * scale);
    } else if (mod != 0) {
        int32_t displacement;
        memcpy(&displacement, at, sizeof displacement);
        found.address += (uint64_t)(int64_t)displacement;
        /* The next instruction is known after the step, but for a jump's or a call's. */
        if (found.relative && map == 1 && op == 0xff) {
            found.relative = 0;
            found.address += regs->rip + (uint64_t)(at - code) + 4;
        }
    }
    found.address += segment;
    return found;
}

/* ---- The stepping program ------------------------------------------------------------------------------------------------------- */

/* Lines that a thread touched: the line's number over two bits that say how. */
enum { WRITTEN = 1, LOCKED = 2, HOW = 3 };

struct lines {
    uint64_t line[MOST_LINES];
    size_t count;
};

static struct lines touched[2];
static uint64_t instructions, locked, syscalls, pairs_counted;

/* Where the line stands, or would. */
static size_t find_line(const struct lines *lines, uint64_t line)
{
    size_t at = line * UINT64_C(0x9e3779b97f4a7c15) >> 48;

    while (lines->line[at] != 0 && lines->line[at] >> 2 != line)
        at = (at + 1) % MOST_LINES;
    return at;
}

static void touch(struct lines *lines, uint64_t address, int how)
{
    size_t at = find_line(lines, address >> 6);

    if (lines->line[at] == 0 && ++lines->count > MOST_LINES / 2)
        die("more lines are touched than there is room for");
    lines->line[at] |= address >> 6 << 2 | (uint64_t)how;
}

static void count_shared(int *shared, int *shared_locked)
{
    size_t i;

    *shared = *shared_locked = 0;
    for (i = 0; i < MOST_LINES; i++) {
        uint64_t one = touched[0].line[i], other = one != 0 ? touched[1].line[find_line(&touched[1], one >> 2)] : 0;
        if (other == 0 || ((one | other) & WRITTEN) == 0)
            continue;
        (*shared)++;
        *shared_locked += ((one | other) & LOCKED) != 0;
        if (getenv("BENCH_SHOW") != NULL)
            fprintf(stderr, "%s: both threads use the line at %#lx%s\n", told->name, (unsigned long)(one >> 2 << 6),
                    ((one | other) & LOCKED) != 0 ? ", locked" : "");
    }
}

/* This program's own code, which the child has at the same place. */
extern const char __executable_start, etext;

static void fetch(pid_t thread, uint64_t from, unsigned char *code, size_t size)
{
    struct iovec here = {code, size}, there = {(void *)from, size};
    ssize_t got;

    memset(code, 0x90, size);
    got = process_vm_readv(thread, &here, 1, &there, 1, 0);
    if (got <= 0) { /* the end of a page, or no right to: a word at a time */
        size_t i;
        for (i = 0; i + 8 <= size; i += 8) {
            long word;
            errno = 0;
            word = ptrace(PTRACE_PEEKTEXT, thread, (void *)(from + i), NULL);
            if (errno != 0)
                break;
            memcpy(code + i, &word, sizeof word);
        }
        if (i == 0)
            die("the code at %#lx cannot be read: %s", (unsigned long)from, strerror(errno));
    }
}

/* Steps a thread from behind its stop to the next. */
static void step(pid_t thread)
{
    struct lines *lines = touched + told->thread;
    struct user_regs_struct regs;
    unsigned char code[16];
    int status;

    if (ptrace(PTRACE_GETREGS, thread, NULL, &regs) != 0)
        die("PTRACE_GETREGS: %s", strerror(errno));
    for (;;) {
        int outside = regs.rip < (uintptr_t)&__executable_start || regs.rip >= (uintptr_t)&etext;
        uint64_t rip = regs.rip;
        struct instruction now;

        fetch(thread, rip, code, sizeof code);
        if (code[0] == 0xcc)
            break;
        now = decode(code, &regs);
        do {
            if (ptrace(PTRACE_SINGLESTEP, thread, NULL, NULL) != 0 || waitpid(thread, &status, __WALL) != thread)
                die("PTRACE_SINGLESTEP: %s", strerror(errno));
            if (!WIFSTOPPED(status))
                die("%s: the program ended in the middle", told->name);
        } while (WSTOPSIG(status) != SIGTRAP); /* a signal of somebody else's: not given on */
        if (ptrace(PTRACE_GETREGS, thread, NULL, &regs) != 0)
            die("PTRACE_GETREGS: %s", strerror(errno));
        if (!outside)
            continue;
        /* All turns of a repeated instruction are one. */
        if (!now.repeated || regs.rip != rip) {
            instructions++;
            locked += (unsigned)now.locked;
            syscalls += (unsigned)now.syscall;
        }
        if (now.memory != 0)
            touch(lines, now.address + (now.relative ? regs.rip : 0), (now.memory == 2 ? WRITTEN : 0) | (now.locked ? LOCKED : 0));
    }
    /* Over the stop that ends it. */
    regs.rip++;
    pairs_counted += (unsigned)told->pairs;
    if (ptrace(PTRACE_SETREGS, thread, NULL, &regs) != 0)
        die("PTRACE_SETREGS: %s", strerror(errno));
    if (told->last) {
        double by = (double)pairs_counted;
        int shared, shared_locked;
        count_shared(&shared, &shared_locked);
        printf("%s instructions %.1f locked %.2f syscalls %.2f shared %d shared_locked %d\n", told->name, (double)instructions / by,
               (double)locked / by, (double)syscalls / by, shared, shared_locked);
        instructions = locked = syscalls = pairs_counted = 0;
        memset(touched, 0, sizeof touched);
    }
}

static void late(int signal)
{
    static const char text[] = "count: not done in time\n";
    (void)signal;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(2);
    _exit(1); /* PTRACE_O_EXITKILL ends the child */
}

/* Lets the child run, and steps what stands between two of its stops. */
static int watch(pid_t child)
{
    int status;
    pid_t thread;

    while ((thread = waitpid(-1, &status, __WALL)) > 0) {
        siginfo_t info;
        int given = 0;

        if (!WIFSTOPPED(status)) {
            if (thread == child)
                return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
            continue;
        }
        if (WSTOPSIG(status) == SIGTRAP && status >> 16 == 0 && ptrace(PTRACE_GETSIGINFO, thread, NULL, &info) == 0 &&
            info.si_code == SI_KERNEL)
            step(thread);
        else if (status >> 16 == 0 && WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP)
            given = WSTOPSIG(status);
        ptrace(PTRACE_CONT, thread, NULL, (void *)(intptr_t)given);
    }
    return 1;
}

int main(int argc, char **argv)
{
    int status;
    pid_t child;

    if (argc != 2)
        die("count ANCHOR.so");
    told = (struct told *)mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (told == MAP_FAILED)
        die("mmap: %s", strerror(errno));
    setvbuf(stdout, NULL, _IOLBF, 0);
    child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
            fprintf(stderr, "absent: ptrace is not permitted here (%s)\n", strerror(errno));
            _exit(ABSENT);
        }
        raise(SIGSTOP);
        all_cases(argv[1]);
        exit(0);
    }
    if (child < 0 || waitpid(child, &status, __WALL) != child)
        die("fork: %s", strerror(errno));
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    if (ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)(PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL)) != 0) {
        fprintf(stderr, "absent: ptrace cannot follow threads here (%s)\n", strerror(errno));
        kill(child, SIGKILL);
        return ABSENT;
    }
    signal(SIGALRM, late);
    alarm(MOST_SECONDS);
    ptrace(PTRACE_CONT, child, NULL, NULL);
    return watch(child);
}

#else

int main(void)
{
    fprintf(stderr, "absent: instructions are counted on x86-64 Linux only\n");
    return ABSENT;
}

#endif
