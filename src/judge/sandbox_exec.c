/* The part of the sandbox that runs inside it: bubblewrap has made the namespaces and the mounts
 * and starts this program as process 1. It opens the engine, sets the limits, and forks once. The
 * child installs the filters and becomes the engine; the parent only waits, and passes the status
 * on.
 *
 * The one execution after the filters are in force is an execveat that waits for the first
 * process to let it pass. The first process does so once, for its own child, which is still this
 * program then, and closes the descriptor on which such questions arrive: from then on the kernel
 * answers every execveat with ENOSYS, and every execve with EPERM. No rule on the arguments would
 * do instead: the engine chooses its arguments, and a path is only a pointer to a filter. */
#include "judge/sandbox.h"

#include "base/arena.h"
#include "base/number.h"
#include "judge/sandbox_filter.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_INSIDE = 127, SCRIPT_DEPTH = 4, LINE_ROOM = 512 };

extern char **environ;

static _Noreturn void stop(const char *what, const char *which)
{
    fprintf(stderr, "sandbox: %s%s%s: %s\n", what, which != NULL ? " " : "",
            which != NULL ? which : "", strerror(errno));
    _exit(EXIT_INSIDE);
}

/* ---- scripts: their interpreter is the program, since none could be executed after it ---- */

struct command_line {
    struct arena arena;
    char **argv;
    size_t count;
};

/* Puts words in front, in place of argv[0]. */
static void replace_first(struct command_line *c, char *const *words, size_t count)
{
    char **argv = arena_array(&c->arena, count + c->count, sizeof *argv);
    memcpy(argv, words, count * sizeof *argv);
    memcpy(argv + count, c->argv + 1, (c->count - 1) * sizeof *argv);
    c->count += count - 1;
    c->argv = argv;
}

static char *find_program(struct arena *a, const char *name)
{
    const char *path = getenv("PATH");
    if (strchr(name, '/') != NULL)
        return arena_strdup(a, name);
    if (path == NULL)
        path = "/usr/bin:/bin";
    while (*path != '\0') {
        const size_t n = strcspn(path, ":");
        char *full = arena_printf(a, "%.*s/%s", (int)n, path, name);
        if (n > 0 && access(full, X_OK) == 0)
            return full;
        path += n + (path[n] == ':');
    }
    return NULL;
}

static bool is_env(const char *program)
{
    return strcmp(program, "/usr/bin/env") == 0 || strcmp(program, "/bin/env") == 0;
}

/* Reads "#!program argument" as the kernel does, and env's search for it. False: not a script. */
static bool unfold_script(struct command_line *c, int fd, const char *path)
{
    char line[LINE_ROOM];
    const ssize_t n = pread(fd, line, sizeof line - 1, 0);
    if (n < 2 || line[0] != '#' || line[1] != '!')
        return false;
    line[n] = '\0';
    line[strcspn(line, "\n")] = '\0';
    char *words[32], *rest = line + 2;
    size_t count = 0;
    rest += strspn(rest, " \t");
    words[count++] = arena_strndup(&c->arena, rest, strcspn(rest, " \t"));
    rest += strlen(words[0]);
    rest += strspn(rest, " \t");
    for (size_t end = strlen(rest); end > 0 && strchr(" \t\r", rest[end - 1]); end--)
        rest[end - 1] = '\0';
    if (is_env(words[0])) {
        const bool split = strncmp(rest, "-S", 2) == 0;
        count = 0;
        rest += split ? 2 : 0;
        for (char *save = NULL, *w = strtok_r(rest, " \t", &save); w != NULL && count < 30;
             w = strtok_r(NULL, " \t", &save))
            words[count++] = arena_strdup(&c->arena, w);
        char *found = count > 0 ? find_program(&c->arena, words[0]) : NULL;
        errno = ENOENT;
        if (found == NULL)
            stop("cannot find the interpreter of", path);
        words[0] = found;
    } else if (*rest != '\0') {
        words[count++] = arena_strdup(&c->arena, rest);
    }
    words[count++] = arena_strdup(&c->arena, path);
    replace_first(c, words, count);
    return true;
}

static int open_engine(struct command_line *c)
{
    for (int depth = 0; depth < SCRIPT_DEPTH; depth++) {
        const char *path = c->argv[0];
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            fd = open(path, O_PATH | O_CLOEXEC);
        if (fd < 0)
            stop("cannot open", path);
        if (!unfold_script(c, fd, path))
            return fd;
        close(fd);
    }
    errno = ELOOP;
    stop("cannot execute", c->argv[0]);
}

/* ---- limits and rights ---- */

static void limit(int which, rlim_t most, const char *name)
{
    struct rlimit now;
    if (getrlimit(which, &now) != 0)
        stop("cannot read the limit of", name);
    if (now.rlim_max < most) /* an outer limit that is tighter stays */
        most = now.rlim_max;
    now.rlim_cur = now.rlim_max = most;
    if (setrlimit(which, &now) != 0)
        stop("cannot set the limit of", name);
}

static void set_limits(uint64_t data_bytes)
{
    limit(RLIMIT_CORE, 0, "core files");
    limit(RLIMIT_DATA, data_bytes, "memory");
    limit(RLIMIT_STACK, SANDBOX_STACK_BYTES, "stack");
    limit(RLIMIT_FSIZE, SANDBOX_FILE_BYTES, "file size");
    limit(RLIMIT_NPROC, SANDBOX_THREADS, "threads");
    limit(RLIMIT_NOFILE, SANDBOX_NOFILE, "open files");
}

static void drop_root(void)
{
    if (setgroups(0, NULL) != 0 || setresgid(SANDBOX_NOBODY, SANDBOX_NOBODY, SANDBOX_NOBODY) != 0 ||
        setresuid(SANDBOX_NOBODY, SANDBOX_NOBODY, SANDBOX_NOBODY) != 0)
        stop("cannot become another user", NULL);
}

/* ---- the two processes ---- */

static void close_from(int first)
{
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0u) != 0)
        for (int fd = first; fd < SANDBOX_NOFILE; fd++)
            close(fd);
}

union control { /* room and alignment for one descriptor */
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
};

static bool send_descriptor(int socket, int fd)
{
    char byte = 0;
    union control c = {{0}};
    struct iovec data = {&byte, 1};
    struct msghdr m = {.msg_iov = &data,
                       .msg_iovlen = 1,
                       .msg_control = c.bytes,
                       .msg_controllen = sizeof c.bytes};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    return sendmsg(socket, &m, MSG_NOSIGNAL) == 1;
}

static int receive_descriptor(int socket)
{
    char byte;
    int fd = -1;
    union control c = {{0}};
    struct iovec data = {&byte, 1};
    struct msghdr m = {.msg_iov = &data,
                       .msg_iovlen = 1,
                       .msg_control = c.bytes,
                       .msg_controllen = sizeof c.bytes};
    if (recvmsg(socket, &m, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&m) != NULL)
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

static _Noreturn void become_engine(struct command_line *c, unsigned features, int engine,
                                    int socket)
{
    int listener = -1;
    unsetenv("PWD"); /* bubblewrap's */
    /* Here and not before: bubblewrap's process, root without capabilities, could not end a first
     * process of another user when it dies. */
    if (features & SANDBOX_AS_ROOT)
        drop_root();
    if (!sandbox_filter_install(features, &listener) || !send_descriptor(socket, listener))
        stop("cannot install the filters", NULL);
    close(listener);
    close(socket);
    syscall(SYS_execveat, engine, "", c->argv, environ, AT_EMPTY_PATH);
    stop("cannot execute", c->argv[0]);
}

static _Noreturn void wait_for_engine(pid_t engine, int socket)
{
    const int listener = receive_descriptor(socket);
    if (listener >= 0) /* a failure shows as the engine's: its execution is then ENOSYS */
        (void)sandbox_filter_pass_once(listener, engine);
    /* The engine's pipes are its own: they close when it closes them. */
    close_from(0);
    if (!sandbox_filter_install_init())
        _exit(EXIT_INSIDE);
    for (;;) {
        int status;
        const pid_t pid = waitpid(-1, &status, 0);
        if (pid == engine)
            _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
        if (pid < 0 && errno != EINTR)
            _exit(EXIT_INSIDE);
    }
}

int sandbox_exec_main(int argc, char **argv)
{
    uint64_t features, data_bytes;
    struct command_line c = {0};
    int engine = -1, ends[2];
    if (argc < 3 || !number_uint64(argv[0], 255, &features) ||
        !number_uint64(argv[1], UINT64_MAX, &data_bytes)) {
        fprintf(stderr, "sandbox: this is the inner half of the sandbox; benchd starts it\n");
        return 2;
    }
    const bool check = strcmp(argv[2], "--check") == 0;
    close_from(3); /* what bubblewrap leaves open */
    c.count = (size_t)argc - 2;
    c.argv = argv + 2;
    if (!check)
        engine = open_engine(&c);
    set_limits(data_bytes);
    /* Not dumpable: an engine with the same uid cannot look into this process or change it. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_DUMPABLE, 0) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        stop("cannot give up rights", NULL);
    const pid_t pid = fork();
    if (pid < 0)
        stop("cannot make the engine's process", NULL);
    if (pid == 0 && check) {
        int listener = -1;
        if (features & SANDBOX_AS_ROOT)
            drop_root();
        _exit(sandbox_filter_install((unsigned)features, &listener) ? 0 : EXIT_INSIDE);
    }
    if (pid == 0)
        become_engine(&c, (unsigned)features, engine, ends[1]);
    close(ends[1]);
    wait_for_engine(pid, ends[0]);
}
