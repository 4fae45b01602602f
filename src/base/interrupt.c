/* Signals that ask the program to stop: see child.h. The first sets a flag and wakes every poll;
 * the second kills the children's groups and then the program, as it would by default. */
#include "base/interrupt.h"

#include "base/child.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { GROUPS = 64 };

static atomic_bool requested;
static atomic_int wake = -1;
static atomic_int groups[GROUPS]; /* 0: free; read by the handler, so lock-free */
static _Atomic(const char *) partial;

static void on_signal(int signal_number)
{
    int saved = errno;
    if (atomic_exchange(&requested, true)) {
        for (int i = 0; i < GROUPS; i++) {
            int group = atomic_load(&groups[i]);
            if (group > 0)
                kill(-group, SIGKILL);
        }
        interrupt_remove_partial();
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    } else {
        const uint64_t one = 1;
        ssize_t n = write(atomic_load(&wake), &one, sizeof one);
        (void)n; /* an eventfd that is already readable does as well */
    }
    errno = saved;
}

void interrupt_install(void)
{
    if (atomic_load(&wake) < 0)
        atomic_store(&wake, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const int wanted[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        sigaddset(&action.sa_mask, wanted[i]);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct sigaction old;
        sigaction(wanted[i], NULL, &old);
        if (old.sa_handler != SIG_IGN) /* nohup and background jobs stay as they were started */
            sigaction(wanted[i], &action, NULL);
    }
}

bool interrupt_is_cause(const struct error *err)
{
    return strcmp(err->name, "INTERRUPTED") == 0 || strcmp(err->name, "Interrupted") == 0;
}

bool interrupt_requested(void)
{
    return atomic_load(&requested);
}

void interrupt_quiet(void)
{
    uint64_t count;
    ssize_t n = read(atomic_load(&wake), &count, sizeof count);
    (void)n; /* empty already */
}

void interrupt_reset(void)
{
    atomic_store(&requested, false);
    interrupt_quiet();
}

int interrupt_descriptor(void)
{
    return atomic_load(&wake);
}

void interrupt_partial_file(const char *path)
{
    atomic_store(&partial, path);
}

void interrupt_remove_partial(void)
{
    const char *path = atomic_load(&partial);
    if (path)
        unlink(path);
}

void interrupt_remember_group(pid_t group)
{
    for (int i = 0; i < GROUPS; i++) {
        int empty = 0;
        if (atomic_compare_exchange_strong(&groups[i], &empty, group))
            return;
    }
}

void interrupt_forget_group(pid_t group)
{
    for (int i = 0; i < GROUPS; i++) {
        int expected = group;
        if (atomic_compare_exchange_strong(&groups[i], &expected, 0))
            return;
    }
}

bool interrupt_knows_group(pid_t group)
{
    for (int i = 0; i < GROUPS; i++)
        if (atomic_load(&groups[i]) == group)
            return true;
    return false;
}
