/* Programs of others that commands of ours need, the sandbox, and libraries. */
#include "arena/doctor/examine.h"

#include "base/file.h"
#include "base/json.h"
#include "base/number.h"

#include <stdlib.h>
#include <string.h>

/* What of ours needs it, and what becomes of us without it. */
static const struct tool {
    const char *name, *needed_by;
    enum finding_state missing;
    const char *package;
} tools[] = {
    {"git", "benchd measure-job --write-gate-base, ./check", FINDING_WARN, "git"},
    {"curl", "tools/fetch-benchd.sh (mlxfast fetch has libcurl in it)", FINDING_WARN, "curl"},
    {"python3", "./benchmark.sh, ./benchmark-dflash.sh, ./setup-dflash.sh, ./demo", FINDING_FIX,
     "python3"},
    {"bwrap", "the sandbox of every run, benchd official without fail", FINDING_WARN, "bubblewrap"},
    {"make", "./setup.sh, ./benchmark.sh: building", FINDING_WARN, "make"},
    {"gcc", "./setup.sh, ./benchmark.sh: building", FINDING_WARN, "gcc"},
    {"clang-format", "make format, ./check", FINDING_WARN, "clang-format"},
};

/* The first word that begins with a digit, outside of brackets: "gcc (Debian 12.2.0-14) 12.2.0". */
static const char *version_of(struct arena *a, const char *text)
{
    const size_t line = strcspn(text, "\n");
    int depth = 0;
    for (size_t i = 0; i < line; i++) {
        depth += (text[i] == '(') - (text[i] == ')');
        const bool begins = i == 0 || text[i - 1] == ' ';
        if (depth == 0 && begins && text[i] >= '0' && text[i] <= '9')
            return arena_strndup(a, text + i, strcspn(text + i, " \n"));
    }
    return "of unknown version";
}

static bool examine_tool(const struct patient *p, const struct tool *t)
{
    struct buffer out = {0}, complaint = {0};
    const char *path = machine_program(p->m, p->a, t->name);
    const char *const argv[] = {path, "--version", NULL};
    const enum asked how = path ? patient_ask(p, argv, 2, &out, &complaint) : ASKED_IN_VAIN;
    const char *install = arena_printf(p->a, "sudo apt-get install %s", t->package);
    if (!path)
        finding_add(p->f, t->name, t->missing, install, "missing; needed by %s", t->needed_by);
    else if (how == ASKED_WELL)
        finding_add(p->f, t->name, FINDING_OK, NULL, "%s %s; needed by %s", path,
                    version_of(p->a, out.data), t->needed_by);
    else if (how != ASKED_INTERRUPTED)
        finding_add(p->f, t->name, t->missing,
                    arena_printf(p->a, "sudo apt-get install --reinstall %s", t->package),
                    "%s --version %s; needed by %s", path, asked_text(p, how, &complaint),
                    t->needed_by);
    buffer_free(&out);
    buffer_free(&complaint);
    return how != ASKED_INTERRUPTED;
}

bool examine_tools(const struct patient *p)
{
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
        if (!examine_tool(p, &tools[i]))
            return false;
    return true;
}

/* ---- the sandbox, by the judge's own probe ---- */

/* Why no user namespace can be made, as far as settings of the kernel tell. */
static const char *mend_sandbox(const struct patient *p)
{
    static const struct {
        const char *file, *bad, *fix;
    } settings[] = {
        {"/proc/sys/kernel/unprivileged_userns_clone", "0",
         "sudo sysctl kernel.unprivileged_userns_clone=1"},
        {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
         "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"},
        {"/proc/sys/user/max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces=15000"},
    };
    if (!machine_program(p->m, p->a, "bwrap"))
        return "sudo apt-get install bubblewrap";
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const char *value = machine_line(p->m, p->a, settings[i].file);
        if (value && strcmp(value, settings[i].bad) == 0)
            return settings[i].fix;
    }
    return "allow user namespaces (in a container: docker run --security-opt seccomp=unconfined "
           "--security-opt apparmor=unconfined)";
}

bool examine_sandbox(const struct patient *p)
{
    const char *judge = path_join(p->a, p->m->build, "benchd");
    const char *const argv[] = {judge, "probe-sandbox", "--json", NULL};
    struct buffer out = {0}, complaint = {0};
    const enum asked how = patient_ask(p, argv, 4, &out, &complaint);
    json_t *o = how == ASKED_WELL || how == ASKED_FAILED
                    ? json_parse_strict(out.data, out.length, JSON_DEPTH_DEFAULT, "benchd", NULL)
                    : NULL;
    const json_t *wrong = json_object_get(o, "wrong"), *count = json_object_get(o, "count");
    const long long tries = json_integer_value(count), failed = json_integer_value(wrong);
    if (json_is_integer(wrong) && tries > 0 && failed == 0)
        finding_add(p->f, "sandbox", FINDING_OK, NULL,
                    "bubblewrap and seccomp: %lld tries, each as it must be", tries);
    else if (json_is_integer(wrong) && tries > 0)
        finding_add(p->f, "sandbox", FINDING_FIX,
                    arena_printf(p->a, "%s probe-sandbox names them", shell_word(p->a, judge)),
                    "%lld of %lld tries did not end as they must", failed, tries);
    else if (how == ASKED_FAILED)
        finding_add(p->f, "sandbox", FINDING_WARN, mend_sandbox(p),
                    "none can be made: local runs go on without one and say so, a ranked run is "
                    "refused (%s)",
                    complaint.length > 0 ? complaint.data : asked_text(p, how, &complaint));
    else if (how != ASKED_INTERRUPTED)
        finding_add(p->f, "sandbox", FINDING_WARN, NULL, "not known: `%s probe-sandbox` %s", judge,
                    asked_text(p, how, &complaint));
    json_decref(o);
    buffer_free(&out);
    buffer_free(&complaint);
    return how != ASKED_INTERRUPTED;
}

/* ---- libraries ---- */

/* -1, 0, 1 by the numbers in two versions, "10.42 2022-12-11" and "10.40" included. */
static int compare_versions(const char *a, const char *b)
{
    for (;;) {
        char *after_a, *after_b;
        const unsigned long x = strtoul(a, &after_a, 10), y = strtoul(b, &after_b, 10);
        if (after_a == a || after_b == b)
            return 0;
        if (x != y)
            return x < y ? -1 : 1;
        if (*after_a != '.' || *after_b != '.')
            return 0;
        a = after_a + 1;
        b = after_b + 1;
    }
}

void examine_libraries(const struct patient *p)
{
    struct buffer text = {0}, older = {0};
    for (size_t i = 0; i < p->m->library_count; i++) {
        const struct library *l = &p->m->libraries[i];
        buffer_printf(&text, "%s%s %s", i ? ", " : "", l->name, l->here);
        if (compare_versions(l->here, l->built) < 0)
            buffer_printf(&older, "%s%s %s (built with %s)", older.length ? ", " : "", l->name,
                          l->here, l->built);
    }
    if (older.length > 0)
        finding_add(p->f, "libraries", FINDING_WARN, "make clean && make",
                    "older than what this was built with: %s", older.data);
    else
        finding_add(p->f, "libraries", FINDING_OK, NULL, "%s", text.length ? text.data : "none");
    buffer_free(&text);
    buffer_free(&older);
}
