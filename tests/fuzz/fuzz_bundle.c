/* Any bytes as a bundle. What is accepted is the one archive of its members, and its verification
 * ends with findings, whatever the members hold. */
#include "judge/evidence/verify.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct verify_options none;
    struct arena a = {0};
    struct bundle b;
    struct error err = {0};
    struct findings f = {0};
    struct buffer again = {0};
    if (bundle_parse("bundle.tar", (const char *)data, size, &a, &b, &err)) {
        bundle_write(&b, &again);
        require(again.length == size && memcmp(again.data, data, size) == 0);
        for (size_t i = 0; i < b.count; i++)
            require(bundle_knows(b.members[i].name) &&
                    bundle_find(&b, b.members[i].name) == &b.members[i]);
        verify_bundle(&b, &none, &f);
        require(f.count > 0 && f.of[0] + f.of[1] + f.of[2] == f.count);
    } else {
        require(strcmp(err.name, "BUNDLE-INVALID") == 0 && err.message[0]);
    }
    findings_free(&f);
    buffer_free(&again);
    arena_free(&a);
    return 0;
}
