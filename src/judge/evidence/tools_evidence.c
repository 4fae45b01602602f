/* benchd keygen, sign, bundle, verify. */
#include "judge/tools.h"

#include "base/file.h"
#include "judge/evidence/evidence.h"
#include "judge/evidence/verify.h"
#include "judge/tools_common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static int exit_of(const struct error *err)
{
    static const char *const unreadable[] = {"IO", "FILE-TOO-LARGE", "NOT-A-REGULAR-FILE"};
    for (size_t i = 0; i < COUNT_OF(unreadable); i++)
        if (strcmp(err->name, unreadable[i]) == 0)
            return TOOL_IO;
    return strcmp(err->name, "USAGE") == 0 ? TOOL_USAGE : TOOL_REJECTED;
}

int tool_keygen(int argc, char **argv)
{
    const char *path = NULL;
    const struct option_spec options[] = {
        {"--out", OPTION_TEXT, true, "FILE",
         "The private key, mode 0600; the public key goes to FILE.pub. Neither may be there.",
         &path, NULL, 0, 0},
    };
    const struct command command = {"benchd keygen",
                                    "Makes an Ed25519 key pair that scores are signed with.",
                                    "Prints the key's id. Exit: 0, 1 a file is there already, 2 "
                                    "usage, 3 a file cannot be written.",
                                    NULL,
                                    options,
                                    COUNT_OF(options)};
    int code;
    struct error err = {0};
    struct public_key key;
    if (!tool_parse(&command, "keygen", argc, argv, NULL, &code))
        return code;
    if (!key_generate(path, &key, &err)) {
        tool_complain("keygen", &err);
        return exit_of(&err);
    }
    printf("%s\n", key.id);
    return TOOL_OK;
}

int tool_sign(int argc, char **argv)
{
    struct evidence_signing in = {0};
    struct option_list goldens = {0};
    const struct option_spec options[] = {
        {"--score", OPTION_TEXT, true, "FILE",
         "The sealed score. Its sidecar and integrity file stand beside it.", &in.files.score, NULL,
         0, 0},
        {"--contract", OPTION_TEXT, true, "FILE", "The contract that it was measured by.",
         &in.files.contract, NULL, 0, 0},
        {"--golden", OPTION_LIST, false, "FILE", "Each golden of the run. Repeatable.", &goldens,
         NULL, 0, 0},
        {"--calibration", OPTION_TEXT, false, "FILE",
         "The machine's calibration, where the score names one.", &in.files.calibration, NULL, 0,
         0},
        {"--integrity", OPTION_TEXT, false, "FILE",
         "The integrity file, where it does not stand beside the score under its usual name.",
         &in.files.integrity, NULL, 0, 0},
        {"--drafter", OPTION_TEXT, false, "DIR", "The drafter's folder, to be hashed.", &in.drafter,
         NULL, 0, 0},
        {"--baseline-engine", OPTION_TEXT, false, "FILE", "The control legs' engine, to be hashed.",
         &in.baseline_engine, NULL, 0, 0},
        {"--box", OPTION_TEXT, false, "NAME",
         "The machine, where the score does not name it. RUNNER_NAME wins.", &in.box, NULL, 0, 0},
        {"--source-commit", OPTION_TEXT, false, "HEX",
         "The commit of benchd's sources; else that of the work tree around the program.",
         &in.source_commit, NULL, 0, 0},
        {"--key", OPTION_TEXT, false, "FILE",
         "The private key of `benchd keygen`; else MLXFAST_SIGNING_KEY.", &in.key, NULL, 0, 0},
        {"--log", OPTION_TEXT, false, "FILE",
         "The log to append to, made where it is not there; else MLXFAST_SIGNING_LOG.", &in.log,
         NULL, 0, 0},
    };
    const struct command command = {
        "benchd sign",
        "Signs for a sealed score: a statement of digests, its signature, a line in a log.",
        "Writes SCORE.statement.json and SCORE.statement.sig. The files are first held against "
        "each other as `benchd verify` would.\n"
        "Exit: 0 signed, 1 the files disagree, or key or log are unfit, 2 usage, 3 a file cannot "
        "be read or written.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    struct error err = {0};
    struct evidence_signed out;
    if (!tool_parse(&command, "sign", argc, argv, NULL, &code))
        return code;
    const char *runner = getenv("RUNNER_NAME");
    in.box = runner && *runner ? runner : in.box;
    in.files.goldens = goldens.items;
    in.files.golden_count = goldens.count;
    in.key = evidence_key_of(in.key);
    in.log = evidence_log_of(in.log);
    bool ok = true;
    if (!in.key)
        ok = error_set(&err, "USAGE", "--key or MLXFAST_SIGNING_KEY is needed");
    else if (in.source_commit && !text_is_lower_hex(in.source_commit, 40))
        ok = error_set(&err, "USAGE", "--source-commit is 40 lower-case hexadecimal digits") ||
             error_at(&err, NULL, "--source-commit", in.source_commit);
    if (!ok || !evidence_sign(&in, &out, &err)) {
        tool_complain("sign", &err);
        return exit_of(&err);
    }
    printf("key %s\nstatement %s\n", out.key, out.statement_sha256);
    if (out.logged)
        printf("log entry %llu, root %llu:%s\n", (unsigned long long)out.entry.index,
               (unsigned long long)out.entry.index + 1, out.root);
    return TOOL_OK;
}

int tool_bundle(int argc, char **argv)
{
    struct evidence_packing in = {0};
    struct option_list goldens = {0};
    const char *path = NULL;
    const struct option_spec options[] = {
        {"--score", OPTION_TEXT, true, "FILE",
         "The sealed score. Its sidecar and integrity file, and what `benchd sign` wrote, stand "
         "beside it.",
         &in.files.score, NULL, 0, 0},
        {"--contract", OPTION_TEXT, true, "FILE", "The contract.", &in.files.contract, NULL, 0, 0},
        {"--golden", OPTION_LIST, false, "FILE",
         "A golden of the run; a hidden one is left out. Repeatable.", &goldens, NULL, 0, 0},
        {"--calibration", OPTION_TEXT, false, "FILE", "The machine's calibration.",
         &in.files.calibration, NULL, 0, 0},
        {"--results", OPTION_TEXT, false, "FILE",
         "results.json of `benchd measure-job`, of a score that `benchd overlay-timing` made.",
         &in.files.results, NULL, 0, 0},
        {"--integrity", OPTION_TEXT, false, "FILE",
         "The integrity file, where it does not stand beside the score under its usual name.",
         &in.files.integrity, NULL, 0, 0},
        {"--key", OPTION_TEXT, false, "FILE", "The public key of the signer, to be packed.",
         &in.public_key, NULL, 0, 0},
        {"--log", OPTION_TEXT, false, "FILE",
         "The log: the proof of the statement's place in it is packed.", &in.log, NULL, 0, 0},
        {"--log-root", OPTION_TEXT, false, "N:HEX",
         "An earlier root, published: the proof that the log began so is packed.", &in.log_root,
         NULL, 0, 0},
        {"--engine", OPTION_TEXT, false, "FILE", "The engine that was judged, to be packed.",
         &in.engine, NULL, 0, 0},
        {"--weights-digest", OPTION_TEXT, false, "TEXT",
         "What `benchd weights-digest` prints of the weights: must be the score's.",
         &in.weights_digest, NULL, 0, 0},
        {"--out", OPTION_TEXT, true, "FILE", "The bundle, a tar file. Replaced.", &path, NULL, 0,
         0},
    };
    const struct command command = {
        "benchd bundle",
        "Packs what a third party needs to check a score.",
        "The same files give the same bytes. What `benchd verify` would not pass is not packed.\n"
        "Exit: 0 packed, 1 the files disagree, 2 usage, 3 a file cannot be read or written.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    struct error err = {0};
    struct buffer archive = {0};
    if (!tool_parse(&command, "bundle", argc, argv, NULL, &code))
        return code;
    in.files.goldens = goldens.items;
    in.files.golden_count = goldens.count;
    const char *others[] = {in.files.score,     in.files.contract, in.files.calibration,
                            in.files.integrity, in.public_key,     in.log,
                            in.engine,          in.files.results};
    const bool ok = tool_check_output("--out", path, others, COUNT_OF(others), &err) &&
                    tool_check_output("--out", path, goldens.items, goldens.count, &err) &&
                    file_check_target(path, &err) && evidence_pack(&in, &archive, &err) &&
                    file_write_atomic(path, archive.data, archive.length, &err);
    buffer_free(&archive);
    if (ok)
        return TOOL_OK;
    tool_complain("bundle", &err);
    return exit_of(&err);
}

static void print_finding(const struct finding *f)
{
    static const char *const words[] = {
        [FINDING_OK] = "ok   ", [FINDING_FAILED] = "FAIL ", [FINDING_SKIPPED] = "-    "};
    printf("%s ", words[f->state]);
    tool_put_line(stdout, f->subject);
    printf(": ");
    tool_put_line(stdout, f->text);
    putchar('\n');
}

/* Reads and parses; everything is in memory from here on. */
static int verify_file(const char *path, const struct verify_options *o, bool strict)
{
    struct buffer text = {0};
    struct arena a = {0};
    struct bundle b;
    struct error err = {0};
    struct findings f = {0};
    if (!file_read(path, BUNDLE_BYTES_MOST, &text, &err) ||
        !bundle_parse(path, text.data ? text.data : "", text.length, &a, &b, &err)) {
        tool_complain("verify", &err);
        buffer_free(&text);
        arena_free(&a);
        return TOOL_IO;
    }
    findings_add(&f, FINDING_OK, "archive", "%zu members in the one spelling of a bundle", b.count);
    verify_bundle(&b, o, &f);
    for (size_t i = 0; i < f.count; i++)
        print_finding(&f.items[i]);
    printf("%zu proved, %zu failed, %zu not checked\n", f.of[FINDING_OK], f.of[FINDING_FAILED],
           f.of[FINDING_SKIPPED]);
    const bool ok = f.of[FINDING_FAILED] == 0 && !(strict && f.of[FINDING_SKIPPED] > 0);
    findings_free(&f);
    buffer_free(&text);
    arena_free(&a);
    return ok ? TOOL_OK : TOOL_REJECTED;
}

int tool_verify(int argc, char **argv)
{
    struct verify_options o = {0};
    bool strict = false;
    const char *positional[1] = {NULL};
    static const char *const names[] = {"BUNDLE", NULL};
    const struct option_spec options[] = {
        {"--public-key", OPTION_TEXT, false, "FILE",
         "The organiser's public key, from where you trust it: the signature must be by it.",
         &o.public_key, NULL, 0, 0},
        {"--log", OPTION_TEXT, false, "FILE",
         "The published log: must be whole and begin with what the bundle proves a place in.",
         &o.log, NULL, 0, 0},
        {"--log-root", OPTION_TEXT, false, "N:HEX",
         "A published root of the log: entries and hash.", &o.log_root, NULL, 0, 0},
        {"--engine", OPTION_TEXT, false, "FILE", "Must be the engine that was judged.", &o.engine,
         NULL, 0, 0},
        {"--weights", OPTION_TEXT, false, "DIR", "Must be the weights that were judged.",
         &o.weights, NULL, 0, 0},
        {"--drafter", OPTION_TEXT, false, "DIR", "Must be the drafter that was judged.", &o.drafter,
         NULL, 0, 0},
        {"--baseline-engine", OPTION_TEXT, false, "FILE", "Must be the control legs' engine.",
         &o.baseline_engine, NULL, 0, 0},
        {"--strict", OPTION_SWITCH, false, NULL, "What was not checked counts as failed.", &strict,
         NULL, 0, 0},
    };
    const struct command command = {
        "benchd verify",
        "Checks a bundle offline and says line by line what it proved.",
        "Nothing is extracted or run. Lines begin with ok, FAIL or - (not checked, and why).\n"
        "Exit: 0 nothing failed, 1 something did, 2 usage, 3 the bundle cannot be read as one.",
        names,
        options,
        COUNT_OF(options)};
    int code;
    if (!tool_parse(&command, "verify", argc, argv, positional, &code))
        return code;
    return verify_file(positional[0], &o, strict);
}
