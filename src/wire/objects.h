/* The small closed objects inside the messages, as tables for decoder, encoder and schema. All
 * their members are required. Private to src/wire. */
#ifndef MLXFAST_WIRE_OBJECTS_H
#define MLXFAST_WIRE_OBJECTS_H

#include "wire/wire.h"

enum member_kind { MEMBER_I64, MEMBER_U32, MEMBER_U64, MEMBER_F64, MEMBER_TEXT, MEMBER_HASH };

struct object_member {
    const char *name;
    enum member_kind kind; /* MEMBER_HASH: text of 64 lower-case hexadecimal digits */
    size_t offset;         /* in the struct of wire.h */
};
struct object_table {
    const char *schema_name;
    const struct object_member *members; /* in wire order */
    size_t count;
};

extern const struct object_table object_top_logit, object_expert_stats, object_head_provenance,
    object_runner, object_resident;

/* Allowed texts of a field, NULL-terminated; NULL when it is free text. */
const char *const *wire_text_choices(const char *field);

extern const char *const wire_spec_modes[]; /* NULL-terminated */

#endif
