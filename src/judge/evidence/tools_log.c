/* benchd log append, check, show, prove, repair. */
#include "judge/tools.h"

#include "base/file.h"
#include "base/json.h"
#include "judge/evidence/log.h"
#include "judge/evidence/statement.h"
#include "judge/tools_common.h"

#include <stdio.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static int fail(const char *tool, const struct error *err)
{
    static const char *const unreadable[] = {"IO", "FILE-TOO-LARGE", "NOT-A-REGULAR-FILE"};
    tool_complain(tool, err);
    for (size_t i = 0; i < COUNT_OF(unreadable); i++)
        if (strcmp(err->name, unreadable[i]) == 0)
            return TOOL_IO;
    return strcmp(err->name, "USAGE") == 0 ? TOOL_USAGE : TOOL_REJECTED;
}

static void print_root(const struct log *l)
{
    struct merkle_hash root;
    char hex[SHA256_HEX];
    log_root(l, l->count, &root);
    text_hex(hex, root.bytes, SHA256_BYTES);
    printf("%zu entries, root %zu:%s\n", l->count, l->count, hex);
}

/* A statement's digests, read from its file. */
struct named {
    struct arena arena;
    struct statement statement;
    char sha256[SHA256_HEX];
};

static bool read_statement(const char *path, struct named *out, struct error *err)
{
    struct buffer text = {0};
    const bool ok = file_read(path, STATEMENT_BYTES_MOST, &text, err) &&
                    statement_parse(path, text.data ? text.data : "", text.length, &out->arena,
                                    &out->statement, err);
    if (ok)
        sha256_hex(text.data, text.length, out->sha256);
    buffer_free(&text);
    return ok;
}

static bool append(const char *path, const struct named *n, struct log_entry *out,
                   struct error *err)
{
    const struct statement *s = &n->statement;
    struct log_writer *w;
    if (!log_open(path, &w, err))
        return false;
    const struct log *l = log_of(w);
    const struct log_entry *there = log_find(l, n->sha256);
    bool ok;
    if (there) {
        *out = *there;
        ok = true; /* signing was interrupted after it had happened */
    } else if (!s->has_log || s->log_index != l->count ||
               strcmp(s->log_previous, log_head(l)) != 0) {
        error_set(err, "EVIDENCE-MISMATCH",
                  s->has_log ? "the statement was signed for another place: sign the score again"
                             : "the statement was signed for no log: sign the score again");
        ok = error_at(err, path, NULL, NULL);
    } else {
        ok = log_append(w, n->sha256, s->score_sha256, out, err);
    }
    if (ok)
        print_root(log_of(w));
    log_close(w);
    return ok;
}

static int log_append_tool(int argc, char **argv)
{
    const char *path = NULL, *statement = NULL;
    const struct option_spec options[] = {
        {"--log", OPTION_TEXT, true, "FILE", "The log.", &path, NULL, 0, 0},
        {"--statement", OPTION_TEXT, true, "FILE",
         "A statement that was signed for this place and whose entry is missing.", &statement, NULL,
         0, 0},
    };
    const struct command command = {
        "benchd log append",
        "Appends the entry of a statement, as `benchd sign --log` does by itself.",
        "For a signing that was interrupted between statement and log. An entry that is there "
        "already stays the only one.\n"
        "Exit: 0, 1 the log is broken or the statement is not for this place, 2 usage, 3 I/O.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    struct error err = {0};
    struct named n = {0};
    struct log_entry e;
    if (!tool_parse(&command, "log append", argc, argv, NULL, &code))
        return code;
    const bool ok = read_statement(statement, &n, &err) && append(path, &n, &e, &err);
    arena_free(&n.arena);
    return ok ? TOOL_OK : fail("log append", &err);
}

static int log_check_tool(int argc, char **argv)
{
    const char *path = NULL, *root = NULL, *statement = NULL, *proof = NULL;
    const struct option_spec options[] = {
        {"--log", OPTION_TEXT, true, "FILE", "The log.", &path, NULL, 0, 0},
        {"--expect", OPTION_TEXT, false, "N:HEX",
         "A root that was published earlier: the log must still begin so.", &root, NULL, 0, 0},
        {"--statement", OPTION_TEXT, false, "FILE", "A statement that must have an entry.",
         &statement, NULL, 0, 0},
        {"--proof", OPTION_TEXT, false, "FILE",
         "Writes the proof of the statement's entry: what a bundle holds. Needs --statement.",
         &proof, NULL, 0, 0},
    };
    const struct command command = {
        "benchd log check",
        "Checks every entry, the chain, and prints the root that stands for them all.",
        "An edit, a deletion, an insertion or a swap is named by its line; entries cut off the end "
        "are found with --expect.\n"
        "Exit: 0 whole, 1 broken, torn, or without the statement, 2 usage, 3 I/O.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    struct error err = {0};
    struct named n = {0};
    struct arena a = {0};
    struct log l;
    size_t before = 0;
    if (!tool_parse(&command, "log check", argc, argv, NULL, &code))
        return code;
    bool ok = !proof || statement || error_set(&err, "USAGE", "--proof needs --statement");
    ok = ok && log_read(path, &a, &l, &err) && (!root || log_expect(path, &l, root, &before, &err));
    if (ok && statement) {
        ok = read_statement(statement, &n, &err);
        const struct log_entry *e = ok ? log_find(&l, n.sha256) : NULL;
        if (ok && !e) {
            error_set(&err, "EVIDENCE-MISMATCH", "the log holds no entry of the statement");
            ok = error_at(&err, statement, NULL, NULL);
        } else if (ok) {
            struct log_inclusion p;
            struct buffer text = {0};
            log_prove(&l, e, before, &p);
            log_inclusion_render(&p, &text);
            ok = !proof || file_write_atomic(proof, text.data, text.length, &err);
            buffer_free(&text);
            if (ok)
                printf("entry %llu of %s\n", (unsigned long long)e->index, e->time);
        }
    }
    if (ok)
        print_root(&l);
    arena_free(&n.arena);
    arena_free(&a);
    return ok ? TOOL_OK : fail("log check", &err);
}

static int log_show_tool(int argc, char **argv)
{
    const char *path = NULL;
    const struct option_spec options[] = {
        {"--log", OPTION_TEXT, true, "FILE", "The log.", &path, NULL, 0, 0},
    };
    const struct command command = {
        "benchd log show",
        "Prints the entries: index, time, digests of score and statement.",
        "A broken log is not shown.\nExit: 0, 1 broken or torn, 2 usage, 3 I/O.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    struct error err = {0};
    struct arena a = {0};
    struct log l;
    if (!tool_parse(&command, "log show", argc, argv, NULL, &code))
        return code;
    const bool ok = log_read(path, &a, &l, &err);
    for (size_t i = 0; ok && i < l.count; i++)
        printf("%zu  %s  score %s  statement %s\n", i, l.entries[i].time, l.entries[i].score,
               l.entries[i].statement);
    if (ok)
        print_root(&l);
    arena_free(&a);
    return ok ? TOOL_OK : fail("log show", &err);
}

static int log_repair_tool(int argc, char **argv)
{
    const char *path = NULL;
    const struct option_spec options[] = {
        {"--log", OPTION_TEXT, true, "FILE", "The log.", &path, NULL, 0, 0},
    };
    const struct command command = {
        "benchd log repair",
        "Mends a last line whose writing was cut off, and nothing else.",
        "All entries before it are proved first. A whole entry that lacks only its line feed gets "
        "it; anything less is cut off.\nExit: 0 (says what was done), 1 broken elsewhere, 2 usage, "
        "3 I/O.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    struct error err = {0};
    struct log_repaired done;
    if (!tool_parse(&command, "log repair", argc, argv, NULL, &code))
        return code;
    if (!log_repair(path, &done, &err))
        return fail("log repair", &err);
    if (done.completed)
        printf("the last entry lacked its line feed and has it now\n");
    else if (done.removed)
        printf("a torn last line of %zu bytes was cut off\n", done.removed);
    else
        printf("nothing is torn\n");
    return TOOL_OK;
}

int tool_log(int argc, char **argv)
{
    static const struct {
        const char *name, *summary;
        int (*run)(int argc, char **argv);
    } parts[] = {{"append", "appends the entry of a statement", log_append_tool},
                 {"check", "checks the whole log", log_check_tool},
                 {"show", "prints the entries", log_show_tool},
                 {"repair", "mends a torn last line", log_repair_tool}};
    for (size_t i = 0; argc > 0 && i < COUNT_OF(parts); i++)
        if (strcmp(argv[0], parts[i].name) == 0)
            return parts[i].run(argc - 1, argv + 1);
    const bool help = argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0);
    FILE *to = help ? stdout : stderr;
    if (!help)
        fprintf(to, "benchd log: USAGE: one of its subcommands is needed\n");
    fprintf(to, "Usage: benchd log SUBCOMMAND ...\n");
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        fprintf(to, "  %-8s %s\n", parts[i].name, parts[i].summary);
    return help ? TOOL_OK : TOOL_USAGE;
}
