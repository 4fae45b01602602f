/* A stack that runs until it gives the processor to another one: about five nanoseconds a switch on
 * x86-64, ucontext elsewhere. Fibers belong to the host thread that made them. */
#ifndef MLXFAST_CUDA_EMULATOR_FIBER_H
#define MLXFAST_CUDA_EMULATOR_FIBER_H

#include <stddef.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
enum { FIBER_STACK = 256 * 1024 };
#else
enum { FIBER_STACK = 64 * 1024 };
#endif

#ifndef __x86_64__
#include <ucontext.h>
#endif

/* A copy that its thread has not waited for: which of its groups it is of. */
struct copy_under_way {
    void *to;
    const void *from; /* NULL: `taken` already */
    unsigned bytes, group;
    unsigned char taken[16];
};

struct fiber {
    struct copy_under_way *copies;
    unsigned copy_count, copy_room, group;
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t context;
#endif
    const void *bottom; /* of the stack, for the sanitizer; NULL until known for a host's stack */
    size_t size;
    void *fake; /* the sanitizer's */
    struct fiber *next;
    unsigned char *map; /* guard page and stack; NULL for a host's stack */
};

/* number: spreads the tops of stacks over the cache's sets. NULL: no memory. */
struct fiber *fiber_new(void (*run)(void), unsigned number);
void fiber_free(struct fiber *f);

#ifdef __x86_64__
extern "C" void emulator_switch(void **from, void *to);
#endif

static inline void fiber_switch(struct fiber *from, struct fiber *to)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->size);
#endif
#ifdef __x86_64__
    emulator_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
}

/* First thing on a new fiber; host: the one that switched here. */
static inline void fiber_begin(struct fiber *host)
{
#ifdef __SANITIZE_ADDRESS__
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(NULL, &bottom, &size);
    if (host->bottom == NULL) {
        host->bottom = bottom;
        host->size = size;
    }
#else
    (void)host;
#endif
}

#endif
