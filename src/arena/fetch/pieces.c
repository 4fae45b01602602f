#include "arena/fetch/pieces.h"

#include "base/arena.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

struct piece_ring {
    pthread_mutex_t mutex;
    pthread_cond_t freed;
    struct piece all[PIECE_COUNT];
};

struct piece_ring *piece_ring_make(void)
{
    struct piece_ring *p = memory_alloc(sizeof *p);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->freed, NULL);
    for (int i = 0; i < PIECE_COUNT; i++)
        p->all[i].of = p;
    return p;
}

/* Under the mutex. One that has memory already, if there is one: small files need but one. */
static struct piece *find_free(struct piece_ring *p)
{
    struct piece *found = NULL;
    for (int i = 0; i < PIECE_COUNT; i++)
        if (p->all[i].holders == 0 && (!found || (!found->memory && p->all[i].memory)))
            found = &p->all[i];
    return found;
}

/* One large page where there are some: what the disk reads has to be looked up page by page. */
static uint8_t *make_memory(void)
{
    uint8_t *memory = aligned_alloc(PIECE_BYTES, PIECE_BYTES);
    if (!memory)
        abort(); /* as when other memory is out */
    madvise(memory, PIECE_BYTES, MADV_HUGEPAGE);
    return memory;
}

struct piece *piece_ring_take(struct piece_ring *p, uint64_t at)
{
    struct piece *piece;
    pthread_mutex_lock(&p->mutex);
    while (!(piece = find_free(p)))
        pthread_cond_wait(&p->freed, &p->mutex);
    piece->holders = 1;
    pthread_mutex_unlock(&p->mutex);
    if (!piece->memory)
        piece->memory = make_memory();
    const size_t beyond = (size_t)(at % PIECE_ALIGN);
    piece->data = piece->memory + beyond;
    piece->room = PIECE_BYTES - beyond;
    piece->length = 0;
    piece->at = at;
    return piece;
}

void piece_hold(struct piece *piece)
{
    pthread_mutex_lock(&piece->of->mutex);
    piece->holders++;
    pthread_mutex_unlock(&piece->of->mutex);
}

void piece_let_go(struct piece *piece)
{
    struct piece_ring *p = piece->of;
    pthread_mutex_lock(&p->mutex);
    if (--piece->holders == 0)
        pthread_cond_signal(&p->freed);
    pthread_mutex_unlock(&p->mutex);
}

void piece_ring_free(struct piece_ring *p)
{
    if (!p)
        return;
    for (int i = 0; i < PIECE_COUNT; i++)
        free(p->all[i].memory);
    pthread_cond_destroy(&p->freed);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}
