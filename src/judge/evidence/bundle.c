/* The archive: ustar headers of one spelling. A header is read by its name and size, and then must
 * be what those two give, byte for byte; what may go wrong first has its own sentence. */
#include "judge/evidence/bundle.h"

#include "base/sha256.h"

#include <stdio.h>
#include <string.h>

enum {
    BLOCK = 512,
    NAME_BYTES = 100,
    SIZE_AT = 124,
    SIZE_DIGITS = 11,
    SUM_AT = 148,
    TYPE_AT = 156
};
/* Two zero blocks end a tar file. */
enum { END_BYTES = 2 * BLOCK };

const struct bundle_member *bundle_find(const struct bundle *b, const char *name)
{
    for (size_t i = 0; i < b->count; i++)
        if (strcmp(b->members[i].name, name) == 0)
            return &b->members[i];
    return NULL;
}

bool bundle_knows(const char *name)
{
    static const char *const names[] = {BUNDLE_SUMS,      BUNDLE_CALIBRATION, BUNDLE_CONTRACT,
                                        BUNDLE_ENGINE,    BUNDLE_INTEGRITY,   BUNDLE_LOG,
                                        BUNDLE_KEY,       BUNDLE_SCORE,       BUNDLE_SIDECAR,
                                        BUNDLE_STATEMENT, BUNDLE_SIGNATURE,   BUNDLE_RESULTS};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    const size_t head = sizeof BUNDLE_GOLDENS - 1;
    if (strlen(name) != head + 7 || strncmp(name, BUNDLE_GOLDENS, head) != 0 ||
        strcmp(name + head + 2, ".json") != 0)
        return false;
    const int tens = name[head] - '0', ones = name[head + 1] - '0';
    const int number = 10 * tens + ones;
    return tens >= 0 && tens <= 9 && ones >= 0 && ones <= 9 && number >= 1 && number <= 64;
}

void bundle_add(struct bundle *b, const char *name, const void *data, size_t length)
{
    size_t at = b->count++;
    for (; at > 0 && strcmp(b->members[at - 1].name, name) > 0; at--)
        b->members[at] = b->members[at - 1];
    b->members[at] = (struct bundle_member){name, data, length};
}

void bundle_render_sums(const struct bundle *b, struct buffer *out)
{
    char hex[SHA256_HEX];
    buffer_text(out, "");
    for (size_t i = 0; i < b->count; i++) {
        if (strcmp(b->members[i].name, BUNDLE_SUMS) == 0)
            continue;
        sha256_hex(b->members[i].data, b->members[i].length, hex);
        buffer_printf(out, "%s  %s\n", hex, b->members[i].name);
    }
    sha256_hex(out->data, out->length, hex);
    buffer_printf(out, "# sha256 of the lines above: %s\n", hex);
}

/* ---- Writing ---- */

static void make_header(const char *name, size_t size, char out[BLOCK])
{
    unsigned sum = 0;
    memset(out, 0, BLOCK);
    memcpy(out, name, strlen(name));
    memcpy(out + 100, "0000644", 8);
    memcpy(out + 108, "0000000", 8); /* owner */
    memcpy(out + 116, "0000000", 8);
    snprintf(out + SIZE_AT, SIZE_DIGITS + 1, "%011zo", size);
    memcpy(out + 136, "00000000000", 12); /* time */
    memset(out + SUM_AT, ' ', 8);
    out[TYPE_AT] = '0';
    memcpy(out + 257,
           "ustar\0"
           "00",
           8);
    for (size_t i = 0; i < BLOCK; i++)
        sum += (unsigned char)out[i];
    snprintf(out + SUM_AT, 7, "%06o", sum);
    out[SUM_AT + 7] = ' ';
}

static size_t padding(size_t size)
{
    return (BLOCK - size % BLOCK) % BLOCK;
}

void bundle_write(const struct bundle *b, struct buffer *out)
{
    static const char zeros[END_BYTES];
    char header[BLOCK];
    for (size_t i = 0; i < b->count; i++) {
        const struct bundle_member *m = &b->members[i];
        make_header(m->name, m->length, header);
        buffer_append(out, header, BLOCK);
        buffer_append(out, m->data, m->length);
        buffer_append(out, zeros, padding(m->length));
    }
    buffer_append(out, zeros, END_BYTES);
}

/* ---- Reading ---- */

struct reader {
    const char *file, *data;
    size_t length, at;
    struct arena *arena;
    struct bundle *out;
    struct error *err;
};

/* "member 3 (contract.json), at byte 4096: <what>" */
static bool refuse(struct reader *r, const char *name, const char *what)
{
    const size_t n = r->out->count;
    if (name && *name)
        error_set(r->err, "BUNDLE-INVALID", "member %zu (%s), at byte %zu: %s", n + 1, name, r->at,
                  what);
    else
        error_set(r->err, "BUNDLE-INVALID", "behind member %zu (%s), at byte %zu: %s", n,
                  n ? r->out->members[n - 1].name : "none", r->at, what);
    return error_at(r->err, r->file, NULL, NULL);
}

static bool all_zero(const char *data, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (data[i] != 0)
            return false;
    return true;
}

static const char *kind_of(char type)
{
    switch (type) {
    case '1':
        return "a hard link; only plain files may stand in a bundle";
    case '2':
        return "a symbolic link; only plain files may stand in a bundle";
    case '3':
    case '4':
    case '6':
        return "a device or pipe; only plain files may stand in a bundle";
    case '5':
        return "a folder; only plain files may stand in a bundle";
    default:
        return "an entry of another kind; only plain files may stand in a bundle";
    }
}

static bool climbs(const char *name)
{
    if (*name == '/')
        return true;
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0'))
            return true;
    }
    return false;
}

static bool read_size(const char *field, size_t *out)
{
    *out = 0;
    for (size_t i = 0; i < SIZE_DIGITS; i++) {
        if (field[i] < '0' || field[i] > '7')
            return false;
        *out = *out * 8 + (size_t)(field[i] - '0');
    }
    return field[SIZE_DIGITS] == '\0';
}

static bool check_name(struct reader *r, const char *name)
{
    const struct bundle *b = r->out;
    if (climbs(name))
        return refuse(r, name, "the path climbs out of where the bundle lies");
    if (bundle_find(b, name))
        return refuse(r, name, "a second member of this name");
    if (!bundle_knows(name))
        return refuse(r, name, "no bundle has a member of this name");
    if (b->count > 0 && strcmp(b->members[b->count - 1].name, name) > 0)
        return refuse(r, name, "the members are not in the order of their names");
    return b->count < BUNDLE_MEMBERS_MOST || refuse(r, name, "more members than a bundle may have");
}

static bool read_member(struct reader *r)
{
    const char *header = r->data + r->at;
    char expected[BLOCK];
    size_t size;
    const char *name = arena_strndup(r->arena, header, strnlen(header, NAME_BYTES - 1));
    if (*name == '\0' || memcmp(header + 257, "ustar", 6) != 0)
        return refuse(r, name, "no header of a tar file (ustar), or a changed one");
    if (header[TYPE_AT] != '0')
        return refuse(r, name, kind_of(header[TYPE_AT]));
    if (!check_name(r, name))
        return false;
    if (!read_size(header + SIZE_AT, &size))
        return refuse(r, name, "the size is no octal number of eleven digits");
    if (size > BUNDLE_MEMBER_BYTES_MOST)
        return refuse(r, name, "larger than a member may be (256 MiB)");
    make_header(name, size, expected);
    if (memcmp(header, expected, BLOCK) != 0)
        return refuse(r, name, "the header is not the one of this name and size: it was changed");
    const size_t left = r->length - r->at - BLOCK;
    if (size > left || padding(size) > left - size)
        return refuse(r, name, "the archive is cut off in it");
    if (!all_zero(header + BLOCK + size, padding(size)))
        return refuse(r, name, "bytes other than zero stand behind its end");
    bundle_add(r->out, name, header + BLOCK, size);
    r->at += BLOCK + size + padding(size);
    return true;
}

bool bundle_parse(const char *file, const char *data, size_t length, struct arena *a,
                  struct bundle *out, struct error *err)
{
    struct reader r = {file, data, length, 0, a, out, err};
    out->count = 0;
    if (length > BUNDLE_BYTES_MOST)
        return refuse(&r, NULL, "larger than a bundle may be (512 MiB)");
    for (;;) {
        if (length - r.at < BLOCK)
            return refuse(&r, NULL, "the archive is cut off");
        if (data[r.at] == '\0' && all_zero(data + r.at, BLOCK))
            break;
        if (!read_member(&r))
            return false;
    }
    if (length - r.at < END_BYTES)
        return refuse(&r, NULL, "the archive is cut off in its end");
    if (!all_zero(data + r.at, END_BYTES))
        return refuse(&r, NULL, "the end of the archive is not zero");
    if (length - r.at != END_BYTES)
        return refuse(&r, NULL, "bytes stand behind the end of the archive");
    return out->count > 0 || refuse(&r, NULL, "the bundle is empty");
}
