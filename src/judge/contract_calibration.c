/* How steady a box must be to be calibrated (docs/baseline-calibration.md). */
#include "judge/contract_read.h"

/* Beyond it a calibrated mean would say little of any one leg. */
static const double CV_END = 0.1;

bool contract_read_calibration_cv(const struct contract_reader *root)
{
    static const char key[] = "calibration_cv_max";
    struct contract *c = root->c;
    if (!contract_has(root, key))
        return true;
    if (!contract_get_real(root, key, CONTRACT_REAL_POSITIVE, &c->calibration_cv_max))
        return false;
    if (c->calibration_cv_max > CV_END)
        return contract_refuse_value(root, key,
                                     "must be 0.1 at most: a fraction, 0.01 for one percent");
    c->has_calibration_cv_max = true;
    return true;
}
