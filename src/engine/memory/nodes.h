/* Memory nodes (NUMA): which there are, and where pages go when there is more than one.
 *
 * Weights and caches are spread over the nodes page by page (interleaved): which thread reads which
 * expert changes with every token, so no fixed place is right, and spread pages give every thread
 * the sum of the nodes' bandwidths. What one thread alone uses lies where that thread first touches
 * it. With one node nothing is asked of the kernel. */
#ifndef MLXFAST_ENGINE_MEMORY_NODES_H
#define MLXFAST_ENGINE_MEMORY_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NODES_MOST = 64 };

/* Nodes with memory that this process may use and processors of its mask: bit i is node i. 0 where
 * the machine does not say. Read once. */
uint64_t nodes_usable(void);
uint64_t nodes_read(void); /* read anew (tests) */
/* "0-1,4" as bits; false for anything else, and for numbers past NODES_MOST - 1. */
bool nodes_parse(const char *text, uint64_t *out);

/* Spreads pages that were not touched yet. False where it was not done: one node, or refused. */
bool nodes_spread(void *data, size_t bytes);
/* Keeps this thread on the processors of one node, in turn by its index, of those that it may use;
 * with one node it may go where it likes: a processor that a neighbour has taken is left. */
void nodes_settle(int index);
/* From begin to end, pages of files that this thread brings into memory are spread. */
void nodes_spread_begin(void);
void nodes_spread_end(void);

#endif
