/* An anchor (benches/anchor.h) whose instructions are known, which proves the count: what `benches/count.c` must find stands beside each.
 * A pair has 14 instructions, 3 of them locked, 1 call of the kernel; two threads write 2 lines in common, 1 of them locked. */

#include "../benches/anchor.h"

void bench_begin(void)
{
}

void bench_thread(void)
{
}

void *bench_stream_create(void)
{
    static int streams;
    return &streams;
}

__asm__(".text\n"
        ".globl bench_alloc\n"
        "bench_alloc:\n"
        "    lock incl planted_locked(%rip)\n"   /* locked, on a shared line */
        "    lock incl -8(%rsp)\n"               /* locked, on the thread's own */
        "    xchg %eax, -16(%rsp)\n"             /* locked without a prefix */
        "    xchg %ecx, %edx\n"                  /* not locked */
        "    mov planted_read(%rip), %eax\n"     /* shared, but only read */
        "    movups %xmm0, planted_stored(%rip)\n" /* a shared line */
        "    lea -64(%rsp), %rdi\n"
        "    mov $16, %ecx\n"
        "    rep stosb\n"                        /* one instruction, 16 turns */
        "    mov $39, %eax\n"                    /* getpid */
        "    syscall\n"
        "    lea planted_read(%rip), %rax\n"
        "    ret\n"
        ".globl bench_free\n"
        "bench_free:\n"
        "    ret\n"
        ".data\n"
        ".balign 64\n"
        "planted_locked: .zero 64\n"
        "planted_stored: .zero 64\n"
        "planted_read: .zero 64\n"
        ".text\n");
