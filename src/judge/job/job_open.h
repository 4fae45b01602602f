/* A job from its options to the first engine: what is read, checked and found, in the order of
 * benchd-cli.md section 4. Only the job's own files include this. */
#ifndef MLXFAST_JUDGE_JOB_JOB_OPEN_H
#define MLXFAST_JUDGE_JOB_JOB_OPEN_H

#include "judge/contract.h"
#include "judge/digest.h"
#include "judge/job/inputs.h"
#include "judge/job/job.h"
#include "judge/job/timing.h"
#include "judge/ranked/calibration.h"
#include "judge/sandbox.h"
#include "judge/surface/surface.h"

struct job {
    const struct job_options *o;
    struct arena arena;
    struct contract *contract;
    struct job_inputs inputs;
    struct surface surface;
    struct calibration *calibration;              /* NULL: none is asked for */
    const struct calibration_prompt **calibrated; /* of each prompt; NULL: none */
    bool enforce_band;
    double prefill_exponent, decode_exponent;
    uint32_t streams; /* 1, or JOB_COHORT_STREAMS */
    struct wire_spec candidate_spec, baseline_spec;

    const char *weights;
    struct tree_digest weights_digest;
    char candidate_tree_sha256[SHA256_HEX], baseline_tree_sha256[SHA256_HEX];
    const char *commit; /* "": none is known */
    double loaded_use;
    const char *loaded_use_source;
    struct job_engine candidate, baseline;
    struct sandbox_plan candidate_sandbox, baseline_sandbox;
    struct run_stamps candidate_stamps, baseline_stamps;
};

/* Loads the contract and resolves the specs: what fails here is misuse or a refusal. Then every
 * check before an engine starts. */
bool job_open(struct job *j, struct error *err);
void job_close(struct job *j);

/* The exit code of a failure before the pairs. */
enum job_exit job_exit_of(const struct error *err);

#endif
