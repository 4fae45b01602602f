#include "arena/fetch/progress.h"

#include "base/buffer.h"
#include "base/clock.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const int64_t SECOND_NS = INT64_C(1000000000), TERMINAL_NS = INT64_C(200000000);

static void write_bytes(struct buffer *b, double bytes)
{
    if (bytes >= 1e9)
        buffer_printf(b, "%.2f GB", bytes / 1e9);
    else if (bytes >= 1e6)
        buffer_printf(b, "%.1f MB", bytes / 1e6);
    else if (bytes >= 1e3)
        buffer_printf(b, "%.1f kB", bytes / 1e3);
    else
        buffer_printf(b, "%.0f B", bytes);
}

static void write_time(struct buffer *b, double seconds)
{
    const int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600)
        buffer_printf(b, "%" PRId64 " h %02" PRId64 " min", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        buffer_printf(b, "%" PRId64 " min %02" PRId64 " s", s / 60, s % 60);
    else
        buffer_printf(b, "%" PRId64 " s", s);
}

void fetch_progress_begin(struct fetch_progress *p, const char *phase, size_t files, uint64_t bytes,
                          int64_t every_seconds, bool quiet)
{
    const char *terminal = getenv("TERM");
    *p = (struct fetch_progress){.quiet = quiet,
                                 .phase = phase,
                                 .files = files,
                                 .bytes = bytes,
                                 .every_ns = every_seconds * SECOND_NS};
    p->is_terminal = isatty(STDERR_FILENO) && !(terminal && strcmp(terminal, "dumb") == 0);
    p->started_ns = p->shown_ns = clock_now_ns();
}

static double rate_of_now(struct fetch_progress *p, int64_t now)
{
    if (p->sample_count == 0 || now - p->sampled_ns >= SECOND_NS) {
        const size_t i = p->sample_count++ % FETCH_RATE_SAMPLES;
        p->samples[i].at_ns = p->sampled_ns = now;
        p->samples[i].done = p->done;
    }
    const size_t oldest =
        p->sample_count > FETCH_RATE_SAMPLES ? p->sample_count % FETCH_RATE_SAMPLES : 0;
    const double seconds = (double)(now - p->samples[oldest].at_ns) * 1e-9;
    const uint64_t before = p->samples[oldest].done;
    return seconds > 0.05 && p->done > before ? (double)(p->done - before) / seconds : 0;
}

/* Where the cursor is below lines that were drawn, they go. */
static void erase(struct fetch_progress *p, struct buffer *b)
{
    if (p->drawn > 0)
        buffer_printf(b, "\x1b[%dA\r\x1b[J", p->drawn);
    p->drawn = 0;
}

static void put(struct buffer *b)
{
    if (b->length)
        fwrite(b->data, 1, b->length, stderr);
    fflush(stderr);
    buffer_free(b);
}

static void write_view(struct buffer *b, const struct fetch_view *v, size_t columns)
{
    char path[FETCH_VIEWS_MOST * 8];
    const size_t n = strlen(v->path), room = columns > 60 ? columns - 42 : 18;
    if (n > room && room < sizeof path)
        snprintf(path, sizeof path, "..%s", v->path + n - room + 2);
    else
        text_copy(path, sizeof path, v->path);
    buffer_printf(b, "  %s: ", path);
    write_bytes(b, (double)v->done);
    buffer_text(b, " of ");
    write_bytes(b, (double)v->bytes);
    if (v->doing)
        buffer_printf(b, ", %s", v->doing);
    else if (v->bytes)
        buffer_printf(b, " (%.0f%%)", 100.0 * (double)v->done / (double)v->bytes);
}

void fetch_progress_update(struct fetch_progress *p, uint64_t done, const struct fetch_view *views,
                           size_t count)
{
    const int64_t now = clock_now_ns();
    p->done = done;
    if (p->quiet)
        return;
    const double rate = rate_of_now(p, now);
    if (now - p->shown_ns < (p->is_terminal ? TERMINAL_NS : p->every_ns))
        return;
    p->shown_ns = now;
    struct winsize size = {0};
    struct buffer b = {0};
    if (p->is_terminal)
        erase(p, &b);
    if (!p->is_terminal || ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        size.ws_col = 200;
    for (size_t i = 0; i < count; i++) {
        write_view(&b, &views[i], size.ws_col);
        buffer_char(&b, '\n');
    }
    buffer_printf(&b, "%s: %zu/%zu files, ", p->phase, p->files_done, p->files);
    write_bytes(&b, (double)done);
    buffer_text(&b, " of ");
    write_bytes(&b, (double)p->bytes);
    buffer_text(&b, ", ");
    write_bytes(&b, rate);
    buffer_text(&b, "/s");
    if (rate > 0 && p->bytes > done) {
        buffer_text(&b, ", ");
        write_time(&b, (double)(p->bytes - done) / rate);
        buffer_text(&b, " left");
    }
    buffer_char(&b, '\n');
    p->drawn = p->is_terminal ? (int)count + 1 : 0;
    put(&b);
}

void fetch_progress_file(struct fetch_progress *p, const char *path, uint64_t bytes, double seconds,
                         const char *how)
{
    p->files_done++;
    if (p->quiet)
        return;
    struct buffer b = {0};
    erase(p, &b);
    buffer_printf(&b, "[%zu/%zu] %s %s, ", p->files_done, p->files, path, how);
    write_bytes(&b, (double)bytes);
    if (seconds >= 0.1) {
        buffer_text(&b, " in ");
        write_time(&b, seconds);
    }
    buffer_char(&b, '\n');
    put(&b);
}

void fetch_progress_note(struct fetch_progress *p, const char *format, ...)
{
    if (p->quiet)
        return;
    struct buffer b = {0};
    char text[1536];
    va_list ap;
    erase(p, &b);
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    buffer_printf(&b, "%s\n", text);
    put(&b);
}

void fetch_progress_end(struct fetch_progress *p)
{
    struct buffer b = {0};
    erase(p, &b);
    put(&b);
}
