/* Writes the JSON Schema of Engine Protocol v1, made from the tables of src/wire/wire.h:
 * build/tools/write-schema > docs/schema/engine-protocol-v1.schema.json
 * build/tools/write-schema block > docs/schema/block-protocol-v1.schema.json */
#include "wire/wire.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct buffer text = {0};
    if (argc == 2 && strcmp(argv[1], "block") == 0)
        wire_block_schema_write(&text);
    else
        wire_schema_write(&text);
    bool ok = fwrite(text.data, 1, text.length, stdout) == text.length && fflush(stdout) == 0;
    buffer_free(&text);
    if (!ok)
        perror("write-schema");
    return ok ? 0 : 1;
}
