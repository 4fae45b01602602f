#include "judge/screen.h"

#include "base/arena.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

double screen_distinct_fraction(const int64_t *tokens, size_t count)
{
    size_t distinct = 0;
    for (size_t i = 0; i < count; i++) {
        size_t j = 0;
        while (j < i && tokens[j] != tokens[i])
            j++;
        distinct += j == i;
    }
    return count > 0 ? (double)distinct / (double)count : 0;
}

struct followers {
    bool recurrent, most_recent_hit, any_hit;
};

/* Where did the last `order` tokens of text[0..length) occur before, and what followed? */
static struct followers look_back(const int64_t *text, size_t length, size_t order, int64_t next)
{
    struct followers f = {0};
    if (length <= order)
        return f;
    const int64_t *tail = text + length - order;
    for (size_t start = length - order; start-- > 0;) {
        if (memcmp(text + start, tail, order * sizeof *text) != 0)
            continue;
        const bool hit = text[start + order] == next;
        if (!f.recurrent)
            f.most_recent_hit = hit;
        f.recurrent = true;
        f.any_hit = f.any_hit || hit;
    }
    return f;
}

void screen_ngram(const int64_t *prompt, size_t prompt_count, const int64_t *continuation,
                  size_t count, struct screen_ngram *out)
{
    screen_ngram_orders(prompt, prompt_count, continuation, count, (1u << SCREEN_NGRAM_ORDERS) - 1,
                        out);
}

void screen_ngram_orders(const int64_t *prompt, size_t prompt_count, const int64_t *continuation,
                         size_t count, unsigned orders, struct screen_ngram *out)
{
    *out = (struct screen_ngram){.context = prompt_count, .continuation = count, .asked = orders};
    int64_t *text = memory_alloc((prompt_count + count) * sizeof *text);
    if (prompt_count > 0)
        memcpy(text, prompt, prompt_count * sizeof *text);
    if (count > 0)
        memcpy(text + prompt_count, continuation, count * sizeof *text);
    for (size_t i = 0; i < count; i++) {
        bool any = false, matched = false, hit = false;
        for (size_t order = 1; order <= SCREEN_NGRAM_ORDERS; order++) {
            if (!(orders >> (order - 1) & 1))
                continue;
            const struct followers f =
                look_back(text, prompt_count + i, order, text[prompt_count + i]);
            out->orders[order - 1].recurrent += f.recurrent;
            out->orders[order - 1].most_recent_hits += f.most_recent_hit;
            out->orders[order - 1].any_hits += f.any_hit;
            any = any || f.any_hit;
            if (f.recurrent) { /* a longer order overrules a shorter one */
                matched = true;
                hit = f.most_recent_hit;
            }
        }
        out->longest_opportunities += matched;
        out->longest_hits += matched && hit;
        out->optimistic_hits += any;
    }
    free(text);
}

static void set_count(json_t *o, const char *count_key, const char *rate_key, size_t n, size_t of)
{
    json_object_set_new(o, count_key, json_integer((json_int_t)n));
    json_object_set_new(o, rate_key, json_real(of > 0 ? (double)n / (double)of : 0));
}

json_t *screen_ngram_json(const struct screen_ngram *s)
{
    json_t *report = json_object(), *orders = json_array();
    json_object_set_new(report, "context_token_count", json_integer((json_int_t)s->context));
    json_object_set_new(report, "continuation_token_count",
                        json_integer((json_int_t)s->continuation));
    for (size_t i = 0; i < SCREEN_NGRAM_ORDERS; i++) {
        if (!(s->asked >> i & 1))
            continue;
        json_t *o = json_object();
        json_object_set_new(o, "order", json_integer((json_int_t)i + 1));
        set_count(o, "recurrent_context_count", "recurrent_context_rate", s->orders[i].recurrent,
                  s->continuation);
        set_count(o, "most_recent_follower_hit_count", "most_recent_follower_hit_rate",
                  s->orders[i].most_recent_hits, s->continuation);
        set_count(o, "any_matching_follower_hit_count", "any_matching_follower_hit_rate",
                  s->orders[i].any_hits, s->continuation);
        json_array_append_new(orders, o);
    }
    json_object_set_new(report, "orders", orders);
    set_count(report, "longest_match_opportunity_count", "longest_match_opportunity_rate",
              s->longest_opportunities, s->continuation);
    set_count(report, "longest_match_most_recent_hit_count", "longest_match_most_recent_hit_rate",
              s->longest_hits, s->continuation);
    set_count(report, "optimistic_any_order_hit_count", "optimistic_any_order_hit_rate",
              s->optimistic_hits, s->continuation);
    return report;
}
