#include "judge/leg.h"

#include "base/buffer.h"
#include "base/clock.h"

#include <stdio.h>
#include <string.h>

/* An engine's word about itself: clipped, and no control bytes. */
static const char *engine_text(struct arena *a, const char *text)
{
    if (text == NULL)
        return NULL;
    char shown[257];
    text_copy(shown, sizeof shown, text);
    /* A clipped UTF-8 sequence would make the document invalid. */
    for (size_t n = strlen(shown); n > 0 && !utf8_valid(shown, n); n--)
        shown[n - 1] = '\0';
    for (char *p = shown; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    return arena_strdup(a, shown);
}

static struct leg_identity read_identity(struct arena *a, const struct wire_response *h)
{
    struct leg_identity i = {.protocol_version = h->protocol_version.value,
                             .backend = engine_text(a, h->backend.text),
                             .device = engine_text(a, h->device.text),
                             .arithmetic = engine_text(a, h->arithmetic.text)};
    if (h->runner.present) {
        i.runner_id = engine_text(a, h->runner.id);
        i.runner_model_type = engine_text(a, h->runner.model_type);
        i.runner_build = engine_text(a, h->runner.build);
        i.runner_manifest_sha256 = engine_text(a, h->runner.manifest_sha256);
    }
    if (h->resident.present) {
        i.has_resident = true;
        i.resident_pid = h->resident.pid;
        i.resident_load_epoch = h->resident.load_epoch;
    }
    if (h->head_provenance.present)
        i.head_provenance_sha256 = engine_text(a, h->head_provenance.sha256);
    return i;
}

void leg_seal_identity(const struct leg_identity *i, struct score_document *d)
{
    const struct {
        const char *key, *text;
    } texts[] = {{"engine_backend", i->backend},
                 {"engine_device", i->device},
                 {"engine_arithmetic", i->arithmetic},
                 {"runner_id", i->runner_id},
                 {"runner_model_type", i->runner_model_type},
                 {"runner_build", i->runner_build},
                 {"runner_manifest_sha256", i->runner_manifest_sha256},
                 {"head_provenance_sha256", i->head_provenance_sha256}};
    score_set_int(d, "engine_protocol_version", i->protocol_version);
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        if (texts[k].text != NULL)
            score_set_text(d, texts[k].key, texts[k].text);
    if (i->has_resident) {
        score_set_int(d, "resident_pid", i->resident_pid);
        score_set_int(d, "resident_load_epoch", (int64_t)i->resident_load_epoch);
    }
}

void leg_seal_speculation(const struct measure_result *m, struct score_document *d)
{
    const bool echoed = m->effective_spec.present;
    score_set_text(d, "effective_spec_mode", echoed ? m->effective_spec.mode : "serial");
    score_set_int(d, "effective_spec_depth", m->speculated ? m->effective_spec.mtp_depth.value : 0);
    if (!m->speculated)
        return; /* a serial leg seals none of the counters */
    json_t *lengths = json_array();
    for (size_t i = 0; i < m->acceptance_lengths.count; i++)
        json_array_append_new(lengths, json_integer(m->acceptance_lengths.items[i]));
    score_set_json(d, "acceptance_lengths", lengths);
    score_set_int(d, "spec_rounds", (int64_t)m->rounds);
    score_set_int(d, "spec_drafted_total", (int64_t)m->drafted);
    score_set_int(d, "spec_accepted_total", (int64_t)m->accepted);
    if (m->drafted > 0)
        score_set_number(d, "spec_acceptance_rate", (double)m->accepted / (double)m->drafted);
    if (m->verification_mode != NULL)
        score_set_text(d, "spec_verification_mode", m->verification_mode);
    if (m->disagreements.present)
        score_set_int(d, "spec_verify_replay_disagreements", (int64_t)m->disagreements.value);
    if (m->rectangular_rounds.present)
        score_set_int(d, "spec_rectangular_verification_rounds",
                      (int64_t)m->rectangular_rounds.value);
    if (m->serial_rounds.present)
        score_set_int(d, "spec_serial_verification_rounds", (int64_t)m->serial_rounds.value);
}

/* Timing comes first, correctness after it in barrier intervals of its own: the weights are loaded
 * once. */
static bool drive(struct client *c, const struct leg_plan *p, double ceiling, struct arena *a,
                  struct leg_result *out, struct error *err)
{
    const struct measure_plan plan = {.oracle = p->oracle,
                                      .warmup_runs = p->warmup_runs,
                                      .rewarm_runs = p->rewarm_runs,
                                      .spec = p->spec,
                                      .run_ceiling_seconds = ceiling,
                                      .tolerant = p->tolerant,
                                      .watch = p->watch,
                                      .quiet = p->silent};
    out->started = true;
    out->identity = read_identity(a, client_hello(c));
    if (!p->untimed && !measure_run(c, &plan, a, &out->timing, err))
        return false;
    out->timing.verification_mode = engine_text(a, out->timing.verification_mode);
    if (p->gates == NULL)
        return true;
    const int64_t began = clock_now_ns();
    out->gates_ran = gates_run(c, p->gates, &out->gates, err);
    out->correctness_seconds = clock_seconds(began);
    return out->gates_ran;
}

bool leg_run(const struct leg_plan *p, struct arena *a, struct leg_result *out, struct error *err)
{
    *out = (struct leg_result){.timing.first_different = -1};
    struct client_options options = {.engine = p->engine,
                                     .weights = p->weights,
                                     .drafter = p->drafter,
                                     .resources = p->resources,
                                     .environment = p->environment,
                                     .yarn_magnitude = p->yarn_magnitude,
                                     .arithmetic = p->arithmetic,
                                     .sandbox = p->sandbox,
                                     .speculative_v1_1 = true,
                                     .withhold_text = p->withhold_text,
                                     .echo_stderr = !p->silent};
    double ceiling;
    struct client *c = NULL;
    if (!client_deadlines_from_environment(&options, err) ||
        !client_ceiling_from_environment(&ceiling, err) || !client_start(&options, &c, err)) {
        client_free(c); /* one whose hello failed is kept for its stderr */
        return false;
    }
    const bool ok = drive(c, p, ceiling, a, out, err);
    client_end(c);
    out->resident_bytes = out->timing.resident_bytes; /* 0: no window was measured */
    /* The kernel's high-water mark lags behind its own current figure by some pages. */
    const uint64_t most = client_peak_rss(c);
    out->peak_bytes = out->resident_bytes > most ? out->resident_bytes : most;
    if (out->resident_bytes == 0)
        out->resident_bytes = most;
    client_free(c);
    return ok;
}
