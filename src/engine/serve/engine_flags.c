#include "engine/serve/engine_flags.h"

#include "base/buffer.h"
#include "base/number.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

const char *engine_environment(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

/* A flag's value, else that of the first of two variables that is set; *from says whose it is. */
static const char *choose(const char *flag, const char *flag_name, const char *const variables[2],
                          const char **from)
{
    *from = flag_name;
    const char *value = flag;
    for (int i = 0; i < 2 && !value; i++) {
        value = engine_environment(variables[i]);
        *from = value ? variables[i] : flag_name;
    }
    return value;
}

static const char *choose_backend(const char *flag, const char **from)
{
    static const char *const variables[] = {"MLXFAST_BACKEND", "BENCH_WORKER_BACKEND"};
    return choose(flag, "--backend", variables, from);
}

/* What compute says of the flag may be said of a variable. */
static bool check_backend(const struct compute_options *o, const char *from, struct error *err)
{
    if (compute_check(o, err))
        return true;
    if (strcmp(err->field, "--backend") == 0)
        error_at(err, NULL, from, o->backend);
    return false;
}

bool engine_flags_backend(const char *flag, const char **out, struct error *err)
{
    const char *from;
    struct error ours = {0};
    struct compute_options o = {.backend = choose_backend(flag, &from)};
    *out = o.backend ? o.backend : "cpu";
    if (check_backend(&o, from, &ours) || !text_starts(ours.name, "BACKEND-"))
        return true;
    *err = ours;
    return false;
}

static bool resolve_arithmetic(const char *flag, enum arithmetic *out, struct error *err)
{
    static const char *const variables[] = {"MLXFAST_ARITHMETIC", "BENCH_WORKER_ARITHMETIC"};
    const char *from, *value = choose(flag, "--arithmetic", variables, &from);
    *out = value && strcmp(value, "fast") == 0 ? ARITHMETIC_FAST : ARITHMETIC_STRICT;
    if (!value || *out == ARITHMETIC_FAST || strcmp(value, "strict") == 0)
        return true;
    error_set(err, "badValue", "badValue(%s): it is strict or fast", from);
    return error_at(err, NULL, from, value);
}

static bool resolve_yarn(const char *flag, enum yarn_magnitude *out, struct error *err)
{
    const char *yarn = flag, *from = "--yarn-magnitude";
    if (!yarn) {
        from = "BENCH_WORKER_YARN_MAGNITUDE";
        yarn = getenv(from);
    }
    *out = yarn && strcmp(yarn, "derived") == 0 ? YARN_DERIVED : YARN_ATTENTION_FACTOR;
    if (!yarn || *out == YARN_DERIVED || strcmp(yarn, "attention_factor") == 0)
        return true;
    error_set(err, "badValue", "badValue(%s): it is attention_factor or derived", from);
    return error_at(err, NULL, from, yarn);
}

static bool resolve_threads(int64_t flag, int *out, struct error *err)
{
    static const char *const variables[] = {"MLXFAST_THREADS", "BENCH_WORKER_THREADS"};
    int64_t threads = flag;
    for (size_t i = 0; i < COUNT(variables) && threads < 0; i++) {
        const char *wanted = engine_environment(variables[i]);
        if (wanted && !number_int64(wanted, 0, 1024, &threads)) {
            error_set(err, "badValue", "badValue(%s): a number from 0 to 1024", variables[i]);
            return error_at(err, NULL, variables[i], wanted);
        }
    }
    *out = threads < 0 ? 0 : (int)threads;
    return true;
}

bool engine_flags_parse(const struct engine_flags *f, struct loading *loading,
                        struct model_options *out, struct error *err)
{
    const char *from;
    enum memory_profile profile;
    *out = (struct model_options){.context = f->context};
    out->compute.backend = choose_backend(f->backend, &from);
    out->compute.cpu = f->cpu; /* NULL: the backend looks into the environment */
    if (!resolve_yarn(f->yarn, &out->yarn_magnitude, err) ||
        !resolve_threads(f->threads, &out->compute.threads, err) ||
        !resolve_arithmetic(f->arithmetic, &out->compute.arithmetic, err) ||
        !loading_choose_profile(f->memory, &profile, err))
        return false;
    out->memory = loading_request(loading, profile);
    return true;
}

bool engine_flags_resolve(const struct engine_flags *f, struct loading *loading,
                          struct model_options *out, struct error *err)
{
    const char *from;
    choose_backend(f->backend, &from);
    return engine_flags_parse(f, loading, out, err) && check_backend(&out->compute, from, err);
}

bool engine_flags_is_usage(const struct error *err)
{
    static const char *const names[] = {"badValue", "BACKEND-UNKNOWN", "BACKEND-NOT-BUILT"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (strcmp(err->name, names[i]) == 0)
            return true;
    return false;
}
