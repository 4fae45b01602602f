#include "engine/serve/slowed.h"

#ifdef SLOWED_PER_THOUSAND

#include "base/clock.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *slowed_name(void)
{
    return ", SLOWED BY " TEXT(SLOWED_PER_THOUSAND) " PER THOUSAND";
}

/* Correctness, the replay and the reference rows are not. */
static bool is_timed(enum wire_kind kind)
{
    switch (kind) {
    case WIRE_KIND_prefill:
    case WIRE_KIND_decode_begin:
    case WIRE_KIND_decode_step:
    case WIRE_KIND_free_decode_begin:
    case WIRE_KIND_free_decode_run:
    case WIRE_KIND_dflash_decode_begin:
    case WIRE_KIND_dflash_decode_block:
        return true;
    default:
        return false;
    }
}

int64_t slowed_begin(void)
{
    return clock_now_ns();
}

void slowed_end(int64_t begun, enum wire_kind kind)
{
    const int64_t now = clock_now_ns();
    const int64_t until = now + (now - begun) * SLOWED_PER_THOUSAND / 1000;
    while (is_timed(kind) && clock_now_ns() < until)
        ;
}

#endif
