/* What the two subcommands of conformance.h share of their command lines. */
#ifndef MLXFAST_JUDGE_CONFORMANCE_FLAGS_H
#define MLXFAST_JUDGE_CONFORMANCE_FLAGS_H

#include "base/error.h"
#include "base/options.h"

/* Each --engine-resource is NAME=PATH, and no name stands twice. Error USAGE. */
bool conformance_check_resources(const struct option_list *resources, struct error *err);

#endif
