#include "judge/launch.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *const *launch_argv(struct arena *a, const struct launch_options *o)
{
    size_t count = 0;
    while (o->resources != NULL && o->resources[count] != NULL)
        count++;
    const char **argv = arena_array(a, count * 2 + 10, sizeof *argv);
    size_t n = 0;
    argv[n++] = o->engine;
    argv[n++] = "runtime-worker";
    argv[n++] = "--weights";
    argv[n++] = o->weights;
    if (o->drafter != NULL) {
        argv[n++] = "--drafter";
        argv[n++] = o->drafter;
    }
    if (o->trusted)
        argv[n++] = "--trusted";
    for (size_t i = 0; i < count; i++) {
        argv[n++] = "--resource";
        argv[n++] = o->resources[i];
    }
    if (o->speculative_v1_1) {
        argv[n++] = "--speculative-protocol";
        argv[n++] = "v1.1";
    }
    return argv;
}

/* engine-protocol.md section 9, "Environment". */
static const char *const allowed_names[] = {"HF_HUB_OFFLINE", "HOME",
                                            "LANG",           "LOGNAME",
                                            "PATH",           "SHELL",
                                            "SSH_AUTH_SOCK",  "TERM",
                                            "TMPDIR",         "TRANSFORMERS_OFFLINE",
                                            "USER",           "__CF_USER_TEXT_ENCODING"};
static const char *const allowed_prefixes[] = {
    "BENCH_WORKER_", "DARKBLOOM_", "DS4_", "DYLD_", "LC_", "METAL_", "MLX_", "MTL_", "VLLM_"};

bool launch_environment_allows(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof allowed_names / sizeof *allowed_names; i++)
        if (strlen(allowed_names[i]) == length && memcmp(name, allowed_names[i], length) == 0)
            return true;
    for (size_t i = 0; i < sizeof allowed_prefixes / sizeof *allowed_prefixes; i++) {
        const size_t n = strlen(allowed_prefixes[i]);
        if (length >= n && memcmp(name, allowed_prefixes[i], n) == 0)
            return true;
    }
    return false;
}

const char *const *launch_environment(struct arena *a, char *const *parent,
                                      const char *yarn_magnitude)
{
    static const char yarn[] = "BENCH_WORKER_YARN_MAGNITUDE";
    size_t count = 0;
    while (parent != NULL && parent[count] != NULL)
        count++;
    const char **env = arena_array(a, count + 4, sizeof *env);
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        const char *equals = strchr(parent[i], '=');
        if (equals == NULL)
            continue;
        const size_t length = (size_t)(equals - parent[i]);
        if (!launch_environment_allows(parent[i], length))
            continue;
        if (yarn_magnitude != NULL && length == sizeof yarn - 1 &&
            memcmp(parent[i], yarn, length) == 0)
            continue;
        env[n++] = arena_strdup(a, parent[i]);
    }
    env[n++] = "MLXFAST_USE_RUNTIME_WORKER=0";
    env[n++] = "BENCH_WORKER_ARITHMETIC_HELLO=1";
    if (yarn_magnitude != NULL)
        env[n++] = arena_printf(a, "%s=%s", yarn, yarn_magnitude);
    return env;
}

/* Whether one of the texts sets the name that this one sets. */
static bool sets_again(const char *const *more, const char *text)
{
    const size_t length = strcspn(text, "=");
    for (size_t i = 0; more[i] != NULL; i++)
        if (strncmp(more[i], text, length) == 0 && more[i][length] == '=')
            return true;
    return false;
}

const char *const *launch_environment_add(struct arena *a, const char *const *base,
                                          const char *const *more)
{
    if (more == NULL)
        return base;
    size_t count = 0, added = 0;
    while (base[count] != NULL)
        count++;
    while (more[added] != NULL)
        added++;
    const char **env = arena_array(a, count + added + 1, sizeof *env);
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        if (!sets_again(more, base[i]))
            env[n++] = base[i];
    for (size_t i = 0; i < added; i++)
        if (!sets_again(more + i + 1, more[i])) /* the last of several is meant */
            env[n++] = more[i];
    return env;
}

const char *const *launch_environment_arithmetic(struct arena *a, const char *const *base,
                                                 const char *arithmetic)
{
    static const char *const strict[] = {"BENCH_WORKER_ARITHMETIC=strict", NULL};
    const bool wanted = arithmetic != NULL && strcmp(arithmetic, "strict") == 0;
    return wanted ? launch_environment_add(a, base, strict) : base;
}

bool launch_resource_valid(const char *argument, size_t *name_length)
{
    size_t n = 0;
    while (isalnum((unsigned char)argument[n]) || argument[n] == '.' || argument[n] == '_' ||
           argument[n] == '-')
        n++;
    *name_length = n;
    return n > 0 && argument[n] == '=' && argument[n + 1] != '\0';
}

/* The tail is a queue of lines: the oldest go when the sum of bytes or, so that a flood of empty
 * lines is bounded too, the number of lines passes its limit. */
struct log_line {
    struct log_line *next;
    size_t length;
    char text[];
};
struct launch_log {
    pthread_mutex_t lock;
    bool echo;
    struct log_line *first, *last;
    size_t bytes, lines;
    unsigned long dropped;
    struct buffer shown;
};

struct launch_log *launch_log_new(bool echo)
{
    struct launch_log *log = memory_alloc(sizeof *log);
    pthread_mutex_init(&log->lock, NULL);
    log->echo = echo;
    return log;
}

static bool holds_word(const char *line, size_t length, const char *word)
{
    const size_t n = strlen(word);
    for (size_t i = 0; i + n <= length; i++)
        if (strncasecmp(line + i, word, n) == 0)
            return true;
    return false;
}

void launch_redact(const char *line, size_t length, struct buffer *out)
{
    if (holds_word(line, length, "expected") || holds_word(line, length, "actual")) {
        buffer_text(out, "token-validation-failed");
        return;
    }
    /* Control characters could rewrite the person's terminal: C0, DEL, and C1 (U+0080 to U+009F),
     * which UTF-8 spells C2 80 to C2 9F. */
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)line[i];
        const unsigned char next = i + 1 < length ? (unsigned char)line[i + 1] : 0;
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            buffer_printf(out, "\\x%02x", c);
        else if (c == 0xc2 && next >= 0x80 && next <= 0x9f) {
            buffer_printf(out, "\\x%02x\\x%02x", c, next);
            i++;
        } else
            buffer_char(out, (char)c);
    }
}

void launch_log_line(void *context, const char *line, size_t length)
{
    struct launch_log *log = context;
    struct buffer shown = {0};
    launch_redact(line, length, &shown);
    pthread_mutex_lock(&log->lock);
    if (log->echo)
        fprintf(stderr, "mlxfast-worker: %.*s\n", (int)shown.length,
                shown.data != NULL ? shown.data : "");
    const size_t kept = shown.length < LAUNCH_TAIL_LINE ? shown.length : LAUNCH_TAIL_LINE;
    struct log_line *entry = memory_alloc(sizeof *entry + kept + 1);
    entry->length = kept;
    if (kept > 0)
        memcpy(entry->text, shown.data, kept);
    if (log->last != NULL)
        log->last->next = entry;
    else
        log->first = entry;
    log->last = entry;
    log->bytes += kept;
    log->lines++;
    while (log->bytes > LAUNCH_TAIL_LIMIT || log->lines > LAUNCH_TAIL_LINES) {
        struct log_line *old = log->first;
        log->first = old->next;
        log->bytes -= old->length;
        log->lines--;
        log->dropped++;
        free(old);
    }
    pthread_mutex_unlock(&log->lock);
    buffer_free(&shown);
}

const char *launch_log_tail(struct launch_log *log)
{
    pthread_mutex_lock(&log->lock);
    buffer_clear(&log->shown);
    if (log->first == NULL) {
        buffer_text(&log->shown, "no worker stderr was emitted");
    } else {
        if (log->dropped > 0)
            buffer_printf(&log->shown, "[%lu older worker stderr line(s) dropped] ", log->dropped);
        buffer_text(&log->shown, "worker stderr tail: ");
        for (const struct log_line *l = log->first; l != NULL; l = l->next) {
            if (l != log->first)
                buffer_text(&log->shown, " | ");
            buffer_append(&log->shown, l->text, l->length);
        }
    }
    pthread_mutex_unlock(&log->lock);
    return log->shown.data;
}

void launch_log_free(struct launch_log *log)
{
    if (log == NULL)
        return;
    for (struct log_line *l = log->first; l != NULL;) {
        struct log_line *next = l->next;
        free(l);
        l = next;
    }
    buffer_free(&log->shown);
    pthread_mutex_destroy(&log->lock);
    free(log);
}
