/* Models: the registry of families, opening, and the one forward that runs any plan. */
#include "engine/model/model.h"

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/pack.h"
#include "engine/compute/meter.h"
#include "engine/compute/trace.h"
#include "engine/model/plan.h"
#include "engine/model/weights.h"

#include <string.h>

enum {
    DEFAULT_CONTEXT = 8192,
    DEFAULT_MAX_ROWS = 256,
    DEVICE_MAX_ROWS = 512, /* of a backend with memory of its own: more rows, more speed */
    LOW_MAX_ROWS = 64,
    LARGEST_MAX_ROWS = 4096,
    /* float32 holds every position up to here exactly (rope.h) */
    LARGEST_CONTEXT = 1 << 24,
    SPARE_SLOTS = 16 /* rows of a speculative block that may be taken back (laguna.md 5.4) */
};

static const struct model_family *const families[] = {&laguna_family};

struct model {
    struct arena arena;
    struct checkpoint *checkpoint;
    struct compute *compute;
    struct model_plan plan;
    struct memory_request memory;
};

struct model_state {
    struct model *model;
    struct kv_layer **kv; /* [attention_count] */
    int64_t *capacity;    /* [attention_count] */
    int64_t position;
    int64_t reach; /* highest position + 1 ever written since position 0 */
    size_t bytes;
    struct tap_rows *tap_rows; /* NULL: nothing is tapped */
    const int *taps;
    int tap_count;
    int64_t tap_capacity;
    int64_t tap_from, tap_reach; /* rows [tap_from, position) are in order; highest written + 1 */
};

const struct model_family *model_family_find(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (const char *const *t = families[i]->model_types; *t; t++)
            if (strcmp(*t, model_type) == 0)
                return families[i];
    return NULL;
}

static bool resolve_sizes(struct model_options *o, int64_t max_context, const char *folder,
                          struct error *err)
{
    char value[32];
    if (max_context > LARGEST_CONTEXT)
        max_context = LARGEST_CONTEXT;
    if (o->context == 0)
        o->context = max_context < DEFAULT_CONTEXT ? max_context : DEFAULT_CONTEXT;
    if (o->context < 1 || o->context > max_context) {
        snprintf(value, sizeof value, "%lld", (long long)o->context);
        error_set(err, "CONTEXT-EXCEEDED", "the context must be between 1 and %lld for this model",
                  (long long)max_context);
        return error_at(err, folder, "context", value);
    }
    if (o->max_rows < 0 || o->max_rows > LARGEST_MAX_ROWS) {
        snprintf(value, sizeof value, "%d", o->max_rows);
        error_set(err, "ROWS-INVALID", "rows of one forward must be between 1 and %d",
                  LARGEST_MAX_ROWS);
        return error_at(err, NULL, "max_rows", value);
    }
    return true;
}

/* Rows of one forward in a profile. */
static int choose_rows(const struct model_options *o, enum memory_profile profile, bool device)
{
    const int rows = o->max_rows > 0         ? o->max_rows
                     : device                ? DEVICE_MAX_ROWS
                     : profile == MEMORY_LOW ? LOW_MAX_ROWS
                                             : DEFAULT_MAX_ROWS;
    return rows > o->context ? (int)o->context : rows;
}

/* Positions that a layer's ring holds. */
static int64_t ring_capacity(int window, int max_rows, int64_t context)
{
    const int64_t ring = (int64_t)window + max_rows + SPARE_SLOTS;
    return window > 0 && ring < context ? ring : context;
}

static bool measure_rows(const struct model_options *o, struct model_needs *n, int rows,
                         uint64_t *caches, uint64_t *scratch, struct error *err)
{
    *caches = 0;
    n->shape.max_positions = 0;
    for (int i = 0; i < n->attention_count; i++) {
        const int64_t capacity = ring_capacity(n->kv[i].window, rows, o->context);
        const uint64_t bytes = kv_layer_need(o->compute.backend, o->compute.activations,
                                             n->kv[i].kv_heads, n->kv[i].head_dim, capacity);
        if (capacity > n->shape.max_positions)
            n->shape.max_positions = capacity;
        *caches = bytes > UINT64_MAX - *caches ? UINT64_MAX : *caches + bytes;
    }
    n->shape.max_rows = rows;
    return compute_scratch_bytes(&o->compute, &n->shape, scratch, err);
}

/* Chooses the profile, or says that the machine is too small, before any weight is read. */
static bool plan_memory(struct model *m, const struct model_family *family,
                        const void *family_state, struct model_options *o, struct memory_plan *plan,
                        struct error *err)
{
    struct model_needs needs;
    const bool device = weights_on_device(&o->compute);
    family->needs(&m->arena, family_state, &needs);
    struct memory_need n = {.folder = m->checkpoint->folder,
                            .token = needs.bytes_per_token,
                            .tables = needs.table_bytes * (uint64_t)o->context};
    if (!measure_rows(o, &needs, choose_rows(o, MEMORY_FULL, device), &n.caches, &n.scratch, err) ||
        !measure_rows(o, &needs, choose_rows(o, MEMORY_LOW, device), &n.low_caches, &n.low_scratch,
                      err) ||
        !weights_plan(m->checkpoint, &o->compute, &o->memory, &n, plan, err))
        return false;
    o->memory.profile = plan->profile;
    o->max_rows = choose_rows(o, plan->profile, device);
    o->compute.small_pages = plan->profile == MEMORY_LOW;
    if (o->memory.announce)
        o->memory.announce(o->memory.context, plan->line);
    return true;
}

/* Everything that forwards will read, in their order. */
static bool prepare(struct model *m, const struct memory_plan *memory, struct error *err)
{
    const struct model_plan *plan = &m->plan;
    compute_prepare_begin(m->compute, m->memory.progress, m->memory.context,
                          m->checkpoint->tensor_bytes);
    if (!compute_prepare_embedding(m->compute, &plan->embedding, err))
        return false;
    for (size_t i = 0; i < plan->block_count; i++) {
        const struct plan_block *b = &plan->blocks[i];
        if (b->attention ? !compute_prepare_attention(m->compute, b->attention, err)
                         : !compute_prepare_ffn(m->compute, b->ffn, err))
            return false;
    }
    if (!compute_prepare_head(m->compute, &plan->head, err) ||
        !compute_prepare_end(m->compute, err))
        return false;
    if (memory->device)
        weights_let_go(m->checkpoint);
    return true;
}

bool model_open(const char *folder, const struct model_options *options, struct model **out,
                struct error *err)
{
    struct model *m = memory_alloc(sizeof *m);
    *out = NULL;
    if (!compute_check(&options->compute, err) || !checkpoint_open(folder, &m->checkpoint, err)) {
        model_close(m);
        return false;
    }
    const char *type = m->checkpoint->model_type;
    const struct model_family *family = model_family_find(type);
    if (!family) {
        error_set(err, "UNKNOWN-MODEL-TYPE", "no model family claims model_type \"%s\"", type);
        error_at(err, path_join(&m->arena, folder, "config.json"), "model_type", type);
        model_close(m);
        return false;
    }
    struct model_options resolved = *options;
    struct memory_plan memory;
    void *family_state = NULL;
    int64_t max_context = 0;
    if (!family->check(&m->arena, m->checkpoint, &family_state, &max_context, err) ||
        !resolve_sizes(&resolved, max_context, folder, err) ||
        !plan_memory(m, family, family_state, &resolved, &memory, err) ||
        !weights_load(m->checkpoint, &resolved.memory, &memory, resolved.compute.threads, err) ||
        !family->bind(&m->arena, m->checkpoint, family_state, &resolved, &m->plan, err)) {
        model_close(m);
        return false;
    }
    m->plan.shape.max_rows = resolved.max_rows;
    m->plan.info.context = resolved.context;
    m->plan.info.max_rows = resolved.max_rows;
    for (size_t i = 0; i < m->plan.block_count; i++) {
        const struct attention_block *a = m->plan.blocks[i].attention;
        if (a && a->window > m->plan.info.window)
            m->plan.info.window = a->window;
    }
    m->memory = options->memory;
    if (memory.profile == MEMORY_LOW)
        m->memory.profile = MEMORY_LOW;
    m->plan.info.memory = memory.profile;
    if (!compute_new(&resolved.compute, &m->plan.shape, &m->compute, err) ||
        !prepare(m, &memory, err)) {
        model_close(m);
        return false;
    }
    *out = m;
    return true;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    if (m->compute)
        compute_free(m->compute);
    if (m->checkpoint)
        checkpoint_close(m->checkpoint);
    arena_free(&m->arena);
    free(m);
}

const struct model_info *model_get_info(const struct model *m)
{
    return &m->plan.info;
}

struct compute *model_compute(struct model *m)
{
    return m->compute;
}

const struct checkpoint *model_checkpoint(const struct model *m)
{
    return m->checkpoint;
}

const struct memory_request *model_memory(const struct model *m)
{
    return &m->memory;
}

int model_experts(const struct model *m)
{
    return m->plan.shape.max_experts;
}

const struct weight_matrix *model_embedding(const struct model *m)
{
    return &m->plan.embedding;
}

const struct weight_matrix *model_output(const struct model *m)
{
    return &m->plan.head.output;
}

bool model_state_new(struct model *m, struct model_state **out, struct error *err)
{
    size_t count = (size_t)m->plan.attention_count;
    struct model_state *s = memory_alloc(sizeof *s);
    *out = NULL;
    s->model = m;
    s->kv = memory_alloc(count * sizeof *s->kv);
    s->capacity = memory_alloc(count * sizeof *s->capacity);
    size_t layer = 0;
    for (size_t i = 0; i < m->plan.block_count; i++) {
        const struct attention_block *a = m->plan.blocks[i].attention;
        if (!a)
            continue;
        int64_t capacity = ring_capacity(a->window, m->plan.info.max_rows, m->plan.info.context);
        s->capacity[layer] = capacity;
        if (!kv_layer_new(m->compute, a->kv_heads, a->head_dim, capacity, &s->kv[layer], err)) {
            model_state_free(s);
            return false;
        }
        s->bytes += kv_layer_bytes(s->kv[layer]);
        layer++;
    }
    *out = s;
    return true;
}

void model_state_free(struct model_state *s)
{
    if (!s)
        return;
    compute_forget(s->model->compute, s);
    for (int i = 0; i < s->model->plan.attention_count; i++)
        if (s->kv[i])
            kv_layer_free(s->kv[i]);
    free(s->kv);
    free(s->capacity);
    free(s);
}

void model_state_rewind(struct model_state *s, int64_t position)
{
    if (position < s->position)
        s->position = position;
    if (s->position < s->tap_from)
        s->tap_from = s->position;
    if (s->position == 0)
        s->reach = s->tap_reach = 0;
}

void model_state_tap(struct model_state *s, struct tap_rows *rows, const int *taps, int count,
                     int64_t capacity)
{
    compute_forget(s->model->compute, s);
    s->tap_rows = rows;
    s->taps = taps;
    s->tap_count = count;
    s->tap_capacity = capacity;
    s->tap_from = s->tap_reach = s->position;
}

int64_t model_state_tapped_from(const struct model_state *s)
{
    if (!s->tap_rows)
        return s->position;
    int64_t kept = s->tap_reach - s->tap_capacity;
    int64_t from = kept > s->tap_from ? kept : s->tap_from;
    return from < s->position ? from : s->position;
}

static void tap_layer(struct model *m, const struct model_state *s, int layer, int rows)
{
    for (int i = 0; s->tap_rows && i < s->tap_count; i++)
        if (s->taps[i] == layer)
            compute_tap(m->compute, s->tap_rows, i, s->position, rows);
}

int64_t model_state_position(const struct model_state *s)
{
    return s->position;
}

size_t model_state_bytes(const struct model_state *s)
{
    return s->bytes;
}

/* A ring keeps the last `capacity` positions that were ever reached; the next row needs the keys
 * from position - window + 1 on. */
static bool ring_still_holds(const struct model_state *s)
{
    const struct model_plan *plan = &s->model->plan;
    int layer = 0;
    for (size_t i = 0; i < plan->block_count; i++) {
        const struct attention_block *a = plan->blocks[i].attention;
        if (!a)
            continue;
        int64_t first = a->window > 0 ? s->position - a->window + 1 : 0;
        if (first < 0)
            first = 0;
        if (first < s->position && first < s->reach - s->capacity[layer])
            return false;
        layer++;
    }
    return true;
}

static void run_blocks(struct model *m, const struct model_state *s,
                       const struct compute_forward *f)
{
    const struct model_plan *plan = &m->plan;
    struct compute_meter *meter = compute_get_meter(m->compute);
    compute_embed(m->compute, &plan->embedding, f->ids, f->rows);
    int attention = 0, layer = 0;
    for (size_t i = 0; i < plan->block_count; i++) {
        const struct plan_block *block = &plan->blocks[i];
        if (meter)
            meter->layer = layer;
        if (block->attention)
            compute_attention(m->compute, block->attention, s->kv[attention++], f->pos0, f->rows);
        else
            compute_ffn(m->compute, block->ffn, f->rows);
        if (block->ends_layer)
            tap_layer(m, s, layer++, f->rows);
    }
    if (meter)
        meter->layer = -1;
    if (f->logit_rows > 0)
        compute_head(m->compute, &plan->head, f->rows - f->logit_rows, f->logit_rows, f->logits,
                     f->picks);
}

bool model_forward(struct model *m, struct model_state *s, const int32_t *ids, int rows,
                   int logit_rows, float *logits, struct head_pick *picks, struct error *err)
{
    return model_forward_run(m, s, ids, rows, logit_rows, logits, picks, NULL, err) &&
           model_forward_end(m, s, rows, err);
}

bool model_forward_run(struct model *m, struct model_state *s, const int32_t *ids, int rows,
                       int logit_rows, float *logits, struct head_pick *picks,
                       const struct compute *drafted, struct error *err)
{
    const struct model_plan *plan = &m->plan;
    if (rows < 1 || rows > plan->info.max_rows || logit_rows < 0 || logit_rows > rows)
        return error_set(err, "ROWS-INVALID", "a forward of %d rows with logits of %d was asked",
                         rows, logit_rows);
    for (int r = 0; r < rows; r++)
        if ((ids[r] < 0 && !(ids[r] == -1 && r > 0 && drafted)) || ids[r] >= plan->info.vocab)
            return error_set(err, "TOKEN-OUT-OF-RANGE",
                             "a token of row %d is outside the vocabulary of %d", r,
                             plan->info.vocab);
    if (s->position + rows > plan->info.context)
        return error_set(err, "CONTEXT-EXCEEDED", "%lld positions do not fit a context of %lld",
                         (long long)(s->position + rows), (long long)plan->info.context);
    if (!ring_still_holds(s))
        return error_set(err, "REWIND-TOO-FAR",
                         "the sliding caches no longer hold the keys before position %lld",
                         (long long)s->position);

    if (model_state_tapped_from(s) == s->position) /* none is held: a new run begins */
        s->tap_from = s->tap_reach = s->position;
    struct compute_meter *meter = compute_get_meter(m->compute);
    if (meter)
        meter_forward_begin(meter, rows, s->position);
    const struct compute_forward forward = {.owner = s,
                                            .ids = ids,
                                            .pos0 = s->position,
                                            .rows = rows,
                                            .logit_rows = logit_rows,
                                            .logits = logits,
                                            .picks = picks,
                                            .drafted = drafted};
    if (!compute_begin(m->compute, &forward))
        run_blocks(m, s, &forward);
    compute_run(m->compute);
    return true;
}

bool model_forward_end(struct model *m, struct model_state *s, int rows, struct error *err)
{
    struct compute_meter *meter = compute_get_meter(m->compute);
    const bool ok = compute_end(m->compute, err);
    if (meter)
        meter_forward_end(meter);
    if (!ok)
        return false;
    s->position += rows;
    if (s->position > s->reach)
        s->reach = s->position;
    if (s->position > s->tap_reach)
        s->tap_reach = s->position;
    return true;
}
