#include "arena/doctor/doctor.h"

#include "arena/doctor/examine.h"

#include <string.h>

/* All programs together may take so long; what is not asked by then is not known. A quiet machine
 * needs about five seconds. */
static const double whole_seconds = 10;

static struct doctor_settings set;

static const struct option_spec options[] = {
    {"--track", OPTION_TEXT, false, "ID",
     "Looks at this track's weights too, as mlxfast preflight does: an id in tracks/, or a track's "
     "folder.",
     &set.track, NULL, 0, 0},
    {"--weights", OPTION_TEXT, false, "DIR",
     "The folder whose disk is measured, and which --track is about. Default: "
     "MLXFAST_WEIGHTS_PATH, else the track's own, else the repository.",
     &set.weights, NULL, 0, 0},
    {"--json", OPTION_SWITCH, false, NULL, "One JSON object on stdout instead of lines.", &set.json,
     NULL, 0, 0},
};

const struct command doctor_command = {
    .name = "mlxfast doctor",
    .summary =
        "Looks at this machine, these builds and these weights: a line for each thing, ok, warn "
        "or FIX, with what mends it.",
    .notes =
        "Takes about five seconds. Reads, and changes nothing: a temporary file without a name is "
        "written where no large file lies to measure the disk by.\n"
        "Exit codes: 0 nothing must be mended (warnings may be there); 1 something must, a line "
        "with FIX; 2 usage, an unknown track; 130 interrupted.\n"
        "Environment: MLXFAST_WEIGHTS_PATH, and what mlxfast fetch knows of folders; "
        "MLXFAST_GPU_TEMP_CMD. MLXFAST_SYSTEM_FILES=DIR, for tests: /proc and /sys are below "
        "it.",
    .options = options,
    .option_count = sizeof options / sizeof *options};

enum options_result doctor_settings_parse(int argc, char **argv, struct doctor_settings *s,
                                          struct error *err)
{
    set = (struct doctor_settings){0};
    const enum options_result result = options_parse(&doctor_command, argc, argv, NULL, err);
    *s = set;
    return result;
}

enum asked patient_ask(const struct patient *p, const char *const *argv, double seconds,
                       struct buffer *out, struct buffer *complaint)
{
    const double left = p->began + whole_seconds - p->m->now(p->m->context);
    if (left <= 0) {
        buffer_clear(out);
        buffer_clear(complaint);
        buffer_text(out, "");
        buffer_text(complaint, "was not asked: other programs took too long");
        return ASKED_TOO_LONG;
    }
    return p->m->ask(p->m->context, argv, seconds < left ? seconds : left, out, complaint);
}

const char *asked_text(const struct patient *p, enum asked how, const struct buffer *complaint)
{
    const char *said = complaint->length > 0 ? complaint->data : NULL;
    switch (how) {
    case ASKED_IN_VAIN:
        return said ? arena_printf(p->a, "does not start (%s)", said) : "does not start";
    case ASKED_TOO_LONG:
        return said && strncmp(said, "was not", 7) == 0 ? arena_strdup(p->a, said)
                                                        : "did not end in time";
    default:
        return said                ? arena_printf(p->a, "says: %s", said)
               : how == ASKED_WELL ? "says nothing that can be read"
                                   : "fails without a word";
    }
}

static bool examine(const struct patient *p)
{
    struct process_table processes;
    examine_kernels(p);
    examine_processors(p);
    examine_siblings(p);
    examine_governor(p);
    examine_power(p);
    examine_timer(p);
    /* What others do, before anything of ours works. */
    if (!examine_activity(p))
        return false;
    examine_memory(p);
    if (!examine_memory_rate(p))
        return false;
    examine_huge_pages(p);
    examine_swap(p);
    examine_space(p);
    if (!examine_disk_rate(p) || !examine_gpu(p) || !examine_sandbox(p) || !examine_tools(p))
        return false;
    examine_libraries(p);
    if (!examine_builds(p))
        return false;
    processes_read(p->m, p->a, &processes);
    examine_orphans(p, &processes);
    examine_residents(p, &processes);
    examine_environment(p);
    return examine_weights(p);
}

bool doctor_examine(const struct machine *m, const struct doctor_settings *s, struct findings *f,
                    struct error *err)
{
    struct patient p = {.m = m, .f = f, .a = &f->arena, .began = m->now(m->context)};
    if (!patient_find_weights(&p, s->track, s->weights, err))
        return false;
    return examine(&p) || error_set(err, "INTERRUPTED", "stopped by a signal");
}

void doctor_write_summary(const struct findings *f, struct buffer *out)
{
    buffer_printf(out, "%zu ok, %zu warn, ", f->of[FINDING_OK], f->of[FINDING_WARN]);
    if (f->of[FINDING_FIX])
        buffer_printf(out, "%zu FIX: what those lines say must be mended", f->of[FINDING_FIX]);
    else
        buffer_text(out, "nothing that must be mended");
}

json_t *doctor_to_json(const struct findings *f, double seconds)
{
    return json_pack("{s:b, s:i, s:i, s:i, s:f, s:o}", "passed", f->of[FINDING_FIX] == 0, "ok",
                     (int)f->of[FINDING_OK], "warn", (int)f->of[FINDING_WARN], "fix",
                     (int)f->of[FINDING_FIX], "seconds", seconds, "findings",
                     finding_list_to_json(f));
}
