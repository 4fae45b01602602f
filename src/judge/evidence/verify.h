/* The verification of a bundle, from its bytes alone: every digest, the signature, the place in the
 * log, the score worked out again. Each step adds lines to the findings; a step that lacks what it
 * needs says so. */
#ifndef MLXFAST_JUDGE_EVIDENCE_VERIFY_H
#define MLXFAST_JUDGE_EVIDENCE_VERIFY_H

#include "judge/contract.h"
#include "judge/evidence/bundle.h"
#include "judge/evidence/findings.h"
#include "judge/evidence/statement.h"

#include <jansson.h>
#include <stdbool.h>

/* What else the verifier has; NULL: has not. What is given must be proved. */
struct verify_options {
    const char *public_key;               /* the organiser's, got elsewhere */
    const char *log;                      /* the published log */
    const char *log_root;                 /* "<entries>:<root>", published */
    const char *engine, *baseline_engine; /* files */
    const char *weights, *drafter;        /* folders */
};

/* The files of a run, read. Members of json are NULL, digests "", where a file is not there or
 * could not be read: that is a finding. */
struct verify_run {
    const struct bundle *bundle;
    json_t *score, *integrity;
    const json_t *metrics; /* of the score */
    bool passed;
    struct contract *contract;
    char score_sha256[SHA256_HEX], integrity_sha256[SHA256_HEX], contract_sha256[SHA256_HEX],
        calibration_sha256[SHA256_HEX];
    struct statement_golden goldens[STATEMENT_GOLDENS_MOST]; /* of the bundle */
    size_t golden_count;
};

/* All of it. */
void verify_bundle(const struct bundle *b, const struct verify_options *o, struct findings *f);

/* ---- The steps ---- */

void verify_sums(const struct bundle *b, struct findings *f);
/* score, sidecar, integrity file, contract, goldens, calibration, and that they speak of each
 * other. The run is filled as far as it goes; give it back with verify_run_free. */
void verify_files(const struct bundle *b, struct verify_run *run, struct findings *f);
void verify_run_free(struct verify_run *run);
/* statement, signature, log. */
void verify_statement(const struct verify_run *run, const struct verify_options *o,
                      struct findings *f);
/* The score from the sealed times and the contract; the statistics; the gates' records. */
void verify_score(const struct verify_run *run, struct findings *f);
/* Of the older flow: the score from results.json, its pairs and the contract. verify_score calls
 * it.
 */
bool verify_is_overlaid(const struct verify_run *run);
void verify_results(const struct verify_run *run, struct findings *f);
void verify_statistics(const struct verify_run *run, struct findings *f);
void verify_gates(const struct verify_run *run, struct findings *f);
/* engine, weights, drafter. */
void verify_machine(const struct verify_run *run, const struct verify_options *o,
                    struct findings *f);

/* A run that is scored against its own control legs, as its source, its mode or its pairs say; not
 * one of the gates alone. */
bool verify_is_ranked(const struct verify_run *run);

/* Texts and numbers of an object; "" and 0 where they are not there. */
const char *verify_text(const json_t *o, const char *key);
double verify_number(const json_t *o, const char *key);
/* The same to within the last bits, which libraries of mathematics may differ in. */
bool verify_same(double a, double b);

#endif
