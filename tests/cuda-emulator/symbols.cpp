/* What the program's own symbol table tells of kernels: their names, and which static variables of
 * their shared memory there are (function-local thread variables, which the C++ ABI names _ZZ, the
 * function, E, the variable). */
#include "emulator.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

extern __thread unsigned char emulator_shared[];

struct kernel {
    const void *address;
    char *name, *symbol;
    struct emulator_range *ranges;
    size_t count, bytes, own_bytes;
    struct kernel *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kernel *kernels;

struct image {
    uintptr_t bias;
    const unsigned char *tls; /* this thread's */
};

struct table {
    const ElfW(Sym) * symbols;
    size_t count;
    const char *strings;
    size_t strings_bytes;
};

static int of_program(struct dl_phdr_info *info, size_t size, void *out)
{
    struct image *image = (struct image *)out;
    (void)size;
    image->bias = info->dlpi_addr;
    image->tls = (const unsigned char *)info->dlpi_tls_data;
    return 1; /* the program is the first */
}

/* Stays mapped. */
static struct table read_table(void)
{
    struct table t = {};
    struct stat st;
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return t;
    void *map = fstat(fd, &st) == 0 && (size_t)st.st_size > sizeof(ElfW(Ehdr))
                    ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)
                    : MAP_FAILED;
    close(fd);
    if (map == MAP_FAILED)
        return t;
    const unsigned char *file = (const unsigned char *)map;
    const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)file;
    const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(file + header->e_shoff);
    if (header->e_shoff + header->e_shnum * sizeof *sections > (size_t)st.st_size)
        return t;
    for (int i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == SHT_SYMTAB && sections[i].sh_link < header->e_shnum) {
            const ElfW(Shdr) *strings = &sections[sections[i].sh_link];
            t.symbols = (const ElfW(Sym) *)(file + sections[i].sh_offset);
            t.count = sections[i].sh_size / sizeof *t.symbols;
            t.strings = (const char *)(file + strings->sh_offset);
            t.strings_bytes = strings->sh_size;
        }
    return t;
}

static const char *symbol_name(const struct table *t, size_t i)
{
    return t->symbols[i].st_name < t->strings_bytes ? t->strings + t->symbols[i].st_name : "";
}

static bool variable_of(const char *name, const char *function)
{
    return strncmp(name, "_ZZ", 3) == 0 && strncmp(function, "_Z", 2) == 0 &&
           strncmp(name + 3, function + 2, strlen(function + 2)) == 0 &&
           name[3 + strlen(function + 2)] == 'E';
}

/* A static variable of a function. */
struct variable {
    const ElfW(Sym) * symbol;
    const char *name;
    bool alone; /* its function is not in the table: it became part of its callers */
};
static struct variable *variables;
static size_t variable_count;

static void find_variables(const struct table *t)
{
    for (size_t i = 0; i < t->count; i++) {
        const char *name = symbol_name(t, i);
        if (ELF64_ST_TYPE(t->symbols[i].st_info) != STT_TLS || strncmp(name, "_ZZ", 3) != 0)
            continue;
        struct variable *more =
            (struct variable *)realloc(variables, (variable_count + 1) * sizeof *more);
        if (more == NULL)
            abort();
        variables = more;
        struct variable *v = &variables[variable_count++];
        *v = {&t->symbols[i], name, true};
        for (size_t f = 0; f < t->count && v->alone; f++)
            if (ELF64_ST_TYPE(t->symbols[f].st_info) == STT_FUNC)
                v->alone = !variable_of(name, symbol_name(t, f));
    }
}

static char *readable(const char *symbol)
{
    int status;
    char *name = abi::__cxa_demangle(symbol, NULL, NULL, &status);
    if (name == NULL)
        return strdup(symbol);
    char *parameters = strchr(name, '(');
    if (parameters != NULL && parameters != name)
        *parameters = 0;
    return name;
}

static struct kernel *kernel_of(const void *address)
{
    static struct table table;
    static struct image image;
    for (struct kernel *k = kernels; k != NULL; k = k->next)
        if (k->address == address)
            return k;
    if (table.symbols == NULL) {
        table = read_table();
        find_variables(&table);
    }
    dl_iterate_phdr(of_program, &image);
    struct kernel *k = (struct kernel *)calloc(1, sizeof *k);
    if (k == NULL)
        abort();
    k->address = address;
    for (size_t i = 0; i < table.count && k->symbol == NULL; i++)
        if (ELF64_ST_TYPE(table.symbols[i].st_info) == STT_FUNC &&
            image.bias + table.symbols[i].st_value == (uintptr_t)address)
            k->symbol = strdup(symbol_name(&table, i));
    k->name = k->symbol != NULL ? readable(k->symbol) : strdup("?");
    for (size_t i = 0; i < variable_count && k->symbol != NULL && image.tls != NULL; i++) {
        const struct variable *v = &variables[i];
        const bool own = variable_of(v->name, k->symbol);
        if (!own && !v->alone)
            continue;
        struct emulator_range *more =
            (struct emulator_range *)realloc(k->ranges, (k->count + 1) * sizeof *more);
        if (more == NULL)
            abort();
        k->ranges = more;
        more[k->count].offset = image.tls + v->symbol->st_value - emulator_shared;
        more[k->count++].bytes = v->symbol->st_size;
        k->bytes += v->symbol->st_size;
        k->own_bytes += own ? v->symbol->st_size : 0;
    }
    k->next = kernels;
    kernels = k;
    return k;
}

const char *emulator_kernel_name(const void *kernel)
{
    pthread_mutex_lock(&lock);
    const char *name = kernel_of(kernel)->name;
    pthread_mutex_unlock(&lock);
    return name;
}

size_t emulator_kernel_shared(const void *kernel, const struct emulator_range **ranges,
                              size_t *bytes)
{
    pthread_mutex_lock(&lock);
    const struct kernel *k = kernel_of(kernel);
    pthread_mutex_unlock(&lock);
    *ranges = k->ranges;
    *bytes = k->bytes;
    return k->count;
}

size_t emulator_kernel_own(const void *kernel)
{
    pthread_mutex_lock(&lock);
    const size_t bytes = kernel_of(kernel)->own_bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}
