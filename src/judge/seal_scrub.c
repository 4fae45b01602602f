/* Scrubbing: what a text from an engine or the system loses on its way into an artifact
 * (engine-protocol.md section 9, last lines). One pass from left to right; at each word the rules
 * are tried in the order credential, URL, address, path, host. */
#include "judge/seal.h"

#include "base/buffer.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SCRUB_BYTES_MAX = 2048,
    MODEL_TOKEN_DIGITS = 7, /* "token: 5991" is a token of the model, not a secret */
    HOST_NAME_MIN = 3       /* a shorter own name would eat ordinary words */
};
static const char clip_marker[] = "\xe2\x80\xa6[clipped]\xe2\x80\xa6";

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-';
}

static bool is_name(char c)
{
    return is_word(c) || c == '.';
}

/* Length of the run at s whose bytes satisfy is. */
static size_t run(const char *s, bool (*is)(char))
{
    size_t n = 0;
    while (s[n] && is(s[n]))
        n++;
    return n;
}

static bool equals(const char *s, size_t length, const char *word)
{
    return strlen(word) == length && strncasecmp(s, word, length) == 0;
}

static bool is_one_of(const char *s, size_t length, const char *const *words)
{
    for (; *words; words++)
        if (equals(s, length, *words))
            return true;
    return false;
}

/* Start of the last part of an identifier: hf_token, apiToken and API-KEY end in token, Token, KEY.
 */
static size_t last_part(const char *s, size_t length)
{
    size_t i = length;
    while (i > 0 && s[i - 1] != '_' && s[i - 1] != '-') {
        i--;
        if (i > 0 && isupper((unsigned char)s[i]) && islower((unsigned char)s[i - 1]))
            break;
    }
    return i;
}

/* Is the identifier s[0..length) the name of a secret? value is what follows its separator. */
static bool is_credential_key(const char *s, size_t length, const char *value)
{
    static const char *const secrets[] = {
        "secret",      "secrets",    "password",     "passwd",     "passphrase",
        "pwd",         "credential", "credentials",  "cookie",     "authorization",
        "apikey",      "bearer",     "signature",    "jwt",        "passcode",
        "accesstoken", "authtoken",  "refreshtoken", "privatekey", "accesskey",
        "secretkey",   NULL};
    static const char *const key_owners[] = {"api",     "access",     "private", "secret",
                                             "signing", "encryption", "ssh",     "auth",
                                             "account", "license",    NULL};
    size_t at = last_part(s, length);
    if (is_one_of(s + at, length - at, secrets))
        return true;
    if (equals(s + at, length - at, "token")) {
        size_t digits = 0;
        while (isdigit((unsigned char)value[digits]))
            digits++;
        return digits == 0 || digits > MODEL_TOKEN_DIGITS || is_name(value[digits]);
    }
    if (!equals(s + at, length - at, "key") || at == 0)
        return false;
    size_t end = s[at - 1] == '_' || s[at - 1] == '-' ? at - 1 : at;
    size_t owner = last_part(s, end);
    return is_one_of(s + owner, end - owner, key_owners);
}

/* s stands at the start of a word. If it is a credential's name with '=' or ':' behind it (quotes
 * and spaces allowed between), returns the length up to and with the separator. */
static size_t match_credential(const char *s)
{
    size_t name = run(s, is_word), i = name;
    if (name == 0)
        return 0;
    if (s[i] == '"' || s[i] == '\'')
        i++;
    while (s[i] == ' ' || s[i] == '\t')
        i++;
    if (s[i] != '=' && s[i] != ':')
        return 0;
    i++;
    const char *value = s + i;
    while (*value == ' ' || *value == '\t')
        value++;
    return is_credential_key(s, name, value) ? i : 0;
}

static bool is_scheme(char c)
{
    return isalnum((unsigned char)c) || c == '+' || c == '-' || c == '.';
}

static bool is_url_byte(char c)
{
    return (unsigned char)c > 0x20 && c != 0x7f && !strchr("\"'<>`|", c);
}

static size_t match_url(const char *s)
{
    size_t scheme = isalpha((unsigned char)*s) ? run(s, is_scheme) : 0;
    if (scheme == 0 || strncmp(s + scheme, "://", 3) != 0)
        return 0;
    return scheme + 3 + run(s + scheme + 3, is_url_byte);
}

static bool is_mailbox(char c)
{
    return is_name(c) || c == '%' || c == '+';
}

static size_t match_address(const char *s)
{
    size_t user = run(s, is_mailbox);
    if (user == 0 || s[user] != '@')
        return 0;
    size_t host = run(s + user + 1, is_name);
    while (host > 0 && s[user + host] == '.')
        host--; /* the full stop of a sentence */
    return host ? user + 1 + host : 0;
}

static bool is_path_byte(char c)
{
    return (unsigned char)c > 0x20 && c != 0x7f && !strchr("\"'`:,;()<>[]{}|=", c);
}

/* An absolute path, or one below a home. *base and *base_length tell its last part. A path right
 * behind a quote runs to the closing quote, so that spaces inside are covered. */
static size_t match_path(const char *s, char before, const char **base, size_t *base_length)
{
    size_t home = 0, n = 0;
    if (*s == '~') {
        home = 1;
        while (is_word(s[home]))
            home++;
    }
    if (s[home] != '/')
        return 0;
    if (before == '"' || before == '\'' || before == '`') {
        const char *close = strchr(s, before);
        const char *newline = strchr(s, '\n');
        if (close && (!newline || close < newline))
            n = (size_t)(close - s);
    }
    for (bool quoted = n > 0; !quoted;) {
        n += run(s + n, is_path_byte);
        if (s[n] != ' ' || n == 0 || s[n - 1] != '\\')
            break;
        n++; /* an escaped space goes on */
    }
    size_t end = n;
    while (end > 0 && s[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && s[start - 1] != '/')
        start--;
    if (start == end || start == 0)
        return 0; /* slashes only: a fraction or a comment */
    *base = s + start;
    *base_length = end - start;
    return n;
}

static size_t match_ipv4(const char *s, bool *loopback)
{
    size_t n = 0;
    for (int part = 0; part < 4; part++) {
        int value = 0, digits = 0;
        if (part && s[n++] != '.')
            return 0;
        while (isdigit((unsigned char)s[n]) && digits < 4) {
            value = 10 * value + (s[n++] - '0');
            digits++;
        }
        if (digits == 0 || digits > 3 || value > 255)
            return 0;
        if (part == 0)
            *loopback = value == 127;
    }
    /* More parts make a version number, letters a name. */
    return is_word(s[n]) || (s[n] == '.' && isdigit((unsigned char)s[n + 1])) ? 0 : n;
}

static bool is_ipv6_byte(char c)
{
    return isxdigit((unsigned char)c) || c == ':';
}

static size_t match_ipv6(const char *s, bool *loopback)
{
    size_t n = run(s, is_ipv6_byte), colons = 0, digits = 0, doubled = 0;
    for (size_t i = 0; i < n; i++) {
        colons += s[i] == ':';
        digits += s[i] != ':';
        doubled += i > 0 && s[i] == ':' && s[i - 1] == ':';
    }
    *loopback = n == 3 && strncmp(s, "::1", 3) == 0;
    bool shape = (colons >= 2 && doubled == 1) || (colons >= 5 && doubled == 0);
    return digits && shape && !is_name(s[n]) ? n : 0;
}

/* The last labels that make a dotted name a host. Two-letter ones count unless files end so. */
static bool is_host_ending(const char *s, size_t length)
{
    static const char *const endings[] = {
        "com",   "net",         "org",      "edu",      "gov",  "mil",  "int",    "info",
        "biz",   "cloud",       "dev",      "app",      "tech", "site", "online", "xyz",
        "local", "localdomain", "internal", "intranet", "lan",  "corp", "home",   "arpa",
        "test",  "example",     "invalid",  "cluster",  "svc",  NULL};
    static const char *const file_endings[] = {"so", "py", "sh", "rs", "md", "cc", "pl", "ps",
                                               "js", "ts", "hs", "cu", "ml", "mm", "gz", "xz",
                                               "db", "rb", "go", "cs", "ko", "la", "in", "am",
                                               "ac", "id", "is", "it", "bz", "hh", "7z", NULL};
    if (length == 2)
        return isalpha((unsigned char)s[0]) && isalpha((unsigned char)s[1]) &&
               !is_one_of(s, length, file_endings);
    return is_one_of(s, length, endings);
}

/* This machine's own name, whole or up to its first dot. */
static bool is_own_name(const char *s, size_t length)
{
    char name[256];
    if (gethostname(name, sizeof name) != 0)
        return false;
    name[sizeof name - 1] = '\0';
    if (strcasecmp(name, "localhost") == 0)
        return false;
    size_t first = strcspn(name, ".");
    return (length >= HOST_NAME_MIN && equals(s, length, name)) ||
           (length >= HOST_NAME_MIN && length == first && strncasecmp(s, name, first) == 0);
}

static size_t match_host(const char *s, bool *loopback)
{
    size_t n = match_ipv4(s, loopback);
    if (n == 0)
        n = match_ipv6(s, loopback);
    if (n)
        return n;
    n = run(s, is_name);
    while (n > 0 && s[n - 1] == '.')
        n--;
    if (n == 0)
        return 0;
    *loopback = equals(s, n, "localhost") || equals(s, n, "localhost.localdomain");
    if (*loopback || is_own_name(s, n))
        return n;
    size_t dot = n;
    while (dot > 0 && s[dot - 1] != '.')
        dot--;
    bool dotted = dot > 1 && isalnum((unsigned char)*s) && !isdigit((unsigned char)s[dot]);
    return dotted && is_host_ending(s + dot, n - dot) ? n : 0;
}

/* One character as it may stand in an artifact; returns how many bytes were read. */
static size_t put_character(const char *s, struct buffer *out)
{
    int n = utf8_sequence((const uint8_t *)s, strnlen(s, 4));
    bool control = n > 0 && ((unsigned char)*s < 0x20 || *s == 0x7f ||
                             (n == 2 && (unsigned char)s[0] == 0xc2 && (unsigned char)s[1] < 0xa0));
    if (n > 0 && !control) {
        buffer_append(out, s, (size_t)n);
        return (size_t)n;
    }
    size_t bytes = n > 0 ? (size_t)n : 1;
    for (size_t i = 0; i < bytes; i++)
        buffer_printf(out, "\\x%02x", (unsigned char)s[i]);
    return bytes;
}

static void put_plain(const char *s, size_t length, struct buffer *out)
{
    for (size_t i = 0; i < length;)
        i += put_character(s + i, out);
}

/* What the rules make of the word that starts at s; 0: it is an ordinary word. */
static size_t scrub_word(const char *s, char before, struct buffer *out)
{
    const char *base = NULL;
    size_t n, base_length = 0;
    bool loopback = false;
    if ((n = match_credential(s))) {
        put_plain(s, n, out);
        buffer_text(out, "<redacted>");
        return n + strcspn(s + n, "\n");
    }
    if ((n = match_url(s))) {
        buffer_text(out, "<url>");
        return n;
    }
    if ((n = match_address(s))) {
        buffer_text(out, "<user@host>");
        return n;
    }
    if ((n = match_path(s, before, &base, &base_length))) {
        buffer_text(out, "<path>/");
        put_plain(base, base_length, out);
        return n;
    }
    if ((n = match_host(s, &loopback))) {
        if (loopback)
            put_plain(s, n, out);
        else
            buffer_text(out, "<host>");
    }
    return n;
}

/* Keeps head and tail around the marker, each cut between characters. */
static void clip(struct buffer *out)
{
    if (out->length <= SCRUB_BYTES_MAX)
        return;
    size_t room = SCRUB_BYTES_MAX - strlen(clip_marker);
    size_t head = room / 2, tail = out->length - (room - head);
    while (head > 0 && ((unsigned char)out->data[head] & 0xc0) == 0x80)
        head--;
    while (tail < out->length && ((unsigned char)out->data[tail] & 0xc0) == 0x80)
        tail++;
    struct buffer clipped = {0};
    buffer_append(&clipped, out->data, head);
    buffer_text(&clipped, clip_marker);
    buffer_append(&clipped, out->data + tail, out->length - tail);
    buffer_clear(out);
    buffer_append(out, clipped.data, clipped.length);
    buffer_free(&clipped);
}

void seal_scrub(const char *text, struct buffer *out)
{
    buffer_clear(out);
    buffer_text(out, "");
    char before = ' ';
    for (const char *s = text; *s;) {
        size_t n = 0;
        if (!is_name(before) && before != '/' && before != '@')
            n = scrub_word(s, before, out);
        if (n == 0)
            n = put_character(s, out);
        before = s[n - 1];
        s += n;
    }
    clip(out);
}
