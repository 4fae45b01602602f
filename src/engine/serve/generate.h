/* Text for a person: a prompt of text or token ids, continued greedily and given out as it comes.
 */
#ifndef MLXFAST_ENGINE_SERVE_GENERATE_H
#define MLXFAST_ENGINE_SERVE_GENERATE_H

#include "base/buffer.h"
#include "base/error.h"
#include "engine/decode/serial.h"
#include "engine/decode/speculate.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* <weights>/tokenizer.json; also checks that its ids fit the model's vocabulary. */
bool generate_open_tokenizer(const char *weights, const struct model_info *info,
                             struct tokenizer **out, struct error *err);

/* A drafter for this model; block as in generate_request. Error BLOCK-TOO-WIDE, and dflash_open's.
 */
bool generate_open_drafter(const char *folder, struct model *m, int block, struct dflash **out,
                           struct error *err);

/* A person's text: never a control token, with the bos in front when the tokenizer's own template
 * puts one there. out->ids is the caller's to free (free). */
struct prompt {
    int64_t *ids;
    size_t count;
};
bool generate_encode_prompt(const struct tokenizer *t, const struct model_info *info,
                            const char *text, size_t length, struct prompt *out, struct error *err);

struct generate_request {
    const int64_t *prompt;
    size_t prompt_count;
    size_t count;           /* tokens to make at most; the model's stop set ends it sooner */
    struct dflash *drafter; /* opened for the same model; NULL: serial */
    int block;              /* rows of each round; 0: as measured while it runs */
    /* Prompt tokens done so far, after each piece. May be NULL. */
    void (*on_prefill)(void *context, size_t done);
    /* Complete UTF-8 characters as soon as they are known; false ends the run (IO): nobody reads
     * on. May be NULL. */
    bool (*on_text)(void *context, const char *text, size_t length);
    void *context;
};

struct generate_result { /* free with generate_result_free */
    int32_t *tokens;     /* a stop token, if it came, is the last */
    size_t count;
    struct buffer text;
    enum serial_end end;
    struct speculate_counts counts; /* of the rounds; serial ones when there is no drafter */
    double prefill_seconds;         /* until the first token is known */
    double decode_seconds;          /* from there to the last token */
};
/* rounds, drafted, accepted, acceptance_by_position into an object; one line for people. */
void generate_add_counts(const struct speculate_counts *c, json_t *object);
void generate_print_counts(const struct speculate_counts *c, FILE *out);
const char *generate_end_name(enum serial_end end); /* "length", "stop", "interrupt" */

/* t may be NULL: token ids only. On an error result holds what was made before it. */
bool generate_run(struct model *m, const struct tokenizer *t,
                  const struct generate_request *request, struct generate_result *result,
                  struct error *err);
void generate_result_free(struct generate_result *r);

#endif
