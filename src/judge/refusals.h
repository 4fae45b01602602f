/* Every name under which the judge refuses or fails, with its meaning in one sentence. The page
 * docs/refusals.md is written from this table (`benchd refusals`), and a test holds the sources to
 * it. A new name is a new row, in its group. */
#ifndef MLXFAST_JUDGE_REFUSALS_H
#define MLXFAST_JUDGE_REFUSALS_H

#include "base/buffer.h"
#include "judge/fidelity.h"

#include <stddef.h>

/* X(name, meaning). One sentence, no '|'. */

/* Inputs: the command line, files, JSON. */
#define REFUSALS_INPUT(X)                                                                          \
    X("USAGE", "A flag is unknown, missing, repeated, without its value, or out of range.")        \
    X("IO", "The system could not read or write a file or folder.")                                \
    X("FILE-TOO-LARGE", "A file is longer than its reader accepts.")                               \
    X("NOT-A-REGULAR-FILE", "A symbolic link or special file stands where a file must be.")        \
    X("JSON-INVALID", "A file is not strict JSON, or repeats a key.")                              \
    X("JSON-TOO-DEEP", "A JSON file is nested deeper than its reader accepts.")                    \
    X("JSON-UNKNOWN-KEY", "A closed JSON object holds a key that it may not hold.")                \
    X("JSON-FIELD-MISSING", "A required JSON field is absent or null.")                            \
    X("JSON-FIELD-TYPE", "A JSON field has another type than required.")                           \
    X("JSON-FIELD-RANGE", "A JSON number is outside its range.")

/* The contract. */
#define REFUSALS_CONTRACT(X)                                                                       \
    X("CONTRACT-INVALID", "The contract has a wrong type, a value out of range, or half a group.") \
    X("CONTRACT-UNKNOWN-KEY", "The contract declares a key that no reader knows.")                 \
    X("TRACK-ID-MISMATCH", "The environment or a flag names another track than the contract.")     \
    X("WINDOW-SHAPE-UNDECLARED-FOR-TRACK", "The contract declares no step counts.")                \
    X("MODEL-IDENTITY-UNDECLARED-FOR-TRACK",                                                       \
      "The contract declares no model type, vocabulary, layers or seed length.")                   \
    X("SCORING-WEIGHTS-UNDECLARED-FOR-TRACK", "The contract declares no scoring weights.")         \
    X("SPEEDUP-FLOOR-UNDECLARED-FOR-TRACK", "The contract declares no speedup floor of an axis.")  \
    X("SCORED-REGIME-PENDING-DECLARATION",                                                         \
      "The contract declares no batch size with both gain exponents.")                             \
    X("OFFICIAL-BASELINE-PENDING-CAPTURE", "The contract declares no stored baseline pair.")       \
    X("ACCEPTANCE-BANDS-UNDECLARED-FOR-TRACK", "The contract declares no acceptance bands.")       \
    X("OFFICIAL-SCORING-DISABLED-FOR-TRACK",                                                       \
      "The contract says that no run is scored officially.")                                       \
    X("OFFICIAL-SCORING-UNDECLARED-FOR-TRACK",                                                     \
      "The contract does not say whether runs are scored officially, so they are not.")            \
    X("CONTROL-LEG-UNDECLARED-FOR-TRACK",                                                          \
      "The contract does not say whether a run is scored against a live control leg.")             \
    X("OFFICIAL-PAIRS-UNDECLARED-FOR-TRACK", "The contract declares no number of pairs.")          \
    X("OFFICIAL-PAIRS-NOT-A-MULTIPLE-OF-GOLDENS",                                                  \
      "The contract's number of pairs is no multiple of the number of goldens.")                   \
    X("PAIRED-FLOW-UNDECLARED-FOR-TRACK",                                                          \
      "The contract does not say whether the older paired flow is retired.")                       \
    X("PAIRED-FLOW-RETIRED-FOR-TRACK", "The older paired flow is asked for, and is retired.")      \
    X("CAPTURE-RETIRED-FOR-LIVE-CONTROL-LEG",                                                      \
      "A stored pair is to be captured on a track that measures its own.")                         \
    X("SCORED-BATCH-SIZE-UNSUPPORTED", "The contract scores more streams than can be run.")        \
    X("BLOCK-DECODE-UNDECLARED-FOR-TRACK", "The contract declares no block decoding.")             \
    X("FIDELITY-UNDECLARED-FOR-TRACK", "The contract declares no limits of token fidelity.")

/* Goldens and weights. */
#define REFUSALS_GOLDEN(X)                                                                         \
    X("GOLDEN-INVALID", "The golden breaks a rule of its schema.")                                 \
    X("GOLDEN-PIN-MISMATCH", "The golden's bytes are not those that were pinned.")                 \
    X("GOLDEN-CARRIES-STORED-BASELINE",                                                            \
      "The golden stores a baseline on a track that measures its own.")                            \
    X("GOLDEN-NOT-SELF-CONSISTENT",                                                                \
      "The reference disagreed with itself, or with the tokens, when the golden was made.")        \
    X("TAPE-INVALID", "The timed-prompt tape breaks a rule of its schema.")                        \
    X("TAPE-NOT-SELF-CONSISTENT", "The reference differed from itself when the tape was made.")    \
    X("TIMED-INPUT-UNKNOWN", "A timed input is neither a tape nor a golden.")                      \
    X("GOLDEN-IN-WEIGHTS", "A golden lies where the engine could read it: in the weights folder.") \
    X("QUANTIZATION-NOT-PERMITTED",                                                                \
      "The weights are stored in a format that the contract does not permit.")                     \
    X("WEIGHTS-INVALID", "The weights folder is not a real folder, or a file it needs is absent.") \
    X("WEIGHTS-TOO-LARGE", "The weights are larger than the limit for a submission.")

/* Scores and seals. */
#define REFUSALS_SEAL(X)                                                                           \
    X("SCORE-INVALID",                                                                             \
      "A score has a missing or unknown key, a wrong type, or contradicts itself.")                \
    X("SCORE-PATH-INVALID", "The score file's name cannot stand in a checksum line.")              \
    X("HARNESS-EMPTY", "The working directory holds no tree of the judge.")                        \
    X("CHART-LIBRARY-MISSING", "Chart.js, which a report's page needs, is not on this machine.")   \
    X("CHART-LIBRARY-INVALID", "The file of Chart.js is of another kind or version.")              \
    X("REPORT-CONTRACT-MISMATCH",                                                                  \
      "The contract given to a report is not the one that the score was sealed under.")            \
    X("REPORT-BENCH-INVALID", "A report's roofline file is no measurement of bench-worker bench.")

/* Evidence for a score: keys, statements, the log, bundles (docs/evidence.md). */
#define REFUSALS_EVIDENCE(X)                                                                       \
    X("KEY-EXISTS", "A key pair is to be made where a file of it already stands.")                 \
    X("KEY-INVALID", "A file is no Ed25519 key of the kind, or others may read a signing key.")    \
    X("STATEMENT-INVALID", "A statement breaks its form or is not in canonical spelling.")         \
    X("EVIDENCE-MISMATCH", "Files that belong together, or a statement and a log, disagree.")      \
    X("LOG-INVALID", "A log's entry was edited, deleted, inserted or moved, or its end cut off.")  \
    X("LOG-TORN", "The writing of a log's last line was cut off.")                                 \
    X("BUNDLE-INVALID",                                                                            \
      "A bundle is no archive in its one spelling: cut off, changed, or with a member that it "    \
      "may not hold.")

/* The engine and the wire (engine-protocol.md section 11). The names without hyphens are the
 * protocol's. */
#define REFUSALS_ENGINE(X)                                                                         \
    X("SPAWN-FAILED", "The engine could not be started.")                                          \
    X("Io", "A read from or a write to the engine failed in the system.")                          \
    X("Json", "A line of the engine begins an object and is no valid response.")                   \
    X("Protocol", "A well-formed response breaks a rule of Engine Protocol v1.")                   \
    X("NonceMismatch", "A response does not carry the session's nonce.")                           \
    X("Engine", "The engine answered that it failed, in its own words.")                           \
    X("HelloTimeout", "The engine did not say hello within its deadline.")                         \
    X("ReplyTimeout", "The engine did not answer a request within its deadline.")                  \
    X("BarrierTimeout", "The engine did not answer phase_diagnostics within its deadline.")        \
    X("RunTimeout", "A timed decode took longer than its run budget.")                             \
    X("RunTimeoutBudgetInvalid", "No usable run budget comes of the token count and ceiling.")     \
    X("LineTooLong", "A line of the engine is longer than its request allows.")                    \
    X("StdoutFlood", "The engine writes more text between its replies than is tolerated.")         \
    X("EngineExited", "The engine closed its output before it had answered.")                      \
    X("Interrupted", "The run was stopped by a signal.")                                           \
    X("SessionDiscarded", "The session had already ended with another failure.")                   \
    X("AllocatorCacheNotDrained", "The engine reports memory left in its allocator's cache.")      \
    X("CompletedWorkMismatch", "The engine's count of steps is not the judge's.")                  \
    X("CapabilityNotAdvertised", "The engine's hello lacks a capability that the run needs.")      \
    X("SpecModeNotRunnable", "The engine's hello does not list the speculation mode asked for.")   \
    X("SpecEchoDivergence", "The engine runs another speculation than was asked for.")             \
    X("BatchEchoDivergence", "The engine runs another number of streams than was asked for.")      \
    X("BatchWidthExceedsEngineMax", "More streams were asked for than the engine can run.")        \
    X("FreeRunConsistency", "The counters of a free run contradict one another.")                  \
    X("ENGINE-ARITHMETIC-MISMATCH",                                                                \
      "The contract requires strict arithmetic, and the hello does not say that it is.")           \
    X("resident_identity_changed_within_window",                                                   \
      "Two sessions of one window are attached to different resident processes or loads.")

/* What FreeRunConsistency found: the message goes on with one of these (engine-protocol.md
 * section 7), in the order in which they are checked. */
#define REFUSALS_EQUATION(X)                                                                       \
    X("TokenCount", "A free run gave another number of tokens than was asked for.")                \
    X("CommittedTotal", "committed_total is not that number.")                                     \
    X("CohortWidth", "tokens_by_stream is not one list for each stream.")                          \
    X("CohortStreamTokenCount", "A stream gave another number of tokens than was asked for.")      \
    X("CohortCommittedTotal", "committed_total is not streams times tokens.")                      \
    X("DraftedLessThanAccepted", "More tokens were accepted than were drafted.")                   \
    X("AcceptanceSum", "acceptance_lengths do not add up to the tokens of a stream.")              \
    X("CohortRoundsDisagree", "rounds is not the length of acceptance_lengths.")                   \
    X("CohortNaturalWidth", "natural_accepted_by_stream is not one list for each stream.")         \
    X("CohortNaturalRoundCount", "A list of it is not one entry for each round.")                  \
    X("CohortNaturalBelowCommitted", "A stream accepted less than its round committed.")           \
    X("CohortActiveStreamsLength", "active_streams_by_round is not one entry for each round.")     \
    X("CohortActiveStreamsOutOfRange", "A round had no stream active, or more than there are.")    \
    X("CohortActiveStreamsIncreased", "A stream became active again.")                             \
    X("RoundCounter", "completed_work of a free run is not its rounds and the seed forward.")      \
    X("VerifyReplayDisagreementsExceedRejected",                                                   \
      "More verified tokens disagreed than were rejected.")

/* A cohort's replay and the engine's own per-stream times. */
#define REFUSALS_COHORT(X)                                                                         \
    X("StreamCountMismatch", "The replay has another number of streams than the run.")             \
    X("StreamLengthMismatch", "The replay of a stream is not as long as its run.")                 \
    X("EmptyStream", "A stream of a cohort committed no token.")                                   \
    X("CohortEchoDivergence", "The replay judged other tokens than the run committed.")            \
    X("GateRejected", "A stream differs from the replay in more than 10 % of its tokens.")         \
    X("NoStreams", "A near-tie record is asked for of a replay without streams.")                  \
    X("UnusableEnvelope", "A near-tie record is asked for without a usable rel_envelope.")         \
    X("CapabilityAbsent", "Per-stream times are asked for and not advertised.")                    \
    X("VectorMissing", "A vector of per-stream times is not in the reply.")                        \
    X("VectorLength", "A vector of per-stream times is not one for each stream.")                  \
    X("TokensLenByStreamWidth", "The token counts of the streams are not one for each stream.")    \
    X("ZeroDuration", "A per-stream time is 0.")                                                   \
    X("NonPositiveWindow", "A window next to the per-stream times is not above 0.")                \
    X("ZeroRounds", "Per-stream times are told of a run without rounds.")

/* The organiser's judge of meanings (docs/gates.md). */
#define REFUSALS_SEMANTIC(X)                                                                       \
    X("SEMANTIC-JUDGE-MISSING",                                                                    \
      "The golden holds cases that are judged by their meaning, and no judge is named.")           \
    X("SEMANTIC-CASES-TOO-FEW",                                                                    \
      "The golden holds fewer cases judged by their meaning than the contract asks right.")        \
    X("SEMANTIC-JUDGE-FAILED",                                                                     \
      "The judge of meanings cannot be started, fails, or writes more than its limit.")            \
    X("SEMANTIC-JUDGE-TIMEOUT", "The judge of meanings did not answer within its limit.")          \
    X("SEMANTIC-JUDGE-INVALID",                                                                    \
      "The judge of meanings wrote no verdict, or another model than before gave it.")             \
    X("SEMANTIC-DETOKENIZE-FAILED",                                                                \
      "The command that turns an answer's tokens into text fails, stalls, or writes no text.")

/* Runner manifests, and the six checks of a hello against one. */
#define REFUSALS_MANIFEST(X)                                                                       \
    X("MANIFEST-INVALID", "A runner manifest breaks a rule of its schema.")                        \
    X("spec_modes_declared", "The hello lists a speculation mode that no decoder declares.")       \
    X("capabilities_derived", "The hello's capabilities are not those of the manifest's regimes.") \
    X("max_batch_size_derived", "The hello's max_batch_size is not the widest regime's.")          \
    X("backend_matches", "The hello's backend is not the manifest's.")                             \
    X("runner_identity_present", "The hello carries no runner.")                                   \
    X("manifest_digest_matches", "The hello's digest is not that of the manifest's bytes.")

/* The sandbox (benchd-cli.md, "Sandbox"; the two in capitals are ours). */
#define REFUSALS_SANDBOX(X)                                                                        \
    X("WorkerDisabled", "An official run is asked to judge something else than a worker process.") \
    X("SandboxDisabled", "An official run is asked to go without the sandbox.")                    \
    X("SandboxExecNotFound", "An official run finds no bubblewrap on the machine.")                \
    X("NoProfile", "The pinned sandbox policy cannot be read or is not the one in force.")         \
    X("NoExecutable", "The worker that is to be sandboxed is no executable file.")                 \
    X("InvalidResidentSocket",                                                                     \
      "BENCH_WORKER_RESIDENT_SOCKET is not an absolute path, without control characters, of a "    \
      "socket.")                                                                                   \
    X("SANDBOX-UNAVAILABLE", "No sandbox can be built on this machine where one is required.")     \
    X("SANDBOX-CONFLICT",                                                                          \
      "The engine needs a path that the sandbox hides, or that its user could not read.")

/* Block decoding; the violations of token fidelity are the rows of FIDELITY_VIOLATIONS. */
#define REFUSALS_BLOCKS(X)                                                                         \
    X("BLOCK-REPORT-INVALID",                                                                      \
      "The report of a leg, or of the public golden, breaks its form or contradicts itself.")      \
    X("DECODE-TOKENS-MISMATCH", "A leg decoded another number of tokens than is configured.")      \
    X("NOOP-SPEEDUP-UNPINNED",                                                                     \
      "A score must be normalised, and the contract pins no speedup for its golden.")              \
    X("RAW-SPEEDUP-IMPLAUSIBLE", "A raw speedup is outside the contract's bounds.")                \
    X("BLOCK-PAIRS-REJECTED",                                                                      \
      "Too few pairs of a ranked run were measured validly; no failure of the submission.")        \
    X("PUBLIC-DRIFT-TRIPWIRE",                                                                     \
      "The engine's tokens drifted from the public golden's, or were not compared with them.")     \
    X("POOL-INVALID",                                                                              \
      "The pool has fewer than eight different prompts, or an entry that is not whole.")           \
    X("PROMPT-DRAW-FAILED", "No prompt could be drawn with the kernel's random numbers.")

/* The editable surface (contract-and-scoring.md section 9). */
#define REFUSALS_SURFACE(X)                                                                        \
    X("SURFACE-MANIFEST-INVALID",                                                                  \
      "The manifest of the editable surface breaks a rule of its form.")                           \
    X("SURFACE-UNREADABLE",                                                                        \
      "A file or folder of a tree that is to be compared or measured cannot be read.")             \
    X("SURFACE-EMPTY", "The candidate's tree holds no file of the editable surface.")              \
    X("SURFACE-FILE-TOO-LARGE", "A file of the editable surface is above the cap of a file.")      \
    X("SURFACE-TOO-LARGE", "The files of the editable surface are together above their cap.")      \
    X("SURFACE-GROWTH-EXCEEDED", "The editable surface grew by more than is allowed.")             \
    X("TRUSTED-SCOPE-MISSING", "A path that no submission may touch is not in the trusted tree.")  \
    X("TRUSTED-SCOPE-EDITABLE",                                                                    \
      "An editable entry is, holds or lies in a path that no submission may touch.")               \
    X("write-divergence",                                                                          \
      "A file or link outside the editable surface was changed, added or deleted.")                \
    X("WRITE-GATE-GIT-FAILED",                                                                     \
      "git could not compare two commits of the candidate's tree, or list one.")

/* The trees, residents and calibration of a ranked run (contract-and-scoring.md section 6,
 * benchd-cli.md, "Per-leg resident service"). */
#define REFUSALS_BASELINE(X)                                                                       \
    X("BASELINE-WORKSPACE-MISSING",                                                                \
      "The organiser's tree is not named, not there, no folder, or a symbolic link.")              \
    X("BASELINE-WORKSPACE-NO-ENGINE", "The organiser's tree has no engine at the relative path.")  \
    X("BASELINE-WORKSPACE-NO-WEIGHTS",                                                             \
      "The organiser's tree has no weights folder at the relative path.")                          \
    X("BASELINE-ENGINE-NOT-ROOT-RELATIVE",                                                         \
      "The engine's path is not relative to the root of its tree, or leads out of it.")            \
    X("BASELINE-WEIGHTS-NOT-ROOT-RELATIVE",                                                        \
      "The weights' path is not relative to the root of its tree, or leads out of it.")            \
    X("LEG-SERVE-SCRIPT-MISSING", "The tree of a leg has no script of its own for its resident.")  \
    X("LEG-SERVE-BOOT-FAILED",                                                                     \
      "The script failed, did not end in time, or named no socket of this user's.")                \
    X("LEG-SERVE-STOP-FAILED",                                                                     \
      "The script did not stop its resident, or something else answers at the socket.")            \
    X("LEG-SERVE-INHERITED-SOCKET", "The environment already names a resident.")                   \
    X("LEG-SERVE-IDENTITY-MISSING",                                                                \
      "A leg had a resident and the engine's hello does not say which.")                           \
    X("LEG-SERVE-SHARED-RESIDENT", "Two legs were served by one load of one resident.")            \
    X("BASELINE-CALIBRATION-MISSING", "The calibration of the box is not named or not there.")     \
    X("BASELINE-CALIBRATION-INVALID", "The calibration file breaks a rule of its form.")           \
    X("BASELINE-CALIBRATION-WHOLE-WINDOW-DECODE",                                                  \
      "The calibration file is of an old version that times decoding with its seed.")              \
    X("BASELINE-CALIBRATION-TRACK-MISMATCH", "The calibration is of another track.")               \
    X("BASELINE-CALIBRATION-BOX-MISMATCH", "The calibration is of another machine.")               \
    X("BASELINE-CALIBRATION-PROMPT-MISMATCH", "The calibration holds no prompt of the name.")      \
    X("BASELINE-BOX-UNRESOLVED", "Neither RUNNER_NAME nor a flag names the machine.")              \
    X("CALIBRATION-CV-EXCEEDED", "The passes of a calibration differ by more than is allowed.")    \
    X("CALIBRATION-SPEC-ARMED", "The reference engine speculated where it is to be serial.")       \
    X("SERIAL-CONTROL-LEG-OUTSIDE-BAND",                                                           \
      "A serial control leg is not as fast as the calibration of its machine allows for.")

/* The older flow: measure-job and overlay-timing (docs/older-flow.md). */
#define REFUSALS_JOB(X)                                                                            \
    X("GOLDEN-REPEATED", "Two goldens of a job have the same bytes.")                              \
    X("GOLDEN-NOT-POOLED", "A timed golden is not pinned by exactly one entry of the pool, or by " \
                           "one without a no-op speedup.")                                         \
    X("POOL-NOT-COVERED", "An entry of the pool is no golden of the job.")                         \
    X("PROMPT-DIGEST-MISMATCH", "The captured prompt's SHA-256 is not the given one.")             \
    X("PROMPT-WIRE-MISMATCH",                                                                      \
      "The captured prompt's tokens are not the seed of exactly one golden.")                      \
    X("SCORED-EXPONENTS-CONFLICT",                                                                 \
      "The contract declares its exponents twice and differently, or not as two numbers.")         \
    X("COHORT-MEMBERSHIP-INVALID",                                                                 \
      "The goldens do not form cohorts of eight streams with seeds of one length.")                \
    X("CORRECTNESS-GOLDEN-UNATTESTED",                                                             \
      "The hidden correctness golden is pinned and not given, given and not pinned, or another.")  \
    X("WORKER-OVERRIDE-CONFLICT",                                                                  \
      "The environment names another worker than the one that the candidate's tree has built.")    \
    X("METALLIB-MISSING", "On a Mac track there is no mlx.metallib beside a worker.")              \
    X("HEAD-MISSING", "The folder of a speculation head is not there.")                            \
    X("CANDIDATE-COMMIT-MISSING",                                                                  \
      "A scored job has no dispatch record that names the candidate's commit.")                    \
    X("CANDIDATE-COMMIT-INVALID",                                                                  \
      "The dispatch record is no commit id, or names another commit than MLXFAST_COMMIT_SHA.")     \
    X("EXACTNESS-PROBE-FAILED",                                                                    \
      "The candidate's serial decoding, untimed, differs from the golden.")                        \
    X("PAIRS-TOO-FEW", "A developer's run has fewer accepted pairs of a prompt than it needs.")    \
    X("PREFILL-WINDOW-NOT-OBSERVED",                                                               \
      "A window of a leg, or the whole, has no duration or no token.")                             \
    X("PREFILL-WINDOW-DISAGREES",                                                                  \
      "The prefill and decode windows of a leg do not add up to the whole.")                       \
    X("prefill-window-uncertified",                                                                \
      "The class under which a pair is rejected for one of the two.")                              \
    X("PerPairBound", "A pair's ratio is not finite, not above 0, or above 8.")                    \
    X("SCORE-NOT-FINITE", "The score of the older flow has no finite value.")                      \
    X("Floor", "The speedup of the older flow is below 0.90.")                                     \
    X("Ceiling", "The speedup of the older flow is above 5.")                                      \
    X("RESULTS-INVALID", "A results file does not have the form of one.")                          \
    X("OVERLAY-GATES-REFUSED",                                                                     \
      "The score that is to be timed is no gates-only score that passed here.")                    \
    X("OVERLAY-RESULTS-REFUSED",                                                                   \
      "The results are not accepted, too few, of several kinds, or do not add up.")                \
    X("OVERLAY-MISMATCH",                                                                          \
      "The score and the results speak of different commits, weights, tracks or contracts.")

/* Runs. */
#define REFUSALS_RUN(X)                                                                            \
    X("TokenMismatch", "A token of a timed phase is not the golden's.")                            \
    X("NOT-PASSED", "The run was complete and did not pass; the score says why.")                  \
    X("WEIGHTS-MISSING", "The weights folder of a run is not there.")                              \
    X("ENGINE-MISSING", "The engine of a run is no executable file.")                              \
    X("SERIAL-CONTROL-LEG-FAILED", "The serial control leg of a ranked run cannot be measured, "   \
                                   "gives a wrong token, or speculated.")                          \
    X("CONTROL-GOLDEN-PROMPT-MISMATCH", "A control golden is of another prompt than its golden.")  \
    X("TIMED-DIVERGENCE-OVER-TOLERANCE",                                                           \
      "More tokens of a timed window than the contract lets through are not the reference's.")     \
    X("TIMED-DIVERGENCE-NOT-A-NEAR-TIE",                                                           \
      "A token of a timed window is not the reference's, nor its second choice within the gap.")   \
    X("TIMED-REPLAY-FAILED", "The reference worker could not replay a timed window.")              \
    X("WEIGHTS-SHAPE-MISMATCH", "The weights are of another model than the contract pins.")        \
    X("WEIGHTS-CHANGED", "Files of the weights folder were changed between hashing and the end.")  \
    X("ENGINE-CHANGED", "The engine's file was changed during its run.")                           \
    X("DRAFTER-MISSING", "The drafter's folder of a run is not there.")                            \
    X("DRAFTER-CHANGED", "Files of the drafter's folder were changed during the run.")             \
    X("decode_seed_token_mismatch", "The token after the seed is not the golden's.")               \
    X("ReferenceFailed",                                                                           \
      "The reference worker cannot be started, refuses, or breaks the protocol.")                  \
    X("ReferenceInvalid",                                                                          \
      "An answer of the reference lacks a row, has another shape, or contradicts itself.")         \
    X("TOLERANCE-WIDENING-REFUSED", "A tolerance of an official run is to be widened.")            \
    X("COMMIT-INVALID", "MLXFAST_COMMIT_SHA is no commit id.")                                     \
    X("SPEC-MODE-NOT-ALLOWED-FOR-TRACK", "The contract does not allow the speculation mode.")      \
    X("STORED-BASELINE-OVERRIDE-REFUSED",                                                          \
      "A stored baseline is given on a track that measures its own.")                              \
    X("GOLDEN-COUNT-MISMATCH", "A flag that belongs to each golden is not given once for each.")   \
    X("MULTIPLE-GOLDENS-WITHOUT-PAIRED-PATH", "More than one golden is given to a local run.")     \
    X("CONTROL-GOLDEN-WITHOUT-PAIRED-PATH", "A control golden is given to a local run.")           \
    X("RECORD-PROMPT-INVALID", "A prompt file holds no list of token ids that fits the track.")    \
    X("RECORD-NOT-SELF-CONSISTENT",                                                                \
      "The engine gave two different continuations of one prompt while a golden was recorded.")

/* The machine: quiet and cool before a timed phase, at full clock during it (quiet.md). */
#define REFUSALS_QUIET(X)                                                                          \
    X("QUIESCENCE-TIMEOUT",                                                                        \
      "Declined: contention. Others kept the machine busy until the bound of the wait.")           \
    X("COOL-GATE-TIMEOUT",                                                                         \
      "The machine did not become cool within the bound, or stopped cooling above the limit.")     \
    X("TEMPERATURE-READER-MISSING",                                                                \
      "No reader of the temperature, or none that gives a usable value, in a ranked run.")         \
    X("QUIET-GATES-DISABLED",                                                                      \
      "MLXFAST_LOCAL_COOL_GATE=0 would turn the gates of a ranked run off.")                       \
    X("TELEMETRY-THROTTLED",                                                                       \
      "The machine was slowed down during a timed phase: its clock fell or it said so.")           \
    X("TELEMETRY-CONTENDED", "Declined: contention. Others were at work during a timed phase.")    \
    X("TELEMETRY-MISSING", "No steady clock was read in a timed phase that must show one.")

#define JUDGE_REFUSALS(X)                                                                          \
    REFUSALS_INPUT(X)                                                                              \
    REFUSALS_CONTRACT(X)                                                                           \
    REFUSALS_GOLDEN(X)                                                                             \
    REFUSALS_SEAL(X)                                                                               \
    REFUSALS_EVIDENCE(X)                                                                           \
    REFUSALS_ENGINE(X)                                                                             \
    REFUSALS_EQUATION(X)                                                                           \
    REFUSALS_COHORT(X)                                                                             \
    REFUSALS_SEMANTIC(X)                                                                           \
    REFUSALS_SURFACE(X)                                                                            \
    REFUSALS_JOB(X)                                                                                \
    REFUSALS_QUIET(X)                                                                              \
    REFUSALS_SANDBOX(X) REFUSALS_MANIFEST(X) REFUSALS_BLOCKS(X) REFUSALS_BASELINE(X) REFUSALS_RUN(X)

struct refusal {
    const char *group, *name, *meaning;
};
const struct refusal *refusals_all(size_t *count);
const struct refusal *refusals_find(const char *name); /* NULL: not in the table */

/* docs/refusals.md, byte for byte. */
void refusals_write_markdown(struct buffer *out);
/* The rows as a JSON array of {"group","name","meaning"}, one a line. */
void refusals_write_json(struct buffer *out);

#endif
