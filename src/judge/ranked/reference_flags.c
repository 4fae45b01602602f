#include "judge/ranked/reference_flags.h"

#include "judge/launch.h"

#include <string.h>

static bool check_resources(const struct option_list *list, struct error *err)
{
    for (size_t i = 0; i < list->count; i++) {
        size_t n, other;
        bool ok = launch_resource_valid(list->items[i], &n);
        for (size_t k = 0; ok && k < i; k++)
            ok = !launch_resource_valid(list->items[k], &other) || other != n ||
                 memcmp(list->items[k], list->items[i], n) != 0;
        if (ok)
            continue;
        error_set(err, "USAGE", "a resource is NAME=PATH, each name once");
        return error_at(err, NULL, "--engine-resource", list->items[i]);
    }
    return true;
}

/* The lists are handed on as arrays that end in NULL: the last place of each must be free. */
static bool check_ends(const struct option_list *list, const char *flag, struct error *err)
{
    if (list->count < sizeof list->items / sizeof *list->items)
        return true;
    error_set(err, "USAGE", "given too often");
    return error_at(err, NULL, flag, NULL);
}

bool reference_flags_read(const struct reference_flags *f, struct reference_options *out,
                          struct error *err)
{
    *out = (struct reference_options){.workspace = f->workspace,
                                      .engine = f->engine,
                                      .weights = f->weights,
                                      .contract = f->contract,
                                      .track = f->track,
                                      .goldens = f->goldens.items,
                                      .golden_count = f->goldens.count,
                                      .prompts = f->prompts.items,
                                      .prompt_count = f->prompts.count,
                                      .resources = f->resources.items,
                                      .trees = f->trees.items,
                                      .no_sandbox = f->no_sandbox,
                                      .no_cool_gate = f->no_cool_gate,
                                      .silent = f->quiet};
    return check_resources(&f->resources, err) &&
           check_ends(&f->resources, "--engine-resource", err) &&
           check_ends(&f->trees, "--engine-tree", err);
}
