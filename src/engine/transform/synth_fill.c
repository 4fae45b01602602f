#include "engine/transform/synth_fill.h"

#include "base/buffer.h"
#include "engine/checkpoint/formats.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Loops that vectorise; integer arithmetic and single float operations give the same everywhere. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__)
#define FAST_LOOP __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define FAST_LOOP
#endif

enum { WORDS = 512 }; /* of randomness made at a time: 4 KiB */

/* A counter through a finaliser with full avalanche (the constants of SplitMix64, public domain).
 */
FAST_LOOP
static void random_words(uint64_t key, uint64_t first, size_t count, uint64_t *out)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t z = key + (first + i) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        out[i] = z ^ (z >> 31);
    }
}

FAST_LOOP
static void words_to_bf16(const uint16_t *random, size_t count, float center, float spread,
                          uint16_t *out)
{
    const float step = spread / 32768.0f;
    for (size_t i = 0; i < count; i++) {
        const float v = center + (float)(int16_t)random[i] * step;
        uint32_t u;
        memcpy(&u, &v, sizeof u);
        u += 0x7fffu + ((u >> 16) & 1u);
        out[i] = (uint16_t)(u >> 16);
    }
}

static void words_to_f32(const uint32_t *random, size_t count, float center, float spread,
                         float *out)
{
    const float step = spread / 32768.0f;
    for (size_t i = 0; i < count; i++)
        out[i] = center + (float)(int16_t)(random[i] >> 16) * step;
}

/* Words of randomness behind so many bytes: sixteen scales come from one. */
static size_t words_of(const struct synth_recipe *r, size_t bytes)
{
    return r->kind == SYNTH_SCALES ? (bytes + 15) / 16 : (bytes + 7) / 8;
}

/* Whole units into out, at most what WORDS gives. */
static void fill_units(const struct synth_recipe *r, uint64_t first, uint8_t *out, size_t bytes)
{
    union {
        uint64_t words[WORDS];
        uint32_t halves[2 * WORDS];
        uint16_t quarters[4 * WORDS];
        uint8_t bytes[8 * WORDS];
    } random, made;
    const size_t words = words_of(r, bytes);
    random_words(r->key, r->kind == SYNTH_SCALES ? first / 16 : first / 8, words, random.words);
    switch (r->kind) {
    case SYNTH_BF16:
        words_to_bf16(random.quarters, bytes / 2, r->center, r->spread, made.quarters);
        memcpy(out, made.bytes, bytes);
        break;
    case SYNTH_F32:
        words_to_f32(random.halves, bytes / 4, r->center, r->spread, (float *)(void *)made.words);
        memcpy(out, made.bytes, bytes);
        break;
    case SYNTH_CODES:
        memcpy(out, random.bytes, bytes);
        break;
    case SYNTH_SCALES:
        for (size_t i = 0; i < bytes; i++)
            out[i] = r->scales[random.words[i / 16] >> (4 * (i % 16)) & 15];
        break;
    }
}

void synth_fill(const struct synth_recipe *r, uint64_t first, uint8_t *out, size_t count)
{
    const size_t most = 8 * WORDS; /* of scales too, though they need less */
    while (count > 0) {
        const size_t n = count < most ? count : most;
        if (n % SYNTH_UNIT == 0) {
            fill_units(r, first, out, n);
        } else { /* the end of a tensor: whole units are made, a part of them is wanted */
            uint8_t whole[8 * WORDS];
            fill_units(r, first, whole, (n + SYNTH_UNIT - 1) / SYNTH_UNIT * SYNTH_UNIT);
            memcpy(out, whole, n);
        }
        first += n;
        out += n;
        count -= n;
    }
}

static uint64_t key_of(const char *name, uint64_t seed)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    uint64_t mixed;
    random_words(h, seed, 1, &mixed);
    return mixed;
}

/* RMS of one of the sixteen codes, all as likely: sqrt(68.5 / 8). */
static const double CODE_RMS = 2.926174978;
/* RMS of what the scales are multiples of: uniform from 0.5 to 1.5. */
static const double SCALE_RMS = 1.04;

static void make_scales(struct synth_recipe *r, double rms)
{
    const double middle = rms / CODE_RMS / SCALE_RMS;
    for (int i = 0; i < 16; i++) {
        const uint8_t scale = e4m3_encode((float)(middle * (0.5 + i / 15.0)));
        r->scales[i] = scale == 0 ? 1 : scale; /* wide rows: the least scale, never none */
    }
}

/* The RMS of a linear layer's outputs, its inputs having 1. */
static double gain_of(const char *name)
{
    static const struct {
        const char *part;
        double gain;
    } gains[] = {{"lm_head.weight", 3.0}, {"o_proj.", 0.5}, {"down_proj.", 0.7}};
    for (size_t i = 0; i < sizeof gains / sizeof *gains; i++)
        if (strstr(name, gains[i].part))
            return gains[i].gain;
    return 1.0;
}

bool synth_is_affine(const struct tensor_spec *t)
{
    return strstr(t->name, "self_attn.") != NULL &&
           (t->dtype == DTYPE_U32 || text_ends(t->name, ".scales") ||
            text_ends(t->name, ".biases"));
}

/* RMS of a byte about its middle, all as likely. */
static const double BYTE_MIDDLE = 127.5, BYTE_RMS = 73.9;

/* w = scale * code + bias is about zero in every group: a bias is drawn by the scale's key. */
static struct synth_recipe affine_recipe(const struct tensor_spec *t, uint64_t seed)
{
    const size_t base = strlen(t->name) - strlen(strrchr(t->name, '.'));
    char scales[160];
    snprintf(scales, sizeof scales, "%.*s.scales", (int)base, t->name);
    struct synth_recipe r = {.kind = SYNTH_BF16, .key = key_of(scales, seed)};
    if (t->dtype == DTYPE_U32) {
        r = (struct synth_recipe){.kind = SYNTH_CODES, .key = key_of(t->name, seed)};
        return r;
    }
    const double in = (double)t->shape[t->rank - 1] * AFFINE_GROUP;
    const double middle = gain_of(t->name) / sqrt(in) / BYTE_RMS / SCALE_RMS;
    const double by = text_ends(t->name, ".biases") ? -BYTE_MIDDLE : 1;
    r.center = (float)(middle * by);
    r.spread = (float)(middle * by / 2);
    return r;
}

struct synth_recipe synth_recipe_of(const struct tensor_spec *t, uint64_t seed)
{
    struct synth_recipe r = {.key = key_of(t->name, seed)};
    double in = (double)t->shape[t->rank - 1];
    if (synth_is_affine(t))
        return affine_recipe(t, seed);
    if (t->dtype == DTYPE_U32 || t->dtype == DTYPE_U8) {
        in *= t->dtype == DTYPE_U32 ? NVFP4_CODES_PER_WORD : NVFP4_GROUP;
        r.kind = t->dtype == DTYPE_U32 ? SYNTH_CODES : SYNTH_SCALES;
        make_scales(&r, gain_of(t->name) / sqrt(in));
        return r;
    }
    r.kind = t->dtype == DTYPE_F32 ? SYNTH_F32 : SYNTH_BF16;
    if (t->dtype == DTYPE_F32) { /* the router's bias, beside scores between 0 and 1 */
        r.spread = 0.02f;
    } else if (t->rank == 1) { /* norms */
        r.center = 1.0f;
        r.spread = 0.1f;
    } else if (strstr(t->name, "embed_tokens")) {
        r.spread = (float)sqrt(3.0); /* uniform: the RMS is spread / sqrt(3) */
    } else {
        r.spread = (float)(gain_of(t->name) * sqrt(3.0 / in));
    }
    return r;
}
