#include "engine/serve/resident.h"

#include "base/arena.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "engine/serve/local_socket.h"
#include "wire/wire.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* More than one more at a time is nobody's way of working: the rest is told so at once. */
enum { MOST_WAITING = 16, SEND_SECONDS = 60 };

/* ---- the door: a thread that takes connections while the model works ---- */

struct waiting {
    int fd;
    int64_t until_ns;
};
struct door {
    int listener;
    int handover[2]; /* a pipe of descriptors: from the door to who serves */
    int free, quit;  /* eventfds: a session has ended; all has */
    bool busy;
    struct waiting waiting[MOST_WAITING];
    size_t count;
    pthread_t thread;
};

/* A peer that does not read it has none. */
static void turn_away(int fd)
{
    static const char text[] = "RESIDENT-BUSY: another session is being served";
    const struct wire_response refusal = {
        .id = {true, WIRE_ERROR_ID}, .ok = {true, false}, .error = {text}};
    struct buffer line = {0};
    wire_response_encode(&refusal, &line);
    const ssize_t n = send(fd, line.data, line.length, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)n;
    buffer_free(&line);
    close(fd);
}

static void hand_over(struct door *d, int fd)
{
    d->busy = true;
    if (write(d->handover[1], &fd, sizeof fd) != (ssize_t)sizeof fd)
        close(fd);
}

static void take_connection(struct door *d)
{
    const int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    if (!d->busy && d->count == 0)
        hand_over(d, fd);
    else if (d->count == MOST_WAITING)
        turn_away(fd);
    else
        d->waiting[d->count++] =
            (struct waiting){fd, clock_now_ns() + (int64_t)RESIDENT_WAIT_MS * 1000000};
}

static void drop_first(struct door *d)
{
    d->count--;
    memmove(d->waiting, d->waiting + 1, d->count * sizeof *d->waiting);
}

static void session_ended(struct door *d)
{
    uint64_t ends;
    const ssize_t n = read(d->free, &ends, sizeof ends);
    (void)n;
    d->busy = false;
    if (d->count > 0) {
        hand_over(d, d->waiting[0].fd);
        drop_first(d);
    }
}

/* Until the first of those who wait has waited enough; -1: nobody does. */
static int patience_ms(const struct door *d)
{
    if (d->count == 0)
        return -1;
    const int64_t ms = (d->waiting[0].until_ns - clock_now_ns() + 999999) / 1000000;
    return ms < 0 ? 0 : (int)ms;
}

static void *keep_door(void *context)
{
    struct door *d = context;
    for (;;) {
        struct pollfd all[3] = {
            {d->quit, POLLIN, 0}, {d->free, POLLIN, 0}, {d->listener, POLLIN, 0}};
        if (poll(all, 3, patience_ms(d)) < 0)
            continue;
        if (all[0].revents)
            break;
        if (all[1].revents)
            session_ended(d);
        if (all[2].revents)
            take_connection(d);
        while (d->count > 0 && patience_ms(d) == 0) {
            turn_away(d->waiting[0].fd);
            drop_first(d);
        }
    }
    for (size_t i = 0; i < d->count; i++)
        close(d->waiting[i].fd);
    return NULL;
}

static void ring(int event)
{
    const uint64_t one = 1;
    const ssize_t n = write(event, &one, sizeof one);
    (void)n; /* readable already does as well */
}

static void close_door(struct door *d)
{
    ring(d->quit);
    pthread_join(d->thread, NULL);
    struct pollfd left = {d->handover[0], POLLIN, 0};
    int fd;
    while (poll(&left, 1, 0) > 0 && read(d->handover[0], &fd, sizeof fd) == (ssize_t)sizeof fd)
        close(fd);
    const int all[] = {d->handover[0], d->handover[1], d->free, d->quit, d->listener};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        close(all[i]);
}

static bool open_door(struct door *d, int listener, struct error *err)
{
    *d = (struct door){.listener = listener};
    d->free = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->quit = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->free < 0 || d->quit < 0 || pipe(d->handover) != 0)
        return error_errno(err, NULL, "opening the resident");
    errno = pthread_create(&d->thread, NULL, keep_door, d);
    return errno == 0 || error_errno(err, NULL, "starting the resident's thread");
}

/* ---- who is who ---- */

bool resident_folder_identity(const char *folder, char text[64], struct error *err)
{
    struct stat s;
    if (stat(folder, &s) != 0)
        return error_errno(err, folder, "looking at the weights");
    snprintf(text, 64, "%llu:%llu", (unsigned long long)s.st_dev, (unsigned long long)s.st_ino);
    return true;
}

struct identity {
    struct wire_resident wire;
    char weights[PATH_MAX], folder[64];
};

static bool identify(const struct resident_options *o, struct identity *out, struct error *err)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->wire = (struct wire_resident){.present = true,
                                       .pid = (uint32_t)getpid(),
                                       .load_epoch = (uint64_t)now.tv_sec * 1000000000 +
                                                     (uint64_t)now.tv_nsec};
    if (realpath(o->weights, out->weights) == NULL)
        return error_errno(err, o->weights, "looking at the weights");
    return resident_folder_identity(o->weights, out->folder, err);
}

/* The hello, and behind it what only the attaching worker reads. */
static void write_hello(const struct worker *w, const struct identity *who, struct buffer *out)
{
    worker_write_hello(w, &who->wire, true, out);
    out->length -= strlen("}\n");
    const size_t length = utf8_valid(who->weights, strlen(who->weights)) ? strlen(who->weights) : 0;
    buffer_text(out, ",\"" RESIDENT_KEY_WEIGHTS "\":");
    json_write_string(who->weights, length, out); /* no text: the folder's number tells */
    buffer_printf(out, ",\"" RESIDENT_KEY_FOLDER "\":\"%s\"}\n", who->folder);
}

/* ---- sessions ---- */

/* False: the program is asked to stop, or the system fails. */
static bool serve_session(struct worker *w, const struct resident_options *o,
                          const struct identity *who, int fd, struct error *err)
{
    const struct timeval patience = {.tv_sec = SEND_SECONDS};
    struct line_reader reader = {.fd = fd,
                                 .limit = WIRE_REQUEST_LIMIT,
                                 .wake = interrupt_descriptor(),
                                 .silent_ms = o->idle_seconds * 1000};
    struct buffer hello = {0};
    struct error why = {0};
    char line[2048];
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (!worker_begin_session(w, err))
        return false;
    write_hello(w, who, &hello);
    const bool ok =
        line_write(fd, hello.data, hello.length, &why) && worker_answer_lines(w, &reader, fd, &why);
    if (!ok && strcmp(why.name, "INTERRUPTED") != 0)
        fprintf(stderr, "bench-worker: a session ended: %s\n", error_line(&why, line, sizeof line));
    buffer_free(&hello);
    line_reader_free(&reader);
    /* Nothing of it is kept; what it held must not weigh on the next one's start. */
    return worker_begin_session(w, err);
}

static bool serve_all(struct worker *w, const struct resident_options *o,
                      const struct identity *who, struct door *d, struct error *err)
{
    while (!interrupt_requested()) {
        struct pollfd both[2] = {{d->handover[0], POLLIN, 0}, {interrupt_descriptor(), POLLIN, 0}};
        int fd;
        if (poll(both, 2, -1) < 0 && errno != EINTR)
            return error_errno(err, NULL, "waiting for a session");
        if (both[1].revents)
            break;
        if (!(both[0].revents & POLLIN) ||
            read(d->handover[0], &fd, sizeof fd) != (ssize_t)sizeof fd)
            continue;
        const bool ok = serve_session(w, o, who, fd, err);
        close(fd);
        if (!ok)
            return false;
        ring(d->free);
    }
    return true;
}

bool resident_check(const struct resident_options *o, struct error *err)
{
    return local_path_check(o->socket, "--socket", err) && local_listen_check(o->socket, err);
}

bool resident_serve(struct worker *w, const struct resident_options *o, struct error *err)
{
    struct arena arena = {0};
    struct identity who;
    struct door door;
    struct buffer number = {0};
    const char *pid_file = arena_printf(&arena, "%s.pid", o->socket);
    const char *ready_file = arena_printf(&arena, "%s.ready", o->socket);
    int listener = -1;
    buffer_printf(&number, "%ld\n", (long)getpid());
    bool ok = resident_check(o, err) && identify(o, &who, err) &&
              (listener = local_listen(o->socket, err)) >= 0;
    if (ok) {
        interrupt_partial_file(o->socket); /* a second signal ends the program at once */
        ok = open_door(&door, listener, err);
        if (ok) {
            ok = file_write_atomic(pid_file, number.data, number.length, err) &&
                 file_write_atomic(ready_file, number.data, number.length, err);
            if (ok)
                fprintf(stderr, "bench-worker: resident, pid %u, load_epoch %llu, listens at %s\n",
                        who.wire.pid, (unsigned long long)who.wire.load_epoch, o->socket);
            ok = ok && serve_all(w, o, &who, &door, err);
            close_door(&door);
        } else {
            close(listener);
        }
        unlink(ready_file);
        unlink(o->socket);
        unlink(pid_file);
        interrupt_partial_file(NULL);
    }
    buffer_free(&number);
    arena_free(&arena);
    return ok;
}
