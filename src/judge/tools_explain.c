/* benchd explain-contract. */
#include "judge/tools.h"

#include "judge/contract.h"
#include "judge/explain.h"
#include "judge/tools_common.h"

#include <string.h>

int tool_explain_contract(int argc, char **argv)
{
    static const char tool[] = "explain-contract";
    static const char *const positional[] = {"FILE", NULL};
    bool markdown = false;
    const struct option_spec options[] = {
        {"--markdown", OPTION_SWITCH, false, NULL,
         "Write Markdown, the form of tracks/<id>/CONTRACT.md.", &markdown, NULL, 0, 0},
    };
    const struct command command = {
        "benchd explain-contract",
        "Says in plain words what a run under a contract does and what can fail it.",
        "FILE is a track's contract. Group by group, with its numbers; for what it does not "
        "declare, the name under which that is refused.\n"
        "Exit: 0, 1 the contract is refused, 2 usage, 3 it cannot be read.",
        positional,
        options,
        sizeof options / sizeof options[0]};
    const char *path = NULL;
    int code;
    if (!tool_parse(&command, tool, argc, argv, &path, &code))
        return code;
    struct contract *c = NULL;
    struct error err = {0};
    struct buffer page = {0};
    /* The environment's track is a run's matter: any contract may be explained. */
    if (contract_load(path, NULL, &c, &err)) {
        explain_contract(c, markdown, &page);
        code = fwrite(page.data, 1, page.length, stdout) == page.length && fflush(stdout) == 0
                   ? TOOL_OK
                   : TOOL_IO;
    } else {
        tool_complain(tool, &err);
        code = strcmp(err.name, "IO") == 0 || strcmp(err.name, "NOT-A-REGULAR-FILE") == 0
                   ? TOOL_IO
                   : TOOL_REJECTED;
    }
    buffer_free(&page);
    contract_free(c);
    return code;
}
