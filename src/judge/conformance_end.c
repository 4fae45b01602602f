/* The end of a process, and what showed in passing through all the other checks. */
#include "judge/conformance_kit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void report(const struct observation *o, struct verdict *v)
{
    if (o->count > 0)
        kit_fail(v, "%s (%" PRIu64 " in all)", o->first, o->count);
}

static void check_nonce(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    if (p != NULL)
        report(&k->nonce, v);
}

static void check_id(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    if (p != NULL)
        report(&k->id, v);
}

/* A second reply to one request stands in the pipe by the time the next is answered. */
static void check_one_reply(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    struct wire_request q = kit_prompt(WIRE_KIND_prefill, &k->brief);
    if (p != NULL && kit_ask(k, p, &q, NULL, v) && kit_barrier(k, p, -1, NULL, v) &&
        kit_barrier(k, p, -1, NULL, v))
        report(&k->unasked, v);
}

static void check_clean(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    if (p != NULL)
        report(&k->chatter, v);
}

/* A process of its own, asked once, then its input ends: in the middle of a line when text is
 * given. */
static bool ends(struct kit *k, const char *text, int *left, char *status, size_t size,
                 struct verdict *v)
{
    struct verdict unused = {0};
    struct error err = {0};
    if (kit_peer(k, KIT_V11, v) == NULL) /* so that an engine without a hello is skipped */
        return false;
    struct peer *p = kit_start(k, KIT_V11, &err);
    if (p == NULL) {
        kit_fail(v, "a new process: %s: %s", err.name, err.message);
        return false;
    }
    struct wire_request q = kit_prompt(WIRE_KIND_decode_begin, &k->brief);
    kit_ask(k, p, &q, NULL, &unused);
    if (text != NULL)
        kit_write(k, p, text, strlen(text), &err);
    const bool ended = !p->dead && kit_end_input(p, left, status, size);
    if (!ended)
        kit_fail(v, "the process was still there %d ms after its input had ended", KIT_EXIT_MS);
    kit_stop(p);
    return ended;
}

static void check_end(struct kit *k, struct verdict *v)
{
    int left;
    char status[64];
    if (ends(k, NULL, &left, status, sizeof status, v) && strcmp(status, "exit status 0") != 0)
        kit_fail(v, "the process ended with %s, exit status 0 is right", status);
}

static void check_end_inside(struct kit *k, struct verdict *v)
{
    int left;
    char status[64];
    ends(k, "{\"id\":601,\"kind\":\"prefill\",\"prompt_", &left, status, sizeof status, v);
}

static void check_nothing_left(struct kit *k, struct verdict *v)
{
    int left = 0;
    char status[64];
    if (ends(k, NULL, &left, status, sizeof status, v) && left > 0)
        kit_fail(v, "%d other processes that the engine started were still there", left);
}

/* ---- the six checks of a manifest ---- */

static void manifest_row(struct kit *k, size_t row, struct verdict *v)
{
    struct manifest_verdict all[MANIFEST_CHECKS];
    if (k->manifest == NULL) {
        kit_skip(v, "no --manifest was given");
        return;
    }
    struct peer *p = kit_peer(k, KIT_V11, v);
    if (p == NULL)
        return;
    manifest_check_hello(k->manifest, k->trusted, &p->hello, all);
    if (!all[row].applies)
        kit_skip(v, "the hello carries no runner");
    else if (!all[row].passed)
        kit_fail(v, "%s", all[row].detail);
}

#define MANIFEST_ROW(n)                                                                            \
    static void manifest_row_##n(struct kit *k, struct verdict *v)                                 \
    {                                                                                              \
        manifest_row(k, n, v);                                                                     \
    }
MANIFEST_ROW(0)
MANIFEST_ROW(1)
MANIFEST_ROW(2)
MANIFEST_ROW(3)
MANIFEST_ROW(4)
MANIFEST_ROW(5)

const struct kit_check kit_end_checks[] = {
    {"nonce_echo", "Replies and refusals", "Every reply, refusals too, repeats the hello's nonce.",
     check_nonce},
    {"id_echo", "Replies and refusals", "Every reply repeats its request's id.", check_id},
    {"one_reply_each", "Lines", "Each request gets one reply, and nothing is said unasked.",
     check_one_reply},
    {"stdout_clean", "Lines", "stdout carries replies and nothing else.", check_clean},
    {"end_of_input", "The process",
     "When its input ends between two requests the process exits with status 0 within 2 s.",
     check_end},
    {"end_inside_a_line", "The process",
     "When its input ends inside a line the process exits within 2 s.", check_end_inside},
    {"nothing_left", "The process", "It leaves no other process behind.", check_nothing_left},
    {"spec_modes_declared", "The manifest", "Every spec mode of the hello is a decoder's mode.",
     manifest_row_0},
    {"capabilities_derived", "The manifest", "The capabilities are those of the regimes.",
     manifest_row_1},
    {"max_batch_size_derived", "The manifest", "max_batch_size is the widest regime's.",
     manifest_row_2},
    {"backend_matches", "The manifest", "backend is the manifest's.", manifest_row_3},
    {"runner_identity_present", "The manifest", "The hello carries runner.", manifest_row_4},
    {"manifest_digest_matches", "The manifest",
     "runner.manifest_sha256 is the digest of the manifest's canonical bytes.", manifest_row_5},
};
const size_t kit_end_count = sizeof kit_end_checks / sizeof *kit_end_checks;
