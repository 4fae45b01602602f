/* Two whole subcommands, from their arguments to their exit codes (conformance.md): `benchd
 * correctness` walks a golden's gates with one engine; `benchd conformance` drives every verb and
 * every fault of Engine Protocol v1 and is the definition of the protocol for authors of engines.
 * These print. argv[0..argc) are the arguments after the subcommand's name. */
#ifndef MLXFAST_JUDGE_CONFORMANCE_H
#define MLXFAST_JUDGE_CONFORMANCE_H

int correctness_main(int argc, char **argv); /* 0 passed, 1 failed, 2 usage or bad manifest */
int conformance_main(int argc, char **argv); /* 0 nothing failed, 1 something did, 2 usage */

#endif
