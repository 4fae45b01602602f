/* Our programs: there, able to start, and no older than what they are made of. A number of
 * yesterday's engine is the commonest wrong number. */
#include "arena/doctor/examine.h"

#include "base/file.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH_MOST = 8 };

static const struct program {
    const char *name;
    const char *folders[5]; /* of src/; the file of src/programs is its own name with .c */
    enum finding_state missing;
} programs[] = {
    {"bench-worker", {"base", "wire", "engine"}, FINDING_FIX},
    {"benchd", {"base", "wire", "judge"}, FINDING_FIX},
    {"record-correctness-golden", {"base", "wire", "judge"}, FINDING_WARN},
    {"mlxfast", {"base", "wire", "engine", "arena"}, FINDING_WARN},
};

struct newest {
    struct timespec when;
    const char *file;
};

static bool is_later(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

static void consider(const struct patient *p, const char *path, struct newest *n)
{
    struct stat s;
    if (stat(path, &s) == 0 && S_ISREG(s.st_mode) && is_later(s.st_mtim, n->when)) {
        n->when = s.st_mtim;
        n->file = arena_strdup(p->a, path);
    }
}

/* What make compiles here: a file of another instruction set leaves a program as it is. */
static bool is_source(const char *name)
{
#if defined(__x86_64__)
    static const char *const foreign[] = {"_neon.c"};
#elif defined(__aarch64__)
    static const char *const foreign[] = {"_avx2.c", "_avx512.c"};
#else
    static const char *const foreign[] = {"_avx2.c", "_avx512.c", "_neon.c"};
#endif
    static const char *const endings[] = {".c", ".h", ".cu", ".css", ".js"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (text_ends(name, foreign[i]))
            return false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (text_ends(name, endings[i]))
            return true;
    return false;
}

static void search(const struct patient *p, const char *folder, int depth, struct newest *n)
{
    DIR *d = depth < DEPTH_MOST ? opendir(folder) : NULL;
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        const char *path = path_join(p->a, folder, e->d_name);
        if (is_source(e->d_name))
            consider(p, path, n);
        else if (file_is_directory(path))
            search(p, path, depth + 1, n);
    }
    if (d)
        closedir(d);
}

/* The command that builds anew, from wherever one stands. */
static const char *make_command(const struct patient *p)
{
    const char *r = p->m->repository;
    if (!r)
        return "./setup.sh, in the repository";
    if (file_is_same(path_join(p->a, r, "build"), p->m->build))
        return arena_printf(p->a, "make -C %s", shell_word(p->a, r));
    return arena_printf(p->a, "make -C %s BUILD=%s", shell_word(p->a, r),
                        shell_word(p->a, p->m->build));
}

static bool examine_program(const struct patient *p, const struct program *program)
{
    const char *path = path_join(p->a, p->m->build, program->name), *repository = p->m->repository;
    const char *const argv[] = {path, "--help", NULL};
    struct newest n = {{0, 0}, NULL};
    struct buffer out = {0}, complaint = {0};
    struct stat s;
    if (stat(path, &s) != 0) {
        finding_add(p->f, program->name, program->missing, make_command(p), "%s is not there",
                    path);
        return true;
    }
    const enum asked how = patient_ask(p, argv, 2, &out, &complaint);
    if (how == ASKED_INTERRUPTED) {
        buffer_free(&out);
        buffer_free(&complaint);
        return false;
    }
    for (size_t i = 0; repository && i < 5 && program->folders[i]; i++)
        search(p, arena_printf(p->a, "%s/src/%s", repository, program->folders[i]), 0, &n);
    if (repository) {
        consider(p, arena_printf(p->a, "%s/src/programs/%s.c", repository, program->name), &n);
        consider(p, path_join(p->a, repository, "Makefile"), &n);
    }
    if (n.file && is_later(n.when, s.st_mtim))
        finding_add(p->f, program->name, FINDING_FIX, make_command(p), "%s is older than %s", path,
                    n.file + strlen(repository) + 1);
    else if (how == ASKED_TOO_LONG)
        finding_add(p->f, program->name, FINDING_WARN, NULL, "%s --help %s", path,
                    asked_text(p, how, &complaint));
    else if (how != ASKED_WELL)
        finding_add(p->f, program->name, FINDING_FIX,
                    arena_printf(p->a, "%s/tools/install-deps && %s",
                                 repository ? shell_word(p->a, repository) : ".", make_command(p)),
                    "%s does not start here: --help %s", path, asked_text(p, how, &complaint));
    else
        finding_add(p->f, program->name, FINDING_OK, NULL, "%s starts, %s", path,
                    n.file ? "and is newer than all its sources" : "its sources are not here");
    buffer_free(&out);
    buffer_free(&complaint);
    return true;
}

bool examine_builds(const struct patient *p)
{
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        if (!examine_program(p, &programs[i]))
            return false;
    return true;
}
