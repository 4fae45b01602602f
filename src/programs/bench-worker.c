/* bench-worker: the engine's program. runtime-worker serves one phase over stdin and stdout, itself
 * or through a resident process, which holds the model over a Unix socket; manifest prints what the
 * runner claims; generate, logits and bench are for people. */
#include "base/buffer.h"
#include "base/child.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/options.h"
#include "base/standard.h"
#include "base/terminal.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/serve/attach.h"
#include "engine/serve/bench.h"
#include "engine/serve/engine_flags.h"
#include "engine/serve/generate.h"
#include "engine/serve/loading.h"
#include "engine/serve/logits.h"
#include "engine/serve/manifest.h"
#include "engine/serve/profile.h"
#include "engine/serve/resident.h"
#include "engine/serve/slowed.h"
#include "engine/serve/token_file.h"
#include "engine/serve/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_RUN = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130, PROMPT_LIMIT = 64 << 20 };

#define COUNT(a) (sizeof(a) / sizeof *(a))

static int fail(int status, const struct error *err)
{
    char line[2048];
    fprintf(stderr, "bench-worker: %s\n", error_line(err, line, sizeof line));
    return status;
}

/* While loading or running. */
static int fail_run(const struct error *err)
{
    return fail(strcmp(err->name, "INTERRUPTED") == 0 ? EXIT_INTERRUPTED : EXIT_RUN, err);
}

/* Success only when everything reached stdout. */
static int finish_output(void)
{
    struct error err;
    return standard_finish(&err) ? EXIT_SUCCESS : fail(EXIT_RUN, &err);
}

/* ---- what several commands share ---- */

static struct loading loading; /* one model a process, or one after the other */

/* Exit code of a command whose flags could not be resolved. */
static int fail_flags(const struct error *err)
{
    return fail(engine_flags_is_usage(err) ? EXIT_USAGE : EXIT_RUN, err);
}

/* Gives a command-line error the contract's name for it (runner-contract.md section 1), from the
 * facts: is the flag known, was it there, had it a value. */
static void name_usage_error(const struct command *c, int argc, char **argv, struct error *err)
{
    const struct option_spec *known = NULL;
    bool was_given = false;
    for (size_t i = 0; i < c->option_count; i++)
        if (strcmp(c->options[i].name, err->field) == 0)
            known = &c->options[i];
    for (int i = 0; i < argc; i++)
        was_given |= err->field[0] && text_starts(argv[i], err->field);
    char name[320];
    struct error was = *err;
    if (!known)
        snprintf(name, sizeof name, "unknownArgument(%s)", err->field[0] ? err->field : err->value);
    else if (!was_given)
        snprintf(name, sizeof name, "%s",
                 strcmp(err->field, "--weights") == 0 ? "missingWeights" : "missingArgument");
    else if (!err->value[0])
        snprintf(name, sizeof name, "missingValue(%s)", err->field);
    else
        snprintf(name, sizeof name, "badValue(%s)", err->field);
    error_set(err, was.name, "%s: %s", name, was.message);
    error_at(err, NULL, was.field[0] ? was.field : NULL, was.value[0] ? was.value : NULL);
}

/* -1: go on. */
static int parse(const struct command *c, int argc, char **argv)
{
    struct error err;
    switch (options_parse(c, argc, argv, NULL, &err)) {
    case OPTIONS_OK:
        return -1;
    case OPTIONS_HELP:
        options_help(c, stdout);
        return finish_output();
    default:
        name_usage_error(c, argc, argv, &err);
        return fail(EXIT_USAGE, &err);
    }
}

static int usage(const char *name, const char *message, const char *field)
{
    struct error err;
    error_set(&err, name, "%s", message);
    error_at(&err, NULL, field, NULL);
    return fail(EXIT_USAGE, &err);
}

/* ---- runtime-worker ---- */

static bool is_option_error(const struct error *err)
{
    static const char *const names[] = {"missingWeights", "emptyRunnerID", "unknownRunner",
                                        "badValue"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (strcmp(err->name, names[i]) == 0)
            return true;
    return false;
}

static const char resident_variable[] = "BENCH_WORKER_RESIDENT_SOCKET";
static const char arithmetic_variable[] = "BENCH_WORKER_ARITHMETIC_HELLO";

static bool is_on(const char *name)
{
    const char *value = engine_environment(name);
    return value && strcmp(value, "0") != 0;
}

/* As if the resident were in here; never in place of it. */
static int attach(const struct worker_options *w)
{
    struct error err = {0};
    const struct attach_options o = {.socket = engine_environment(resident_variable),
                                     .weights = w->weights,
                                     .speculative = w->speculative_protocol != NULL,
                                     .trusted = w->trusted,
                                     .tell_resident = is_on("BENCH_WORKER_RESIDENT_HELLO"),
                                     .tell_arithmetic = is_on(arithmetic_variable)};
    if (!worker_check_options(w, &err))
        return fail(EXIT_USAGE, &err);
    if (!attach_serve(&o, STDIN_FILENO, STDOUT_FILENO, &err))
        return fail(strcmp(err.name, "badValue") == 0 ? EXIT_USAGE : EXIT_RUN, &err);
    return EXIT_SUCCESS;
}

/* -1: loaded and warm. */
static int load_worker(const struct worker_options *o, struct worker **out)
{
    struct error err = {0};
    if (!worker_open(o, out, &err))
        return is_option_error(&err) ? fail(EXIT_USAGE, &err) : fail_run(&err);
    const struct model_info *info = worker_model_info(*out);
    fprintf(stderr, "bench-worker: %s, %d layers, context %lld, %s%s\n", info->model_type,
            info->layers, (long long)info->context, info->choices, slowed_name());
    loading_say(&loading);
    return -1;
}

static int serve(int argc, char **argv)
{
    struct engine_flags flags = engine_flag_defaults;
    struct worker_options o = {.kv_bytes = WORKER_KV_BYTES};
    struct option_list resources = {0};
    const struct option_spec options[] = {WORKER_OPTIONS(&o, &resources), ENGINE_OPTIONS(&flags)};
    const struct command command = {
        .name = "bench-worker runtime-worker",
        .summary = "Serves one phase of Engine Protocol v1, and with a drafter of the block "
                   "protocol: hello first, then one response line on "
                   "stdout for each request line on stdin, until stdin ends.",
        .notes = "exit codes: 0 the input ended, 1 run error, 2 usage.\n"
                 "environment: BENCH_WORKER_YARN_MAGNITUDE and what stands above. "
                 "BENCH_WORKER_RESIDENT_SOCKET=PATH attaches to the resident process that listens "
                 "there and loads nothing; BENCH_WORKER_RESIDENT_HELLO=1 tells of it in the hello "
                 "(with v1.1), BENCH_WORKER_ARITHMETIC_HELLO=1 of the arithmetic.",
        .options = options,
        .option_count = COUNT(options)};
    int status = parse(&command, argc, argv);
    if (status >= 0)
        return status;

    struct error err = {0};
    struct worker *worker;
    o.resources = resources.items;
    o.resource_count = resources.count;
    if (!o.drafter)
        o.drafter = engine_environment("BENCH_WORKER_DRAFTER");
    if (!engine_flags_parse(&flags, &loading, &o.model, &err))
        return fail_flags(&err);
    if (engine_environment(resident_variable))
        return attach(&o);
    if (!engine_flags_resolve(&flags, &loading, &o.model, &err))
        return fail_flags(&err);
    status = load_worker(&o, &worker);
    if (status >= 0)
        return status;
    bool ok = worker_serve(worker, is_on(arithmetic_variable), STDIN_FILENO, STDOUT_FILENO, &err);
    worker_close(worker);
    return ok ? EXIT_SUCCESS : fail(EXIT_RUN, &err);
}

/* ---- resident ---- */

static int resident(int argc, char **argv)
{
    struct engine_flags flags = engine_flag_defaults;
    struct worker_options o = {.kv_bytes = WORKER_KV_BYTES};
    struct option_list resources = {0};
    const char *path = NULL;
    int64_t idle = RESIDENT_IDLE_SECONDS;
    const struct option_spec options[] = {
        {.name = "--socket",
         .kind = OPTION_TEXT,
         .required = true,
         .value_name = "PATH",
         .help =
             "Where to listen: a Unix socket for this user alone. PATH.pid and PATH.ready stand "
             "beside it while it listens.",
         .target = &path},
        {.name = "--idle-timeout",
         .kind = OPTION_INT,
         .value_name = "SECONDS",
         .help = "A session that asks nothing for so long is ended; the process stays. Default: "
                 "1800.",
         .target = &idle,
         .min = 1,
         .max = 86400},
        WORKER_OPTIONS(&o, &resources),
        ENGINE_OPTIONS(&flags),
    };
    const struct command command = {
        .name = "bench-worker resident",
        .summary = "Loads once and serves sessions of Engine Protocol v1 over a Unix socket, one "
                   "after the other, until SIGTERM or SIGINT.",
        .notes = "Workers attach with BENCH_WORKER_RESIDENT_SOCKET=PATH.\n"
                 "exit codes: 0 asked to stop, 1 run error, 2 usage, 130 interrupted while "
                 "loading.",
        .options = options,
        .option_count = COUNT(options)};
    int status = parse(&command, argc, argv);
    if (status >= 0)
        return status;

    struct error err = {0};
    struct worker *worker;
    o.resources = resources.items;
    o.resource_count = resources.count;
    const struct resident_options r = {
        .socket = path, .weights = o.weights, .idle_seconds = (int)idle};
    if (engine_environment(resident_variable))
        return usage("LEG-SERVE-INHERITED-SOCKET", "the environment names a resident already",
                     resident_variable);
    if (!worker_check_options(&o, &err))
        return fail(EXIT_USAGE, &err);
    if (!engine_flags_resolve(&flags, &loading, &o.model, &err))
        return fail_flags(&err);
    if (!resident_check(&r, &err))
        return fail(strcmp(err.name, "badValue") == 0 ? EXIT_USAGE : EXIT_RUN, &err);
    interrupt_install();
    status = load_worker(&o, &worker);
    if (status >= 0)
        return status;
    bool ok = resident_serve(worker, &r, &err);
    worker_close(worker);
    return ok ? EXIT_SUCCESS : fail(EXIT_RUN, &err);
}

/* ---- manifest ---- */

static int manifest(int argc, char **argv)
{
    const char *runner = NULL, *weights = NULL, *backend;
    struct engine_flags flags = engine_flag_defaults;
    bool digest = false;
    const struct option_spec options[] = {
        {.name = "--runner",
         .kind = OPTION_TEXT,
         .value_name = "ID",
         .help = "The runner by its id.",
         .target = &runner},
        {.name = "--weights",
         .kind = OPTION_TEXT,
         .value_name = "DIR",
         .help = "The runner that claims this checkpoint's model_type; reads config.json only.",
         .target = &weights},
        {.name = "--digest",
         .kind = OPTION_SWITCH,
         .help = "Prints the SHA-256 of the canonical bytes instead of the bytes.",
         .target = &digest},
        ENGINE_BACKEND_OPTION(&flags),
    };
    const struct command command = {
        .name = "bench-worker manifest",
        .summary = "Prints a runner's manifest in its canonical bytes. Exactly one of --runner and "
                   "--weights is needed.",
        .notes = "exit codes: 0, 1 run error, 2 usage.",
        .options = options,
        .option_count = COUNT(options)};
    int status = parse(&command, argc, argv);
    if (status >= 0)
        return status;
    if (!runner && !weights)
        return usage("manifestTargetMissing",
                     "manifestTargetMissing: one of --runner and --weights is needed", NULL);
    if (runner && weights)
        return usage("manifestTargetAmbiguous",
                     "manifestTargetAmbiguous: --runner and --weights exclude each other", NULL);

    struct error err = {0};
    const struct runner_manifest *m;
    if (!engine_flags_backend(flags.backend, &backend, &err))
        return fail(EXIT_USAGE, &err);
    if (runner) {
        if (strspn(runner, " \t") == strlen(runner))
            return usage("emptyRunnerID", "emptyRunnerID: --runner needs a runner id", "--runner");
        m = manifest_find_runner(runner, backend);
        if (!m) {
            error_set(&err, "unknownRunner", "unknownRunner(%s): no such runner is registered",
                      runner);
            return fail(EXIT_USAGE, &err);
        }
    } else {
        json_t *config;
        if (!checkpoint_read_config(weights, &config, &err))
            return fail(EXIT_RUN, &err);
        const char *type = json_string_value(json_object_get(config, "model_type"));
        m = type ? manifest_find_model_type(type, backend) : NULL;
        if (!m) {
            error_set(&err, "UNKNOWN-MODEL-TYPE", "no runner claims this model_type");
            error_at(&err, weights, "model_type", type ? type : "(absent)");
        }
        json_decref(config);
        if (!m)
            return fail(EXIT_RUN, &err);
    }
    struct buffer out = {0};
    if (digest) {
        char hex[SHA256_HEX];
        manifest_digest(m, hex);
        buffer_text(&out, hex);
    } else {
        manifest_write(m, &out);
    }
    buffer_char(&out, '\n');
    fwrite(out.data, 1, out.length, stdout);
    buffer_free(&out);
    return finish_output();
}

/* ---- generate ---- */

static void show_progress(void *context, size_t done)
{
    struct progress *p = context;
    progress_update(p, done);
    if (done == p->total)
        progress_end(p);
}

/* False when the reader went away: nothing more need be made. */
static bool show_text(void *context, const char *text, size_t length)
{
    (void)context;
    return fwrite(text, 1, length, stdout) == length && fflush(stdout) == 0;
}

static double rate(size_t count, double seconds)
{
    return seconds > 0 ? (double)count / seconds : 0;
}

static json_t *id_array(const int64_t *wide, const int32_t *narrow, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_integer(wide ? wide[i] : narrow[i]));
    return array;
}

static void print_json(struct model *m, const struct generate_request *request,
                       const struct generate_result *r)
{
    const struct model_info *info = model_get_info(m);
    size_t steps = r->count > 0 ? r->count - 1 : 0;
    json_t *o = json_object();
    json_object_set_new(o, "model_type", json_string(info->model_type));
    json_object_set_new(o, "engine", json_string(compute_name(model_compute(m))));
    json_object_set_new(o, "choices", json_string(info->choices));
    json_object_set_new(o, "prompt_ids", id_array(request->prompt, NULL, request->prompt_count));
    json_object_set_new(o, "token_ids", id_array(NULL, r->tokens, r->count));
    json_object_set_new(o, "text",
                        json_stringn(r->text.length ? r->text.data : "", r->text.length));
    json_object_set_new(o, "stop_reason", json_string(generate_end_name(r->end)));
    json_object_set_new(o, "prefill_seconds", json_real(r->prefill_seconds));
    json_object_set_new(o, "decode_seconds", json_real(r->decode_seconds));
    json_object_set_new(o, "prefill_tokens_per_second",
                        json_real(rate(request->prompt_count, r->prefill_seconds)));
    json_object_set_new(o, "decode_tokens_per_second", json_real(rate(steps, r->decode_seconds)));
    if (request->drafter)
        generate_add_counts(&r->counts, o);
    json_object_set_new(o, "memory", loading_memory_json(info->memory));
    json_object_set_new(o, "bytes_per_token", json_integer((json_int_t)info->bytes_per_token));
    struct buffer out = {0};
    json_write_canonical(o, 0, &out);
    buffer_char(&out, '\n');
    fwrite(out.data, 1, out.length, stdout);
    buffer_free(&out);
    json_decref(o);
}

struct generate_flags {
    const char *weights, *prompt, *prompt_file, *tokens_file, *drafter;
    int64_t count, block;
    bool json;
};

/* The prompt's ids from whichever flag gave it; *path names the file for messages. */
static bool read_prompt(const struct generate_flags *f, const struct tokenizer *t,
                        const struct model_info *info, struct prompt *out, struct error *err)
{
    if (f->tokens_file) {
        struct token_file file;
        if (!token_file_read(f->tokens_file, &file, err))
            return false;
        *out = (struct prompt){file.ids, file.count};
        return tokens_check_range(out->ids, out->count, info->vocab, f->tokens_file, err);
    }
    struct buffer text = {0};
    if (f->prompt)
        buffer_text(&text, f->prompt);
    else if (!file_read(f->prompt_file, PROMPT_LIMIT, &text, err))
        return false;
    bool ok = generate_encode_prompt(t, info, text.length ? text.data : "", text.length, out, err);
    if (!ok)
        error_at(err, f->prompt_file, f->prompt ? "--prompt" : NULL, NULL);
    buffer_free(&text);
    return ok;
}

static int generate_with(struct model *m, struct dflash *drafter, const struct tokenizer *t,
                         const struct generate_flags *f)
{
    struct error err = {0};
    struct prompt prompt = {0};
    struct generate_result r = {0};
    const struct model_info *info = model_get_info(m);
    if (!read_prompt(f, t, info, &prompt, &err)) {
        free(prompt.ids);
        return fail(EXIT_RUN, &err);
    }
    struct progress progress = {.quiet = prompt.count <= (size_t)info->max_rows};
    struct generate_request request = {.prompt = prompt.ids,
                                       .prompt_count = prompt.count,
                                       .count = (size_t)f->count,
                                       .drafter = drafter,
                                       .block = (int)f->block,
                                       .on_prefill = show_progress,
                                       .on_text = f->json ? NULL : show_text,
                                       .context = &progress};
    progress_begin(&progress, "prompt", "tokens", prompt.count);
    bool ok = generate_run(m, t, &request, &r, &err);
    if (!ok && !f->json && r.count > 0) {
        fputc('\n', stdout); /* the text that came before the error ends its line */
        fflush(stdout);
    } else if (ok && f->json) {
        print_json(m, &request, &r);
    } else if (ok) {
        fputc('\n', stdout);
        if (!t) {
            for (size_t i = 0; i < r.count; i++)
                printf("%s%d", i ? " " : "", r.tokens[i]);
            fputc('\n', stdout);
        }
        fflush(stdout);
        fprintf(stderr,
                "prefill %zu tokens, %.1f per second; decode %zu tokens, %.1f per second; %s; %s\n",
                request.prompt_count, rate(request.prompt_count, r.prefill_seconds), r.count,
                rate(r.count > 0 ? r.count - 1 : 0, r.decode_seconds), generate_end_name(r.end),
                compute_name(model_compute(m)));
        if (drafter)
            generate_print_counts(&r.counts, stderr);
    }
    if (ok && !f->json)
        loading_say(&loading);
    int status = !ok                             ? fail(EXIT_RUN, &err)
                 : r.end == SERIAL_END_INTERRUPT ? EXIT_INTERRUPTED
                                                 : finish_output();
    generate_result_free(&r);
    free(prompt.ids);
    return status;
}

static int generate(int argc, char **argv)
{
    struct engine_flags flags = engine_flag_defaults;
    struct generate_flags f = {.count = 128};
    const struct option_spec options[] = {
        {.name = "--weights",
         .kind = OPTION_TEXT,
         .required = true,
         .value_name = "DIR",
         .help = "The checkpoint, with its tokenizer.json.",
         .target = &f.weights},
        {.name = "--prompt",
         .kind = OPTION_TEXT,
         .value_name = "TEXT",
         .help = "The prompt. Text never becomes a control token, whatever it spells.",
         .target = &f.prompt},
        {.name = "--prompt-file",
         .kind = OPTION_TEXT,
         .value_name = "F",
         .help = "The prompt from a UTF-8 file, every byte of it.",
         .target = &f.prompt_file},
        {.name = "--tokens-file",
         .kind = OPTION_TEXT,
         .value_name = "F",
         .help = "The prompt as token ids: a JSON array, or integers between spaces or commas. "
                 "Nothing is put in front.",
         .target = &f.tokens_file},
        {.name = "-n",
         .kind = OPTION_INT,
         .value_name = "N",
         .help = "Tokens to make at most; a token of the stop set ends it sooner. Default: 128.",
         .target = &f.count,
         .min = 1,
         .max = 1 << 24},
        {.name = "--drafter",
         .kind = OPTION_TEXT,
         .value_name = "DIR",
         .help = "A DFlash drafter of this model: blocks are drafted and verified; the tokens stay "
                 "the same.",
         .target = &f.drafter},
        {.name = "--block",
         .kind = OPTION_INT,
         .value_name = "K",
         .help =
             "With --drafter: rows of each round, the last token and K - 1 drafts; 1 drafts "
             "nothing. Default: chosen while it runs from what rounds take and what is accepted.",
         .target = &f.block,
         .min = 1,
         .max = 16},
        {.name = "--json",
         .kind = OPTION_SWITCH,
         .help = "Prints one JSON object at the end instead of text as it comes.",
         .target = &f.json},
        ENGINE_OPTIONS(&flags),
    };
    const struct command command = {
        .name = "bench-worker generate",
        .summary = "Continues a prompt greedily. Exactly one of --prompt, --prompt-file and "
                   "--tokens-file is needed.",
        .notes = "Text goes to stdout as it comes, the speeds to stderr at the end. Ctrl-C ends it "
                 "with what was made.\n"
                 "exit codes: 0, 1 run error, 2 usage, 130 interrupted.",
        .options = options,
        .option_count = COUNT(options)};
    int status = parse(&command, argc, argv);
    if (status >= 0)
        return status;
    int given = (f.prompt != NULL) + (f.prompt_file != NULL) + (f.tokens_file != NULL);
    if (given != 1)
        return usage("USAGE",
                     given ? "only one of --prompt, --prompt-file and --tokens-file may be given"
                           : "one of --prompt, --prompt-file and --tokens-file is needed",
                     NULL);
    if (f.drafter && !f.drafter[0])
        return usage("USAGE", "missingValue(--drafter)", "--drafter");
    if (f.block > 0 && !f.drafter)
        return usage("USAGE", "--block needs --drafter", "--block");

    struct error err = {0};
    struct model_options model_options;
    struct model *m = NULL;
    struct dflash *drafter = NULL;
    struct tokenizer *t = NULL;
    if (!engine_flags_resolve(&flags, &loading, &model_options, &err))
        return fail_flags(&err);
    interrupt_install();
    if (!model_open(f.weights, &model_options, &m, &err))
        return fail_run(&err);
    /* Token ids need no tokenizer, but are shown as text where there is one. */
    struct arena arena = {0};
    bool wanted = !f.tokens_file || file_exists(path_join(&arena, f.weights, "tokenizer.json"));
    arena_free(&arena);
    bool ok = !wanted || generate_open_tokenizer(f.weights, model_get_info(m), &t, &err);
    if (ok && f.drafter)
        ok = generate_open_drafter(f.drafter, m, (int)f.block, &drafter, &err);
    status = ok ? generate_with(m, drafter, t, &f) : fail_run(&err);
    if (t)
        tokenizer_close(t);
    dflash_close(drafter);
    model_close(m);
    return status;
}

/* ---- logits ---- */

static int logits(int argc, char **argv)
{
    struct engine_flags flags = engine_flag_defaults;
    const char *weights = NULL, *tokens_path = NULL, *out = NULL, *activations = "bf16";
    int64_t rows = 0;
    const struct option_spec options[] = {
        {.name = "--weights",
         .kind = OPTION_TEXT,
         .required = true,
         .value_name = "DIR",
         .help = "The checkpoint.",
         .target = &weights},
        {.name = "--tokens-file",
         .kind = OPTION_TEXT,
         .required = true,
         .value_name = "F",
         .help = "Token ids: a JSON array, or integers between spaces or commas.",
         .target = &tokens_path},
        {.name = "--out",
         .kind = OPTION_TEXT,
         .required = true,
         .value_name = "FILE",
         .help = "Receives little-endian float32 [positions, vocabulary]; written whole or not at "
                 "all.",
         .target = &out},
        {.name = "--activations",
         .kind = OPTION_TEXT,
         .value_name = "KIND",
         .help = "bf16 (the model's arithmetic) or f32 (no rounding to bf16, for comparison with "
                 "float32 oracles). Default: bf16.",
         .target = &activations},
        {.name = "--rows",
         .kind = OPTION_INT,
         .value_name = "R",
         .help = "Rows of one forward; the bits do not depend on it. Default: 256.",
         .target = &rows,
         .min = 1,
         .max = 4096},
        ENGINE_OPTIONS(&flags),
    };
    const struct command command = {
        .name = "bench-worker logits",
        .summary = "Writes the logits of every position of a token sequence.",
        .notes = "Without --context the context is as long as the sequence.\n"
                 "exit codes: 0, 1 run error, 2 usage, 130 interrupted.",
        .options = options,
        .option_count = COUNT(options)};
    int status = parse(&command, argc, argv);
    if (status >= 0)
        return status;

    struct error err = {0};
    struct model_options model_options;
    struct token_file tokens;
    struct model *m = NULL;
    if (!engine_flags_resolve(&flags, &loading, &model_options, &err))
        return fail_flags(&err);
    if (!file_check_target(out, &err))
        return fail(EXIT_RUN, &err);
    if (strcmp(activations, "f32") == 0) {
        model_options.compute.activations = ACTIVATIONS_F32;
        if (!compute_check(&model_options.compute, &err))
            return fail(EXIT_RUN, &err);
    } else if (strcmp(activations, "bf16") != 0) {
        error_set(&err, "badValue", "badValue(--activations): it is bf16 or f32");
        error_at(&err, NULL, "--activations", activations);
        return fail(EXIT_USAGE, &err);
    }
    interrupt_install();
    if (!token_file_read(tokens_path, &tokens, &err))
        return fail(EXIT_RUN, &err);
    model_options.max_rows = (int)rows;
    if (model_options.context == 0)
        model_options.context = (int64_t)tokens.count;
    struct progress progress = {0};
    bool ok = model_open(weights, &model_options, &m, &err);
    const struct model_info *info = ok ? model_get_info(m) : NULL;
    ok = ok && tokens_check_range(tokens.ids, tokens.count, info->vocab, tokens_path, &err);
    if (ok) {
        progress_begin(&progress, "logits", "positions", tokens.count);
        ok = logits_write(m, tokens.ids, tokens.count, out, show_progress, &progress, &err);
    }
    if (ok)
        loading_say(&loading);
    if (ok)
        fprintf(stderr, "bench-worker: %zu positions, vocabulary %d, %s\n", tokens.count,
                info->vocab, info->choices);
    model_close(m);
    token_file_free(&tokens);
    if (ok)
        return EXIT_SUCCESS;
    return fail_run(&err);
}

/* ---- bench ---- */

static int bench(int argc, char **argv)
{
    struct engine_flags flags = engine_flag_defaults;
    struct bench_options o = {
        .prompt_tokens = 512, .decode_tokens = 64, .block = 8, .acceptance = -1};
    bool json = false;
    const struct option_spec options[] = {
        {.name = "--weights",
         .kind = OPTION_TEXT,
         .required = true,
         .value_name = "DIR",
         .help = "The checkpoint.",
         .target = &o.weights},
        {.name = "--prompt-tokens",
         .kind = OPTION_INT,
         .value_name = "P",
         .help = "Tokens of the prefill that is measured. Default: 512.",
         .target = &o.prompt_tokens,
         .min = 1,
         .max = 1 << 20},
        {.name = "--decode-tokens",
         .kind = OPTION_INT,
         .value_name = "N",
         .help = "Tokens decoded at each context. Default: 64.",
         .target = &o.decode_tokens,
         .min = 1,
         .max = 1 << 16},
        {.name = "--block",
         .kind = OPTION_INT,
         .value_name = "K",
         .help = "Verification is measured for 1, 2, 4 .. rows up to K. Default: 8.",
         .target = &o.block,
         .min = 1,
         .max = BENCH_MOST_BLOCK},
        {.name = "--drafter",
         .kind = OPTION_TEXT,
         .value_name = "DIR",
         .help = "A DFlash drafter of this model, its weights made up or not: rounds of 2, 4 .. "
                 "rows up to --block, as if its drafts were right as often as "
                 "--simulate-acceptance says, beside serial decoding.",
         .target = &o.drafter},
        {.name = "--simulate-acceptance",
         .kind = OPTION_REAL,
         .value_name = "P",
         .help = "With --drafter: the share of drafts that count as right where those before them "
                 "were, 0 to 1. For timing only, and said so in the result.",
         .target = &o.acceptance},
        {.name = "--no-cold",
         .kind = OPTION_SWITCH,
         .help = "Leaves the page cache as it is: only the warm start is measured.",
         .target = &o.no_cold},
        {.name = "--timeline",
         .kind = OPTION_SWITCH,
         .help = "Adds where a decode step's kernels were when, layer by layer, by stamps of the "
                 "device's clock: with --backend cuda of a build with CUDA_TIMELINE=1, whose "
                 "steps take a little longer.",
         .target = &o.timeline},
        {.name = "--quiet",
         .kind = OPTION_SWITCH,
         .help = "No progress on stderr.",
         .target = &o.quiet},
        {.name = "--json",
         .kind = OPTION_SWITCH,
         .help = "Prints one JSON object instead of tables.",
         .target = &json},
        ENGINE_OPTIONS(&flags),
    };
    struct option_spec own[COUNT(options)]; /* --context means something else here */
    memcpy(own, options, sizeof own);
    for (size_t i = 0; i < COUNT(own); i++)
        if (strcmp(own[i].name, "--context") == 0)
            own[i].help = "Decodes at this context alone. Default: at 512 and at 8192, or as far "
                          "as the model goes.";
    const struct command command = {
        .name = "bench-worker bench",
        .summary = "Measures a checkpoint's speed on this machine, with made-up tokens, beside the "
                   "read bandwidth and the peak of the instructions that it uses.",
        .notes = "environment: MLXFAST_TRACE_KERNELS=1 says on stderr which special paths ran; "
                 "MLXFAST_PROFILE=FILE writes a Chrome trace of a step and a chunk.\n"
                 "exit codes: 0, 1 run error, 2 usage, 130 interrupted.",
        .options = own,
        .option_count = COUNT(own)};
    int status = parse(&command, argc, argv);
    if (status >= 0)
        return status;
    struct error err = {0};
    struct bench_result result;
    if (!engine_flags_resolve(&flags, &loading, &o.model, &err))
        return fail_flags(&err);
    if (!bench_check(&o, &err))
        return fail(EXIT_USAGE, &err);
    o.context = flags.context;
    interrupt_install();
    bool ok = bench_run(&o, &result, &err);
    if (ok && !o.quiet)
        loading_say(&loading);
    if (ok && json) {
        struct buffer out = {0};
        bench_write_json(&result, &out);
        fwrite(out.data, 1, out.length, stdout);
        buffer_free(&out);
    } else if (ok) {
        bench_print(&result);
    }
    bench_result_free(&result);
    if (ok)
        return finish_output();
    return fail_run(&err);
}

/* ---- the program ---- */

static const struct subcommand {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} subcommands[] = {
    {"runtime-worker", serve, "serves one phase over stdin and stdout (also the default)"},
    {"resident", resident, "holds a loaded model for workers that attach"},
    {"manifest", manifest, "prints a runner's manifest or its digest"},
    {"generate", generate, "continues a prompt, for people"},
    {"logits", logits, "writes the logits of every position to a file"},
    {"bench", bench, "measures speed beside what the machine allows"},
};

static void print_overview(FILE *out)
{
    fputs("usage: bench-worker [SUBCOMMAND] [flags]; --help after a subcommand shows its flags\n",
          out);
    for (size_t i = 0; i < COUNT(subcommands); i++)
        fprintf(out, "  %-15s %s\n", subcommands[i].name, subcommands[i].summary);
}

/* MLXFAST_TRACE_KERNELS: one line for each special path, the first time that it runs or could have.
 */
static void print_site(void *context, enum trace_site s, bool ran, const char *reason)
{
    (void)context;
    fprintf(stderr, "mlxfast: fusion %s: %s%s%s\n", ran ? "active" : "inactive", trace_site_name(s),
            reason ? ": " : "", reason ? reason : "");
}

static int observed(int (*run)(int argc, char **argv), int argc, char **argv)
{
    struct error err = {0};
    if (!profile_begin(print_site, &err))
        return fail(EXIT_RUN, &err);
    const int status = run(argc, argv);
    return profile_end(&err) || status != EXIT_SUCCESS ? status : fail(EXIT_RUN, &err);
}

int main(int argc, char **argv)
{
    standard_begin("bench-worker");
    if (argc < 2 || argv[1][0] == '-') {
        bool help = false;
        for (int i = 1; i < argc; i++)
            help |= strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
        if (help) {
            print_overview(stdout);
            fputc('\n', stdout);
        }
        return observed(serve, argc - 1, argv + 1);
    }
    for (size_t i = 0; i < COUNT(subcommands); i++)
        if (strcmp(argv[1], subcommands[i].name) == 0)
            return observed(subcommands[i].run, argc - 2, argv + 2);
    struct error err;
    error_set(&err, "unknownSubcommand",
              "unknownSubcommand(%s): runtime-worker, resident, manifest, generate, logits and "
              "bench are known",
              argv[1]);
    fail(EXIT_USAGE, &err);
    return EXIT_USAGE;
}
