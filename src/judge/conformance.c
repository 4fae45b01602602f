/* `benchd conformance`: the command line, the walk over the checks, the table and the document. */
#include "judge/conformance.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/options.h"
#include "base/terminal.h"
#include "judge/conformance_flags.h"
#include "judge/conformance_kit.h"
#include "judge/contract.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_CONFORMS = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };
enum { VOCAB_MOST = 1 << 24, SEED_MOST = 1 << 20 };

static const char command_name[] = "benchd conformance";

static struct {
    const char *engine, *weights, *contract, *manifest;
    struct option_list resources, only, except;
    int64_t vocab, seed_tokens;
    bool has_vocab, has_seed, trusted, json, quiet;
} f;

static const struct option_spec specs[] = {
    {"--engine", OPTION_TEXT, true, "PATH", "The engine to try.", &f.engine, NULL, 0, 0},
    {"--weights", OPTION_TEXT, true, "DIR", "Its weights folder.", &f.weights, NULL, 0, 0},
    {"--contract", OPTION_TEXT, false, "FILE",
     "A track's contract, for the vocabulary and the seed length.", &f.contract, NULL, 0, 0},
    {"--vocab", OPTION_INT, false, "N", "The vocabulary, where there is no contract.", &f.vocab,
     &f.has_vocab, WIRE_TOP_LOGITS, VOCAB_MOST},
    {"--seed-tokens", OPTION_INT, false, "N",
     "Length of the long prompts; with --vocab. The engine needs room for 17 tokens more.",
     &f.seed_tokens, &f.has_seed, 1, SEED_MOST},
    {"--manifest", OPTION_TEXT, false, "FILE",
     "A runner manifest to check the hello against; without it the six manifest checks are "
     "skipped.",
     &f.manifest, NULL, 0, 0},
    {"--trusted", OPTION_SWITCH, false, NULL,
     "An organiser's build: the hello may advertise cohort_reference_replay.", &f.trusted, NULL, 0,
     0},
    {"--engine-resource", OPTION_LIST, false, "NAME=PATH",
     "Forwarded to the engine as --resource NAME=PATH.", &f.resources, NULL, 0, 0},
    {"--only", OPTION_LIST, false, "NAME", "Run this check only.", &f.only, NULL, 0, 0},
    {"--except", OPTION_LIST, false, "NAME", "Leave this check out.", &f.except, NULL, 0, 0},
    {"--json", OPTION_SWITCH, false, NULL, "A JSON document on stdout instead of the table.",
     &f.json, NULL, 0, 0},
    {"--quiet", OPTION_SWITCH, false, NULL, "No progress.", &f.quiet, NULL, 0, 0},
};
static const struct command command = {
    .name = command_name,
    .summary = "Drives every verb and every fault of Engine Protocol v1 with one engine.",
    .notes = "The engine is started as often as needed. docs/writing-an-engine.md is the page the "
             "checks cite.\n"
             "Exit codes: 0 nothing failed; 1 a check failed; 2 usage, or a contract or manifest "
             "that cannot be used; 130 interrupted.\n"
             "Environment: MLXFAST_HELLO_TIMEOUT_S (600), MLXFAST_REPLY_TIMEOUT_S (600) and "
             "MLXFAST_BARRIER_TIMEOUT_S (60) bound every read from the engine.",
    .options = specs,
    .option_count = sizeof specs / sizeof *specs};

static int complain(const struct error *err, int status)
{
    char line[2200];
    fprintf(stderr, "%s: %s\n", command_name, error_line(err, line, sizeof line));
    return status;
}

static bool misuse(struct error *err, const char *flag, const char *value, const char *what)
{
    error_set(err, "USAGE", "%s", what);
    return error_at(err, NULL, flag, value);
}

bool conformance_check_resources(const struct option_list *resources, struct error *err)
{
    static const char flag[] = "--engine-resource";
    for (size_t i = 0; i < resources->count; i++) {
        size_t length, other;
        if (!launch_resource_valid(resources->items[i], &length))
            return misuse(err, flag, resources->items[i],
                          "NAME=PATH, the name of letters, digits, '.', '_' and '-'");
        for (size_t j = 0; j < i; j++)
            if (launch_resource_valid(resources->items[j], &other) && other == length &&
                memcmp(resources->items[i], resources->items[j], length) == 0)
                return misuse(err, flag, resources->items[i], "a resource is named once");
    }
    return true;
}

/* ---- the list of checks ---- */

struct row {
    const struct kit_check *check;
    struct verdict verdict;
    bool chosen;
};

static size_t list_checks(struct arena *a, struct row **out)
{
    const struct {
        const struct kit_check *checks;
        size_t count;
    } groups[] = {{kit_verb_checks, kit_verb_count},
                  {kit_free_run_checks, kit_free_run_count},
                  {kit_fault_checks, kit_fault_count},
                  {kit_end_checks, kit_end_count}};
    size_t count = 0;
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        count += groups[g].count;
    *out = arena_array(a, count, sizeof **out);
    count = 0;
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (size_t i = 0; i < groups[g].count; i++)
            (*out)[count++] = (struct row){.check = &groups[g].checks[i], .chosen = true};
    return count;
}

/* Each name of the list is a check's; those rows become `chosen`. */
static bool mark(struct row *rows, size_t count, const char *flag, const struct option_list *names,
                 bool chosen, struct error *err)
{
    for (size_t n = 0; n < names->count; n++) {
        bool found = false;
        for (size_t i = 0; i < count; i++)
            if (strcmp(rows[i].check->name, names->items[n]) == 0) {
                rows[i].chosen = chosen;
                found = true;
            }
        if (!found)
            return misuse(err, flag, names->items[n], "there is no check of this name");
    }
    return true;
}

static bool choose(struct row *rows, size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        rows[i].chosen = f.only.count == 0;
    return mark(rows, count, "--only", &f.only, true, err) &&
           mark(rows, count, "--except", &f.except, false, err);
}

/* ---- inputs ---- */

/* Prompts that are the same on every run and machine: a plain linear congruence. */
static struct wire_tokens make_tokens(struct arena *a, uint64_t state, size_t count, int64_t vocab)
{
    int64_t *items = arena_array(a, count, sizeof *items);
    for (size_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        items[i] = (int64_t)((state >> 33) % (uint64_t)vocab);
    }
    return client_tokens(items, count);
}

static void make_prompts(struct kit *k, int64_t seed_tokens)
{
    const size_t length = (size_t)seed_tokens;
    k->seed = make_tokens(&k->arena, 1, length, k->vocab);
    k->other = make_tokens(&k->arena, 2, length, k->vocab);
    k->brief = make_tokens(&k->arena, 3, length < KIT_SHORT ? length : KIT_SHORT, k->vocab);
    k->forced = make_tokens(&k->arena, 4, KIT_STEPS, k->vocab);
}

static bool read_inputs(struct kit *k, struct contract **contract, struct runner_description *m,
                        struct error *err)
{
    const char *track;
    struct client_options o = {0};
    if (f.contract != NULL ? f.has_vocab || f.has_seed : !f.has_vocab || !f.has_seed)
        return misuse(err, "--contract", f.contract,
                      "either --contract, or --vocab with --seed-tokens, is needed");
    if (!conformance_check_resources(&f.resources, err) ||
        !client_deadlines_from_environment(&o, err))
        return false;
    k->hello_seconds = o.hello_seconds > 0 ? o.hello_seconds : 600;
    k->reply_seconds = o.reply_seconds > 0 ? o.reply_seconds : 600;
    k->barrier_seconds = o.barrier_seconds > 0 ? o.barrier_seconds : 60;
    if (f.manifest != NULL) {
        if (!manifest_check_load(&k->arena, f.manifest, m, err))
            return false;
        k->manifest = m;
    }
    int64_t seed_tokens = f.seed_tokens;
    k->vocab = f.vocab;
    if (f.contract != NULL) {
        if (!contract_track_from_environment(&track, err) ||
            !contract_load(f.contract, track, contract, err) ||
            !contract_require_model(*contract, err))
            return false;
        k->vocab = (*contract)->vocab_size;
        seed_tokens = (*contract)->seed_tokens;
        k->yarn = (*contract)->yarn_magnitude;
    }
    if (k->vocab < WIRE_TOP_LOGITS || k->vocab > VOCAB_MOST || seed_tokens < 1 ||
        seed_tokens > SEED_MOST)
        return misuse(err, "--contract", f.contract, "its vocabulary or seed length is unusable");
    make_prompts(k, seed_tokens);
    return true;
}

/* ---- the walk ---- */

static void run_checks(struct kit *k, struct row *rows, size_t count)
{
    struct progress progress = {.quiet = f.quiet || f.json};
    progress_begin(&progress, "conformance", "checks", count);
    for (size_t i = 0; i < count && !interrupt_requested(); i++) {
        if (!rows[i].chosen)
            continue;
        rows[i].check->run(k, &rows[i].verdict);
        /* What a failed check left half-said must not speak to the next one. */
        for (int m = 0; rows[i].verdict.is == KIT_FAIL && m < KIT_MODES; m++) {
            kit_stop(k->peers[m]);
            k->peers[m] = NULL;
        }
        progress_update(&progress, i + 1);
    }
    progress_end(&progress);
}

static const char *word_of(enum kit_verdict verdict)
{
    return verdict == KIT_PASS ? "pass" : verdict == KIT_FAIL ? "fail" : "skipped";
}

struct counts {
    unsigned passed, failed, skipped;
};

static void print_table(const struct row *rows, size_t count, const struct counts *n)
{
    struct table *t = table_new(3);
    table_row(t, "check", "verdict", "section");
    for (size_t i = 0; i < count; i++)
        if (rows[i].chosen)
            table_row(t, rows[i].check->name, word_of(rows[i].verdict.is), rows[i].check->section);
    table_print(t);
    for (size_t i = 0; i < count; i++)
        if (rows[i].chosen && rows[i].verdict.is == KIT_SKIPPED)
            printf("\nskipped %s: %s", rows[i].check->name, rows[i].verdict.detail);
    for (size_t i = 0; i < count; i++)
        if (rows[i].chosen && rows[i].verdict.is == KIT_FAIL)
            printf("\n\nFAILED %s: %s\n  rule: %s\n  docs/writing-an-engine.md, \"%s\"",
                   rows[i].check->name, rows[i].verdict.detail, rows[i].check->rule,
                   rows[i].check->section);
    printf("\n\n%u passed, %u failed, %u skipped\n", n->passed, n->failed, n->skipped);
}

static void print_json(const struct row *rows, size_t count, const struct counts *n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        if (rows[i].chosen) {
            const struct kit_check *c = rows[i].check;
            json_t *detail = json_string(rows[i].verdict.detail);
            json_t *row = json_pack("{s:s, s:s, s:s, s:s}", "name", c->name, "section", c->section,
                                    "rule", c->rule, "verdict", word_of(rows[i].verdict.is));
            /* A detail cut inside a character is no JSON text. */
            json_object_set_new(row, "detail",
                                detail != NULL ? detail : json_string("(unreadable)"));
            json_array_append_new(list, row);
        }
    json_t *document = json_pack("{s:i, s:b, s:i, s:i, s:i, s:o}", "schema_version", 1, "conforms",
                                 n->failed == 0, "passed", (int)n->passed, "failed", (int)n->failed,
                                 "skipped", (int)n->skipped, "checks", list);
    struct buffer out = {0};
    json_write_ordered(document, 2, &out);
    puts(out.data);
    buffer_free(&out);
    json_decref(document);
}

static int report(const struct row *rows, size_t count)
{
    struct counts n = {0};
    for (size_t i = 0; i < count; i++)
        if (rows[i].chosen) {
            n.passed += rows[i].verdict.is == KIT_PASS;
            n.failed += rows[i].verdict.is == KIT_FAIL;
            n.skipped += rows[i].verdict.is == KIT_SKIPPED;
        }
    if (f.json)
        print_json(rows, count, &n);
    else
        print_table(rows, count, &n);
    fflush(stdout);
    return n.failed == 0 ? EXIT_CONFORMS : EXIT_FAILED;
}

int conformance_main(int argc, char **argv)
{
    struct error err = {0};
    struct contract *contract = NULL;
    struct runner_description manifest;
    struct row *rows;
    switch (options_parse(&command, argc, argv, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&command, stdout);
        return EXIT_CONFORMS;
    case OPTIONS_ERROR:
        return complain(&err, EXIT_USAGE);
    case OPTIONS_OK:
        break;
    }
    struct kit k = {.engine = f.engine,
                    .weights = f.weights,
                    .resources = f.resources.count > 0 ? f.resources.items : NULL,
                    .trusted = f.trusted};
    const size_t count = list_checks(&k.arena, &rows);
    int status;
    if (!choose(rows, count, &err) || !read_inputs(&k, &contract, &manifest, &err)) {
        status = complain(&err, EXIT_USAGE);
    } else {
        run_checks(&k, rows, count);
        if (interrupt_requested()) {
            error_set(&err, "Interrupted", "the run was stopped by a signal");
            status = complain(&err, EXIT_INTERRUPTED);
        } else {
            status = report(rows, count);
        }
    }
    for (int m = 0; m < KIT_MODES; m++)
        kit_stop(k.peers[m]);
    buffer_free(&k.line);
    contract_free(contract);
    arena_free(&k.arena);
    return status;
}
