/* The small tools of benchd (benchd-cli.md section 7): each is a whole subcommand, from its
 * arguments to its exit code. argv[0..argc) are the arguments after the subcommand's name. These
 * print; nothing else in this folder does. */
#ifndef MLXFAST_JUDGE_TOOLS_H
#define MLXFAST_JUDGE_TOOLS_H

#include <stdbool.h>
#include <stddef.h>

enum { TOOL_OK = 0, TOOL_REJECTED = 1, TOOL_USAGE = 2, TOOL_IO = 3 };

int tool_validate_golden(int argc, char **argv);    /* 0 accept, 1 reject, 2 usage, 3 I/O */
int tool_validate_weights(int argc, char **argv);   /* the same */
int tool_weights_digest(int argc, char **argv);     /* 0, 2 usage, 3 I/O */
int tool_harness_hash(int argc, char **argv);       /* 0, 1 failed, 2 usage */
int tool_explain_contract(int argc, char **argv);   /* 0, 1 refused contract, 2 usage, 3 I/O */
int tool_parity_diff(int argc, char **argv);        /* 0 same, 1 differ, 2 usage, 3 I/O */
int tool_prefill_decompose(int argc, char **argv);  /* 0, 1 above the limit or failed, 2 usage */
int tool_calibrate_fidelity(int argc, char **argv); /* 0, 1 an honest engine was refused, 2, 3 */
int tool_dflash_reference(int argc, char **argv);   /* 0, 1 failed, 2 usage, 130 interrupted */
int tool_dflash_probe(int argc, char **argv);       /* the same */
int tool_dflash_benchmark(int argc, char **argv);   /* the same */
int tool_ngram_similarity(int argc, char **argv);   /* 0, 1 above the limit, 2 usage, 3 I/O */
int tool_dflash_score(int argc, char **argv);       /* 0 passed, 1 not, 2 usage or refused, 3 I/O */
int tool_draw_prompt(int argc, char **argv);        /* 0 drawn, 1 refused, 2 usage, 3 I/O */
int tool_report(int argc, char **argv);             /* 0 made, 1 refused, 2 usage, 3 I/O */
int tool_keygen(int argc, char **argv);             /* 0, 1 there already, 2 usage, 3 I/O */
int tool_sign(int argc, char **argv);               /* 0 signed, 1 refused, 2 usage, 3 I/O */
int tool_log(int argc, char **argv);                /* 0, 1 broken or refused, 2 usage, 3 I/O */
int tool_bundle(int argc, char **argv);             /* 0 packed, 1 refused, 2 usage, 3 I/O */
int tool_verify(int argc, char **argv);             /* 0 proved, 1 failed, 2 usage, 3 unreadable */
int tool_calibrate_baseline(int argc, char **argv); /* 0 written, 1 not, 2 usage, 130 interrupted */
int tool_measure_noop(int argc, char **argv);       /* 0 measured, 1, 2, 130 likewise */
int tool_quiet(int argc, char **argv);              /* 0 quiet, 1 not, 2, 130 interrupted */
int tool_noise(int argc, char **argv);              /* 0 measured, 1 failed, 2 usage, 130 */
int tool_compare(int argc, char **argv);            /* 0 verdicts, 1 declined, 2 usage, 130 */
int tool_measure_job(int argc, char **argv);        /* docs/older-flow.md */
int tool_overlay_timing(int argc, char **argv);     /* 0 passed, 1 not, 2 usage */
int tool_refusals(int argc, char **argv);           /* docs/refusals.md on stdout */
/* First on the command line, for scripts: 0 cool or skipped, 1 aborted, 2, 130. */
int tool_cool_gate_only(int argc, char **argv);

/* What a dispatcher needs. Hidden tools are left out of the list of subcommands. */
struct tool {
    const char *name, *summary;
    bool hidden;
    int (*run)(int argc, char **argv);
};
const struct tool *tools_all(size_t *count);
const struct tool *tools_find(const char *name); /* NULL: no such tool */

#endif
