#include "arena/fetch/settings.h"

#include "base/buffer.h"
#include "base/file.h"
#include "base/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The table's targets; fetch_settings_parse copies them out. */
static struct fetch_settings set;

enum knob {
    BASE_URL,
    FALLBACK,
    AUTH_HEADER_FILE,
    DIR,
    CACHE_DIR,
    HF_HOME,
    LINK,
    MANIFEST,
    LOCK_PATH,
    CA_FILE,
    JOBS,
    RETRIES,
    RETRY_DELAY,
    STALL_BYTES,
    STALL_SECONDS,
    CONNECT_SECONDS,
    MIN_FREE,
    LOCK_WAIT,
    LOCK_STALE,
    PROGRESS_SECONDS,
    SKIP,
    NO_HASH,
    FULL,
    KNOBS
};
static bool given[KNOBS];

static const struct option_spec specs[] = {
    {"--drafter", OPTION_SWITCH, false, NULL, "The track's drafter instead of its target.",
     &set.drafter, NULL, 0, 0},
    {"--verify-only", OPTION_SWITCH, false, NULL,
     "Fetch and change nothing: hash every file, and name each that is missing or wrong.",
     &set.verify_only, NULL, 0, 0},
    {"--print-path", OPTION_SWITCH, false, NULL, "Only print the folder that the files are for.",
     &set.print_path, NULL, 0, 0},
    {"--skip-download", OPTION_SWITCH, false, NULL,
     "Fetch nothing and check nothing: the files are supplied in another way "
     "(MLXFAST_SKIP_WEIGHTS_DOWNLOAD).",
     &set.skip_download, &given[SKIP], 0, 0},
    {"--base-url", OPTION_TEXT, false, "URL",
     "Where to fetch from first; a file is URL/<path> (MLXFAST_REFERENCE_BASE_URL; of a drafter "
     "MLXFAST_DFLASH_ASSISTANT_BASE_URL). Default: the track's mirror.",
     &set.base_url, &given[BASE_URL], 0, 0},
    {"--fallback", OPTION_TEXT, false, "URL",
     "Where to fetch what the first does not give; none, off or 0: nowhere "
     "(MLXFAST_REFERENCE_FALLBACK). Default: the hub at the pinned revision, if the track names "
     "it.",
     &set.fallback, &given[FALLBACK], 0, 0},
    {"--auth-header-file", OPTION_TEXT, false, "FILE",
     "A file with one line, \"Name: value\", that is sent to the first URL's host only. A flag "
     "with "
     "the value itself would be seen by everybody on the machine: the variable is "
     "MLXFAST_REFERENCE_AUTH_HEADER, of a drafter MLXFAST_DFLASH_ASSISTANT_AUTH_HEADER.",
     &set.auth_header_file, &given[AUTH_HEADER_FILE], 0, 0},
    {"--dir", OPTION_TEXT, false, "DIR",
     "The folder for the files (MLXFAST_REFERENCE_DIR; of a drafter MLXFAST_DFLASH_DRAFTER_DIR). "
     "Default: that of --cache-dir.",
     &set.dir, &given[DIR], 0, 0},
    {"--cache-dir", OPTION_TEXT, false, "DIR",
     "The same under its other name, a folder .../snapshots/<revision> "
     "(MLXFAST_REFERENCE_CACHE_DIR). "
     "Default: the layout of a Hugging Face cache in --hf-home.",
     &set.cache_dir, &given[CACHE_DIR], 0, 0},
    {"--hf-home", OPTION_TEXT, false, "DIR",
     "Home of the cache (MLXFAST_HF_HOME, HF_HOME). Default: ~/.cache/huggingface.", &set.hf_home,
     &given[HF_HOME], 0, 0},
    {"--link", OPTION_TEXT, false, "PATH",
     "A symbolic link to make to the folder, for older commands; none, off or 0: no link "
     "(MLXFAST_REFERENCE_COMPAT_LINK). Default: the track's.",
     &set.link, &given[LINK], 0, 0},
    {"--manifest", OPTION_TEXT, false, "FILE",
     "Lines <sha256> <bytes> <path> (MLXFAST_REFERENCE_MANIFEST_PATH). Default: the track's.",
     &set.manifest, &given[MANIFEST], 0, 0},
    {"--lock-path", OPTION_TEXT, false, "FILE",
     "Remembers that everything was hashed (MLXFAST_REFERENCE_CACHE_LOCK_PATH). Default: "
     ".mlxfast-reference-cache.lock in the folder.",
     &set.lock_path, &given[LOCK_PATH], 0, 0},
    {"--jobs", OPTION_INT, false, "N",
     "Files at once, 1 to 16 (MLXFAST_REFERENCE_DOWNLOAD_JOBS). Default: 3.", &set.jobs,
     &given[JOBS], 1, 16},
    {"--min-free-gib", OPTION_INT, false, "N",
     "Free space to ask for, less what is there already; never less than what is still to come "
     "(MLXFAST_REFERENCE_MIN_FREE_GIB). Default: the track's.",
     &set.min_free_gib, &given[MIN_FREE], 0, 1 << 20},
    {"--no-hash-verify", OPTION_SWITCH, false, NULL,
     "Take files that are there by their length alone; no lock is written "
     "(MLXFAST_REFERENCE_HASH_VERIFY=0). What is fetched is hashed all the same.",
     &set.no_hash_verify, &given[NO_HASH], 0, 0},
    {"--full-verify", OPTION_SWITCH, false, NULL,
     "Hash every file though the lock says that nothing has changed, and once more after a fetch "
     "(MLXFAST_REFERENCE_POST_DOWNLOAD_FULL_VERIFY=1).",
     &set.full_verify, &given[FULL], 0, 0},
    {"--retries", OPTION_INT, false, "N",
     "Attempts after the first at each source that bring a file no further, 0 to 1000 "
     "(MLXFAST_REFERENCE_RETRIES). Default: 5.",
     &set.retries, &given[RETRIES], 0, 1000},
    {"--retry-delay-ms", OPTION_INT, false, "N",
     "Before the first retry; twice as long before each next, 30 s at most "
     "(MLXFAST_REFERENCE_RETRY_DELAY_MS). Default: 1000.",
     &set.retry_delay_ms, &given[RETRY_DELAY], 0, 60000},
    {"--stall-bytes", OPTION_INT, false, "N",
     "A file that comes in slower than N bytes/s is stalled; 0: never "
     "(MLXFAST_REFERENCE_STALL_BYTES). Default: 1048576.",
     &set.stall_bytes, &given[STALL_BYTES], 0, INT32_MAX},
    {"--stall-seconds", OPTION_INT, false, "N",
     "... once it has been so for N seconds: it is connected anew and continued "
     "(MLXFAST_REFERENCE_STALL_SECONDS). Default: 120.",
     &set.stall_seconds, &given[STALL_SECONDS], 1, 86400},
    {"--connect-seconds", OPTION_INT, false, "N",
     "Time for a connection (MLXFAST_REFERENCE_CONNECT_SECONDS). Default: 30.",
     &set.connect_seconds, &given[CONNECT_SECONDS], 1, 3600},
    {"--ca-file", OPTION_TEXT, false, "FILE",
     "Certificates to trust instead of the system's (MLXFAST_REFERENCE_CA_FILE). There is no flag "
     "that "
     "trusts everything.",
     &set.ca_file, &given[CA_FILE], 0, 0},
    {"--lock-wait-seconds", OPTION_INT, false, "N",
     "How long to wait for another set-up in the folder (MLXFAST_REFERENCE_MUTATION_LOCK_TIMEOUT). "
     "Default: 1800.",
     &set.lock_wait_seconds, &given[LOCK_WAIT], 0, 604800},
    {"--lock-stale-seconds", OPTION_INT, false, "N",
     "A set-up of another machine that has not touched its lock for so long is dead; of this "
     "machine "
     "it is known at once (MLXFAST_REFERENCE_MUTATION_LOCK_STALE). Default: 60.",
     &set.lock_stale_seconds, &given[LOCK_STALE], 30, 604800},
    {"--progress-seconds", OPTION_INT, false, "N",
     "Without a terminal: lines of progress every N seconds (MLXFAST_REFERENCE_PROGRESS_SECONDS). "
     "Default: 15.",
     &set.progress_seconds, &given[PROGRESS_SECONDS], 0, 86400},
    {"--json", OPTION_SWITCH, false, NULL, "One JSON object on stdout instead of lines.", &set.json,
     NULL, 0, 0},
    {"--quiet", OPTION_SWITCH, false, NULL, "No progress on stderr; errors only.", &set.quiet, NULL,
     0, 0},
};

static const char *const positional[] = {"TRACK", NULL};

const struct command fetch_command = {
    .name = "mlxfast fetch",
    .summary = "Gets the files that a track pins, and proves them: TRACK is an id in tracks/, or a "
               "track's folder.",
    .notes =
        "Exit codes: 0 every file is there and right; 1 refused or failed; 2 usage; 130 "
        "interrupted.\n"
        "Files: what is under way lies in .mlxfast-fetch/ in the folder and is continued by the "
        "next run; a file has its name only once its hash is right and it is on the disk. "
        ".mlxfast-reference-cache.lock: later runs compare sizes and times with it and hash "
        "nothing. .mlxfast-mutation.lock: held while a run changes the folder.",
    .positional = positional,
    .options = specs,
    .option_count = sizeof specs / sizeof *specs};

enum { OF_TARGET = 1, OF_DRAFTER = 2, OF_BOTH = 3 };

static const struct variable {
    const char *name;
    enum knob knob;
    const char **text;
    int64_t *number;
    int64_t min, max;
    int of;
} variables[] = {
    {"MLXFAST_REFERENCE_BASE_URL", BASE_URL, &set.base_url, NULL, 0, 0, OF_TARGET},
    {"MLXFAST_DFLASH_ASSISTANT_BASE_URL", BASE_URL, &set.base_url, NULL, 0, 0, OF_DRAFTER},
    {"MLXFAST_REFERENCE_FALLBACK", FALLBACK, &set.fallback, NULL, 0, 0, OF_TARGET},
    {"MLXFAST_REFERENCE_DIR", DIR, &set.dir, NULL, 0, 0, OF_TARGET},
    {"MLXFAST_DFLASH_DRAFTER_DIR", DIR, &set.dir, NULL, 0, 0, OF_DRAFTER},
    {"MLXFAST_REFERENCE_CACHE_DIR", CACHE_DIR, &set.cache_dir, NULL, 0, 0, OF_TARGET},
    {"MLXFAST_DFLASH_ASSISTANT_DIR", CACHE_DIR, &set.cache_dir, NULL, 0, 0, OF_DRAFTER},
    {"MLXFAST_HF_HOME", HF_HOME, &set.hf_home, NULL, 0, 0, OF_BOTH},
    {"MLXFAST_REFERENCE_COMPAT_LINK", LINK, &set.link, NULL, 0, 0, OF_TARGET},
    {"MLXFAST_REFERENCE_MANIFEST_PATH", MANIFEST, &set.manifest, NULL, 0, 0, OF_TARGET},
    {"MLXFAST_REFERENCE_CACHE_LOCK_PATH", LOCK_PATH, &set.lock_path, NULL, 0, 0, OF_TARGET},
    {"MLXFAST_REFERENCE_CA_FILE", CA_FILE, &set.ca_file, NULL, 0, 0, OF_BOTH},
    {"MLXFAST_REFERENCE_DOWNLOAD_JOBS", JOBS, NULL, &set.jobs, 1, 16, OF_BOTH},
    {"MLXFAST_REFERENCE_MIN_FREE_GIB", MIN_FREE, NULL, &set.min_free_gib, 0, 1 << 20, OF_TARGET},
    {"MLXFAST_REFERENCE_RETRIES", RETRIES, NULL, &set.retries, 0, 1000, OF_BOTH},
    {"MLXFAST_REFERENCE_RETRY_DELAY_MS", RETRY_DELAY, NULL, &set.retry_delay_ms, 0, 60000, OF_BOTH},
    {"MLXFAST_REFERENCE_STALL_BYTES", STALL_BYTES, NULL, &set.stall_bytes, 0, INT32_MAX, OF_BOTH},
    {"MLXFAST_REFERENCE_STALL_SECONDS", STALL_SECONDS, NULL, &set.stall_seconds, 1, 86400, OF_BOTH},
    {"MLXFAST_REFERENCE_CONNECT_SECONDS", CONNECT_SECONDS, NULL, &set.connect_seconds, 1, 3600,
     OF_BOTH},
    {"MLXFAST_REFERENCE_MUTATION_LOCK_TIMEOUT", LOCK_WAIT, NULL, &set.lock_wait_seconds, 0, 604800,
     OF_BOTH},
    {"MLXFAST_REFERENCE_MUTATION_LOCK_STALE", LOCK_STALE, NULL, &set.lock_stale_seconds, 30, 604800,
     OF_BOTH},
    {"MLXFAST_REFERENCE_PROGRESS_SECONDS", PROGRESS_SECONDS, NULL, &set.progress_seconds, 0, 86400,
     OF_BOTH},
};

static const struct {
    const char *name;
    enum knob knob;
    bool *target;
    bool inverted; /* the variable says what the flag takes away */
} switches[] = {
    {"MLXFAST_SKIP_WEIGHTS_DOWNLOAD", SKIP, &set.skip_download, false},
    {"MLXFAST_REFERENCE_HASH_VERIFY", NO_HASH, &set.no_hash_verify, true},
    {"MLXFAST_REFERENCE_POST_DOWNLOAD_FULL_VERIFY", FULL, &set.full_verify, false},
};

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool bad_variable(struct error *err, const char *name, const char *value, const char *why)
{
    error_set(err, "USAGE", "%s", why);
    return error_at(err, NULL, name, value);
}

static bool is_word(const char *value, const char *const *words)
{
    for (; *words; words++)
        if (strcasecmp(value, *words) == 0)
            return true;
    return false;
}

static const char *const yes[] = {"1", "true", "yes", "on", NULL};
static const char *const no[] = {"0", "false", "no", "off", "none", NULL};

static bool read_environment(struct error *err)
{
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const struct variable *v = &variables[i];
        const char *value = environment(v->name);
        if (!value || given[v->knob] || !(v->of & (set.drafter ? OF_DRAFTER : OF_TARGET)))
            continue;
        given[v->knob] = true;
        if (v->text) {
            *v->text = value;
        } else if (!number_int64(value, v->min, v->max, v->number)) {
            char why[96];
            snprintf(why, sizeof why, "expected a whole number from %" PRId64 " to %" PRId64,
                     v->min, v->max);
            return bad_variable(err, v->name, value, why);
        }
    }
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        const char *value = environment(switches[i].name);
        if (!value || given[switches[i].knob])
            continue;
        if (!is_word(value, yes) && !is_word(value, no))
            return bad_variable(err, switches[i].name, value, "expected 1 or 0");
        *switches[i].target = is_word(value, switches[i].inverted ? no : yes);
    }
    return true;
}

/* "Name: value" on one line of visible characters. The value is a secret: no message shows it. */
static bool check_header(const char *text, const char *field, struct error *err)
{
    const size_t n =
        strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_");
    bool good = n > 0 && text[n] == ':' && text[n + 1 + strspn(text + n + 1, " ")] != '\0';
    for (const char *p = text; *p; p++)
        good = good && (unsigned char)*p >= ' ' && *p != 0x7f;
    return good || bad_variable(err, field, "(not shown)", "a header is one line, \"Name: value\"");
}

static bool read_auth_header(struct arena *a, struct error *err)
{
    const char *name =
        set.drafter ? "MLXFAST_DFLASH_ASSISTANT_AUTH_HEADER" : "MLXFAST_REFERENCE_AUTH_HEADER";
    if (!set.auth_header_file) {
        set.auth_header = environment(name);
        return !set.auth_header || check_header(set.auth_header, name, err);
    }
    struct buffer text = {0};
    if (!file_read(set.auth_header_file, 65536, &text, err))
        return false;
    while (text.length > 0 &&
           (text.data[text.length - 1] == '\n' || text.data[text.length - 1] == '\r'))
        text.data[--text.length] = '\0';
    set.auth_header = arena_strdup(a, text.data ? text.data : "");
    const bool whole = strlen(set.auth_header) == text.length;
    buffer_free(&text);
    return check_header(whole ? set.auth_header : "", "--auth-header-file", err);
}

static const char *trimmed(struct arena *a, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    return arena_strndup(a, path, n);
}

enum options_result fetch_settings_parse(struct arena *a, int argc, char **argv,
                                         struct fetch_settings *s, struct error *err)
{
    const char *arguments[1] = {NULL};
    set = (struct fetch_settings){.jobs = 3,
                                  .retries = 5,
                                  .retry_delay_ms = 1000,
                                  .min_free_gib = -1,
                                  .stall_bytes = 1048576, /* dflash-track.md section 14 */
                                  .stall_seconds = 120,
                                  .connect_seconds = 30,
                                  .lock_wait_seconds = 1800,
                                  .lock_stale_seconds = 60,
                                  .progress_seconds = 15};
    const enum options_result result = options_parse(&fetch_command, argc, argv, arguments, err);
    if (result != OPTIONS_OK)
        return result;
    set.track = arguments[0];
    if (!read_environment(err) || !read_auth_header(a, err))
        return OPTIONS_ERROR;
    if (set.fallback && is_word(set.fallback, no))
        set.fallback = "";
    else if (set.fallback && is_word(set.fallback, yes))
        set.fallback = NULL;
    if (set.link)
        set.link = is_word(set.link, no) ? "" : trimmed(a, set.link);
    *s = set;
    return OPTIONS_OK;
}

bool fetch_settings_folder(struct arena *a, const struct fetch_settings *s,
                           const struct fetch_track *t, const char **folder, struct error *err)
{
    if (s->dir && s->cache_dir && !file_is_same(s->dir, s->cache_dir)) {
        error_set(err, "USAGE", "--dir and --cache-dir (or their variables) name two folders");
        return error_at(err, s->dir, "--cache-dir", s->cache_dir);
    }
    const char *own = s->dir ? s->dir : s->cache_dir ? s->cache_dir : t->folder;
    if (own) {
        *folder = trimmed(a, own);
        return true;
    }
    const char *home = s->hf_home ? s->hf_home : environment("HF_HOME");
    if (!home) {
        const char *user = environment("HOME");
        if (!user)
            return error_set(err, "USAGE", "HOME is not set: name the folder with --dir");
        home = path_join(a, user, ".cache/huggingface");
    }
    const size_t owner = strcspn(t->repo, "/");
    *folder = arena_printf(a, "%s/hub/models--%.*s--%s/snapshots/%s", trimmed(a, home), (int)owner,
                           t->repo, t->repo + owner + 1, t->revision);
    return true;
}
