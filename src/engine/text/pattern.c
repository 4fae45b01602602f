/* From Oniguruma's dialect to PCRE2's: see pattern.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/pattern.h"
#include "base/arena.h"
#include "base/buffer.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PATTERN_LENGTH_LIMIT = 1 << 16,
    MATCH_LIMIT = 50 * 1000 * 1000,
    HEAP_LIMIT_KIB = 256 << 10,
    JIT_STACK_START = 32 << 10,
    JIT_STACK_LIMIT = 16 << 20
};

struct pattern {
    pcre2_code *code;
};

struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* \s as Unicode defines it, where PCRE2's own has U+180E besides; \w likewise, where PCRE2's own
 * lacks the marks. Outside a class Oniguruma counts six Latin-1 numerals as letters besides. */
#define SPACE "\\p{White_Space}"
#define NOT_SPACE "\\P{White_Space}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD_ALONE WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

/* One translation under way. */
struct translation {
    const char *p; /* what is still to read */
    struct buffer out;
    bool in_class;
    const char *why; /* set: refused */
};

static bool no(struct translation *t, const char *why)
{
    t->why = why;
    return false;
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_letter_or_digit(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static pcre2_code *compile(const char *text, size_t length, uint32_t options, int *code)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* what . and ^ mean in Oniguruma */
    PCRE2_SIZE at;
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)text, length, PCRE2_UTF | options, code, &at, context);
    pcre2_compile_context_free(context);
    return compiled;
}

/* A name alone is a script's extensions in PCRE2 and the script itself in Oniguruma. */
static bool is_script(const char *name, size_t length)
{
    char text[80];
    int code;
    const int n = snprintf(text, sizeof text, "\\p{sc:%.*s}", (int)length, name);
    pcre2_code *compiled = length < 40 ? compile(text, (size_t)n, 0, &code) : NULL;
    pcre2_code_free(compiled);
    return compiled != NULL;
}

/* p is at the letter of \p{...} or \P{...}. */
static bool property(struct translation *t)
{
    const char *p = t->p;
    if (p[1] != '{')
        return no(t, "\\p without braces");
    const char *name = p + 2 + (p[2] == '^');
    const size_t length =
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_- ");
    if (length == 0 || name[length] != '}')
        return no(t, "a property that is not understood");
    buffer_printf(&t->out, "\\%c{%s", *p, p[2] == '^' ? "^" : "");
    if (length > 2 && is_script(name, length))
        buffer_text(&t->out, "sc:");
    buffer_append(&t->out, name, length + 1);
    t->p = name + length + 1;
    return true;
}

/* \xHH, \x{...} and \uHHHH. In UTF-8 text Oniguruma takes \xHH for a byte. */
static bool code_point(struct translation *t)
{
    const char *digits = t->p + 1;
    const bool braces = *t->p == 'x' && *digits == '{';
    const size_t most = braces ? 6 : *t->p == 'x' ? 2 : 4;
    digits += braces;
    size_t n = 0;
    while (n < most && is_hex(digits[n]))
        n++;
    if (n == 0 || (*t->p == 'u' && n != 4) || (braces && digits[n] != '}'))
        return no(t, "a code point that is not understood");
    if (*t->p == 'x' && !braces && n == 2 && digits[0] >= '8')
        return no(t, "\\x of a byte above 7F");
    buffer_printf(&t->out, "\\x{%.*s}", (int)n, digits);
    t->p = digits + n + braces;
    return true;
}

/* p is behind the backslash. */
static bool escape(struct translation *t)
{
    const char c = *t->p;
    const char *same = NULL;
    switch (c) {
    case 's':
        same = SPACE;
        break;
    case 'S':
        same = NOT_SPACE;
        break;
    case 'd':
        same = "\\d";
        break;
    case 'D':
        same = "\\D";
        break;
    case 'w':
        same = t->in_class ? WORD : "[" WORD_ALONE "]";
        break;
    case 'W':
        if (t->in_class)
            return no(t, "\\W inside a class");
        same = "[^" WORD_ALONE "]";
        break;
    case 'n':
        same = "\\n";
        break;
    case 'r':
        same = "\\r";
        break;
    case 't':
        same = "\\t";
        break;
    case 'f':
        same = "\\f";
        break;
    case 'a':
        same = "\\a";
        break;
    case 'e':
        same = "\\e";
        break;
    case 'v':
        same = "\\x{0b}";
        break;
    case 'b':
        if (!t->in_class)
            return no(t, "\\b");
        same = "\\x{08}";
        break;
    case 'A':
    case 'z':
    case 'Z':
        if (t->in_class)
            return no(t, "an anchor inside a class");
        same = c == 'A' ? "\\A" : c == 'z' ? "\\z" : "\\Z";
        break;
    case 'p':
    case 'P':
        return property(t);
    case 'x':
    case 'u':
        return code_point(t);
    case '\0':
        return no(t, "a backslash at the end");
    default:
        if (is_letter_or_digit(c))
            return no(t, "an escape that is not understood");
        if ((unsigned char)c < 0x80)
            buffer_char(&t->out, '\\');
        buffer_char(&t->out, c);
        t->p++;
        return true;
    }
    buffer_text(&t->out, same);
    t->p++;
    return true;
}

static bool class_step(struct translation *t)
{
    const char c = *t->p;
    if (c == '[')
        return no(t, "a class inside a class");
    if (c == '&' && t->p[1] == '&')
        return no(t, "&& inside a class");
    t->in_class = c != ']';
    buffer_char(&t->out, c);
    t->p++;
    return true;
}

/* p is at an opening parenthesis. */
static bool group(struct translation *t, bool first)
{
    static const char *const known[] = {"(?:",  "(?=",  "(?!",  "(?>",
                                        "(?<=", "(?<!", "(?i:", "(?-i:"};
    if (t->p[1] == '*')
        return no(t, "(*");
    if (t->p[1] != '?') {
        buffer_char(&t->out, '(');
        t->p++;
        return true;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (text_starts(t->p, known[i])) {
            buffer_text(&t->out, known[i]);
            t->p += strlen(known[i]);
            return true;
        }
    /* Elsewhere than at the start the two engines disagree on how far (?i) reaches. */
    if (first && text_starts(t->p, "(?i)")) {
        buffer_text(&t->out, "(?i)");
        t->p += 4;
        return true;
    }
    return no(t, "a kind of group that is not understood");
}

/* p is at an opening brace: {n}, {n,}, {n,m}, {,m}, or a brace that stands for itself. */
static bool interval(struct translation *t)
{
    static const char digits[] = "0123456789";
    const char *p = t->p + 1;
    const size_t low = strspn(p, digits);
    const bool comma = p[low] == ',';
    const size_t high = comma ? strspn(p + low + 1, digits) : 0;
    const char *end = p + low + comma + high;
    if (*end != '}' || low + high == 0) {
        buffer_text(&t->out, "\\{");
        t->p++;
        return true;
    }
    if (end[1] == '+') /* greedy and repeated there, possessive here */
        return no(t, "{n,m}+");
    if (!comma && end[1] == '?')
        return no(t, "{n}?");
    buffer_printf(&t->out, "{%s", low ? "" : "0");
    buffer_append(&t->out, p, (size_t)(end + 1 - p));
    t->p = end + 1;
    return true;
}

static bool step(struct translation *t, bool first)
{
    const char c = *t->p;
    if (c == '\\') {
        t->p++;
        return escape(t);
    }
    if (t->in_class)
        return class_step(t);
    switch (c) {
    case '[':
        t->in_class = true;
        buffer_char(&t->out, '[');
        t->p++;
        if (*t->p == '^') {
            buffer_char(&t->out, '^');
            t->p++;
        }
        return *t->p == ']' ? no(t, "']' first in a class") : true;
    case '(':
        return group(t, first);
    case '{':
        return interval(t);
    case '$': /* the end of a line, but not behind a last newline */
        buffer_text(&t->out, "(?:(?=\\n)|(?<!\\n)\\z)");
        t->p++;
        return true;
    default:
        buffer_char(&t->out, c);
        t->p++;
        return true;
    }
}

static bool translate(const char *text, struct translation *t)
{
    t->p = text;
    while (*t->p)
        if (!step(t, t->p == text))
            return false;
    return !t->in_class || no(t, "a class without an end");
}

static bool unsupported(struct error *err, const char *text, const char *why)
{
    error_set(err, "TOKENIZER-UNSUPPORTED", "the pattern cannot be used: %s", why);
    return error_at(err, NULL, NULL, text);
}

bool pattern_new(const char *text, bool literal, struct pattern **out, struct error *err)
{
    struct translation t = {0};
    if (strlen(text) > PATTERN_LENGTH_LIMIT)
        return unsupported(err, "", "it is longer than 65,536 bytes");
    if (!literal && !translate(text, &t)) {
        buffer_free(&t.out);
        return unsupported(err, text, t.why);
    }
    const char *source = literal ? text : t.out.data ? t.out.data : "";
    int code = 0;
    pcre2_code *compiled = compile(
        source, strlen(source),
        literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code);
    buffer_free(&t.out);
    if (!compiled) {
        char why[160];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return unsupported(err, text, why);
    }
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); /* without it matching is slower, not wrong */
    *out = memory_alloc(sizeof **out);
    (*out)->code = compiled;
    return true;
}

void pattern_free(struct pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    free(p);
}

struct matcher *matcher_new(void)
{
    struct matcher *m = memory_alloc(sizeof *m);
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_LIMIT, NULL);
    pcre2_set_match_limit(m->context, MATCH_LIMIT);
    pcre2_set_heap_limit(m->context, HEAP_LIMIT_KIB);
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return m;
}

void matcher_free(struct matcher *m)
{
    if (!m)
        return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

enum pattern_result pattern_find(const struct pattern *p, struct matcher *m, const char *text,
                                 size_t length, size_t start, size_t *match_start,
                                 size_t *match_end)
{
    /* The text is known to be valid: checking it again at every match would be quadratic. */
    const int rc = pcre2_match(p->code, (PCRE2_SPTR)text, length, start, PCRE2_NO_UTF_CHECK,
                               m->data, m->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return PATTERN_NONE;
    if (rc < 0)
        return PATTERN_LIMIT;
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(m->data);
    *match_start = range[0];
    *match_end = range[1];
    return PATTERN_FOUND;
}
