#include "fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef __x86_64__
/* Saves what a call must keep on the old stack, takes it from the new one. The float modes are the
 * same in all fibers. */
__asm__(".text\n"
        ".globl emulator_switch\n"
        ".type emulator_switch, @function\n"
        "emulator_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emulator_switch, . - emulator_switch\n");
#endif

enum { GUARD = 4096, COLOURS = 32, COLOUR = 128 };

struct fiber *fiber_new(void (*run)(void), unsigned number)
{
    struct fiber *f = (struct fiber *)calloc(1, sizeof *f);
    if (f == NULL)
        return NULL;
    void *map = mmap(NULL, GUARD + FIBER_STACK, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || mprotect(map, GUARD, PROT_NONE) != 0) {
        if (map != MAP_FAILED)
            munmap(map, GUARD + FIBER_STACK);
        free(f);
        return NULL;
    }
    f->map = (unsigned char *)map;
    f->bottom = f->map + GUARD;
    f->size = FIBER_STACK - number % COLOURS * COLOUR;
#ifdef __x86_64__
    uintptr_t *top = (uintptr_t *)(f->map + GUARD + f->size) - 2;
    *top = (uintptr_t)run;
    f->sp = top - 6; /* the six registers, as zeros */
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->map + GUARD;
    f->context.uc_stack.ss_size = f->size;
    makecontext(&f->context, run, 0);
#endif
    return f;
}

void fiber_free(struct fiber *f)
{
    if (f->map != NULL)
        munmap(f->map, GUARD + FIBER_STACK);
    free(f->copies);
    free(f);
}
