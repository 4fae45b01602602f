/* An object of its own: it alone is compiled anew when a source of the transform changes. */
#include "engine/transform/transform.h"

const char transform_source_sha256[] = TRANSFORM_SOURCE_SHA256;
