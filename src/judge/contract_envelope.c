/* What a contract permits of the weights' format (dflash-track.md section 13). */
#include "judge/contract_read.h"

bool contract_read_envelope(const struct contract_reader *root)
{
    static const char key[] = "quantization_envelope";
    static const char *const flag[] = {"attention_int8_group32"};
    struct contract *c = root->c;
    struct contract_reader r;
    c->has_quantization_envelope = contract_has(root, key);
    if (!c->has_quantization_envelope)
        return true;
    return contract_open_object(root, CONTRACT_ENVELOPE, key, &r) &&
           contract_is_whole(&r, flag, 1) &&
           contract_get_flag(&r, flag[0], &c->attention_int8_group32);
}
