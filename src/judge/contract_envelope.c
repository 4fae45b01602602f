/* What a contract permits of the weights' format (dflash-track.md section 13). */
#include "judge/contract_read.h"

bool contract_read_envelope(const struct contract_reader *root)
{
    static const char key[] = "quantization_envelope", flag[] = "attention_int8_group32";
    struct contract *c = root->c;
    c->has_quantization_envelope = contract_has(root, key);
    if (!c->has_quantization_envelope)
        return true;
    const json_t *object = json_object_get(root->view.object, key);
    if (!json_is_object(object))
        return contract_refuse_value(root, key, "must be an object");
    const struct contract_reader r = {c, {object, c->path, key}, root->err};
    const char *member;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, member, value)
    {
        if (!contract_key_is_known(CONTRACT_ENVELOPE, member))
            return contract_refuse_key(&r, CONTRACT_ENVELOPE, member, contract_field(&r, member),
                                       NULL);
    }
    if (!contract_has(&r, flag))
        return contract_refuse(&r, contract_field(&r, flag), "missing",
                               "the group is declared whole or not at all");
    return contract_get_flag(&r, flag, &c->attention_int8_group32);
}
