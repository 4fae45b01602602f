/* Goldens: reading, pins, and the order of the checks (goldens.md sections 1 and 4). */
#include "judge/golden_draft.h"

#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    GOLDEN_BYTES_MAX = 256 << 20,
    GOLDEN_DEPTH_MAX = 16 /* the deepest field stands at 6 */
};

bool golden_refuse(const struct golden *g, struct error *err, const char *field, const char *value,
                   const char *format, ...)
{
    char text[sizeof err->message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    error_set(err, "GOLDEN-INVALID", "%s", text);
    return error_at(err, g->path, field, value);
}

static bool check_pin(const struct golden *g, const struct golden_rules *rules, struct error *err)
{
    if (!rules->pin_sha256)
        return true;
    if (g->bytes != rules->pin_bytes) {
        error_set(err, "GOLDEN-PIN-MISMATCH",
                  "correctness golden byte count mismatch: expected %llu, actual %llu",
                  (unsigned long long)rules->pin_bytes, (unsigned long long)g->bytes);
        return error_at(err, g->path, NULL, NULL);
    }
    const char *pin = rules->pin_sha256;
    while (isspace((unsigned char)*pin))
        pin++;
    size_t length = strlen(pin);
    while (length && isspace((unsigned char)pin[length - 1]))
        length--;
    if (length == SHA256_HEX - 1 && strncasecmp(pin, g->sha256, length) == 0)
        return true;
    error_set(err, "GOLDEN-PIN-MISMATCH",
              "correctness golden sha256 mismatch: expected %.*s, actual %s", (int)length, pin,
              g->sha256);
    return error_at(err, g->path, NULL, NULL);
}

static bool check_rules(const struct golden *g, const struct golden_rules *rules, struct error *err)
{
    if (rules->required_steps > 0 && rules->required_prompt_tokens > 0 && rules->vocab_size > 0 &&
        rules->required_decode_steps >= 0)
        return true;
    return golden_refuse(g, err, NULL, NULL,
                         "required steps, required prompt tokens and vocabulary must be positive");
}

static const char *prompt_name(struct arena *a, const char *path)
{
    static const char *const endings[] = {".golden.json", ".json"};
    const char *name = path_basename(path);
    for (int i = 0; i < 2; i++)
        if (text_ends(name, endings[i]))
            return arena_strndup(a, name, strlen(name) - strlen(endings[i]));
    return arena_strdup(a, name);
}

bool golden_parse(const char *path, const char *data, size_t length,
                  const struct golden_rules *rules, struct golden **out, struct error *err)
{
    struct golden *g = memory_alloc(sizeof *g);
    struct golden_draft draft = {.golden = g};
    json_t *root = NULL;
    *out = NULL;
    g->path = arena_strdup(&g->arena, path);
    g->prompt_name = prompt_name(&g->arena, path);
    g->bytes = length;
    sha256_hex(data, length, g->sha256);
    bool ok = check_pin(g, rules, err) && check_rules(g, rules, err);
    if (ok) {
        root = json_parse_strict(data, length, GOLDEN_DEPTH_MAX, g->path, err);
        if (!root && err)
            text_copy(err->name, sizeof err->name, "GOLDEN-INVALID");
    }
    ok = root && golden_decode(&draft, root, err) && golden_check(&draft, rules, err);
    json_decref(root);
    if (!ok) {
        golden_free(g);
        return false;
    }
    *out = g;
    return true;
}

bool golden_load(const char *path, const struct golden_rules *rules, struct golden **out,
                 struct error *err)
{
    struct buffer bytes = {0};
    *out = NULL;
    bool ok = file_read(path, GOLDEN_BYTES_MAX, &bytes, err) &&
              golden_parse(path, bytes.data ? bytes.data : "", bytes.length, rules, out, err);
    buffer_free(&bytes);
    return ok;
}

void golden_free(struct golden *g)
{
    if (!g)
        return;
    arena_free(&g->arena);
    free(g);
}

size_t golden_gate_case_count(const struct golden *g)
{
    return g->case_count + g->anchor_count + g->free_run_count + g->behavior_count;
}
