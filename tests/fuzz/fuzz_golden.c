/* Any bytes into the golden loader. The rules are small, so that short inputs get past the length
 * checks; what is accepted must hold them. */
#include "judge/golden.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void require_tokens(const struct golden_tokens *t, size_t min, size_t max)
{
    require(t->count >= min && t->count <= max);
    for (size_t i = 0; i < t->count; i++)
        require(t->items[i] >= 0 && t->items[i] < 100);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct golden_rules rules = {.required_steps = 2,
                                              .required_prompt_tokens = 3,
                                              .vocab_size = 100,
                                              .required_decode_steps = 4};
    struct golden *g = NULL;
    struct error err = {0};
    if (!golden_parse("x.golden.json", (const char *)data, size, &rules, &g, &err)) {
        require(g == NULL && err.name[0] && err.message[0]);
        return 0;
    }
    require(g->case_count > 0);
    for (size_t i = 0; i < g->case_count; i++) {
        require(g->cases[i].name[0] != '\0');
        require_tokens(&g->cases[i].prompt, 3, 3);
        require_tokens(&g->cases[i].expected, 2, SIZE_MAX);
    }
    for (size_t i = 0; i < g->anchor_count; i++)
        require_tokens(&g->anchors[i].context, 1, 1024);
    for (size_t i = 0; i < g->free_run_count; i++) {
        require_tokens(&g->free_runs[i].expected, 1, 256);
        require(g->free_runs[i].exact_prefix >= 1 &&
                g->free_runs[i].exact_prefix <= g->free_runs[i].expected.count);
    }
    for (size_t i = 0; i < g->behavior_count; i++)
        for (size_t k = 0; k < g->behaviors[i].accepted_count; k++)
            require_tokens(&g->behaviors[i].accepted[k], 1, (size_t)g->behaviors[i].max_new_tokens);
    if (g->benchmark.present)
        require_tokens(&g->benchmark.expected_decode, 4, SIZE_MAX);
    golden_free(g);
    return 0;
}
