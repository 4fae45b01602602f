#include "judge/cohort.h"

#include "base/json.h"
#include "base/stats.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the report ---- */

static bool bad_report(struct error *err, const struct error *inner)
{
    error_set(err, "Protocol", "the replay's report: %s", inner->message);
    return error_at(err, NULL, inner->field, inner->value);
}

/* An optional number: absent or null is not set. */
static bool read_optional(const struct json_view *v, const char *key, bool *has, double *out,
                          struct error *err)
{
    const json_t *value = json_object_get(v->object, key);
    *has = value != NULL && !json_is_null(value);
    return !*has || json_get_double(v, key, out, err);
}

static bool read_position(const struct json_view *v, struct cohort_position *out, struct error *err)
{
    *out = (struct cohort_position){0};
    if (!json_get_int64(v, "committed_token", INT64_MIN, INT64_MAX, &out->committed_token, err) ||
        !json_get_int64(v, "sequential_argmax", INT64_MIN, INT64_MAX, &out->sequential_argmax,
                        err) ||
        !read_optional(v, "committed_relative_gap", &out->has_committed_gap, &out->committed_gap,
                       err))
        return false;
    const json_t *gap = json_array_get(json_object_get(v->object, "ranked_relative_gaps"),
                                       COHORT_NEAR_TIE_GAP_INDEX);
    out->has_near_gap = json_is_number(gap);
    out->near_gap = out->has_near_gap ? json_number_value(gap) : 0;
    return true;
}

static bool read_stream(struct arena *a, const struct json_view *v, size_t slot,
                        struct cohort_stream *out, struct error *err)
{
    int64_t said;
    const json_t *positions;
    if (!json_get_int64(v, "slot", (int64_t)slot, (int64_t)slot, &said, err) ||
        !json_get_array(v, "positions", &positions, err))
        return false;
    out->count = json_array_size(positions);
    out->positions = arena_array(a, out->count, sizeof *out->positions);
    for (size_t i = 0; i < out->count; i++) {
        char path[96];
        snprintf(path, sizeof path, "%s.positions[%zu]", v->path, i);
        const struct json_view p = {json_array_get(positions, i), "", path};
        if (!json_is_object(p.object)) {
            error_set(err, "JSON-FIELD-TYPE", "a position is an object");
            return error_at(err, NULL, path, NULL);
        }
        if (!read_position(&p, &out->positions[i], err))
            return false;
    }
    return true;
}

bool cohort_report_read(struct arena *a, const struct wire_replay *replay,
                        struct cohort_report *out, struct error *err)
{
    struct error inner = {0};
    const json_t *streams;
    const struct json_view v = {replay->report, "", ""};
    *out = (struct cohort_report){0};
    if (!json_is_object(replay->report)) {
        error_set(&inner, "JSON-FIELD-TYPE", "it is an object");
        return bad_report(err, &inner);
    }
    if (!json_get_array(&v, "streams", &streams, &inner) ||
        !read_optional(&v, "rel_envelope", &out->has_envelope, &out->envelope, &inner))
        return bad_report(err, &inner);
    out->count = json_array_size(streams);
    out->streams = arena_array(a, out->count, sizeof *out->streams);
    for (size_t i = 0; i < out->count; i++) {
        char path[64];
        snprintf(path, sizeof path, "streams[%zu]", i);
        const struct json_view s = {json_array_get(streams, i), "", path};
        if (!json_is_object(s.object)) {
            error_set(&inner, "JSON-FIELD-TYPE", "a stream is an object");
            error_at(&inner, NULL, path, NULL);
            return bad_report(err, &inner);
        }
        if (!read_stream(a, &s, i, &out->streams[i], &inner))
            return bad_report(err, &inner);
    }
    return true;
}

/* ---- the gate ---- */

static bool at_stream(struct error *err, size_t slot)
{
    char field[32];
    snprintf(field, sizeof field, "streams[%zu]", slot);
    return error_at(err, NULL, field, NULL);
}

static bool check_structure(const struct cohort_report *r, const struct wire_token_lists *committed,
                            struct error *err)
{
    if (r->count != committed->count)
        return error_set(err, "StreamCountMismatch", "the replay has %zu streams, the run %zu",
                         r->count, committed->count);
    for (size_t s = 0; s < r->count; s++) {
        const size_t want = committed->items[s].count;
        if (want == 0) {
            error_set(err, "EmptyStream", "stream %zu committed no token", s);
            return at_stream(err, s);
        }
        if (r->streams[s].count != want) {
            error_set(err, "StreamLengthMismatch",
                      "the replay of stream %zu has %zu positions, the run %zu tokens", s,
                      r->streams[s].count, want);
            return at_stream(err, s);
        }
    }
    return true;
}

/* A replay of other tokens than the run's would judge nothing. */
static bool check_echo(const struct cohort_report *r, const struct wire_token_lists *committed,
                       struct error *err)
{
    for (size_t s = 0; s < r->count; s++)
        for (size_t i = 0; i < r->streams[s].count; i++)
            if (r->streams[s].positions[i].committed_token != committed->items[s].items[i]) {
                error_set(err, "CohortEchoDivergence",
                          "the replay of stream %zu judged another token at position %zu", s, i);
                return at_stream(err, s);
            }
    return true;
}

static int64_t count_mismatches(const struct cohort_stream *s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s->count; i++)
        n += s->positions[i].committed_token != s->positions[i].sequential_argmax;
    return n;
}

bool cohort_gate(const struct cohort_report *r, const struct wire_token_lists *committed,
                 int64_t *mismatches, struct error *err)
{
    if (!check_structure(r, committed, err) || !check_echo(r, committed, err))
        return false;
    bool ok = true;
    for (size_t s = 0; s < r->count; s++) {
        const int64_t wrong = count_mismatches(&r->streams[s]);
        const int64_t all = (int64_t)r->streams[s].count;
        if (mismatches != NULL)
            mismatches[s] = wrong;
        if (ok && wrong * 1000 > COHORT_BUDGET_PER_THOUSAND * all) {
            error_set(err, "GateRejected",
                      "stream %zu: %" PRId64 " of %" PRId64 " tokens are not the replay's, more "
                      "than %d per thousand",
                      s, wrong, all, COHORT_BUDGET_PER_THOUSAND);
            ok = at_stream(err, s);
        }
    }
    return ok;
}

/* ---- near ties ---- */

struct near_counts {
    int64_t committed, mismatches, near_positions, near_mismatches;
};

static void set_int(json_t *o, const char *key, int64_t value)
{
    json_object_set_new(o, key, json_integer(value));
}

static void set_real(json_t *o, const char *key, double value)
{
    json_object_set_new(o, key, json_real(value));
}

static json_t *near_stream(const struct cohort_stream *s, size_t slot, double envelope,
                           struct near_counts *n, struct arena *a)
{
    double *gaps = arena_array(a, s->count, sizeof *gaps);
    size_t gap_count = 0;
    *n = (struct near_counts){.committed = (int64_t)s->count};
    for (size_t i = 0; i < s->count; i++) {
        const struct cohort_position *p = &s->positions[i];
        const bool near = p->has_near_gap && p->near_gap <= envelope;
        const bool wrong = p->committed_token != p->sequential_argmax;
        n->near_positions += near;
        n->mismatches += wrong;
        n->near_mismatches += near && wrong;
        if (wrong && p->has_committed_gap)
            gaps[gap_count++] = p->committed_gap;
    }
    json_t *o = json_object();
    set_int(o, "slot", (int64_t)slot);
    set_int(o, "committed", n->committed);
    set_int(o, "mismatches", n->mismatches);
    set_real(o, "mismatch_per_thousand", (double)n->mismatches * 1000 / (double)n->committed);
    set_int(o, "near_tie_positions", n->near_positions);
    set_int(o, "near_tie_mismatches", n->near_mismatches);
    set_int(o, "non_near_tie_mismatches", n->mismatches - n->near_mismatches);
    if (gap_count > 0) {
        set_real(o, "min_committed_relative_gap_on_mismatch", stats_min(gaps, gap_count));
        set_real(o, "median_committed_relative_gap_on_mismatch", stats_median(gaps, gap_count));
    }
    return o;
}

json_t *cohort_near_ties(const struct cohort_report *r, struct error *err)
{
    if (!r->has_envelope || !isfinite(r->envelope) || r->envelope < 0) {
        error_set(err, "UnusableEnvelope", "the replay names no relative envelope of 0 or more");
        return NULL;
    }
    if (r->count == 0) {
        error_set(err, "NoStreams", "the replay has no stream");
        return NULL;
    }
    for (size_t s = 0; s < r->count; s++)
        if (r->streams[s].count == 0) {
            error_set(err, "EmptyStream", "stream %zu committed no token", s);
            at_stream(err, s);
            return NULL;
        }
    struct arena a = {0};
    struct near_counts all = {0};
    double most = 0;
    json_t *streams = json_array(), *o = json_object();
    for (size_t s = 0; s < r->count; s++) {
        struct near_counts n;
        json_array_append_new(streams, near_stream(&r->streams[s], s, r->envelope, &n, &a));
        all.committed += n.committed;
        all.mismatches += n.mismatches;
        all.near_positions += n.near_positions;
        all.near_mismatches += n.near_mismatches;
        most = fmax(most, (double)n.mismatches * 1000 / (double)n.committed);
    }
    arena_free(&a);
    json_object_set_new(o, "streams", streams);
    set_int(o, "committed_total", all.committed);
    set_int(o, "mismatches_total", all.mismatches);
    set_int(o, "near_tie_positions_total", all.near_positions);
    set_int(o, "near_tie_mismatches_total", all.near_mismatches);
    set_int(o, "non_near_tie_mismatches_total", all.mismatches - all.near_mismatches);
    set_int(o, "budget_per_thousand", COHORT_BUDGET_PER_THOUSAND);
    set_real(o, "max_stream_mismatch_per_thousand", most);
    set_real(o, "headroom_per_thousand", COHORT_BUDGET_PER_THOUSAND - most);
    set_real(o, "rel_envelope", r->envelope);
    set_int(o, "near_tie_gap_index", COHORT_NEAR_TIE_GAP_INDEX);
    json_object_set_new(o, "near_tie_predicate",
                        json_string("ranked_relative_gaps[1] <= rel_envelope"));
    return o;
}

/* ---- per-stream times ---- */

static bool vector_refused(struct error *err, const char *name, const char *field, const char *what)
{
    error_set(err, name, "%s %s", field, what);
    return error_at(err, NULL, field, NULL);
}

static bool has_zero(const struct wire_u64s *v)
{
    for (size_t i = 0; i < v->count; i++)
        if (v->items[i] == 0)
            return true;
    return false;
}

static bool check_times(const struct cohort_times *t, struct error *err)
{
    static const char *const fields[] = {"prefill_ns_by_stream", "decode_ns_by_stream"};
    const struct wire_u64s *const vectors[] = {t->prefill_ns, t->decode_ns};
    if (!t->capability)
        return vector_refused(err, "CapabilityAbsent", "per_stream_timing", "is not advertised");
    for (int i = 0; i < 2; i++)
        if (vectors[i] == NULL || !vectors[i]->present)
            return vector_refused(err, "VectorMissing", fields[i], "is not in the reply");
    for (int i = 0; i < 2; i++)
        if (vectors[i]->count != t->batch_size)
            return vector_refused(err, "VectorLength", fields[i], "is not one for each stream");
    if (t->tokens_count != t->batch_size)
        return vector_refused(err, "TokensLenByStreamWidth", "tokens_by_stream",
                              "is not one for each stream");
    for (int i = 0; i < 2; i++)
        if (has_zero(vectors[i]))
            return vector_refused(err, "ZeroDuration", fields[i], "holds a duration of 0");
    if (t->prefill_window_ns <= 0 || t->decode_window_ns <= 0)
        return vector_refused(err, "NonPositiveWindow",
                              t->prefill_window_ns <= 0 ? "prefill window" : "decode window",
                              "is not above 0");
    if (t->rounds == 0 || t->batch_size == 0)
        return vector_refused(err, "ZeroRounds", "rounds", "is 0");
    return true;
}

static json_t *ratio(double value, bool flagged)
{
    json_t *o = json_object();
    set_real(o, "raw_ratio", value);
    json_object_set_new(o, "flagged_at_zero_tolerance", json_boolean(flagged));
    return o;
}

static double vector_sum(const struct wire_u64s *v)
{
    double sum = 0;
    for (size_t i = 0; i < v->count; i++)
        sum += (double)v->items[i];
    return sum;
}

/* No stream can have taken longer than the window, and one must have filled it. */
static void bound_and_cover(json_t *o, const char *bounding_key, const char *coverage_key,
                            const struct wire_u64s *v, double window)
{
    json_t *bounding = json_array();
    double most = 0;
    for (size_t i = 0; i < v->count; i++) {
        const double x = (double)v->items[i] / window;
        json_array_append_new(bounding, ratio(x, x > 1));
        most = fmax(most, x);
    }
    json_object_set_new(o, bounding_key, bounding);
    json_object_set_new(o, coverage_key, ratio(most, most < 1));
}

json_t *cohort_attest_times(const struct cohort_times *t, struct error *err)
{
    if (!check_times(t, err))
        return NULL;
    const double window = (double)t->decode_window_ns;
    const double decode_sum = vector_sum(t->decode_ns);
    const double mean = decode_sum / t->batch_size;
    json_t *o = json_object(), *floors = json_array(), *interleave = json_array();
    set_int(o, "batch_size", t->batch_size);
    set_real(o, "prefill_sum_ns", vector_sum(t->prefill_ns));
    set_real(o, "decode_sum_ns", decode_sum);
    bound_and_cover(o, "prefill_bounding", "prefill_coverage", t->prefill_ns,
                    (double)t->prefill_window_ns);
    bound_and_cover(o, "decode_bounding", "decode_coverage", t->decode_ns, window);
    for (size_t i = 0; i < t->batch_size; i++) {
        const double ns = (double)t->decode_ns->items[i];
        /* A stream without tokens has no floor: 0 tokens ask for no time. */
        const double least = (double)t->tokens_by_stream[i] * window / (double)t->rounds;
        const double x = least > 0 ? ns / least : 0;
        json_array_append_new(floors, ratio(x, least > 0 && x < 1));
        json_array_append_new(interleave, ratio(ns / mean, false));
    }
    json_object_set_new(o, "token_count_floor", floors);
    json_object_set_new(o, "lockstep_interleave", interleave);
    json_object_set_new(o, "tolerance_state", json_string("unpinned-tolerances"));
    return o;
}
