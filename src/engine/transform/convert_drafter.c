/* Reading, checking, copying and putting in place: see convert_drafter.h. */
#include "engine/transform/convert_drafter.h"

#include "base/child.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/terminal.h"
#include "engine/transform/repack.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 4 << 20, RECORD_TEXT_MAX = 200 };

static const char MODEL[] = "model.safetensors";
static const char CONFIG[] = "config.json";
static const char IGNORED_EMBED[] = "embed_tokens.", IGNORED_HEAD[] = "lm_head.";

struct job {
    const struct convert_drafter_options *o;
    struct convert_drafter_result *result;
    struct error *err;
    struct arena arena;
    struct checkpoint *source;
    const char *path; /* the source's model.safetensors */
    int fd;
    struct stat stamp;
    json_t *flat;
    struct repack_plan plan;
    struct repack_record record;
    struct buffer header, config;
    uint8_t *piece, *other; /* PIECE bytes each */
    struct progress progress;
    const struct repack_published *published; /* this source, recorded as there; or NULL */
};

/* ---- options ---- */

static bool usage(struct error *err, const char *flag, const char *value, const char *what)
{
    error_set(err, "USAGE", "%s", what);
    return error_at(err, NULL, flag, value);
}

/* Text that JSON writes as it is, so that every reader of the record sees the same. */
static bool record_text_valid(const char *text)
{
    const size_t length = strlen(text);
    for (size_t i = 0; i < length; i++)
        if (text[i] <= ' ' || text[i] > '~' || text[i] == '"' || text[i] == '\\')
            return false;
    return length > 0 && length <= RECORD_TEXT_MAX;
}

static bool time_valid(const char *text)
{
    static const char form[] = "dddd-dd-ddTdd:dd:ddZ";
    if (strlen(text) != sizeof form - 1)
        return false;
    for (size_t i = 0; form[i]; i++)
        if (form[i] == 'd' ? text[i] < '0' || text[i] > '9' : text[i] != form[i])
            return false;
    return true;
}

static bool check_options(const struct convert_drafter_options *o, struct error *err)
{
    const struct {
        const char *flag, *value;
    } pins[] = {{"--expect-source-sha256", o->expect_source_sha256},
                {"--expect-sha256", o->expect_sha256}},
      texts[] = {{"--source-repo", o->source_repo}, {"--source-revision", o->source_revision}};
    for (size_t i = 0; i < 2; i++) {
        if (pins[i].value && !text_is_lower_hex(pins[i].value, SHA256_HEX - 1))
            return usage(err, pins[i].flag, pins[i].value, "not 64 lower-case hexadecimal digits");
        if (texts[i].value && !record_text_valid(texts[i].value))
            return usage(err, texts[i].flag, texts[i].value,
                         "not 1 to 200 printable ASCII characters without space, quote, backslash");
    }
    if (o->converted_at && !time_valid(o->converted_at))
        return usage(err, "--converted-at", o->converted_at,
                     "not a time in UTC such as 2026-07-27T04:23:30Z");
    if (!o->out[0])
        return usage(err, "--out", o->out, "a folder needs a name");
    return true;
}

/* ---- the source ---- */

static bool changed(struct job *j)
{
    error_set(j->err, "FILE-CHANGED", "the source changed while it was read");
    return error_at(j->err, j->path, NULL, NULL);
}

static bool read_at(struct job *j, void *to, size_t length, uint64_t at)
{
    for (size_t done = 0; done < length;) {
        const ssize_t n = pread(j->fd, (char *)to + done, length - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(j->err, j->path, "cannot read");
        if (n == 0)
            return changed(j);
        done += (size_t)n;
    }
    return true;
}

static bool go_on(struct job *j)
{
    return !interrupt_requested() || error_set(j->err, "INTERRUPTED", "stopped by a signal");
}

/* The file that the header was read from is the one whose bytes are copied. */
static bool open_source(struct job *j)
{
    const struct checkpoint *k = j->source;
    if (k->shard_count != 1 || strcmp(k->shards[0].file_name, MODEL) != 0) {
        error_set(j->err, "DRAFTER-NOT-ONE-FILE", "a drafter is one %s; this one has %zu files",
                  MODEL, k->shard_count);
        return error_at(j->err, k->folder, NULL, k->shards[0].file_name);
    }
    const struct file_map *map = &k->shards[0].map;
    j->path = path_join(&j->arena, k->folder, MODEL);
    j->fd = open(j->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (j->fd < 0 || fstat(j->fd, &j->stamp) != 0)
        return error_errno(j->err, j->path, "cannot open");
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | map->data[i]; /* the parser has held it to the file's size */
    if ((uint64_t)j->stamp.st_size != map->length)
        return changed(j);
    for (uint64_t at = 0, end = length + 8; at < end; at += PIECE) {
        const size_t n = end - at < PIECE ? (size_t)(end - at) : PIECE;
        if (!read_at(j, j->piece, n, at))
            return false;
        if (memcmp(j->piece, map->data + at, n) != 0)
            return changed(j);
    }
    return true;
}

static bool still_the_same(struct job *j)
{
    struct stat open_file, named;
    if (fstat(j->fd, &open_file) != 0 || stat(j->path, &named) != 0)
        return changed(j);
    const struct stat *both[] = {&open_file, &named};
    for (int i = 0; i < 2; i++)
        if (both[i]->st_dev != j->stamp.st_dev || both[i]->st_ino != j->stamp.st_ino ||
            both[i]->st_size != j->stamp.st_size ||
            both[i]->st_mtim.tv_sec != j->stamp.st_mtim.tv_sec ||
            both[i]->st_mtim.tv_nsec != j->stamp.st_mtim.tv_nsec ||
            both[i]->st_ctim.tv_sec != j->stamp.st_ctim.tv_sec ||
            both[i]->st_ctim.tv_nsec != j->stamp.st_ctim.tv_nsec)
            return changed(j);
    return true;
}

static bool is_ignored(const char *name)
{
    return text_starts(name, IGNORED_EMBED) || text_starts(name, IGNORED_HEAD);
}

/* The inventory's refusal says how many; this adds the file and what the first one is. */
static bool name_fault(struct job *j, const struct inventory *wanted)
{
    const struct tensor *t = checkpoint_find(j->source, j->err->field);
    struct buffer value = {0};
    bool expected = false;
    for (size_t i = 0; i < wanted->count; i++)
        expected = expected || strcmp(wanted->items[i].name, j->err->field) == 0;
    if (!t || !expected) {
        buffer_text(&value, expected ? "missing" : "unexpected");
    } else {
        buffer_printf(&value, "%s [", dtype_name(t->dtype));
        for (int i = 0; i < t->rank; i++)
            buffer_printf(&value, "%s%" PRId64, i ? "," : "", t->shape[i]);
        buffer_char(&value, ']');
    }
    error_at(j->err, path_join(&j->arena, j->source->folder, MODEL), NULL, value.data);
    buffer_free(&value);
    return false;
}

static bool check_source(struct job *j)
{
    const struct checkpoint *k = j->source;
    struct dflash_config sizes;
    if (!repack_read_config(&j->arena, k->config, path_join(&j->arena, k->folder, CONFIG), &j->flat,
                            &sizes, j->err))
        return false;
    if (!checkpoint_find(k, "layers.0.self_attn.qkv_proj.weight") &&
        checkpoint_find(k, "layers.0.self_attn.q_proj.weight")) {
        error_set(j->err, "DRAFTER-ALREADY-REPACKED",
                  "q, k and v are apart already: use this folder as it is");
        return error_at(j->err, path_join(&j->arena, k->folder, MODEL),
                        "layers.0.self_attn.q_proj.weight", NULL);
    }
    struct inventory inventory = {.arena = &j->arena};
    dflash_config_inventory(&sizes, DFLASH_FUSED, &inventory);
    j->result->source_tensors = inventory.count;
    for (size_t i = 0; i < k->tensor_count; i++) {
        const struct tensor *t = &k->tensors[i];
        if (!is_ignored(t->name))
            continue;
        inventory_add(&inventory, t->name, t->dtype, t->rank, t->shape);
        j->result->ignored_tensors++;
    }
    if (!inventory_check(&inventory, k, j->err))
        return name_fault(j, &inventory);
    repack_make_plan(&j->arena, &sizes, &j->plan);
    j->result->tensors = j->plan.count;
    return true;
}

static bool pin_mismatch(struct job *j, const char *file, const char *flag, const char *found,
                         const char *wanted)
{
    error_set(j->err, "DRAFTER-PIN-MISMATCH", "its SHA-256 is not the pinned %s", wanted);
    return error_at(j->err, file, flag, found);
}

/* The whole file: its digest is part of what is written first. */
static bool hash_source(struct job *j)
{
    struct convert_drafter_result *r = j->result;
    const uint64_t size = (uint64_t)j->stamp.st_size;
    struct sha256 *hash = sha256_begin();
    uint8_t digest[SHA256_BYTES];
    bool ok = true;
    progress_begin(&j->progress, "reading the source", "bytes", size);
    for (uint64_t at = 0; ok && at < size; at += PIECE) {
        const size_t n = size - at < PIECE ? (size_t)(size - at) : PIECE;
        ok = go_on(j) && read_at(j, j->piece, n, at);
        if (ok)
            sha256_update(hash, j->piece, n);
        progress_update(&j->progress, at + n);
    }
    progress_end(&j->progress);
    sha256_finish(hash, digest);
    text_hex(r->source_sha256, digest, sizeof digest);
    r->source_bytes = size;
    if (!ok)
        return false;
    if (j->o->expect_source_sha256 && strcmp(j->o->expect_source_sha256, r->source_sha256) != 0)
        return pin_mismatch(j, j->path, "--expect-source-sha256", r->source_sha256,
                            j->o->expect_source_sha256);
    return true;
}

/* ---- the record ---- */

/* The time that an existing result carries, if it is one: to compare with. */
static const char *existing_time(struct job *j)
{
    json_t *config;
    const char *found = NULL;
    if (!checkpoint_read_config(j->o->out, &config, NULL))
        return NULL;
    const json_t *record = json_object_get(config, "_mlx_conversion");
    const char *text = json_string_value(json_object_get(record, "converted_at"));
    if (text && time_valid(text))
        found = arena_strdup(&j->arena, text);
    json_decref(config);
    return found;
}

static const char *time_now(struct job *j)
{
    char text[32];
    const time_t now = time(NULL);
    struct tm utc;
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    return arena_strdup(&j->arena, text);
}

static bool same_text(const char *given, const char *known)
{
    return !given || (known && strcmp(given, known) == 0);
}

static void make_record(struct job *j)
{
    const struct convert_drafter_options *o = j->o;
    struct convert_drafter_result *r = j->result;
    const struct repack_published *p = repack_find_published(r->source_sha256);
    struct repack_record *to = &j->record;
    to->sha256 = r->source_sha256;
    to->repo = o->source_repo ? o->source_repo : p ? p->record.repo : "unknown";
    to->revision = o->source_revision ? o->source_revision : p ? p->record.revision : "unknown";
    if (p && p->sha256 && same_text(o->source_repo, p->record.repo) &&
        same_text(o->source_revision, p->record.revision)) {
        j->published = p;
        to->converted_at = o->converted_at ? o->converted_at : p->record.converted_at;
    } else {
        to->converted_at = o->converted_at ? o->converted_at : existing_time(j);
    }
    if (!to->converted_at)
        to->converted_at = time_now(j);
    text_copy(r->repo, sizeof r->repo, to->repo);
    text_copy(r->revision, sizeof r->revision, to->revision);
    text_copy(r->converted_at, sizeof r->converted_at, to->converted_at);
    repack_write_header(&j->plan, to, &j->header);
    repack_write_config(j->flat, to, &j->config);
    r->config_bytes = j->config.length;
    sha256_hex(j->config.data, j->config.length, r->config_sha256);
}

/* ---- the result, written or compared ---- */

struct sink {
    struct job *job;
    struct folder_file file;
    bool compare;
    uint64_t at;
    struct sha256 *hash;
};

static bool differs(struct job *j, const char *path, const char *field, const char *value)
{
    error_set(j->err, "DRAFTER-OUT-DIFFERS",
              "the result's folder does not hold this conversion, and was left as it is");
    return error_at(j->err, path, field, value);
}

/* At most PIECE bytes. what: for the message, where bytes differ. */
static bool put(struct sink *s, const void *data, size_t length, const char *what)
{
    struct job *j = s->job;
    if (!go_on(j))
        return false;
    if (!s->compare) {
        if (!folder_write_file(&s->file, data, length, j->err))
            return false;
    } else {
        const ssize_t n = pread(s->file.fd, j->other, length, (off_t)s->at);
        if (n != (ssize_t)length || memcmp(j->other, data, length) != 0)
            return differs(j, s->file.path, what, NULL);
    }
    sha256_update(s->hash, data, length);
    s->at += length;
    progress_update(&j->progress, s->at);
    return true;
}

static bool put_text(struct sink *s, const struct buffer *text, const char *what)
{
    for (size_t at = 0; at < text->length; at += PIECE) {
        const size_t n = text->length - at < PIECE ? text->length - at : PIECE;
        if (!put(s, text->data + at, n, what))
            return false;
    }
    return true;
}

static bool put_tensor(struct sink *s, const struct repack_tensor *t)
{
    struct job *j = s->job;
    const struct tensor *from = checkpoint_find(j->source, t->from);
    const uint64_t start = (uint64_t)(from->data - j->source->shards[0].map.data) + t->skip;
    for (uint64_t at = 0; at < t->bytes; at += PIECE) {
        const size_t n = t->bytes - at < PIECE ? (size_t)(t->bytes - at) : PIECE;
        if (!read_at(j, j->piece, n, start + at) || !put(s, j->piece, n, t->name))
            return false;
    }
    return true;
}

static bool put_model(struct job *j, struct folder_file file, bool compare)
{
    struct convert_drafter_result *r = j->result;
    struct sink s = {j, file, compare, 0, sha256_begin()};
    uint8_t digest[SHA256_BYTES];
    r->bytes = j->header.length + j->plan.payload;
    progress_begin(&j->progress, compare ? "comparing" : "writing", "bytes", r->bytes);
    bool ok = put_text(&s, &j->header, "header");
    for (size_t i = 0; ok && i < j->plan.count; i++)
        ok = put_tensor(&s, &j->plan.tensors[i]);
    progress_end(&j->progress);
    sha256_finish(s.hash, digest);
    text_hex(r->sha256, digest, sizeof digest);
    return ok && still_the_same(j);
}

/* The digest that was asked for, and the one that the published repack of this source has. */
static bool check_pins(struct job *j, const char *path)
{
    struct convert_drafter_result *r = j->result;
    if (j->o->expect_sha256 && strcmp(j->o->expect_sha256, r->sha256) != 0)
        return pin_mismatch(j, path, "--expect-sha256", r->sha256, j->o->expect_sha256);
    if (j->published && strcmp(j->published->sha256, r->sha256) != 0)
        return pin_mismatch(j, path, "published repack", r->sha256, j->published->sha256);
    r->published = j->published && strcmp(j->published->config_sha256, r->config_sha256) == 0;
    return true;
}

static bool compare_file(struct job *j, const char *name)
{
    const char *path = path_join(&j->arena, j->o->out, name);
    const bool model = strcmp(name, MODEL) == 0;
    const uint64_t wanted = model ? j->header.length + j->plan.payload : (uint64_t)j->config.length;
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        error_errno(j->err, path, "cannot open");
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool ok;
    if ((uint64_t)st.st_size != wanted) {
        char size[32];
        snprintf(size, sizeof size, "%lld", (long long)st.st_size);
        ok = differs(j, path, "bytes", size);
    } else if (model) {
        ok =
            put_model(j, (struct folder_file){.fd = fd, .path = path}, true) && check_pins(j, path);
    } else {
        struct buffer found = {0};
        ok = file_read(path, j->config.length, &found, j->err);
        if (ok && (found.length != j->config.length ||
                   memcmp(found.data, j->config.data, found.length) != 0))
            ok = differs(j, path, "config.json", NULL);
        buffer_free(&found);
    }
    close(fd);
    return ok;
}

/* out is there: it holds the two files of this conversion and nothing else. */
static bool compare_out(struct job *j)
{
    static const char *const wanted[] = {CONFIG, MODEL}; /* in the list's order */
    char **names;
    size_t count;
    if (!file_is_directory(j->o->out))
        return differs(j, j->o->out, NULL, file_exists(j->o->out) ? "not a folder" : "missing");
    if (!file_list_recursive(&j->arena, j->o->out, &names, &count, j->err))
        return false;
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], CONFIG) != 0 && strcmp(names[i], MODEL) != 0)
            return differs(j, path_join(&j->arena, j->o->out, names[i]), NULL, "unexpected");
    for (size_t i = 0; i < 2; i++) {
        if (i >= count || strcmp(names[i], wanted[i]) != 0)
            return differs(j, path_join(&j->arena, j->o->out, wanted[i]), NULL, "missing");
        if (!compare_file(j, wanted[i]))
            return false;
    }
    return true;
}

static bool write_out(struct job *j, struct folder_build *build)
{
    struct folder_file f;
    if (!folder_begin(build, j->err))
        return false;
    bool ok = folder_create_file(build, MODEL, &f, j->err);
    if (ok) {
        ok = put_model(j, f, false) && check_pins(j, f.path);
        ok = folder_close_file(&f, ok, j->err);
    }
    ok = ok &&
         file_write_atomic(path_join(&j->arena, build->temporary, CONFIG), j->config.data,
                           j->config.length, j->err) &&
         folder_commit(build, j->err);
    if (!ok)
        folder_abandon(build);
    j->result->written = ok;
    return ok;
}

static bool convert(struct job *j)
{
    const struct convert_drafter_options *o = j->o;
    struct folder_build build;
    struct stat st;
    if (!check_options(o, j->err) || !checkpoint_open(o->source, &j->source, j->err) ||
        !check_source(j) || !open_source(j) || !hash_source(j))
        return false;
    make_record(j);
    if (o->verify_only || lstat(o->out, &st) == 0)
        return compare_out(j);
    return folder_plan(&j->arena, o->out, &build, j->err) && write_out(j, &build);
}

bool convert_drafter(const struct convert_drafter_options *o, struct convert_drafter_result *result,
                     struct error *err)
{
    *result = (struct convert_drafter_result){0};
    struct error own = {0};
    struct job j = {.o = o,
                    .result = result,
                    .err = err ? err : &own,
                    .fd = -1,
                    .piece = memory_alloc(PIECE),
                    .other = memory_alloc(PIECE),
                    .progress = {.quiet = o->quiet}};
    const bool ok = convert(&j);
    if (j.fd >= 0)
        close(j.fd);
    json_decref(j.flat);
    checkpoint_close(j.source);
    buffer_free(&j.header);
    buffer_free(&j.config);
    free(j.piece);
    free(j.other);
    arena_free(&j.arena);
    return ok;
}
