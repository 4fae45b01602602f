/* How long a reply may be, from what was asked for (docs/engine-protocol.md, "Limits"). */
#include "base/number.h"
#include "wire/wire.h"

/* Bytes of the longest text of one value with its separators, ", " being the widest in use. */
enum {
    ENVELOPE = 64 << 10, /* every other field, error text included */
    I64_TEXT = 22,
    U32_TEXT = 12,
    U64_TEXT = 22,
    F64_TEXT = 26,
    POSITION_TEXT = 512, /* keys and single values of one replay position */
    STREAM_TEXT = 128,
    DIGEST_TEXT = 70,
    TOP_K_DEFAULT = 16
};

static size_t add(size_t a, size_t b)
{
    size_t sum;
    return size_add(a, b, &sum) ? sum : SIZE_MAX;
}

static size_t times(size_t a, size_t b)
{
    size_t product;
    return size_multiply(a, b, &product) ? product : SIZE_MAX;
}

static size_t replay_size(const struct wire_request *q)
{
    size_t positions = 0, top = q->logit_top_k.present ? q->logit_top_k.value : TOP_K_DEFAULT;
    for (size_t i = 0; i < q->committed_by_stream.count; i++)
        positions = add(positions, q->committed_by_stream.items[i].count);
    size_t position = add(POSITION_TEXT, times(top, I64_TEXT + 2 * F64_TEXT));
    return add(times(positions, position), times(q->committed_by_stream.count, STREAM_TEXT));
}

static size_t positive(struct wire_i64 v)
{
    return v.present && v.value > 0 ? (size_t)v.value : 0;
}

size_t wire_response_limit(enum wire_kind kind, const struct wire_request *q)
{
    size_t streams = q->batch_size.present ? q->batch_size.value : 1;
    size_t count = q->count.value, size = 0;
    switch (kind) {
    case WIRE_KIND_correctness:
        size = q->steps.value > 0 ? times((size_t)q->steps.value, I64_TEXT) : 0;
        break;
    case WIRE_KIND_free_decode_begin: /* seed token and prefill time of each stream */
        size = times(streams, I64_TEXT + U64_TEXT);
        break;
    case WIRE_KIND_free_decode_run: {
        /* At most count rounds. A round has a length and an active count; a stream has, for each
         * round, its token and its natural width, and once its time and brackets. */
        size_t stream = add(times(count, I64_TEXT + U32_TEXT), U64_TEXT + 8);
        size = add(times(streams, stream), times(count, 2 * U32_TEXT));
        break;
    }
    case WIRE_KIND_cohort_reference_replay:
        size = replay_size(q);
        break;
    case WIRE_KIND_dflash_decode_block: /* a row: its token, draft, top two and digest */
        size = times(positive(q->max_block_size), 4 * I64_TEXT + 2 * F64_TEXT + DIGEST_TEXT);
        break;
    case WIRE_KIND_dflash_reference_rows: {
        /* A row of the chain with its argmax in a frame of each width, and the block's rows. */
        size_t width = positive(q->declared_block_width);
        size_t row = add(5 * I64_TEXT + 4 * F64_TEXT, times(width, I64_TEXT));
        size = add(times(q->count.value, row),
                   times(q->verify_block_tokens.count, 2 * I64_TEXT + 2 * F64_TEXT + 8));
        size = add(size, times(width, I64_TEXT + 8));
        break;
    }
    default:
        break;
    }
    size = add(size, ENVELOPE);
    return size < WIRE_RESPONSE_LIMIT ? size : WIRE_RESPONSE_LIMIT;
}
