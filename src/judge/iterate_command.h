/* `benchd iterate` and `benchd official` (docs/benchd.md, docs/ranked-run.md): flags, and what they
 * call. These print. */
#ifndef MLXFAST_JUDGE_ITERATE_COMMAND_H
#define MLXFAST_JUDGE_ITERATE_COMMAND_H

/* The arguments after the subcommand's name; the exit status. */
int iterate_main(int argc, char **argv);
int official_main(int argc, char **argv);

#endif
